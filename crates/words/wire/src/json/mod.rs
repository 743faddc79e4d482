//! JSON as it passes: read once, strictly, with the place of everything kept, so that an edit splices and all other
//! bytes go on as they came.
//!
//! [`parse`] checks the whole text: grammar, UTF-8, depth, and that no object has a key twice. It keeps the members of
//! the top-level object only. What is nested is walked again when asked for, over text that is known to be good; so
//! a body of ten million numbers costs no more memory than its own bytes.

mod edit;
pub(crate) mod lax;
mod strict;
pub(crate) mod text;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use tidegate_core::{Case, Fault};

pub(crate) use edit::{Edit, New};
pub use text::write_str;

use lax::Cursor;

/// Deepest nesting of objects and arrays, the outermost counted.
pub const DEPTH_MAX: usize = 64;

/// Most members in one object. Schemas and bias tables have hundreds; the bound keeps the check for duplicates cheap.
pub const MEMBERS_MAX: usize = 16_384;

/// Why a text was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte at which it shows.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for JsonError {}

impl From<JsonError> for Fault {
    fn from(error: JsonError) -> Self {
        Self::new(Case::JsonParse).saying(format!("the body is not valid JSON: {error}"))
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// A number of any size and precision.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// A member of an object: spans in the object's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Between the quotes.
    pub(crate) key: (u32, u32),
    pub(crate) escaped: bool,
    pub(crate) value: (u32, u32),
    pub(crate) kind: Kind,
}

impl Member {
    fn value_range(&self) -> Range<usize> {
        self.value.0 as usize..self.value.1 as usize
    }

    fn key_range(&self) -> Range<usize> {
        self.key.0 as usize..self.key.1 as usize
    }
}

/// An object and the places of its members.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    text: &'a [u8],
    members: Cow<'a, [Member]>,
}

/// Reads a text that must be one object and nothing else.
///
/// # Errors
/// Wrong grammar, wrong UTF-8, a lone surrogate, more than [`DEPTH_MAX`] levels, more than [`MEMBERS_MAX`] members in
/// one object, a key twice in one object (compared after unescaping), another value than an object, or text after it.
pub fn parse(text: &[u8]) -> Result<Object<'_>, JsonError> {
    Ok(Object { text, members: Cow::Owned(strict::members(text)?) })
}

/// A body together with what was read of it, for keeping across awaits.
#[derive(Clone, Debug)]
pub struct Document {
    text: Bytes,
    members: Vec<Member>,
}

impl Document {
    /// Reads a body as [`parse`] does.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn parse(text: Bytes) -> Result<Self, JsonError> {
        let members = strict::members(&text)?;
        Ok(Self { text, members })
    }

    /// The object; costs nothing.
    #[must_use]
    pub fn object(&self) -> Object<'_> {
        Object { text: &self.text, members: Cow::Borrowed(&self.members) }
    }

    /// The body.
    #[must_use]
    pub const fn text(&self) -> &Bytes {
        &self.text
    }
}

impl<'a> Object<'a> {
    /// The value of a member; `None` when there is none of that name.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.members.iter().find(|member| self.is(member, key)).map(|member| self.value(member))
    }

    /// All members in their order: key and value.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'a, str>, Value<'a>)> + '_ {
        let text = self.text;
        self.members.iter().map(move |member| {
            let key = text::unescape(&text[member.key_range()]).unwrap_or_default();
            (key, self.value(member))
        })
    }

    /// All members in their order, with keys as bytes: nothing is checked or copied unless a key has escapes.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Cow<'a, [u8]>, Value<'a>)> + '_ {
        self.members.iter().map(|member| {
            let content = &self.text[member.key_range()];
            let key = match member.escaped.then(|| text::unescape(content)).flatten() {
                Some(unescaped) => Cow::Owned(unescaped.into_owned().into_bytes()),
                None => Cow::Borrowed(content),
            };
            (key, self.value(member))
        })
    }

    /// The text that the object stands in, which for a parsed body is the whole body.
    #[must_use]
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    fn is(&self, member: &Member, key: &str) -> bool {
        let content = &self.text[member.key_range()];
        if member.escaped {
            text::unescape(content).is_some_and(|found| found == key)
        } else {
            content == key.as_bytes()
        }
    }

    fn value(&self, member: &Member) -> Value<'a> {
        Value { kind: member.kind, raw: &self.text[member.value_range()] }
    }
}

/// A value: its kind and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// What it is.
    pub kind: Kind,
    /// Its text, byte for byte.
    pub raw: &'a [u8],
}

impl<'a> Value<'a> {
    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Null
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<Cow<'a, str>> {
        self.content().and_then(text::unescape)
    }

    /// What stands between the quotes of a string, escapes and all.
    pub(crate) fn content(&self) -> Option<&'a [u8]> {
        if self.kind == Kind::String { self.raw.get(1..self.raw.len().checked_sub(1)?) } else { None }
    }

    /// A truth value.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        if self.kind == Kind::Bool { Some(self.raw == b"true") } else { None }
    }

    /// A number that is written as a whole number of 0 to 2^64 - 1: `1`, not `1.0` or `1e0`, since what such a number
    /// means differs between readers.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.number()?.parse().ok()
    }

    /// A number that is written as a whole number of -2^63 to 2^63 - 1.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.number()?.parse().ok()
    }

    /// A number, rounded to the nearest double; `None` when it is beyond the range of a double.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        self.number()?.parse().ok().filter(|number: &f64| number.is_finite())
    }

    fn number(&self) -> Option<&'a str> {
        if self.kind == Kind::Number { std::str::from_utf8(self.raw).ok() } else { None }
    }

    /// The elements of an array.
    #[must_use]
    pub fn array(&self) -> Option<Elements<'a>> {
        if self.kind != Kind::Array {
            return None;
        }
        let mut cursor = Cursor::new(self.raw, 0);
        cursor.enter(b'[').ok()?;
        Some(Elements { text: self.raw, cursor, first: true })
    }

    /// The members of an object.
    #[must_use]
    pub fn object(&self) -> Option<Object<'a>> {
        if self.kind != Kind::Object {
            return None;
        }
        let mut cursor = Cursor::new(self.raw, 0);
        cursor.enter(b'{').ok()?;
        let mut members = Vec::new();
        let mut first = true;
        while let Some(key) = cursor.key(&mut first).ok()? {
            let kind = cursor.kind().ok()?;
            let value = cursor.skip().ok()?;
            let escaped = memchr::memchr(b'\\', &self.raw[key.clone()]).is_some();
            members.push(Member {
                key: (key.start as u32, key.end as u32),
                escaped,
                value: (value.start as u32, value.end as u32),
                kind,
            });
        }
        Some(Object { text: self.raw, members: Cow::Owned(members) })
    }
}

/// The elements of an array, in order.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    text: &'a [u8],
    cursor: Cursor<'a>,
    first: bool,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if !self.cursor.element(&mut self.first).ok()? {
            return None;
        }
        let kind = self.cursor.kind().ok()?;
        let span = self.cursor.skip().ok()?;
        Some(Value { kind, raw: &self.text[span] })
    }
}
