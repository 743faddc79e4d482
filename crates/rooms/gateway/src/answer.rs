//! Answers: the headers that every one of them carries, and refusals in the path's own protocol.

use std::time::Duration;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_core::{Case, Fault};
use tidegate_policy::limiter::{Rate, RateView};
use tidegate_wire::endpoint::Api;
use tidegate_wire::error;

use crate::account::Tail;
use crate::body::Body;
use crate::core::Core;

/// The protocol of a path, known or not.
pub(crate) fn api_of(path: &str) -> Api {
    Api::of_path(path)
}

/// The answer to a request that nobody stands behind: it moves a metric and leaves no ledger entry.
pub(crate) fn unaccepted(core: &Core, fault: &Fault, api: Api, request_id: &str) -> Response<Body> {
    core.shared.metrics.malformed.inc();
    core.shared.metrics.fault(fault.kind());
    if let Some(internal) = &fault.internal {
        tracing::debug!(request_id, kind = fault.kind().as_str(), internal, "refused before acceptance");
    }
    let mut response = refusal(fault, api, request_id);
    // What follows on this connection may have another reading for somebody before us.
    if fault.case.row().status != StatusCode::UNAUTHORIZED.as_u16() || fault.case == Case::Framing {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The answer to an accepted request that is refused or failed before the first byte.
pub(crate) fn refused(tail: Tail, fault: &Fault, api: Api) -> Response<Body> {
    let mut response = refusal(fault, api, &tail.request_id);
    if let Some(rates) = &tail.rates {
        rate_headers(response.headers_mut(), rates);
    }
    tail.refused(fault);
    response
}

/// An answer, or the beginning of one, leaves.
pub(crate) fn complete(mut response: Response<Body>, mut tail: Tail) -> Response<Body> {
    let status = response.status().as_u16();
    let headers = response.headers_mut();
    id_header(headers, &tail.request_id);
    if let Some(rates) = &tail.rates {
        rate_headers(headers, rates);
    }
    if let Body::Streamed(streamed) = response.body_mut() {
        tail.status = status;
        streamed.adopt(tail);
    } else {
        tail.answered(status);
    }
    response
}

fn refusal(fault: &Fault, api: Api, request_id: &str) -> Response<Body> {
    let rendered = error::render(fault, api, request_id);
    let mut response = Response::new(Body::full(rendered.body));
    *response.status_mut() = StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    id_header(headers, request_id);
    for (name, value) in error::headers(fault) {
        put(headers, HeaderName::from_static(name), &value);
    }
    match fault.case {
        Case::MethodNotAllowed => put(headers, header::ALLOW, fault.internal.as_deref().unwrap_or("POST")),
        Case::InvalidKey => put(headers, header::WWW_AUTHENTICATE, "Bearer"),
        // The rest of the body was not read, or cannot be trusted: the connection is of no further use.
        Case::TooLarge | Case::SlowBody | Case::Framing | Case::Draining => put(headers, header::CONNECTION, "close"),
        _ => {}
    }
    response
}

fn id_header(headers: &mut HeaderMap, request_id: &str) {
    put(headers, HeaderName::from_static("x-request-id"), request_id);
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Values are ours, or checked before: one that no header may hold is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// `x-ratelimit-*`: of several limits the one with the smallest remaining share.
fn rate_headers(headers: &mut HeaderMap, rates: &RateView) {
    const REQUESTS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ];
    const TOKENS: [HeaderName; 3] = [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ];
    for (names, rate) in [(REQUESTS, &rates.requests), (TOKENS, &rates.tokens)] {
        let Some(Rate { limit, remaining, reset }) = rate else { continue };
        let [limit_name, remaining_name, reset_name] = names;
        headers.insert(limit_name, HeaderValue::from(*limit));
        headers.insert(remaining_name, HeaderValue::from(*remaining));
        put(headers, reset_name, &duration_text(*reset));
    }
}

/// As OpenAI writes durations: `12ms`, `1s`, `6m0s`.
fn duration_text(duration: Duration) -> String {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    let (minutes, seconds, millis) = (ms / 60_000, ms / 1_000 % 60, ms % 1_000);
    match (minutes, seconds, millis) {
        (0, 0, millis) => format!("{millis}ms"),
        (0, seconds, 0) => format!("{seconds}s"),
        (0, seconds, millis) => format!("{seconds}.{millis:03}s"),
        (minutes, seconds, _) => format!("{minutes}m{seconds}s"),
    }
}
