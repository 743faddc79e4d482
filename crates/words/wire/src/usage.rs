//! Token counts as engines report them.

use crate::form::Holes;
use crate::json::lax::{Cursor, Malformed};
use crate::json::{Kind, Value};

/// Tokens of one request, as the engine counted them. An explicit zero is a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, those found in a cache included.
    pub prompt: u64,
    /// Of these, tokens found in the engine's prefix cache.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
}

impl Usage {
    /// Reads one usage object.
    pub(crate) fn read(value: &Value<'_>) -> Option<Self> {
        let mut report = Report::default();
        report.read(value.raw, &mut Cursor::new(value.raw, 0), None).ok()?;
        report.usage()
    }
}

/// What was read of one or several usage objects; a later field replaces an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    prompt: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
    cached: Option<u64>,
    cache_read: Option<u64>,
    cache_created: Option<u64>,
}

/// What a number in a usage object counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Prompt,
    Output,
    Total,
    Cached,
    CacheRead,
    CacheCreated,
}

impl Count {
    const fn of(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"prompt_tokens" | b"input_tokens" => Self::Prompt,
            b"completion_tokens" | b"output_tokens" => Self::Output,
            b"total_tokens" => Self::Total,
            b"cache_read_input_tokens" => Self::CacheRead,
            b"cache_creation_input_tokens" => Self::CacheCreated,
            _ => return None,
        })
    }
}

impl Report {
    /// Takes one count.
    pub(crate) const fn count(&mut self, count: Count, tokens: u64) {
        let field = match count {
            Count::Prompt => &mut self.prompt,
            Count::Output => &mut self.output,
            Count::Total => &mut self.total,
            Count::Cached => &mut self.cached,
            Count::CacheRead => &mut self.cache_read,
            Count::CacheCreated => &mut self.cache_created,
        };
        *field = Some(tokens);
    }

    /// Reads the usage object that starts at the cursor, and steps over it. The places of its whole numbers go to
    /// `holes`.
    pub(crate) fn read(
        &mut self,
        text: &[u8],
        cursor: &mut Cursor<'_>,
        mut holes: Option<&mut Holes>,
    ) -> Result<(), Malformed> {
        cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = cursor.key(&mut first)? {
            let key = &text[key];
            if matches!(key, b"prompt_tokens_details" | b"input_tokens_details") && cursor.kind()? == Kind::Object {
                self.details(text, cursor, holes.as_deref_mut())?;
            } else {
                self.number(Count::of(key), text, cursor, holes.as_deref_mut())?;
            }
        }
        Ok(())
    }

    fn details(
        &mut self,
        text: &[u8],
        cursor: &mut Cursor<'_>,
        mut holes: Option<&mut Holes>,
    ) -> Result<(), Malformed> {
        cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = cursor.key(&mut first)? {
            let count = (&text[key] == b"cached_tokens").then_some(Count::Cached);
            self.number(count, text, cursor, holes.as_deref_mut())?;
        }
        Ok(())
    }

    /// Steps over a value; when it is a whole number, it is counted.
    fn number(
        &mut self,
        count: Option<Count>,
        text: &[u8],
        cursor: &mut Cursor<'_>,
        holes: Option<&mut Holes>,
    ) -> Result<(), Malformed> {
        let kind = cursor.kind()?;
        let span = cursor.skip()?;
        let Some(tokens) = (Value { kind, raw: &text[span.clone()] }).as_u64() else { return Ok(()) };
        if let Some(count) = count {
            self.count(count, tokens);
        }
        if let Some(holes) = holes {
            holes.number(span.start, span.end, count);
        }
        Ok(())
    }

    /// The counts, when any was reported. On `/v1/messages` the prompt is the sum of three fields, of which only the
    /// first counts what no cache had; elsewhere the two cache fields do not occur.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let output = self.output.unwrap_or(0);
        let prompt = match (self.prompt, self.total) {
            (Some(prompt), _) => prompt,
            (None, Some(total)) => total.saturating_sub(output),
            (None, None) if self.output.is_some() || self.cache_read.is_some() => 0,
            (None, None) => return None,
        };
        let (read, created) = (self.cache_read.unwrap_or(0), self.cache_created.unwrap_or(0));
        Some(Usage {
            prompt: prompt.saturating_add(read).saturating_add(created),
            cached: self.cached.unwrap_or(read),
            output,
        })
    }
}
