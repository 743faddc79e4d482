//! From the best choice to steps with their times.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tidegate_config::site::ModelSource;
use tidegate_core::{AliasName, DeploymentName};

use super::problem::{Named, Resource, drain};
use super::units::{Moved, Unit, Units};
use super::{Ask, Change, Departure, End, Fetch, Plan, Route};
use crate::hardware::GpuId;
use crate::memory::{self, Footprint, REFUSED_ABOVE_ASLEEP, RESIDUE_DEFAULT};
use crate::placement::Seat;
use crate::strategy::{Outcome, Strategy, When};

/// How long each phase of a start and a stop is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Pulling the image.
    pub image_pull: Duration,
    /// Fetching what the cache lacks.
    pub fetch: Duration,
    /// Verifying it.
    pub verify: Duration,
    /// Loading weights.
    pub load: Duration,
    /// Compiling, capturing graphs.
    pub compile: Duration,
    /// Warm-up prompts.
    pub warm_up: Duration,
    /// Being healthy for long enough.
    pub stabilise: Duration,
    /// From the signal to the last process.
    pub stop: Duration,
    /// Proving that the memory is free.
    pub proof: Duration,
}

impl Phases {
    /// From the start of the engine to its proof.
    #[must_use]
    pub fn to_ready(&self) -> Duration {
        self.image_pull + self.load + self.compile + self.warm_up + self.stabilise
    }

    /// From the end of the drain to proven free memory.
    #[must_use]
    pub fn to_gone(&self) -> Duration {
        self.stop + self.proof
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Fetches the model into the node's cache.
    Prefetch,
    /// Verifies it there.
    Verify,
    /// Starts the engine.
    Deploy,
    /// Loads weights.
    Load,
    /// Warms up, and proves that it is healthy.
    Warm,
}

impl Phase {
    /// As people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefetch => "prefetch",
            Self::Verify => "verify",
            Self::Deploy => "deploy",
            Self::Load => "load",
            Self::Warm => "warm",
        }
    }
}

/// One step of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    pub phase: Phase,
    /// Its latest start.
    pub from: Timestamp,
    /// When the next one begins.
    pub until: Timestamp,
}

/// `by` after (or before, when negative) an instant; clamped to what can be represented.
fn shift(at: Timestamp, by: SignedDuration) -> Timestamp {
    let edge = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    at.checked_add(by).unwrap_or(edge)
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    shift(at, SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX))
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    shift(at, SignedDuration::try_from(by).map_or(SignedDuration::MIN, |by| -by))
}

/// Writes the plan.
pub(super) fn write(ask: Ask<'_>, units: &Units, named: &Named, outcome: Option<Outcome>) -> Plan {
    let outcome = outcome.unwrap_or_else(|| unplanned(units));
    let book = Book { ask, units, named, outcome: &outcome };
    let mut order: Vec<usize> = (0..units.come.len()).collect();
    order.sort_by_key(|arrival| (outcome.loads_at[*arrival], outcome.choice[*arrival] != When::Before, *arrival));
    let changes: Vec<Change> = order.iter().map(|arrival| book.change(*arrival)).collect();
    let departures = (0..units.go.len()).map(|leaver| book.departure(leaver, &changes)).collect();
    let mut plan = Plan {
        from: ask.from.shift.clone(),
        to: ask.to.shift.clone(),
        at: ask.at,
        rules: ask.rules,
        changes,
        departures,
        stays: units.stays.clone(),
        routes: Vec::new(),
        fetches: fetches(ask, units),
    };
    plan.routes = units.moved.iter().zip(&outcome.gaps).map(|(moved, gap)| route(ask, &plan, moved, *gap)).collect();
    plan
}

/// What two sides come to that do not fit each for itself: nothing moves. Who asks has placed both first.
fn unplanned(units: &Units) -> Outcome {
    Outcome {
        choice: vec![When::AtHour; units.come.len()],
        loads_at: vec![Duration::MAX; units.come.len()],
        proven_at: vec![Duration::MAX; units.come.len()],
        displaced: vec![Vec::new(); units.come.len()],
        drains_at: vec![Duration::ZERO; units.go.len()],
        gaps: vec![Duration::MAX; units.moved.len()],
        cost: u128::MAX,
    }
}

struct Book<'b> {
    ask: Ask<'b>,
    units: &'b Units,
    named: &'b Named,
    outcome: &'b Outcome,
}

impl Book<'_> {
    fn change(&self, arrival: usize) -> Change {
        let unit = &self.units.come[arrival];
        let displaced = &self.outcome.displaced[arrival];
        let is_early = self.outcome.choice[arrival] == When::Before;
        let ready_at = later(self.ask.at, self.outcome.proven_at[arrival]);
        let after = match self.outcome.choice[arrival] {
            When::After(other) => self.units.come.get(other).map(|unit| unit.deployment.clone()),
            When::Before | When::AtHour => None,
        };
        Change {
            deployment: unit.deployment.clone(),
            revision: unit.revision,
            seats: unit.seats.clone(),
            strategy: self.strategy(arrival),
            beside_old: self.beside_old(arrival),
            displaces: displaced.iter().map(|leaver| self.units.go[*leaver].deployment.clone()).collect(),
            after,
            steps: steps(self.ask, &unit.deployment, ready_at, is_early),
            ready_at,
        }
    }

    fn strategy(&self, arrival: usize) -> Strategy {
        let displaced = &self.outcome.displaced[arrival];
        if !displaced.is_empty() {
            return if self.can_sleep_for(arrival) { Strategy::Sleep } else { Strategy::Replace };
        }
        let takes = &self.named.problem.arrivals[arrival].takes;
        let shares =
            |resource: &usize| self.named.problem.leavers.iter().any(|leaver| leaver.takes.contains_key(resource));
        if takes.keys().any(shares) { Strategy::Overlap } else { Strategy::Spare }
    }

    /// Whether everybody in the way can sleep, and what they keep leaves room.
    fn can_sleep_for(&self, arrival: usize) -> bool {
        let displaced = &self.outcome.displaced[arrival];
        let sleeps = |leaver: &usize| {
            let unit = &self.units.go[*leaver];
            let parts = unit.seats.iter().flat_map(|(_, seat)| &seat.parts);
            let mut nodes = parts.map(|part| self.ask.hardware.nodes.get(&part.node));
            self.ask.needs.get(&unit.deployment).is_some_and(|need| need.can_sleep)
                && nodes.all(|node| node.is_some_and(|node| !node.is_plugin))
        };
        let new = self.gpus(&self.units.come[arrival]);
        displaced.iter().all(sleeps) && new.iter().all(|gpu| self.has_room_beside_sleepers(gpu, displaced))
    }

    fn has_room_beside_sleepers(&self, gpu: &GpuId, sleepers: &[usize]) -> bool {
        let Some(memory) = self.ask.hardware.gpu(gpu).and_then(|gpu| gpu.memory) else { return false };
        let staying = self.units.stays.iter().filter(|(_, seat)| seat.gpus().contains(gpu));
        let awake = self.units.come.iter().filter(|unit| self.gpus(unit).contains(gpu)).map(|unit| &unit.deployment);
        let awake = awake.chain(staying.map(|(key, _)| &key.deployment));
        let booked: u64 = awake.map(|name| self.booked(name, memory)).fold(0, u64::saturating_add);
        let asleep = sleepers.iter().map(|leaver| &self.units.go[*leaver]).filter(|unit| self.gpus(unit).contains(gpu));
        let residue = |unit: &Unit| self.ask.known.residue.get(&unit.deployment).copied().unwrap_or(RESIDUE_DEFAULT);
        let residue: u64 = asleep.map(residue).sum();
        memory::fits(booked.saturating_add(residue), memory, REFUSED_ABOVE_ASLEEP)
    }

    fn booked(&self, name: &DeploymentName, memory: u64) -> u64 {
        let need = self.ask.needs.get(name);
        need.map_or(0, |need| memory::booked(&need.footprint, need.gpus_per_replica(), memory))
    }

    fn gpus(&self, unit: &Unit) -> BTreeSet<GpuId> {
        unit.seats.iter().flat_map(|(_, seat)| seat.gpus()).collect()
    }

    /// The fullest GPU of an arrival if it loaded beside everybody who stays or goes.
    fn beside_old(&self, arrival: usize) -> Option<(GpuId, u64, u64)> {
        let unit = &self.units.come[arrival];
        let full = self.gpus(unit).into_iter().filter_map(|gpu| {
            let memory = self.ask.hardware.gpu(&gpu)?.memory?;
            let going = self.units.go.iter().filter(|unit| self.gpus(unit).contains(&gpu)).map(|unit| &unit.deployment);
            let staying = self.units.stays.iter().filter(|(_, seat)| seat.gpus().contains(&gpu));
            let coming =
                self.units.come.iter().filter(|unit| self.gpus(unit).contains(&gpu)).map(|unit| &unit.deployment);
            let all = going.chain(staying.map(|(key, _)| &key.deployment)).chain(coming);
            let booked = all.map(|name| self.booked(name, memory)).fold(0, u64::saturating_add);
            Some((gpu, booked, memory))
        });
        full.max_by_key(|(gpu, booked, _)| (*booked, std::cmp::Reverse(gpu.clone())))
    }

    fn departure(&self, leaver: usize, changes: &[Change]) -> Departure {
        let unit = &self.units.go[leaver];
        let drains_at = later(self.ask.at, self.outcome.drains_at[leaver]);
        let mut for_whom = changes.iter().filter(|change| change.displaces.contains(&unit.deployment)).peekable();
        let sleeps = for_whom.peek().is_some() && for_whom.all(|change| change.strategy == Strategy::Sleep);
        Departure {
            deployment: unit.deployment.clone(),
            revision: unit.revision,
            seats: unit.seats.clone(),
            drains_at,
            drained_by: later(drains_at, self.ask.rules.drain_timeout),
            gone_by: later(drains_at, drain(self.ask, &unit.deployment)),
            end: if sleeps { End::Sleep { level: self.sleep_level(unit) } } else { End::Stop },
        }
    }

    /// Level 1 when the host can book the weights beside what it has booked.
    fn sleep_level(&self, unit: &Unit) -> u8 {
        let Some(need) = self.ask.needs.get(&unit.deployment) else { return 2 };
        let Footprint::Budget(budget) = &need.footprint else { return 2 };
        let has_room = |(node, weights): (&Arc<str>, u64)| {
            let all = self.ask.hardware.nodes.get(node).and_then(|node| node.host_memory);
            let name = Resource::HostMemory(Arc::clone(node));
            let number = self.named.resources.binary_search(&name).ok();
            let takes =
                |number: usize| self.named.problem.arrivals.iter().filter_map(move |new| new.takes.get(&number));
            let booked: u64 = number.map_or(0, |number| takes(number).sum());
            all.is_some_and(|all| booked.saturating_add(weights) <= all)
        };
        let parts = |seat: &Seat| seat.parts.len().max(1) as u64;
        let books = unit.seats.iter().all(|(_, seat)| {
            let share = budget.weights.saturating_mul(unit.seats.len() as u64) / parts(seat);
            seat.parts.iter().all(|part| has_room((&part.node, share)))
        });
        if books { 1 } else { 2 }
    }
}

/// The steps of a start that is to be ready at an instant. Fetch and verify end before the hour in any case.
fn steps(ask: Ask<'_>, name: &DeploymentName, ready_at: Timestamp, is_early: bool) -> Vec<Step> {
    let lead = ask.rules.lead;
    let known = ask.known.phases.get(name);
    // time before it is ready at which each step begins
    let (deploy, load, warm) = match known {
        Some(phases) => {
            let warm = phases.warm_up + phases.stabilise;
            let load = warm + phases.load + phases.compile;
            (load + phases.image_pull, load, warm)
        }
        None => (lead.deploy, lead.load, lead.ready),
    };
    let deploy_at = earlier(ready_at, deploy);
    // what is fetched for a start after the hour is there at the hour's latest start
    let cached_by = if is_early { deploy_at } else { earlier(ask.at, deploy).min(deploy_at) };
    let (prefetch, verify) = match known {
        Some(phases) => (phases.verify + phases.fetch, phases.verify),
        None => (lead.prefetch.saturating_sub(lead.deploy), lead.verify.saturating_sub(lead.deploy)),
    };
    let bounds = [
        (Phase::Prefetch, earlier(cached_by, prefetch), earlier(cached_by, verify)),
        (Phase::Verify, earlier(cached_by, verify), cached_by),
        (Phase::Deploy, deploy_at, earlier(ready_at, load)),
        (Phase::Load, earlier(ready_at, load), earlier(ready_at, warm)),
        (Phase::Warm, earlier(ready_at, warm), ready_at),
    ];
    let has_weights = has_store(ask, name);
    let is_step = |(phase, from, until): &(Phase, Timestamp, Timestamp)| {
        (from < until || known.is_none()) && (has_weights || !matches!(phase, Phase::Prefetch | Phase::Verify))
    };
    bounds.into_iter().filter(is_step).map(|(phase, from, until)| Step { phase, from, until }).collect()
}

/// Whether its weights come from the model store.
fn has_store(ask: Ask<'_>, name: &DeploymentName) -> bool {
    let model = ask.site.deployments.get(name).and_then(|deployment| ask.site.models.get(&deployment.model));
    matches!(model.and_then(|model| model.source.as_ref()), Some(ModelSource::Store { .. }))
}

fn route(ask: Ask<'_>, plan: &Plan, moved: &Moved, gap: Duration) -> Route {
    let ready = |name: &DeploymentName| {
        plan.changes.iter().find(|change| change.deployment == *name).map(|change| change.ready_at)
    };
    let at = moved.to.iter().filter_map(|target| ready(&target.deployment)).chain([plan.at]).max().unwrap_or(plan.at);
    let first = moved.to.iter().filter_map(|target| ready(&target.deployment)).min().unwrap_or(plan.at);
    Route {
        alias: moved.alias.clone(),
        kind: moved.kind,
        from: moved.from.clone(),
        to: moved.to.clone(),
        at: if gap > Duration::ZERO { first } else { at },
        gap,
        gap_from: earlier(first, gap),
        served_by: if gap > Duration::ZERO {
            fallback(ask, plan, &moved.alias, earlier(first, gap), first)
        } else {
            None
        },
    }
}

/// The first alias of the fallback chain that has a deployment during the whole gap.
fn fallback(ask: Ask<'_>, plan: &Plan, alias: &AliasName, from: Timestamp, until: Timestamp) -> Option<AliasName> {
    let goes_at =
        |name: &DeploymentName| plan.departures.iter().find(|old| old.deployment == *name).map(|old| old.drains_at);
    let ready_at =
        |name: &DeploymentName| plan.changes.iter().find(|new| new.deployment == *name).map(|new| new.ready_at);
    let serves = |name: &DeploymentName| {
        let is_new = ready_at(name).is_some_and(|ready| ready > from);
        let is_old = goes_at(name).is_some_and(|goes| goes < until) && ready_at(name).is_none();
        !is_new && !is_old
    };
    let chain = ask.site.aliases.get(alias)?.fallback.iter();
    let mut present = chain.filter(|other| {
        let Some(alias) = ask.site.aliases.get(*other) else { return false };
        let Some(tidegate_config::site::ShiftTargets::Targets(targets)) = alias.shifts.get(ask.to.shift) else {
            return false;
        };
        targets.iter().any(|target| serves(&target.deployment))
    });
    present.next().cloned()
}

/// Models of those who come, on each of their nodes.
fn fetches(ask: Ask<'_>, units: &Units) -> Vec<Fetch> {
    let mut fetches: BTreeSet<Fetch> = BTreeSet::new();
    for unit in units.come.iter().filter(|unit| has_store(ask, &unit.deployment)) {
        let Some(deployment) = ask.site.deployments.get(&unit.deployment) else { continue };
        for part in unit.seats.iter().flat_map(|(_, seat)| &seat.parts) {
            let (node, model) = (Arc::clone(&part.node), deployment.model.clone());
            let bytes = ask.known.missing.get(&(Arc::clone(&node), model.clone())).copied();
            fetches.insert(Fetch { node, model, bytes });
        }
    }
    fetches.into_iter().collect()
}
