//! How a batch of entries travels to SQLite in one parameter, and how the part of an entry that is never summed is kept.
//!
//! A batch is a JSON array of texts, one per row: fields of fixed width, then the detail. Not an array of arrays:
//! SQLite renders every inner one as text and parses it again for each field, and a text with escapes it copies byte by
//! byte. Measured, both together are more than half of the cost of a row. So the detail has no quote and no backslash
//! either: its fields stand behind each other with `|` between them, and what would disturb is percent-encoded.

use std::borrow::Cow;

use tidegate_core::{FaultKind, UsageSource};

use super::StoreError;
use crate::entry_ref::EntryRef;

/// Adds what [`BatchRows::finish`] says to the ledger. The numbers are those of the widths below. The row is cut as a
/// blob: in a text every cut counts characters from the beginning again.
pub(super) const INSERT: &str = "
    WITH e AS MATERIALIZED (SELECT CAST(value AS BLOB) AS row FROM json_each(?1))
    INSERT INTO ledger (id, kind, at_ms, subject, outcome, prompt_tokens, cached_tokens, output_tokens, detail)
    SELECT CAST(substr(row, 1, 26) AS TEXT), 0, CAST(substr(row, 27, 20) AS INTEGER),
           CAST(substr(row, 47, 20) AS INTEGER), rtrim(CAST(substr(row, 67, 10) AS TEXT)),
           CAST(substr(row, 77, 13) AS INTEGER), CAST(substr(row, 90, 13) AS INTEGER),
           CAST(substr(row, 103, 13) AS INTEGER), CAST(substr(row, 116) AS TEXT)
    FROM e WHERE true
    ON CONFLICT (id, kind) DO NOTHING";

const WIDE: usize = 20;
const OUTCOME: usize = 10;
/// Digits of [`super::TOKENS_MAX`].
const TOKENS: usize = 13;
/// Fields of a detail.
const FIELDS: usize = 15;

/// Rows for one statement.
#[derive(Debug)]
pub(super) struct BatchRows {
    text: String,
}

impl BatchRows {
    pub(super) fn with_capacity(rows: usize) -> Self {
        let mut text = String::with_capacity(2 + rows * 320);
        text.push('[');
        Self { text }
    }

    /// Adds a row. `tokens` are prompt, cached and output, each at most [`super::TOKENS_MAX`].
    pub(super) fn push(&mut self, entry: &EntryRef<'_>, subject: i64, tokens: [u64; 3]) {
        let text = &mut self.text;
        text.push_str(if text.len() == 1 { "\"" } else { ",\"" });
        text.extend(entry.id.to_text().map(char::from));
        put_padded(text, entry.at.ms, WIDE);
        put_padded(text, subject, WIDE);
        let outcome = entry.outcome.as_str();
        text.push_str(outcome);
        text.extend(std::iter::repeat_n(' ', OUTCOME.saturating_sub(outcome.len())));
        for tokens in tokens {
            put_padded(text, i64::try_from(tokens).unwrap_or(i64::MAX), TOKENS);
        }
        put_detail(text, entry);
        text.push('"');
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push(']');
        self.text
    }
}

/// Decimal, right-aligned.
fn put_padded(text: &mut String, number: i64, width: usize) {
    let mut digits = [b' '; WIDE];
    let mut at = WIDE;
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    let from = at.min(WIDE - width.min(WIDE));
    text.push_str(std::str::from_utf8(&digits[from..]).unwrap_or_default());
}

fn put_detail(text: &mut String, entry: &EntryRef<'_>) {
    put_text(text, Some(entry.request_id));
    put_next(text, Some(entry.endpoint));
    put_next(text, entry.deployment);
    put_next(text, entry.replica);
    put_next(text, entry.engine_id);
    put_next(text, entry.fault.map(FaultKind::as_str));
    put_next(text, entry.code);
    put_next(text, Some(entry.source.as_str()));
    put_next(text, Some(if entry.streamed { "streamed" } else { "whole" }));
    for number in [
        Some(u64::from(entry.status)),
        Some(u64::from(entry.attempts)),
        Some(entry.reserved_tokens),
        Some(entry.queue_us),
        entry.ttft_us,
        Some(entry.total_us),
    ] {
        text.push('|');
        if let Some(number) = number {
            put_number(text, number);
        }
    }
}

fn put_number(text: &mut String, number: u64) {
    match i64::try_from(number) {
        Ok(number) => put_padded(text, number, 1),
        Err(_) => text.push_str(&number.to_string()),
    }
}

fn put_next(text: &mut String, field: Option<&str>) {
    text.push('|');
    put_text(text, field);
}

fn put_text(text: &mut String, field: Option<&str>) {
    let Some(field) = field else { return };
    if !field.bytes().any(disturbs) {
        text.push_str(field);
        return;
    }
    for c in field.chars() {
        match u8::try_from(c) {
            Ok(byte) if disturbs(byte) => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                text.push('%');
                text.push(char::from(HEX[usize::from(byte >> 4)]));
                text.push(char::from(HEX[usize::from(byte & 15)]));
            }
            Ok(_) | Err(_) => text.push(c),
        }
    }
}

/// What may not stand in a field as it is: its separator and its escape, and what JSON would have to escape.
const fn disturbs(byte: u8) -> bool {
    matches!(byte, b'|' | b'%' | b'"' | b'\\' | 0x7F) || byte < 0x20
}

/// What of an entry is shown but never summed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Detail {
    pub(super) request_id: Box<str>,
    pub(super) endpoint: Box<str>,
    pub(super) deployment: Option<Box<str>>,
    pub(super) replica: Option<Box<str>>,
    pub(super) engine_id: Option<Box<str>>,
    pub(super) fault: Option<FaultKind>,
    pub(super) code: Option<Box<str>>,
    pub(super) source: UsageSource,
    pub(super) streamed: bool,
    pub(super) status: u16,
    pub(super) attempts: u32,
    pub(super) reserved_tokens: u64,
    pub(super) queue_us: u64,
    pub(super) ttft_us: Option<u64>,
    pub(super) total_us: u64,
}

impl Detail {
    /// Reads what [`put_detail`] has written.
    pub(super) fn parse(text: &str) -> Result<Self, StoreError> {
        Self::read(text).ok_or_else(|| StoreError::Corrupt("a ledger row's detail cannot be read".to_owned()))
    }

    fn read(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('|').collect();
        let fields: &[&str; FIELDS] = fields.as_slice().try_into().ok()?;
        let [request_id, endpoint, deployment, replica, engine_id, fault, code, source, streamed, numbers @ ..] =
            fields;
        let [status, attempts, reserved_tokens, queue_us, ttft_us, total_us] = numbers;
        Some(Self {
            request_id: decode(request_id)?.into(),
            endpoint: decode(endpoint)?.into(),
            deployment: maybe(deployment)?,
            replica: maybe(replica)?,
            engine_id: maybe(engine_id)?,
            fault: match *fault {
                "" => None,
                fault => Some(FaultKind::ALL.into_iter().find(|kind| kind.as_str() == fault)?),
            },
            code: maybe(code)?,
            source: [UsageSource::Estimated, UsageSource::Engine, UsageSource::None]
                .into_iter()
                .find(|known| known.as_str() == *source)?,
            streamed: *streamed == "streamed",
            status: status.parse().ok()?,
            attempts: attempts.parse().ok()?,
            reserved_tokens: reserved_tokens.parse().ok()?,
            queue_us: queue_us.parse().ok()?,
            ttft_us: if ttft_us.is_empty() { None } else { Some(ttft_us.parse().ok()?) },
            total_us: total_us.parse().ok()?,
        })
    }
}

fn maybe(field: &str) -> Option<Option<Box<str>>> {
    if field.is_empty() { Some(None) } else { decode(field).map(|text| Some(text.into())) }
}

fn decode(field: &str) -> Option<Cow<'_, str>> {
    if !field.contains('%') {
        return Some(Cow::Borrowed(field));
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (pair, behind) = rest.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
        rest = behind;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}
