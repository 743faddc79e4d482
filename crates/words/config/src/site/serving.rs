//! Models and deployments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ModelName;

use super::{Class, EngineDialect, MessagesApi, SecretRef};
/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Where its weights come from; `None` when only external engines serve it.
    pub source: Option<ModelSource>,
    /// Name of an entry of [`Site::engines`], or of a dialect.
    pub engine: Arc<str>,
    /// The dialect of that engine.
    pub dialect: EngineDialect,
    /// How that engine is asked on `/v1/messages`.
    pub messages: MessagesApi,
    /// `fp8`, `bf16`, `q4_1`, …; metric label.
    pub precision: Arc<str>,
    /// Tokens that one `data:` image counts as (default 1,024).
    pub image_tokens: u64,
    /// Folder with `tokenizer.json`, when it is not the model's own.
    pub tokenizer: Option<PathBuf>,
}

/// Where weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A path in the model store.
    Store {
        /// `<family>/<version>`.
        path: Arc<str>,
        /// Pinned manifest digest.
        digest: Option<Arc<str>>,
    },
    /// A folder or file on this machine, already there.
    Local(PathBuf),
}

/// What a deployment does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeploymentKind {
    /// A language model.
    #[default]
    Llm,
    /// Embeddings.
    Embedding,
    /// Reranking.
    Rerank,
    /// Vision and language.
    Vlm,
    /// Document conversion.
    Document,
}

/// A model with its serving profile.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The model it serves.
    pub model: ModelName,
    /// What it does.
    pub kind: DeploymentKind,
    /// Figures from qualification, or written by hand.
    pub profile: Profile,
    /// Degrees of parallelism.
    pub parallel: Parallel,
    /// GPUs it needs; `None` for workers and external engines.
    pub gpus: Option<GpuNeeds>,
    /// Where it may be placed.
    pub placement: Placement,
    /// Its memory budget over the whole replica.
    pub memory: Option<MemoryBudget>,
    /// CPUs of a worker.
    pub cpu: Option<f64>,
    /// Bytes of host memory of a worker.
    pub host_memory_bytes: Option<u64>,
    /// Started by us, or run by somebody else.
    pub serve: Serve,
    /// The name the engine knows it by.
    pub served_name: Arc<str>,
    /// Context window in tokens; `None` until probed.
    pub context_tokens: Option<u64>,
    /// Largest output in tokens; `None` means the context is the bound.
    pub max_output_tokens: Option<u64>,
    /// Service class.
    pub class: Class,
    /// Higher goes first.
    pub priority: i32,
    /// External KV tier.
    pub kv_tier: KvTier,
    /// Settings of the connector to that tier, passed to the engine as they are.
    pub kv_tier_settings: BTreeMap<Arc<str>, serde_json::Value>,
    /// Extra engine arguments.
    pub engine_args: Vec<Arc<str>>,
    /// How a replica is proven.
    pub warmup: Warmup,
}

impl Deployment {
    /// The `tp` metric label.
    #[must_use]
    pub const fn tp(&self) -> u32 {
        self.parallel.tp
    }
}

/// Figures of one deployment, from a ModelProductionProfile or by hand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Expected peak of concurrent requests (P): alias limits are made from it.
    pub concurrency: Option<u64>,
    /// Expected peak of requests per minute.
    pub rpm: Option<u64>,
    /// Expected peak of tokens per minute.
    pub tpm: Option<u64>,
    /// Measured capacity of one replica in concurrent requests (S): the picker's saturation point.
    pub capacity: Option<u64>,
    /// Requests waiting at which a replica counts as saturated.
    pub queue_threshold: Option<u64>,
    /// Tensor-parallel sizes that passed, with their measured capacity.
    pub passed: BTreeMap<u32, u64>,
}

/// Degrees of parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Tensor: 1, 2, 4 or 8.
    pub tp: u32,
    /// Expert.
    pub ep: u32,
    /// Pipeline.
    pub pp: u32,
    /// Data.
    pub dp: u32,
}

impl Default for Parallel {
    fn default() -> Self {
        Self { tp: 1, ep: 1, pp: 1, dp: 1 }
    }
}

/// GPUs a deployment needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuNeeds {
    /// To start its first replica.
    pub required: u32,
    /// Kept under pressure.
    pub min: u32,
    /// Taken when there is room.
    pub preferred: u32,
    /// Bound of growth.
    pub max: Option<u32>,
}

/// Where a deployment may be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// A GPU group.
    pub group: Option<Arc<str>>,
    /// Alone on its node.
    pub exclusive_node: bool,
}

/// A memory budget over the whole replica, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv_cache: u64,
    /// Workspace.
    pub workspace: u64,
    /// Reserve.
    pub reserve: u64,
}

/// Started by us, or run by somebody else.
#[derive(Clone, Debug)]
pub enum Serve {
    /// Started by a launcher.
    Launch {
        /// Number of replicas.
        replicas: u32,
        /// Command instead of the engine's.
        command: Vec<Arc<str>>,
        /// Environment on top of the engine's.
        env: BTreeMap<Arc<str>, Arc<str>>,
    },
    /// Run by somebody else: one replica each.
    Endpoints(Vec<Endpoint>),
}

/// An engine run by somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://host:port` or `https://…`, without a path.
    pub url: Arc<str>,
    /// Sent as `Authorization: Bearer`.
    pub api_key: Option<SecretRef>,
}

/// External KV tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvTier {
    /// None.
    #[default]
    None,
    /// LMCache.
    LmCache,
    /// NIXL.
    Nixl,
    /// MemKV.
    MemKv,
}

/// How a replica is proven before it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warmup {
    /// JSON lines of golden prompts; `None`: a built-in one.
    pub prompts: Option<SecretRef>,
    /// An empty answer is a failure.
    pub expect_non_empty: bool,
    /// Longest time to the first token of a golden prompt, when the engine is warm. Not zero.
    pub ttft: Duration,
    /// How long it has to stay healthy.
    pub stabilise: Duration,
    /// Whether a prompt of almost the whole context has to be answered.
    pub long_context: bool,
}

impl Default for Warmup {
    fn default() -> Self {
        Self {
            prompts: None,
            expect_non_empty: true,
            ttft: Duration::from_secs(30),
            stabilise: Duration::from_secs(10),
            long_context: true,
        }
    }
}
