//! Schedules.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use tidegate_core::{DeploymentName, ShiftName};
/// A timetable.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Its zone.
    pub time_zone: TimeZone,
    /// Days it is for.
    pub days: BTreeSet<WeekdayOrd>,
    /// Dates it is for; they beat days.
    pub dates: BTreeSet<Date>,
    /// Dates on which another shift, or none, is in force.
    pub exceptions: BTreeMap<Date, ScheduleException>,
    /// Shifts in the order of the document.
    pub shifts: Vec<ShiftStart>,
    /// Latest starts of the steps before the hour.
    pub lead: Lead,
    /// How long a drain waits.
    pub drain_timeout: Duration,
    /// All or none, or alias by alias.
    pub atomicity: Atomicity,
    /// Longest time a present alias may go without a deployment of its own.
    pub gap_allowed: Duration,
}

/// A weekday that sorts, Monday first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekdayOrd(pub Weekday);

impl PartialOrd for WeekdayOrd {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WeekdayOrd {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.to_monday_zero_offset().cmp(&other.0.to_monday_zero_offset())
    }
}

/// What is in force on an exceptional date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleException {
    /// This shift, all day.
    Use(ShiftName),
    /// No start on that date.
    None,
}

/// One shift of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftStart {
    /// Its name: one namespace over all schedules.
    pub name: ShiftName,
    /// Civil time at which it starts.
    pub start: Time,
    /// The whole set that is loaded.
    pub deployments: BTreeSet<DeploymentName>,
}

/// Latest starts of the steps before the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lead {
    /// Prefetch.
    pub prefetch: Duration,
    /// Verify.
    pub verify: Duration,
    /// Deploy.
    pub deploy: Duration,
    /// Load.
    pub load: Duration,
    /// Warm and healthy.
    pub ready: Duration,
}

/// All or none, or alias by alias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Atomicity {
    /// Alias by alias.
    #[default]
    PerAlias,
    /// All or none.
    Set,
}
