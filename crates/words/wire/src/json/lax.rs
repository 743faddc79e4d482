//! Walking JSON without checking all of it: through text that the strict pass accepted, and through an engine's
//! answers, of which only a few members matter and the rest is handed on as it is.

use std::ops::Range;

use super::Kind;
use super::text::{plain_end, structure};

/// The text is not JSON where it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A place in a text. Every method moves it forward only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(crate) fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Whether nothing but space is left.
    pub(crate) fn at_end(&mut self) -> bool {
        self.space();
        self.at == self.text.len()
    }

    /// Steps over `byte`.
    pub(crate) fn enter(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.peek() != Some(byte) {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Inside an object: steps to the value of the next member and returns what stands between the quotes of its key;
    /// `None` steps over the closing brace. `first` is true before the first call.
    pub(crate) fn key(&mut self, first: &mut bool) -> Result<Option<Range<usize>>, Malformed> {
        if !self.next(first, b'}')? {
            return Ok(None);
        }
        let key = self.string()?;
        self.space();
        self.enter(b':')?;
        self.space();
        Ok(Some(key))
    }

    /// Inside an array: steps to the next element; `false` steps over the closing bracket.
    pub(crate) fn element(&mut self, first: &mut bool) -> Result<bool, Malformed> {
        self.next(first, b']')
    }

    fn next(&mut self, first: &mut bool, close: u8) -> Result<bool, Malformed> {
        self.space();
        let was_first = std::mem::replace(first, false);
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                return Ok(false);
            }
            Some(b',') if !was_first => {
                self.at += 1;
                self.space();
            }
            Some(_) if was_first => {}
            _ => return Err(Malformed),
        }
        Ok(true)
    }

    /// Steps over a string and returns what stands between its quotes.
    pub(crate) fn string(&mut self) -> Result<Range<usize>, Malformed> {
        self.enter(b'"')?;
        self.text()
    }

    /// As [`Self::string`], from behind the opening quote.
    pub(crate) fn text(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        loop {
            self.at = plain_end(self.text, self.at);
            match self.peek() {
                Some(b'"') => break,
                // Whatever is escaped, a quote above all, is skipped with its backslash.
                Some(b'\\') => self.at += 2,
                // A raw control character could end a line where the text is sent as an event.
                Some(_) | None => return Err(Malformed),
            }
        }
        let end = self.at;
        self.at += 1;
        Ok(start..end)
    }

    /// The kind of the value here, by its first byte.
    pub(crate) fn kind(&self) -> Result<Kind, Malformed> {
        Ok(match self.peek() {
            Some(b'"') => Kind::String,
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            _ => return Err(Malformed),
        })
    }

    /// Steps over the value here and returns its span.
    pub(crate) fn skip(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        match self.kind()? {
            Kind::String => {
                self.string()?;
            }
            Kind::Object | Kind::Array => self.container()?,
            Kind::Null => self.word(b"null")?,
            Kind::Bool => self.word(if self.peek() == Some(b't') { b"true" } else { b"false" })?,
            Kind::Number => {
                while matches!(self.peek(), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) {
                    self.at += 1;
                }
            }
        }
        Ok(start..self.at)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Malformed> {
        if !self.text[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    fn container(&mut self) -> Result<(), Malformed> {
        let mut depth = 0_usize;
        loop {
            self.at = structure(self.text, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(_) => {
                    depth -= 1;
                    self.at += 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                None => return Err(Malformed),
            }
        }
    }
}
