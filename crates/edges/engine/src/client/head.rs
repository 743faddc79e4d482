//! The head of a request, written; the head of a response, read and judged.

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::time::Duration;

use http::HeaderValue;

use super::error::ClientError;
use super::framing::Framing;

/// Bytes of one response head, status line included.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header lines of one response head.
pub const HEADERS_MAX: usize = 128;
/// Interim (1xx) responses before the final one.
pub const INTERIM_MAX: usize = 8;

/// Characters of the id that goes to an engine with each attempt (E22).
pub const REQUEST_ID_MAX: usize = 64;

/// The methods that engines are asked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Read the head only.
    Head,
    /// Everything that runs a model.
    Post,
}

impl Method {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
        }
    }
}

/// What a request head says beyond what the pool knows (host, credential) and what the body says (its length).
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The method.
    pub method: Method,
    /// Path and query, beginning with `/`.
    pub path: &'a str,
    /// The body's type.
    pub content_type: Option<&'a str>,
    /// Sent as `x-request-id`: our own id of this attempt, at most [`REQUEST_ID_MAX`] characters.
    pub request_id: Option<&'a str>,
    /// Further header lines, names in lower case.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> Head<'a> {
    /// A request without a body.
    #[must_use]
    pub const fn get(path: &'a str) -> Self {
        Self { method: Method::Get, path, content_type: None, request_id: None, headers: &[] }
    }

    /// A JSON request.
    #[must_use]
    pub const fn post_json(path: &'a str) -> Self {
        Self { method: Method::Post, path, content_type: Some("application/json"), request_id: None, headers: &[] }
    }

    /// The same with our id of the attempt.
    #[must_use]
    pub const fn with_request_id(mut self, id: &'a str) -> Self {
        self.request_id = Some(id);
        self
    }
}

/// How the length of a request body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// No body and no header about it.
    None,
    /// `Content-Length`.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// Writes a whole request head into `out`. `fixed` are the pool's own lines (host, credential), each with its CRLF.
pub(super) fn write_request(
    out: &mut Vec<u8>,
    head: &Head<'_>,
    fixed: &[u8],
    length: BodyLength,
) -> Result<(), ClientError> {
    if !head.path.starts_with('/') || !head.path.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(ClientError::RequestHead("path"));
    }
    if head.request_id.is_some_and(|id| id.len() > REQUEST_ID_MAX) {
        return Err(ClientError::RequestHead("request id"));
    }
    out.clear();
    for part in [head.method.as_str(), " ", head.path, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(fixed);
    for (name, value) in [("content-type", head.content_type), ("x-request-id", head.request_id)] {
        if let Some(value) = value {
            write_line(out, name, value)?;
        }
    }
    for (name, value) in head.headers {
        write_line(out, name, value)?;
    }
    match length {
        BodyLength::None => {}
        // Writing to a Vec does not fail.
        BodyLength::Known(bytes) => drop(write!(out, "content-length: {bytes}\r\n")),
        BodyLength::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// One header line; a name or value that could end it early is refused, wherever it came from.
pub(super) fn write_line(out: &mut Vec<u8>, name: &str, value: &str) -> Result<(), ClientError> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(ClientError::RequestHead("header name"));
    }
    if !value.bytes().all(|b| b == b'\t' || (b >= b' ' && b != 0x7f)) {
        return Err(ClientError::RequestHead("header value"));
    }
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    Ok(())
}

/// What the gateway needs of a response head. Nothing else of it ever reaches a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 200 to 599; interim responses are skipped.
    pub status: u16,
    /// `Content-Type` as sent; the last one, if it was sent twice.
    pub content_type: Option<HeaderValue>,
    /// `Content-Length`, if the body has one.
    pub content_length: Option<u64>,
    /// `Retry-After` in seconds, if it was a number.
    pub retry_after: Option<Duration>,
    pub(super) framing: Framing,
    pub(super) keep_alive: KeepAlive,
}

impl ResponseHead {
    /// Whether the body is a stream of server-sent events.
    #[must_use]
    pub fn is_event_stream(&self) -> bool {
        self.has_type(b"text/event-stream")
    }

    /// Whether the body is JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.has_type(b"application/json")
    }

    fn has_type(&self, want: &[u8]) -> bool {
        let Some(value) = &self.content_type else { return false };
        let essence = value.as_bytes().split(|&b| b == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(want)
    }
}

/// Whether the connection may be used again, and for how long the engine keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// No.
    Close,
    /// Yes, for as long as our own setting says.
    Yes,
    /// Yes, and the engine closes it after so long.
    For(Duration),
}

/// What a buffer that begins with a response head holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Not a whole head yet.
    Partial,
    /// An interim response of so many bytes.
    Interim(usize),
    /// The final head and its length in bytes. Boxed nowhere: it is moved once.
    Final(ResponseHead, usize),
}

/// Reads one response head from the start of `input`. `seen` bytes were looked at before without finding its end, so
/// that a head that comes byte by byte costs linear time.
pub(super) fn parse(input: &[u8], seen: usize, method: Method) -> Result<Parsed, ClientError> {
    let Some(end) = find_end(input, seen.saturating_sub(3)) else {
        if input.len() > HEAD_BYTES_MAX {
            return Err(ClientError::TooLarge("response head"));
        }
        return Ok(Parsed::Partial);
    };
    if end > HEAD_BYTES_MAX {
        return Err(ClientError::TooLarge("response head"));
    }
    let head = &input[..end];
    refuse_bare_line_ends(head)?;
    let mut lines = [MaybeUninit::uninit(); HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, head, &mut lines)
        .map_err(|error| match error {
            httparse::Error::TooManyHeaders => ClientError::TooLarge("response headers"),
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token
            | httparse::Error::Version => ClientError::Malformed("response head"),
        })?;
    if parsed != httparse::Status::Complete(end) {
        return Err(ClientError::Malformed("response head"));
    }
    let status = response.code.unwrap_or_default();
    match status {
        101 => Err(ClientError::Malformed("protocol switch that nobody asked for")),
        100..=199 => Ok(Parsed::Interim(end)),
        200..=599 => {
            let head = judge(status, response.version == Some(1), response.headers, method)?;
            Ok(Parsed::Final(head, end))
        }
        _ => Err(ClientError::Malformed("status code")),
    }
}

/// Position after the first empty line at or after `from`.
fn find_end(input: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(step) = memchr::memchr(b'\n', input.get(at..)?) {
        at += step + 1;
        if input[..at].ends_with(b"\r\n\r\n") {
            return Some(at);
        }
    }
    None
}

/// httparse takes a bare LF for a line end; a relay that reads it otherwise than its peer is how responses are split.
fn refuse_bare_line_ends(head: &[u8]) -> Result<(), ClientError> {
    let bare = |at: usize| at == 0 || head[at - 1] != b'\r';
    if memchr::memchr_iter(b'\n', head).any(bare) {
        return Err(ClientError::Malformed("bare line feed in the response head"));
    }
    if head.starts_with(b"\r") {
        return Err(ClientError::Malformed("empty line before the status line"));
    }
    Ok(())
}

/// Framing and reuse by RFC 9112 §6.3 and §9.3, stricter where leniency would allow two readings.
fn judge(
    status: u16,
    is_1_1: bool,
    lines: &[httparse::Header<'_>],
    method: Method,
) -> Result<ResponseHead, ClientError> {
    let mut head = ResponseHead {
        status,
        content_type: None,
        content_length: None,
        retry_after: None,
        framing: Framing::UntilClose,
        keep_alive: if is_1_1 { KeepAlive::Yes } else { KeepAlive::Close },
    };
    let mut is_chunked = false;
    let mut timeout = None;
    for line in lines {
        let is = |name: &str| line.name.eq_ignore_ascii_case(name);
        // Most lines are told apart by length alone.
        match line.name.len() {
            10 if is("connection") && has_token(line.value, b"close") => head.keep_alive = KeepAlive::Close,
            10 if is("keep-alive") => timeout = keep_alive_timeout(line.value),
            11 if is("retry-after") => head.retry_after = number(line.value).map(Duration::from_secs),
            12 if is("content-type") => head.content_type = content_type(line.value),
            14 if is("content-length") => {
                let length = number(line.value).ok_or(ClientError::Malformed("content-length"))?;
                if head.content_length.replace(length).is_some() {
                    return Err(ClientError::Malformed("two content-length lines"));
                }
            }
            16 if is("content-encoding") && !line.value.eq_ignore_ascii_case(b"identity") => {
                return Err(ClientError::Malformed("content-encoding that nobody asked for"));
            }
            17 if is("transfer-encoding") => {
                if is_chunked || !is_1_1 || !line.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(ClientError::Malformed("transfer-encoding other than chunked"));
                }
                is_chunked = true;
            }
            _ => {}
        }
    }
    if is_chunked && head.content_length.is_some() {
        return Err(ClientError::Malformed("both content-length and transfer-encoding"));
    }
    head.framing = match (method, status, head.content_length) {
        (Method::Head, ..) | (_, 204 | 304, _) => Framing::Length(0),
        _ if is_chunked => Framing::CHUNKED,
        (.., Some(length)) => Framing::Length(length),
        (.., None) => Framing::UntilClose,
    };
    if head.framing == Framing::UntilClose {
        head.keep_alive = KeepAlive::Close;
    }
    if let (KeepAlive::Yes, Some(timeout)) = (head.keep_alive, timeout) {
        head.keep_alive = KeepAlive::For(timeout);
    }
    Ok(head)
}

/// Digits only: no sign, no space, no list, no overflow.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    value.iter().try_fold(0_u64, |sum, &b| b.is_ascii_digit().then(|| sum * 10 + u64::from(b - b'0')))
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

/// `timeout=5` of `Keep-Alive: timeout=5, max=100`.
fn keep_alive_timeout(value: &[u8]) -> Option<Duration> {
    let part = value.split(|&b| b == b',').find_map(|part| part.trim_ascii().strip_prefix(b"timeout="))?;
    number(part).map(Duration::from_secs)
}

/// The four spellings that engines send cost no allocation.
fn content_type(value: &[u8]) -> Option<HeaderValue> {
    const KNOWN: [&str; 4] = [
        "application/json",
        "text/event-stream; charset=utf-8",
        "text/event-stream",
        "application/json; charset=utf-8",
    ];
    KNOWN
        .iter()
        .find(|known| known.as_bytes() == value)
        .map(|known| HeaderValue::from_static(known))
        .or_else(|| HeaderValue::from_bytes(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head_of(text: &str) -> Result<ResponseHead, ClientError> {
        match parse(text.as_bytes(), 0, Method::Post)? {
            Parsed::Final(head, end) => {
                assert_eq!(end, text.len());
                Ok(head)
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_malformed(text: &str) -> bool {
        matches!(parse(text.as_bytes(), 0, Method::Post), Err(ClientError::Malformed(_)))
    }

    #[test]
    fn a_head_gives_what_the_gateway_needs_and_nothing_else() {
        let head = head_of(
            "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n\
             Content-Length: 15\r\nKeep-Alive: timeout=5, max=100\r\n\r\n",
        )
        .unwrap();
        assert_eq!(head.status, 200);
        assert!(head.is_json() && !head.is_event_stream());
        assert_eq!(head.framing, Framing::Length(15));
        assert_eq!(head.keep_alive, KeepAlive::For(Duration::from_secs(5)));
        let head =
            head_of("HTTP/1.1 503 x\r\nretry-after: 7\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n").unwrap();
        assert_eq!(head.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(head.keep_alive, KeepAlive::Close);
    }

    #[test]
    fn framing_with_two_readings_is_refused() {
        let ok = "HTTP/1.1 200 OK\r\n";
        for rest in [
            "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "content-length: 1\r\ncontent-length: 1\r\n\r\n",
            "content-length: 1, 1\r\n\r\n",
            "content-length: +1\r\n\r\n",
            "content-length: -1\r\n\r\n",
            "content-length: 0x1\r\n\r\n",
            "content-length: \r\n\r\n",
            "content-length: 18446744073709551616\r\n\r\n",
            "transfer-encoding: gzip, chunked\r\n\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "transfer-encoding: identity\r\n\r\n",
            "content-encoding: gzip\r\n\r\n",
            "a: b\r\n c\r\n\r\n",
            "a : b\r\n\r\n",
            "a: b\rc\r\n\r\n",
            "a: b\nc: d\r\n\r\n",
            "a: \0\r\n\r\n",
            "no colon\r\n\r\n",
        ] {
            assert!(is_malformed(&format!("{ok}{rest}")), "{rest:?}");
        }
        for text in [
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 99 OK\r\n\r\n",
            "HTTP/1.1 600 OK\r\n\r\n",
            "HTTP/1.1 101 Switching\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            assert!(is_malformed(text), "{text:?}");
        }
    }

    #[test]
    fn some_answers_have_no_body_whatever_their_head_says() {
        let text = "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(head_of(text).unwrap().framing, Framing::Length(0));
        let text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let Ok(Parsed::Final(head, _)) = parse(text, 0, Method::Head) else { panic!("not read") };
        assert_eq!(head.framing, Framing::Length(0));
    }

    #[test]
    fn head_bytes_and_header_lines_are_bounded() {
        let sized = |n: usize| {
            let open = "HTTP/1.1 200 OK\r\na: ";
            format!("{open}{}\r\n\r\n", "x".repeat(n - open.len() - 4))
        };
        assert!(head_of(&sized(HEAD_BYTES_MAX)).is_ok());
        assert!(matches!(head_of(&sized(HEAD_BYTES_MAX + 1)), Err(ClientError::TooLarge("response head"))));
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        assert!(matches!(parse(&endless, 0, Method::Get), Err(ClientError::TooLarge(_))));
        let lines = |n: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(n));
        assert!(head_of(&lines(HEADERS_MAX)).is_ok());
        assert!(matches!(head_of(&lines(HEADERS_MAX + 1)), Err(ClientError::TooLarge("response headers"))));
    }

    #[test]
    fn a_request_head_cannot_be_split_by_what_is_put_into_it() {
        let mut out = Vec::new();
        let mut head = Head::post_json("/v1/x").with_request_id("a\r\nb: c");
        let wrong = |head: &Head<'_>, out: &mut Vec<u8>| write_request(out, head, b"", BodyLength::None).is_err();
        assert!(wrong(&head, &mut out));
        let long = "i".repeat(REQUEST_ID_MAX + 1);
        head = Head::post_json("/v1/x").with_request_id(&long);
        assert!(wrong(&head, &mut out));
        head = Head::post_json("/v1/x").with_request_id(&long[1..]);
        assert!(!wrong(&head, &mut out));
        head = Head::get("/v1/x y");
        assert!(wrong(&head, &mut out));
        head = Head::get("v1");
        assert!(wrong(&head, &mut out));
        head = Head { headers: &[("a:b", "c")], ..Head::get("/") };
        assert!(wrong(&head, &mut out));
        head = Head { headers: &[("traceparent", "00-1")], ..Head::post_json("/v1/x").with_request_id("r1") };
        write_request(&mut out, &head, b"host: h\r\n", BodyLength::Known(2)).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "POST /v1/x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nx-request-id: r1\r\n\
             traceparent: 00-1\r\ncontent-length: 2\r\n\r\n"
        );
    }
}
