//! What a node is made of.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_config::site::Node as Document;

use super::gpus::Driver;
use crate::guard::GuardChoice;
use crate::log::LogBounds;
use crate::machine::Machine;
use crate::seam::{CauseOf, ModelHands};

/// What a node is made of.
#[derive(Clone)]
pub struct LocalNodeSettings {
    /// Its name in the documents.
    pub name: String,
    /// The state folder; `instances/` and `node/` are made in it.
    pub folder: PathBuf,
    /// The program and the words that lead to [`crate::minder::main`].
    pub minder: Vec<OsString>,
    /// Which guarantees may be used.
    pub guard: GuardChoice,
    /// The GPU driver.
    pub driver: Driver,
    /// The node's document, if it has one.
    pub document: Option<Document>,
    /// Where the kernel shows the machine.
    pub machine: Machine,
    /// How long an engine goes on when no process of ours is connected; `None`: for ever.
    pub orphan_after: Option<Duration>,
    /// The model cache; `None`: models of this machine's own folders only.
    pub models: Option<Arc<dyn ModelHands>>,
    /// Finds the reason in a log.
    pub cause: CauseOf,
    /// How much of a log is kept.
    pub log: LogBounds,
}

impl LocalNodeSettings {
    /// The usual settings: the best guarantee, the driver's library, engines that go on without us.
    #[must_use]
    pub fn new(name: impl Into<String>, folder: PathBuf, minder: Vec<OsString>) -> Self {
        Self {
            name: name.into(),
            folder,
            minder,
            guard: GuardChoice::Best,
            driver: Driver::Load,
            document: None,
            machine: Machine::default(),
            orphan_after: None,
            models: None,
            cause: Arc::new(|log| log.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())),
            log: LogBounds::default(),
        }
    }
}

impl fmt::Debug for LocalNodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalNodeSettings")
            .field("name", &self.name)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// What becomes of the engines when this process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// They go on; whoever opens the state folder next finds them.
    Leave,
    /// They are ended, each within this time.
    Stop(Duration),
}
