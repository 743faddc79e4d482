//! Whoever starts, shows, stops and proves replicas: processes through nodes, or Kubernetes.
//!
//! Every command carries the controller's generation and is refused when a higher one was seen. Commands may be
//! repeated without harm: what an instance is, is known by its id, which is never used twice.

pub mod kubernetes;
pub mod processes;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tidegate_config::site::{
    Class, Deployment, DeploymentKind, Engine, KvTier, ModelSource, Parallel, Placement, Profile, Serve, Warmup,
};
use tidegate_core::{DeploymentName, ModelName};
use tidegate_engine::Dialect;
use tidegate_node::{InstanceId, Proof};
use tidegate_planner::hardware::Hardware;
use tidegate_planner::placement::{ReplicaKey, Seat};

/// What an engine is started from: the documents, as they are when the plan is made.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The deployment's name.
    pub name: DeploymentName,
    /// The deployment.
    pub deployment: Deployment,
    /// The engine as the documents know it; `None`: the dialect's own command and environment.
    pub engine: Option<Engine>,
    /// Where the weights come from.
    pub model: Option<ModelSource>,
    /// How the engine behaves.
    pub dialect: Dialect,
    /// Fingerprint of everything that a running engine cannot change.
    pub revision: u64,
    /// Whether a plan may put it to sleep: its engine is told so at its start.
    pub may_sleep: bool,
}

impl Blueprint {
    /// What is left of a deployment that the documents have no more: enough to end its engines.
    #[must_use]
    pub fn gone(name: DeploymentName, revision: u64) -> Self {
        let deployment = Deployment {
            model: ModelName::from(""),
            kind: DeploymentKind::default(),
            profile: Profile::default(),
            parallel: Parallel::default(),
            gpus: None,
            placement: Placement::default(),
            memory: None,
            cpu: None,
            host_memory_bytes: None,
            serve: Serve::Endpoints(Vec::new()),
            served_name: name.as_str().into(),
            context_tokens: None,
            max_output_tokens: None,
            class: Class::General,
            priority: 0,
            kv_tier: KvTier::None,
            kv_tier_settings: BTreeMap::new(),
            engine_args: Vec::new(),
            warmup: Warmup::default(),
        };
        Self { name, deployment, engine: None, model: None, dialect: Dialect::Vllm, revision, may_sleep: false }
    }
}

/// One replica to be started.
#[derive(Clone, Debug)]
pub struct Order {
    /// Its id: no other replica ever had it.
    pub instance: InstanceId,
    /// Which replica of its deployment.
    pub key: ReplicaKey,
    /// Where it is to be.
    pub seat: Seat,
    /// What it is started from.
    pub blueprint: Arc<Blueprint>,
    /// Whether nobody else serves its aliases: there is nobody to go on with while it is watched.
    pub is_first: bool,
}

/// How far a replica's model is on the nodes that need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It is on its way.
    Waiting {
        /// Bytes that are there.
        bytes: u64,
        /// Bytes in all, as far as they are known.
        total: Option<u64>,
        /// What it does, for people.
        what: Arc<str>,
        /// How long it still takes, where that is known.
        left: Option<Duration>,
        /// Whether all of it is there, and is being hashed.
        is_verifying: bool,
    },
    /// It is there and right, on all of them.
    Verified,
}

/// What is seen of one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its id.
    pub instance: InstanceId,
    /// Which replica it is.
    pub key: ReplicaKey,
    /// What it was started from.
    pub revision: u64,
    /// The generation that started it.
    pub generation: u64,
    /// Where it is.
    pub seat: Seat,
    /// What it does.
    pub state: SeenState,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// Marks of its boot, in order.
    pub boot: Vec<BootMark>,
}

/// The beginning of a phase of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootMark {
    /// The phase: `image_pull`, `load`, `compile`, …
    pub phase: Arc<str>,
    /// When it began.
    pub at: Timestamp,
}

/// What an instance does, as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenState {
    /// It is not there yet: its Pod waits for a node or its image.
    Pending {
        /// For what.
        why: Arc<str>,
    },
    /// Its processes run; whether it serves, only a request shows.
    Running {
        /// Where it listens.
        address: SocketAddr,
    },
    /// It is on its way out.
    Stopping,
    /// Nothing of it runs.
    Ended {
        /// Why, as far as that is known.
        cause: Arc<str>,
    },
}

/// Why a launcher could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchFault {
    /// A later controller is at work.
    #[error("a later controller is at work (generation {highest})")]
    Stale {
        /// Its generation.
        highest: u64,
    },
    /// A node or the API server does not answer; what is on it is unknown.
    #[error("{who} does not answer: {why}")]
    Away {
        /// Who.
        who: Arc<str>,
        /// Why.
        why: Arc<str>,
    },
    /// It will not work however often it is tried.
    #[error("{code}: {text}")]
    Refused {
        /// The fault's stable name.
        code: Arc<str>,
        /// What is wrong, and what to do about it.
        text: Arc<str>,
    },
    /// It did not work this time.
    #[error("{code}: {text}")]
    Failed {
        /// The fault's stable name.
        code: Arc<str>,
        /// What is wrong, and what to do about it.
        text: Arc<str>,
    },
}

impl LaunchFault {
    /// Whether nobody knows what became of the command.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }
}

/// Starts, shows, stops and proves replicas.
#[async_trait]
pub trait Launcher: Send + Sync + fmt::Debug {
    /// Begins to have the replica's model on all its nodes, or says how far it is. Asked again and again.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn fetch(&self, generation: u64, order: &Order) -> Result<Fetched, LaunchFault>;

    /// Starts a replica. Started twice it is started once.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn start(&self, generation: u64, order: &Order) -> Result<(), LaunchFault>;

    /// Everything of ours that is there. Of a node that does not answer nothing is said: see [`Launcher::away`].
    ///
    /// # Errors
    /// [`LaunchFault`], when nothing at all can be said.
    async fn look(&self) -> Result<Vec<Seen>, LaunchFault>;

    /// Begins to stop an instance: the polite signal, and after `patience` the other one. Zero: the other one now.
    ///
    /// # Errors
    /// [`LaunchFault`]. An instance that is not there is no error.
    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), LaunchFault>;

    /// One try to prove that nothing of an ended instance is left on its GPUs.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, LaunchFault>;

    /// Forgets an instance that has ended and was proven.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), LaunchFault>;

    /// The nodes as they are.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn hardware(&self) -> Result<Hardware, LaunchFault>;

    /// Names what coming shifts need: it is fetched when there is time, and not evicted. The whole list each time.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn keep(&self, generation: u64, kept: &[Kept]) -> Result<(), LaunchFault>;

    /// A person's word that a GPU is free.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn release(&self, generation: u64, node: &str, gpu: u32, reason: &str) -> Result<(), LaunchFault>;

    /// Lets an instance that has proven itself into whatever chooses among replicas by itself (a pool of Kubernetes), or
    /// takes it out before its drain. Launchers whose replicas only our own gates know have nothing to do.
    ///
    /// # Errors
    /// [`LaunchFault`].
    async fn expose(&self, generation: u64, instance: &InstanceId, exposure: Exposure) -> Result<(), LaunchFault> {
        let _ = (generation, instance, exposure);
        Ok(())
    }

    /// Nodes that do not answer, with the reason.
    fn away(&self) -> Vec<(Arc<str>, Arc<str>)>;
}

/// Whether requests may reach an instance by other gates than ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// It has proven itself.
    In,
    /// It is to be drained.
    Out,
}

/// A model that a node shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The node.
    pub node: Arc<str>,
    /// `family/version` in the store.
    pub path: Arc<str>,
    /// The manifest's digest, when it is pinned.
    pub digest: Option<Arc<str>>,
    /// When it is next needed; `None`: it is needed now.
    pub next_use: Option<Timestamp>,
    /// Why, for people.
    pub why: Arc<str>,
}
