//! The gate of this process, as it goes by the routes in the store.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_controller::route::{RouteError, RouteRow};
use tidegate_store::Store;

use crate::catalogues::Catalogues;

/// The gate of this process.
#[derive(Debug)]
pub(crate) struct Gates {
    pub(crate) store: Store,
    pub(crate) catalogues: Arc<Catalogues>,
}

#[async_trait]
impl tidegate_controller::route::Gates for Gates {
    async fn go_by(&self, _row: &RouteRow) -> Result<(), RouteError> {
        let snapshot = self.store.routes().await.map_err(|error| RouteError::Away(error.to_string().into()))?;
        self.catalogues.set_routes(snapshot);
        Ok(())
    }
}
