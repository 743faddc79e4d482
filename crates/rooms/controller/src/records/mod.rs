//! What the controller writes down: so that the next one knows what was under way, and that there is a next one.

mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_planner::plan::Phases;
use tidegate_planner::switch::{Mode, Outcome};
use tidegate_planner::{Override, Plan};

use crate::route::RouteRow;

pub use store::StoreRecords;

/// Why something was not written down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A later controller is at work: this one must do nothing more.
    #[error("a later controller is at work (generation {highest})")]
    Stale {
        /// Its generation.
        highest: u64,
    },
    /// The store fails.
    #[error("the store: {0}")]
    Store(Arc<str>),
}

/// What somebody said, and what is desired because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The shift that is desired instead of the timetable's.
    pub shift: ShiftName,
    /// When it was said.
    pub made: Timestamp,
    /// Until when; `None`: until the first start after it was said.
    pub until: Option<Timestamp>,
    /// Who said it.
    pub who: Arc<str>,
    /// With which verb.
    pub verb: Arc<str>,
}

impl Said {
    /// As the planner reads it.
    #[must_use]
    pub fn to_override(&self) -> Override {
        Override { shift: self.shift.clone(), made: self.made, until: self.until }
    }
}

/// A switch as it is written down before its first step, and after each one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchRow {
    /// The generation in which it began: its name for good.
    pub number: u64,
    /// The generation it runs under; a controller that takes it over gives it a higher one.
    pub generation: u64,
    /// What is to happen.
    pub plan: Plan,
    /// How it goes on.
    pub mode: Mode,
    /// New deployments that will not come.
    pub failed: BTreeSet<DeploymentName>,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why it was made: the timetable, a verb, a change of documents, a start.
    pub why: Arc<str>,
    /// What was said about it: alarms with their time.
    pub notes: Vec<Note>,
}

/// Something that happened in a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// Its stable name.
    pub code: Arc<str>,
    /// The deployment or alias that it is about.
    pub about: Arc<str>,
    /// For people.
    pub text: Arc<str>,
}

/// Where the controller writes.
#[async_trait]
pub trait Records: Send + Sync + fmt::Debug {
    /// A generation higher than all before; whoever has a lower one is stale from now on.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn next_generation(&self) -> Result<u64, RecordError>;

    /// Writes a switch, new or known by its number.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn save_switch(&self, row: &SwitchRow) -> Result<(), RecordError>;

    /// The last switch, over or not; `None` when there never was one.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn last_switch(&self) -> Result<Option<SwitchRow>, RecordError>;

    /// The last switch that was completed, before the last of all: where a rollback goes.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn last_completed(&self) -> Result<Option<SwitchRow>, RecordError>;

    /// Writes a step down before it is done.
    ///
    /// # Errors
    /// [`RecordError`]; then it is not done.
    async fn step(&self, generation: u64, number: u64, what: &str, at: Timestamp) -> Result<(), RecordError>;

    /// Writes a route.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn set_route(&self, row: &RouteRow) -> Result<(), RecordError>;

    /// All routes.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn routes(&self) -> Result<BTreeMap<AliasName, RouteRow>, RecordError>;

    /// What somebody said last.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn said(&self) -> Result<Option<Said>, RecordError>;

    /// Writes down what somebody said; `None`: it is taken back.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn say(&self, generation: u64, said: Option<&Said>) -> Result<(), RecordError>;

    /// Whether no new step is to be taken.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn is_paused(&self) -> Result<bool, RecordError>;

    /// Writes down that somebody paused, or (`None`) that it goes on.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn pause(&self, generation: u64, who: Option<&str>, at: Timestamp) -> Result<(), RecordError>;

    /// Measured phases by deployment and revision.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn measured(&self) -> Result<BTreeMap<(DeploymentName, u64), Phases>, RecordError>;

    /// Writes measured phases.
    ///
    /// # Errors
    /// [`RecordError`].
    async fn measure(&self, name: &DeploymentName, revision: u64, phases: &Phases) -> Result<(), RecordError>;
}

#[derive(Debug, Default)]
struct Memory {
    generation: u64,
    switches: Vec<SwitchRow>,
    steps: Vec<(u64, u64, String)>,
    routes: BTreeMap<AliasName, RouteRow>,
    said: Option<Said>,
    is_paused: bool,
    measured: BTreeMap<(DeploymentName, u64), Phases>,
}

/// Records in memory: they are gone with the process. For simulations.
#[derive(Debug, Default)]
pub struct MemoryRecords(Mutex<Memory>);

impl MemoryRecords {
    /// Steps written down, oldest first: generation, number, what.
    #[must_use]
    pub fn steps(&self) -> Vec<(u64, u64, String)> {
        self.0.lock().steps.clone()
    }

    /// All switches, oldest first.
    #[must_use]
    pub fn switches(&self) -> Vec<SwitchRow> {
        self.0.lock().switches.clone()
    }

    fn fenced<T>(&self, generation: u64, work: impl FnOnce(&mut Memory) -> T) -> Result<T, RecordError> {
        let mut memory = self.0.lock();
        if generation < memory.generation {
            return Err(RecordError::Stale { highest: memory.generation });
        }
        Ok(work(&mut memory))
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn next_generation(&self) -> Result<u64, RecordError> {
        let mut memory = self.0.lock();
        memory.generation += 1;
        Ok(memory.generation)
    }

    async fn save_switch(&self, row: &SwitchRow) -> Result<(), RecordError> {
        self.fenced(row.generation, |memory| {
            match memory.switches.iter_mut().find(|known| known.number == row.number) {
                Some(known) => known.clone_from(row),
                None => memory.switches.push(row.clone()),
            }
        })
    }

    async fn last_switch(&self) -> Result<Option<SwitchRow>, RecordError> {
        Ok(self.0.lock().switches.last().cloned())
    }

    async fn last_completed(&self) -> Result<Option<SwitchRow>, RecordError> {
        let memory = self.0.lock();
        Ok(memory.switches.iter().rev().find(|row| row.outcome == Some(Outcome::Complete)).cloned())
    }

    async fn step(&self, generation: u64, number: u64, what: &str, _at: Timestamp) -> Result<(), RecordError> {
        self.fenced(generation, |memory| memory.steps.push((generation, number, what.to_owned())))
    }

    async fn set_route(&self, row: &RouteRow) -> Result<(), RecordError> {
        self.fenced(row.generation, |memory| drop(memory.routes.insert(row.alias.clone(), row.clone())))
    }

    async fn routes(&self) -> Result<BTreeMap<AliasName, RouteRow>, RecordError> {
        Ok(self.0.lock().routes.clone())
    }

    async fn said(&self) -> Result<Option<Said>, RecordError> {
        Ok(self.0.lock().said.clone())
    }

    async fn say(&self, generation: u64, said: Option<&Said>) -> Result<(), RecordError> {
        self.fenced(generation, |memory| memory.said = said.cloned())
    }

    async fn is_paused(&self) -> Result<bool, RecordError> {
        Ok(self.0.lock().is_paused)
    }

    async fn pause(&self, generation: u64, who: Option<&str>, _at: Timestamp) -> Result<(), RecordError> {
        self.fenced(generation, |memory| memory.is_paused = who.is_some())
    }

    async fn measured(&self) -> Result<BTreeMap<(DeploymentName, u64), Phases>, RecordError> {
        Ok(self.0.lock().measured.clone())
    }

    async fn measure(&self, name: &DeploymentName, revision: u64, phases: &Phases) -> Result<(), RecordError> {
        self.0.lock().measured.insert((name.clone(), revision), *phases);
        Ok(())
    }
}
