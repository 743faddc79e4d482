//! The relay's stage for event streams: bytes in as they are read from the engine, bytes out that may leave now.
//!
//! The unit is the complete event. Of each event's data only a few members are looked at; it is changed only where the
//! alias has to be written back or usage to be cut, and otherwise the same bytes leave, without a copy when the whole
//! read stays as it is. What an engine says after an error is not passed on: `[DONE]` behind an error event would make
//! a broken answer look like a whole one.

pub(crate) mod chunk;
pub(crate) mod frame;

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tidegate_core::{Case, Fault};

pub use crate::endpoint::Flavour;
pub use crate::request::UsageAsked;
pub use crate::usage::Usage;

use crate::form::{Becomes, Forms, Holes, Met};
use crate::json::write_str;
use crate::usage::Report;
use chunk::{Seen, What};
use frame::{Data, Framer, MARK};

/// Longest event, its empty line included.
pub const EVENT_MAX: usize = 1024 * 1024;

/// Longest engine id and error text that are kept.
const KEPT_MAX: usize = 256;

/// How a stream is to be read.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Whose events they are.
    pub flavour: Flavour,
    /// Written back as `model`.
    pub alias: Arc<str>,
    /// What the caller wants to hear about usage.
    pub asked: UsageAsked,
}

/// Why a stream is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The engine sent an error event; its text is for the log only.
    EngineError(Box<str>),
    /// A choice ended with `finish_reason: abort`: the engine was put to sleep, paused, or told to stop.
    Aborted,
    /// An event is larger than [`EVENT_MAX`].
    TooLarge,
    /// An event's data is not JSON.
    Malformed,
    /// The stream ended before its end.
    Truncated,
}

/// A broken stream. Send [`StreamFault::before`], then the error event, and nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFault {
    /// What happened.
    pub cause: Cause,
    /// Good events that came before it in the same read.
    pub before: Bytes,
}

impl StreamFault {
    /// The fault to render and to account.
    #[must_use]
    pub fn fault(&self) -> Fault {
        Fault::new(Case::UpstreamInterrupted).internal(self.to_string())
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::EngineError(text) => write!(f, "the engine sent an error event: {text}"),
            Cause::Aborted => f.write_str("the engine aborted the request"),
            Cause::TooLarge => write!(f, "an event is over {EVENT_MAX} bytes"),
            Cause::Malformed => f.write_str("an event is not JSON"),
            Cause::Truncated => f.write_str("the stream ended before its end"),
        }
    }
}

impl std::error::Error for StreamFault {}

/// One answer's stream.
#[derive(Debug)]
pub struct Stream {
    flavour: Flavour,
    asked: UsageAsked,
    /// The alias as a JSON string.
    alias: Box<[u8]>,
    /// The start of an event whose end has not come.
    carry: BytesMut,
    framer: Framer,
    report: Report,
    pub(crate) forms: Forms,
    engine_id: Option<Box<str>>,
    content: u64,
    progress: u64,
    finished: bool,
    /// Nothing was framed yet.
    first: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The flavour's own end was seen.
    Ended,
    Broken,
}

/// What becomes of an event.
enum Verdict {
    Keep,
    Drop,
    /// Changed data, which starts at this place in the event; [`Seen`] says where.
    Edit(usize),
    /// Rebuilt because its data stood on several lines.
    Replace(Vec<u8>),
}

/// The next event of a read.
enum Next {
    /// It was read already.
    Met(Met),
    /// Its length, the empty line included.
    Framed(usize),
}

impl Next {
    const fn len(&self) -> usize {
        match self {
            Self::Met(met) => met.len,
            Self::Framed(len) => *len,
        }
    }
}

/// The output of one read: a slice of it as long as nothing changes, a buffer from the first change on.
struct Output<'a> {
    work: &'a Bytes,
    /// Up to here `work` is in `buffer`, or dropped.
    copied: usize,
    buffer: Option<Vec<u8>>,
}

impl Output<'_> {
    /// The buffer, after everything before `at` was copied into it; the event that ends at `end` is then done with.
    fn change(&mut self, at: usize, end: usize) -> &mut Vec<u8> {
        let room = self.work.len() + self.work.len() / 8 + 64;
        let buffer = self.buffer.get_or_insert_with(|| Vec::with_capacity(room));
        buffer.extend_from_slice(&self.work[self.copied..at]);
        self.copied = end;
        buffer
    }

    /// What may leave, up to `end`.
    fn finish(self, end: usize) -> Bytes {
        match self.buffer {
            None => self.work.slice(..end),
            Some(mut buffer) => {
                buffer.extend_from_slice(&self.work[self.copied..end]);
                buffer.into()
            }
        }
    }
}

impl Stream {
    /// A stream of which nothing has been read.
    #[must_use]
    pub fn new(options: StreamOptions) -> Self {
        let StreamOptions { flavour, alias, asked } = options;
        let mut json = Vec::with_capacity(alias.len() + 2);
        write_str(&mut json, &alias);
        Self {
            flavour,
            asked,
            alias: json.into(),
            carry: BytesMut::new(),
            framer: Framer::default(),
            report: Report::default(),
            forms: Forms::default(),
            engine_id: None,
            content: 0,
            progress: 0,
            finished: false,
            first: true,
            state: State::Open,
        }
    }

    /// Takes one read and returns what may leave now, which may be nothing.
    ///
    /// # Errors
    /// The stream is broken; nothing of this or any later read may leave but [`StreamFault::before`].
    pub fn push(&mut self, read: Bytes) -> Result<Bytes, StreamFault> {
        if self.state != State::Open {
            return Ok(Bytes::new());
        }
        let (work, next) = if self.carry.is_empty() {
            let next = self.next(&read);
            (read, next)
        } else {
            self.carry.extend_from_slice(&read);
            let next = self.framer.end(&self.carry);
            if next.is_none() {
                return if self.carry.len() > EVENT_MAX { Err(self.broken(Cause::TooLarge)) } else { Ok(Bytes::new()) };
            }
            (self.carry.split().freeze(), next.map(Next::Framed))
        };
        self.events(&work, next)
    }

    /// Takes the whole events of `work`, of which the first ends at `next`, and keeps the rest.
    fn events(&mut self, work: &Bytes, mut next: Option<Next>) -> Result<Bytes, StreamFault> {
        let mut output = Output { work, copied: 0, buffer: None };
        let mut seen = Seen::default();
        let mut start = 0;
        while let Some(event) = next {
            let end = start + event.len();
            if mem::replace(&mut self.first, false) && work.starts_with(MARK) {
                start = MARK.len();
                output.change(0, start);
            }
            let done = match event {
                _ if event.len() > EVENT_MAX => Err(Cause::TooLarge),
                Next::Met(met) => {
                    self.met(&met, &mut output, start);
                    Ok(())
                }
                Next::Framed(_) => {
                    let verdict = self.event(&work[start..end], &mut seen);
                    verdict.map(|verdict| self.apply(&verdict, &seen, &mut output, start, end))
                }
            };
            if let Err(cause) = done {
                return Err(StreamFault { before: output.finish(start), ..self.broken(cause) });
            }
            start = end;
            if self.state == State::Ended {
                // Nothing follows the end.
                return Ok(output.finish(start));
            }
            next = self.next(&work[start..]);
        }
        if work.len() - start > EVENT_MAX {
            return Err(StreamFault { before: output.finish(start), ..self.broken(Cause::TooLarge) });
        }
        self.carry.extend_from_slice(&work[start..]);
        Ok(output.finish(start))
    }

    /// The event at the start of `text`, with the framer at its beginning.
    fn next(&mut self, text: &[u8]) -> Option<Next> {
        match self.forms.meet(text, &mut self.report) {
            Some(met) => Some(Next::Met(met)),
            None => self.framer.end(text).map(Next::Framed),
        }
    }

    /// Does with an event what was done with the one whose form it has.
    fn met(&mut self, met: &Met, output: &mut Output<'_>, start: usize) {
        self.progress += 1;
        self.content += met.content;
        if met.becomes == Becomes::Written {
            let work = output.work;
            let event = &work[start..start + met.len];
            self.forms.write(event, met, output.change(start, start + met.len));
        }
    }

    /// The engine closed its answer. Returns what is left to send.
    ///
    /// # Errors
    /// The end of the answer was not seen: a choice that finished and `[DONE]`, or the flavour's own last event.
    pub fn end(&mut self) -> Result<Bytes, StreamFault> {
        let mut out = Bytes::new();
        if self.state == State::Open && !self.carry.is_empty() {
            let last = self.carry.split();
            out = match self.last(last) {
                Err(StreamFault { cause: Cause::Malformed, before }) => {
                    return Err(StreamFault { cause: Cause::Truncated, before });
                }
                other => other?,
            };
        }
        if self.state == State::Open {
            return Err(StreamFault { before: out, ..self.broken(Cause::Truncated) });
        }
        Ok(out)
    }

    /// Takes what is left at the end. A CR that waited for its LF now counts for itself, and a last event without its
    /// empty line counts if it is whole.
    fn last(&mut self, mut last: BytesMut) -> Result<Bytes, StreamFault> {
        self.framer = Framer::default();
        let len = last.len();
        last.extend_from_slice(b"x");
        if Framer::default().end(&last) == Some(len) {
            last.truncate(len);
            return self.events(&last.freeze(), Some(Next::Framed(len)));
        }
        last.truncate(len);
        last.extend_from_slice(b"\n\n");
        self.push(last.freeze())
    }

    /// Tokens as last reported by the engine.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.report.usage()
    }

    /// The engine's own id of the answer.
    #[must_use]
    pub fn engine_id(&self) -> Option<&str> {
        self.engine_id.as_deref()
    }

    /// Pieces of content that passed, counted for each choice: a lower bound of the output tokens when the engine
    /// reported none.
    #[must_use]
    pub const fn content_events(&self) -> u64 {
        self.content
    }

    /// Moves with every event that has data. Comments do not move it: an engine that only says that it lives makes no
    /// progress.
    #[must_use]
    pub const fn progress(&self) -> u64 {
        self.progress
    }

    /// Whether the end was seen: what the engine still sends does not matter.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.state == State::Ended
    }

    fn broken(&mut self, cause: Cause) -> StreamFault {
        self.state = State::Broken;
        self.carry = BytesMut::new();
        StreamFault { cause, before: Bytes::new() }
    }

    fn event(&mut self, event: &[u8], seen: &mut Seen) -> Result<Verdict, Cause> {
        let parts = frame::parts(event);
        match parts.data {
            Data::None => Ok(Verdict::Keep),
            Data::Line { start, end } => {
                let data = &event[start..end];
                let mut holes = self.forms.wanted().then(Holes::of_event);
                let looked = self.data(data, parts.name, seen, holes.as_mut())?;
                if let Some(holes) = holes {
                    self.keep_form(event, start..end, &looked, seen, &holes);
                }
                Ok(match looked {
                    Looked::Keep => Verdict::Keep,
                    Looked::Drop => Verdict::Drop,
                    Looked::Change => Verdict::Edit(start),
                })
            }
            Data::Lines => {
                let data = frame::joined(event);
                Ok(match self.data(&data, parts.name, seen, None)? {
                    Looked::Keep => Verdict::Keep,
                    Looked::Drop => Verdict::Drop,
                    Looked::Change => Verdict::Replace(self.rebuilt(&data, seen, parts.name)),
                })
            }
        }
    }

    /// Looks at the data of one event.
    fn data(
        &mut self,
        data: &[u8],
        name: Option<&[u8]>,
        seen: &mut Seen,
        holes: Option<&mut Holes>,
    ) -> Result<Looked, Cause> {
        *seen = Seen::default();
        if data.is_empty() {
            return Ok(Looked::Keep);
        }
        self.progress += 1;
        if data == b"[DONE]" {
            return self.done();
        }
        if name == Some(b"error") {
            return Err(Cause::EngineError(kept(data)));
        }
        let mut report = self.report;
        *seen = chunk::look_for(self.flavour, data, &mut report, holes).map_err(|_| Cause::Malformed)?;
        self.report = report;
        if seen.error {
            let (start, end) = seen.error_span.unwrap_or((0, data.len()));
            return Err(Cause::EngineError(kept(&data[start..end])));
        }
        if seen.aborted {
            return Err(Cause::Aborted);
        }
        if let (None, Some((start, end))) = (&self.engine_id, seen.id) {
            self.engine_id = Some(kept(&data[start..end]));
        }
        self.content += seen.content;
        self.finished |= seen.finished;
        if seen.ended {
            self.state = State::Ended;
        }
        if self.counts_usage() && self.asked == UsageAsked::No && seen.no_choices && seen.usage {
            return Ok(Looked::Drop);
        }
        let changed = seen.places().any(|place| self.change(data, seen, &place).is_some());
        Ok(if changed { Looked::Change } else { Looked::Keep })
    }

    /// Keeps the form of an event of which many more may come: one with content, and with nothing said for good.
    fn keep_form(&mut self, event: &[u8], data: Range<usize>, looked: &Looked, seen: &Seen, holes: &Holes) {
        let becomes = match looked {
            Looked::Keep => Becomes::Kept,
            Looked::Change => Becomes::Written,
            Looked::Drop => return,
        };
        if seen.content == 0 || seen.finished || seen.ended {
            return;
        }
        let mut forms = mem::take(&mut self.forms);
        let changes = seen.places().filter_map(|place| {
            let (span, new) = self.change(&event[data.clone()], seen, &place)?;
            Some((span.start + data.start..span.end + data.start, new))
        });
        forms.keep(event, data.start, holes, becomes, changes, seen.content);
        self.forms = forms;
    }

    /// `[DONE]`: the end of chat completions and completions, and nothing to the other two.
    fn done(&mut self) -> Result<Looked, Cause> {
        if !self.counts_usage() {
            return Ok(Looked::Drop);
        }
        if !self.finished {
            return Err(Cause::Truncated);
        }
        self.state = State::Ended;
        Ok(Looked::Keep)
    }

    /// Whether usage is reported only on demand.
    const fn counts_usage(&self) -> bool {
        matches!(self.flavour, Flavour::Chat | Flavour::Completions)
    }

    /// What takes the place of a span of the data, if anything does.
    fn change(&self, data: &[u8], seen: &Seen, place: &chunk::Place) -> Option<(Range<usize>, &[u8])> {
        match place.what {
            What::Model if data[place.range()] == *self.alias => None,
            What::Model => Some((place.range(), &self.alias)),
            What::Usage { .. } if !self.counts_usage() => None,
            What::Usage { cut, null } => match self.asked {
                UsageAsked::No => Some((cut.0 as usize..cut.1 as usize, b"")),
                UsageAsked::Final if !null && !seen.no_choices => Some((place.range(), b"null")),
                UsageAsked::Final | UsageAsked::Continuous => None,
            },
        }
    }

    fn apply(&self, verdict: &Verdict, seen: &Seen, output: &mut Output<'_>, start: usize, end: usize) {
        match verdict {
            Verdict::Keep => {}
            Verdict::Drop => {
                output.change(start, end);
            }
            Verdict::Edit(data) => {
                let work = output.work;
                let buffer = output.change(start, end);
                buffer.extend_from_slice(&work[start..start + data]);
                self.write(&work[start + data..end], seen, buffer);
            }
            Verdict::Replace(event) => output.change(start, end).extend_from_slice(event),
        }
    }

    /// Writes `data` (and what follows it) with its changes.
    fn write(&self, data: &[u8], seen: &Seen, out: &mut Vec<u8>) {
        let mut at = 0;
        for place in seen.places() {
            if let Some((span, new)) = self.change(data, seen, &place) {
                out.extend_from_slice(&data[at..span.start]);
                out.extend_from_slice(new);
                at = span.end;
            }
        }
        out.extend_from_slice(&data[at..]);
    }

    fn rebuilt(&self, data: &[u8], seen: &Seen, name: Option<&[u8]>) -> Vec<u8> {
        let mut changed = Vec::with_capacity(data.len() + self.alias.len());
        self.write(data, seen, &mut changed);
        let mut out = Vec::with_capacity(changed.len() + 64);
        if let Some(name) = name {
            out.extend_from_slice(b"event: ");
            out.extend_from_slice(name);
            out.push(b'\n');
        }
        for line in changed.split(|&byte| byte == b'\n') {
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(line);
            out.push(b'\n');
        }
        out.push(b'\n');
        out
    }
}

/// What becomes of an event's data.
enum Looked {
    Keep,
    Drop,
    Change,
}

/// Text of the engine's that is kept, cut to a bound.
fn kept(text: &[u8]) -> Box<str> {
    String::from_utf8_lossy(&text[..text.len().min(KEPT_MAX)]).into()
}
