//! The whole answer: a chat completion to a message.

use bytes::Bytes;

use super::{Told, reasoning, stop, text, write_quoted, write_usage};
use crate::answer::{self, Answer};
use crate::endpoint::Endpoint;
use crate::json::text::unescape;
use crate::json::{self, Kind, Object, Value, write_str};

/// Makes the message that says what a chat completion says. Usage and id are read as for a chat completion; a body
/// that is none is `malformed`.
#[must_use]
pub fn answer_from_chat(body: &Bytes, told: &Told) -> Answer {
    let read = answer::rewrite(Endpoint::ChatCompletions, body.clone(), &told.alias);
    if read.malformed || read.aborted {
        return read;
    }
    match message(body, told, &read) {
        Some(message) => Answer { body: message.into(), ..read },
        None => Answer { malformed: true, ..read },
    }
}

fn message(body: &[u8], told: &Told, read: &Answer) -> Option<Vec<u8>> {
    let object = json::parse(body).ok()?;
    let choice = object.get("choices")?.array()?.next()?.object()?;
    let said = choice.get("message")?.object()?;
    let reason = text(&choice, "finish_reason").unwrap_or(b"stop");
    let mut out = Vec::with_capacity(body.len() + 256);
    out.extend_from_slice(b"{\"id\":");
    write_str(&mut out, read.engine_id.as_deref().unwrap_or_default());
    out.extend_from_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    write_str(&mut out, &told.alias);
    out.extend_from_slice(b",\"content\":[");
    let start = out.len();
    if let Some(thought) = reasoning(&said).filter(|_| told.thinking) {
        out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":");
        write_quoted(&mut out, thought);
        out.extend_from_slice(b",\"signature\":\"\"}");
    }
    if let Some(content) = text(&said, "content") {
        comma(&mut out, start);
        out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
        write_quoted(&mut out, content);
        out.push(b'}');
    }
    let mut called = false;
    for call in said.get("tool_calls").and_then(|calls| calls.array()).into_iter().flatten() {
        comma(&mut out, start);
        tool_use(&mut out, &call.object()?)?;
        called = true;
    }
    let (reason, sequence) = stop(&choice, reason, called);
    out.extend_from_slice(b"],\"stop_reason\":");
    write_str(&mut out, reason);
    out.extend_from_slice(b",\"stop_sequence\":");
    out.extend_from_slice(sequence.unwrap_or(b"null"));
    out.extend_from_slice(b",\"usage\":");
    write_usage(&mut out, read.usage.unwrap_or_default());
    out.push(b'}');
    Some(out)
}

fn comma(out: &mut Vec<u8>, start: usize) {
    if out.len() > start {
        out.push(b',');
    }
}

fn tool_use(out: &mut Vec<u8>, call: &Object<'_>) -> Option<()> {
    let function = call.get("function")?.object()?;
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":");
    write_quoted(out, text(call, "id").unwrap_or_default());
    out.extend_from_slice(b",\"name\":");
    write_quoted(out, text(&function, "name")?);
    out.extend_from_slice(b",\"input\":");
    out.extend_from_slice(input(function.get("arguments")).as_bytes());
    out.push(b'}');
    Some(())
}

/// A tool's input, which must be an object. Arguments that an output bound cut off are no JSON any more: they are left
/// out, and `stop_reason` says why.
fn input(arguments: Option<Value<'_>>) -> String {
    let empty = || "{}".to_owned();
    match arguments {
        Some(value) if value.kind == Kind::Object => {
            std::str::from_utf8(value.raw).map_or_else(|_| empty(), str::to_owned)
        }
        Some(value) => match value.content().and_then(unescape) {
            Some(text) if json::parse(text.as_bytes()).is_ok() => text.into_owned(),
            _ => empty(),
        },
        None => empty(),
    }
}
