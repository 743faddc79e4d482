//! What people and workflow engines may say to the controller.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_core::ShiftName;
use tidegate_planner::generation::Stamped;
use tidegate_planner::switch::{Event, Mode};

use crate::controller::Controller;
use crate::launcher::LaunchFault;
use crate::records::{RecordError, Said};

/// A verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Verb {
    /// Switch to a shift now; it stays until the next start, or `until`.
    Now {
        /// The shift.
        to: ShiftName,
        /// Until when.
        #[serde(default)]
        until: Option<Timestamp>,
    },
    /// Stay with what is loaded, until the next start, or `until`.
    Hold {
        /// Until when.
        #[serde(default)]
        until: Option<Timestamp>,
    },
    /// Back to the old set of the switch in progress.
    Abort,
    /// Back to the set before the last completed switch.
    Rollback,
    /// No new step; alarms go on.
    Pause,
    /// Go on: after a pause, an override, or failures.
    Resume,
    /// A person's word that a GPU is free.
    Release {
        /// The node.
        node: Arc<str>,
        /// The GPU's index.
        gpu: u32,
        /// Why.
        reason: Arc<str>,
    },
}

impl Verb {
    /// Its name.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Now { .. } => "switch now",
            Self::Hold { .. } => "hold",
            Self::Abort => "abort",
            Self::Rollback => "rollback",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Release { .. } => "gpu release",
        }
    }
}

/// What a verb did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// Whether there is anything to do now.
    pub changes: bool,
    /// The shift that is desired now.
    pub desired: ShiftName,
    /// The generation of the switch that it found in progress.
    pub generation: u64,
}

/// Why a verb was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbError {
    /// The site has no such shift.
    #[error("there is no shift {0}: `tidegate shifts` lists them")]
    NoSuchShift(ShiftName),
    /// No switch is in progress.
    #[error("no switch is in progress")]
    NothingInProgress,
    /// There is nothing to go back to.
    #[error("no completed switch is on record: there is nothing to go back to")]
    NothingToGoBackTo,
    /// The time is over.
    #[error("{0} is over already")]
    Past(Timestamp),
    /// Another process is the controller.
    #[error("this process is not the controller now")]
    NotLeading,
    /// It could not be written down.
    #[error(transparent)]
    Records(#[from] RecordError),
    /// The node refused.
    #[error(transparent)]
    Launcher(#[from] LaunchFault),
}

impl VerbError {
    /// Its stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchShift(_) => "no_such_shift",
            Self::NothingInProgress => "nothing_in_progress",
            Self::NothingToGoBackTo => "nothing_to_go_back_to",
            Self::Past(_) => "past",
            Self::NotLeading => "not_leading",
            Self::Records(_) => "store",
            Self::Launcher(_) => "node",
        }
    }
}

impl Controller {
    /// Does what a verb says.
    pub(crate) async fn verb(&mut self, verb: Verb, who: &Arc<str>, now: Timestamp) -> Result<Accepted, VerbError> {
        let name = verb.as_str();
        tracing::info!(verb = name, who = &**who, "said");
        match verb {
            Verb::Now { to, until } => self.override_with(to, until, name, who, now).await?,
            Verb::Hold { until } => {
                let shift = self.shift_in_force();
                self.override_with(shift, until, name, who, now).await?;
            }
            Verb::Abort => {
                let run = self.run.as_ref().ok_or(VerbError::NothingInProgress)?;
                let from = run.row.plan.from.clone();
                self.override_with(from, None, name, who, now).await?;
                self.tell_run(Event::Abort);
            }
            Verb::Rollback => {
                let last = self.parts.records.last_completed().await?.ok_or(VerbError::NothingToGoBackTo)?;
                self.override_with(last.plan.from, None, name, who, now).await?;
            }
            Verb::Pause => {
                self.parts.records.pause(self.generation(), Some(who), now).await?;
                self.is_paused = true;
                self.tell_run(Event::Pause);
            }
            Verb::Resume => self.resume(now).await?,
            Verb::Release { node, gpu, reason } => {
                let generation = self.generation();
                self.parts.launcher.release(generation, &node, gpu, &reason).await?;
                self.release(&node, gpu);
            }
        }
        self.is_stale = true;
        let desired = self.desired(now).shift;
        let changes = self.run.is_some() || self.shift.as_ref() != Some(&desired);
        Ok(Accepted { changes, desired, generation: self.generation() })
    }

    async fn override_with(
        &mut self,
        shift: ShiftName,
        until: Option<Timestamp>,
        verb: &str,
        who: &Arc<str>,
        now: Timestamp,
    ) -> Result<(), VerbError> {
        if !self.site.shifts().contains(&shift) {
            return Err(VerbError::NoSuchShift(shift));
        }
        if let Some(until) = until.filter(|until| *until <= now) {
            return Err(VerbError::Past(until));
        }
        let said = Said { shift, made: now, until, who: Arc::clone(who), verb: verb.into() };
        self.parts.records.say(self.generation(), Some(&said)).await?;
        self.said = Some(said);
        self.attempts.forget();
        Ok(())
    }

    /// Lifts a pause and whatever was said; failures are forgotten.
    async fn resume(&mut self, now: Timestamp) -> Result<(), VerbError> {
        self.parts.records.say(self.generation(), None).await?;
        self.parts.records.pause(self.generation(), None, now).await?;
        self.said = None;
        self.is_paused = false;
        self.tell_run(Event::Resume);
        self.attempts.forget();
        Ok(())
    }

    /// Queues an event of the switch in progress.
    fn tell_run(&mut self, event: Event) {
        if let Some(run) = self.run.as_mut().filter(|run| run.switch.mode != Mode::Aborts) {
            run.queued.push(Stamped { generation: run.switch.generation, what: event });
        }
    }

    /// The shift in force; before the first switch, the one that is desired.
    pub(crate) fn shift_in_force(&self) -> ShiftName {
        self.shift.clone().unwrap_or_else(|| self.desired(self.now()).shift)
    }
}
