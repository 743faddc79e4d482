//! One look at the data of one event: where the model's name and the usage are, whether it ends or breaks the stream,
//! and whether it carries content. Nothing is built and nothing is checked beyond what is looked at.

use std::mem;
use std::ops::Range;

use crate::endpoint::Flavour;
use crate::json::Kind;
use crate::json::lax::{Cursor, Malformed};
use crate::json::text::unescape;
use crate::usage::Report;

use crate::form::Holes;

/// Most places in one event that may need a change; engines write each member once.
const PLACES_MAX: usize = 4;

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The value of a `model` member.
    Model,
    /// The value of a `usage` member.
    Usage {
        /// Cutting it takes this span, so that the commas stay right.
        cut: (u32, u32),
        /// Whether it is `null`.
        null: bool,
    },
}

/// A place in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) what: What,
}

/// What was seen in one event.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    places: [Option<Place>; PLACES_MAX],
    len: usize,
    /// Span of the engine's id between its quotes.
    pub(crate) id: Option<(usize, usize)>,
    /// A true `error` member, or a type that says so.
    pub(crate) error: bool,
    /// Span of the error's value, for the log.
    pub(crate) error_span: Option<(usize, usize)>,
    /// A choice ended with `finish_reason: abort`, or a message with that `stop_reason`.
    pub(crate) aborted: bool,
    /// A choice ended otherwise, or the flavour's last event but one.
    pub(crate) finished: bool,
    /// The flavour's own last event.
    pub(crate) ended: bool,
    /// Choices with content in this event.
    pub(crate) content: u64,
    /// `choices` is there, and empty.
    pub(crate) no_choices: bool,
    /// A usage object was there.
    pub(crate) usage: bool,
}

impl Place {
    /// The value's span.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Seen {
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().take(self.len).flatten().copied()
    }

    fn add(&mut self, place: Place) -> Result<(), Malformed> {
        *self.places.get_mut(self.len).ok_or(Malformed)? = Some(place);
        self.len += 1;
        Ok(())
    }
}

/// Looks at the data of an event, which must be one JSON object.
pub(crate) fn look(flavour: Flavour, text: &[u8], report: &mut Report) -> Result<Seen, Malformed> {
    look_for(flavour, text, report, None)
}

/// As [`look`]; what another event of the same form may have different goes to `holes`.
pub(crate) fn look_for(
    flavour: Flavour,
    text: &[u8],
    report: &mut Report,
    holes: Option<&mut Holes>,
) -> Result<Seen, Malformed> {
    if u32::try_from(text.len()).is_err() {
        return Err(Malformed);
    }
    let mut look = Look { flavour, text, cursor: Cursor::new(text, 0), seen: Seen::default(), report, holes };
    look.cursor.space();
    look.top()?;
    if look.cursor.at_end() { Ok(look.seen) } else { Err(Malformed) }
}

struct Look<'a> {
    flavour: Flavour,
    text: &'a [u8],
    cursor: Cursor<'a>,
    seen: Seen,
    report: &'a mut Report,
    holes: Option<&'a mut Holes>,
}

impl Look<'_> {
    fn top(&mut self) -> Result<(), Malformed> {
        self.cursor.enter(b'{')?;
        let mut first = true;
        let (mut end, mut had) = (self.cursor.at(), false);
        while let Some(key) = self.cursor.key(&mut first)? {
            let key_text = &self.text[key.clone()];
            // Engines do not escape keys; one that did would be read like any other.
            if key_text.contains(&b'\\') {
                let unescaped = unescape(key_text).ok_or(Malformed)?.into_owned();
                self.member(unescaped.as_bytes(), key, end, &mut had)?;
            } else {
                self.member(key_text, key, end, &mut had)?;
            }
            end = self.cursor.at();
        }
        Ok(())
    }

    fn member(&mut self, name: &[u8], key: Range<usize>, before: usize, had: &mut bool) -> Result<(), Malformed> {
        let kind = self.cursor.kind()?;
        let nested = match self.flavour {
            Flavour::Chat | Flavour::Completions => None,
            Flavour::Responses => Some(&b"response"[..]),
            Flavour::Messages => Some(&b"message"[..]),
        };
        match (name, kind) {
            (b"model", _) => self.model(),
            (b"usage", Kind::Object | Kind::Null) => self.usage(key, before, had),
            (b"error", _) => self.error(),
            (b"id", Kind::String) => self.id(),
            (b"choices", Kind::Array) => self.choices(),
            (b"stop_reason", Kind::String) if self.flavour == Flavour::Messages => self.stop_reason(),
            (b"delta", Kind::Object) if self.flavour == Flavour::Messages => self.messages_delta(),
            (b"status", Kind::String) if self.flavour == Flavour::Responses => {
                let status = self.cursor.string()?;
                self.seen.error |= &self.text[status] == b"failed";
                Ok(())
            }
            (b"type", Kind::String) => {
                let name = self.cursor.string()?;
                self.event_type(&self.text[name]);
                Ok(())
            }
            (name, Kind::Object) if Some(name) == nested => self.nested(),
            // Counted by the engine, or text of the answer: what differs from event to event.
            (_, Kind::Number) => self.number(),
            (b"delta" | b"obfuscation", Kind::String) => self.hole_of_text().map(drop),
            _ => self.skip(),
        }
    }

    fn id(&mut self) -> Result<(), Malformed> {
        let id = self.cursor.string()?;
        if let Some(holes) = self.holes.as_deref_mut().filter(|holes| holes.is_answer()) {
            holes.id(id.start, id.end);
        }
        self.seen.id = Some((id.start, id.end));
        Ok(())
    }

    /// Steps over a value that says nothing to the gate.
    fn skip(&mut self) -> Result<(), Malformed> {
        match self.holes.as_deref_mut().filter(|holes| holes.is_answer()) {
            Some(holes) => note(&mut self.cursor, self.text, holes, 0),
            None => self.cursor.skip().map(drop),
        }
    }

    /// Steps over a string that may be another in the next event, and returns what stands between its quotes.
    fn hole_of_text(&mut self) -> Result<Range<usize>, Malformed> {
        let span = self.cursor.string()?;
        if let Some(holes) = &mut self.holes {
            holes.text(span.start, span.end);
        }
        Ok(span)
    }

    /// Steps over a number; a whole one may be another in the next event.
    fn number(&mut self) -> Result<(), Malformed> {
        let span = self.cursor.skip()?;
        if let Some(holes) = &mut self.holes
            && self.text[span.clone()].iter().all(u8::is_ascii_digit)
        {
            holes.number(span.start, span.end, None);
        }
        Ok(())
    }

    /// The delta of one of Anthropic's events: that of the last but one says why the answer ended.
    fn messages_delta(&mut self) -> Result<(), Malformed> {
        self.cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = self.cursor.key(&mut first)? {
            let kind = self.cursor.kind()?;
            match (&self.text[key], kind) {
                (b"stop_reason", Kind::String) => self.stop_reason()?,
                (b"text" | b"thinking" | b"partial_json", Kind::String) => {
                    self.hole_of_text()?;
                }
                _ => {
                    self.cursor.skip()?;
                }
            }
        }
        Ok(())
    }

    fn stop_reason(&mut self) -> Result<(), Malformed> {
        let reason = self.cursor.string()?;
        self.seen.aborted |= &self.text[reason] == b"abort";
        Ok(())
    }

    /// `response` or `message`: model, usage and id stand one level deeper.
    fn nested(&mut self) -> Result<(), Malformed> {
        self.cursor.enter(b'{')?;
        let mut first = true;
        let (mut end, mut had) = (self.cursor.at(), false);
        while let Some(key) = self.cursor.key(&mut first)? {
            let kind = self.cursor.kind()?;
            match (&self.text[key.clone()], kind) {
                (b"model", _) => self.model()?,
                (b"usage", Kind::Object | Kind::Null) => self.usage(key, end, &mut had)?,
                (b"id", Kind::String) => self.id()?,
                _ => self.skip()?,
            }
            end = self.cursor.at();
        }
        Ok(())
    }

    fn model(&mut self) -> Result<(), Malformed> {
        let span = self.cursor.skip()?;
        self.seen.add(Place { start: span.start as u32, end: span.end as u32, what: What::Model })
    }

    fn usage(&mut self, key: Range<usize>, before: usize, had: &mut bool) -> Result<(), Malformed> {
        // Two usages in one object have two readings, and the commas of the cuts would meet.
        if mem::replace(had, true) {
            return Err(Malformed);
        }
        let start = self.cursor.at();
        let null = self.cursor.kind()? == Kind::Null;
        if null {
            self.cursor.skip()?;
        } else {
            self.report.read(self.text, &mut self.cursor, self.holes.as_deref_mut())?;
            self.seen.usage = true;
        }
        let end = self.cursor.at();
        let cut = if self.text[before..key.start].contains(&b',') {
            (before, end)
        } else {
            // The first member goes with the comma after it, if there is one.
            let mut after = self.cursor;
            after.space();
            if after.peek() == Some(b',') { (key.start - 1, after.at() + 1) } else { (key.start - 1, end) }
        };
        let cut = (cut.0 as u32, cut.1 as u32);
        self.seen.add(Place { start: start as u32, end: end as u32, what: What::Usage { cut, null } })
    }

    fn error(&mut self) -> Result<(), Malformed> {
        let span = self.cursor.skip()?;
        let value = &self.text[span.clone()];
        if !matches!(value, b"null" | b"false" | b"0" | b"\"\"" | b"{}" | b"[]") {
            self.seen.error = true;
            self.seen.error_span = Some((span.start, span.end));
        }
        Ok(())
    }

    fn event_type(&mut self, name: &[u8]) {
        match (self.flavour, name) {
            (Flavour::Responses | Flavour::Messages, b"error") | (Flavour::Responses, b"response.failed") => {
                self.seen.error = true;
            }
            (Flavour::Responses, b"response.completed" | b"response.incomplete") => {
                (self.seen.finished, self.seen.ended) = (true, true);
            }
            (Flavour::Responses, name) if name.ends_with(b".delta") => self.seen.content = 1,
            (Flavour::Messages, b"message_delta") => self.seen.finished = true,
            (Flavour::Messages, b"message_stop") => self.seen.ended = true,
            (Flavour::Messages, b"content_block_delta") => self.seen.content = 1,
            _ => {}
        }
    }

    fn choices(&mut self) -> Result<(), Malformed> {
        self.cursor.enter(b'[')?;
        let mut first = true;
        self.seen.no_choices = true;
        while self.cursor.element(&mut first)? {
            self.seen.no_choices = false;
            if self.cursor.kind()? == Kind::Object {
                self.choice()?;
            } else {
                self.cursor.skip()?;
            }
        }
        Ok(())
    }

    fn choice(&mut self) -> Result<(), Malformed> {
        self.cursor.enter(b'{')?;
        let mut first = true;
        let mut content = false;
        while let Some(key) = self.cursor.key(&mut first)? {
            let kind = self.cursor.kind()?;
            match (&self.text[key], kind) {
                (b"finish_reason", Kind::String) => {
                    let reason = self.cursor.string()?;
                    if &self.text[reason] == b"abort" { self.seen.aborted = true } else { self.seen.finished = true }
                }
                (b"delta", Kind::Object) => content |= self.delta()?,
                (b"text", Kind::String) => content |= !self.hole_of_text()?.is_empty(),
                _ => self.skip()?,
            }
        }
        self.seen.content += u64::from(content);
        Ok(())
    }

    /// Whether a delta carries anything: any text that is not empty, any list, in any member but the role.
    fn delta(&mut self) -> Result<bool, Malformed> {
        self.cursor.enter(b'{')?;
        let mut first = true;
        let mut content = false;
        while let Some(key) = self.cursor.key(&mut first)? {
            content |= match self.cursor.kind()? {
                Kind::String if &self.text[key] != b"role" => !self.hole_of_text()?.is_empty(),
                Kind::Array | Kind::Object => self.cursor.skip()?.len() > 2,
                Kind::String | Kind::Null | Kind::Bool | Kind::Number => {
                    self.cursor.skip()?;
                    false
                }
            };
        }
        Ok(content)
    }
}

/// Deepest value in which texts and numbers are noted.
const NOTED_DEPTH_MAX: usize = 16;

/// Steps over a value and notes every text and every whole number in it.
fn note(cursor: &mut Cursor<'_>, text: &[u8], holes: &mut Holes, depth: usize) -> Result<(), Malformed> {
    if holes.is_full() {
        return cursor.skip().map(drop);
    }
    let mut first = true;
    match cursor.kind()? {
        Kind::String => {
            let span = cursor.string()?;
            holes.text(span.start, span.end);
        }
        Kind::Number => {
            let span = cursor.skip()?;
            if text[span.clone()].iter().all(u8::is_ascii_digit) {
                holes.number(span.start, span.end, None);
            }
        }
        Kind::Array | Kind::Object if depth == NOTED_DEPTH_MAX => {
            holes.give_up();
            cursor.skip()?;
        }
        Kind::Array => {
            cursor.enter(b'[')?;
            while cursor.element(&mut first)? {
                note(cursor, text, holes, depth + 1)?;
            }
        }
        Kind::Object => {
            cursor.enter(b'{')?;
            while cursor.key(&mut first)?.is_some() {
                note(cursor, text, holes, depth + 1)?;
            }
        }
        Kind::Null | Kind::Bool => {
            cursor.skip()?;
        }
    }
    Ok(())
}
