//! The checked site: what every other crate reads. It exists only when all documents were free of errors, so nobody
//! checks a reference, a range or a sum again.
//!
//! Produced by [`crate::check`](crate); all maps are ordered by name so that anything derived from them is stable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use tidegate_core::{AliasName, DeploymentName, Limits, ModelName, ShiftName, TeamName};

/// Everything an operator wrote, checked.
#[derive(Clone, Debug)]
pub struct Site {
    /// `metadata.name` of the Site document.
    pub name: Arc<str>,
    /// The zone of schedules and of policies that name none.
    pub time_zone: TimeZone,
    /// How requests reach engines.
    pub stage: Stage,
    /// The user port.
    pub gateway: Gateway,
    /// The admin port.
    pub admin: Admin,
    /// Ports for engines started by Tidegate.
    pub engine_ports: RangeInclusive<u16>,
    /// Keys, ledger, routes.
    pub store: Store,
    /// Rates and leases.
    pub counters: Counters,
    /// Issuers of tokens.
    pub identity: Identity,
    /// Where weights come from; `None` when only external engines or local folders are used.
    pub model_store: Option<ModelStore>,
    /// Where weights are kept.
    pub model_cache: ModelCache,
    /// Who starts engines, unless a Node overrides it.
    pub launcher: Launcher,
    /// Engines by the name that `Model.engine` uses.
    pub engines: BTreeMap<Arc<str>, Engine>,
    /// Certificates between controller and agents.
    pub agents: Option<AgentTls>,
    /// Deadlines of the relay, unless an alias overrides them.
    pub timeouts: Timeouts,
    /// GPU nodes.
    pub nodes: BTreeMap<Arc<str>, Node>,
    /// GPUs that are somebody else's for a time.
    pub reservations: BTreeMap<Arc<str>, GpuReservation>,
    /// Models by name.
    pub models: BTreeMap<ModelName, Model>,
    /// Deployments by name.
    pub deployments: BTreeMap<DeploymentName, Deployment>,
    /// Aliases by name.
    pub aliases: BTreeMap<AliasName, Alias>,
    /// Schedules by name.
    pub schedules: BTreeMap<Arc<str>, Schedule>,
    /// Teams by name.
    pub teams: BTreeMap<TeamName, Team>,
}

impl Site {
    /// The one shift of a site without a Schedule.
    pub const ALWAYS: &str = "always";

    /// Every shift that exists: those of all schedules, or [`Site::ALWAYS`] when there is no Schedule.
    #[must_use]
    pub fn shifts(&self) -> BTreeSet<ShiftName> {
        let named = self.schedules.values().flat_map(|schedule| &schedule.shifts).map(|shift| shift.name.clone());
        let mut shifts: BTreeSet<ShiftName> = named.collect();
        if shifts.is_empty() {
            shifts.insert(ShiftName::from(Self::ALWAYS));
        }
        shifts
    }

    /// The shift that is in force when nobody has set one: the first of the first Schedule (by name), or
    /// [`Site::ALWAYS`].
    #[must_use]
    pub fn default_shift(&self) -> ShiftName {
        let first = self.schedules.values().find_map(|schedule| schedule.shifts.first());
        first.map_or_else(|| ShiftName::from(Self::ALWAYS), |shift| shift.name.clone())
    }
}

/// How requests reach engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Gate to engines.
    Direct,
    /// Through an InferencePool and its picker.
    Pooled,
    /// Pooled, with an external KV tier.
    Tiered,
}

/// The user port.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where the gate listens.
    pub listen: SocketAddr,
    /// Certificate and key, when the gate speaks TLS.
    pub tls: Option<Tls>,
    /// Largest request body in bytes (default 32 MiB).
    pub max_body_bytes: u64,
    /// Serving threads; `None` means one per core.
    pub workers: Option<usize>,
    /// How long a shutdown waits for requests in flight (default 30 s).
    pub drain: Duration,
}

/// Certificate chain and private key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Certificate chain.
    pub cert: SecretRef,
    /// Private key.
    pub key: SecretRef,
}

/// Where a secret or a file's content comes from; never the content itself. Paths are resolved against the folder of
/// the document that names them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretRef {
    /// An environment variable.
    Env(Arc<str>),
    /// A file.
    File(PathBuf),
}

/// The admin port.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where admin API, metrics and health listen.
    pub listen: SocketAddr,
}

/// Where keys, ledger and routes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A SQLite file; a relative path is resolved in the state folder.
    Sqlite(PathBuf),
    /// PostgreSQL; the URL may hold `fromEnv`/`fromFile` credentials.
    Postgres(Arc<str>),
}

/// Where rates and leases are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counters {
    /// In the process.
    Memory,
    /// In Redis.
    Redis(Arc<str>),
}

/// Issuers of tokens.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// OIDC issuers.
    pub oidc: Vec<OidcIssuer>,
    /// Kubernetes clusters whose ServiceAccount tokens are accepted.
    pub kubernetes: Vec<KubernetesIssuer>,
    /// The pepper of API keys; `None` means the state folder's own.
    pub key_pepper: Option<SecretRef>,
}

/// An OIDC issuer.
#[derive(Clone, Debug)]
pub struct OidcIssuer {
    /// Name in the documents.
    pub name: Arc<str>,
    /// `iss`, compared as a whole.
    pub issuer: Arc<str>,
    /// Our audience.
    pub audience: Arc<str>,
    /// Claim that lists groups.
    pub groups_claim: Arc<str>,
    /// JWKS address, when it is not discovered.
    pub jwks_uri: Option<Arc<str>>,
}

/// A Kubernetes cluster.
#[derive(Clone, Debug)]
pub struct KubernetesIssuer {
    /// Name in the documents.
    pub name: Arc<str>,
    /// `iss`, compared as a whole.
    pub issuer: Arc<str>,
    /// Our audience.
    pub audience: Arc<str>,
    /// Whether the API server is asked about each token.
    pub token_review: bool,
}

/// The S3 store of models.
#[derive(Clone, Debug)]
pub struct ModelStore {
    /// `s3://bucket/prefix` or `file:///folder`.
    pub url: Arc<str>,
    /// Endpoint, when it is not AWS.
    pub endpoint: Option<Arc<str>>,
    /// CA bundle of the endpoint.
    pub ca_bundle: Option<SecretRef>,
    /// Access key id.
    pub access_key: Option<SecretRef>,
    /// Secret access key.
    pub secret_key: Option<SecretRef>,
}

/// The local cache of models.
#[derive(Clone, Debug)]
pub struct ModelCache {
    /// The cache's folder; the default, `model-cache`, is relative and lies in the state folder.
    pub path: PathBuf,
    /// How much of the disk stays free.
    pub keep_free: KeepFree,
}

/// How much of a disk stays free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeepFree {
    /// Percent of the disk, 0 to 100.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
}

/// Who starts engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Tidegate, as processes.
    Processes,
    /// Kubernetes.
    Kubernetes,
}

/// An engine program.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The dialect it speaks.
    pub dialect: EngineDialect,
    /// Its version, for records.
    pub version: Option<Arc<str>>,
    /// The command that starts it; the dialect's arguments follow.
    pub command: Vec<Arc<str>>,
    /// Its container image, pinned by digest.
    pub image: Option<Arc<str>>,
    /// Environment of the process.
    pub env: BTreeMap<Arc<str>, Arc<str>>,
    /// Whether `/v1/messages` is passed through or translated to chat completions; default by dialect.
    pub messages: MessagesApi,
}

/// How an engine is asked on `/v1/messages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagesApi {
    /// The engine speaks it: bytes pass through.
    Native,
    /// Translated to chat completions and back.
    Translate,
}

/// The way an engine behaves on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineDialect {
    /// vLLM.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
}

impl EngineDialect {
    /// The dialect's name in documents and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llama.cpp",
        }
    }
}

/// Certificates between controller and agents.
#[derive(Clone, Debug)]
pub struct AgentTls {
    /// CA of both sides.
    pub ca: SecretRef,
    /// Our certificate.
    pub cert: SecretRef,
    /// Our key.
    pub key: SecretRef,
}

/// Deadlines of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To a connected socket (default 2 s).
    pub connect: Duration,
    /// To the first byte of a streamed answer (default 120 s).
    pub first_byte: Duration,
    /// Between bytes of a streamed answer (default 60 s).
    pub gap: Duration,
    /// A whole unstreamed request (default 600 s).
    pub whole: Duration,
    /// A whole streamed request (default 1 h).
    pub whole_streamed: Duration,
    /// Attempts in all, fallbacks included (default 3).
    pub attempts: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_byte: Duration::from_secs(120),
            gap: Duration::from_secs(60),
            whole: Duration::from_secs(600),
            whole_streamed: Duration::from_secs(3_600),
            attempts: 3,
        }
    }
}

/// One GPU node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its agent's `host:port`.
    pub address: Option<Arc<str>>,
    /// Whether GPUs are what NVML says or what the document says.
    pub facts: GpuFacts,
    /// Number of GPUs.
    pub gpu_count: u32,
    /// GPU product.
    pub gpu_product: Option<Arc<str>>,
    /// Bytes of one GPU's memory.
    pub gpu_memory_bytes: Option<u64>,
    /// Bytes of host memory.
    pub host_memory_bytes: Option<u64>,
    /// How Pods get GPUs.
    pub gpu_sharing: GpuSharing,
    /// NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// GPU groups.
    pub groups: Vec<GpuGroup>,
    /// Overrides [`Site::launcher`].
    pub launcher: Option<Launcher>,
    /// Overrides [`Site::engine_ports`].
    pub engine_ports: Option<RangeInclusive<u16>>,
}

/// Where GPU facts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFacts {
    /// NVML decides; the document is compared.
    Nvml,
    /// The document decides: GPUs are booking units only.
    Document,
}

/// How Pods get GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSharing {
    /// The device plugin.
    Plugin,
    /// By UUID, counted in our own ledger.
    Uuid,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Indices of its GPUs.
    pub gpus: BTreeSet<u32>,
    /// Indices of its CPUs.
    pub cpus: BTreeSet<u32>,
}

/// A named set of a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGroup {
    /// Its name.
    pub name: Arc<str>,
    /// Indices of its GPUs.
    pub gpus: BTreeSet<u32>,
    /// Classes it is for; empty means all.
    pub classes: BTreeSet<Class>,
    /// Kept free for elastic replicas and for replicas of a failed GPU.
    pub keep_free: bool,
}

/// GPUs that are somebody else's for a time. Civil times in the site's zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReservation {
    /// The node.
    pub node: Arc<str>,
    /// Indices of the GPUs.
    pub gpus: BTreeSet<u32>,
    /// First instant, inclusive.
    pub from: DateTime,
    /// Last instant, exclusive.
    pub until: DateTime,
    /// Who has them.
    pub owner: Arc<str>,
}

/// Service class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// People wait for it.
    Interactive,
    /// The default.
    #[default]
    General,
    /// Nobody waits for it.
    Batch,
}

impl Class {
    /// The class as documents and metrics show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::General => "general",
            Self::Batch => "batch",
        }
    }
}

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
    /// Warm-up prompts.
    pub warmup: Option<Warmup>,
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

/// Warm-up prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warmup {
    /// JSON lines of prompts.
    pub prompts: SecretRef,
    /// An empty answer is a failure.
    pub expect_non_empty: bool,
}

/// The name users call.
#[derive(Clone, Debug)]
pub struct Alias {
    /// What it is in each shift; every shift of the site has a value.
    pub shifts: BTreeMap<ShiftName, ShiftTargets>,
    /// Service class.
    pub class: Class,
    /// Limits for everybody together: the document's; for a dimension that the document leaves out, the smallest over
    /// the profiles of its targets in all shifts. [`Alias::limits_in`] has the shift's own.
    pub limits: Limits,
    /// Limits in each shift in which the alias has targets: the document's, else the smallest over the profiles of that
    /// shift's targets.
    pub shift_limits: BTreeMap<ShiftName, Limits>,
    /// Tried in this order when the alias cannot serve and the caller holds a grant for them.
    pub fallback: Vec<AliasName>,
    /// Overrides [`Site::timeouts`].
    pub timeouts: Timeouts,
    /// Hosts from which media may be fetched by the engine.
    pub media_hosts: BTreeSet<Arc<str>>,
}

impl Alias {
    /// Limits for everybody together while `shift` is in force.
    #[must_use]
    pub fn limits_in(&self, shift: &ShiftName) -> Limits {
        self.shift_limits.get(shift).copied().unwrap_or(self.limits)
    }
}

/// What an alias is in one shift; `sameAs` is already resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShiftTargets {
    /// Served by deployments, by weight.
    Targets(Vec<Target>),
    /// Not served.
    Absent {
        /// The alias that serves instead.
        substitute: Option<AliasName>,
    },
}

/// One deployment of an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Share of the traffic, relative to the other targets; at least one target has more than 0.
    pub weight: u32,
}

/// A timetable.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Its zone.
    pub time_zone: TimeZone,
    /// Days it is for.
    pub days: BTreeSet<WeekdayOrd>,
    /// Dates it is for; they beat days.
    pub dates: BTreeSet<Date>,
    /// Dates on which another shift, or none, is in force.
    pub exceptions: BTreeMap<Date, ScheduleException>,
    /// Shifts in the order of the document.
    pub shifts: Vec<ShiftStart>,
    /// Latest starts of the steps before the hour.
    pub lead: Lead,
    /// How long a drain waits.
    pub drain_timeout: Duration,
    /// All or none, or alias by alias.
    pub atomicity: Atomicity,
    /// Longest time a present alias may go without a deployment of its own.
    pub gap_allowed: Duration,
}

/// A weekday that sorts, Monday first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeekdayOrd(pub Weekday);

impl PartialOrd for WeekdayOrd {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WeekdayOrd {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.to_monday_zero_offset().cmp(&other.0.to_monday_zero_offset())
    }
}

/// What is in force on an exceptional date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleException {
    /// This shift, all day.
    Use(ShiftName),
    /// No start on that date.
    None,
}

/// One shift of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShiftStart {
    /// Its name: one namespace over all schedules.
    pub name: ShiftName,
    /// Civil time at which it starts.
    pub start: Time,
    /// The whole set that is loaded.
    pub deployments: BTreeSet<DeploymentName>,
}

/// Latest starts of the steps before the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Prefetch.
    pub prefetch: Duration,
    /// Verify.
    pub verify: Duration,
    /// Deploy.
    pub deploy: Duration,
    /// Load.
    pub load: Duration,
    /// Warm and healthy.
    pub ready: Duration,
}

/// All or none, or alias by alias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomicity {
    /// Alias by alias.
    #[default]
    PerAlias,
    /// All or none.
    Set,
}

/// A team's policy.
#[derive(Clone, Debug)]
pub struct Team {
    /// Who belongs to it, besides keys made for it.
    pub members: Vec<Member>,
    /// Over all aliases of the team together.
    pub limits: Limits,
    /// Grants, in the order of the document.
    pub grants: Vec<Grant>,
    /// For each caller of the team.
    pub per_caller: Limits,
    /// Wins over every grant.
    pub deny: BTreeSet<AliasName>,
    /// Ceiling of priority.
    pub priority: Priority,
    /// Zone of the team's daily and monthly periods.
    pub time_zone: TimeZone,
}

/// Ceiling of priority, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Last.
    Low,
    /// The default.
    #[default]
    Normal,
    /// First.
    High,
}

/// Who belongs to a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// Everybody in an OIDC group.
    OidcGroup {
        /// The issuer, when there are several.
        issuer: Option<Arc<str>>,
        /// The group, compared as a whole.
        group: Arc<str>,
    },
    /// A Kubernetes ServiceAccount.
    ServiceAccount {
        /// The cluster's name in the documents.
        issuer: Arc<str>,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
    },
}

/// What a team may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which aliases.
    pub scope: GrantScope,
    /// For the team's calls to each alias of the scope.
    pub limits: Limits,
    /// Largest prompt in tokens.
    pub max_input_tokens: Option<u64>,
    /// Largest output in tokens.
    pub max_output_tokens: Option<u64>,
}

/// Which aliases a grant covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantScope {
    /// One alias.
    Alias(AliasName),
    /// Every alias of a class, those added later too.
    Class(Class),
    /// Every alias.
    All,
}
