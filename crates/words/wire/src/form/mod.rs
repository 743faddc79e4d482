//! Events and answers in the form of an earlier one.
//!
//! An engine writes thousands of events of which only the text of the delta and the counts of tokens differ. Once one of
//! them has been read, its form is kept: the bytes between those places, and what the event comes to. A later event
//! that has the same bytes there, a string where a string stood and a whole number where a whole number stood, is read
//! by comparing: by the grammar of JSON everything else about it is the same. Any other event is read as if there were
//! no form.

mod answer;

use std::ops::Range;

use crate::json::lax::{Cursor, Malformed};
use crate::usage::{Count, Report};

pub(crate) use answer::{AnswerForms, MetAnswer};

/// Most places in one event that may differ; events with more are read each on its own.
pub(crate) const HOLES_MAX: usize = 10;
/// Most places in one answer that may differ.
pub(crate) const ANSWER_HOLES_MAX: usize = 48;
/// Longest event whose form is kept, in bytes.
const FORM_MAX: usize = 4 * 1024;
/// Forms that are kept before any of them was met again.
const TRIES: u64 = 4;
/// Events of a kept form for each further form that is kept: a stream without a form is not searched for one for ever.
const HITS_PER_TRY: u64 = 16;
/// Longest whole number that is read by comparing: it never leaves 64 bits.
const DIGITS_MAX: usize = 19;

/// What may stand at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// The text of a string, without its quotes; whether it is empty belongs to the form.
    Text {
        /// There was none.
        empty: bool,
    },
    /// The engine's id of the answer, without its quotes.
    Id,
    /// A whole number, and what it counts, if it counts.
    Number(Option<Count>),
}

/// Places that may differ, in the order in which they stand.
#[derive(Clone, Debug)]
pub(crate) struct Holes {
    found: Vec<(u32, u32, Hole)>,
    max: usize,
    /// Some were left out.
    overflow: bool,
}

impl Holes {
    /// Of one event of a stream.
    pub(crate) const fn of_event() -> Self {
        Self { found: Vec::new(), max: HOLES_MAX, overflow: false }
    }

    /// Of a whole answer: of every value in it that is not looked at.
    pub(crate) const fn of_answer() -> Self {
        Self { found: Vec::new(), max: ANSWER_HOLES_MAX, overflow: false }
    }

    /// Whether values that are not looked at are noted too.
    pub(crate) const fn is_answer(&self) -> bool {
        self.max == ANSWER_HOLES_MAX
    }

    /// Whether some did not fit: then there is no form.
    pub(crate) const fn is_full(&self) -> bool {
        self.overflow
    }

    /// Notes the engine's id, between its quotes.
    pub(crate) fn id(&mut self, start: usize, end: usize) {
        self.add(start, end, Hole::Id);
    }

    /// Gives up: there is no form.
    pub(crate) const fn give_up(&mut self) {
        self.overflow = true;
    }

    /// Notes the text of a string, between its quotes.
    pub(crate) fn text(&mut self, start: usize, end: usize) {
        self.add(start, end, Hole::Text { empty: start == end });
    }

    /// Notes a number that was read as a whole one.
    pub(crate) fn number(&mut self, start: usize, end: usize, count: Option<Count>) {
        self.add(start, end, Hole::Number(count));
    }

    fn add(&mut self, start: usize, end: usize, hole: Hole) {
        if self.found.len() == self.max {
            self.overflow = true;
        } else {
            self.found.push((start as u32, end as u32, hole));
        }
    }
}

/// Bytes that are the same in every event of a form, up to a place that may differ.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// End of the bytes before the place, in [`Pattern::same`].
    same: u32,
    hole: Hole,
}

/// Bytes to write, up to a place that is copied.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// End of the bytes before the place, in [`Form::out`].
    out: u32,
    /// Which place.
    hole: u8,
}

/// What becomes of the events of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// They leave as they are.
    Kept,
    /// They are written anew, by [`Form::write`].
    Written,
}

/// A text in which some places may differ.
#[derive(Clone, Debug)]
struct Pattern {
    /// All other bytes.
    same: Box<[u8]>,
    pieces: Box<[Piece]>,
}

/// The form of an event, from its first byte to its empty line.
#[derive(Clone, Debug)]
struct Form {
    pattern: Pattern,
    becomes: Becomes,
    out: Box<[u8]>,
    written: Box<[Written]>,
    content: u64,
}

/// An event that was read by comparing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    /// Length of the event, its empty line included.
    pub(crate) len: usize,
    /// What becomes of it.
    pub(crate) becomes: Becomes,
    /// Choices with content in it.
    pub(crate) content: u64,
    spans: [(u32, u32); HOLES_MAX],
}

/// A change of an event: what takes the place of a span.
pub(crate) type Change<'a> = (Range<usize>, &'a [u8]);

/// The form that events have had lately.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    form: Option<Box<Form>>,
    kept: u64,
    hits: u64,
}

impl Forms {
    /// Whether the next event that has no known form should be looked at for one.
    pub(crate) const fn wanted(&self) -> bool {
        self.kept < TRIES + self.hits / HITS_PER_TRY
    }

    /// Keeps the form of an event. `changes` are in the order of their places; `at` is where `holes` count from.
    pub(crate) fn keep<'a>(
        &mut self,
        event: &[u8],
        at: usize,
        holes: &Holes,
        becomes: Becomes,
        changes: impl Iterator<Item = Change<'a>>,
        content: u64,
    ) {
        self.kept += 1;
        if holes.overflow || event.len() > FORM_MAX || event.last() != Some(&b'\n') {
            return;
        }
        let places: Vec<_> = holes.found.iter().map(|&(s, e, hole)| (s as usize + at, e as usize + at, hole)).collect();
        let (out, written) =
            if becomes == Becomes::Written { program(event, &places, changes) } else { (Vec::new(), Vec::new()) };
        self.form = Some(Box::new(Form {
            pattern: Pattern::of(event, places.iter().copied()),
            becomes,
            out: out.into(),
            written: written.into(),
            content,
        }));
    }

    /// Reads the event at the start of `text` by comparing; `None` when it has another form, or is not all there.
    pub(crate) fn meet(&mut self, text: &[u8], report: &mut Report) -> Option<Met> {
        let met = self.form.as_ref()?.meet(text, report)?;
        self.hits += 1;
        Some(met)
    }

    /// Writes the event that `met` is of, and that starts at the start of `text`.
    pub(crate) fn write(&self, text: &[u8], met: &Met, buffer: &mut Vec<u8>) {
        if let Some(form) = &self.form {
            form.write(text, met, buffer);
        }
    }
}

/// How an event of a form is written: bytes and places to copy, from one event and its changes.
fn program<'a>(
    event: &[u8],
    places: &[(usize, usize, Hole)],
    changes: impl Iterator<Item = Change<'a>>,
) -> (Vec<u8>, Vec<Written>) {
    let (mut out, mut written) = (Vec::with_capacity(event.len()), Vec::with_capacity(places.len()));
    let mut places = places.iter().enumerate().peekable();
    let mut at = 0;
    let mut plain = |at: &mut usize, to: usize, out: &mut Vec<u8>| {
        while let Some((index, &(start, end, _))) = places.next_if(|(_, (start, _, _))| *start < to) {
            // a place that a change has taken away is behind
            if start >= *at {
                out.extend_from_slice(&event[*at..start]);
                written.push(Written { out: out.len() as u32, hole: index as u8 });
                *at = end;
            }
        }
        out.extend_from_slice(&event[*at..to]);
        *at = to;
    };
    for (span, new) in changes {
        plain(&mut at, span.start, &mut out);
        out.extend_from_slice(new);
        at = span.end;
    }
    plain(&mut at, event.len(), &mut out);
    (out, written)
}

impl Pattern {
    /// `holes` are in the order of their places.
    fn of(text: &[u8], holes: impl Iterator<Item = (usize, usize, Hole)>) -> Self {
        let (mut same, mut pieces) = (Vec::with_capacity(text.len()), Vec::new());
        let mut from = 0;
        for (start, end, hole) in holes {
            same.extend_from_slice(&text[from..start]);
            pieces.push(Piece { same: same.len() as u32, hole });
            from = end;
        }
        same.extend_from_slice(&text[from..]);
        Self { same: same.into(), pieces: pieces.into() }
    }

    /// How much of `text` the pattern takes; `None` when it is another text. `each` is told of every place that may
    /// differ, by its index and span.
    fn meet(&self, text: &[u8], report: &mut Report, mut each: impl FnMut(usize, Hole, usize, usize)) -> Option<usize> {
        let mut counted = *report;
        let (mut at, mut same) = (0, 0);
        for (index, piece) in self.pieces.iter().enumerate() {
            let literal = &self.same[same..piece.same as usize];
            if !text.get(at..)?.starts_with(literal) {
                return None;
            }
            (at, same) = (at + literal.len(), piece.same as usize);
            let end = match piece.hole {
                Hole::Text { empty } => text_end(text, at).ok().filter(|&end| (end == at) == empty)?,
                Hole::Id => text_end(text, at).ok()?,
                Hole::Number(count) => {
                    let (number, end) = whole(text, at)?;
                    if let Some(count) = count {
                        counted.count(count, number);
                    }
                    end
                }
            };
            each(index, piece.hole, at, end);
            at = end;
        }
        let literal = &self.same[same..];
        if !text.get(at..)?.starts_with(literal) {
            return None;
        }
        *report = counted;
        Some(at + literal.len())
    }
}

impl Form {
    fn meet(&self, text: &[u8], report: &mut Report) -> Option<Met> {
        let mut met = Met { len: 0, becomes: self.becomes, content: self.content, spans: [(0, 0); HOLES_MAX] };
        let spans = &mut met.spans;
        met.len = self.pattern.meet(text, report, |index, _, start, end| {
            spans[index] = (start as u32, end as u32);
        })?;
        Some(met)
    }

    fn write(&self, text: &[u8], met: &Met, buffer: &mut Vec<u8>) {
        let mut out = 0;
        for &Written { out: end, hole } in &*self.written {
            buffer.extend_from_slice(&self.out[out..end as usize]);
            out = end as usize;
            let (start, end) = met.spans[usize::from(hole)];
            buffer.extend_from_slice(&text[start as usize..end as usize]);
        }
        buffer.extend_from_slice(&self.out[out..]);
    }
}

/// Where the text of the string ends that begins at `at`, behind the opening quote.
fn text_end(text: &[u8], at: usize) -> Result<usize, Malformed> {
    let mut cursor = Cursor::new(text, at);
    cursor.text().map(|span| span.end)
}

/// The whole number at `at`, of at most [`DIGITS_MAX`] digits, and where it ends.
fn whole(text: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    let mut end = at;
    while let Some(digit @ b'0'..=b'9') = text.get(end) {
        if end - at == DIGITS_MAX {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
        end += 1;
    }
    // What follows would make it another number; JSON has no number with a zero in front.
    (end > at).then_some((number, end))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::endpoint::Flavour;
    use crate::sse::{Stream, StreamFault, StreamOptions, UsageAsked};

    fn stream(flavour: Flavour, asked: UsageAsked, comparing: bool) -> Stream {
        let mut stream = Stream::new(StreamOptions { flavour, alias: Arc::from("alias"), asked });
        if !comparing {
            stream.forms.kept = u64::MAX;
        }
        stream
    }

    /// What comes out of reads, and what was counted.
    fn outcome(mut stream: Stream, reads: &[Vec<u8>]) -> (Vec<u8>, Option<StreamFault>, String) {
        let mut out = Vec::new();
        let mut fault = None;
        for read in reads {
            match stream.push(Bytes::copy_from_slice(read)) {
                Ok(events) => out.extend_from_slice(&events),
                Err(broken) => {
                    out.extend_from_slice(&broken.before);
                    fault = Some(StreamFault { before: Bytes::new(), ..broken });
                    break;
                }
            }
        }
        let counted = format!(
            "{:?} {:?} {} {} {}",
            stream.usage(),
            stream.engine_id(),
            stream.content_events(),
            stream.progress(),
            stream.ended()
        );
        (out, fault, counted)
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            3 => "[a-z ]{1,8}",
            1 => Just(String::new()),
            1 => Just("\\\"quoted\\\" \\u00e9 \\\\".to_owned()),
            1 => Just("broken\\".to_owned()),
            1 => Just("raw\ncontrol".to_owned()),
            1 => Just("ends\",\"model\":\"x".to_owned()),
        ]
    }

    fn number() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => (0_u64..100_000).prop_map(|number| number.to_string()),
            1 => Just("18446744073709551615".to_owned()),
            1 => Just("99999999999999999999".to_owned()),
            1 => Just("1.5".to_owned()),
            1 => Just("-1".to_owned()),
            1 => Just("1e3".to_owned()),
            1 => Just("007".to_owned()),
            1 => Just("null".to_owned()),
        ]
    }

    fn event() -> impl Strategy<Value = String> {
        let chat = (text(), number(), number()).prop_map(|(text, output, total)| {
            format!(
                "data: {{\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":\
                 [{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}],\"usage\":\
                 {{\"prompt_tokens\":7,\"completion_tokens\":{output},\"total_tokens\":{total}}}}}\n\n"
            )
        });
        let plain = text().prop_map(|text| {
            format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"finish_reason\":null}}],\"usage\":null,\"model\":\"m\"}}\r\n\r\n")
        });
        let messages = text().prop_map(|text| {
            format!(
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
                 {{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
            )
        });
        let responses = (text(), number()).prop_map(|(text, number)| {
            format!(
                "data: {{\"type\":\"response.output_text.delta\",\"sequence_number\":{number},\"delta\":\"{text}\"}}\n\n"
            )
        });
        let rest = prop_oneof![
            Just(": comment\n\n".to_owned()),
            Just("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".to_owned()),
            Just("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n".to_owned()),
            Just("data: {\"error\":{\"message\":\"x\"}}\n\n".to_owned()),
            Just("data: [DONE]\n\n".to_owned()),
        ];
        prop_oneof![8 => chat, 3 => plain, 3 => messages, 3 => responses, 1 => rest]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn events_read_by_comparing_come_to_what_they_come_to_read_alone(
            events in proptest::collection::vec(event(), 1..40),
            cuts in proptest::collection::vec(0_usize..400, 0..20),
            flavour in prop_oneof![
                Just(Flavour::Chat), Just(Flavour::Completions), Just(Flavour::Responses), Just(Flavour::Messages)
            ],
            asked in prop_oneof![Just(UsageAsked::No), Just(UsageAsked::Final), Just(UsageAsked::Continuous)],
        ) {
            let whole = events.concat().into_bytes();
            let mut reads = Vec::new();
            let mut rest = &whole[..];
            for cut in cuts {
                let (read, after) = rest.split_at(cut.min(rest.len()));
                reads.push(read.to_vec());
                rest = after;
            }
            reads.push(rest.to_vec());
            prop_assert_eq!(
                outcome(stream(flavour, asked, true), &reads),
                outcome(stream(flavour, asked, false), &reads)
            );
        }
    }

    #[test]
    fn the_second_event_of_a_form_is_read_by_comparing() {
        let mut stream = stream(Flavour::Chat, UsageAsked::No, true);
        let event = |text: &str, tokens: u64| {
            Bytes::from(format!(
                "data: {{\"model\":\"m\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":\
                 {{\"prompt_tokens\":1,\"completion_tokens\":{tokens}}}}}\n\n"
            ))
        };
        for (text, tokens) in [("a", 1), ("long text", 2), ("\\\"", 30)] {
            let out = stream.push(event(text, tokens)).unwrap();
            let expected =
                format!("data: {{\"model\":\"alias\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
            assert_eq!(out, expected.as_bytes());
        }
        assert_eq!(stream.forms.hits, 2);
        assert_eq!(stream.usage().map(|usage| usage.output), Some(30));
        assert_eq!(stream.content_events(), 3);
    }

    #[test]
    fn an_event_with_more_places_than_the_bound_has_no_form() {
        for (places, hits) in [(HOLES_MAX, 1), (HOLES_MAX + 1, 0)] {
            let mut stream = stream(Flavour::Chat, UsageAsked::Continuous, true);
            let choices = vec!["{\"delta\":{\"content\":\"x\"}}"; places].join(",");
            let event = Bytes::from(format!("data: {{\"choices\":[{choices}]}}\n\n"));
            for _ in 0..2 {
                assert_eq!(stream.push(event.clone()).unwrap(), event);
            }
            assert_eq!(stream.forms.hits, hits, "{places} places");
        }
    }

    #[test]
    fn an_event_over_the_bound_has_no_form() {
        let event = |padding: usize| {
            let event = format!(
                "data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"p\":\"{}\"}}\n\n",
                "p".repeat(padding)
            );
            Bytes::from(event)
        };
        let overhead = event(0).len();
        for (len, hits) in [(FORM_MAX, 1), (FORM_MAX + 1, 0)] {
            let mut stream = stream(Flavour::Chat, UsageAsked::Continuous, true);
            for _ in 0..2 {
                assert_eq!(stream.push(event(len - overhead)).unwrap().len(), len);
            }
            assert_eq!(stream.forms.hits, hits, "{len} bytes");
        }
    }

    #[test]
    fn forms_are_not_looked_for_for_ever() {
        let mut stream = stream(Flavour::Chat, UsageAsked::Continuous, true);
        for number in 0..100 {
            let event = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"x\"}}}}],\"p\":\"{number}\"}}\n\n");
            stream.push(Bytes::from(event)).unwrap();
        }
        assert_eq!((stream.forms.kept, stream.forms.hits), (TRIES, 0));
    }
}
