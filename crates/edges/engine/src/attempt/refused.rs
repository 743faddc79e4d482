//! From an engine's error answer to our fault, by (dialect, status, `type`, `param`) and, where engines leave no other
//! way, by known pieces of their texts.

use std::time::Duration;

use tidegate_core::{Case, Fault};

use super::error_body::ErrorBody;
use super::{AttemptEnd, cut};
use crate::dialect::Dialect;

/// What a caller is told to wait when an engine's queue is full: the engine says nothing itself (E25).
pub const QUEUE_FULL_RETRY_AFTER: Duration = Duration::from_secs(1);

/// vLLM says 500 where it means that it is going down or has died (E7).
const DYING: [&str; 2] = ["cannot schedule new futures after shutdown", "EngineCore encountered an issue"];

/// Judges an answer that is not 2xx.
#[must_use]
pub fn refused(dialect: Dialect, status: u16, body: &[u8]) -> AttemptEnd {
    judge(dialect, status, &ErrorBody::read(body))
}

/// Judges the data of an error event inside a stream of status 200. The status in it counts; without one it is 500.
/// Once events were sent to the caller, [`AttemptEnd::after_first_byte`] says what it is then.
#[must_use]
pub fn error_event(dialect: Dialect, data: &[u8]) -> AttemptEnd {
    let body = ErrorBody::read(data);
    let status = body.code.filter(|code| (400..600).contains(code)).unwrap_or(500);
    judge(dialect, status, &body)
}

fn judge(dialect: Dialect, status: u16, body: &ErrorBody) -> AttemptEnd {
    let with_text =
        |fault: Fault| fault.internal(cut(&format!("{} {status} {}: {}", dialect.as_str(), body.kind, body.message)));
    match status {
        501 | 405 => AttemptEnd::Final(with_text(not_offered())),
        404 => not_found(body, with_text),
        400 | 402 | 406..=428 | 430..=499 => AttemptEnd::Final(with_text(bad_request(status, body))),
        // Our credential, or a route that is switched off: not the caller's fault, and another replica may differ.
        403 if body.kind == "PermissionDeniedError" => AttemptEnd::Final(with_text(not_offered())),
        401 | 403 => AttemptEnd::against_replica(with_text(unreachable())),
        429 => full(with_text),
        503 if is_full(body) => full(with_text),
        503 if is_loading(body) => AttemptEnd::against_replica(with_text(Fault::new(Case::ModelUnavailable))),
        500 if !DYING.iter().any(|text| body.message.contains(text)) => {
            // Unknown: it may be the request's own doing. Another replica may try, but a caller who knows how to make
            // an engine stumble must not be able to open the breakers of all of them; the probe sees a real death.
            AttemptEnd::Retryable { fault: with_text(unreachable()), trips_breaker: false }
        }
        // Everything else, redirections included, is not the engine that should be there.
        _ => AttemptEnd::against_replica(with_text(unreachable())),
    }
}

const fn unreachable() -> Fault {
    Fault::new(Case::UpstreamUnreachable)
}

/// The endpoint is not offered by this model's engine.
fn not_offered() -> Fault {
    Fault::new(Case::InvalidValue).saying("this model does not offer this endpoint").param("model")
}

fn full(with_text: impl Fn(Fault) -> Fault) -> AttemptEnd {
    let fault = Fault::new(Case::Overloaded).retry_after(QUEUE_FULL_RETRY_AFTER);
    AttemptEnd::Retryable { fault: with_text(fault), trips_breaker: false }
}

/// vLLM and SGLang: "queue is full"; llama.cpp: "no slot available".
fn is_full(body: &ErrorBody) -> bool {
    let text = body.message.to_ascii_lowercase();
    text.contains("queue") || text.contains("no slot available") || text.contains("higher priority request")
        || body.kind == "Overloaded"
        // vLLM has one 503 on these routes, and its text may change.
        || (body.kind == "Service Unavailable" && !is_loading(body))
}

fn is_loading(body: &ErrorBody) -> bool {
    body.kind == "unavailable_error" || body.message.contains("Loading model")
}

fn not_found(body: &ErrorBody, with_text: impl Fn(Fault) -> Fault) -> AttemptEnd {
    let is_model = body.param.as_deref() == Some("model") || body.kind == "NotFoundError";
    if is_model && !body.is_framework {
        // The engine does not know the name that we gave it: it is not the engine that was started for this (E26).
        return AttemptEnd::against_replica(with_text(Fault::new(Case::ModelUnavailable).param("model")));
    }
    AttemptEnd::Final(with_text(not_offered()))
}

/// A replica's own 4xx about the request: its status, our code, param and text.
fn bad_request(status: u16, body: &ErrorBody) -> Fault {
    let is_context = body.param.as_deref() == Some("input_tokens")
        || body.kind == "exceed_context_size_error"
        || body.message.contains("maximum context length");
    if is_context {
        return Fault::new(Case::ContextLength).param("messages");
    }
    let param = body.public_param().map(ToOwned::to_owned);
    if body.message.contains("'type': 'missing'") || body.message.contains("Field required") {
        let fault = Fault::new(Case::MissingParameter);
        return match param {
            Some(param) => fault.saying(format!("the parameter {param} is missing")).param(param),
            None => fault,
        };
    }
    if status == 413 {
        return Fault::new(Case::TooLarge);
    }
    let mut fault = Fault::new(Case::UpstreamRejected).status(status);
    // The client libraries would repeat these.
    if matches!(status, 408 | 409) {
        fault.should_retry = Some(false);
    }
    match param {
        Some(param) => fault.saying(format!("the model server refused the value of {param}")).param(param),
        None => fault,
    }
}
