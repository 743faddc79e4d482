//! The engine's body: the caller's bytes with a few members set and some left out.

use super::{Facts, checks::token_fields};
use crate::endpoint::Endpoint;
use crate::json::{Edit, New, Object, write_str};

/// What is set for an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upstream<'a> {
    /// The name that the engine knows the model by.
    pub model: &'a str,
    /// Output tokens reserved for each choice; `None` sets nothing.
    pub max_tokens: Option<u64>,
    /// Whether a stream must report usage. Only chat completions and completions have to be asked.
    pub usage: bool,
    /// Whether the engine can report usage in every chunk.
    pub continuous_usage: bool,
    /// Place in the engine's own queue, in the engine's own sense; `None` where it has none.
    pub priority: Option<i64>,
    /// Keeps the prefix caches of tenants apart.
    pub cache_salt: Option<&'a str>,
}

/// Members that a caller may not set at the top level: they choose another upstream, template, adapter or queue place,
/// name objects for the engine to load, address other requests, or bound the output under another name.
pub(crate) const DENIED: &[&str] = &[
    // Attack case C06.
    "api_base",
    "base_url",
    "extra_body",
    "chat_template",
    "lora_path",
    "kv_transfer_params",
    "priority",
    "cache_salt",
    "request_id",
    "custom_logit_processor",
    // Engines, E21.
    "rid",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    // Of the same kind.
    "api_key",
    "service_tier",
    "ec_transfer_params",
    "vllm_xargs",
    "custom_params",
    "mm_payload",
    "prompt_embeds",
    "return_mm_kwargs",
    "return_hidden_states",
    "lora",
    "id_slot",
    "slot_id",
    "n_predict",
    "n_cmpl",
    "max_new_tokens",
];

/// Writes the engine's body. Only what `upstream` names is set, members of the deny list are left out, and all other
/// bytes are the caller's.
#[must_use]
pub fn rewrite(endpoint: Endpoint, object: &Object<'_>, facts: &Facts, upstream: &Upstream<'_>) -> Vec<u8> {
    let mut set = Vec::with_capacity(6);
    set.push(("model", New::Str(upstream.model)));
    if let Some(max_tokens) = upstream.max_tokens {
        token_settings(endpoint, object, max_tokens, &mut set);
    }
    if upstream.usage && facts.stream && matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions) {
        set.push(("stream_options", New::Raw(stream_options(object, upstream.continuous_usage))));
    }
    if let Some(priority) = upstream.priority {
        set.push(("priority", New::I64(priority)));
    }
    if let Some(salt) = upstream.cache_salt {
        set.push(("cache_salt", New::Str(salt)));
    }
    let mut out = Vec::with_capacity(object.text().len() + upstream.model.len() + 192);
    Edit { set, drop: DENIED }.write(object, &mut out);
    out
}

/// Sets the bound in every field that the caller used, and always in the one that every engine reads.
fn token_settings<'a>(endpoint: Endpoint, object: &Object<'_>, tokens: u64, set: &mut Vec<(&'static str, New<'a>)>) {
    for (index, &field) in token_fields(endpoint).iter().enumerate() {
        if index == 0 || object.get(field).is_some() {
            set.push((field, New::U64(tokens)));
        }
    }
}

fn stream_options(object: &Object<'_>, continuous: bool) -> Vec<u8> {
    let mut set = vec![("include_usage", New::Raw(b"true".to_vec()))];
    if continuous {
        set.push(("continuous_usage_stats", New::Raw(b"true".to_vec())));
    }
    let edit = Edit { set, drop: &[] };
    let mut out = Vec::with_capacity(64);
    match object.get("stream_options").and_then(|options| options.object()) {
        Some(options) => edit.write(&options, &mut out),
        None => {
            out.push(b'{');
            for (index, (key, value)) in edit.set.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_str(&mut out, key);
                out.push(b':');
                value.write(&mut out);
            }
            out.push(b'}');
        }
    }
    out
}
