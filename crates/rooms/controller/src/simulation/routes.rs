//! The world's gate.

use async_trait::async_trait;
use tidegate_core::AliasName;
use tokio::time::sleep;

use super::World;
use crate::route::{RouteActuator, RouteError, RouteRow};

#[async_trait]
impl RouteActuator for World {
    fn name(&self) -> &'static str {
        "world"
    }

    async fn set(&self, row: &RouteRow) -> Result<(), RouteError> {
        sleep(self.pace.route).await;
        let mut inner = self.inner.lock();
        inner.fence(row.generation).map_err(|highest| RouteError::Stale { highest })?;
        if inner.refused_routes.contains(&row.alias) {
            return Err(RouteError::Refused("the gate says no".into()));
        }
        inner.routes.insert(row.alias.clone(), row.clone());
        Ok(())
    }

    async fn read(&self, alias: &AliasName) -> Result<Option<RouteRow>, RouteError> {
        Ok(self.inner.lock().routes.get(alias).cloned())
    }
}
