//! What a connection or an answer said, before an object's name is put to it.

use std::error::Error;
use std::time::{Duration, SystemTime};

use object_store::client::{HttpError, HttpErrorKind};

use crate::fault::{CacheFault, StallPhase};

/// Longest code or text of a store that is passed on, in bytes.
const TEXT_BYTES_MAX: usize = 200;

/// One failure of the transport. It passes through object_store as the source of its errors and is found again by
/// [`fault`]: object_store's own kinds lose what is needed here (`Retry-After`, which bucket, which range).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    #[error("status {status} {code} {message}")]
    Status { status: u16, code: String, message: String, retry_after_ms: Option<u64> },
    /// 416, with the object's length where it was said.
    #[error("range not satisfiable")]
    NotSatisfiable { size: Option<u64> },
    #[error("status 200 to a range")]
    RangeIgnored,
    #[error("range {asked} asked for, {found} answered")]
    WrongRange { asked: String, found: String, size: Option<u64> },
    #[error("{found} of {expected} bytes")]
    Length { expected: u64, found: u64 },
    #[error("no connection to {endpoint}: {reason}")]
    Connect { endpoint: String, reason: String },
    #[error("no TLS with {endpoint}: {reason}")]
    Tls { endpoint: String, reason: String },
    #[error("{phase} for {after_ms} ms")]
    Stalled { phase: StallPhase, after_ms: u64 },
    #[error("connection broke: {0}")]
    Interrupted(String),
    #[error("{0}")]
    BadAnswer(String),
    /// Already named: credentials.
    #[error("{0}")]
    Named(CacheFault),
}

impl Trouble {
    pub(super) fn stalled(phase: StallPhase, after: Duration) -> Self {
        Self::Stalled { phase, after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Of an answer with an error status; `body` is S3's XML, or whatever a proxy sends.
    pub(super) fn of_status(status: u16, body: &[u8], retry_after_ms: Option<u64>) -> Self {
        let body = String::from_utf8_lossy(body);
        let code = super::xml::element(&body, "Code").unwrap_or_default();
        let message = super::xml::element(&body, "Message").unwrap_or_default();
        Self::Status { status, code: printable(&code), message: printable(&message), retry_after_ms }
    }

    /// As the error that object_store passes through. The kind keeps it from trying again: retries are ours.
    pub(super) fn into_http(self) -> HttpError {
        HttpError::new(HttpErrorKind::Unknown, self)
    }

    pub(super) fn into_store(self) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: Box::new(self) }
    }

    /// With the name of the object that was asked for.
    pub(super) fn name(self, object: &str, bucket: &str) -> CacheFault {
        let object = object.to_owned();
        match self {
            Self::Status { status, code, message, retry_after_ms } => {
                of_status(object, bucket, status, &code, &message, retry_after_ms)
            }
            Self::NotSatisfiable { size } => {
                CacheFault::BadAnswer { object, reason: format!("range beyond the end, size {size:?}") }
            }
            Self::RangeIgnored => CacheFault::RangeIgnored { object },
            Self::WrongRange { asked, found, size: _ } => CacheFault::WrongContentRange { object, asked, found },
            Self::Length { expected, found } => CacheFault::WrongLength { object, expected, found },
            Self::Connect { endpoint, reason } => CacheFault::Connect { endpoint, reason },
            Self::Tls { endpoint, reason } => CacheFault::Tls { endpoint, reason },
            Self::Stalled { phase, after_ms } => CacheFault::Stalled { object, phase, after_ms },
            Self::Interrupted(reason) => CacheFault::Interrupted { object, reason },
            Self::BadAnswer(reason) => CacheFault::BadAnswer { object, reason },
            Self::Named(fault) => fault,
        }
    }
}

/// What a status with S3's code means.
fn of_status(
    object: String,
    bucket: &str,
    status: u16,
    code: &str,
    message: &str,
    retry_after_ms: Option<u64>,
) -> CacheFault {
    let reason = match (code, message) {
        ("", "") => "without a reason".to_owned(),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code} ({message})"),
    };
    match (status, code) {
        (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => {
            CacheFault::ExpiredCredentials { reason }
        }
        (404, "NoSuchBucket") => CacheFault::NoSuchBucket { bucket: bucket.to_owned() },
        (404 | 410, _) => CacheFault::VanishedObject { object },
        (412, _) => CacheFault::ChangedObject { object },
        (429, _) => CacheFault::Throttled { object, status, reason, retry_after_ms },
        (503, code) if slows_down(code) => CacheFault::Throttled { object, status, reason, retry_after_ms },
        // a concurrent write of the same key: it passes
        (409, "ConditionalRequestConflict" | "OperationAborted") | (408 | 500..=599, _) if status != 501 => {
            CacheFault::StoreUnavailable { object, status, reason, retry_after_ms }
        }
        (401 | 403 | 409, _) => CacheFault::Refused { object, status, reason },
        (300..=399, _) | (400, "AuthorizationHeaderMalformed" | "InvalidBucketName") => CacheFault::BadSettings {
            reason: format!("the bucket is under another region or endpoint: status {status} {reason}"),
        },
        _ => CacheFault::BadAnswer { object, reason: format!("status {status} {reason}") },
    }
}

/// AWS says SlowDown, the MinIO family SlowDownRead and SlowDownWrite, others the rest.
fn slows_down(code: &str) -> bool {
    ["SlowDown", "TooManyRequests", "RequestLimitExceeded", "Throttl", "ServerBusy"]
        .iter()
        .any(|part| code.contains(part))
}

/// The failure that an error of object_store stands for.
pub(super) fn fault(error: &object_store::Error, object: &str, bucket: &str) -> CacheFault {
    if let Some(trouble) = found(error) {
        return trouble.name(object, bucket);
    }
    let object = object.to_owned();
    match error {
        object_store::Error::NotFound { .. } => CacheFault::VanishedObject { object },
        object_store::Error::Precondition { .. } => CacheFault::ChangedObject { object },
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            CacheFault::Refused { object, status: 403, reason: printable(&error.to_string()) }
        }
        other => {
            let reason = printable(&chain(other));
            // status 200 with an error inside, which the end of an upload may have
            match reason.contains("InternalError") || reason.contains("SlowDown") {
                true => CacheFault::StoreUnavailable { object, status: 200, reason, retry_after_ms: None },
                false => CacheFault::BadAnswer { object, reason },
            }
        }
    }
}

/// Our own failure in a chain of sources.
pub(super) fn found(error: &(dyn Error + 'static)) -> Option<Trouble> {
    let mut link = Some(error);
    while let Some(error) = link {
        if let Some(trouble) = error.downcast_ref::<Trouble>() {
            return Some(trouble.clone());
        }
        link = error.source();
    }
    None
}

/// An error with all its sources, outermost first.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut link = error.source();
    while let Some(error) = link {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        link = error.source();
    }
    text
}

/// A store's text, short and without control characters: it goes into logs and onto terminals.
pub(super) fn printable(text: &str) -> String {
    let mut short = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if short.len() + letter.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        short.push(letter);
    }
    short
}

/// What `Retry-After` asks for in milliseconds: seconds, or a date.
pub(super) fn retry_after_ms(value: &str, now: SystemTime) -> Option<u64> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(seconds.saturating_mul(1000));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond();
    let now = i64::try_from(now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()?;
    Some(u64::try_from(date.saturating_sub(now)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(status: u16, body: &str) -> &'static str {
        Trouble::of_status(status, body.as_bytes(), None).name("o", "b").code()
    }

    #[test]
    fn a_status_is_named_by_its_code_too() {
        let xml = |code: &str| format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>");
        assert_eq!(code(404, &xml("NoSuchBucket")), "no_such_bucket");
        assert_eq!(code(404, &xml("NoSuchKey")), "vanished_object");
        assert_eq!(code(412, &xml("PreconditionFailed")), "changed_object");
        assert_eq!(code(429, &xml("TooManyRequests")), "throttled");
        assert_eq!(code(503, &xml("SlowDownRead")), "throttled");
        assert_eq!(code(503, &xml("ServiceUnavailable")), "store_unavailable");
        assert_eq!(code(500, ""), "store_unavailable");
        assert_eq!(code(501, &xml("NotImplemented")), "bad_answer");
        assert_eq!(code(403, &xml("AccessDenied")), "refused");
        assert_eq!(code(400, &xml("ExpiredToken")), "expired_credentials");
        assert_eq!(code(403, &xml("ExpiredToken")), "expired_credentials");
        assert_eq!(code(301, &xml("PermanentRedirect")), "bad_settings");
        assert_eq!(code(409, &xml("ConditionalRequestConflict")), "store_unavailable");
        assert_eq!(code(418, "<html>login"), "bad_answer");
    }

    #[test]
    fn a_trouble_is_found_under_every_wrapping_of_object_store() {
        let inner = Trouble::of_status(412, b"", None);
        let wrapped = object_store::Error::Generic { store: "S3", source: Box::new(inner.into_http()) };
        assert_eq!(fault(&wrapped, "o", "b").code(), "changed_object");
        let bare = object_store::Error::Precondition { path: "o".into(), source: "x".into() };
        assert_eq!(fault(&bare, "o", "b").code(), "changed_object");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after_ms("60", now), Some(60_000));
        assert_eq!(retry_after_ms("Sun, 06 Nov 1994 08:49:47 GMT", now), Some(10_000));
        assert_eq!(retry_after_ms("Sun, 06 Nov 1994 08:49:27 GMT", now), Some(0));
        assert_eq!(retry_after_ms("soon", now), None);
        assert_eq!(retry_after_ms("99999999999999999999", now), None);
    }

    #[test]
    fn a_store_cannot_write_control_characters_or_novels_into_our_log() {
        assert_eq!(printable("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(printable(&"é".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
    }
}
