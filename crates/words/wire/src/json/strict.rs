//! The one strict pass over a request body.

use std::cmp::Ordering;

use super::text::{escape, plain_end, unescape};
use super::{DEPTH_MAX, JsonError, Kind, MEMBERS_MAX, Member};

/// Objects with at most this many keys are compared pair by pair; larger ones are sorted once, at their end.
const PAIRWISE_MAX: usize = 16;

#[derive(Clone, Copy)]
struct Key {
    start: u32,
    end: u32,
    escaped: bool,
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    /// Keys of the objects that are open, innermost last.
    keys: Vec<Key>,
    members: Vec<Member>,
}

/// Checks the whole text and returns the members of the top-level object.
pub(super) fn members(text: &[u8]) -> Result<Vec<Member>, JsonError> {
    if u32::try_from(text.len()).is_err() {
        return Err(JsonError { offset: 0, what: "too long" });
    }
    if let Err(error) = std::str::from_utf8(text) {
        return Err(JsonError { offset: error.valid_up_to(), what: "not UTF-8" });
    }
    let mut parser = Parser { text, at: 0, keys: Vec::with_capacity(24), members: Vec::with_capacity(12) };
    parser.space();
    if parser.peek() != Some(b'{') {
        return Err(parser.error("expected an object"));
    }
    parser.object(1)?;
    parser.space();
    if parser.at != text.len() {
        return Err(parser.error("text after the object"));
    }
    Ok(parser.members)
}

impl Parser<'_> {
    const fn error(&self, what: &'static str) -> JsonError {
        JsonError { offset: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Reads a value at `self.at`; `depth` is the number of containers around it.
    fn value(&mut self, depth: usize) -> Result<Kind, JsonError> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| Kind::String),
            Some(b'{') => self.object(depth + 1).map(|()| Kind::Object),
            Some(b'[') => self.array(depth + 1).map(|()| Kind::Array),
            Some(b't') => self.word(b"true", Kind::Bool),
            Some(b'f') => self.word(b"false", Kind::Bool),
            Some(b'n') => self.word(b"null", Kind::Null),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| Kind::Number),
            _ => Err(self.error("expected a value")),
        }
    }

    fn word(&mut self, word: &[u8], kind: Kind) -> Result<Kind, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.error("expected a value"));
        }
        self.at += word.len();
        Ok(kind)
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == from { Err(self.error("expected a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Reads a string and returns the span between its quotes.
    fn string(&mut self) -> Result<Key, JsonError> {
        let start = self.at + 1;
        let mut escaped = false;
        self.at = plain_end(self.text, start);
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    let (_, used) = escape(&self.text[self.at..]).ok_or_else(|| self.error("bad escape"))?;
                    self.at = plain_end(self.text, self.at + used);
                }
                Some(_) => return Err(self.error("control character in a string")),
                None => return Err(self.error("string without end")),
            }
        }
        let end = self.at;
        self.at += 1;
        Ok(Key { start: start as u32, end: end as u32, escaped })
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.error("nested too deeply"));
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("expected , or ]")),
            }
            self.space();
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth > DEPTH_MAX {
            return Err(self.error("nested too deeply"));
        }
        let mark = self.keys.len();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.member(mark, depth)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.error("expected , or }")),
            }
            self.space();
        }
        self.refuse_duplicates(mark)?;
        self.keys.truncate(mark);
        self.at += 1;
        Ok(())
    }

    fn member(&mut self, mark: usize, depth: usize) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("expected a key"));
        }
        let at = self.at;
        let key = self.string()?;
        let before = &self.keys[mark..];
        if before.len() == MEMBERS_MAX {
            return Err(JsonError { offset: at, what: "too many members in one object" });
        }
        if before.len() < PAIRWISE_MAX && before.iter().any(|&other| self.order(other, key) == Ordering::Equal) {
            return Err(JsonError { offset: at, what: "key given twice" });
        }
        self.keys.push(key);
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.error("expected :"));
        }
        self.at += 1;
        self.space();
        let start = self.at;
        let kind = self.value(depth)?;
        if depth == 1 {
            let (Key { start: key_start, end: key_end, escaped }, value) = (key, (start as u32, self.at as u32));
            self.members.push(Member { key: (key_start, key_end), escaped, value, kind });
        }
        Ok(())
    }

    /// Order of two keys by length, then unescaped text: equal means one key given twice.
    fn order(&self, a: Key, b: Key) -> Ordering {
        let content = |key: Key| &self.text[key.start as usize..key.end as usize];
        if !a.escaped && !b.escaped {
            let (a, b) = (content(a), content(b));
            return a.len().cmp(&b.len()).then_with(|| a.cmp(b));
        }
        let (a, b) = (unescape(content(a)).unwrap_or_default(), unescape(content(b)).unwrap_or_default());
        a.len().cmp(&b.len()).then_with(|| a.cmp(&b))
    }

    fn refuse_duplicates(&mut self, mark: usize) -> Result<(), JsonError> {
        if self.keys.len() - mark <= PAIRWISE_MAX {
            return Ok(());
        }
        let mut keys = self.keys.split_off(mark);
        keys.sort_unstable_by(|&a, &b| self.order(a, b));
        match keys.windows(2).find(|pair| self.order(pair[0], pair[1]) == Ordering::Equal) {
            None => Ok(()),
            Some(pair) => {
                let offset = pair[0].start.max(pair[1].start) as usize - 1;
                Err(JsonError { offset, what: "key given twice" })
            }
        }
    }
}
