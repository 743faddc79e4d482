//! The Alias document.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Class, Limits, Timeouts};

/// The name that users call. Either `targets`, when it is the same in every shift, or `shifts`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Alias")]
pub(crate) struct Alias {
    /// The deployments that serve it in every shift.
    pub(crate) targets: Option<Vec<Target>>,
    /// What it is in each shift; every shift of the schedules is named.
    pub(crate) shifts: Option<BTreeMap<String, Shift>>,
    /// Service class. Default general.
    pub(crate) class: Option<Class>,
    /// Limits for everybody together. What is left out is taken from the profiles of the targets.
    pub(crate) limits: Option<Limits>,
    /// Aliases that are tried, in this order, when this one cannot serve and the caller has a grant for them.
    #[serde(default)]
    pub(crate) fallback: Vec<String>,
    /// Deadlines, instead of the Site's.
    pub(crate) timeouts: Option<Timeouts>,
    /// Hosts from which the engine may fetch images and other media that a prompt names. Default none.
    #[serde(default)]
    pub(crate) media_hosts: Vec<String>,
}

/// What an alias is in one shift. Exactly one of the three keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "AliasShift")]
pub(crate) struct Shift {
    /// The deployments that serve it.
    pub(crate) targets: Option<Vec<Target>>,
    /// The same as in this other shift.
    pub(crate) same_as: Option<String>,
    /// Not served: `{}`, or the alias that serves instead.
    pub(crate) absent: Option<Absent>,
}

/// Not served.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Absent {
    /// The alias that serves instead, under its own grants and limits.
    pub(crate) substitute: Option<String>,
}

/// A deployment that serves an alias.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Target {
    /// Name of the Deployment.
    #[schemars(with = "String")]
    pub(crate) deployment: Option<String>,
    /// Its share, relative to the other targets, from 0 to 1000000. Default 100.
    #[schemars(range(min = 0, max = 1000000))]
    pub(crate) weight: Option<u32>,
}
