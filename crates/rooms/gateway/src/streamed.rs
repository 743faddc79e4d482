//! A stream on its way to the caller.
//!
//! It owns the upstream connection and, once the response head has left, the tail of the request: when it is dropped
//! because the caller has gone, the engine's connection is closed with it and the tail is accounted as cancelled.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tidegate_core::{Fault, Monotonic};
use tidegate_engine::attempt::{self, AttemptEnd};
use tidegate_engine::client::ResponseBody;
use tidegate_engine::dialect::Dialect;
use tidegate_store::failpoint;
use tidegate_wire::endpoint::Api;
use tidegate_wire::error;
use tidegate_wire::messages::ChatToMessages;
use tidegate_wire::sse::Usage;
use tidegate_wire::sse::{Stream, StreamFault, StreamOptions};

use crate::account::Tail;
use crate::body::Cut;
use crate::deadline::Deadline;
use crate::outgoing::Shape;

/// Reads an engine's events and makes the caller's of them.
#[derive(Debug)]
enum Reader {
    Native(Box<Stream>),
    Translated(Box<ChatToMessages>),
}

impl Reader {
    fn push(&mut self, read: Bytes) -> Result<Bytes, StreamFault> {
        match self {
            Self::Native(stream) => stream.push(read),
            Self::Translated(stream) => stream.push(read),
        }
    }

    fn end(&mut self) -> Result<Bytes, StreamFault> {
        match self {
            Self::Native(stream) => stream.end(),
            Self::Translated(stream) => stream.end(),
        }
    }

    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Native(stream) => stream.usage(),
            Self::Translated(stream) => stream.usage(),
        }
    }

    fn progress(&self) -> u64 {
        match self {
            Self::Native(stream) => stream.progress(),
            Self::Translated(stream) => stream.progress(),
        }
    }

    fn content_events(&self) -> u64 {
        match self {
            Self::Native(stream) => stream.content_events(),
            Self::Translated(stream) => stream.content_events(),
        }
    }

    fn ended(&self) -> bool {
        match self {
            Self::Native(stream) => stream.ended(),
            Self::Translated(stream) => stream.ended(),
        }
    }

    fn engine_id(&self) -> Option<&str> {
        match self {
            Self::Native(stream) => stream.engine_id(),
            Self::Translated(stream) => stream.engine_id(),
        }
    }
}

/// One answer as it streams.
#[derive(Debug)]
pub(crate) struct Streamed {
    /// `None` once the engine has nothing more to say, or is not listened to any more.
    upstream: Option<ResponseBody>,
    reader: Reader,
    dialect: Dialect,
    api: Api,
    first: Option<Bytes>,
    deadline: Deadline,
    gap: Duration,
    whole: Monotonic,
    progress: u64,
    tail: Option<Tail>,
}

/// What one look at the engine gave.
enum Step {
    Events(Bytes),
    Complete(Bytes),
    Broken(StreamFault),
    Failed(AttemptEnd),
}

impl Streamed {
    pub(crate) fn new(
        upstream: ResponseBody,
        shape: &Shape,
        dialect: Dialect,
        deadline: Deadline,
        (gap, whole): (Duration, Monotonic),
    ) -> Self {
        let (reader, api) = match shape {
            Shape::Native { endpoint, alias, asked } => {
                let options = StreamOptions { flavour: endpoint.flavour(), alias: alias.clone(), asked: *asked };
                (Reader::Native(Box::new(Stream::new(options))), endpoint.api())
            }
            Shape::Translated { told } => {
                (Reader::Translated(Box::new(ChatToMessages::new(told.clone()))), Api::Anthropic)
            }
        };
        Self {
            upstream: Some(upstream),
            reader,
            dialect,
            api,
            first: None,
            deadline,
            gap,
            whole,
            progress: 0,
            tail: None,
        }
    }

    /// Waits for the first complete event, or for the whole answer if it is that short. Good events before a fault were
    /// not sent yet: nothing has been delivered, so that another replica may be tried. Comments before it are left out:
    /// an engine that only says that it lives has not begun to answer.
    pub(crate) async fn first_event(&mut self, tail: &mut Tail) -> Result<(), AttemptEnd> {
        loop {
            let step = poll_fn(|context| self.poll_step(context, Some(tail))).await;
            match step {
                Step::Events(events) if events.is_empty() || self.reader.progress() == 0 => {}
                Step::Events(events) | Step::Complete(events) => {
                    self.first = Some(events);
                    return Ok(());
                }
                Step::Failed(end) => return Err(end),
                Step::Broken(broken) => return Err(attempt::stream_broke(self.dialect, &broken)),
            }
        }
    }

    /// The response head leaves: from here on the stream accounts for itself.
    pub(crate) fn adopt(&mut self, tail: Tail) {
        self.tail = Some(tail);
        if self.upstream.is_none() && self.first.as_ref().is_none_or(Bytes::is_empty) {
            self.complete();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.upstream.is_none() && self.first.is_none()
    }

    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(first) = self.first.take() {
            if self.upstream.is_none() {
                self.complete();
            }
            if !first.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
        }
        loop {
            if self.upstream.is_none() {
                return Poll::Ready(None);
            }
            let step = std::task::ready!(self.poll_step(context, None));
            let frame = match step {
                Step::Events(events) => {
                    failpoint::passed("relay.after_event");
                    events
                }
                Step::Complete(events) => {
                    self.complete();
                    events
                }
                Step::Failed(end) => self.break_off(&[], end),
                Step::Broken(broken) => {
                    let end = attempt::stream_broke(self.dialect, &broken);
                    self.break_off(&broken.before, end)
                }
            };
            if !frame.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
        }
    }

    /// One read of the engine, or the deadline. Before the head has left, the tail is the caller's.
    fn poll_step(&mut self, context: &mut Context<'_>, mut lent: Option<&mut Tail>) -> Poll<Step> {
        let Some(upstream) = &mut self.upstream else { return Poll::Ready(Step::Complete(Bytes::new())) };
        if self.deadline.is_cut() {
            return Poll::Ready(over(self.reader.ended(), attempt::taken_out()));
        }
        let read = match Pin::new(&mut *upstream).poll_frame(context) {
            Poll::Pending => {
                let is_first = lent.is_some();
                let ended = self.reader.ended();
                let end = || if self.deadline.is_cut() { attempt::taken_out() } else { silent(is_first) };
                return self.deadline.poll(context).map(|_| over(ended, end()));
            }
            Poll::Ready(read) => read,
        };
        let Some(tail) = lent.take().or(self.tail.as_mut()) else {
            return Poll::Ready(Step::Complete(Bytes::new()));
        };
        let step = match read {
            Some(Ok(frame)) => {
                let is_end = upstream.is_end_stream();
                let data = frame.into_data().unwrap_or_default();
                match self.reader.push(data) {
                    Err(broken) => Step::Broken(broken),
                    Ok(events) if is_end => finish(&mut self.reader, events),
                    Ok(events) => Step::Events(events),
                }
            }
            Some(Err(error)) => over(self.reader.ended(), attempt::broken(&error)),
            None => finish(&mut self.reader, Bytes::new()),
        };
        let now = tail.core.now();
        note(&self.reader, &step, tail, now);
        if matches!(step, Step::Complete(_)) {
            self.upstream = None;
        }
        let progress = self.reader.progress();
        if progress != self.progress {
            self.progress = progress;
            self.deadline.set(now.after(self.gap).min(self.whole));
        }
        Poll::Ready(step)
    }

    /// The engine said its last word, and it was a good one.
    fn complete(&mut self) {
        self.upstream = None;
        if let Some(mut tail) = self.tail.take() {
            tail.answered(200);
        }
    }

    /// The answer cannot go on: what is good leaves, then the error event, then nothing. Dropping the upstream body
    /// closes the engine's connection, which tells it to stop.
    fn break_off(&mut self, before: &[u8], end: AttemptEnd) -> Bytes {
        self.upstream = None;
        let Some(mut tail) = self.tail.take() else { return Bytes::new() };
        let fault: Fault = end.after_first_byte().into_fault();
        tail.interrupted(&fault);
        let event = error::event(&fault, self.api, &tail.request_id);
        [before, &event].concat().into()
    }
}

/// The deadline came first. Before the first event the caller has waited as long as one may wait: not repeated.
fn silent(is_first: bool) -> AttemptEnd {
    if is_first { AttemptEnd::Final(attempt::first_byte_timeout().into_fault()) } else { attempt::gap_timeout() }
}

/// The connection failed, or was silent for too long. Behind the answer's own end that is nobody's loss.
fn over(ended: bool, end: AttemptEnd) -> Step {
    if ended { Step::Complete(Bytes::new()) } else { Step::Failed(end) }
}

/// The engine closed its answer after `events`.
fn finish(reader: &mut Reader, events: Bytes) -> Step {
    match reader.end() {
        Ok(rest) if rest.is_empty() => Step::Complete(events),
        Ok(rest) => Step::Complete([&events[..], &rest[..]].concat().into()),
        Err(broken) => {
            let before = [&events[..], &broken.before[..]].concat().into();
            Step::Broken(StreamFault { before, ..broken })
        }
    }
}

/// What the tail has to know of one read.
fn note(reader: &Reader, step: &Step, tail: &mut Tail, now: Monotonic) {
    if let Step::Events(events) | Step::Complete(events) = step
        && !events.is_empty()
    {
        tail.note_byte(now);
    }
    tail.usage = reader.usage().or(tail.usage);
    tail.delivered = reader.content_events();
    if tail.engine_id.is_none() {
        tail.engine_id = reader.engine_id().map(Box::from);
    }
}
