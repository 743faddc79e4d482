//! One request going out and one response head coming in, at the same time: an engine that refuses a large body early
//! is heard while it is still being sent.

use std::fmt;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Body;

use super::error::ClientError;
use super::framing::Framing;
use super::head::{INTERIM_MAX, Method, Parsed, ResponseHead, parse};
use super::io::{Stream, poll_read_with};

/// Drives both directions until the response head is there.
pub(super) fn poll<S: Source>(
    stream: &mut Stream,
    sending: &mut Sending<S>,
    reading: &mut Reading,
    cx: &mut Context<'_>,
) -> Poll<Result<Found, ClientError>> {
    sending.poll(stream, cx)?;
    loop {
        let read = match poll_read_with(stream, cx, |input| reading.take_in(input)) {
            // After a failed write only what is already here is of interest.
            Poll::Pending => return sending.failure().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(error)) => Err(reading.broke(error)),
        };
        match read {
            Ok(Some(found)) => return Poll::Ready(Ok(found)),
            Ok(None) => {}
            Err(error) if error.before_response() => return Poll::Ready(Err(sending.failure().unwrap_or(error))),
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

/// A response head, and what came with it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) head: ResponseHead,
    /// The part of the body that came in the same read.
    pub(super) payload: Bytes,
    /// The framing after `payload`.
    pub(super) framing: Framing,
    /// How many bytes came after the end of the body: none, from an engine whose connection can be used again.
    pub(super) surplus: usize,
}

/// The receiving side, until the head is complete.
#[derive(Debug)]
pub(super) struct Reading {
    /// Bytes of a head that did not come in one read; usually never used.
    partial: Vec<u8>,
    seen: usize,
    interim: usize,
    method: Method,
}

impl Reading {
    pub(super) const fn new(method: Method) -> Self {
        Self { partial: Vec::new(), seen: 0, interim: 0, method }
    }

    /// One read. Empty input is the end of the stream.
    pub(super) fn take_in(&mut self, input: &[u8]) -> Result<Option<Found>, ClientError> {
        if input.is_empty() {
            let is_first = self.partial.is_empty() && self.interim == 0;
            return Err(if is_first { ClientError::ClosedBeforeResponse } else { ClientError::Truncated });
        }
        if self.partial.is_empty() {
            return self.parse(input);
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(input);
        self.parse(&partial)
    }

    fn parse(&mut self, mut input: &[u8]) -> Result<Option<Found>, ClientError> {
        loop {
            match parse(input, self.seen, self.method)? {
                Parsed::Partial => {
                    self.partial = input.to_vec();
                    self.seen = input.len();
                    return Ok(None);
                }
                Parsed::Interim(end) => {
                    self.seen = 0;
                    self.interim += 1;
                    if self.interim > INTERIM_MAX {
                        return Err(ClientError::TooLarge("interim responses"));
                    }
                    input = &input[end..];
                    if input.is_empty() {
                        return Ok(None);
                    }
                }
                Parsed::Final(head, end) => return found(head, &input[end..]).map(Some),
            }
        }
    }

    fn broke(&self, error: io::Error) -> ClientError {
        if self.partial.is_empty() && self.interim == 0 {
            ClientError::BeforeResponse(error)
        } else {
            ClientError::Interrupted(error)
        }
    }
}

fn found(head: ResponseHead, rest: &[u8]) -> Result<Found, ClientError> {
    let mut framing = head.framing;
    let mut payload = BytesMut::with_capacity(rest.len());
    let used = framing.push(rest, &mut payload)?;
    Ok(Found { head, payload: payload.freeze(), framing, surplus: rest.len() - used })
}

/// Where the rest of a request body comes from.
pub(super) trait Source {
    /// The next piece, and what is written before it into `lead`. At the end, what is written last.
    fn poll_next(&mut self, cx: &mut Context<'_>, lead: &mut Vec<u8>) -> Poll<Option<Result<Bytes, ClientError>>>;
}

/// The body is at hand as a whole.
#[derive(Debug)]
pub(super) struct NoSource;

impl Source for NoSource {
    fn poll_next(&mut self, _: &mut Context<'_>, _: &mut Vec<u8>) -> Poll<Option<Result<Bytes, ClientError>>> {
        Poll::Ready(None)
    }
}

/// The body is still arriving.
#[derive(Debug)]
pub(super) struct BodySource<S> {
    body: S,
    /// What is left of an announced length; `None` when it goes out in chunks.
    left: Option<u64>,
    has_sent: bool,
}

impl<S> BodySource<S> {
    pub(super) const fn new(body: S, length: Option<u64>) -> Self {
        Self { body, left: length, has_sent: false }
    }
}

impl<S> Source for BodySource<S>
where
    S: Body<Data = Bytes> + Unpin,
    S::Error: fmt::Display,
{
    fn poll_next(&mut self, cx: &mut Context<'_>, lead: &mut Vec<u8>) -> Poll<Option<Result<Bytes, ClientError>>> {
        loop {
            let data = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(ClientError::RequestBody(error.to_string().into()))));
                }
                None => return Poll::Ready(self.end(lead)),
            };
            // An empty chunk would end the body; trailers are not passed on.
            if !data.is_empty() {
                return Poll::Ready(Some(self.announce(data.len(), lead).map(|()| data)));
            }
        }
    }
}

impl<S> BodySource<S> {
    fn announce(&mut self, bytes: usize, lead: &mut Vec<u8>) -> Result<(), ClientError> {
        if let Some(left) = &mut self.left {
            *left = left
                .checked_sub(bytes as u64)
                .ok_or_else(|| ClientError::RequestBody("longer than its content-length".into()))?;
            return Ok(());
        }
        let before = if self.has_sent { "\r\n" } else { "" };
        self.has_sent = true;
        // Writing to a Vec does not fail.
        drop(write!(lead, "{before}{bytes:x}\r\n"));
        Ok(())
    }

    fn end(&self, lead: &mut Vec<u8>) -> Option<Result<Bytes, ClientError>> {
        match self.left {
            Some(0) => None,
            Some(_) => Some(Err(ClientError::RequestBody("shorter than its content-length".into()))),
            None => {
                lead.extend_from_slice(if self.has_sent { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" });
                None
            }
        }
    }
}

/// The sending side.
#[derive(Debug)]
pub(super) struct Sending<S> {
    /// The request head, later the framing between pieces of the body.
    lead: Vec<u8>,
    lead_sent: usize,
    body: Bytes,
    source: S,
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    /// Pieces are left.
    Writing,
    /// The last piece is being written.
    WritingLast,
    /// All is written, some of it may be in a buffer of ours.
    Flushing,
    /// All is sent.
    Done,
    /// The engine does not take more.
    Failed(Option<io::Error>),
}

impl<S: Source> Sending<S> {
    pub(super) const fn new(lead: Vec<u8>, body: Bytes, source: S) -> Self {
        Self { lead, lead_sent: 0, body, source, state: SendState::Writing }
    }

    pub(super) const fn is_done(&self) -> bool {
        matches!(self.state, SendState::Done)
    }

    pub(super) fn into_lead(self) -> Vec<u8> {
        self.lead
    }

    fn failure(&mut self) -> Option<ClientError> {
        match &mut self.state {
            SendState::Failed(error) => error.take().map(ClientError::BeforeResponse),
            SendState::Writing | SendState::WritingLast | SendState::Flushing | SendState::Done => None,
        }
    }

    /// Sends as much as goes now. An error is the caller's body's; a failed write is kept, since the engine may have
    /// said why.
    fn poll(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Result<(), ClientError> {
        loop {
            match self.state {
                SendState::Writing | SendState::WritingLast => match self.poll_write(stream, cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Err(error)) => self.state = SendState::Failed(Some(error)),
                    Poll::Ready(Ok(())) if matches!(self.state, SendState::WritingLast) => {
                        self.state = SendState::Flushing;
                    }
                    Poll::Ready(Ok(())) => {
                        self.lead.clear();
                        self.lead_sent = 0;
                        match self.source.poll_next(cx, &mut self.lead) {
                            Poll::Pending => return self.flush_while_waiting(stream, cx),
                            Poll::Ready(None) => self.state = SendState::WritingLast,
                            Poll::Ready(Some(piece)) => self.body = piece?,
                        }
                    }
                },
                SendState::Flushing => match stream.poll_flush(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(())) => self.state = SendState::Done,
                    Poll::Ready(Err(error)) => self.state = SendState::Failed(Some(error)),
                },
                SendState::Done | SendState::Failed(_) => return Ok(()),
            }
        }
    }

    /// What was taken must not wait in our own buffers for what the caller has yet to send.
    fn flush_while_waiting(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Result<(), ClientError> {
        if let Poll::Ready(Err(error)) = stream.poll_flush(cx) {
            self.state = SendState::Failed(Some(error));
        }
        Ok(())
    }

    /// Writes `lead` and `body`, together where the stream can.
    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let lead = &self.lead[self.lead_sent..];
            if lead.is_empty() && self.body.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let parts = [IoSlice::new(lead), IoSlice::new(&self.body)];
            let parts = if lead.is_empty() { &parts[1..] } else { &parts[..] };
            let written = ready!(stream.poll_write(cx, parts))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_lead = written.min(lead.len());
            self.lead_sent += of_lead;
            self.body.advance(written - of_lead);
        }
    }
}
