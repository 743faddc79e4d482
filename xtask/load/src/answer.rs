//! Reads one HTTP/1.1 answer after the other from the bytes of a connection: where the head ends, where the body ends,
//! how many events were in it. Strict about what it needs and blind to the rest.

use anyhow::{Context as _, Result, bail, ensure};
use memchr::memmem;

/// Longest head that is taken.
const HEAD_MAX: usize = 64 * 1024;

/// What one more piece of the connection brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Bytes of body in it, framing not counted.
    pub(crate) body: usize,
    /// Events in it: blank lines of the body.
    pub(crate) events: usize,
    /// The answer is whole.
    pub(crate) done: bool,
}

/// Reader of one answer.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    head: Vec<u8>,
    state: State,
    /// Whether the last byte of the body so far was a line feed.
    after_line: bool,
    /// HTTP status, once the head is there.
    pub(crate) status: u16,
    /// Text of the final chunk and whatever else a check may want: the last bytes of the body.
    pub(crate) tail: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Head,
    /// So many bytes of body are to come.
    Length(usize),
    /// A chunk-size line; the number so far, and whether its digits have ended.
    ChunkSize(usize, bool),
    /// So many bytes of a chunk are to come.
    Chunk(usize),
    /// The line break behind a chunk.
    ChunkEnd,
    /// Trailers: so many bytes of the current line so far.
    Trailer(usize),
    Done,
}

/// How much of the body's end is kept.
const TAIL: usize = 64;

impl Reader {
    /// Takes bytes as they arrived.
    ///
    /// # Errors
    /// The answer is not HTTP/1.1 with a length or in chunks, or bytes follow it.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<Step> {
        let mut step = Step::default();
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Head => self.head(bytes)?,
                State::Length(left) => self.content(bytes, left, State::Length, State::Done, &mut step),
                State::Chunk(left) => self.content(bytes, left, State::Chunk, State::ChunkEnd, &mut step),
                State::ChunkSize(..) | State::ChunkEnd | State::Trailer(_) => self.framing(bytes)?,
                State::Done => bail!("{} bytes after the answer", bytes.len()),
            };
        }
        step.done = matches!(self.state, State::Done);
        Ok(step)
    }

    fn head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let Some(end) = memmem::find(&self.head, b"\r\n\r\n") else {
            ensure!(self.head.len() < HEAD_MAX, "a head without end");
            return Ok(&[]);
        };
        let text = std::str::from_utf8(&self.head[..end]).context("a head that is not text")?;
        (self.status, self.state) = framing_of(text)?;
        Ok(&bytes[end + 4 - before..])
    }

    fn content<'a>(
        &mut self,
        bytes: &'a [u8],
        left: usize,
        more: fn(usize) -> State,
        then: State,
        step: &mut Step,
    ) -> &'a [u8] {
        let (content, rest) = bytes.split_at(left.min(bytes.len()));
        step.body += content.len();
        step.events +=
            usize::from(self.after_line && content[0] == b'\n') + memmem::find_iter(content, b"\n\n").count();
        self.after_line = content.last() == Some(&b'\n');
        self.tail.extend_from_slice(&content[content.len().saturating_sub(TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        self.state = if content.len() == left { then } else { more(left - content.len()) };
        rest
    }

    fn framing<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let (byte, rest) = (bytes[0], &bytes[1..]);
        self.state = match (self.state, byte) {
            (State::ChunkSize(0, _), b'\n') => State::Trailer(0),
            (State::ChunkSize(size, _), b'\n') => State::Chunk(size),
            (State::ChunkSize(size, false), digit) if digit.is_ascii_hexdigit() => {
                let digit = char::from(digit).to_digit(16).unwrap_or(0) as usize;
                State::ChunkSize(size.checked_mul(16).context("a chunk too large")? + digit, false)
            }
            (State::ChunkSize(size, _), _) => State::ChunkSize(size, true),
            (State::ChunkEnd, b'\n') => State::ChunkSize(0, false),
            (State::ChunkEnd, b'\r') => State::ChunkEnd,
            (State::ChunkEnd, other) => bail!("byte {other:#x} where a chunk ends"),
            (State::Trailer(0), b'\n') => State::Done,
            (State::Trailer(_), b'\n') => State::Trailer(0),
            (State::Trailer(length), b'\r') => State::Trailer(length),
            (State::Trailer(length), _) => State::Trailer(length + 1),
            (state, _) => state,
        };
        Ok(rest)
    }
}

fn framing_of(head: &str) -> Result<(u16, State)> {
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|line| line.get(..3));
    let status = status.and_then(|digits| digits.parse().ok()).context("no HTTP/1.1 status line")?;
    let mut state = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.trim().parse().context("a content-length that is no number")?;
            state = Some(if length == 0 { State::Done } else { State::Length(length) });
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            state = Some(State::ChunkSize(0, false));
        }
    }
    Ok((status, state.context("an answer without content-length or chunks")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n11;x=y\r\n\
        data: b\n\ndata: c\n\r\n1\r\n\n\r\n0\r\nx: y\r\n\r\n";

    fn read(pieces: &[&[u8]]) -> Result<(u16, Step, Vec<u8>)> {
        let mut reader = Reader::default();
        let mut sum = Step::default();
        for piece in pieces {
            let step = reader.push(piece)?;
            sum = Step { body: sum.body + step.body, events: sum.events + step.events, done: step.done };
        }
        Ok((reader.status, sum, reader.tail))
    }

    #[test]
    fn a_stream_is_read_the_same_however_it_is_split() {
        let whole = read(&[STREAM]).unwrap();
        assert_eq!((whole.0, whole.1), (200, Step { body: 27, events: 3, done: true }));
        assert_eq!(whole.2, b"data: a\n\ndata: b\n\ndata: c\n\n");
        for at in 0..STREAM.len() {
            assert_eq!(read(&[&STREAM[..at], &STREAM[at..]]).unwrap(), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(read(&bytes).unwrap(), whole);
    }

    #[test]
    fn a_body_with_a_length_ends_there_and_nothing_may_follow() {
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(read(&[answer]).unwrap().1, Step { body: 3, events: 0, done: true });
        assert!(read(&[answer, b"x"]).is_err());
        assert!(!read(&[&answer[..answer.len() - 1]]).unwrap().1.done);
        assert!(read(&[b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"]).unwrap().1.done);
    }

    #[test]
    fn what_is_not_an_answer_is_an_error() {
        assert!(read(&[b"HTTP/1.1 200 OK\r\n\r\n"]).is_err());
        assert!(read(&[b"SSH-2.0-x\r\n\r\n"]).is_err());
        assert!(read(&[&vec![b'a'; HEAD_MAX]]).is_err());
    }
}
