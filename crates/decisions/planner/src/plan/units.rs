//! Who stays, who goes, who comes, and which aliases change.

use std::collections::BTreeSet;

use tidegate_config::site::{Alias, ShiftTargets, Target};
use tidegate_core::{AliasName, DeploymentName};

use super::{Ask, RouteKind, Side};
use crate::placement::{ReplicaKey, Seat, Seats};

/// Replicas of one deployment that come, or that go.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) deployment: DeploymentName,
    pub(super) revision: u64,
    pub(super) seats: Vec<(ReplicaKey, Seat)>,
}

/// An alias whose deployments change.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub(super) alias: AliasName,
    pub(super) kind: RouteKind,
    pub(super) from: Vec<Target>,
    pub(super) to: Vec<Target>,
}

/// The parts of a switch.
#[derive(Clone, Debug, Default)]
pub(super) struct Units {
    pub(super) stays: Seats,
    pub(super) go: Vec<Unit>,
    pub(super) come: Vec<Unit>,
    pub(super) moved: Vec<Moved>,
}

impl Units {
    pub(super) fn of(ask: Ask<'_>) -> Self {
        let revision = |side: Side<'_>, name: &DeploymentName| side.revisions.get(name).copied();
        let stays = |key: &ReplicaKey, seat: &Seat| {
            ask.to.seats.get(key) == Some(seat)
                && ask.from.seats.get(key) == Some(seat)
                && revision(ask.from, &key.deployment) == revision(ask.to, &key.deployment)
        };
        let staying = ask.from.seats.iter().filter(|(key, seat)| stays(key, seat));
        let stays_now: Seats = staying.map(|(key, seat)| (key.clone(), seat.clone())).collect();
        let units = |side: Side<'_>| {
            let mut units: Vec<Unit> = Vec::new();
            for (key, seat) in side.seats.iter().filter(|(key, seat)| !stays(key, seat)) {
                let replica = (key.clone(), seat.clone());
                match units.last_mut().filter(|unit| unit.deployment == key.deployment) {
                    Some(unit) => unit.seats.push(replica),
                    None => units.push(Unit {
                        deployment: key.deployment.clone(),
                        revision: revision(side, &key.deployment).unwrap_or(0),
                        seats: vec![replica],
                    }),
                }
            }
            units
        };
        let mut all = Self { go: units(ask.from), come: units(ask.to), stays: stays_now, moved: Vec::new() };
        let changing: BTreeSet<DeploymentName> =
            all.go.iter().chain(&all.come).map(|unit| unit.deployment.clone()).collect();
        let aliases = ask.site.aliases.iter();
        all.moved = aliases.filter_map(|(name, alias)| moved(ask, name, alias, &changing)).collect();
        all
    }
}

fn moved(ask: Ask<'_>, name: &AliasName, alias: &Alias, changing: &BTreeSet<DeploymentName>) -> Option<Moved> {
    let (from, to) = (targets(name, alias, ask.from), targets(name, alias, ask.to));
    // the same targets on new replicas are a change, too
    let is_touched = from.iter().chain(&to).any(|target| changing.contains(&target.deployment));
    let kind = match (from.is_empty(), to.is_empty()) {
        (true, true) => return None,
        (true, false) => RouteKind::Appears,
        (false, true) => RouteKind::Vanishes,
        (false, false) if from == to && !is_touched => return None,
        (false, false) => RouteKind::Moves,
    };
    Some(Moved { alias: name.clone(), kind, from, to })
}

/// The deployments of an alias on one side; none when it is absent.
fn targets(name: &AliasName, alias: &Alias, side: Side<'_>) -> Vec<Target> {
    if let Some(routes) = side.routes {
        return routes.get(name).cloned().unwrap_or_default();
    }
    match alias.shifts.get(side.shift) {
        Some(ShiftTargets::Targets(targets)) => targets.clone(),
        Some(ShiftTargets::Absent { substitute: _ }) | None => Vec::new(),
    }
}
