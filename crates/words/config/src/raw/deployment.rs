//! The Deployment document.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::profile::Profile;
use super::{Class, SecretRef};
use crate::quantity::{Bytes, Count, Cpus, Span};

/// A model with the way it is served. `launch` when Tidegate starts it, `endpoints` when somebody else runs it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Deployment")]
pub(crate) struct Deployment {
    /// Name of the Model.
    #[schemars(with = "String")]
    pub(crate) model: Option<String>,
    /// What it does. Default llm.
    pub(crate) kind: Option<Kind>,
    /// Figures from qualification, or by hand.
    pub(crate) profile: Option<Profile>,
    /// Degrees of parallelism.
    pub(crate) parallel: Option<Parallel>,
    /// GPUs it needs. Left out for workers and for engines run by somebody else.
    pub(crate) gpus: Option<Gpus>,
    /// Where it may be placed.
    pub(crate) placement: Option<Placement>,
    /// Its GPU memory over the whole replica; each GPU has its share.
    pub(crate) memory: Option<Memory>,
    /// CPUs of one replica, for workers and llama.cpp.
    pub(crate) cpu: Option<Cpus>,
    /// Host memory of one replica, for workers and llama.cpp.
    pub(crate) host_memory: Option<Bytes>,
    /// Started by Tidegate. Default, unless there are `endpoints`.
    pub(crate) launch: Option<Launch>,
    /// Run by somebody else: one replica each.
    pub(crate) endpoints: Option<Vec<Endpoint>>,
    /// The name the engine knows the model by. Default the Model's name.
    pub(crate) served_name: Option<String>,
    /// Bounds in tokens. What is left out is taken from the profile, else asked of the engine.
    pub(crate) limits: Option<TokenLimits>,
    /// Service class. Default general.
    pub(crate) class: Option<Class>,
    /// Higher goes first, from -1000000 to 1000000. Default 0.
    #[schemars(range(min = -1000000, max = 1000000))]
    pub(crate) priority: Option<i32>,
    /// External KV tier.
    pub(crate) kv_tier: Option<KvTier>,
    /// Further arguments of the engine.
    #[serde(default)]
    pub(crate) engine_args: Vec<String>,
    /// How a replica is proven before it serves.
    pub(crate) warmup: Option<Warmup>,
}

/// What a deployment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Kind {
    /// A language model.
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

/// Degrees of parallelism; the GPUs of one replica are their product, without `ep`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Parallel {
    /// Tensor: 1, 2, 4 or 8. Default 1.
    #[schemars(extend("enum" = [1, 2, 4, 8]))]
    pub(crate) tp: Option<u32>,
    /// Expert, from 1 to 256. Default 1.
    #[schemars(range(min = 1, max = 256))]
    pub(crate) ep: Option<u32>,
    /// Pipeline, from 1 to 64. Default 1.
    #[schemars(range(min = 1, max = 64))]
    pub(crate) pp: Option<u32>,
    /// Data, from 1 to 64. Default 1.
    #[schemars(range(min = 1, max = 64))]
    pub(crate) dp: Option<u32>,
}

/// GPUs that a deployment needs: min ≤ preferred ≤ max and required ≤ preferred.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Gpus {
    /// To start its first replica at all.
    #[schemars(with = "u32")]
    pub(crate) required: Option<u32>,
    /// Kept under pressure; below `required` only when the profile passed a smaller tensor-parallel size. Default
    /// `required`.
    pub(crate) min: Option<u32>,
    /// Taken when there is room. Default `required`.
    pub(crate) preferred: Option<u32>,
    /// Bound of growth. Default none.
    pub(crate) max: Option<u32>,
}

/// Where a deployment may be placed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Placement {
    /// Only on this GPU group.
    pub(crate) group: Option<String>,
    /// `node`: alone on its node.
    pub(crate) exclusive: Option<Exclusive>,
}

/// What a deployment has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Exclusive {
    /// The whole node.
    Node,
}

/// GPU memory over the whole replica.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Memory {
    /// Weights.
    #[schemars(with = "Bytes")]
    pub(crate) weights: Option<Bytes>,
    /// KV cache.
    #[schemars(with = "Bytes")]
    pub(crate) kv_cache: Option<Bytes>,
    /// Workspace: activations, graphs. Default 0B.
    pub(crate) workspace: Option<Bytes>,
    /// Reserve, outside what the engine may take. Default 0B.
    pub(crate) reserve: Option<Bytes>,
}

/// Started by Tidegate.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Launch {
    /// Number of replicas, from 0 to 1024. Default 1.
    #[schemars(range(min = 0, max = 1024))]
    pub(crate) replicas: Option<u32>,
    /// Command instead of the engine's.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// Environment on top of the engine's. No secrets.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
}

/// An engine run by somebody else.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// `http://HOST:PORT` or `https://HOST:PORT`, without a path.
    #[schemars(with = "String")]
    pub(crate) url: Option<String>,
    /// Sent as `Authorization: Bearer`.
    pub(crate) api_key: Option<SecretRef>,
}

/// Bounds in tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TokenLimits {
    /// Context window: prompt and output together.
    pub(crate) context_tokens: Option<Count>,
    /// Largest output.
    pub(crate) max_output_tokens: Option<Count>,
}

/// External KV tier.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KvTier {
    /// Which. Default none.
    pub(crate) external: Option<External>,
    /// Settings of its connector, passed to the engine as they are: members of vLLM's `--kv-transfer-config`, in place
    /// of `kv_connector` (LMCacheConnectorV1, also for MemKV, or NixlConnector) and `kv_role` (kv_both).
    #[serde(default)]
    pub(crate) settings: BTreeMap<String, serde_json::Value>,
}

/// Which external KV tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum External {
    /// None.
    None,
    /// LMCache.
    LmCache,
    /// NIXL.
    Nixl,
    /// MemKV.
    MemKv,
}

/// How a replica is proven before it serves, after its start and after every wake.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Warmup {
    /// JSON lines of golden prompts, one object each: `prompt` or `messages` (or `input`; or `query` and `documents`),
    /// `max_tokens`, `within`, and `expect` with any of `contains`, `matches`, `sha256`, `json`, `not_empty`. Default: a
    /// question that every language model answers.
    #[schemars(with = "SecretRef")]
    pub(crate) prompts: Option<SecretRef>,
    /// Whether an empty answer is a failure. Default true.
    pub(crate) expect_non_empty: Option<bool>,
    /// Longest time to the first token of a golden prompt, once the first ones have warmed the engine up. Default 30s.
    pub(crate) ttft: Option<Span>,
    /// How long it has to stay healthy after all of that, asked again and again. Default 10s.
    pub(crate) stabilise: Option<Span>,
    /// Whether a prompt of almost `limits.contextTokens` has to be answered. Default true.
    pub(crate) long_context: Option<bool>,
}
