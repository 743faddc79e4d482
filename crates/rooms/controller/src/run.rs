//! A switch under way: what is observed becomes events of its machine, and what the machine asks for is done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use tidegate_core::{AliasName, DeploymentName};
use tidegate_planner::generation::{Generation, Stamped};
use tidegate_planner::instance::{self, Clocks, State, Then};
use tidegate_planner::placement::{ReplicaKey, Seat};
use tidegate_planner::plan::{Change, Departure, End};
use tidegate_planner::switch::{Alarm, Effect, Event, Member, Mode, New, Old, Outcome, Side, Switch};

use crate::controller::Controller;
use crate::gate::watch::Rules;
use crate::launcher::Order;
use crate::records::{Note, RecordError, SwitchRow};
use crate::replica::{ReplicaHandle, drive};
use crate::route::{RouteError, RouteRow, RouteTarget};

/// Notes of one switch that are kept; later ones are only logged.
const NOTES_MAX: usize = 200;

/// A switch in progress.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) row: SwitchRow,
    pub(crate) switch: Switch,
    /// What has happened besides what is observed.
    pub(crate) queued: Vec<Stamped<Event>>,
    /// New deployments that wait until something else has left their GPUs.
    pub(crate) deferred: BTreeSet<DeploymentName>,
    pub(crate) steps: u64,
    /// What the plan was made for: another one is another plan.
    pub(crate) goal: Goal,
}

/// What a plan comes to: who is where, and where aliases go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Goal {
    pub(crate) seats: BTreeSet<(ReplicaKey, u64, Seat)>,
    pub(crate) routes: Vec<(AliasName, Vec<(DeploymentName, u32)>)>,
}

/// All replicas of one side of a deployment, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Together {
    /// All serve.
    Serving,
    /// Nothing is left of any.
    Gone,
    /// All sleep.
    Asleep,
    /// No request is on any of them.
    Idle,
    /// Memory of one was not proven free.
    Quarantined,
    /// One failed and is not tried again by itself.
    Failed,
    /// One failed and will be tried again.
    Retries,
    /// On the way.
    Busy,
}

fn together<'r>(states: impl Iterator<Item = &'r State> + Clone) -> Together {
    let all = |is: fn(&State) -> bool| states.clone().all(is);
    let any = |is: fn(&State) -> bool| states.clone().any(is);
    let is_gone = |state: &State| matches!(state, State::Absent | State::Stopped);
    if all(is_gone) {
        Together::Gone
    } else if all(|state| *state == State::Serving) {
        Together::Serving
    } else if all(|state| matches!(state, State::Asleep { .. })) {
        Together::Asleep
    } else if any(|state| matches!(state, State::Quarantined { .. })) {
        Together::Quarantined
    } else if any(|state| matches!(state, State::Failed { retry_at: None, .. })) {
        Together::Failed
    } else if any(|state| matches!(state, State::Failed { .. })) {
        Together::Retries
    } else if !any(|state| matches!(state, State::Serving | State::Draining { .. })) {
        Together::Idle
    } else {
        Together::Busy
    }
}

impl Run {
    pub(crate) const fn generation(&self) -> Generation {
        self.switch.generation
    }

    fn change(&self, name: &DeploymentName) -> Option<&Change> {
        self.row.plan.changes.iter().find(|change| change.deployment == *name)
    }

    fn departure(&self, name: &DeploymentName) -> Option<&Departure> {
        self.row.plan.departures.iter().find(|old| old.deployment == *name)
    }

    /// Events that what is observed amounts to.
    fn observed(&self, replicas: &[ReplicaHandle]) -> Vec<Event> {
        let mut events = Vec::new();
        for change in &self.row.plan.changes {
            let (name, all) = (&change.deployment, states(replicas, change.revision, &change.seats));
            let together = together(all.iter());
            events.extend(match (self.switch.new.get(name), together) {
                (Some(New::Starting), Together::Serving) => Some(Event::Proven(name.clone())),
                // said once: a paused switch does nothing about it yet
                (Some(New::Starting), _) if self.switch.failed.contains(name) => None,
                (Some(New::Starting), Together::Failed | Together::Quarantined) => Some(Event::Failed(name.clone())),
                // in a gap there is no time for another try
                (Some(New::Starting), Together::Retries) if !change.displaces.is_empty() => {
                    Some(Event::Failed(name.clone()))
                }
                (Some(New::Unloading), Together::Gone | Together::Failed | Together::Retries) => {
                    Some(Event::Unloaded(name.clone()))
                }
                (Some(New::Unloading), Together::Quarantined) => Some(Event::NotProven(name.clone())),
                _ => None,
            });
        }
        for departure in &self.row.plan.departures {
            let (name, all) = (&departure.deployment, states(replicas, departure.revision, &departure.seats));
            let together = together(all.iter());
            events.extend(match (self.switch.old.get(name), together) {
                (Some(Old::Draining), together) if together != Together::Busy && together != Together::Serving => {
                    Some(Event::Drained(name.clone()))
                }
                (Some(Old::Sleeping), Together::Asleep) => Some(Event::Asleep(name.clone())),
                (Some(Old::Sleeping | Old::Stopping), Together::Gone | Together::Failed | Together::Retries) => {
                    Some(Event::Gone(name.clone()))
                }
                (Some(Old::Sleeping | Old::Stopping), Together::Quarantined) => Some(Event::NotProven(name.clone())),
                (Some(Old::Restoring), Together::Serving) => Some(Event::Restored(name.clone())),
                (Some(Old::Restoring), Together::Failed | Together::Quarantined) => {
                    Some(Event::NotRestored(name.clone()))
                }
                _ => None,
            });
        }
        events
    }
}

/// The states of a unit's replicas; one that nobody drives is not there.
fn states(replicas: &[ReplicaHandle], revision: u64, seats: &[(ReplicaKey, Seat)]) -> Vec<State> {
    let state = |(key, seat): &(ReplicaKey, Seat)| {
        find(replicas, key, revision, seat).map_or(State::Absent, ReplicaHandle::state)
    };
    seats.iter().map(state).collect()
}

/// The replica with this number, from these documents, at this place.
pub(crate) fn find<'r>(
    replicas: &'r [ReplicaHandle],
    key: &ReplicaKey,
    revision: u64,
    seat: &Seat,
) -> Option<&'r ReplicaHandle> {
    let is = |replica: &&ReplicaHandle| {
        replica.order.key == *key && replica.order.blueprint.revision == revision && replica.order.seat == *seat
    };
    replicas.iter().find(is)
}

impl Controller {
    /// Carries the switch in progress as far as it goes now.
    pub(crate) async fn go_on(&mut self, now: Timestamp) -> Result<(), RecordError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let generation = run.generation();
        let mut events = std::mem::take(&mut run.queued);
        events.push(Stamped { generation, what: Event::Tick });
        // What a step asks for may be there already: it is seen in the next round. Each moves a machine on, so they end.
        loop {
            let Some(run) = &self.run else { return Ok(()) };
            events.extend(run.observed(&self.replicas).into_iter().map(|what| Stamped { generation, what }));
            if events.is_empty() {
                break;
            }
            for event in std::mem::take(&mut events) {
                self.step(event, now).await?;
            }
        }
        self.ensure(now);
        Ok(())
    }

    async fn step(&mut self, event: Stamped<Event>, now: Timestamp) -> Result<(), RecordError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let (mode, failed) = (run.switch.mode, run.switch.failed.len());
        if let Event::Failed(name) = &event.what {
            let name = name.clone();
            self.note_failure(&name, now);
        }
        let Some(run) = &mut self.run else { return Ok(()) };
        let (switch, effects) = run.switch.clone().step(&run.row.plan, event, now);
        let is_changed = switch.mode != mode || switch.failed.len() != failed;
        run.switch = switch;
        if is_changed {
            run.row.mode = run.switch.mode;
            run.row.failed = run.switch.failed.clone();
            self.parts.records.save_switch(&run.row).await?;
        }
        for effect in effects {
            self.carry_out(effect.what, now).await?;
        }
        Ok(())
    }

    /// Writes an effect down and does it.
    async fn carry_out(&mut self, effect: Effect, now: Timestamp) -> Result<(), RecordError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.steps += 1;
        let what = serde_json::to_string(&effect).unwrap_or_default();
        self.parts.records.step(run.row.generation, run.steps, &what, now).await?;
        tracing::info!(generation = run.row.generation, step = run.steps, effect = what, "switch");
        match effect {
            Effect::Start(name) => self.start(&name, now),
            Effect::Unload(name) => self.tell_new(&name, &instance::Event::Unwant),
            Effect::SetRoute(alias, members) => self.set_route(&alias, &members, now),
            Effect::Drain(name) => self.drain(&name),
            Effect::Keep(name) => self.tell_old(&name, &instance::Event::Keep),
            Effect::Sleep(name) => {
                let level = run.departure(&name).map_or(2, |old| match old.end {
                    End::Sleep { level } => level,
                    End::Stop => 2,
                });
                self.tell_old(&name, &instance::Event::Drain(Then::Sleep { level }));
            }
            Effect::Stop(name) => self.tell_old(&name, &instance::Event::Unwant),
            Effect::Restore(name) => self.restore(&name, now),
            Effect::Alarm(alarm) => self.alarm(&alarm, now),
            Effect::Finished(outcome) => self.finish(outcome, now).await?,
        }
        Ok(())
    }

    fn start(&mut self, name: &DeploymentName, now: Timestamp) {
        let Some(run) = &self.run else { return };
        let Some(change) = run.change(name).cloned() else { return };
        let mine: BTreeSet<_> = change.seats.iter().flat_map(|(_, seat)| seat.gpus()).collect();
        // Whoever is on its way out is no part of the plan: it is waited for, so that no GPU has two owners.
        let is_leaving = |replica: &ReplicaHandle| {
            let is_own = change.seats.iter().any(|(key, seat)| {
                replica.order.key == *key
                    && replica.order.seat == *seat
                    && replica.order.blueprint.revision == change.revision
            });
            let is_ending =
                matches!(replica.state(), State::Stopping { .. } | State::Proving { .. } | State::Quarantined { .. });
            is_ending && !is_own && replica.order.seat.gpus().iter().any(|gpu| mine.contains(gpu))
        };
        let waits = self.replicas.iter().any(is_leaving);
        if let Some(run) = &mut self.run {
            if waits {
                run.deferred.insert(name.clone());
                return;
            }
            run.deferred.remove(name);
        }
        for (key, seat) in &change.seats {
            self.want(key, change.revision, seat, now);
        }
    }

    /// Has a replica: woken, kept, or started.
    pub(crate) fn want(&mut self, key: &ReplicaKey, revision: u64, seat: &Seat, now: Timestamp) {
        if find(&self.replicas, key, revision, seat).is_none() {
            self.make(key, revision, seat, State::Absent, now);
        }
        let Some(replica) = find(&self.replicas, key, revision, seat) else { return };
        let event = match replica.state() {
            State::Asleep { .. } => instance::Event::Wake,
            State::Draining { .. } | State::Drained => instance::Event::Keep,
            State::Failed { retry_at: None, .. } => instance::Event::Forget,
            _ => instance::Event::Want,
        };
        replica.tell(event);
    }

    /// Drives a replica that nobody drives yet.
    fn make(&mut self, key: &ReplicaKey, revision: u64, seat: &Seat, state: State, _now: Timestamp) {
        let Some(blueprint) = self.blueprint(&key.deployment, revision) else { return };
        let base = format!("{}-{}-g{}", key.deployment, key.index, self.generation());
        // One that came and went in the same generation had the plain name.
        let number = self.used_ids.entry(base.clone()).and_modify(|number| *number += 1).or_insert(0);
        let id = if *number == 0 { base } else { format!("{base}.{number}") };
        let Ok(instance) = tidegate_node::InstanceId::new(&id) else {
            tracing::error!(id, "cannot be the id of an instance");
            return;
        };
        let is_first = !self.is_served_by_others(&key.deployment);
        self.drive(Order { instance, key: key.clone(), seat: seat.clone(), blueprint, is_first }, state);
    }

    /// Whether an alias of a deployment goes anywhere now.
    fn is_served_by_others(&self, name: &DeploymentName) -> bool {
        use tidegate_config::site::ShiftTargets;
        let has = |shift: &ShiftTargets| match shift {
            ShiftTargets::Targets(targets) => targets.iter().any(|target| target.deployment == *name),
            ShiftTargets::Absent { substitute: _ } => false,
        };
        let aliases = self.site.aliases.iter().filter(|(_, alias)| alias.shifts.values().any(has));
        aliases.map(|(alias, _)| self.routes.get(alias)).any(|row| row.is_some_and(|row| !row.targets.is_empty()))
    }

    pub(crate) fn drive(&mut self, order: Order, state: State) {
        let clocks = self.clocks();
        let woken = Arc::clone(&self.woken);
        let woken: Arc<dyn Fn() + Send + Sync> = Arc::new(move || woken.notify_one());
        let (handle, driver) = drive(order, clocks, state, self.hands.clone(), woken);
        self.tasks.spawn(driver);
        self.replicas.push(handle);
    }

    fn clocks(&self) -> Clocks {
        let now = self.now();
        let rules = self.rules(&self.desired(now).shift, now);
        Clocks { load: crate::cycle::LOAD_MAX, gate: crate::cycle::GATE_MAX, drain: rules.drain_timeout }
    }

    fn tell_new(&self, name: &DeploymentName, event: &instance::Event) {
        let Some(change) = self.run.as_ref().and_then(|run| run.change(name)) else { return };
        for (key, seat) in &change.seats {
            if let Some(replica) = find(&self.replicas, key, change.revision, seat) {
                replica.tell(event.clone());
            }
        }
    }

    fn tell_old(&self, name: &DeploymentName, event: &instance::Event) {
        for replica in self.old(name) {
            replica.tell(event.clone());
        }
    }

    fn old(&self, name: &DeploymentName) -> impl Iterator<Item = &ReplicaHandle> {
        let departure = self.run.as_ref().and_then(|run| run.departure(name));
        let seats = departure.into_iter().flat_map(|old| old.seats.iter().map(|(key, seat)| (key, old.revision, seat)));
        seats.filter_map(|(key, revision, seat)| find(&self.replicas, key, revision, seat))
    }

    /// Who serves is drained and stays warm; who never came so far just goes.
    fn drain(&self, name: &DeploymentName) {
        for replica in self.old(name) {
            match replica.state() {
                State::Serving | State::Draining { .. } => replica.tell(instance::Event::Drain(Then::Wait)),
                _ => replica.tell(instance::Event::Unwant),
            }
        }
    }

    fn restore(&mut self, name: &DeploymentName, now: Timestamp) {
        let Some(departure) = self.run.as_ref().and_then(|run| run.departure(name)).cloned() else { return };
        for (key, seat) in &departure.seats {
            self.want(key, departure.revision, seat, now);
        }
    }

    /// What was asked for and did not come about because the replica was in the middle of something else.
    fn ensure(&mut self, now: Timestamp) {
        let Some(run) = &self.run else { return };
        let starting = run.switch.new.iter().filter(|(_, new)| **new == New::Starting).map(|(name, _)| name.clone());
        let restoring = run.switch.old.iter().filter(|(_, old)| **old == Old::Restoring).map(|(name, _)| name.clone());
        let (starting, restoring): (Vec<_>, Vec<_>) = (starting.collect(), restoring.collect());
        let has_none = |replicas: &[ReplicaHandle], revision, seats: &[(ReplicaKey, Seat)]| {
            let waits =
                |state: &State| matches!(state, State::Absent | State::Stopped | State::Asleep { .. } | State::Drained);
            states(replicas, revision, seats).iter().any(waits)
        };
        for name in starting {
            let change = self.run.as_ref().and_then(|run| run.change(&name)).cloned();
            if change.is_some_and(|change| has_none(&self.replicas, change.revision, &change.seats)) {
                self.start(&name, now);
            }
        }
        for name in restoring {
            let old = self.run.as_ref().and_then(|run| run.departure(&name)).cloned();
            if old.is_some_and(|old| has_none(&self.replicas, old.revision, &old.seats)) {
                self.restore(&name, now);
            }
        }
    }

    fn set_route(&mut self, alias: &AliasName, members: &[Member], now: Timestamp) {
        let Some(run) = &self.run else { return };
        let row = route_row(run, alias, members, now);
        self.send_route(row);
    }

    /// Asks for a route, after all that were asked for before.
    pub(crate) fn send_route(&mut self, row: RouteRow) {
        self.routing += 1;
        // Its other end is one of our own tasks.
        let _ = self.router.send(row);
    }

    /// What came of a change of routes.
    pub(crate) fn routed(&mut self, row: &RouteRow, answer: &Result<(), RouteError>) -> Result<(), RecordError> {
        self.routing = self.routing.saturating_sub(1);
        if let Err(RouteError::Stale { highest }) = answer
            && *highest > self.hands.generation.load(Ordering::Acquire)
        {
            return Err(RecordError::Stale { highest: *highest });
        }
        if answer.is_ok() {
            // Whichever switch asked for it: that is where the alias goes now.
            self.routes.insert(row.alias.clone(), row.clone());
            self.watch(&row.alias);
        }
        let Some(run) = self.run.as_mut().filter(|run| run.row.generation == row.generation) else { return Ok(()) };
        let what = match answer {
            Ok(()) => Event::RouteSet(row.alias.clone()),
            Err(error) => {
                tracing::warn!(alias = %row.alias, %error, "route not set");
                Event::RouteRefused(row.alias.clone())
            }
        };
        let generation = run.switch.generation;
        run.queued.push(Stamped { generation, what });
        Ok(())
    }

    /// Begins to compare the new deployments of an alias with the old ones.
    fn watch(&mut self, alias: &AliasName) {
        let (counts, Some(run)) = (Arc::clone(&self.counts), &self.run) else { return };
        let Some(route) = run.row.plan.routes.iter().find(|route| route.alias == *alias) else { return };
        let Some(line) = run.switch.lines.get(alias) else { return };
        let old = route.from.iter().find_map(|target| {
            let revision = run.departure(&target.deployment).map(|old| old.revision);
            Some((&target.deployment, revision?))
        });
        let new = line.wanted.iter().filter(|member| member.side == Side::New);
        for change in new.filter_map(|member| run.change(&member.deployment)) {
            if !self.window.watched().any(|name| *name == change.deployment) {
                self.window.begin((&change.deployment, change.revision), old, Rules::default(), &*counts);
            }
        }
    }

    /// Looks whether new deployments do worse.
    pub(crate) fn look_at_the_new(&mut self, now: Timestamp) {
        let counts = Arc::clone(&self.counts);
        for (deployment, why) in self.window.look(&*counts) {
            self.regressed(&deployment, &why, now);
        }
    }

    /// Notes that new deployments did worse than the old ones.
    pub(crate) fn regressed(&mut self, name: &DeploymentName, why: &str, now: Timestamp) {
        let Some(run) = &mut self.run else { return };
        let has = |targets: &[tidegate_config::site::Target]| targets.iter().any(|target| target.deployment == *name);
        let aliases = run.row.plan.routes.iter().filter(|route| has(&route.to)).map(|route| route.alias.clone());
        let generation = run.switch.generation;
        let events = aliases.map(|alias| Stamped { generation, what: Event::Regressed(alias) });
        run.queued.extend(events.collect::<Vec<_>>());
        self.note(Note { at: now, code: "regressed".into(), about: name.as_str().into(), text: why.into() });
    }

    fn note_failure(&mut self, name: &DeploymentName, now: Timestamp) {
        let Some(change) = self.run.as_ref().and_then(|run| run.change(name)).cloned() else { return };
        let fault = change.seats.iter().find_map(|(key, seat)| {
            let snapshot = find(&self.replicas, key, change.revision, seat)?.now();
            match snapshot.state {
                State::Failed { fault, .. } => Some(fault),
                _ => snapshot.problem,
            }
        });
        let fault = fault.unwrap_or_else(|| "its memory was not proven free".into());
        // In a gap it was tried once, else as often as it may be.
        let is_final = change.displaces.is_empty();
        self.attempts.fail(name, change.revision, Arc::clone(&fault), is_final, now);
        self.note(Note { at: now, code: "failed".into(), about: name.as_str().into(), text: fault });
    }

    fn alarm(&mut self, alarm: &Alarm, now: Timestamp) {
        let text = match alarm {
            Alarm::Late(_) => "it is not proven by the time that the plan expects",
            Alarm::Failed(_) => "it will not come; what it was to replace goes on",
            Alarm::Overrun(_) => "it is served by its old deployments past its hour",
            Alarm::Quarantined(_) => "memory of its GPUs was not proven free: they are nobody's",
            Alarm::NotRestored(_) => "it could not be brought back",
            Alarm::AliasDown(_) => "it has no deployment, and that was not planned",
            Alarm::RouteRefused(_) => "a gate refused its route",
            Alarm::Regressed(_) => "its new deployments do worse than the old ones",
        };
        tracing::warn!(alarm = alarm.code(), about = &*alarm.about(), text, "alarm");
        self.note(Note { at: now, code: alarm.code().into(), about: alarm.about(), text: text.into() });
    }

    pub(crate) fn note(&mut self, note: Note) {
        let notes = self.run.as_mut().map_or(&mut self.notes, |run| &mut run.row.notes);
        if notes.len() < NOTES_MAX {
            notes.push(note);
        }
    }

    async fn finish(&mut self, outcome: Outcome, now: Timestamp) -> Result<(), RecordError> {
        let Some(mut run) = self.run.take() else { return Ok(()) };
        self.window.clear();
        run.row.outcome = Some(outcome);
        run.row.ended = Some(now);
        let shift = if outcome == Outcome::Aborted { &run.row.plan.from } else { &run.row.plan.to };
        self.shift = Some(shift.clone());
        tracing::info!(generation = run.row.generation, ?outcome, shift = %shift, "switch is over");
        for change in &run.row.plan.changes {
            if run.switch.new.get(&change.deployment) == Some(&New::Proven) {
                self.attempts.succeed(&change.deployment, change.revision);
            }
        }
        self.parts.records.save_switch(&run.row).await?;
        self.last = Some(run.row);
        self.is_stale = true;
        Ok(())
    }
}

/// The row of a route: who serves, and which shift's limits it has.
fn route_row(run: &Run, alias: &AliasName, members: &[Member], now: Timestamp) -> RouteRow {
    let plan = &run.row.plan;
    let route = plan.routes.iter().find(|route| route.alias == *alias);
    let target = |member: &Member| {
        let sides = route.map(|route| match member.side {
            Side::New => [&route.to, &route.from],
            Side::Old => [&route.from, &route.to],
            Side::Stays if now >= plan.at => [&route.to, &route.from],
            Side::Stays => [&route.from, &route.to],
        });
        let mut targets = sides.into_iter().flatten().flatten();
        let weight = targets.find(|target| target.deployment == member.deployment).map_or(100, |target| target.weight);
        let revision = match member.side {
            Side::New => run.change(&member.deployment).map(|change| change.revision),
            Side::Old => run.departure(&member.deployment).map(|old| old.revision),
            Side::Stays => None,
        };
        RouteTarget { deployment: member.deployment.clone(), weight, revision }
    };
    let is_old = members.iter().any(|member| member.side == Side::Old) || run.switch.mode == Mode::Aborts;
    let is_before = now < plan.at;
    let shift = if is_old || is_before { &plan.from } else { &plan.to };
    let is_gap = members.is_empty() && route.is_some_and(|route| !route.to.is_empty());
    RouteRow {
        alias: alias.clone(),
        targets: members.iter().map(target).collect(),
        shift: shift.clone(),
        until: route.filter(|_| is_gap).map(|route| route.at),
        generation: run.row.generation,
    }
}
