//! An answer's head, written; and how its body is framed.

use std::cell::RefCell;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tidegate_core::Unix;

use crate::body::Body;

/// A body of up to this many bytes is copied behind its head or its size line, so that both leave in one plain write;
/// a larger one stays where it is.
pub(super) const COPIED_MAX: usize = 16 * 1024;
/// The end of a chunked body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// What a head needs besides its header lines of ours.
const HEAD_ROOM: usize = 256;

/// How an answer's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frames {
    /// By its length.
    Length,
    /// In chunks.
    Chunks,
    /// By the end of the connection: the caller knows no chunks.
    Close,
}

/// What of an answer is known before its head is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) frames: Frames,
    /// No other request is answered on this connection.
    pub(super) closes: bool,
    /// The caller is of the version that closes unless told otherwise.
    pub(super) is_old: bool,
}

/// Writes status line and header lines, with room for `more` bytes behind them.
pub(super) fn head(response: &Response<Body>, manner: Manner, at: Unix, more: usize) -> Vec<u8> {
    let headers = response.headers();
    let lines: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let mut out = Vec::with_capacity(HEAD_ROOM + lines + more);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(response.status().as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(response.status()).as_bytes());
    out.extend_from_slice(b"\r\n");
    put_lines(&mut out, headers);
    match (response.body(), manner.frames) {
        (Body::Full(bytes), _) => {
            out.extend_from_slice(b"content-length: ");
            let len = bytes.as_ref().map_or(0, Bytes::len);
            out.extend_from_slice(itoa::Buffer::new().format(len).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        (Body::Streamed(_), Frames::Chunks) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        (Body::Streamed(_), Frames::Length | Frames::Close) => {}
    }
    if !headers.contains_key(header::CONNECTION) {
        match (manner.closes, manner.is_old) {
            (true, _) => out.extend_from_slice(b"connection: close\r\n"),
            (false, true) => out.extend_from_slice(b"connection: keep-alive\r\n"),
            (false, false) => {}
        }
    }
    put_date(&mut out, at);
    out.extend_from_slice(b"\r\n");
    out
}

fn put_lines(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

fn reason(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Status")
}

/// Writes the size line of a chunk.
pub(super) fn chunk_line(out: &mut Vec<u8>, len: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let significant = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..significant).rev() {
        out.push(DIGITS[len >> (4 * place) & 0xF]);
    }
    out.extend_from_slice(b"\r\n");
}

/// What follows a chunk's payload.
pub(super) const fn chunk_end(is_last: bool) -> &'static [u8] {
    if is_last { b"\r\n0\r\n\r\n" } else { b"\r\n" }
}

/// The end of a chunked body whose last payload has left already.
pub(super) const fn last_chunk() -> &'static [u8] {
    LAST_CHUNK
}

/// The thread's date line and the second it is of.
struct Date {
    second: i64,
    line: String,
}

thread_local! {
    static DATE: RefCell<Date> = const { RefCell::new(Date { second: i64::MIN, line: String::new() }) };
}

/// `date`, made once a second.
fn put_date(out: &mut Vec<u8>, at: Unix) {
    let second = at.ms.div_euclid(1_000);
    DATE.with_borrow_mut(|date| {
        if date.second != second {
            let text = Timestamp::from_second(second)
                .ok()
                .and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok());
            date.line = text.map(|text| format!("date: {text}\r\n")).unwrap_or_default();
            date.second = second;
        }
        out.extend_from_slice(date.line.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_every_line_once() {
        let mut response = Response::new(Body::full("hello"));
        response.headers_mut().insert("x-a", "b".parse().unwrap());
        let plain = Manner { frames: Frames::Length, closes: false, is_old: false };
        let text = String::from_utf8(head(&response, plain, Unix::from_ms(784_111_777_999), 0)).unwrap();
        let expected = "HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 5\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        assert_eq!(text, expected);
        let closing = Manner { closes: true, ..plain };
        let text = String::from_utf8(head(&response, closing, Unix::from_ms(0), 0)).unwrap();
        assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
        response.headers_mut().insert("connection", "close".parse().unwrap());
        let text = String::from_utf8(head(&response, closing, Unix::from_ms(0), 0)).unwrap();
        assert_eq!(text.matches("connection").count(), 1, "{text}");
    }

    #[test]
    fn size_lines_are_hexadecimal_without_leading_zeros() {
        for len in [1, 9, 15, 16, 17, 255, 256, 4_096, 65_535, 1 << 20] {
            let mut out = Vec::new();
            chunk_line(&mut out, len);
            assert_eq!(out, format!("{len:x}\r\n").into_bytes());
        }
    }
}
