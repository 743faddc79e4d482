//! Multipart forms, which pass through: the file is never held. Of the fields, `model`, `stream` and
//! `max_completion_tokens` are read ([`Field`]); the first and the last are rewritten.
//!
//! They must come before the file and within the first [`HEAD_MAX`] bytes. Without a model there, the header `x-model`
//! must name it, and a field is put in front. What follows the head is still watched, part by part, to its end: a second
//! `model` behind the file could name a model that the caller may not use, and an engine might believe that one.
//!
//! ```text
//! let mut form = Form::new(content_type)?;
//! while form.push(&read)? == Step::More {}
//! form.model() or x-model -> authorise; form.stream(), form.max_tokens() -> admit, route, pick
//! send form.head(model, max_tokens), then each further read after form.watch(&read)?, and form.end()? at the end
//! ```

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem::Finder;
use tidegate_core::{Case, Fault};

use crate::request::{DENIED, invalid, missing};

/// Bytes within which the fields that are read have to end, the boundary behind each included.
pub const HEAD_MAX: usize = 64 * 1024;
/// Longest headers of one part.
pub const HEADERS_MAX: usize = 8 * 1024;
/// Longest model name in a form.
pub const MODEL_MAX: usize = 256;
/// Longest value of the other fields that are read: twenty digits.
pub const VALUE_MAX: usize = 20;
/// Most parts of one form.
pub const PARTS_MAX: usize = 64;
/// Longest boundary, by RFC 2046.
pub const BOUNDARY_MAX: usize = 70;

/// How far the head is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is decided: push the next read.
    More,
    /// The file began, or the form ended, or the head is full. [`Form::model`] has the model; without one `x-model` is
    /// needed.
    Done,
}

/// A field that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    /// Whether the answer is a stream.
    Stream,
    /// The most tokens of the answer.
    MaxTokens,
}

impl Field {
    const ALL: [Self; 3] = [Self::Model, Self::Stream, Self::MaxTokens];

    const fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Stream => "stream",
            Self::MaxTokens => "max_completion_tokens",
        }
    }

    const fn value_max(self) -> usize {
        match self {
            Self::Model => MODEL_MAX,
            Self::Stream | Self::MaxTokens => VALUE_MAX,
        }
    }
}

/// A form that is being read.
#[derive(Debug)]
pub struct Form {
    parts: Parts,
    /// Everything read so far.
    head: Vec<u8>,
}

impl Form {
    /// A form of which only the `content-type` is known.
    ///
    /// # Errors
    /// It is no multipart form, or has no good boundary.
    pub fn new(content_type: &str) -> Result<Self, Fault> {
        let boundary = boundary(content_type).ok_or_else(|| {
            Fault::new(Case::InvalidValue).saying("the body must be multipart/form-data with a boundary")
        })?;
        Ok(Self { parts: Parts::new(boundary), head: Vec::new() })
    }

    /// Takes one read of the head. It may hold more than the head.
    ///
    /// # Errors
    /// The form is broken, has two readings, or has a field that callers may not set.
    pub fn push(&mut self, read: &[u8]) -> Result<Step, Fault> {
        self.head.extend_from_slice(read);
        self.parts.push(read)?;
        let is_done = self.parts.file || self.parts.state == State::Closed || self.head.len() > HEAD_MAX;
        Ok(if is_done { Step::Done } else { Step::More })
    }

    /// The model as the form names it.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        let span = self.parts.spans[Field::Model as usize].clone()?;
        std::str::from_utf8(self.head.get(span)?).ok()
    }

    /// Whether the answer is to be a stream.
    #[must_use]
    pub const fn stream(&self) -> bool {
        self.parts.stream
    }

    /// The most tokens of the answer, as the form asks for; at least 1.
    #[must_use]
    pub const fn max_tokens(&self) -> Option<u64> {
        self.parts.max_tokens
    }

    /// What was read, with `model` and `max_tokens` in the places of the form's own, or in front where the form has none.
    /// The form's own bound of tokens stays where `max_tokens` is `None`.
    #[must_use]
    pub fn head(&self, model: &str, max_tokens: Option<u64>) -> Bytes {
        let max_tokens = max_tokens.map(|tokens| tokens.to_string());
        let values = [(Field::Model, Some(model)), (Field::MaxTokens, max_tokens.as_deref())];
        let mut out = Vec::with_capacity(self.head.len() + model.len() + 256);
        let mut places = Vec::with_capacity(values.len());
        for (field, value) in values {
            let Some(value) = value else { continue };
            match self.parts.spans[field as usize].clone() {
                Some(span) => places.push((span, value)),
                None => {
                    out.extend_from_slice(&self.parts.delimiter[2..]);
                    out.extend_from_slice(b"\r\nContent-Disposition: form-data; name=\"");
                    out.extend_from_slice(field.name().as_bytes());
                    out.extend_from_slice(b"\"\r\n\r\n");
                    out.extend_from_slice(value.as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        places.sort_unstable_by_key(|(span, _)| span.start);
        let mut at = 0;
        for (span, value) in places {
            out.extend_from_slice(&self.head[at..span.start]);
            out.extend_from_slice(value.as_bytes());
            at = span.end;
        }
        out.extend_from_slice(&self.head[at..]);
        out.into()
    }

    /// Bytes read so far: with the length of [`Form::head`] this gives the engine's `content-length`.
    #[must_use]
    pub const fn read_len(&self) -> usize {
        self.head.len()
    }

    /// Watches one read behind the head.
    ///
    /// # Errors
    /// As [`Form::push`]; also a field that is read, which comes too late.
    pub fn watch(&mut self, read: &[u8]) -> Result<(), Fault> {
        self.parts.late = true;
        self.parts.push(read)
    }

    /// The body ended.
    ///
    /// # Errors
    /// The form did not.
    pub fn end(&self) -> Result<(), Fault> {
        if self.parts.state == State::Closed { Ok(()) } else { Err(broken("the form ends before its last boundary")) }
    }
}

/// The boundary of a `multipart/form-data` content type.
fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut found = None;
    for parameter in parameters.split(';') {
        let (name, value) = parameter.trim().split_once('=')?;
        if !name.eq_ignore_ascii_case("boundary") {
            continue;
        }
        let value = value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'))?;
        if found.replace(value).is_some() {
            return None;
        }
    }
    // RFC 2046's characters but for space and the ones that need quotes and no client uses.
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"'+_-./=?".contains(&byte);
    found.filter(|text| !text.is_empty() && text.len() <= BOUNDARY_MAX && text.bytes().all(good))
}

fn broken(text: &'static str) -> Fault {
    Fault::new(Case::InvalidValue).saying(text)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first boundary is awaited, at the very start.
    Begin,
    /// Behind a boundary: a line end, or the two hyphens of the last one.
    Between,
    Headers,
    Value(Field),
    Other,
    /// Behind the last boundary.
    Closed,
}

/// The parts of a form, followed through reads of any size.
#[derive(Debug)]
struct Parts {
    /// Line end, two hyphens, boundary.
    delimiter: Box<[u8]>,
    finder: Finder<'static>,
    /// What was read and is not done with: never more than a part's headers or a boundary's length beside one read.
    window: Vec<u8>,
    /// Place of the window in the form.
    base: usize,
    state: State,
    count: usize,
    /// The places of the values that are read, by [`Field`].
    spans: [Option<Range<usize>>; Field::ALL.len()],
    stream: bool,
    max_tokens: Option<u64>,
    /// The file part began.
    file: bool,
    /// A field that is read and comes now comes too late.
    late: bool,
}

impl Parts {
    fn new(boundary: &str) -> Self {
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        Self {
            finder: Finder::new(&delimiter).into_owned(),
            delimiter: delimiter.into(),
            window: Vec::new(),
            base: 0,
            state: State::Begin,
            count: 0,
            spans: Default::default(),
            stream: false,
            max_tokens: None,
            file: false,
            late: false,
        }
    }

    fn push(&mut self, read: &[u8]) -> Result<(), Fault> {
        self.window.extend_from_slice(read);
        while self.step()? {}
        Ok(())
    }

    fn take(&mut self, len: usize) {
        self.window.drain(..len);
        self.base += len;
    }

    /// Goes one state further; `false` when more bytes are needed.
    fn step(&mut self) -> Result<bool, Fault> {
        match self.state {
            State::Begin => {
                let first = &self.delimiter[2..];
                let len = first.len().min(self.window.len());
                if self.window[..len] != first[..len] {
                    return Err(broken("the form does not begin with its boundary"));
                }
                if len < first.len() {
                    return Ok(false);
                }
                self.take(len);
                self.state = State::Between;
            }
            State::Between => match self.window.get(..2) {
                None => return Ok(false),
                Some(b"\r\n") => {
                    self.take(2);
                    self.state = State::Headers;
                }
                Some(b"--") => {
                    self.take(2);
                    self.state = State::Closed;
                }
                Some(_) => return Err(broken("text behind a boundary")),
            },
            State::Headers => return self.headers(),
            State::Value(field) => return self.value(field),
            State::Other => match self.finder.find(&self.window) {
                Some(at) => {
                    self.take(at + self.delimiter.len());
                    self.state = State::Between;
                }
                None => {
                    // A boundary may have begun.
                    self.take((self.window.len() + 1).saturating_sub(self.delimiter.len()));
                    return Ok(false);
                }
            },
            State::Closed => {
                // One line end is what most clients write; anything else would be read by some and not by others.
                let len = self.window.len();
                if len > 2 || !b"\r\n".starts_with(&self.window) {
                    return Err(broken("text behind the form"));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn headers(&mut self) -> Result<bool, Fault> {
        let Some(end) = memchr::memmem::find(&self.window, b"\r\n\r\n") else {
            return if self.window.len() > HEADERS_MAX {
                Err(broken("a part's headers are too long"))
            } else {
                Ok(false)
            };
        };
        if end > HEADERS_MAX {
            return Err(broken("a part's headers are too long"));
        }
        self.count += 1;
        if self.count > PARTS_MAX {
            return Err(broken("the form has too many parts"));
        }
        let part = Part::read(&self.window[..end])?;
        self.state = match Field::ALL.into_iter().find(|field| field.name().as_bytes() == part.name) {
            Some(field) => {
                self.may_come(field, &part)?;
                State::Value(field)
            }
            None => {
                let name = std::str::from_utf8(&part.name).unwrap_or_default();
                if DENIED.contains(&name) {
                    return Err(broken("the form has a field that callers may not set"));
                }
                self.file |= part.file;
                State::Other
            }
        };
        self.take(end + 4);
        Ok(true)
    }

    fn may_come(&self, field: Field, part: &Part) -> Result<(), Fault> {
        let name = field.name();
        let wrong = if part.file {
            "must be a field, not a file"
        } else if self.spans[field as usize].is_some() {
            "is given twice"
        } else if self.file || self.late {
            "must come before the file"
        } else {
            return Ok(());
        };
        Err(invalid(name, format!("{name} {wrong}")))
    }

    fn value(&mut self, field: Field) -> Result<bool, Fault> {
        let name = field.name();
        let found = self.finder.find(&self.window);
        let len = found.unwrap_or_else(|| (self.window.len() + 1).saturating_sub(self.delimiter.len()));
        if len > field.value_max() {
            return Err(invalid(name, format!("{name} is too long")));
        }
        let Some(at) = found else { return Ok(false) };
        let span = self.base..self.base + at;
        if self.late || span.end + self.delimiter.len() > HEAD_MAX {
            return Err(invalid(name, format!("{name} must come within the first 64 KiB of the form")));
        }
        let text = std::str::from_utf8(&self.window[..at]).unwrap_or("\0");
        match field {
            Field::Model if text.is_empty() => return Err(missing(name)),
            Field::Model if text.contains(char::is_control) => {
                return Err(invalid(name, "model must be plain text"));
            }
            Field::Model => {}
            Field::Stream => self.stream = truth(text).ok_or_else(|| invalid(name, "stream must be true or false"))?,
            Field::MaxTokens => self.max_tokens = Some(count(text).ok_or_else(|| too_few(name))?),
        }
        self.spans[field as usize] = Some(span);
        self.take(at + self.delimiter.len());
        self.state = State::Between;
        Ok(true)
    }
}

/// A boolean as a form has it.
fn truth(text: &str) -> Option<bool> {
    // What engines take for true or false; anything else they refuse.
    let is_any = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_any(&["true", "1", "yes", "on", "t", "y"]) {
        return Some(true);
    }
    is_any(&["false", "0", "no", "off", "f", "n"]).then_some(false)
}

/// A number from 1 as a form has it: digits, and nothing that another reader would take for another number.
fn count(text: &str) -> Option<u64> {
    let is_plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

fn too_few(name: &'static str) -> Fault {
    invalid(name, format!("{name} must be a whole number from 1"))
}

/// What a part's headers say.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: Vec<u8>,
    file: bool,
}

impl Part {
    fn read(headers: &[u8]) -> Result<Self, Fault> {
        let mut part = None;
        for line in headers.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let wrong = || broken("a part has a header that is not well-formed");
            if line.iter().any(|&byte| byte < b' ' && byte != b'\t') {
                return Err(wrong());
            }
            let colon = memchr::memchr(b':', line).ok_or_else(wrong)?;
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            // A space would make it a folded line, or a name that some readers trim.
            if name.is_empty() || !name.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-') {
                return Err(wrong());
            }
            if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
                return Err(broken("parts must not be encoded"));
            }
            if name.eq_ignore_ascii_case(b"content-disposition") && part.replace(disposition(value)?).is_some() {
                return Err(wrong());
            }
        }
        part.ok_or_else(|| broken("a part has no content-disposition"))
    }
}

/// Reads `form-data; name="…"; filename="…"`.
fn disposition(value: &[u8]) -> Result<Part, Fault> {
    let wrong = || broken("a part has a content-disposition that is not well-formed");
    let mut rest = value.trim_ascii_start();
    let kind = rest.iter().position(|&byte| byte == b';').unwrap_or(rest.len());
    if !rest[..kind].trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return Err(wrong());
    }
    rest = &rest[kind..];
    let (mut name, mut file) = (None, false);
    while let Some(after) = rest.strip_prefix(b";") {
        let (key, value, next) = parameter(after.trim_ascii_start()).ok_or_else(wrong)?;
        if key.eq_ignore_ascii_case(b"name") {
            // What a backslash in it means differs between readers.
            if value.contains(&b'\\') || name.replace(value.to_vec()).is_some() {
                return Err(wrong());
            }
        } else if key.eq_ignore_ascii_case(b"filename") || key.eq_ignore_ascii_case(b"filename*") {
            file = true;
        } else {
            return Err(wrong());
        }
        rest = next.trim_ascii_start();
    }
    if !rest.is_empty() {
        return Err(wrong());
    }
    Ok(Part { name: name.ok_or_else(wrong)?, file })
}

/// One parameter: key, value without its quotes, and what follows.
fn parameter(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let equals = memchr::memchr(b'=', text)?;
    let (key, value) = (text[..equals].trim_ascii(), text[equals + 1..].trim_ascii_start());
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let end = value.iter().position(|&byte| byte == b';' || byte == b' ').unwrap_or(value.len());
        return Some((key, &value[..end], &value[end..]));
    };
    let mut at = 0;
    loop {
        match quoted.get(at)? {
            b'"' => return Some((key, &quoted[..at], &quoted[at + 1..])),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
