//! The Site document.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{SecretRef, Timeouts};
use crate::quantity::{Bytes, Ports, Share, Span};
use crate::scalar::Zone;

/// The installation as a whole: ports, store, identity, engines. Exactly one document of this kind.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Site")]
pub(crate) struct Site {
    /// Zone of schedules and of policies that name none. Default UTC.
    pub(crate) time_zone: Option<Zone>,
    /// How requests reach engines. Default direct.
    pub(crate) stage: Option<Stage>,
    /// The user port.
    pub(crate) gateway: Option<Gateway>,
    /// The admin port: admin API, console, metrics, health. Never the user port.
    pub(crate) admin: Option<Admin>,
    /// Ports for engines started by Tidegate. Default 8001-8099.
    pub(crate) engine_ports: Option<Ports>,
    /// Where keys, ledger and routes are kept.
    pub(crate) store: Option<Store>,
    /// Where rates and requests in flight are counted.
    pub(crate) counters: Option<Counters>,
    /// Who vouches for callers, besides API keys.
    pub(crate) identity: Option<Identity>,
    /// Where model weights come from.
    pub(crate) model_store: Option<ModelStore>,
    /// Where model weights are kept on a node.
    pub(crate) model_cache: Option<ModelCache>,
    /// Who starts engines; `Node.spec.launcher` overrides it. Default processes.
    pub(crate) launcher: Option<Launcher>,
    /// Engine programs by the name that `Model.spec.engine` uses. An engine that is used and not listed has its
    /// dialect's own command.
    #[serde(default)]
    pub(crate) engines: BTreeMap<String, Engine>,
    /// Certificates between controller and agents.
    pub(crate) agents: Option<Agents>,
    /// Deadlines of requests; `Alias.spec.timeouts` overrides them.
    pub(crate) timeouts: Option<Timeouts>,
}

/// How requests reach engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    /// From the gate to engines.
    Direct,
    /// Through an InferencePool and its picker.
    Pooled,
    /// Pooled, with an external KV tier.
    Tiered,
}

/// The user port.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Gateway {
    /// Address and port. Default 127.0.0.1:8000.
    pub(crate) listen: Option<String>,
    /// Certificate and key; without them the gate speaks plain HTTP.
    pub(crate) tls: Option<Tls>,
    /// Largest request body, from 1KiB to 1GiB. Default 32MiB.
    pub(crate) max_body: Option<Bytes>,
    /// Serving threads, from 1 to 1024. Default one per core.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) workers: Option<u32>,
    /// How long a shutdown waits for requests in flight. Default 30s.
    pub(crate) drain: Option<Span>,
}

/// Certificate chain and private key, PEM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Tls {
    /// Certificate chain.
    #[schemars(with = "SecretRef")]
    pub(crate) cert: Option<SecretRef>,
    /// Private key.
    #[schemars(with = "SecretRef")]
    pub(crate) key: Option<SecretRef>,
}

/// The admin port.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Admin {
    /// Address and port. Default 127.0.0.1:8900.
    pub(crate) listen: Option<String>,
}

/// Where keys, ledger and routes are kept.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Store {
    /// `sqlite:FILE` (a relative path is resolved in the state folder) or `postgres://USER@HOST/DATABASE`, without a
    /// password. Default sqlite:tidegate.db.
    #[schemars(with = "String")]
    pub(crate) url: Option<String>,
    /// The user's password at the database. Default none.
    pub(crate) password: Option<SecretRef>,
}

/// Where rates and requests in flight are counted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Counters {
    /// `memory:`, or `redis://HOST` when there are several gateways, without a password. Default memory:.
    #[schemars(with = "String")]
    pub(crate) url: Option<String>,
    /// The password at the server. Default none.
    pub(crate) password: Option<SecretRef>,
}

/// Who vouches for callers, besides API keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Identity {
    /// OpenID Connect issuers.
    #[serde(default)]
    pub(crate) oidc: Vec<OidcIssuer>,
    /// Kubernetes clusters whose ServiceAccount tokens are accepted.
    #[serde(default)]
    pub(crate) kubernetes: Vec<KubernetesIssuer>,
    /// API keys.
    pub(crate) keys: Option<Keys>,
}

/// API keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Keys {
    /// The secret with which keys are hashed. Needed with several gateways; default the state folder's own.
    pub(crate) pepper: Option<SecretRef>,
}

/// An OpenID Connect issuer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OidcIssuer {
    /// Its name in the documents.
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
    /// The `iss` of its tokens, compared as a whole.
    #[schemars(with = "String")]
    pub(crate) issuer: Option<String>,
    /// The `aud` that tokens for Tidegate have.
    #[schemars(with = "String")]
    pub(crate) audience: Option<String>,
    /// The claim that lists groups. Default groups.
    pub(crate) groups_claim: Option<String>,
    /// Address of its keys, when they are not discovered.
    pub(crate) jwks_uri: Option<String>,
}

/// A Kubernetes cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KubernetesIssuer {
    /// Its name in the documents.
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
    /// The `iss` of its tokens, compared as a whole.
    #[schemars(with = "String")]
    pub(crate) issuer: Option<String>,
    /// The `aud` that tokens for Tidegate have.
    #[schemars(with = "String")]
    pub(crate) audience: Option<String>,
    /// Whether the cluster's API server is asked about each token. Default false.
    pub(crate) token_review: Option<bool>,
}

/// The object store of models. Without keys, file or web identity, the credentials come from the environment as the AWS
/// tools read it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ModelStore {
    /// `s3://BUCKET/PREFIX` or `file:///FOLDER`.
    #[schemars(with = "String")]
    pub(crate) url: Option<String>,
    /// Address of the S3 service, when it is not AWS: `https://HOST[:PORT]`.
    pub(crate) endpoint: Option<String>,
    /// Region that requests are signed for (default us-east-1).
    pub(crate) region: Option<String>,
    /// How a bucket appears in the address: `path` (`https://HOST/BUCKET`, the default) or `virtualHost`
    /// (`https://BUCKET.HOST`).
    pub(crate) addressing: Option<Addressing>,
    /// Whether plain http may leave this machine (default false). For closed networks: whoever is in between can read all
    /// models, and change those whose digest is not pinned.
    pub(crate) allow_http: Option<bool>,
    /// CA certificates of that service, instead of the system's.
    pub(crate) ca_bundle: Option<SecretRef>,
    /// Access key id.
    pub(crate) access_key: Option<SecretRef>,
    /// Secret access key.
    pub(crate) secret_key: Option<SecretRef>,
    /// Session token of temporary keys.
    pub(crate) session_token: Option<SecretRef>,
    /// File in the format of the AWS tools; it is read again when it changes.
    pub(crate) credentials_file: Option<String>,
    /// Profile in that file (default `default`).
    pub(crate) credentials_profile: Option<String>,
    /// A token of the platform that is traded for temporary keys.
    pub(crate) web_identity: Option<WebIdentity>,
    /// Proxy to the service: `http://HOST:PORT`. The environment's proxies are never used.
    pub(crate) proxy: Option<String>,
}

/// How a bucket appears in the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Addressing {
    /// `https://HOST/BUCKET`.
    Path,
    /// `https://BUCKET.HOST`.
    VirtualHost,
}

/// A token that the platform renews in a file, and the role that it stands for (`AssumeRoleWithWebIdentity`).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WebIdentity {
    /// The token's file.
    #[schemars(with = "String")]
    pub(crate) token_file: Option<String>,
    /// `arn:aws:iam::…:role/…`.
    #[schemars(with = "String")]
    pub(crate) role_arn: Option<String>,
    /// Name in the store's audit log (default tidegate).
    pub(crate) session_name: Option<String>,
    /// `https://HOST[:PORT]` of the token service (default the store's endpoint, or that of AWS).
    pub(crate) sts_endpoint: Option<String>,
}

/// The model cache of a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ModelCache {
    /// The cache's folder, relative to the folder of the document. Default model-cache in the state folder.
    pub(crate) path: Option<String>,
    /// How much of the disk stays free. Default 10%.
    pub(crate) keep_free: Option<Share>,
    /// How cached models are read again and compared with their manifests; what is wrong is fetched anew.
    pub(crate) scrub: Option<Scrub>,
}

/// How cached models are read again, beside other work.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Scrub {
    /// How often each model is read, from 1h to 366d; 0s for never. Default 7d.
    pub(crate) every: Option<Span>,
    /// Most bytes per second, from 1MB to 100GB. Default 64MiB.
    pub(crate) rate: Option<Bytes>,
}

/// Who starts engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Launcher {
    /// Tidegate, as processes.
    Processes,
    /// Kubernetes, as Pods.
    Kubernetes,
}

impl Launcher {
    pub(crate) fn checked(self) -> crate::site::Launcher {
        match self {
            Self::Processes => crate::site::Launcher::Processes,
            Self::Kubernetes => crate::site::Launcher::Kubernetes,
        }
    }
}

/// An engine program.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Engine {
    /// The way it behaves. Default the engine's own name, when that is a dialect.
    pub(crate) dialect: Option<Dialect>,
    /// Its version, for records.
    pub(crate) version: Option<String>,
    /// The command that starts it; arguments follow. Default the dialect's own.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// Container image, pinned by its digest (`…@sha256:…`).
    pub(crate) image: Option<String>,
    /// Environment of its processes. No secrets.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// How it is asked on `/v1/messages`. Default native.
    pub(crate) messages: Option<Messages>,
}

/// The way an engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub(crate) enum Dialect {
    /// vLLM.
    #[serde(rename = "vllm")]
    Vllm,
    /// llama.cpp's server.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
}

/// How an engine is asked on `/v1/messages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Messages {
    /// It speaks it: bytes pass through.
    Native,
    /// It is asked for a chat completion, and the answer is translated back.
    Translate,
}

/// Certificates between controller and agents, PEM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Agents {
    /// CA of both sides.
    #[schemars(with = "SecretRef")]
    pub(crate) ca: Option<SecretRef>,
    /// The controller's certificate.
    #[schemars(with = "SecretRef")]
    pub(crate) cert: Option<SecretRef>,
    /// The controller's key.
    #[schemars(with = "SecretRef")]
    pub(crate) key: Option<SecretRef>,
}
