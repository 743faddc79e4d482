//! What the admin API asks of the process it stands in.

use std::fmt::Debug;

use jiff::tz::TimeZone;
use serde::Serialize;
use tidegate_core::{ShiftName, TeamName};

/// Whether the process should get traffic, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether it should.
    pub ready: bool,
    /// What is in the way, in plain words.
    pub waiting_for: Vec<String>,
}

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
    fn settle(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}
