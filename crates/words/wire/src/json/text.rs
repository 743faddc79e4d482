//! String text: finding its end, unescaping it, and writing it.

use std::borrow::Cow;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// High bit set in every byte of `word` that equals `byte`. Bits above the lowest set one may be wrong.
const fn equal(word: u64, byte: u8) -> u64 {
    let diff = word ^ (ONES * byte as u64);
    diff.wrapping_sub(ONES) & !diff & HIGH
}

/// Where plain string text ends: the first quote, backslash or control character at or after `at`, else the length.
///
/// Eight bytes a step; keys are too short for a call into a vectorised search to pay.
pub(super) fn plain_end(text: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let found = equal(word, b'"') | equal(word, b'\\') | control;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(&byte) = text.get(at) {
        if byte == b'"' || byte == b'\\' || byte < 0x20 {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// The next quote, bracket or brace at or after `at`, else the length: all that matters when a value is skipped.
pub(super) fn structure(text: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        // `[` and `]` differ from `{` and `}` by one bit.
        let folded = word | (ONES * 0x20);
        let found = equal(word, b'"') | equal(folded, b'{') | equal(folded, b'}');
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(&byte) = text.get(at) {
        if matches!(byte, b'"' | b'{' | b'}' | b'[' | b']') {
            return at;
        }
        at += 1;
    }
    text.len()
}

/// The text of a string, from what stands between its quotes. `None` when an escape or the UTF-8 is broken, which
/// cannot happen in text that [`super::parse`] accepted.
pub(crate) fn unescape(content: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'\\', content).is_none() {
        return std::str::from_utf8(content).ok().map(Cow::Borrowed);
    }
    let mut out = Vec::with_capacity(content.len());
    let mut rest = content;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let (c, used) = escape(&rest[at..])?;
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[at + used..];
    }
    out.extend_from_slice(rest);
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// Length in bytes of the text of a string once unescaped; broken escapes count as they are written.
pub(crate) fn unescaped_len(content: &[u8]) -> usize {
    let mut len = content.len();
    let mut at = 0;
    while let Some(found) = content.get(at..).and_then(|rest| memchr::memchr(b'\\', rest)) {
        at += found;
        let (size, used) = escape(&content[at..]).map_or((1, 1), |(c, used)| (c.len_utf8(), used));
        len -= used - size;
        at += used;
    }
    len
}

/// The character of the escape that `text` starts with, and how many bytes it takes. Lone surrogates are refused:
/// no UTF-8 text can hold them, and engines differ in what they make of them.
pub(super) fn escape(text: &[u8]) -> Option<(char, usize)> {
    let c = match *text.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(text),
        _ => return None,
    };
    Some((c, 2))
}

fn unicode_escape(text: &[u8]) -> Option<(char, usize)> {
    let first = hex4(text.get(2..6)?)?;
    if !(0xD800..0xE000).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    if first >= 0xDC00 || text.get(6..8)? != b"\\u" {
        return None;
    }
    let second = hex4(text.get(8..12)?)?;
    if !(0xDC00..0xE000).contains(&second) {
        return None;
    }
    let c = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    Some((char::from_u32(c)?, 12))
}

fn hex4(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, &digit| Some(sum * 16 + char::from(digit).to_digit(16)?))
}

/// Writes `text` as a JSON string, quotes included.
pub fn write_str(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    write_content(out, text);
    out.push(b'"');
}

/// Writes `text` as it stands between the quotes of a JSON string.
pub(crate) fn write_content(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let end = plain_end(bytes, at);
        out.extend_from_slice(&bytes[at..end]);
        let Some(&byte) = bytes.get(end) else { return };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(control >> 4)]);
                out.push(HEX[usize::from(control & 15)]);
            }
        }
        at = end + 1;
    }
}

/// Writes an unsigned number.
pub(crate) fn write_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Writes a signed number.
pub(crate) fn write_i64(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
