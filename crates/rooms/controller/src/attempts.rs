//! Deployments that failed: when they may be tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_core::DeploymentName;
use tidegate_planner::instance::{ATTEMPTS_MAX, RETRY_AFTER};

/// One deployment's failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// How many failed.
    pub failed: u32,
    /// When the last one did.
    pub at: Timestamp,
    /// Why.
    pub fault: Arc<str>,
    /// When it may be tried again; `None`: not until documents change, a shift starts or somebody says `resume`.
    pub next_at: Option<Timestamp>,
}

/// Failures by deployment and revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(BTreeMap<(DeploymentName, u64), Attempt>);

impl Attempts {
    /// Notes that a deployment failed. `is_final`: it has been tried as often as it may be.
    pub(crate) fn fail(
        &mut self,
        name: &DeploymentName,
        revision: u64,
        fault: Arc<str>,
        is_final: bool,
        now: Timestamp,
    ) {
        let failed = self.0.get(&(name.clone(), revision)).map_or(0, |attempt| attempt.failed) + 1;
        let wait = RETRY_AFTER.get(failed as usize - 1).filter(|_| !is_final && failed < ATTEMPTS_MAX);
        let next_at = wait.and_then(|wait| now.checked_add(*wait).ok());
        self.0.insert((name.clone(), revision), Attempt { failed, at: now, fault, next_at });
    }

    /// Deployments that must not be tried now.
    pub(crate) fn blocked(&self, now: Timestamp) -> BTreeSet<(DeploymentName, u64)> {
        let waits = |attempt: &Attempt| attempt.next_at.is_none_or(|next_at| now < next_at);
        self.0.iter().filter(|(_, attempt)| waits(attempt)).map(|(key, _)| key.clone()).collect()
    }

    /// It is there: what failed before does not count any more.
    pub(crate) fn succeed(&mut self, name: &DeploymentName, revision: u64) {
        self.0.remove(&(name.clone(), revision));
    }

    /// Documents changed, a shift started, or somebody said `resume`.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(DeploymentName, u64), &Attempt)> {
        self.0.iter()
    }
}
