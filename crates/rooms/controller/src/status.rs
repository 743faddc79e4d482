//! What the controller does, for status, metrics and whoever waits for a switch.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_engine::backend::Backend;
use tidegate_planner::hardware::GpuId;
use tidegate_planner::instance::State;
use tidegate_planner::placement::{ReplicaKey, Seat};
use tidegate_planner::plan::Phase;
use tidegate_planner::switch::{Mode, New, Old, Outcome};

use crate::controller::Controller;
use crate::records::{Note, Said, SwitchRow};
use crate::replica::{Mark, ReplicaHandle, state_name};
use crate::run::{Run, find};

/// What the controller does.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its generation.
    pub generation: u64,
    /// The shift in force.
    pub shift: Option<ShiftName>,
    /// The shift that should be loaded now.
    pub desired: Option<ShiftName>,
    /// What somebody said, while it holds.
    pub said: Option<Said>,
    /// Whether no new step is taken.
    pub paused: bool,
    /// The next shift and when it starts.
    pub next: Option<NextShift>,
    /// The switch in progress.
    pub switch: Option<SwitchStatus>,
    /// The last one that is over.
    pub last: Option<SwitchStatus>,
    /// Replicas that we start.
    pub replicas: Vec<ReplicaView>,
    /// Deployments that failed, and when they are tried again.
    pub failures: Vec<Failure>,
    /// Aliases that have no deployment of their own now and should.
    pub gaps: Vec<Gap>,
    /// Nodes that do not answer.
    pub away: Vec<Away>,
    /// What was said outside of a switch.
    pub notes: Vec<Note>,
}

/// An alias without a deployment of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The alias.
    pub alias: AliasName,
    /// Since when.
    pub since: Timestamp,
    /// When it is expected to end.
    pub until: Option<Timestamp>,
    /// Who serves its callers meanwhile, if they hold a grant for it.
    pub served_by: Option<AliasName>,
}

/// A step of a plan, and how it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepStatus {
    /// The deployment.
    pub deployment: DeploymentName,
    /// What is done.
    pub phase: &'static str,
    /// Its latest start, as planned.
    pub from: Timestamp,
    /// Its end, as planned.
    pub until: Timestamp,
    /// When it began.
    pub began: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// What is in the way, or how far it is.
    pub text: Option<Arc<str>>,
}

/// The next shift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextShift {
    /// Its name.
    pub shift: ShiftName,
    /// When it starts.
    pub at: Timestamp,
    /// When its first engine starts.
    pub begins: Option<Timestamp>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwitchStatus {
    /// The generation in which it began: its name for good.
    pub number: u64,
    /// Its generation.
    pub generation: u64,
    /// The shift that ends.
    pub from: ShiftName,
    /// The shift that begins.
    pub to: ShiftName,
    /// The hour.
    pub at: Timestamp,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How it goes on.
    pub mode: Mode,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why it was made.
    pub why: Arc<str>,
    /// New deployments, with what they do.
    pub new: BTreeMap<DeploymentName, Cow>,
    /// Old deployments, with what they do.
    pub old: BTreeMap<DeploymentName, Cow>,
    /// Aliases that change: where they go now.
    pub aliases: BTreeMap<AliasName, Vec<DeploymentName>>,
    /// Its steps, in the order of the plan.
    pub steps: Vec<StepStatus>,
    /// Seconds that an alias has been served by its old deployments past its hour.
    pub overrun: BTreeMap<AliasName, u64>,
    /// What was said about it.
    pub notes: Vec<Note>,
}

/// A state's name.
pub type Cow = std::borrow::Cow<'static, str>;

/// A replica.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaView {
    /// `deployment/number`.
    pub replica: String,
    /// Its deployment.
    pub deployment: DeploymentName,
    /// What it was started from.
    pub revision: u64,
    /// Its instance.
    pub instance: String,
    /// Where it is.
    pub seat: String,
    /// Its GPUs.
    #[serde(skip)]
    pub gpus: Vec<GpuId>,
    /// How it is asked, while it can be.
    #[serde(skip)]
    pub backend: Option<Arc<Backend>>,
    /// Its state.
    pub state: &'static str,
    /// What is in the way, or how far it is.
    pub problem: Option<Arc<str>>,
    /// When its states began, in this attempt.
    pub marks: Vec<(&'static str, Timestamp)>,
}

/// A deployment that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The deployment.
    pub deployment: DeploymentName,
    /// How often it failed.
    pub failed: u32,
    /// Why, the last time.
    pub fault: Arc<str>,
    /// When it is tried again; `None`: not by itself.
    pub next_at: Option<Timestamp>,
}

/// A node that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Away {
    /// The node.
    pub node: Arc<str>,
    /// Why.
    pub why: Arc<str>,
}

impl Status {
    /// GPUs that are nobody's, with the replica that was on them last.
    pub fn quarantined(&self) -> impl Iterator<Item = &ReplicaView> {
        self.replicas.iter().filter(|replica| replica.state == "quarantined")
    }
}

impl SwitchStatus {
    fn over(row: &SwitchRow) -> Self {
        Self {
            number: row.number,
            generation: row.generation,
            from: row.plan.from.clone(),
            to: row.plan.to.clone(),
            at: row.plan.at,
            started: row.started,
            ended: row.ended,
            mode: row.mode,
            outcome: row.outcome,
            why: Arc::clone(&row.why),
            new: BTreeMap::new(),
            old: BTreeMap::new(),
            aliases: BTreeMap::new(),
            steps: Vec::new(),
            overrun: BTreeMap::new(),
            notes: row.notes.clone(),
        }
    }
}

impl Controller {
    pub(crate) fn describe(&mut self, now: Timestamp) -> Status {
        let desired = self.wanted(now).shift;
        let next = self.coming.clone().map(|(shift, at)| {
            let plan = self.next.as_ref().filter(|plan| plan.to == shift && plan.at == at);
            NextShift { shift, at, begins: plan.map(tidegate_planner::Plan::begins) }
        });
        Status {
            generation: self.generation(),
            shift: self.shift.clone(),
            desired: Some(desired),
            said: self.said.clone().filter(|said| said.until.is_none_or(|until| now < until)),
            paused: self.is_paused,
            next,
            switch: self.in_progress(now),
            last: self.last.as_ref().map(SwitchStatus::over),
            replicas: self.replicas.iter().map(view).collect(),
            failures: self
                .attempts
                .iter()
                .map(|((deployment, _), attempt)| Failure {
                    deployment: deployment.clone(),
                    failed: attempt.failed,
                    fault: Arc::clone(&attempt.fault),
                    next_at: attempt.next_at,
                })
                .collect(),
            gaps: self.gaps(now),
            away: self.parts.launcher.away().into_iter().map(|(node, why)| Away { node, why }).collect(),
            notes: self.notes.clone(),
        }
    }

    fn in_progress(&self, now: Timestamp) -> Option<SwitchStatus> {
        let run = self.run.as_ref()?;
        let names = |members: &[tidegate_planner::switch::Member]| {
            members.iter().map(|member| member.deployment.clone()).collect::<Vec<_>>()
        };
        let overrun = run.switch.lines.iter().filter_map(|(alias, line)| {
            let is_old = line.confirmed.iter().any(|member| member.side == tidegate_planner::switch::Side::Old);
            let past = now.duration_since(run.row.plan.at).as_secs();
            (is_old && past > 0).then(|| (alias.clone(), past.unsigned_abs()))
        });
        Some(SwitchStatus {
            new: run.switch.new.iter().map(|(name, new)| (name.clone(), new_name(*new).into())).collect(),
            old: run.switch.old.iter().map(|(name, old)| (name.clone(), old_name(*old).into())).collect(),
            aliases: run.switch.lines.iter().map(|(alias, line)| (alias.clone(), names(&line.confirmed))).collect(),
            steps: self.steps(run),
            overrun: overrun.collect(),
            mode: run.switch.mode,
            ..SwitchStatus::over(&run.row)
        })
    }
}

impl Controller {
    fn gaps(&self, now: Timestamp) -> Vec<Gap> {
        let Some(run) = self.run.as_ref().filter(|run| now >= run.row.plan.at) else { return Vec::new() };
        let routes = run.row.plan.routes.iter().filter(|route| !route.to.is_empty() && !route.from.is_empty());
        let in_gap =
            routes.filter(|route| run.switch.lines.get(&route.alias).is_some_and(|line| line.confirmed.is_empty()));
        let gap = |route: &tidegate_planner::plan::Route| Gap {
            alias: route.alias.clone(),
            since: route.gap_from.max(run.row.plan.at),
            until: Some(route.at),
            served_by: route.served_by.clone(),
        };
        in_gap.map(gap).collect()
    }

    /// The plan's steps with what became of them.
    fn steps(&self, run: &Run) -> Vec<StepStatus> {
        let mut steps = Vec::new();
        for change in &run.row.plan.changes {
            let (marks, text) = self.marks(change.revision, &change.seats);
            for step in &change.steps {
                let (began, ended) = match step.phase {
                    Phase::Prefetch | Phase::Verify => (at(&marks, "fetching"), at(&marks, "loading")),
                    Phase::Deploy | Phase::Load => (at(&marks, "loading"), at(&marks, "warming")),
                    Phase::Warm => (at(&marks, "warming"), at(&marks, "serving")),
                };
                let text = text.clone().filter(|_| began.is_some() && ended.is_none());
                let (phase, from, until) = (step.phase.as_str(), step.from, step.until);
                steps.push(StepStatus {
                    deployment: change.deployment.clone(),
                    phase,
                    from,
                    until,
                    began,
                    ended,
                    text,
                });
            }
        }
        for old in &run.row.plan.departures {
            let (marks, text) = self.marks(old.revision, &old.seats);
            let drained = at(&marks, "drained").or_else(|| at(&marks, "stopping"));
            let gone = at(&marks, "stopped").or_else(|| at(&marks, "asleep"));
            let left = at(&marks, "stopping").or_else(|| at(&marks, "falling_asleep"));
            let drain = ("drain", old.drains_at, old.drained_by, at(&marks, "draining"), drained);
            let stop = ("stop", old.drained_by, old.gone_by, left, gone);
            for (phase, from, until, began, ended) in [drain, stop] {
                let text = text.clone().filter(|_| began.is_some() && ended.is_none());
                steps.push(StepStatus { deployment: old.deployment.clone(), phase, from, until, began, ended, text });
            }
        }
        steps
    }

    /// Marks of the first replica of a unit, and what is in its way.
    fn marks(&self, revision: u64, seats: &[(ReplicaKey, Seat)]) -> (Vec<Mark>, Option<Arc<str>>) {
        let first = seats.iter().find_map(|(key, seat)| find(&self.replicas, key, revision, seat));
        first.map(|replica| replica.now()).map(|now| (now.marks, now.problem)).unwrap_or_default()
    }
}

/// When something last began.
fn at(marks: &[Mark], what: &str) -> Option<Timestamp> {
    marks.iter().rev().find(|mark| mark.what == what).map(|mark| mark.at)
}

fn view(replica: &ReplicaHandle) -> ReplicaView {
    let snapshot = replica.now();
    let problem = match &snapshot.state {
        State::Failed { fault, .. } => Some(Arc::clone(fault)),
        _ => snapshot.problem.clone(),
    };
    ReplicaView {
        replica: replica.order.key.to_string(),
        deployment: replica.order.key.deployment.clone(),
        revision: replica.order.blueprint.revision,
        instance: snapshot.instance.to_string(),
        seat: replica.order.seat.to_string(),
        gpus: replica.order.seat.gpus().into_iter().collect(),
        backend: snapshot.backend.clone(),
        state: state_name(&snapshot.state),
        problem,
        marks: snapshot.marks.iter().map(|mark| (mark.what, mark.at)).collect(),
    }
}

const fn new_name(new: New) -> &'static str {
    match new {
        New::Planned => "planned",
        New::Starting => "starting",
        New::Proven => "proven",
        New::Unloading => "unloading",
        New::Gone => "gone",
        New::Quarantined => "quarantined",
    }
}

const fn old_name(old: Old) -> &'static str {
    match old {
        Old::Serving => "serving",
        Old::Draining => "draining",
        Old::Drained => "drained",
        Old::Sleeping => "falling_asleep",
        Old::Asleep => "asleep",
        Old::Stopping => "stopping",
        Old::Gone => "gone",
        Old::Restoring => "restoring",
        Old::Lost => "lost",
        Old::Quarantined => "quarantined",
    }
}
