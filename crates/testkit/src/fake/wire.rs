//! The server's side of HTTP/1.1, by hand: only so can it be got wrong on purpose.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::life::{self, Life};

/// One request in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header lines in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without chunk framing.
    pub body: Bytes,
}

impl Recorded {
    /// The path without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The first header of that name (given in lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| &**value)
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// What leaves, in order.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Bytes, and how many generated tokens are in them.
    Say(Bytes, u64),
    /// Nothing, for so long.
    Wait(Duration),
    /// The connection ends orderly.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing, until the peer leaves.
    Freeze,
}

/// How playing an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Played {
    /// All steps were played and the connection can take the next request.
    Whole,
    /// All steps were played and the connection is over.
    Over,
    /// The peer left before.
    PeerLeft,
}

/// A stream the fake engine can listen to.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {
    /// Makes the end of the connection a reset instead of a close, where there is such a thing.
    fn make_reset(&self);
}

impl Wire for TcpStream {
    fn make_reset(&self) {
        // Failing to is a plain close, which the tests would show.
        drop(socket2::SockRef::from(self).set_linger(Some(Duration::ZERO)));
    }
}

impl Wire for tokio::io::DuplexStream {
    fn make_reset(&self) {}
}

/// Reads one request; `None` when the peer closed between two. `buffer` keeps what came too early.
pub(crate) async fn read_request<W: Wire>(wire: &mut W, buffer: &mut BytesMut) -> io::Result<Option<Recorded>> {
    let (mut request, length) = loop {
        if let Some(head) = parse_head(buffer)? {
            break head;
        }
        if wire.read_buf(buffer).await? == 0 {
            return if buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    };
    request.body = match length {
        Length::Known(bytes) => {
            while buffer.len() < bytes {
                if wire.read_buf(buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            buffer.split_to(bytes).freeze()
        }
        Length::Chunked => read_chunks(wire, buffer).await?,
    };
    Ok(Some(request))
}

enum Length {
    Known(usize),
    Chunked,
}

fn parse_head(buffer: &mut BytesMut) -> io::Result<Option<(Recorded, Length)>> {
    let mut lines = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Request::new(&mut lines);
    let end = match head.parse(buffer).map_err(io::Error::other)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(end) => end,
    };
    let mut request = Recorded {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        headers: Vec::with_capacity(head.headers.len()),
        body: Bytes::new(),
    };
    for line in head.headers {
        request.headers.push((line.name.to_ascii_lowercase(), String::from_utf8_lossy(line.value).into_owned()));
    }
    let length = if request.header("transfer-encoding").is_some() {
        Length::Chunked
    } else {
        let length = request.header("content-length").unwrap_or("0");
        Length::Known(length.parse().map_err(io::Error::other)?)
    };
    drop(buffer.split_to(end));
    Ok(Some((request, length)))
}

async fn read_chunks<W: Wire>(wire: &mut W, buffer: &mut BytesMut) -> io::Result<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let (end, size) = loop {
            match httparse::parse_chunk_size(buffer).map_err(|_| io::Error::other("chunk size"))? {
                httparse::Status::Complete((end, size)) => break (end, size),
                httparse::Status::Partial => {
                    if wire.read_buf(buffer).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        };
        let whole = end + usize::try_from(size).map_err(io::Error::other)? + 2;
        while buffer.len() < whole {
            if wire.read_buf(buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let chunk = buffer.split_to(whole);
        if size == 0 {
            return Ok(body.freeze());
        }
        body.extend_from_slice(&chunk[end..whole - 2]);
    }
}

/// Plays an answer, watching for a peer that leaves. `said` is told the tokens that left. While `life` sleeps, nothing
/// leaves.
pub(super) async fn play<W: Wire>(
    wire: &mut W,
    buffer: &mut BytesMut,
    steps: Vec<Step>,
    mut life: Option<watch::Receiver<Life>>,
    mut said: impl FnMut(u64),
) -> io::Result<Played> {
    for step in steps {
        if let Some(life) = &mut life
            && !life::awake(wire, buffer, life).await
        {
            return Ok(Played::PeerLeft);
        }
        match step {
            Step::Say(bytes, tokens) => {
                if wire.write_all(&bytes).await.is_err() {
                    return Ok(Played::PeerLeft);
                }
                said(tokens);
            }
            Step::Wait(time) => {
                tokio::select! {
                    biased;
                    () = peer_left(wire, buffer) => return Ok(Played::PeerLeft),
                    () = tokio::time::sleep(time) => {}
                }
            }
            Step::Close => {
                wire.shutdown().await?;
                return Ok(Played::Over);
            }
            Step::Reset => {
                wire.make_reset();
                return Ok(Played::Over);
            }
            Step::Freeze => {
                peer_left(wire, buffer).await;
                return Ok(Played::PeerLeft);
            }
        }
    }
    Ok(Played::Whole)
}

/// Returns when the peer has closed. What it sends meanwhile is kept for the next request.
pub(super) async fn peer_left<W: Wire>(wire: &mut W, buffer: &mut BytesMut) {
    while matches!(wire.read_buf(buffer).await, Ok(1..)) {}
}

/// A response head.
pub(super) fn head(status: u16, content_type: &str, length: Option<usize>, lines: &[(&str, &str)]) -> Bytes {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Other",
    };
    let mut text = format!("HTTP/1.1 {status} {reason}\r\n");
    if !content_type.is_empty() {
        text.push_str(&format!("content-type: {content_type}\r\n"));
    }
    for (name, value) in lines {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    match length {
        Some(bytes) => text.push_str(&format!("content-length: {bytes}\r\n\r\n")),
        None => text.push_str("transfer-encoding: chunked\r\n\r\n"),
    }
    text.into()
}

/// One chunk of a chunked body.
pub(super) fn chunk(data: &[u8]) -> Bytes {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat().into()
}

/// The last chunk.
pub(super) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
