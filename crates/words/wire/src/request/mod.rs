//! Request bodies: what the gate has to know of them, what it refuses in them, and how they are rewritten for an
//! engine.
//!
//! A body is read once, by [`crate::json`]. [`model`] comes first, because a model that the caller may not use is
//! answered before anything is said about the other fields; [`read`] checks those and adds up what the request may
//! cost; [`rewrite`] makes the engine's body of the same bytes.

mod checks;
mod media;
mod prompt;
mod rewrite;

use std::borrow::Cow;

use tidegate_core::{Case, Fault};

use crate::json::Object;

pub use crate::endpoint::{Api, Endpoint};

pub use checks::{BEST_OF_MAX, BIAS_MAX, CHOICES_MAX, LOGPROBS_MAX, STOP_MAX, TOKEN_LIST_MAX, TOKENS_MAX, TOP_K_MAX};
pub use media::DATA_URL_MAX;
pub use prompt::{DOCUMENTS_MAX, INPUTS_MAX, TEMPLATE_BASE, TEMPLATE_PER_MESSAGE, prompt_text};
pub use rewrite::{Upstream, rewrite};

pub(crate) use checks::invalid;
pub(crate) use rewrite::DENIED;

/// What the caller asked to hear about usage in a stream of chat completions or completions. The other protocols
/// always report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UsageAsked {
    /// Nothing.
    #[default]
    No,
    /// `include_usage`: one extra chunk at the end.
    Final,
    /// `continuous_usage_stats` too: in every chunk.
    Continuous,
}

/// What the gate knows of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The model as written by the caller.
    pub model: Box<str>,
    /// Whether a stream is asked for.
    pub stream: bool,
    /// What the caller wants to hear about usage.
    pub usage: UsageAsked,
    /// Output tokens asked for, for each choice; the smallest when several fields say so.
    pub max_tokens: Option<u64>,
    /// Answers that are generated: `n` or `best_of`, times the prompts of a batch.
    pub choices: u64,
    /// Upper bound of the prompt's tokens, media aside: bytes of its text, token ids, and the template's overhead.
    pub prompt_bytes: u64,
    /// The template's share of `prompt_bytes`, to be added to an exact count of [`prompt_text`].
    pub template_tokens: u64,
    /// Token ids given instead of text, contained in `prompt_bytes`: exact as they are.
    pub token_ids: u64,
    /// Images and other media, inline or by URL.
    pub images: u64,
    /// `host`, or `host:port` where the port is not the scheme's own, of every media URL that is no `data:` URL;
    /// lower case. Each must be listed in the alias's `mediaHosts`.
    pub media_hosts: Vec<Box<str>>,
}

impl Facts {
    /// The facts of a body that is not JSON (multipart) and of which only the model is known.
    #[must_use]
    pub fn of_model(model: &str) -> Self {
        Self {
            model: model.into(),
            stream: false,
            usage: UsageAsked::No,
            max_tokens: None,
            choices: 1,
            prompt_bytes: 0,
            template_tokens: 0,
            token_ids: 0,
            images: 0,
            media_hosts: Vec::new(),
        }
    }
}

/// The model that a body asks for, or the header `x-model` where the body has none.
///
/// # Errors
/// `model` is missing in both, is no string, or differs from the header.
pub fn model<'a>(object: &Object<'a>, header: Option<&'a str>) -> Result<Cow<'a, str>, Fault> {
    let body = match object.get("model").filter(|value| !value.is_null()) {
        None => None,
        Some(value) => Some(value.as_str().ok_or_else(|| invalid("model", "model must be a string"))?),
    };
    match (body, header) {
        (None, None) => Err(missing("model")),
        (None, Some(header)) => Ok(Cow::Borrowed(header)),
        (Some(body), Some(header)) if body != header => Err(conflict()),
        (Some(body), _) => Ok(body),
    }
}

/// The fault of a model that body and `x-model` name differently.
#[must_use]
pub fn conflict() -> Fault {
    invalid("model", "the body and the header x-model name different models")
}

/// The fault of a field that must be there.
pub(crate) fn missing(param: &'static str) -> Fault {
    Fault::new(Case::MissingParameter).param(param).saying(format!("{param} is missing"))
}

/// Reads what the gate has to know of a body, and refuses values that could hurt an engine.
///
/// # Errors
/// `model` is missing or no string; a required field is missing; a field that is known has a value out of bounds.
pub fn read(endpoint: Endpoint, object: &Object<'_>) -> Result<Facts, Fault> {
    read_as(endpoint, object, None)
}

/// As [`read`], with the header `x-model`.
///
/// # Errors
/// As [`read`]; also when body and header name different models.
pub fn read_as(endpoint: Endpoint, object: &Object<'_>, header: Option<&str>) -> Result<Facts, Fault> {
    let model = model(object, header)?.into();
    let fields = checks::fields(endpoint, object)?;
    let prompt = prompt::measure(endpoint, object)?;
    Ok(Facts {
        model,
        stream: fields.stream,
        usage: fields.usage,
        max_tokens: fields.max_tokens,
        choices: fields.choices.saturating_mul(prompt.prompts),
        prompt_bytes: prompt.text_bytes + prompt.token_ids + prompt.template_tokens,
        template_tokens: prompt.template_tokens,
        token_ids: prompt.token_ids,
        images: prompt.images,
        media_hosts: prompt.media_hosts,
    })
}
