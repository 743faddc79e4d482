//! The Schedule document.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::quantity::Span;
use crate::scalar::{CalendarDate, ClockTime, Zone};

/// Which deployments are loaded at which hour. A date has at most one Schedule.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Schedule")]
pub(crate) struct Schedule {
    /// Its zone. Default the Site's.
    pub(crate) time_zone: Option<Zone>,
    /// Weekdays it is for. Default all, or none when there are `dates`.
    pub(crate) days: Option<Vec<Weekday>>,
    /// Dates it is for; they beat the days of other Schedules.
    #[serde(default)]
    pub(crate) dates: Vec<CalendarDate>,
    /// Dates on which another shift, or none, is in force.
    #[serde(default)]
    pub(crate) exceptions: Vec<Exception>,
    /// The shifts of the day.
    #[schemars(with = "Vec<Shift>")]
    pub(crate) shifts: Option<Vec<Shift>>,
    /// How long before the hour each step starts at the latest; used until its phases have been measured.
    pub(crate) lead: Option<Lead>,
    /// How the old deployments end.
    pub(crate) drain: Option<Drain>,
    /// Whether a switch is made alias by alias, or all or none. Default perAlias.
    pub(crate) atomicity: Option<Atomicity>,
    /// How long an alias may be without a deployment.
    pub(crate) gap: Option<Gap>,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Weekday {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

/// A date on which another shift, or none, is in force.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Exception {
    /// The date.
    #[schemars(with = "CalendarDate")]
    pub(crate) date: Option<CalendarDate>,
    /// A shift that is in force all day, or `none`: no start on that date.
    #[schemars(with = "String")]
    #[serde(rename = "use")]
    pub(crate) shift: Option<String>,
}

/// A part of the day.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "ScheduleShift")]
pub(crate) struct Shift {
    /// Its name: one namespace over all Schedules, and the same name means the same deployments.
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
    /// When it starts.
    #[schemars(with = "ClockTime")]
    pub(crate) start: Option<ClockTime>,
    /// All deployments that are loaded in it.
    #[schemars(with = "Vec<String>")]
    pub(crate) deployments: Option<Vec<String>>,
}

/// How long before the hour each step starts at the latest, in falling order.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Lead {
    /// Fetching weights. Default 30m.
    pub(crate) prefetch: Option<Span>,
    /// Verifying them. Default 20m.
    pub(crate) verify: Option<Span>,
    /// Starting engines. Default 15m.
    pub(crate) deploy: Option<Span>,
    /// Loading weights. Default 10m.
    pub(crate) load: Option<Span>,
    /// Warm and healthy. Default 5m.
    pub(crate) ready: Option<Span>,
}

/// How the old deployments end.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Drain {
    /// How long requests in flight are waited for. Default 5m.
    pub(crate) timeout: Option<Span>,
}

/// Whether a switch is made alias by alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Atomicity {
    /// Alias by alias: one that fails holds back only what depends on it.
    PerAlias,
    /// All or none.
    Set,
}

/// How long an alias may be without a deployment.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Gap {
    /// The longest time. Default 0s.
    pub(crate) allowed: Option<Span>,
}
