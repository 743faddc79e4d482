//! Answers that are not streamed: the alias written back, usage and id read, all other bytes as they came.

use std::ops::Range;

use bytes::Bytes;

use crate::endpoint::Endpoint;
use crate::form::{AnswerForms, Holes, MetAnswer};
use crate::json::write_str;
use crate::sse::chunk::{self, Seen, What};
use crate::usage::{Report, Usage};

/// Longest engine id that is kept, in bytes.
const ID_MAX: usize = 256;

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

/// Reads answers, and knows those that have the form of an earlier one.
#[derive(Debug, Default)]
pub struct Reader {
    forms: AnswerForms,
}

impl Reader {
    /// As [`rewrite`].
    #[must_use]
    pub fn rewrite(&mut self, endpoint: Endpoint, body: Bytes, alias: &str) -> Answer {
        let flavour = endpoint.flavour();
        if let Some(MetAnswer { models, id, report }) = self.forms.meet(flavour, &body) {
            return written(endpoint, body, alias, &models, id, &report);
        }
        let mut report = Report::default();
        let mut holes = self.forms.wanted().then(Holes::of_answer);
        let Ok(seen) = chunk::look_for(flavour, &body, &mut report, holes.as_mut()) else { return malformed(body) };
        if let Some(holes) = holes.filter(|_| !seen.aborted && !seen.error) {
            self.forms.keep(flavour, &body, &holes, models(&seen));
        }
        read(endpoint, body, alias, &seen, &report)
    }
}

/// Reads a 2xx body and writes the alias into it.
#[must_use]
pub fn rewrite(endpoint: Endpoint, body: Bytes, alias: &str) -> Answer {
    let mut report = Report::default();
    match chunk::look(endpoint.flavour(), &body, &mut report) {
        Ok(seen) => read(endpoint, body, alias, &seen, &report),
        Err(_) => malformed(body),
    }
}

fn malformed(body: Bytes) -> Answer {
    Answer { body, usage: None, engine_id: None, aborted: false, malformed: true }
}

/// Spans of the values of `model`.
fn models(seen: &Seen) -> impl Iterator<Item = Range<usize>> + '_ {
    seen.places().filter(|place| place.what == What::Model).map(|place| place.range())
}

fn read(endpoint: Endpoint, body: Bytes, alias: &str, seen: &Seen, report: &Report) -> Answer {
    let models: Vec<_> = models(seen).collect();
    let answer = written(endpoint, body, alias, &models, seen.id, report);
    Answer { aborted: seen.aborted || seen.error, ..answer }
}

/// The answer with the alias in place of each of `models`.
fn written(
    endpoint: Endpoint,
    body: Bytes,
    alias: &str,
    models: &[Range<usize>],
    id: Option<(usize, usize)>,
    report: &Report,
) -> Answer {
    let engine_id = id.map(|(start, end)| String::from_utf8_lossy(&body[start..end.min(start + ID_MAX)]).into());
    let mut json = Vec::with_capacity(alias.len() + 2);
    write_str(&mut json, alias);
    let rewritten = models.iter().any(|span| body[span.clone()] != *json).then(|| {
        let mut out = Vec::with_capacity(body.len() + json.len() + 16);
        let mut at = 0;
        for span in models {
            out.extend_from_slice(&body[at..span.start]);
            out.extend_from_slice(&json);
            at = span.end;
        }
        out.extend_from_slice(&body[at..]);
        out
    });
    // What `/v1/messages/count_tokens` answers is a count, not a use.
    let usage = if endpoint == Endpoint::CountTokens { None } else { report.usage() };
    Answer { usage, engine_id, aborted: false, malformed: false, body: rewritten.map_or(body, Into::into) }
}
