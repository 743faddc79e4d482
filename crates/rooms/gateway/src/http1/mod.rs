//! HTTP/1.1 towards callers: one task per connection, one request at a time, one read and one write for most of them.
//!
//! ```text
//! next head (deadline, drain) -> the request's path, fed with its body -> head and body in one write -> next head
//! ```
//!
//! While a request runs its connection is watched: a caller that closes, even only its half, has left, and the request
//! is dropped with all that hangs on it. Requests that were sent ahead wait in the buffer and are answered in order.
//! Reads go through one buffer per thread, so that a connection that says nothing holds none.

mod head;
mod passing;
mod write;

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Method, Request, Response, Version, header};
use tidegate_core::{Case, Fault};
use tidegate_engine::client::Framing;
use tidegate_wire::endpoint::Api;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use self::head::Head;
use self::passing::Passing;
pub(crate) use self::passing::PassingBody;
use self::write::{COPIED_MAX, Frames, Manner, chunk_end, chunk_line, last_chunk};
use crate::answer;
use crate::body::Body;
use crate::caller_body::{self, CallerBody};
use crate::core::Core;
use crate::deadline::Deadline;
use crate::path;
use crate::server::{HEADER_DEADLINE, Peer};
use crate::streamed::Streamed;

/// Bytes of the read buffer that a thread's connections share.
const READ_BUFFER: usize = 64 * 1024;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

thread_local! {
    static READ: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Serves a connection until either side ends it.
pub(crate) async fn serve<I>(core: Rc<Core>, io: I, peer: Peer, drain: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let since_accept = peer.since.elapsed();
    let deadline = core.deadlines.at(core.now().after(HEADER_DEADLINE.saturating_sub(since_accept)));
    let mut connection =
        Connection { io, input: BytesMut::new(), framing: Framing::Length(0), expects: None, broken: false };
    let mut drained = pin!(drained(drain));
    loop {
        let Some(head) = connection.next_head(&deadline, drained.as_mut()).await else { return };
        let stays = match head {
            Ok(head) => connection.answer(&core, peer, head).await,
            Err(fault) => connection.refuse(&core, &fault).await,
        };
        if !stays {
            return connection.close().await;
        }
        deadline.set(core.now().after(HEADER_DEADLINE));
    }
}

async fn drained(mut drain: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a drain too.
    let _ = drain.wait_for(|draining| *draining).await;
}

struct Connection<I> {
    io: I,
    /// What was read and not used yet.
    input: BytesMut,
    /// What is still to come of the body of the request that runs.
    framing: Framing,
    /// What is left to write of the word that the body may be sent; `None` when nobody waits for it.
    expects: Option<&'static [u8]>,
    /// The rest of the body will not come, or cannot be read.
    broken: bool,
}

/// What a connection has for the request that runs.
enum Between {
    /// A piece of the body, or its failure, was handed over.
    Fed,
    /// The caller has left.
    Gone,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Connection<I> {
    /// The next request's head; `None` when the connection is to end without a word: the caller has left, took too long,
    /// or has not begun another request when the gate drains.
    async fn next_head(
        &mut self,
        deadline: &Deadline,
        mut drained: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<Result<Head, Fault>> {
        let mut is_drained = false;
        let mut is_new = !self.input.is_empty();
        if !is_new {
            // An idle connection holds nothing of the request before.
            self.input = BytesMut::new();
        }
        poll_fn(|context| {
            loop {
                if std::mem::take(&mut is_new)
                    && let Some(head) = head::take(&mut self.input).transpose()
                {
                    return Poll::Ready(Some(head));
                }
                match self.poll_fill(context) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                    Poll::Ready(Ok(_)) => is_new = true,
                    Poll::Pending => break,
                }
            }
            is_drained = is_drained || drained.as_mut().poll(context).is_ready();
            if is_drained && self.input.is_empty() {
                return Poll::Ready(None);
            }
            deadline.poll(context).map(|_| None)
        })
        .await
    }

    /// A head that cannot be served.
    async fn refuse(&mut self, core: &Rc<Core>, fault: &Fault) -> bool {
        let response = answer::unaccepted(core, fault, Api::of_path(""), &core.made_request_id());
        let manner = Manner { frames: Frames::Length, closes: true, is_old: false };
        // Whether it arrives or not, nothing follows.
        let _ = self.send(core, response, manner, false).await;
        false
    }

    /// Answers one request; whether another may follow.
    async fn answer(&mut self, core: &Rc<Core>, peer: Peer, head: Head) -> bool {
        let Head { parts, framing, expects, keep_alive } = head;
        self.framing = framing;
        self.expects = expects.then_some(CONTINUE);
        let is_old = parts.version != Version::HTTP_11;
        let is_head = parts.method == Method::HEAD;
        let (body, passing) = self.body();
        // On the heap: a request's whole path is several kilobytes, and most connections are idle.
        let mut running = Box::pin(path::serve(core, peer, Request::from_parts(parts, body)));
        let response = poll_fn(|context| {
            loop {
                if let Poll::Ready(response) = running.as_mut().poll(context) {
                    return Poll::Ready(Some(response));
                }
                match ready!(self.poll_between(passing.as_deref(), context)) {
                    Between::Fed => {}
                    Between::Gone => return Poll::Ready(None),
                }
            }
        })
        .await;
        drop(running);
        let Some(response) = response else { return false };
        self.skip_rest();
        let is_told = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
        let frames = match response.body() {
            Body::Full(_) => Frames::Length,
            Body::Streamed(_) if is_old => Frames::Close,
            Body::Streamed(_) => Frames::Chunks,
        };
        let is_over = !keep_alive || is_told || !self.framing.is_end() || core.is_draining();
        let closes = is_over || frames == Frames::Close;
        let manner = Manner { frames, closes, is_old };
        self.send(core, response, manner, is_head).await.is_some() && !closes
    }

    /// The body of the request whose head was taken: at hand, or to be passed on as it comes.
    fn body(&mut self) -> (CallerBody, Option<Rc<Passing>>) {
        if let Framing::Length(length) = self.framing
            && let Ok(length) = usize::try_from(length)
            && length <= self.input.len()
        {
            self.framing = Framing::Length(0);
            return (CallerBody::whole(self.input.split_to(length).freeze()), None);
        }
        let passing = Rc::new(Passing::default());
        (CallerBody::Passing(PassingBody(Rc::clone(&passing))), Some(passing))
    }

    /// While a request runs: feeds it what it asks for, or finds out that its caller has left.
    fn poll_between(&mut self, passing: Option<&Passing>, context: &mut Context<'_>) -> Poll<Between> {
        match passing {
            Some(passing) if !self.framing.is_end() => {
                if self.broken || !passing.is_wanted() {
                    return Poll::Pending;
                }
                let (piece, is_last) = ready!(self.poll_piece(context));
                self.broken = piece.is_err();
                passing.hand(piece, is_last);
                Poll::Ready(Between::Fed)
            }
            Some(_) | None => self.poll_gone(context),
        }
    }

    /// The next piece of the body, never an empty one but the last.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<(Result<Bytes, Fault>, bool)> {
        loop {
            if self.input.is_empty() {
                if ready!(self.poll_continue(context)).is_err() {
                    return Poll::Ready((Err(Fault::new(Case::ClientGone)), true));
                }
                match ready!(self.poll_fill(context)) {
                    Ok(0) | Err(_) => return Poll::Ready((Err(Fault::new(Case::ClientGone)), true)),
                    Ok(_) => {}
                }
            }
            // Whoever has begun to send waits for nothing.
            self.expects = None;
            let Ok(piece) = take_piece(&mut self.framing, &mut self.input) else {
                return Poll::Ready((Err(caller_body::broken()), true));
            };
            let is_last = self.framing.is_end();
            if is_last || !piece.is_empty() {
                return Poll::Ready((Ok(piece), is_last));
            }
        }
    }

    /// Tells the caller to send the body, if it waits for that.
    fn poll_continue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(left) = self.expects {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, left))?;
            self.expects = Some(&left[written..]).filter(|left| !left.is_empty());
            if self.expects.is_none() {
                // What a layer below keeps leaves with the next poll.
                let _ = Pin::new(&mut self.io).poll_flush(context)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the caller has left. Requests that it sends ahead are kept; behind them nothing is looked at.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<Between> {
        if !self.input.is_empty() {
            return Poll::Pending;
        }
        match ready!(self.poll_fill(context)) {
            Ok(0) | Err(_) => Poll::Ready(Between::Gone),
            Ok(_) => Poll::Pending,
        }
    }

    /// What is at hand of a body that nobody read is skipped, so that the next request begins behind it.
    fn skip_rest(&mut self) {
        if !self.broken && !self.framing.is_end() && !self.input.is_empty() {
            self.broken = take_piece(&mut self.framing, &mut self.input).is_err();
        }
    }

    /// Sends an answer; `None` when its caller has left, or it was cut.
    async fn send(&mut self, core: &Rc<Core>, response: Response<Body>, manner: Manner, is_head: bool) -> Option<()> {
        let at_hand = match response.body() {
            Body::Full(Some(bytes)) if !is_head && bytes.len() <= COPIED_MAX => bytes.len(),
            Body::Full(_) | Body::Streamed(_) => 0,
        };
        let out = write::head(&response, manner, core.wall(), at_hand);
        match response.into_body() {
            Body::Full(bytes) if !is_head => self.write(out, bytes.unwrap_or_default(), b"").await.ok(),
            Body::Full(_) => self.write(out, Bytes::new(), b"").await.ok(),
            Body::Streamed(streamed) => self.send_stream(out, streamed, manner.frames == Frames::Chunks).await,
        }
    }

    /// Sends a stream as it comes, the head with its first event. What is dropped here on the way is accounted as left.
    async fn send_stream(&mut self, head: Vec<u8>, mut streamed: Box<Streamed>, in_chunks: bool) -> Option<()> {
        let mut out = head;
        loop {
            let has_head = !out.is_empty();
            let next = poll_fn(|context| match streamed.poll_frame(context) {
                Poll::Ready(frame) => Poll::Ready(Next::Frame(frame)),
                Poll::Pending if has_head => Poll::Ready(Next::NotYet),
                Poll::Pending => self.poll_gone(context).map(|_| Next::Gone),
            });
            let data = match next.await {
                Next::Gone => return None,
                Next::NotYet => Bytes::new(),
                Next::Frame(None) => {
                    let end = if in_chunks { last_chunk() } else { b"" };
                    return self.write(out, Bytes::new(), end).await.ok();
                }
                Next::Frame(Some(Err(_cut))) => return None,
                Next::Frame(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            let is_last = streamed.is_over();
            let end = if in_chunks && !data.is_empty() {
                let copied = if data.len() <= COPIED_MAX { data.len() } else { 0 };
                // Size line, payload and end of the chunk, exactly.
                out.reserve_exact(copied + 32);
                chunk_line(&mut out, data.len());
                chunk_end(is_last)
            } else {
                b""
            };
            let was_sent = !data.is_empty();
            self.write(std::mem::take(&mut out), data, end).await.ok()?;
            if is_last && was_sent {
                return Some(());
            }
        }
    }

    /// Writes all of it, in one call if the socket takes it.
    async fn write(&mut self, mut out: Vec<u8>, mut body: Bytes, end: &'static [u8]) -> io::Result<()> {
        if body.len() <= COPIED_MAX {
            out.extend_from_slice(&body);
            out.extend_from_slice(end);
            body.clear();
        }
        let end = if body.is_empty() { &b""[..] } else { end };
        let mut left = Bytes::from(out).chain(body).chain(end);
        poll_fn(|context| {
            while left.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let count = left.chunks_vectored(&mut slices);
                let io = Pin::new(&mut self.io);
                let written = if count == 1 {
                    ready!(io.poll_write(context, &slices[0]))?
                } else {
                    ready!(io.poll_write_vectored(context, &slices[..count]))?
                };
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                left.advance(written);
            }
            Pin::new(&mut self.io).poll_flush(context)
        })
        .await
    }

    /// One read, behind what is there already.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Taken out while in use: were a stream to read another inside, that one gets a buffer of its own.
        let mut buffer = READ.take().unwrap_or_else(|| vec![0; READ_BUFFER].into_boxed_slice());
        let mut filled = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut self.io).poll_read(context, &mut filled);
        let result = polled.map_ok(|()| {
            if self.input.is_empty() {
                // What is left of an earlier buffer would keep all of it.
                self.input = BytesMut::from(filled.filled());
            } else {
                self.input.extend_from_slice(filled.filled());
            }
            filled.filled().len()
        });
        READ.set(Some(buffer));
        result
    }

    /// Says that nothing more comes. A caller that does not listen is not waited for.
    async fn close(&mut self) {
        poll_fn(|context| match Pin::new(&mut self.io).poll_shutdown(context) {
            Poll::Ready(_) | Poll::Pending => Poll::Ready(()),
        })
        .await;
    }
}

/// What a stream has for its caller.
enum Next {
    Frame(Option<Result<http_body::Frame<Bytes>, crate::body::Cut>>),
    /// Nothing yet: the head leaves alone.
    NotYet,
    Gone,
}

/// Takes what there is of a body off the front of `input`, without its framing.
fn take_piece(framing: &mut Framing, input: &mut BytesMut) -> Result<Bytes, ()> {
    if let Framing::Length(left) = framing {
        let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
        *left -= taken as u64;
        return Ok(input.split_to(taken).freeze());
    }
    let mut piece = BytesMut::with_capacity(input.len());
    let used = framing.push(input, &mut piece).map_err(drop)?;
    input.advance(used);
    Ok(piece.freeze())
}

/// Reads bytes as requests, all at once and byte by byte, and says whether both readings are the same; for fuzzing.
#[must_use]
pub fn reads_alike(data: &[u8]) -> bool {
    requests(data, data.len()) == requests(data, 1)
}

/// The requests in `data`, fed in pieces: method, target and body of each, and whether the last was refused.
fn requests(data: &[u8], piece: usize) -> (Vec<(String, String, Vec<u8>)>, bool) {
    let (mut input, mut found, mut framing) = (BytesMut::new(), Vec::new(), None);
    for piece in data.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        loop {
            if framing.is_none() {
                match head::take(&mut input) {
                    Ok(Some(Head { parts, framing: ends, .. })) => {
                        found.push((parts.method.to_string(), parts.uri.to_string(), Vec::new()));
                        framing = Some(ends);
                    }
                    Ok(None) => break,
                    Err(_) => return (found, true),
                }
            }
            let (Some(ends), Some((_, _, body))) = (&mut framing, found.last_mut()) else { break };
            match take_piece(ends, &mut input) {
                Ok(data) => body.extend_from_slice(&data),
                Err(()) => return (found, true),
            }
            if !ends.is_end() {
                break;
            }
            framing = None;
        }
    }
    (found, false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The corpus of the fuzz target `request`.
    #[test]
    fn the_corpus_is_read_alike_however_it_arrives() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/request");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.len() >= 20, "{}", files.len());
        for file in files {
            assert!(reads_alike(&std::fs::read(&file).unwrap()), "{}", file.display());
        }
    }

    proptest! {
        #[test]
        fn requests_are_read_alike_however_they_arrive(
            bodies in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..60), any::<bool>()), 1..4),
            more in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut sent = Vec::new();
            for (body, in_chunks) in &bodies {
                sent.extend_from_slice(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n");
                if *in_chunks {
                    sent.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
                    for piece in body.chunks(7) {
                        sent.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                        sent.extend_from_slice(piece);
                        sent.extend_from_slice(b"\r\n");
                    }
                    sent.extend_from_slice(b"0\r\nx: y\r\n\r\n");
                } else {
                    sent.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
                    sent.extend_from_slice(body);
                }
            }
            let (found, refused) = requests(&sent, sent.len());
            prop_assert!(!refused);
            let found: Vec<_> = found.into_iter().map(|(_, _, body)| body).collect();
            let expected: Vec<_> = bodies.into_iter().map(|(body, _)| body).collect();
            prop_assert_eq!(found, expected);
            sent.extend_from_slice(&more);
            prop_assert!(reads_alike(&sent));
        }
    }
}
