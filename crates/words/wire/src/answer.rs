//! Answers that are not streamed: the alias written back, usage and id read, all other bytes as they came.

use bytes::Bytes;

use crate::endpoint::Endpoint;
use crate::json::write_str;
use crate::sse::chunk::{self, What};
use crate::usage::{Report, Usage};

/// An answer, ready to send, and what was read of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The body with the alias as `model`; the engine's own bytes when nothing had to change.
    pub body: Bytes,
    /// Tokens as the engine counted them.
    pub usage: Option<Usage>,
    /// The engine's own id of the answer.
    pub engine_id: Option<Box<str>>,
    /// The engine gave up: `finish_reason: abort`, or an error inside a 2xx answer. A fault of the replica.
    pub aborted: bool,
    /// The body is not one JSON object. Transcriptions may be plain text; elsewhere it is a fault of the replica.
    pub malformed: bool,
}

/// Reads a 2xx body and writes the alias into it.
#[must_use]
pub fn rewrite(endpoint: Endpoint, body: Bytes, alias: &str) -> Answer {
    let mut report = Report::default();
    let Ok(seen) = chunk::look(endpoint.flavour(), &body, &mut report) else {
        return Answer { body, usage: None, engine_id: None, aborted: false, malformed: true };
    };
    let id = seen.id.map(|(start, end)| String::from_utf8_lossy(&body[start..end.min(start + 256)]).into());
    let mut json = Vec::with_capacity(alias.len() + 2);
    write_str(&mut json, alias);
    let places = || seen.places().filter(|place| place.what == What::Model && body[place.range()] != *json);
    let rewritten = if places().next().is_none() {
        None
    } else {
        let mut out = Vec::with_capacity(body.len() + json.len() + 16);
        let mut at = 0;
        for place in places() {
            out.extend_from_slice(&body[at..place.range().start]);
            out.extend_from_slice(&json);
            at = place.range().end;
        }
        out.extend_from_slice(&body[at..]);
        Some(out)
    };
    // What `/v1/messages/count_tokens` answers is a count, not a use.
    let usage = if endpoint == Endpoint::CountTokens { None } else { report.usage() };
    let aborted = seen.aborted || seen.error;
    Answer { usage, engine_id: id, aborted, malformed: false, body: rewritten.map_or(body, Into::into) }
}
