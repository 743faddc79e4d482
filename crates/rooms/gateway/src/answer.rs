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

/// Headers that an answer may carry.
const HEADERS_OF_OURS: usize = 12;

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
    // Room for all of ours at once: a header map that grows hashes everything again.
    headers.reserve(HEADERS_OF_OURS);
    id_headers(headers, &tail.request_id, Api::of_path(tail.endpoint));
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
    id_headers(headers, request_id, api);
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

fn id_headers(headers: &mut HeaderMap, request_id: &str, api: Api) {
    put(headers, HeaderName::from_static("x-request-id"), request_id);
    if api == Api::Anthropic {
        // Where Anthropic's library looks for it.
        put(headers, HeaderName::from_static("request-id"), request_id);
    }
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
    // Narrow integers and no formatting machinery: this runs twice per answer.
    let ms = duration.as_secs().saturating_mul(1_000) + u64::from(duration.subsec_nanos().div_ceil(1_000_000));
    let (minutes, seconds, millis) = (ms / 60_000, ms / 1_000 % 60, ms % 1_000);
    let mut digits = itoa::Buffer::new();
    let mut text = String::with_capacity(16);
    let mut put = |number: u64, unit: &str| {
        text.push_str(digits.format(number));
        text.push_str(unit);
    };
    match (minutes, seconds, millis) {
        (0, 0, millis) => put(millis, "ms"),
        (0, seconds, 0) => put(seconds, "s"),
        (0, seconds, millis) => {
            put(seconds, ".");
            put(1_000 + millis, "s");
            // The digit in front kept the leading zeros of the fraction.
            if let Some(point) = text.find('.') {
                text.remove(point + 1);
            }
        }
        (minutes, seconds, _) => {
            put(minutes, "m");
            put(seconds, "s");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_openai_writes_them() {
        let text = |ms| duration_text(Duration::from_millis(ms));
        assert_eq!(text(0), "0ms");
        assert_eq!(text(12), "12ms");
        assert_eq!(text(1_000), "1s");
        assert_eq!(text(1_005), "1.005s");
        assert_eq!(text(59_950), "59.950s");
        assert_eq!(text(360_000), "6m0s");
        assert_eq!(text(61_500), "1m1s");
        assert_eq!(duration_text(Duration::from_nanos(1)), "1ms", "rounded up");
    }
}
