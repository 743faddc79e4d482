//! The only place that makes error bodies: JSON and SSE, in the shape of the path's protocol.

use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{Case, Fault};

use crate::endpoint::Api;
use crate::json::text::write_str;

/// A refusal, ready to send with `content-type: application/json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: Bytes,
}

/// Renders a fault as a response.
#[must_use]
pub fn render(fault: &Fault, api: Api, request_id: &str) -> Rendered {
    let mut out = Vec::with_capacity(256);
    write_body(&mut out, fault, api, request_id);
    Rendered { status: fault.status, body: out.into() }
}

/// Renders a fault as the last event of a stream whose status is already sent. OpenAI's library looks at the data of
/// every event; Anthropic's skips events without a name.
#[must_use]
pub fn event(fault: &Fault, api: Api, request_id: &str) -> Bytes {
    let mut out = Vec::with_capacity(256);
    if api == Api::Anthropic {
        out.extend_from_slice(b"event: error\n");
    }
    out.extend_from_slice(b"data: ");
    write_body(&mut out, fault, api, request_id);
    out.extend_from_slice(b"\n\n");
    out.into()
}

/// The headers that tell a client library whether and when to try again. `retry-after` is in whole seconds, rounded
/// up; below one second `retry-after-ms` says it exactly.
#[must_use]
pub fn headers(fault: &Fault) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    if let Some(wait) = fault.retry_after {
        // A wait of nothing is no advice: the OpenAI library ignores it and backs off by its own rule.
        let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
        headers.push(("retry-after", ms.div_ceil(1_000).to_string()));
        if wait < Duration::from_secs(1) {
            headers.push(("retry-after-ms", ms.to_string()));
        }
    }
    if let Some(retry) = fault.should_retry {
        headers.push(("x-should-retry", retry.to_string()));
    }
    headers
}

fn write_body(out: &mut Vec<u8>, fault: &Fault, api: Api, request_id: &str) {
    match api {
        Api::OpenAi => write_openai(out, fault),
        Api::Anthropic => write_anthropic(out, fault, request_id),
    }
}

fn write_openai(out: &mut Vec<u8>, fault: &Fault) {
    let row = fault.case.row();
    out.extend_from_slice(br#"{"error":{"message":"#);
    write_str(out, &fault.public);
    out.extend_from_slice(br#","type":"#);
    write_str(out, row.r#type);
    out.extend_from_slice(br#","param":"#);
    write_nullable(out, fault.param.as_deref());
    out.extend_from_slice(br#","code":"#);
    write_nullable(out, row.code);
    out.extend_from_slice(b"}}");
}

fn write_nullable(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => write_str(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

fn write_anthropic(out: &mut Vec<u8>, fault: &Fault, request_id: &str) {
    out.extend_from_slice(br#"{"type":"error","error":{"type":"#);
    write_str(out, anthropic_type(fault));
    out.extend_from_slice(br#","message":"#);
    match &fault.param {
        // Anthropic's shape has no place for the field's name but the text.
        Some(param) => write_str(out, &format!("{param}: {}", fault.public)),
        None => write_str(out, &fault.public),
    }
    out.extend_from_slice(br#"},"request_id":"#);
    write_str(out, request_id);
    out.push(b'}');
}

fn anthropic_type(fault: &Fault) -> &'static str {
    if fault.case == Case::Internal {
        return "api_error";
    }
    match fault.status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 => "overloaded_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn param_and_code_are_null_when_absent() {
        let rendered = render(&Fault::new(Case::UnknownPath), Api::OpenAi, "r1");
        assert_eq!(rendered.status, 404);
        assert_eq!(
            text(&rendered.body),
            r#"{"error":{"message":"there is no such path","type":"invalid_request_error","param":null,"code":null}}"#
        );
    }

    #[test]
    fn the_field_at_fault_and_hostile_text_are_escaped() {
        let fault = Fault::new(Case::InvalidValue).param("a\"b").saying("x\u{1}\n\u{2028}");
        let rendered = render(&fault, Api::OpenAi, "r1");
        let value: serde_json::Value = serde_json::from_slice(&rendered.body).unwrap();
        assert_eq!(value["error"]["param"], "a\"b");
        assert_eq!(value["error"]["message"], "x\u{1}\n\u{2028}");
        assert!(!rendered.body.contains(&b'\n'));
    }

    #[test]
    fn every_case_renders_in_both_shapes() {
        for &case in Case::ALL {
            let fault = Fault::new(case);
            let openai: serde_json::Value = serde_json::from_slice(&render(&fault, Api::OpenAi, "r").body).unwrap();
            assert_eq!(openai["error"]["type"], case.row().r#type, "{case:?}");
            assert_eq!(openai["error"]["code"].as_str(), case.row().code, "{case:?}");
            let body = render(&fault, Api::Anthropic, "r").body;
            let anthropic: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(anthropic["type"], "error", "{case:?}");
            assert_eq!(anthropic["request_id"], "r", "{case:?}");
            assert!(anthropic["error"]["type"].as_str().unwrap().ends_with("_error") || case == Case::TooLarge);
        }
    }

    #[test]
    fn anthropic_types_follow_the_status() {
        for (case, kind) in [
            (Case::InvalidKey, "authentication_error"),
            (Case::Forbidden, "permission_error"),
            (Case::ModelNotFound, "not_found_error"),
            (Case::TooLarge, "request_too_large"),
            (Case::RateTokens, "rate_limit_error"),
            (Case::InvalidValue, "invalid_request_error"),
            (Case::Overloaded, "overloaded_error"),
            (Case::UpstreamUnreachable, "api_error"),
            (Case::Internal, "api_error"),
        ] {
            assert_eq!(anthropic_type(&Fault::new(case)), kind, "{case:?}");
        }
    }

    #[test]
    fn an_error_in_a_stream_is_one_event_in_the_shape_of_the_path() {
        let fault = Fault::new(Case::UpstreamInterrupted);
        let openai = event(&fault, Api::OpenAi, "r");
        assert!(text(&openai).starts_with("data: {\"error\":{") && text(&openai).ends_with("}\n\n"));
        let anthropic = event(&fault, Api::Anthropic, "r");
        assert!(text(&anthropic).starts_with("event: error\ndata: {\"type\":\"error\","));
    }

    #[test]
    fn waits_are_rounded_up_and_below_a_second_given_in_milliseconds_too() {
        let fault = Fault::new(Case::RateRequests).retry_after(Duration::from_micros(1_200_001));
        assert_eq!(headers(&fault), [("retry-after", "2".into())]);
        let fault = Fault::new(Case::RateRequests).retry_after(Duration::from_micros(12_100));
        assert_eq!(headers(&fault), [("retry-after", "1".into()), ("retry-after-ms", "13".into())]);
        assert_eq!(headers(&Fault::new(Case::Quota)), [("x-should-retry", "false".into())]);
        assert_eq!(headers(&Fault::new(Case::InvalidKey)), []);
    }
}
