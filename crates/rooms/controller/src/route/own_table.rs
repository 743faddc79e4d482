//! The own alias table: one row per alias in the store, read by every gate.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::AliasName;

use super::{RouteActuator, RouteError, RouteRow};
use crate::records::{RecordError, Records};

/// The gates that read the table.
#[async_trait]
pub trait Gates: Send + Sync + fmt::Debug {
    /// Returns when every gate that is there goes by a row of this generation or a later one.
    ///
    /// # Errors
    /// Why they do not.
    async fn go_by(&self, row: &RouteRow) -> Result<(), RouteError>;
}

/// Nobody reads the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGates;

#[async_trait]
impl Gates for NoGates {
    async fn go_by(&self, _row: &RouteRow) -> Result<(), RouteError> {
        Ok(())
    }
}

/// The own alias table.
#[derive(Clone, Debug)]
pub struct OwnTable {
    records: Arc<dyn Records>,
    gates: Arc<dyn Gates>,
}

impl OwnTable {
    /// The table in the store, and who reads it.
    #[must_use]
    pub fn new(records: Arc<dyn Records>, gates: Arc<dyn Gates>) -> Self {
        Self { records, gates }
    }
}

impl From<RecordError> for RouteError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Stale { highest } => Self::Stale { highest },
            RecordError::Store(why) => Self::Away(why),
        }
    }
}

#[async_trait]
impl RouteActuator for OwnTable {
    fn name(&self) -> &'static str {
        "own alias table"
    }

    async fn set(&self, row: &RouteRow) -> Result<(), RouteError> {
        self.records.set_route(row).await?;
        self.gates.go_by(row).await
    }

    async fn read(&self, alias: &AliasName) -> Result<Option<RouteRow>, RouteError> {
        Ok(self.records.routes().await?.remove(alias))
    }
}
