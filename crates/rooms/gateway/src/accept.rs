//! First room: a request has exactly one reading, and we decide it; what has two readings is refused.
//!
//! A parser alone lets some things through that intermediaries read differently (attack cases A01–A10): several
//! transfer codings, several hosts, a host that is not a host, a target whose authority differs. Those end here, before
//! a credential is looked at, with a closed connection. Nothing of the caller's framing, path or host is passed on: the
//! upstream request is built anew from parsed values.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Uri, Version, header};
use tidegate_core::{Case, Fault};

use crate::caller_body::CallerBody;

/// Longest request target in bytes.
pub(crate) const URI_BYTES_MAX: usize = 8 * 1024;
/// Header lines of one request.
pub const HEADERS_MAX: usize = 64;
/// Bytes of all header names and values together.
pub(crate) const HEADER_BYTES_MAX: usize = 32 * 1024;
/// Longest request id taken from a caller.
pub(crate) const REQUEST_ID_MAX: usize = 64;

/// A request whose head has one reading; its body has not been read.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) parts: Parts,
    pub(crate) body: CallerBody,
}

/// Checks the head.
///
/// # Errors
/// 400 for two readings, 414 and 431 for size. The caller of this function closes the connection.
pub(crate) fn accept(request: Request<CallerBody>) -> Result<Inbound, Fault> {
    let (parts, body) = request.into_parts();
    check_size(&parts)?;
    check_framing(&parts)?;
    check_host(&parts)?;
    Ok(Inbound { parts, body })
}

fn check_size(parts: &Parts) -> Result<(), Fault> {
    let uri = &parts.uri;
    let target = uri.path().len() + uri.query().map_or(0, str::len) + uri.authority().map_or(0, |a| a.as_str().len());
    if target > URI_BYTES_MAX {
        return Err(Fault::new(Case::UriTooLong));
    }
    if parts.headers.len() > HEADERS_MAX {
        return Err(Fault::new(Case::HeadersTooLarge));
    }
    let bytes: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes > HEADER_BYTES_MAX {
        return Err(Fault::new(Case::HeadersTooLarge));
    }
    Ok(())
}

fn check_framing(parts: &Parts) -> Result<(), Fault> {
    let headers = &parts.headers;
    if let Some(coding) = headers.get(header::TRANSFER_ENCODING) {
        let one = headers.get_all(header::TRANSFER_ENCODING).iter().count() == 1;
        let plain = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !one || !plain || parts.version != Version::HTTP_11 {
            return Err(framing("transfer-encoding must be exactly chunked"));
        }
        if headers.contains_key(header::CONTENT_LENGTH) {
            return Err(framing("content-length and transfer-encoding exclude each other"));
        }
    }
    if headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(framing("more than one content-length"));
    }
    Ok(())
}

fn check_host(parts: &Parts) -> Result<(), Fault> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(framing("more than one host"));
    }
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    match (host.map(HeaderValue::as_bytes), authority) {
        (None, None) => Err(framing("host is missing")),
        (Some(host), None) => host_shape(host),
        // HTTP/2 carries the host as `:authority`; HTTP/1 must name it in a header whatever the target says.
        (None, Some(authority)) if parts.version == Version::HTTP_2 => host_shape(authority.as_bytes()),
        (None, Some(_)) => Err(framing("host is missing")),
        (Some(host), Some(authority)) => {
            if !host.eq_ignore_ascii_case(authority.as_bytes()) {
                return Err(framing("host and request target differ"));
            }
            host_shape(host)
        }
    }
}

/// `host[:port]`: a name, an IPv4 address or a bracketed IPv6 address.
fn host_shape(host: &[u8]) -> Result<(), Fault> {
    let (name, port) = match host.iter().rposition(|&byte| byte == b':') {
        Some(colon) if !host.ends_with(b"]") => (&host[..colon], Some(&host[colon + 1..])),
        _ => (host, None),
    };
    let name_ok = match name {
        [b'[', inner @ .., b']'] => inner.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte)),
        name => name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte)),
    };
    let port_ok = port.is_none_or(|port| port.len() <= 5 && port.iter().all(u8::is_ascii_digit));
    if name.is_empty() || !name_ok || !port_ok {
        return Err(framing("host is not a host"));
    }
    Ok(())
}

fn framing(text: &'static str) -> Fault {
    Fault::new(Case::Framing).saying(text)
}

/// The caller's own request id, if it is one: `[A-Za-z0-9_-]{1,64}`, given once.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<Box<str>> {
    let mut values = headers.get_all("x-request-id").iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let bytes = value.as_bytes();
    let good = !bytes.is_empty()
        && bytes.len() <= REQUEST_ID_MAX
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(byte));
    good.then(|| value.to_str().ok().map(Box::from)).flatten()
}

/// The raw path when it can be matched against the route table as it is. Dot segments, encoded separators, doubled
/// slashes and parameters are not resolved: no route contains them, so such a path simply does not exist.
pub(crate) fn raw_path(uri: &Uri) -> &str {
    uri.path()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(build: impl FnOnce(http::request::Builder) -> http::request::Builder) -> Parts {
        build(Request::builder().uri("/v1/models")).body(()).unwrap().into_parts().0
    }

    fn refused(parts: &Parts) -> bool {
        check_size(parts).and_then(|()| check_framing(parts)).and_then(|()| check_host(parts)).is_err()
    }

    #[test]
    fn one_plain_host_passes() {
        for host in ["a", "a:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "a-b.example"] {
            assert!(!refused(&head(|request| request.header("host", host))), "{host}");
        }
    }

    #[test]
    fn a_host_with_two_readings_is_refused() {
        for host in ["", "a/#@b", "a b", "a@b", "a:b", "a:123456", "[::1", "a,b"] {
            assert!(refused(&head(|request| request.header("host", host))), "{host}");
        }
        assert!(refused(&head(|request| request)), "none");
        assert!(refused(&head(|request| request.header("host", "a").header("host", "a"))), "two");
        assert!(refused(&head(|request| request.uri("http://b/v1/models").header("host", "a"))), "another target");
    }

    #[test]
    fn framing_with_two_readings_is_refused() {
        let with = |name: &'static str, values: &[&'static str]| {
            head(|request| {
                values.iter().fold(request.header("host", "a"), |request, value| request.header(name, *value))
            })
        };
        assert!(!refused(&with("transfer-encoding", &["chunked"])));
        assert!(refused(&with("transfer-encoding", &["identity, chunked"])));
        assert!(refused(&with("transfer-encoding", &["chunked", "chunked"])));
        assert!(refused(&with("content-length", &["5", "5"])));
    }

    #[test]
    fn sizes_are_refused_one_past_the_bound() {
        let path = |len: usize| head(|request| request.uri(format!("/{}", "a".repeat(len - 1))).header("host", "a"));
        assert!(!refused(&path(URI_BYTES_MAX)));
        assert!(refused(&path(URI_BYTES_MAX + 1)));
        let lines = |count: usize| {
            head(|request| (1..count).fold(request.header("host", "a"), |request, _| request.header("x", "y")))
        };
        assert!(!refused(&lines(HEADERS_MAX)));
        assert!(refused(&lines(HEADERS_MAX + 1)));
        let header = |len: usize| head(|request| request.header("host", "a").header("x", "b".repeat(len - 6)));
        assert!(!refused(&header(HEADER_BYTES_MAX)));
        assert!(refused(&header(HEADER_BYTES_MAX + 1)));
    }

    #[test]
    fn only_a_well_formed_request_id_is_taken() {
        let id = |value: &'static str| request_id(&head(|request| request.header("x-request-id", value)).headers);
        assert_eq!(id("req-1_A").as_deref(), Some("req-1_A"));
        assert_eq!(id(""), None);
        assert_eq!(id("a b"), None);
        assert_eq!(id("{\"a\":1}"), None);
    }
}
