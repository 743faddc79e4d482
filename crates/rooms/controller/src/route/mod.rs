//! Where an alias goes, said to whoever carries its requests.

mod http_route;
mod own_table;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, DeploymentName, ShiftName};

pub use http_route::{HttpRouteSettings, HttpRoutes};
pub use own_table::{Gates, NoGates, OwnTable};

/// A deployment of an alias.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTarget {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its share.
    pub weight: u32,
    /// Which replicas of it; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// An alias's route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRow {
    /// The alias.
    pub alias: AliasName,
    /// Where its requests go; none: nowhere.
    pub targets: Vec<RouteTarget>,
    /// The shift whose limits it has, and in which it is present or absent.
    pub shift: ShiftName,
    /// When it will be there again, if that is known and it is only in a gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The controller's generation that set it.
    pub generation: u64,
}

/// Why a route was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A later controller is at work.
    #[error("a later controller is at work (generation {highest})")]
    Stale {
        /// Its generation.
        highest: u64,
    },
    /// It cannot be said now; asking again may help.
    #[error("{0}")]
    Away(Arc<str>),
    /// It will not be done.
    #[error("{0}")]
    Refused(Arc<str>),
}

/// Carries out a change of routes: idempotent, fenced by the generation, and read back.
///
/// A new kind of gate in front of the engines is a new implementation and nothing else.
#[async_trait]
pub trait RouteActuator: Send + Sync + fmt::Debug {
    /// Its name, for people.
    fn name(&self) -> &str;

    /// Sends an alias to these targets and to no others. Returns when every gate of this kind does so.
    ///
    /// # Errors
    /// [`RouteError`]; then the alias may be at either place until it is set again.
    async fn set(&self, row: &RouteRow) -> Result<(), RouteError>;

    /// Where an alias goes; `None` when it never was set.
    ///
    /// # Errors
    /// [`RouteError`].
    async fn read(&self, alias: &AliasName) -> Result<Option<RouteRow>, RouteError>;
}

/// Sets a route on all actuators. When one refuses, it and those that had done so are set back to where they were.
///
/// # Errors
/// The first refusal.
pub async fn set_on_all(actuators: &[Arc<dyn RouteActuator>], row: &RouteRow) -> Result<(), RouteError> {
    let mut done: Vec<(&Arc<dyn RouteActuator>, Option<RouteRow>)> = Vec::new();
    for actuator in actuators {
        let before = actuator.read(&row.alias).await?;
        done.push((actuator, before));
        if let Err(error) = actuator.set(row).await {
            tracing::error!(actuator = actuator.name(), alias = %row.alias, %error, "route refused");
            undo(&done, row.generation).await;
            return Err(error);
        }
    }
    Ok(())
}

async fn undo(done: &[(&Arc<dyn RouteActuator>, Option<RouteRow>)], generation: u64) {
    for (actuator, before) in done {
        let Some(before) = before else { continue };
        let back = RouteRow { generation, ..before.clone() };
        if let Err(error) = actuator.set(&back).await {
            tracing::error!(actuator = actuator.name(), alias = %back.alias, %error, "route is not set back");
        }
    }
}
