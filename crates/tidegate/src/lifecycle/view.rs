//! What the controller says, as the admin API says it.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_console::lifecycle as console;
use tidegate_controller::controller::ControllerHandle;
use tidegate_controller::externals::Externals;
use tidegate_controller::status::{self, Status};
use tidegate_controller::verbs::{Verb, VerbError};
use tidegate_core::DeploymentName;
use tidegate_engine::backend::Backend;
use tidegate_planner::switch::{Mode, Outcome};
use tidegate_store::store::{SwitchMode, SwitchOutcome};
use tokio::time::Instant;

/// One replica as status shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReplicaStatus {
    /// Its id.
    replica: String,
    /// Its deployment.
    deployment: String,
    /// Its state.
    pub(crate) state: String,
    /// Where it is.
    address: String,
    /// Requests of ours that it has.
    in_flight: u32,
    /// Requests that wait in the engine, if it says so.
    waiting: Option<f64>,
    /// Requests that run in the engine, if it says so.
    running: Option<f64>,
    /// KV cache in use, 0 to 1, if it says so.
    kv_usage: Option<f64>,
    /// Context window that it reports.
    context_tokens: Option<u64>,
    /// Whether its breaker keeps it out.
    broken: bool,
    /// What is in the way, if something is.
    problem: Option<String>,
}

fn replica(
    id: String,
    deployment: &DeploymentName,
    backend: Option<&Backend>,
    problem: Option<String>,
) -> ReplicaStatus {
    let signals = backend.and_then(|backend| backend.signals(Instant::now())).unwrap_or_default();
    let state = backend.map_or("failing", |backend| backend.replica().state().as_str());
    ReplicaStatus {
        replica: id,
        deployment: deployment.to_string(),
        state: state.to_owned(),
        address: backend.map(|backend| backend.authority().to_owned()).unwrap_or_default(),
        in_flight: backend.map_or(0, |backend| backend.replica().booked()),
        waiting: signals.waiting,
        running: signals.running,
        kv_usage: signals.kv_usage,
        context_tokens: backend.and_then(Backend::context_tokens),
        broken: backend.is_some_and(|backend| backend.replica().open_until().is_some()),
        problem,
    }
}

/// All replicas: those that we start, and those that somebody else runs.
pub(crate) fn replicas(status: &Status, externals: &Externals) -> Vec<ReplicaStatus> {
    let ours = status.replicas.iter().map(|view| {
        let problem = view.problem.as_ref().map(ToString::to_string);
        let mut shown = replica(view.replica.clone(), &view.deployment, view.backend.as_deref(), problem);
        if shown.state != "serving" || view.state != "serving" {
            view.state.clone_into(&mut shown.state);
        }
        shown
    });
    let others = externals.status();
    let others = others.iter().map(|external| {
        replica(
            external.replica.to_string(),
            &external.deployment,
            external.backend.as_deref(),
            external.problem.clone(),
        )
    });
    ours.chain(others).collect()
}

/// What the lifecycle is at.
pub(crate) fn lifecycle(status: &Status, time_zone: &str) -> console::LifecycleStatus {
    console::LifecycleStatus {
        controller: true,
        time_zone: time_zone.to_owned(),
        generation: status.generation,
        shift: status.shift.clone(),
        desired: status.desired.clone(),
        said: status.said.as_ref().map(|said| console::SaidView {
            shift: said.shift.clone(),
            verb: said.verb.to_string(),
            who: said.who.to_string(),
            made: said.made,
            until: said.until,
        }),
        paused: status.paused,
        next: status.next.as_ref().map(|next| console::NextShift {
            shift: next.shift.clone(),
            at: next.at,
            begins: next.begins,
        }),
        switch: status.switch.as_ref().map(switch),
        last: status.last.as_ref().map(switch),
        deployments: deployments(status),
        replicas: status.replicas.iter().map(view).collect(),
        failures: status
            .failures
            .iter()
            .map(|failure| console::Failure {
                deployment: failure.deployment.clone(),
                failed: failure.failed,
                fault: failure.fault.to_string(),
                next_at: failure.next_at,
            })
            .collect(),
        gaps: status
            .gaps
            .iter()
            .map(|gap| console::GapView {
                alias: gap.alias.clone(),
                since: gap.since,
                until: gap.until,
                served_by: gap.served_by.clone(),
            })
            .collect(),
        quarantined: quarantined(status),
        away: status
            .away
            .iter()
            .map(|away| console::Away { node: away.node.to_string(), why: away.why.to_string() })
            .collect(),
        notes: status.notes.iter().map(note).collect(),
    }
}

fn note(note: &tidegate_controller::records::Note) -> console::Note {
    console::Note {
        at: note.at,
        code: note.code.to_string(),
        about: note.about.to_string(),
        text: note.text.to_string(),
    }
}

fn switch(status: &status::SwitchStatus) -> console::SwitchView {
    let words = |words: &BTreeMap<DeploymentName, status::Cow>| {
        words.iter().map(|(name, word)| (name.clone(), word.to_string())).collect()
    };
    console::SwitchView {
        number: status.number,
        generation: status.generation,
        from: status.from.clone(),
        to: status.to.clone(),
        at: status.at,
        started: status.started,
        ended: status.ended,
        mode: match status.mode {
            Mode::Runs => SwitchMode::Runs,
            Mode::Paused => SwitchMode::Paused,
            Mode::Aborts => SwitchMode::Aborts,
        },
        outcome: status.outcome.map(|outcome| match outcome {
            Outcome::Complete => SwitchOutcome::Complete,
            Outcome::Partly => SwitchOutcome::Partly,
            Outcome::Aborted => SwitchOutcome::Aborted,
        }),
        why: status.why.to_string(),
        new: words(&status.new),
        old: words(&status.old),
        aliases: status.aliases.clone(),
        steps: status
            .steps
            .iter()
            .map(|step| console::StepView {
                deployment: step.deployment.clone(),
                phase: step.phase.to_owned(),
                from: step.from,
                until: step.until,
                began: step.began,
                ended: step.ended,
                text: step.text.as_ref().map(ToString::to_string),
            })
            .collect(),
        overrun: status.overrun.clone(),
        notes: status.notes.iter().map(note).collect(),
    }
}

fn view(replica: &status::ReplicaView) -> console::ReplicaView {
    console::ReplicaView {
        replica: replica.replica.clone(),
        deployment: replica.deployment.clone(),
        revision: replica.revision,
        instance: replica.instance.clone(),
        seat: replica.seat.clone(),
        state: replica.state.to_owned(),
        problem: replica.problem.as_ref().map(ToString::to_string),
        marks: replica.marks.iter().map(|(what, at)| console::Mark { what: (*what).to_owned(), at: *at }).collect(),
    }
}

fn deployments(status: &Status) -> Vec<console::DeploymentView> {
    let mut views: BTreeMap<(DeploymentName, u64), console::DeploymentView> = BTreeMap::new();
    for replica in &status.replicas {
        let view =
            views.entry((replica.deployment.clone(), replica.revision)).or_insert_with(|| console::DeploymentView {
                deployment: replica.deployment.clone(),
                revision: replica.revision,
                desired: 0,
                ready: 0,
                pinned: 0,
                phases: BTreeMap::new(),
            });
        match replica.state {
            "drained" | "asleep" => view.pinned += 1,
            "stopping" | "proving" | "quarantined" | "draining" => {}
            state => {
                view.desired += 1;
                view.ready += u32::from(state == "serving");
            }
        }
    }
    views.into_values().collect()
}

fn quarantined(status: &Status) -> Vec<console::QuarantinedGpu> {
    let gpus = status.quarantined().flat_map(|replica| {
        replica.gpus.iter().map(|gpu| console::QuarantinedGpu {
            node: gpu.node.to_string(),
            gpu: gpu.index,
            replica: replica.replica.clone(),
            why: replica.problem.as_ref().map(ToString::to_string),
        })
    });
    gpus.collect()
}

/// Asks the controller what somebody asks over the admin API.
pub(crate) async fn asked(
    handle: ControllerHandle,
    ask: console::Ask,
    who: String,
) -> Result<console::Accepted, console::Refused> {
    let verb = match ask {
        console::Ask::Switch { to, until } => Verb::Now { to, until },
        console::Ask::Hold { until } => Verb::Hold { until },
        console::Ask::Pause => Verb::Pause,
        console::Ask::Resume => Verb::Resume,
        console::Ask::Abort => Verb::Abort,
        console::Ask::Rollback => Verb::Rollback,
        console::Ask::Release { node, gpu, reason } => Verb::Release { node: node.into(), gpu, reason: reason.into() },
    };
    let accepted = handle.say(verb, &who).await.map_err(|error| {
        let kind = match &error {
            VerbError::NoSuchShift(_) | VerbError::Past(_) => console::RefusedKind::Invalid,
            VerbError::NothingInProgress | VerbError::NothingToGoBackTo => console::RefusedKind::Conflict,
            VerbError::NotLeading => console::RefusedKind::NoController,
            VerbError::Records(_) | VerbError::Launcher(_) => console::RefusedKind::Failed,
        };
        console::Refused::new(kind, error.to_string())
    })?;
    Ok(console::Accepted {
        changes: accepted.changes,
        desired: Some(accepted.desired),
        generation: accepted.generation,
        later: false,
    })
}
