//! The head of a request, read: httparse for its lines, and what they say about the body and the connection.
//!
//! Nothing is guessed here. What has two readings is refused, in the first room or here; a head that is refused ends
//! its connection.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header};
use tidegate_core::{Case, Fault};
use tidegate_engine::client::Framing;

use crate::accept::{HEADERS_MAX, URI_BYTES_MAX};
use crate::server::HEAD_BYTES_MAX;

/// One more than is allowed, so that one too many is told from what cannot be read.
const SLOTS: usize = HEADERS_MAX + 1;
/// Digits of a content length: what cannot overflow.
const LENGTH_DIGITS_MAX: usize = 19;

/// A request head and what follows from it for its connection.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) parts: Parts,
    /// Where its body ends.
    pub(super) framing: Framing,
    /// The caller waits to be told to send the body.
    pub(super) expects: bool,
    /// The caller would send another request.
    pub(super) keep_alive: bool,
}

/// Where name and value of a header line lie in the head.
#[derive(Clone, Copy, Default)]
struct Line {
    name: (usize, usize),
    value: (usize, usize),
}

/// Where the parts of a head lie in it.
struct Layout {
    len: usize,
    method: (usize, usize),
    target: (usize, usize),
    version: Version,
    count: usize,
    lines: [Line; SLOTS],
}

/// Takes a head off the front of `input`; `None` when it is not complete yet.
///
/// # Errors
/// 400 for what is no head, 414 and 431 for one over its bounds.
pub(super) fn take(input: &mut BytesMut) -> Result<Option<Head>, Fault> {
    let Some(layout) = lay_out(input)? else {
        return if input.len() >= HEAD_BYTES_MAX { Err(too_large(input)) } else { Ok(None) };
    };
    if layout.len > HEAD_BYTES_MAX {
        return Err(too_large(input));
    }
    let bytes = input.split_to(layout.len).freeze();
    let parts = parts(&bytes, &layout)?;
    let (framing, expects) = (framing(&parts.headers)?, expects(&parts));
    let keep_alive = keep_alive(&parts);
    Ok(Some(Head { parts, framing, expects, keep_alive }))
}

fn lay_out(input: &[u8]) -> Result<Option<Layout>, Fault> {
    let mut slots = [const { MaybeUninit::uninit() }; SLOTS];
    let mut request = httparse::Request::new(&mut []);
    let len = match request.parse_with_uninit_headers(input, &mut slots) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::new(Case::HeadersTooLarge)),
        Err(_) => return Err(unreadable()),
    };
    let place = |part: &[u8]| {
        let start = part.as_ptr().addr() - input.as_ptr().addr();
        (start, start + part.len())
    };
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(unreadable());
    };
    let mut lines = [Line::default(); SLOTS];
    for (line, header) in lines.iter_mut().zip(request.headers.iter()) {
        *line = Line { name: place(header.name.as_bytes()), value: place(header.value) };
    }
    let version = if version == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
    let (method, target) = (place(method.as_bytes()), place(target.as_bytes()));
    Ok(Some(Layout { len, method, target, version, count: request.headers.len(), lines }))
}

fn parts(bytes: &Bytes, layout: &Layout) -> Result<Parts, Fault> {
    let at = |(start, end): (usize, usize)| &bytes[start..end];
    let (start, end) = layout.target;
    if end - start > URI_BYTES_MAX {
        return Err(Fault::new(Case::UriTooLong));
    }
    let mut parts = Request::new(()).into_parts().0;
    parts.method = Method::from_bytes(at(layout.method)).map_err(|_| unreadable())?;
    parts.uri = Uri::from_maybe_shared(bytes.slice(start..end)).map_err(|_| unreadable())?;
    parts.version = layout.version;
    parts.headers = HeaderMap::with_capacity(layout.count);
    for line in &layout.lines[..layout.count] {
        let name = HeaderName::from_bytes(at(line.name)).map_err(|_| unreadable())?;
        let value = bytes.slice(line.value.0..line.value.1);
        parts.headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| unreadable())?);
    }
    Ok(parts)
}

/// Where the body ends. What else could be read into these lines the first room refuses: another coding, both at once,
/// more than one of either.
fn framing(headers: &HeaderMap) -> Result<Framing, Fault> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(Framing::CHUNKED);
    }
    let Some(length) = headers.get(header::CONTENT_LENGTH) else { return Ok(Framing::Length(0)) };
    let digits = length.as_bytes();
    let is_number = (1..=LENGTH_DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    if !is_number {
        return Err(Fault::new(Case::Framing).saying("content-length is not a number"));
    }
    let length = digits.iter().fold(0_u64, |length, digit| length * 10 + u64::from(digit - b'0'));
    Ok(Framing::Length(length))
}

fn expects(parts: &Parts) -> bool {
    parts.version == Version::HTTP_11
        && parts.headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn keep_alive(parts: &Parts) -> bool {
    let has = |token: &[u8]| {
        let mut values = parts.headers.get_all(header::CONNECTION).iter();
        values.any(|value| value.as_bytes().split(|&byte| byte == b',').any(|part| is_token(part, token)))
    };
    if parts.version == Version::HTTP_11 { !has(b"close") } else { has(b"keep-alive") }
}

fn is_token(part: &[u8], token: &[u8]) -> bool {
    part.trim_ascii().eq_ignore_ascii_case(token)
}

fn unreadable() -> Fault {
    Fault::new(Case::Framing).saying("the request cannot be read")
}

/// Over its bound before its end: by its target, or by its header lines.
fn too_large(input: &[u8]) -> Fault {
    let line = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len());
    Fault::new(if line > URI_BYTES_MAX { Case::UriTooLong } else { Case::HeadersTooLarge })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Option<Head>, Fault> {
        take(&mut BytesMut::from(text))
    }

    fn whole(text: &str) -> Head {
        read(text).unwrap().unwrap()
    }

    #[test]
    fn a_head_is_taken_and_what_follows_it_stays() {
        let mut input = BytesMut::from("POST /v1/x?a=b HTTP/1.1\r\nHost: gate\r\nContent-Length: 5\r\n\r\nhello");
        let head = take(&mut input).unwrap().unwrap();
        assert_eq!((head.parts.method.as_str(), head.parts.uri.path()), ("POST", "/v1/x"));
        assert_eq!((head.parts.headers["host"].as_bytes(), head.framing), (&b"gate"[..], Framing::Length(5)));
        assert!(head.keep_alive && !head.expects);
        assert_eq!(&input[..], b"hello");
    }

    #[test]
    fn a_length_that_is_not_plain_digits_is_refused() {
        let with = |length: &str| read(&format!("GET / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n"));
        assert_eq!(with("0").unwrap().unwrap().framing, Framing::Length(0));
        assert_eq!(with("9999999999999999999").unwrap().unwrap().framing, Framing::Length(9_999_999_999_999_999_999));
        for length in ["", "+5", "-5", "0x5", "5, 5", "5 5", "10000000000000000000"] {
            assert_eq!(with(length).unwrap_err().case, Case::Framing, "{length:?}");
        }
    }

    #[test]
    fn each_version_has_its_own_way_to_stay_or_leave() {
        for (version, connection, stays) in [
            ("1.1", "x: y", true),
            ("1.1", "connection: close", false),
            ("1.1", "connection: te , Close", false),
            ("1.0", "x: y", false),
            ("1.0", "connection: Keep-Alive", true),
        ] {
            let head = whole(&format!("GET / HTTP/{version}\r\n{connection}\r\n\r\n"));
            assert_eq!(head.keep_alive, stays, "{version} {connection}");
        }
    }

    #[test]
    fn bounds_are_refused_one_past() {
        let head = |len: usize| format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(len - 23));
        assert!(read(&head(HEAD_BYTES_MAX)).unwrap().is_some());
        assert_eq!(read(&head(HEAD_BYTES_MAX + 1)).unwrap_err().case, Case::HeadersTooLarge);
        let target = |len: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(len - 1));
        assert!(read(&target(URI_BYTES_MAX)).unwrap().is_some());
        assert_eq!(read(&target(URI_BYTES_MAX + 1)).unwrap_err().case, Case::UriTooLong);
        assert_eq!(read(&"a".repeat(HEAD_BYTES_MAX)).unwrap_err().case, Case::UriTooLong);
        assert!(read("GET / HT").unwrap().is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut input = BytesMut::from(&data[..]);
            let head = take(&mut input);
            prop_assert!(!matches!(head, Ok(Some(_))) || input.len() < data.len());
        }

        /// A head is read when its last byte is there, and as the same whatever follows.
        #[test]
        fn a_head_is_whole_at_its_last_byte(value in "[ -~]{0,40}", behind in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = format!("POST /p HTTP/1.1\r\nhost: a\r\nx: {value}\r\ncontent-length: 3\r\n\r\n");
            for end in 0..text.len() {
                prop_assert!(read(&text[..end]).unwrap().is_none());
            }
            let mut input = BytesMut::from([text.as_bytes(), &behind[..]].concat().as_slice());
            let head = take(&mut input).unwrap().unwrap();
            prop_assert_eq!(head.parts.headers["x"].as_bytes(), value.trim_matches(' ').as_bytes());
            prop_assert_eq!(&input[..], &behind[..]);
        }
    }
}
