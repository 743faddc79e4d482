//! One turn of the controller.
//!
//! ```text
//! schedule -> plan -> prefetch -> verify -> deploy -> load -> warm -> (healthy?) switch -> drain -> unload
//!                                                      \-> abort: the old deployment keeps serving
//! ```
//!
//! A turn asks "what should be loaded now, and what is?" and never "what was I doing?": after a restart, a day asleep or
//! new documents it goes on from what it sees. The steps of a switch themselves are in [`crate::run`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_config::site::{ModelSource, Target};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_engine::Dialect;
use tidegate_planner::generation::Generation;
use tidegate_planner::hardware::{GpuId, GpuState};
use tidegate_planner::instance::{self, State};
use tidegate_planner::need::Need;
use tidegate_planner::placement::{ReplicaKey, Seat, Seats};
use tidegate_planner::plan::{Phase, Rules, Side, held};
use tidegate_planner::switch::{Event, Mode, Switch};
use tidegate_planner::{Outlook, Plan, Timetable};

use crate::controller::{Controller, HARDWARE_EVERY, Placed, Traffic};
use crate::launcher::{Blueprint, Kept};
use crate::records::{RecordError, SwitchRow};
use crate::replica::ReplicaHandle;
use crate::run::{Goal, Run};

/// Longest load of an engine, from its start.
pub(crate) const LOAD_MAX: Duration = Duration::from_mins(60);
/// Longest warm-up and proof.
pub(crate) const GATE_MAX: Duration = Duration::from_mins(20);
/// How often a plan is made although nothing has changed.
const PLAN_EVERY: SignedDuration = SignedDuration::from_secs(10);

impl Controller {
    /// One turn.
    pub(crate) async fn turn(&mut self) -> Result<(), RecordError> {
        let now = self.now();
        self.look_at_hardware(now).await;
        self.look_at_the_new(now);
        self.go_on(now).await?;
        self.measure(now).await?;
        self.decide(now).await?;
        self.keep_models(now);
        self.tidy(now);
        self.publish(now);
        Ok(())
    }

    pub(crate) async fn look_at_hardware(&mut self, now: Timestamp) {
        let is_due = self.hardware_at.is_none_or(|at| {
            at.checked_add(SignedDuration::try_from(HARDWARE_EVERY).unwrap_or(SignedDuration::MAX))
                .is_ok_and(|due| now >= due)
        });
        if !is_due {
            return;
        }
        match self.parts.launcher.hardware().await {
            Ok(hardware) => {
                self.hardware_at = Some(now);
                if hardware != self.hardware {
                    self.hardware = hardware;
                    self.is_stale = true;
                }
            }
            Err(error) => tracing::warn!(%error, "nodes are not known"),
        }
    }

    /// The nodes, without the GPUs that are nobody's.
    fn usable_hardware(&self) -> tidegate_planner::hardware::Hardware {
        let mut hardware = self.hardware.clone();
        let is_lost = |replica: &&ReplicaHandle| matches!(replica.state(), State::Quarantined { .. });
        for GpuId { node, index } in self.replicas.iter().filter(is_lost).flat_map(|replica| replica.order.seat.gpus())
        {
            if let Some(gpu) = hardware.nodes.get_mut(&node).and_then(|node| node.gpus.get_mut(&index)) {
                gpu.state = GpuState::Quarantined;
            }
        }
        hardware
    }

    pub(crate) fn rules(&self, shift: &ShiftName, at: Timestamp) -> Rules {
        let start = Timetable::new(&self.site.schedules).in_force(at).map(|start| start.slot.schedule);
        let named = start.and_then(|name| self.site.schedules.get(&name));
        let has = |schedule: &&tidegate_config::site::Schedule| schedule.shifts.iter().any(|own| own.name == *shift);
        let schedule = named.or_else(|| self.site.schedules.values().find(has));
        schedule.map_or_else(Rules::default, Rules::of)
    }

    /// What an engine of a deployment is started from, when the documents still say what that revision was.
    pub(crate) fn blueprint(&self, name: &DeploymentName, revision: u64) -> Option<Arc<Blueprint>> {
        let known = self.replicas.iter().map(|replica| &replica.order.blueprint);
        let known = known.into_iter().find(|known| known.name == *name && known.revision == revision);
        if let Some(known) = known {
            return Some(Arc::clone(known));
        }
        let need = Need::of(&self.site, name).filter(|need| need.revision == revision)?;
        let deployment = self.site.deployments.get(name)?;
        let model = self.site.models.get(&deployment.model)?;
        Some(Arc::new(Blueprint {
            name: name.clone(),
            deployment: deployment.clone(),
            engine: self.site.engines.get(&model.engine).cloned(),
            model: model.source.clone(),
            dialect: Dialect::from(model.dialect),
            revision,
            may_sleep: need.can_sleep,
        }))
    }

    /// Begins, gives up or replaces a switch, if what is desired calls for it.
    async fn decide(&mut self, now: Timestamp) -> Result<(), RecordError> {
        // While a change of a route is under way nobody knows where that alias goes.
        let is_known = self.routing == 0 || self.run.is_some();
        if !is_known || (!self.is_stale && !self.is_time_to_plan(now)) {
            return Ok(());
        }
        self.planned_at = Some(now);
        let was_stale = std::mem::take(&mut self.is_stale);
        if was_stale {
            // Of what was asked for before it changed.
            self.wanted = None;
        }
        self.forget_failures_at_a_start(now);
        if self.run.is_some() && !self.is_run_void(now, was_stale) {
            return Ok(());
        }
        if self.run.is_some() {
            self.supersede(now).await?;
            if self.routing > 0 {
                self.is_stale = true;
                return Ok(());
            }
        }
        let outlook_site = Arc::clone(&self.site);
        let outlook = self.outlook(&outlook_site);
        let desired = self.desired(now);
        let blocked = self.blocked(now);
        let current = self.plan_to(&outlook, &desired.shift, now);
        self.coming = self.next_start(now);
        self.next = self.next_plan(&outlook, now);
        if self.is_paused {
            return Ok(());
        }
        if let Some(plan) = current.filter(|plan| is_worth_it(plan, &blocked)) {
            let why: Arc<str> = format!("{} is desired now: {}", desired.shift, why_of(&desired.why)).into();
            return self.begin(plan, &blocked, why, now).await;
        }
        if self.shift.as_ref() != Some(&desired.shift) {
            self.shift = Some(desired.shift.clone());
        }
        let is_time = |plan: &Plan| now >= engines_start(plan) && is_worth_it(plan, &blocked);
        if let Some(plan) = self.next.clone().filter(is_time) {
            let why: Arc<str> = format!("{} starts at {}", plan.to, plan.at).into();
            return self.begin(plan, &blocked, why, now).await;
        }
        Ok(())
    }

    fn is_time_to_plan(&mut self, now: Timestamp) -> bool {
        let is_due = self.planned_at.is_none_or(|at| at.checked_add(PLAN_EVERY).is_ok_and(|due| now >= due));
        let starts = self.next.as_ref().is_some_and(|plan| now >= engines_start(plan)) && self.run.is_none();
        let wanted = self.wanted(now).shift;
        let is_other = self.run.is_none() && self.shift.as_ref() != Some(&wanted);
        is_due || starts || is_other
    }

    /// A start of the timetable forgives what failed before it.
    fn forget_failures_at_a_start(&mut self, now: Timestamp) {
        let Some(before) = self.forgiven_at.replace(now) else { return };
        let start = Timetable::new(&self.site.schedules).in_force(now).map(|start| start.at);
        if start.is_some_and(|start| start > before) {
            self.attempts.forget();
        }
    }

    /// Whether the switch in progress is not what is wanted any more. One that goes back goes on with that.
    fn is_run_void(&mut self, now: Timestamp, was_stale: bool) -> bool {
        let Some(run) = &self.run else { return false };
        if run.switch.mode == Mode::Aborts {
            return false;
        }
        let (to, from, at) = (run.row.plan.to.clone(), run.row.plan.from.clone(), run.row.plan.at);
        let at_hour = self.desired(now.max(at)).shift;
        if at_hour == to {
            let is_sooner = now < at && self.desired(now).shift == to && to != from;
            return is_sooner || (was_stale && self.is_goal_moved(now));
        }
        if at_hour == from && now < at {
            // held, or called off: what was started for it goes again
            if let Some(run) = &mut self.run {
                let generation = run.switch.generation;
                run.queued.push(tidegate_planner::generation::Stamped { generation, what: Event::Abort });
            }
            return false;
        }
        true
    }

    /// Whether the documents, or the nodes, ask for something else than the switch in progress leads to.
    fn is_goal_moved(&self, now: Timestamp) -> bool {
        let Some(run) = &self.run else { return false };
        let site = Arc::clone(&self.site);
        let outlook = self.outlook(&site);
        let goal = goal(&outlook, &run.row.plan.to);
        let _ = now;
        goal != run.goal
    }

    /// Ends the switch in progress where it is: the next plan begins with what is there.
    async fn supersede(&mut self, now: Timestamp) -> Result<(), RecordError> {
        let Some(mut run) = self.run.take() else { return Ok(()) };
        tracing::info!(generation = run.row.generation, "something else is wanted: the switch is planned anew");
        if now >= run.row.plan.at {
            self.shift = Some(run.row.plan.to.clone());
        }
        run.row.ended = Some(now);
        run.row.notes.push(crate::records::Note {
            at: now,
            code: "superseded".into(),
            about: run.row.plan.to.as_str().into(),
            text: "something else is wanted: planned anew from what is there".into(),
        });
        self.parts.records.save_switch(&run.row).await?;
        self.last = Some(run.row);
        Ok(())
    }

    /// All shifts placed, beginning with where replicas are.
    pub(crate) fn outlook<'s>(&self, site: &'s tidegate_config::Site) -> Outlook<'s> {
        let is_there = |replica: &&ReplicaHandle| {
            let state = replica.state();
            state.has_gpus() && !matches!(state, State::Quarantined { .. })
        };
        let pinned: BTreeMap<ReplicaKey, Seat> = self
            .replicas
            .iter()
            .filter(is_there)
            .map(|replica| (replica.order.key.clone(), replica.order.seat.clone()))
            .collect();
        let mut outlook = Outlook::new(site, self.usable_hardware(), self.known.clone(), &pinned);
        outlook.seat_where_nothing_is_known();
        outlook
    }

    /// The plan from what is there to a shift.
    fn plan_to(&self, outlook: &Outlook<'_>, to: &ShiftName, at: Timestamp) -> Option<Plan> {
        let goal = goal(outlook, to);
        let (seats, revisions) = self.there(&goal);
        let routes: BTreeMap<AliasName, Vec<Target>> = self
            .routes
            .iter()
            .map(|(alias, row)| (alias.clone(), row.targets.iter().map(to_target).collect()))
            .collect();
        let from = self.shift_in_force();
        let side = Side { shift: &from, seats: &seats, revisions: &revisions, routes: Some(&routes) };
        outlook.from_observed(side, to, at, self.rules(to, at))
    }

    /// Who is there. One that is meant to be there and does not serve yet is to come, and one that sleeps or is on its
    /// way out is not there.
    fn there(&self, goal: &Goal) -> (Seats, BTreeMap<DeploymentName, u64>) {
        let (mut seats, mut revisions) = (Seats::new(), BTreeMap::new());
        for replica in &self.replicas {
            let (key, seat, revision) = (&replica.order.key, &replica.order.seat, replica.order.blueprint.revision);
            let state = replica.state();
            let is_meant = goal.seats.contains(&(key.clone(), revision, seat.clone()));
            let is_there = match state {
                State::Serving => true,
                // one that was proven and broke is started again by itself, where it was
                State::Failed { retry_at: Some(_), attempt: 0, .. } => is_meant,
                State::Loading { .. } | State::Warming { .. } | State::Draining { .. } | State::Drained => !is_meant,
                _ => false,
            };
            if is_there {
                seats.insert(key.clone(), seat.clone());
                revisions.insert(key.deployment.clone(), revision);
            }
        }
        (seats, revisions)
    }

    fn next_plan(&self, outlook: &Outlook<'_>, now: Timestamp) -> Option<Plan> {
        let (to, at) = self.coming.as_ref().filter(|(_, at)| *at > now)?;
        self.plan_to(outlook, to, *at)
    }

    /// The next instant at which another shift is desired than now, and that shift.
    pub(crate) fn next_start(&self, now: Timestamp) -> Option<(ShiftName, Timestamp)> {
        let current = self.desired(now);
        let timetable = Timetable::new(&self.site.schedules);
        let mut at = current.until?;
        loop {
            let next = self.desired(at);
            if next.shift != current.shift {
                return Some((next.shift, at));
            }
            timetable.next_where(at, &|shift| *shift != current.shift)?;
            at = next.until?;
        }
    }

    fn blocked(&self, now: Timestamp) -> BTreeSet<(DeploymentName, u64)> {
        self.attempts.blocked(now)
    }

    async fn begin(
        &mut self,
        plan: Plan,
        blocked: &BTreeSet<(DeploymentName, u64)>,
        why: Arc<str>,
        now: Timestamp,
    ) -> Result<(), RecordError> {
        let generation = self.next_generation().await?;
        let plan = plan.beginning_at(now);
        if self.shift.is_none() {
            self.shift = Some(plan.to.clone()).filter(|_| plan.at <= now);
        }
        let site = Arc::clone(&self.site);
        let goal = goal(&self.outlook(&site), &plan.to);
        let mut switch = Switch::new(&plan, Generation(generation));
        switch.failed = failed_in(&plan, blocked);
        // Routes as they are, and not as the documents say that they were.
        let row = SwitchRow {
            number: generation,
            generation,
            mode: switch.mode,
            failed: switch.failed.clone(),
            started: now,
            ended: None,
            outcome: None,
            why,
            notes: std::mem::take(&mut self.notes),
            plan,
        };
        tracing::info!(generation, from = %row.plan.from, to = %row.plan.to, at = %row.plan.at, why = &*row.why, "switch begins");
        self.parts.records.save_switch(&row).await?;
        self.run = Some(Run { row, switch, queued: Vec::new(), deferred: BTreeSet::new(), steps: 0, goal });
        self.go_on(now).await
    }

    /// Forgets replicas of which nothing is left, and ends those that nobody wants.
    fn tidy(&mut self, now: Timestamp) {
        let is_listed = |run: &Run, replica: &ReplicaHandle| {
            let is = |(key, seat): &(ReplicaKey, Seat), revision| {
                replica.order.key == *key && replica.order.seat == *seat && replica.order.blueprint.revision == revision
            };
            let new = run.row.plan.changes.iter().flat_map(|new| new.seats.iter().map(|seat| (seat, new.revision)));
            let old = run.row.plan.departures.iter().flat_map(|old| old.seats.iter().map(|seat| (seat, old.revision)));
            new.chain(old).any(|(seat, revision)| is(seat, revision))
        };
        let run = self.run.as_ref();
        self.replicas.retain(|replica| !replica.is_over() || run.is_some_and(|run| is_listed(run, replica)));
        let is_lost = |replica: &&ReplicaHandle| {
            let is_failed = matches!(replica.state(), State::Failed { retry_at: None, .. });
            is_failed && !run.is_some_and(|run| is_listed(run, replica))
        };
        for replica in self.replicas.iter().filter(is_lost) {
            // One that was told to go counts nothing; one that broke again and again is not tried anew by the next plan.
            if let State::Failed { fault, attempt: 1.., .. } = replica.state() {
                let (name, revision) = (&replica.order.key.deployment, replica.order.blueprint.revision);
                self.attempts.fail(name, revision, fault, true, now);
            }
            replica.tell(instance::Event::Unwant);
        }
    }

    /// A person's word that a GPU is free counts for every replica that was on it.
    pub(crate) fn release(&self, node: &str, gpu: u32) {
        let has =
            |replica: &&ReplicaHandle| replica.order.seat.gpus().iter().any(|id| &*id.node == node && id.index == gpu);
        self.replicas.iter().filter(has).for_each(|replica| replica.tell(instance::Event::Release));
    }

    fn publish(&mut self, now: Timestamp) {
        let placed: Vec<Placed> = self
            .replicas
            .iter()
            .filter_map(|replica| {
                let backend = replica.now().backend?;
                let blueprint = &replica.order.blueprint;
                Some(Placed {
                    deployment: blueprint.name.clone(),
                    revision: blueprint.revision,
                    blueprint: Arc::clone(blueprint),
                    backend,
                })
            })
            .collect();
        let shift = self.shift.clone();
        self.traffic.send_if_modified(|traffic| {
            let is_same = traffic.shift == shift
                && traffic.placed.len() == placed.len()
                && traffic.placed.iter().zip(&placed).all(|(a, b)| Arc::ptr_eq(&a.backend, &b.backend));
            *traffic = Arc::new(Traffic { placed, shift });
            !is_same
        });
        let status = self.describe(now);
        self.status.send_replace(Arc::new(status));
    }

    /// Tells the nodes what their caches shall hold, whenever a plan was made.
    fn keep_models(&mut self, now: Timestamp) {
        if self.planned_at != Some(now) {
            return;
        }
        let (launcher, generation, kept) = (Arc::clone(&self.parts.launcher), self.generation(), self.kept(now));
        self.tasks.spawn(async move {
            if let Err(error) = launcher.keep(generation, &kept).await {
                tracing::debug!(%error, "nodes do not know what to keep");
            }
        });
    }

    /// What the nodes' caches shall hold: what is loaded, what the coming shift needs, and the way back.
    pub(crate) fn kept(&self, now: Timestamp) -> Vec<Kept> {
        let mut kept: BTreeMap<(Arc<str>, Arc<str>), Kept> = BTreeMap::new();
        let mut add = |blueprint: &Blueprint, seat: &Seat, next_use: Option<Timestamp>, why: &str| {
            let Some(ModelSource::Store { path, digest }) = &blueprint.model else { return };
            for part in &seat.parts {
                let one = Kept {
                    node: Arc::clone(&part.node),
                    path: Arc::clone(path),
                    digest: digest.clone(),
                    next_use,
                    why: why.into(),
                };
                let at = (Arc::clone(&part.node), Arc::clone(path));
                kept.entry(at).and_modify(|known| known.next_use = known.next_use.min(next_use)).or_insert(one);
            }
        };
        for replica in self.replicas.iter().filter(|replica| !replica.is_over()) {
            add(&replica.order.blueprint, &replica.order.seat, None, "loaded");
        }
        let plans = self.next.iter().chain(self.run.as_ref().map(|run| &run.row.plan));
        for plan in plans {
            for change in &plan.changes {
                let Some(blueprint) = self.blueprint(&change.deployment, change.revision) else { continue };
                change.seats.iter().for_each(|(_, seat)| add(&blueprint, seat, Some(plan.at.max(now)), "next shift"));
            }
        }
        for old in self.last.iter().flat_map(|last| &last.plan.departures) {
            let Some(blueprint) = self.blueprint(&old.deployment, old.revision) else { continue };
            old.seats.iter().for_each(|(_, seat)| add(&blueprint, seat, Some(now), "way back"));
        }
        kept.into_values().collect()
    }
}

fn to_target(target: &crate::route::RouteTarget) -> Target {
    Target { deployment: target.deployment.clone(), weight: target.weight }
}

/// What a shift comes to.
pub(crate) fn goal(outlook: &Outlook<'_>, to: &ShiftName) -> Goal {
    let site = outlook.site();
    let revision = |name: &DeploymentName| outlook.needs().get(name).map_or(0, |need| need.revision);
    let seats = outlook.seats(to).into_iter().flatten();
    let seats = seats.map(|(key, seat)| (key.clone(), revision(&key.deployment), seat.clone())).collect();
    let route = |(name, alias): (&AliasName, &tidegate_config::site::Alias)| {
        let targets = match alias.shifts.get(to) {
            Some(tidegate_config::site::ShiftTargets::Targets(targets)) => targets.as_slice(),
            Some(tidegate_config::site::ShiftTargets::Absent { substitute: _ }) | None => &[],
        };
        (name.clone(), targets.iter().map(|target| (target.deployment.clone(), target.weight)).collect())
    };
    Goal { seats, routes: site.aliases.iter().map(route).collect() }
}

fn failed_in(plan: &Plan, blocked: &BTreeSet<(DeploymentName, u64)>) -> BTreeSet<DeploymentName> {
    let is_blocked =
        |change: &&tidegate_planner::plan::Change| blocked.contains(&(change.deployment.clone(), change.revision));
    plan.changes.iter().filter(is_blocked).map(|change| change.deployment.clone()).collect()
}

/// Whether something would change although what failed lately does not come.
fn is_worth_it(plan: &Plan, blocked: &BTreeSet<(DeploymentName, u64)>) -> bool {
    let held = held(plan, &failed_in(plan, blocked));
    plan.changes.iter().any(|new| !held.new.contains(&new.deployment))
        || plan.departures.iter().any(|old| !held.old.contains(&old.deployment))
        || plan.routes.iter().any(|route| !held.aliases.contains(&route.alias))
}

/// When the first engine of a plan is started.
fn engines_start(plan: &Plan) -> Timestamp {
    let steps = plan.changes.iter().flat_map(|change| &change.steps);
    let deploys = steps.filter(|step| step.phase >= Phase::Deploy).map(|step| step.from);
    deploys.chain([plan.at]).min().unwrap_or(plan.at)
}

fn why_of(why: &tidegate_planner::desired::Why) -> &'static str {
    use tidegate_planner::desired::Why;
    match why {
        Why::Override => "somebody said so",
        Why::Exception(_) => "an exceptional date",
        Why::Schedule(_) => "the timetable",
        Why::BeforeFirstStart => "the timetable's first shift",
        Why::Always => "the documents",
    }
}
