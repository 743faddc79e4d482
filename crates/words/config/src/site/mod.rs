//! The checked site: what every other crate reads. It exists only when all documents were free of errors, so nobody
//! checks a reference, a range or a sum again.
//!
//! Produced by [`crate::check`](crate); all maps are ordered by name so that anything derived from them is stable.

mod alias;
mod hardware;
mod policy;
mod schedule;
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate_core::{AliasName, DeploymentName, ModelName, ShiftName, TeamName};

pub use alias::*;
pub use hardware::*;
pub use policy::*;
pub use schedule::*;
pub use serving::*;

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
    /// PostgreSQL.
    Postgres(Server),
}

/// Where rates and leases are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counters {
    /// In the process.
    Memory,
    /// In Redis.
    Redis(Server),
}

/// A server that keeps something for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its URL: scheme, perhaps a user, host, perhaps a port and a database; never a password.
    pub url: Arc<str>,
    /// Where the password comes from.
    pub password: Option<SecretRef>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStore {
    /// `s3://bucket/prefix` or `file:///folder`.
    pub url: Arc<str>,
    /// Endpoint, when it is not AWS: scheme, host and port.
    pub endpoint: Option<Arc<str>>,
    /// Region that is signed for; `None` is the store's default.
    pub region: Option<Arc<str>>,
    /// How a bucket appears in the address.
    pub addressing: StoreAddressing,
    /// Whether plain http may leave this machine.
    pub allow_http: bool,
    /// CA bundle of the endpoint.
    pub ca_bundle: Option<SecretRef>,
    /// Where the keys come from.
    pub credentials: StoreCredentials,
    /// `http://host:port`.
    pub proxy: Option<Arc<str>>,
}

/// How a bucket appears in the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreAddressing {
    /// `https://host/bucket`.
    #[default]
    Path,
    /// `https://bucket.host`.
    VirtualHost,
}

/// Where the keys to the model store come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreCredentials {
    /// The environment, as the AWS tools read it.
    #[default]
    Environment,
    /// A key pair.
    Keys {
        /// Access key id.
        access_key: SecretRef,
        /// Secret access key.
        secret_key: SecretRef,
        /// Token of temporary keys.
        session_token: Option<SecretRef>,
    },
    /// A file in the format of the AWS tools.
    File {
        /// The file.
        path: PathBuf,
        /// The profile in it.
        profile: Arc<str>,
    },
    /// A token that the platform renews, traded for temporary keys.
    WebIdentity {
        /// The token's file.
        token_file: PathBuf,
        /// The role that it stands for.
        role_arn: Arc<str>,
        /// Name in the store's audit log.
        session_name: Arc<str>,
        /// Token service; `None` is the store's endpoint, or that of AWS.
        sts_endpoint: Option<Arc<str>>,
    },
}

/// The local cache of models.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCache {
    /// The cache's folder; the default, `model-cache`, is relative and lies in the state folder.
    pub path: PathBuf,
    /// How much of the disk stays free.
    pub keep_free: KeepFree,
    /// How what is cached is read again.
    pub scrub: Scrub,
}

/// How cached models are read again and compared with their manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// How often each model is read (default 7 days); `None` means never.
    pub every: Option<Duration>,
    /// Most bytes per second (default 64 MiB).
    pub rate: u64,
}

impl Default for Scrub {
    fn default() -> Self {
        Self { every: Some(Duration::from_hours(7 * 24)), rate: 64 << 20 }
    }
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
