//! Anthropic's messages over engines that only speak chat completions.
//!
//! [`to_chat`] makes the engine's request, [`answer_from_chat`] the caller's answer, [`ChatToMessages`] the caller's
//! stream. Text is moved between the two protocols as it stands between its quotes, so that no escape is undone and
//! made anew. What the engine's protocol cannot say is refused, not dropped, where it changes what is asked for.

mod answer;
mod request;
mod stream;

use crate::json::{Object, Value};
use crate::usage::Usage;

pub use answer::answer_from_chat;
pub use request::to_chat;
pub use stream::{ChatToMessages, TOOL_CALLS_MAX};

/// How an answer is told to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Written as `model`.
    pub alias: std::sync::Arc<str>,
    /// Whether the engine's reasoning is handed on, as `thinking` blocks: callers who did not ask for it do not expect
    /// them.
    pub thinking: bool,
}

/// Whether a request asks for `thinking`.
#[must_use]
pub fn asks_thinking(object: &Object<'_>) -> bool {
    let kind = object.get("thinking").and_then(|thinking| thinking.object()?.get("type")?.as_str());
    kind.is_some_and(|kind| kind != "disabled")
}

/// The engine's reason to stop in Anthropic's words, and the stop sequence that was met, as JSON text.
fn stop<'a>(choice: &Object<'a>, reason: &[u8], tools: bool) -> (&'static str, Option<&'a [u8]>) {
    // vLLM says in `stop_reason` which stop sequence it was; a number is a stop token of the model's own.
    let sequence = choice.get("stop_reason").filter(|value| value.content().is_some()).map(|value| value.raw);
    let word = match reason {
        b"length" => "max_tokens",
        b"content_filter" => "refusal",
        b"tool_calls" | b"function_call" => "tool_use",
        // With a named tool, engines say `stop`.
        _ if tools => "tool_use",
        _ if sequence.is_some() => "stop_sequence",
        _ => "end_turn",
    };
    (word, sequence.filter(|_| word == "stop_sequence"))
}

/// A string member that is there and not empty, as it stands between its quotes.
fn text<'a>(object: &Object<'a>, key: &str) -> Option<&'a [u8]> {
    object.get(key)?.content().filter(|content| !content.is_empty())
}

/// The engine's reasoning; engines have two names for it.
fn reasoning<'a>(object: &Object<'a>) -> Option<&'a [u8]> {
    text(object, "reasoning_content").or_else(|| text(object, "reasoning"))
}

/// Writes a usage object: cached tokens are not among `input_tokens`.
fn write_usage(out: &mut Vec<u8>, usage: Usage) {
    use crate::json::text::write_u64;
    out.extend_from_slice(br#"{"input_tokens":"#);
    write_u64(out, usage.prompt.saturating_sub(usage.cached));
    out.extend_from_slice(br#","cache_creation_input_tokens":0,"cache_read_input_tokens":"#);
    write_u64(out, usage.cached);
    out.extend_from_slice(br#","output_tokens":"#);
    write_u64(out, usage.output);
    out.push(b'}');
}

/// Writes a string from what stands between its quotes.
fn write_quoted(out: &mut Vec<u8>, content: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(content);
    out.push(b'"');
}

/// Writes a value's own text, or `fallback`.
fn write_raw(out: &mut Vec<u8>, value: Option<Value<'_>>, fallback: &[u8]) {
    out.extend_from_slice(value.map_or(fallback, |value| value.raw));
}
