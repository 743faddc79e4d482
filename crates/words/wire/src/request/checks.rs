//! Values that are refused at the gate: each could make an engine allocate, loop or answer without bound.

use tidegate_core::{Case, Fault};

use super::UsageAsked;
use crate::endpoint::Endpoint;
use crate::json::{Kind, Object, Value};

/// Most choices of one prompt.
pub const CHOICES_MAX: i64 = 128;
/// Most candidates for `best_of`.
pub const BEST_OF_MAX: i64 = 20;
/// Most log probabilities for each token.
pub const LOGPROBS_MAX: i64 = 20;
/// Largest `top_k`; -1 and 0 mean all.
pub const TOP_K_MAX: i64 = 65_536;
/// Largest token count that can be asked for; what an alias allows is far below and clamps.
pub const TOKENS_MAX: i64 = i32::MAX as i64;
/// Most stop texts, stop tokens or forbidden words.
pub const STOP_MAX: usize = 64;
/// Most entries of `logit_bias`.
pub const BIAS_MAX: usize = 1_024;
/// Most entries of a list of tokens to choose from.
pub const TOKEN_LIST_MAX: usize = 16_384;

/// What [`fields`] found.
pub(super) struct Fields {
    pub(super) stream: bool,
    pub(super) usage: UsageAsked,
    pub(super) max_tokens: Option<u64>,
    pub(super) choices: u64,
}

/// A field has a value that cannot be accepted.
pub(crate) fn invalid(
    param: impl Into<std::borrow::Cow<'static, str>>,
    text: impl Into<std::borrow::Cow<'static, str>>,
) -> Fault {
    Fault::new(Case::InvalidValue).param(param).saying(text)
}

/// What a known field may be. `null` is always the same as absent.
#[derive(Clone, Copy)]
enum Rule {
    Bool,
    Number,
    Whole {
        min: i64,
        max: i64,
    },
    /// A string, or a list of at most so many entries.
    TextOrList(usize),
    List(usize),
    Map(usize),
    /// A switch, or for completions a count.
    Logprobs,
    /// Not at all.
    Off,
}

/// The rule of a field, wherever it occurs: a field that one endpoint does not know does no harm there within the
/// bounds it has elsewhere.
const fn rule(key: &[u8]) -> Option<(&'static str, Rule)> {
    Some(match key {
        b"stream" => ("stream", Rule::Bool),
        b"n" => ("n", Rule::Whole { min: 1, max: CHOICES_MAX }),
        b"best_of" => ("best_of", Rule::Whole { min: 1, max: BEST_OF_MAX }),
        b"max_tokens" => ("max_tokens", Rule::Whole { min: 1, max: TOKENS_MAX }),
        b"max_completion_tokens" => ("max_completion_tokens", Rule::Whole { min: 1, max: TOKENS_MAX }),
        b"max_output_tokens" => ("max_output_tokens", Rule::Whole { min: 1, max: TOKENS_MAX }),
        b"min_tokens" => ("min_tokens", Rule::Whole { min: 0, max: TOKENS_MAX }),
        b"max_tool_calls" => ("max_tool_calls", Rule::Whole { min: 0, max: TOKENS_MAX }),
        b"logprobs" => ("logprobs", Rule::Logprobs),
        b"top_logprobs" => ("top_logprobs", Rule::Whole { min: 0, max: LOGPROBS_MAX }),
        b"prompt_logprobs" => ("prompt_logprobs", Rule::Whole { min: 0, max: LOGPROBS_MAX }),
        b"n_probs" => ("n_probs", Rule::Whole { min: 0, max: LOGPROBS_MAX }),
        b"top_k" => ("top_k", Rule::Whole { min: -1, max: TOP_K_MAX }),
        b"top_n" => ("top_n", Rule::Whole { min: 0, max: TOKENS_MAX }),
        b"temperature" => ("temperature", Rule::Number),
        b"top_p" => ("top_p", Rule::Number),
        b"min_p" => ("min_p", Rule::Number),
        b"presence_penalty" => ("presence_penalty", Rule::Number),
        b"frequency_penalty" => ("frequency_penalty", Rule::Number),
        b"repetition_penalty" => ("repetition_penalty", Rule::Number),
        b"length_penalty" => ("length_penalty", Rule::Number),
        b"stop" => ("stop", Rule::TextOrList(STOP_MAX)),
        b"stop_sequences" => ("stop_sequences", Rule::List(STOP_MAX)),
        b"stop_token_ids" => ("stop_token_ids", Rule::List(STOP_MAX)),
        b"bad_words" => ("bad_words", Rule::List(STOP_MAX)),
        b"allowed_token_ids" => ("allowed_token_ids", Rule::List(TOKEN_LIST_MAX)),
        b"logprob_token_ids" => ("logprob_token_ids", Rule::List(CHOICES_MAX as usize)),
        b"logit_bias" => ("logit_bias", Rule::Map(BIAS_MAX)),
        // An answer that nobody waits for is one that nobody is charged for.
        b"background" => ("background", Rule::Off),
        _ => return None,
    })
}

/// Checks every known field and reads those that the gate acts on.
pub(super) fn fields(endpoint: Endpoint, object: &Object<'_>) -> Result<Fields, Fault> {
    let mut stream = false;
    let mut options = None;
    let mut max_tokens = None;
    let (mut n, mut best_of) = (1, 1);
    for (key, value) in object.entries() {
        if value.is_null() {
            continue;
        }
        if let Some((name, rule)) = rule(&key) {
            check(endpoint, name, rule, &value)?;
        }
        match &*key {
            b"stream" => stream = value.as_bool().unwrap_or(false),
            b"stream_options" => options = Some(value),
            b"n" => n = value.as_u64().unwrap_or(1),
            b"best_of" => best_of = value.as_u64().unwrap_or(1),
            key if token_fields(endpoint).iter().any(|name| name.as_bytes() == key) => {
                max_tokens = value.as_u64().into_iter().chain(max_tokens).min();
            }
            _ => {}
        }
    }
    let stream = stream && endpoint.streams();
    let usage = match options {
        Some(options) if matches!(endpoint, Endpoint::ChatCompletions | Endpoint::Completions) => {
            usage_asked(&options, stream)?
        }
        _ => UsageAsked::No,
    };
    Ok(Fields { stream, usage, max_tokens, choices: n.max(best_of) })
}

/// The fields that bound the output, on one endpoint.
pub(super) const fn token_fields(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::ChatCompletions | Endpoint::Transcriptions => &["max_tokens", "max_completion_tokens"],
        Endpoint::Completions | Endpoint::Messages => &["max_tokens"],
        Endpoint::Responses => &["max_output_tokens"],
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::CountTokens | Endpoint::Models | Endpoint::Model => &[],
    }
}

fn usage_asked(options: &Value<'_>, stream: bool) -> Result<UsageAsked, Fault> {
    if !stream {
        return Err(invalid("stream_options", "stream_options needs stream: true"));
    }
    let options = options.object().ok_or_else(|| invalid("stream_options", "stream_options must be an object"))?;
    let flag = |key: &'static str| match options.get(key).filter(|value| !value.is_null()) {
        None => Ok(false),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| invalid(format!("stream_options.{key}"), format!("{key} must be true or false"))),
    };
    Ok(match (flag("include_usage")?, flag("continuous_usage_stats")?) {
        (false, _) => UsageAsked::No,
        (true, false) => UsageAsked::Final,
        (true, true) => UsageAsked::Continuous,
    })
}

fn check(endpoint: Endpoint, name: &'static str, rule: Rule, value: &Value<'_>) -> Result<(), Fault> {
    match rule {
        Rule::Bool if value.kind == Kind::Bool => Ok(()),
        Rule::Bool => Err(invalid(name, format!("{name} must be true or false"))),
        Rule::Number if value.as_f64().is_some() => Ok(()),
        Rule::Number => Err(invalid(name, format!("{name} must be a finite number"))),
        Rule::Whole { min, max } => whole(name, min, max, value),
        Rule::TextOrList(_) if value.kind == Kind::String => Ok(()),
        Rule::TextOrList(max) | Rule::List(max) => {
            let len = value.array().map(|list| list.take(max + 1).count());
            if len.is_some_and(|len| len <= max) {
                Ok(())
            } else {
                Err(invalid(name, format!("{name} must be a list of at most {max} entries")))
            }
        }
        Rule::Map(max) => {
            let len = value.object().map(|map| map.entries().count());
            if len.is_some_and(|len| len <= max) {
                Ok(())
            } else {
                Err(invalid(name, format!("{name} must be an object of at most {max} entries")))
            }
        }
        Rule::Logprobs if value.kind == Kind::Bool => Ok(()),
        Rule::Logprobs if endpoint == Endpoint::Completions => whole(name, 0, LOGPROBS_MAX, value),
        Rule::Logprobs => Err(invalid(name, format!("{name} must be true or false"))),
        Rule::Off if value.as_bool() == Some(false) => Ok(()),
        Rule::Off => Err(invalid(name, format!("{name} is not supported"))),
    }
}

fn whole(name: &'static str, min: i64, max: i64, value: &Value<'_>) -> Result<(), Fault> {
    if value.as_i64().is_some_and(|number| (min..=max).contains(&number)) {
        Ok(())
    } else {
        Err(invalid(name, format!("{name} must be a whole number from {min} to {max}")))
    }
}
