//! What starts and stops took, told to the records and to the planner; and who will be late, told early.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::site::Lead;
use tidegate_core::DeploymentName;
use tidegate_node::InstanceId;
use tidegate_planner::instance::State;
use tidegate_planner::need::Need;
use tidegate_planner::plan::Phases;

use crate::controller::Controller;
use crate::phases::{ColdStart, CompiledCode, Late, Measured, beginnings, forecast};
use crate::records::{Note, RecordError};
use crate::replica::{Mark, ReplicaHandle, Snapshot};
use crate::run::find;

/// What was measured, and of whom.
#[derive(Debug, Default)]
pub(crate) struct Measuring {
    pub(crate) measured: Measured,
    started: BTreeSet<InstanceId>,
    stopped: BTreeSet<InstanceId>,
    /// Who is expected to be late, since it was told.
    pub(crate) late: BTreeMap<DeploymentName, Late>,
}

impl Controller {
    /// What earlier controllers measured.
    pub(crate) fn recall(&mut self, measured: BTreeMap<(DeploymentName, u64), Phases>) {
        for ((name, revision), phases) in measured {
            self.measuring.measured.recall(&name, revision, phases);
            self.plan_with(&name, revision);
        }
    }

    /// Takes note of starts and stops that are over, and of starts that will be late.
    pub(crate) async fn measure(&mut self, now: Timestamp) -> Result<(), RecordError> {
        let seen: Vec<(DeploymentName, u64, Snapshot)> = self.replicas.iter().map(told).collect();
        for (name, revision, snapshot) in &seen {
            let is_new = |known: &BTreeSet<InstanceId>| !known.contains(&snapshot.instance);
            let start = snapshot.cold_start.filter(|_| is_new(&self.measuring.started));
            let stop = stop(&snapshot.marks).filter(|_| is_new(&self.measuring.stopped));
            if let Some(start) = start {
                self.measuring.started.insert(snapshot.instance.clone());
                self.started(name, *revision, start, now);
            }
            if let Some((stop, proof)) = stop {
                self.measuring.stopped.insert(snapshot.instance.clone());
                self.measuring.measured.stopped(name, *revision, stop, proof);
            }
            if start.is_none() && stop.is_none() {
                continue;
            }
            self.plan_with(name, *revision);
            if let Some(expected) = self.measuring.measured.expected(name, *revision) {
                self.parts.records.measure(name, *revision, &expected).await?;
            }
        }
        let here: BTreeSet<&InstanceId> = seen.iter().map(|(_, _, snapshot)| &snapshot.instance).collect();
        self.measuring.started.retain(|instance| here.contains(instance));
        self.measuring.stopped.retain(|instance| here.contains(instance));
        self.foresee(now);
        Ok(())
    }

    fn started(&mut self, name: &DeploymentName, revision: u64, start: ColdStart, now: Timestamp) {
        let earlier = self.measuring.measured.last(name, revision);
        let was_kept = earlier.is_some_and(|earlier| earlier.compiled != CompiledCode::Unknown);
        self.measuring.measured.started(name, revision, start);
        let summary = start.summary();
        tracing::info!(deployment = %name, summary, "start measured");
        let note = |code: &str, text: String| Note {
            at: now,
            code: code.into(),
            about: name.as_str().into(),
            text: text.into(),
        };
        if self.run.is_some() {
            self.note(note("start_measured", summary));
        }
        if let Some(finding) = start.findings(was_kept) {
            tracing::warn!(deployment = %name, finding, "start measured");
            self.note(note("compiled_code_missed", finding));
        }
    }

    /// Plans are made with what was measured of the revision that the documents have now.
    fn plan_with(&mut self, name: &DeploymentName, revision: u64) {
        if Need::of(&self.site, name).is_none_or(|need| need.revision != revision) {
            return;
        }
        if let Some(phases) = self.measuring.measured.planned(name, revision) {
            self.known.phases.insert(name.clone(), phases);
        }
    }

    /// Tells early who will miss its hour, and by which phase.
    fn foresee(&mut self, now: Timestamp) {
        let Some(run) = &self.run else {
            self.measuring.late.clear();
            return;
        };
        let lead = self.rules(&run.row.plan.to, run.row.plan.at).lead;
        let mut late: BTreeMap<DeploymentName, Late> = BTreeMap::new();
        for change in &run.row.plan.changes {
            let expected = self.measuring.measured.expected(&change.deployment, change.revision);
            let expected = expected.unwrap_or_else(|| from_lead(lead));
            for (key, seat) in &change.seats {
                let Some(replica) = find(&self.replicas, key, change.revision, seat) else { continue };
                let snapshot = replica.now();
                if !is_starting(&snapshot) {
                    continue;
                }
                let sight = self.hands.eyes.now();
                let boot = sight.seen.get(&snapshot.instance).map(|seen| seen.boot.as_slice()).unwrap_or_default();
                let begun = beginnings(&snapshot.marks, boot);
                let Some(new) = forecast(&begun, &expected, snapshot.left, now, change.ready_at) else { continue };
                let is_worse = late.get(&change.deployment).is_none_or(|known| known.by < new.by);
                if is_worse {
                    late.insert(change.deployment.clone(), new);
                }
            }
        }
        let due: BTreeMap<_, _> =
            run.row.plan.changes.iter().map(|change| (change.deployment.clone(), change.ready_at)).collect();
        let is_news = |(name, new): &(&DeploymentName, &Late)| {
            self.measuring.late.get(*name).is_none_or(|known| known.phase != new.phase)
        };
        let news: Vec<_> = late.iter().filter(is_news).map(|(name, late)| (name.clone(), late.clone())).collect();
        for (name, new) in news {
            let hour = due.get(&name).map(|due| self.hour(*due)).unwrap_or_default();
            let text = new.text(&hour);
            tracing::warn!(deployment = %name, text, "a start is late");
            self.note(Note { at: now, code: "will_miss".into(), about: name.as_str().into(), text: text.into() });
        }
        self.measuring.late = late;
    }

    /// An instant as people of the site say it.
    fn hour(&self, at: Timestamp) -> String {
        at.to_zoned(self.site.time_zone.clone()).strftime("%H:%M").to_string()
    }
}

fn told(replica: &ReplicaHandle) -> (DeploymentName, u64, Snapshot) {
    (replica.order.key.deployment.clone(), replica.order.blueprint.revision, replica.now())
}

fn is_starting(snapshot: &Snapshot) -> bool {
    // one whose model was fetched ahead waits for its time
    matches!(snapshot.state, State::Fetching { .. } | State::Loading { .. } | State::Warming { .. })
}

/// From the signal to the last process, and the proof after it.
fn stop(marks: &[Mark]) -> Option<(Duration, Duration)> {
    let at = |what: &str| marks.iter().rev().find(|mark| mark.what == what).map(|mark| mark.at);
    let (stopping, proving, stopped) = (at("stopping")?, at("proving")?, at("stopped")?);
    let between = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).ok();
    Some((between(stopping, proving)?, between(proving, stopped)?))
}

/// What a start is expected to take as long as nobody has measured one.
fn from_lead(lead: Lead) -> Phases {
    let less = Duration::saturating_sub;
    Phases {
        fetch: less(lead.prefetch, lead.verify),
        verify: less(lead.verify, lead.deploy),
        load: less(lead.deploy, lead.ready),
        warm_up: lead.ready,
        ..Phases::default()
    }
}
