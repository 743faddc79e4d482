//! Where each alias shall go, and which old deployment has to make room: from what is known now, without memory.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::DeploymentName;

use super::{Member, Mode, New, Old, Side, Switch};
use crate::plan::{Change, Held, Plan, Route, held};

/// What is held and who has to make room, at one moment.
pub(super) struct Wishes {
    pub(super) held: Held,
    pub(super) forced: BTreeSet<DeploymentName>,
}

impl Switch {
    pub(super) fn wishes(&self, plan: &Plan, now: Timestamp) -> Wishes {
        let held = if self.mode == Mode::Aborts {
            Held {
                old: self.old.keys().cloned().collect(),
                new: self.new.keys().cloned().collect(),
                aliases: self.lines.keys().cloned().collect(),
            }
        } else {
            held(plan, &self.failed)
        };
        let mut wishes = Wishes { held, forced: BTreeSet::new() };
        wishes.forced = self.forced(plan, &wishes, now);
        wishes
    }

    /// Old deployments that a new one waits for whose turn it is: in their aliases' announced gaps, or where
    /// somebody else serves those meanwhile.
    fn forced(&self, plan: &Plan, wishes: &Wishes, now: Timestamp) -> BTreeSet<DeploymentName> {
        let held = &wishes.held;
        let mut forced = BTreeSet::new();
        for change in plan.changes.iter().filter(|change| self.is_next(plan, change, held, now)) {
            for old in &change.displaces {
                let routes =
                    || plan.routes.iter().filter(|route| route.from.iter().any(|from| from.deployment == *old));
                let is_served = |route: &Route| {
                    let others = || route.from.iter().map(|from| &from.deployment).filter(|name| *name != old);
                    let serves = |name: &DeploymentName| {
                        matches!(self.old.get(name), None | Some(Old::Serving)) && !forced.contains(name)
                    };
                    !self.ready(route, wishes).is_empty() || others().any(serves)
                };
                let is_announced =
                    routes().all(|route| route.gap > Duration::ZERO || self.has_left(route, old) || is_served(route));
                let departure = plan.departures.iter().find(|departure| departure.deployment == *old);
                let is_due = departure.is_some_and(|departure| now >= departure.drains_at);
                if is_announced && is_due && !held.old.contains(old) {
                    forced.insert(old.clone());
                }
            }
        }
        forced
    }

    fn has_left(&self, route: &Route, old: &DeploymentName) -> bool {
        let line = self.lines.get(&route.alias);
        let is_on = |member: &Member| member.side == Side::Old && member.deployment == *old;
        line.is_none_or(|line| !line.wanted.iter().chain(&line.confirmed).any(is_on))
    }

    /// Whether nothing but room keeps a new deployment from starting.
    pub(super) fn is_next(&self, plan: &Plan, change: &Change, held: &Held, now: Timestamp) -> bool {
        let is_planned = self.new.get(&change.deployment) == Some(&New::Planned);
        let is_turn = change.after.as_ref().is_none_or(|first| self.new.get(first) == Some(&New::Proven));
        let is_late = !change.displaces.is_empty() || change.after.is_some();
        // engines start with their own step; what comes before is the cache's
        let start = if is_late { plan.at } else { deploy_at(change) };
        is_planned && is_turn && now >= start && !held.new.contains(&change.deployment)
    }

    /// Where an alias shall go.
    pub(super) fn wish(&self, plan: &Plan, route: &Route, wishes: &Wishes, now: Timestamp) -> Vec<Member> {
        let old = self.available(route, wishes);
        if now < plan.at && self.mode != Mode::Aborts {
            return old;
        }
        let is_held = wishes.held.aliases.contains(&route.alias);
        if is_held {
            return self.way_back(plan, route, wishes, old);
        }
        if route.to.is_empty() {
            return Vec::new();
        }
        let ready = self.ready(route, wishes);
        if ready.len() == route.to.len() || old.is_empty() { ready } else { old }
    }

    /// Old deployments that serve, or can go on at once.
    fn available(&self, route: &Route, wishes: &Wishes) -> Vec<Member> {
        let serves = |name: &DeploymentName| match self.old.get(name) {
            // it stays, or somebody else runs it
            None => true,
            Some(Old::Serving) => !wishes.forced.contains(name),
            Some(Old::Draining | Old::Drained) => wishes.held.old.contains(name),
            Some(
                Old::Sleeping | Old::Asleep | Old::Stopping | Old::Gone | Old::Restoring | Old::Lost | Old::Quarantined,
            ) => false,
        };
        let old = route.from.iter().map(|target| &target.deployment);
        let member = |name: &DeploymentName| Member {
            deployment: name.clone(),
            side: if self.old.contains_key(name) { Side::Old } else { Side::Stays },
        };
        old.filter(|name| serves(name)).map(member).collect()
    }

    /// New deployments that are proven and not held; those that stay are always ready.
    fn ready(&self, route: &Route, wishes: &Wishes) -> Vec<Member> {
        let is_ready = |name: &&DeploymentName| match self.new.get(*name) {
            None => true,
            Some(new) => *new == New::Proven && !wishes.held.new.contains(*name),
        };
        let member = |name: &DeploymentName| Member {
            deployment: name.clone(),
            side: if self.new.contains_key(name) { Side::New } else { Side::Stays },
        };
        route.to.iter().map(|target| &target.deployment).filter(is_ready).map(member).collect()
    }

    /// A held alias goes to its old deployments as soon as one is there. Until then it keeps new ones that are proven,
    /// unless the old ones cannot come back while those are there.
    fn way_back(&self, plan: &Plan, route: &Route, wishes: &Wishes, old: Vec<Member>) -> Vec<Member> {
        if !old.is_empty() || route.from.is_empty() {
            return old;
        }
        let comes_back = route.from.iter().map(|target| &target.deployment).filter(|name| {
            let is_lost = matches!(self.old.get(*name), Some(Old::Lost | Old::Quarantined));
            wishes.held.old.contains(*name) && !is_lost
        });
        let needs_room = comes_back.clone().any(|old| self.rivals(plan, old).next().is_some());
        let has_hope = comes_back.count() > 0;
        let broken = |name: &DeploymentName| self.failed.contains(name);
        let line = self.lines.get(&route.alias);
        let confirmed = line.map(|line| line.wanted.clone()).unwrap_or_default();
        let is_sound = |member: &Member| {
            member.side == Side::New
                && self.new.get(&member.deployment) == Some(&New::Proven)
                && !broken(&member.deployment)
        };
        let kept = confirmed.into_iter().filter(is_sound);
        if has_hope && needs_room { Vec::new() } else { kept.collect() }
    }

    /// New deployments that are on the GPUs an old one needs to come back.
    pub(super) fn rivals<'p>(&self, plan: &'p Plan, old: &DeploymentName) -> impl Iterator<Item = &'p Change> {
        let there = |change: &&Change| {
            let state = self.new.get(&change.deployment);
            matches!(state, Some(New::Starting | New::Proven | New::Unloading | New::Quarantined))
        };
        let there: Vec<&Change> =
            plan.changes.iter().filter(|change| change.displaces.contains(old)).filter(there).collect();
        there.into_iter()
    }
}

/// When a change's engine starts at the latest.
fn deploy_at(change: &Change) -> Timestamp {
    let own = change.steps.iter().filter(|step| step.phase >= crate::plan::Phase::Deploy);
    own.map(|step| step.from).min().unwrap_or(change.ready_at)
}
