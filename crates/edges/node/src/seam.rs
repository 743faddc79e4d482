//! The seam: one node, wherever it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::facts::Facts;
use crate::fault::NodeError;
use crate::id::InstanceId;
use crate::order::{Keep, ModelOrder, StartOrder};
use crate::report::{Event, InstanceReport, LogPart, ModelReport, Proof};

/// Longest that [`Node::events`] waits when there is nothing to tell.
pub const EVENTS_WAIT: Duration = Duration::from_secs(25);
/// Most bytes of one part of a log.
pub const LOG_PART_MAX: u32 = 1024 * 1024;

/// One GPU node: what it has, the engines on it, the models on it.
///
/// Commands carry the controller's generation. A node keeps the highest it has seen, on disk, and answers a lower one
/// with [`NodeError::StaleGeneration`]. Every command may be repeated without harm.
#[async_trait]
pub trait Node: Send + Sync + fmt::Debug {
    /// What the node has, as of now.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn facts(&self) -> Result<Facts, NodeError>;

    /// Every instance that was started and is not forgotten, running or ended.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn instances(&self) -> Result<Vec<InstanceReport>, NodeError>;

    /// Starts an engine. An instance that is there already is reported as it is, whatever the order says: one start for
    /// each id, whoever asks how often. Returns when the first process runs; that it serves, others find out.
    ///
    /// # Errors
    /// [`NodeError`]; after [`NodeError::Away`] the instance may exist.
    async fn start(&self, generation: u64, order: StartOrder) -> Result<InstanceReport, NodeError>;

    /// Begins to end an instance: SIGTERM to its first process, repeated every second, and after `patience` the end of
    /// its whole tree; zero ends it now. A later call can only shorten the time it has. Returns at once; the instance
    /// is [`crate::InstanceState::Ended`] when no process is left. One that has ended already is fine.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), NodeError>;

    /// Looks whether the memory of an ended instance is free on every GPU it had: three samples, one second apart, all of
    /// which have to say so. Takes two seconds where memory can be seen; ask again, for up to a minute.
    ///
    /// # Errors
    /// [`NodeError`]. That it is not free is an answer, no error.
    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, NodeError>;

    /// Forgets an instance that has ended and whose memory is proven free: its record and its log go. One that is unknown
    /// is fine.
    ///
    /// # Errors
    /// [`NodeError`]; [`NodeError::BadRequest`] while it runs or is not proven.
    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), NodeError>;

    /// A part of an instance's log, at most `bytes_max` (and [`LOG_PART_MAX`]) bytes of it.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn log(&self, instance: &InstanceId, from: u64, bytes_max: u32) -> Result<LogPart, NodeError>;

    /// Every model that is here or on its way.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError>;

    /// Has a model here, fetched and verified: begins that, or joins it when it is on its way, and says how far it is.
    /// Answers at once; ask again.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn have(&self, generation: u64, order: ModelOrder) -> Result<ModelReport, NodeError>;

    /// The whole list of models that are not to be evicted; it replaces the last one.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn keep(&self, generation: u64, kept: Vec<Keep>) -> Result<(), NodeError>;

    /// A person says that a GPU is free whatever the proof says: ended instances on it count as proven there.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn release(&self, generation: u64, gpu: u32, reason: &str) -> Result<(), NodeError>;

    /// What happened after the event of that number (0: all that is remembered). Waits up to [`EVENTS_WAIT`] when that
    /// is nothing, and then answers with nothing.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn events(&self, after: u64) -> Result<Vec<Event>, NodeError>;
}

/// A model's folder or file on this machine. Whoever holds it keeps the model from being evicted.
pub struct HeldModel {
    /// Its folder, or its file.
    pub path: PathBuf,
    /// The manifest's digest, where it has one.
    pub digest: Option<String>,
    /// Dropped when it may be evicted again.
    pub held: Box<dyn Send + Sync>,
}

impl fmt::Debug for HeldModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldModel").field("path", &self.path).field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// The model cache of a node, for [`crate::LocalNode`]: implemented by whoever owns the cache folder.
#[async_trait]
pub trait ModelHands: Send + Sync + fmt::Debug {
    /// As [`Node::models`].
    ///
    /// # Errors
    /// [`NodeError`].
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError>;

    /// As [`Node::have`].
    ///
    /// # Errors
    /// [`NodeError`].
    async fn have(&self, order: ModelOrder) -> Result<ModelReport, NodeError>;

    /// As [`Node::keep`].
    ///
    /// # Errors
    /// [`NodeError`].
    async fn keep(&self, kept: Vec<Keep>) -> Result<(), NodeError>;

    /// The folder of a model that is verified here, held for one instance until what is returned is dropped.
    ///
    /// # Errors
    /// [`NodeError::UnknownModel`] when it is not here or not verified.
    async fn hold(&self, order: ModelOrder, instance: &InstanceId) -> Result<HeldModel, NodeError>;

    /// The folder for what the engine of this instance compiles, with what an earlier load of the same model by the
    /// same engine on the same GPUs compiled in it.
    ///
    /// # Errors
    /// [`NodeError`].
    async fn compiled(&self, order: &StartOrder, model: &HeldModel) -> Result<PathBuf, NodeError>;

    /// Something changed in [`ModelHands::models`] since the last call; waits until it does.
    async fn changed(&self);
}

/// Gives the reason of a failed start or an end from a log: the first exception, not the last line.
pub type CauseOf = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;
