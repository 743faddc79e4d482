//! What a failure holds back.
//!
//! A new deployment that fails holds the old deployments of its aliases and those on its GPUs or memory; each new one
//! that cannot load while one of those is there is held with them, and holds its own in turn, to a fixed point. All
//! others switch. With `atomicity: set` one failure holds everything.

use std::collections::BTreeSet;

use tidegate_config::site::Atomicity;
use tidegate_core::{AliasName, DeploymentName};

use super::{Change, Departure, Plan};
use crate::placement::Seat;

/// What stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Old deployments that go on serving.
    pub old: BTreeSet<DeploymentName>,
    /// New deployments that do not come; those that failed are among them.
    pub new: BTreeSet<DeploymentName>,
    /// Aliases that stay with their old deployments, also those that the new shift does not have.
    pub aliases: BTreeSet<AliasName>,
}

/// What is held when these new deployments fail.
#[must_use]
pub fn held(plan: &Plan, failed: &BTreeSet<DeploymentName>) -> Held {
    if failed.is_empty() {
        return Held::default();
    }
    let mut held = Held { new: failed.clone(), ..Held::default() };
    if plan.rules.atomicity == Atomicity::Set {
        held.new.extend(plan.changes.iter().map(|change| change.deployment.clone()));
        held.old.extend(plan.departures.iter().map(|departure| departure.deployment.clone()));
    }
    loop {
        let before = held.old.len() + held.new.len();
        let old = plan.departures.iter().filter(|old| holds(plan, &held, old)).map(|old| old.deployment.clone());
        held.old.extend(old.collect::<Vec<_>>());
        let waits = |change: &&Change| change.displaces.iter().any(|old| held.old.contains(old));
        let new: Vec<_> = plan.changes.iter().filter(waits).map(|change| change.deployment.clone()).collect();
        held.new.extend(new);
        if held.old.len() + held.new.len() == before {
            break;
        }
    }
    let is_held = |route: &&super::Route| {
        route.to.iter().any(|target| held.new.contains(&target.deployment))
            || (route.from.iter().any(|target| held.old.contains(&target.deployment)) && route.to.is_empty())
    };
    held.aliases = plan.routes.iter().filter(is_held).map(|route| route.alias.clone()).collect();
    held
}

/// Whether an old deployment has to stay for one of the held new ones.
fn holds(plan: &Plan, held: &Held, old: &Departure) -> bool {
    let serves_its_alias = plan.routes.iter().any(|route| {
        route.to.iter().any(|target| held.new.contains(&target.deployment))
            && route.from.iter().any(|target| target.deployment == old.deployment)
    });
    serves_its_alias
        || plan
            .changes
            .iter()
            .filter(|change| held.new.contains(&change.deployment))
            .any(|change| change.displaces.contains(&old.deployment) || shares(&change.seats, &old.seats))
}

fn shares<K>(a: &[(K, Seat)], b: &[(K, Seat)]) -> bool {
    a.iter().any(|(_, a)| b.iter().any(|(_, b)| a.shares_gpu(b)))
}
