//! Aliases by shift.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{AliasName, DeploymentName, Limits, ShiftName};

use super::{Class, Timeouts};
/// The name users call.
#[derive(Clone, Debug)]
pub struct Alias {
    /// What it is in each shift; every shift of the site has a value.
    pub shifts: BTreeMap<ShiftName, ShiftTargets>,
    /// Service class.
    pub class: Class,
    /// Limits for everybody together: the document's; for a dimension that the document leaves out, the smallest over
    /// the profiles of its targets in all shifts. [`Alias::limits_in`] has the shift's own.
    pub limits: Limits,
    /// Limits in each shift in which the alias has targets: the document's, else the smallest over the profiles of that
    /// shift's targets.
    pub shift_limits: BTreeMap<ShiftName, Limits>,
    /// Tried in this order when the alias cannot serve and the caller holds a grant for them.
    pub fallback: Vec<AliasName>,
    /// Overrides [`Site::timeouts`].
    pub timeouts: Timeouts,
    /// Hosts from which media may be fetched by the engine.
    pub media_hosts: BTreeSet<Arc<str>>,
}

impl Alias {
    /// Limits for everybody together while `shift` is in force.
    #[must_use]
    pub fn limits_in(&self, shift: &ShiftName) -> Limits {
        self.shift_limits.get(shift).copied().unwrap_or(self.limits)
    }
}

/// What an alias is in one shift; `sameAs` is already resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShiftTargets {
    /// Served by deployments, by weight.
    Targets(Vec<Target>),
    /// Not served.
    Absent {
        /// The alias that serves instead.
        substitute: Option<AliasName>,
    },
}

/// One deployment of an alias.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Target {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Share of the traffic, relative to the other targets; at least one target has more than 0.
    pub weight: u32,
}
