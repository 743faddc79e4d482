//! What the admin API asks of the process it stands in.

use std::fmt::Debug;

use jiff::tz::TimeZone;
use serde::Serialize;
use tidegate_core::{ShiftName, TeamName};

use crate::lifecycle::{Accepted, Ask, LifecycleStatus, Refused};

/// Whether the process should get traffic, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether it should.
    pub ready: bool,
    /// What is in the way, in plain words.
    pub waiting_for: Vec<String>,
}

/// What comes of something that takes a while.
pub type Soon<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The process as the admin API sees it.
pub trait Panel: Debug + Send + Sync {
    /// Whether traffic should come.
    fn readiness(&self) -> Readiness;
    /// All metrics in the text format of OpenMetrics.
    fn metrics(&self) -> String;
    /// What is running.
    fn status(&self) -> serde_json::Value;
    /// Whether the documents know a team.
    fn has_team(&self, team: &TeamName) -> bool;
    /// The shifts that the documents know.
    fn shifts(&self) -> Vec<ShiftName>;
    /// The site's zone.
    fn time_zone(&self) -> TimeZone;
    /// Brings what was accounted until now into the store, so that usage is complete.
    fn settle(&self) -> Soon<'_, ()>;
    /// What the controller is at; `None`: there is none in this process.
    fn lifecycle(&self) -> Option<LifecycleStatus> {
        None
    }
    /// Asks the controller to do something, in the name of `who`.
    fn ask<'a>(&'a self, ask: Ask, who: &'a str) -> Soon<'a, Result<Accepted, Refused>> {
        let _ = (ask, who);
        Box::pin(std::future::ready(Err(Refused::no_controller())))
    }
    /// Whether a Schedule says which shift is in force, so that setting one is a switch.
    fn has_schedule(&self) -> bool {
        false
    }
    /// Whether no process runs and this is a command that has the store for itself.
    fn is_alone(&self) -> bool {
        false
    }
}
