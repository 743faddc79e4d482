//! One journal record: how it lies in the file, and how it is read back without trusting a byte of it.
//!
//! ```text
//! crc32 u32 | body length u32 | kind u8 | body          all little-endian; the CRC covers everything behind itself
//! ```
//!
//! Binary and by hand, because a reservation is written on the request path: encoding one costs about a tenth of what
//! the system call behind it costs, and allocates nothing once the buffer has grown to its working size. Integers are
//! LEB128 where they are small as a rule; texts are length and bytes.

use tidegate_core::{Entry, FaultKind, Outcome, RequestId, Reservation, Unix, UsageSource};

use crate::entry_ref::EntryRef;

/// Bytes in front of a record's body.
pub(crate) const HEAD: usize = 9;
/// Longest body. Every text is bounded, so that no record comes near it.
pub(crate) const BODY_MAX: usize = 16 * 1024;
/// Longest text in a record, in bytes. A reservation with a longer one is refused; in an entry it is cut, because an
/// entry must not be lost and a refused request may have named anything.
pub const TEXT_MAX: usize = 512;

const RESERVATION: u8 = 1;
const ENTRY: u8 = 2;

/// A record as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Written before the upstream call.
    Reservation {
        /// What was reserved.
        reservation: Reservation,
        /// When it was written, on `CLOCK_BOOTTIME`; the boot is the segment's.
        boottime_ns: u64,
    },
    /// Written after it.
    Entry(Entry),
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// They end before the record does, or are all zero: what a write that was cut short leaves behind.
    Torn,
    /// They are no record that anybody wrote.
    Corrupt,
}

/// A text of a reservation is over [`TEXT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong(pub(crate) &'static str);

/// Appends a reservation's record; on an error `out` is unchanged.
pub(crate) fn put_reservation(out: &mut Vec<u8>, r: &Reservation, boottime_ns: u64) -> Result<(), TooLong> {
    let key = r.key.as_ref().map_or("", |key| key.as_str());
    for (name, text) in [
        ("issuer", &*r.issuer),
        ("caller", r.caller.as_str()),
        ("team", r.team.as_str()),
        ("key", key),
        ("alias", r.alias.as_str()),
    ] {
        if text.len() > TEXT_MAX {
            return Err(TooLong(name));
        }
    }
    let start = open(out, RESERVATION);
    out.extend_from_slice(&r.id.to_bits().to_le_bytes());
    out.extend_from_slice(&r.at.ms.to_le_bytes());
    out.extend_from_slice(&boottime_ns.to_le_bytes());
    put_text(out, &r.issuer);
    put_text(out, r.caller.as_str());
    put_text(out, r.team.as_str());
    put_maybe(out, r.key.as_ref().map(|key| key.as_str()));
    put_text(out, r.alias.as_str());
    put_number(out, r.prompt_tokens);
    put_number(out, r.output_tokens);
    close(out, start);
    Ok(())
}

/// Appends an entry's record. Texts over [`TEXT_MAX`] are cut at a character.
pub(crate) fn put_entry(out: &mut Vec<u8>, e: &Entry) {
    let start = open(out, ENTRY);
    out.extend_from_slice(&e.id.to_bits().to_le_bytes());
    out.extend_from_slice(&e.at.ms.to_le_bytes());
    out.extend_from_slice(&e.status.to_le_bytes());
    out.push(outcome_code(e.outcome));
    out.push(source_code(e.source));
    out.push(u8::from(e.streamed));
    put_text(out, &e.request_id);
    put_text(out, &e.issuer);
    put_text(out, e.caller.as_str());
    put_text(out, e.team.as_str());
    put_maybe(out, e.key.as_ref().map(|key| key.as_str()));
    put_text(out, &e.endpoint);
    put_maybe(out, e.alias.as_ref().map(|name| name.as_str()));
    put_maybe(out, e.served_alias.as_ref().map(|name| name.as_str()));
    put_maybe(out, e.model.as_ref().map(|name| name.as_str()));
    put_maybe(out, e.deployment.as_ref().map(|name| name.as_str()));
    put_maybe(out, e.replica.as_ref().map(|name| name.as_str()));
    put_maybe(out, e.engine_id.as_deref());
    put_maybe(out, e.fault.map(FaultKind::as_str));
    put_maybe(out, e.code.as_deref());
    put_number(out, u64::from(e.attempts));
    put_number(out, e.prompt_tokens);
    put_number(out, e.cached_tokens);
    put_number(out, e.output_tokens);
    put_number(out, e.reserved_tokens);
    put_number(out, e.queue_us);
    put_number(out, e.ttft_us.map_or(0, |us| us.saturating_add(1)));
    put_number(out, e.total_us);
    close(out, start);
}

/// Reads the record at the start of `bytes` and says how long it is.
pub(crate) fn read(bytes: &[u8]) -> Result<(Record, usize), Unread> {
    let (kind, len) = framed(bytes)?;
    Ok((record(kind, &bytes[HEAD..len])?, len))
}

fn record(kind: u8, rest: &[u8]) -> Result<Record, Unread> {
    let mut body = Body { rest };
    let record = match kind {
        RESERVATION => body.reservation(),
        ENTRY => body.entry().map(|entry| Record::Entry(entry.to_entry())),
        _ => None,
    };
    record.filter(|_| body.rest.is_empty()).ok_or(Unread::Corrupt)
}

/// What the ledger's writer has to know of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted<'a> {
    /// A reservation's id. The rest of it matters only when its process has died.
    Reservation(RequestId),
    /// An entry: its id, and its body, which [`entry`] reads.
    Entry(RequestId, &'a [u8]),
}

/// As [`read`], without what the ledger's writer has no use for. What is given back can be read.
pub(crate) fn note(bytes: &[u8]) -> Result<(Noted<'_>, usize), Unread> {
    let (kind, len) = framed(bytes)?;
    let body = &bytes[HEAD..len];
    let noted = match kind {
        RESERVATION => Body { rest: body }.id().map(Noted::Reservation),
        ENTRY => entry(body).map(|entry| Noted::Entry(entry.id, body)),
        _ => None,
    };
    noted.map(|noted| (noted, len)).ok_or(Unread::Corrupt)
}

/// Reads an entry's body.
pub(crate) fn entry(body: &[u8]) -> Option<EntryRef<'_>> {
    let mut body = Body { rest: body };
    body.entry().filter(|_| body.rest.is_empty())
}

/// The body of an entry's record.
pub(crate) fn entry_body(entry: &Entry) -> Vec<u8> {
    let mut record = Vec::new();
    put_entry(&mut record, entry);
    record.split_off(HEAD)
}

/// Checks length and CRC of the record at the start of `bytes`: its kind and its whole length.
fn framed(bytes: &[u8]) -> Result<(u8, usize), Unread> {
    let torn = if bytes.iter().take(HEAD).all(|byte| *byte == 0) { Unread::Torn } else { Unread::Corrupt };
    let Some(head) = bytes.get(..HEAD) else { return Err(Unread::Torn) };
    let crc = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let body = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if body == 0 || body > BODY_MAX {
        return Err(torn);
    }
    let len = HEAD + body;
    let Some(record) = bytes.get(..len) else { return Err(Unread::Torn) };
    if crc32fast::hash(&record[4..]) != crc {
        return Err(torn);
    }
    Ok((head[8], len))
}

fn open(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD - 1]);
    out.push(kind);
    start
}

fn close(out: &mut [u8], start: usize) {
    let body = (out.len() - start - HEAD) as u32;
    out[start + 4..start + 8].copy_from_slice(&body.to_le_bytes());
    let crc = crc32fast::hash(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Length + 1, then the bytes; 0 is "none".
fn put_maybe(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => out.push(0),
        Some(text) => {
            let text = cut(text);
            put_number(out, text.len() as u64 + 1);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_maybe(out, Some(text));
}

/// The longest start of a text that is at most [`TEXT_MAX`] bytes and whole characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

const fn outcome_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Ok => 0,
        Outcome::Cancelled => 1,
        Outcome::Failed => 2,
        Outcome::Orphaned => 3,
    }
}

const fn source_code(source: UsageSource) -> u8 {
    match source {
        UsageSource::Estimated => 0,
        UsageSource::Engine => 1,
        UsageSource::None => 2,
    }
}

/// What of a body is not read yet. Every step is `None` on bytes that no writer makes.
struct Body<'a> {
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn id(&mut self) -> Option<RequestId> {
        self.take().map(u128::from_le_bytes).map(RequestId::from_bits)
    }

    fn unix(&mut self) -> Option<Unix> {
        self.take().map(i64::from_le_bytes).map(Unix::from_ms)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn maybe(&mut self) -> Option<Option<&'a str>> {
        let Some(len) = self.number()?.checked_sub(1) else { return Some(None) };
        let len = usize::try_from(len).ok().filter(|len| *len <= TEXT_MAX)?;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        std::str::from_utf8(text).ok().map(Some)
    }

    fn text(&mut self) -> Option<&'a str> {
        self.maybe()?
    }

    fn maybe_into<T: From<&'a str>>(&mut self) -> Option<Option<T>> {
        self.maybe().map(|text| text.map(T::from))
    }

    fn reservation(&mut self) -> Option<Record> {
        let id = self.id()?;
        let at = self.unix()?;
        let boottime_ns = self.take().map(u64::from_le_bytes)?;
        let reservation = Reservation {
            id,
            at,
            issuer: self.text()?.into(),
            caller: self.text()?.into(),
            team: self.text()?.into(),
            key: self.maybe_into()?,
            alias: self.text()?.into(),
            prompt_tokens: self.number()?,
            output_tokens: self.number()?,
        };
        Some(Record::Reservation { reservation, boottime_ns })
    }

    fn entry(&mut self) -> Option<EntryRef<'a>> {
        let id = self.id()?;
        let at = self.unix()?;
        let status = self.take().map(u16::from_le_bytes)?;
        let outcome = match self.byte()? {
            0 => Outcome::Ok,
            1 => Outcome::Cancelled,
            2 => Outcome::Failed,
            3 => Outcome::Orphaned,
            _ => return None,
        };
        let source = match self.byte()? {
            0 => UsageSource::Estimated,
            1 => UsageSource::Engine,
            2 => UsageSource::None,
            _ => return None,
        };
        let streamed = match self.byte()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(EntryRef {
            id,
            request_id: self.text()?,
            at,
            issuer: self.text()?,
            caller: self.text()?,
            team: self.text()?,
            key: self.maybe()?,
            endpoint: self.text()?,
            alias: self.maybe()?,
            served_alias: self.maybe()?,
            model: self.maybe()?,
            deployment: self.maybe()?,
            replica: self.maybe()?,
            engine_id: self.maybe()?,
            outcome,
            fault: self.fault()?,
            code: self.maybe()?,
            status,
            streamed,
            attempts: self.number().and_then(|n| u32::try_from(n).ok())?,
            source,
            prompt_tokens: self.number()?,
            cached_tokens: self.number()?,
            output_tokens: self.number()?,
            reserved_tokens: self.number()?,
            queue_us: self.number()?,
            ttft_us: self.number()?.checked_sub(1),
            total_us: self.number()?,
        })
    }

    fn fault(&mut self) -> Option<Option<FaultKind>> {
        let Some(text) = self.maybe()? else { return Some(None) };
        FaultKind::ALL.into_iter().find(|kind| kind.as_str() == text).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![8 => ".{0,40}", 1 => Just("x".repeat(TEXT_MAX)), 1 => Just(String::new())]
    }

    prop_compose! {
        fn reservations()(
            id in any::<u128>(), at in any::<i64>(), texts in prop::array::uniform4(text()), key in option::of(text()),
            prompt_tokens in any::<u64>(), output_tokens in any::<u64>(),
        ) -> Reservation {
            let [issuer, caller, team, alias] = texts;
            Reservation {
                id: RequestId::from_bits(id), at: Unix::from_ms(at), issuer: issuer.into(), caller: caller.into(),
                team: team.into(), key: key.map(Into::into), alias: alias.into(), prompt_tokens, output_tokens,
            }
        }
    }

    prop_compose! {
        fn entries()(
            reservation in reservations(), texts in prop::array::uniform8(option::of(text())), status in any::<u16>(),
            outcome in 0_usize..4, source in 0_usize..3, fault in option::of(0_usize..FaultKind::ALL.len()),
            streamed in any::<bool>(), attempts in any::<u32>(), numbers in prop::array::uniform4(any::<u64>()),
            ttft_us in option::of(0..u64::MAX - 1),
        ) -> Entry {
            let [alias, served_alias, model, deployment, replica, engine_id, code, request_id] = texts;
            let [cached_tokens, reserved_tokens, queue_us, total_us] = numbers;
            Entry {
                alias: alias.map(Into::into), served_alias: served_alias.map(Into::into), model: model.map(Into::into),
                deployment: deployment.map(Into::into), replica: replica.map(Into::into),
                engine_id: engine_id.map(Into::into), code: code.map(Into::into),
                request_id: request_id.unwrap_or_default().into(), endpoint: "/v1/embeddings".into(),
                outcome: [Outcome::Ok, Outcome::Cancelled, Outcome::Failed, Outcome::Orphaned][outcome],
                source: [UsageSource::Estimated, UsageSource::Engine, UsageSource::None][source],
                fault: fault.map(|at| FaultKind::ALL[at]), status, streamed, attempts,
                cached_tokens, reserved_tokens, queue_us, total_us, ttft_us, ..Entry::orphan(&reservation)
            }
        }
    }

    proptest! {
        #[test]
        fn a_reservation_is_read_back_as_it_was_written(reservation in reservations(), boottime_ns in any::<u64>()) {
            let mut bytes = b"before".to_vec();
            put_reservation(&mut bytes, &reservation, boottime_ns).unwrap();
            let (record, len) = read(&bytes[6..]).unwrap();
            prop_assert_eq!(record, Record::Reservation { reservation, boottime_ns });
            prop_assert_eq!(len, bytes.len() - 6);
            prop_assert!(len <= HEAD + BODY_MAX);
        }

        #[test]
        fn an_entry_is_read_back_as_it_was_written(entry in entries()) {
            let mut bytes = Vec::new();
            put_entry(&mut bytes, &entry);
            prop_assert_eq!(read(&bytes), Ok((Record::Entry(entry), bytes.len())));
            prop_assert!(bytes.len() <= HEAD + BODY_MAX);
        }

        #[test]
        fn a_body_of_any_bytes_is_a_record_or_an_error(kind in 0_u8..4, body in prop::collection::vec(any::<u8>(), 1..120)) {
            let mut bytes = Vec::new();
            let start = open(&mut bytes, kind);
            bytes.extend_from_slice(&body);
            close(&mut bytes, start);
            if let Ok((_, len)) = read(&bytes) {
                prop_assert_eq!(len, bytes.len());
            }
        }
    }

    #[test]
    fn a_record_with_something_behind_its_last_field_is_nobodys() {
        let mut bytes = Vec::new();
        let entry = Entry::orphan(&Reservation {
            id: RequestId::from_bits(1),
            at: Unix::from_ms(2),
            issuer: "i".into(),
            caller: "c".into(),
            team: "t".into(),
            key: None,
            alias: "a".into(),
            prompt_tokens: 3,
            output_tokens: 4,
        });
        put_entry(&mut bytes, &entry);
        bytes.push(0);
        close(&mut bytes, 0);
        assert_eq!(read(&bytes), Err(Unread::Corrupt));
    }

    #[test]
    fn a_number_has_one_form_only_up_to_its_bound() {
        for (bytes, expected) in [
            (&[0x7F][..], Some(0x7F)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], Some(u64::MAX)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], None),
            (&[0x80; 11], None),
            (&[0x80], None),
        ] {
            assert_eq!(Body { rest: bytes }.number(), expected, "{bytes:?}");
        }
    }
}
