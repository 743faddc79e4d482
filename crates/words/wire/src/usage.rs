//! Token counts as engines report them.

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
        report.read(value.raw, &mut Cursor::new(value.raw, 0)).ok()?;
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

impl Report {
    /// Reads the usage object that starts at the cursor, and steps over it.
    pub(crate) fn read(&mut self, text: &[u8], cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = cursor.key(&mut first)? {
            let kind = cursor.kind()?;
            let key = &text[key];
            if kind == Kind::Object && matches!(key, b"prompt_tokens_details" | b"input_tokens_details") {
                self.details(text, cursor)?;
                continue;
            }
            let value = Value { kind, raw: &text[cursor.skip()?] };
            let Some(count) = value.as_u64() else { continue };
            match key {
                b"prompt_tokens" | b"input_tokens" => self.prompt = Some(count),
                b"completion_tokens" | b"output_tokens" => self.output = Some(count),
                b"total_tokens" => self.total = Some(count),
                b"cache_read_input_tokens" => self.cache_read = Some(count),
                b"cache_creation_input_tokens" => self.cache_created = Some(count),
                _ => {}
            }
        }
        Ok(())
    }

    fn details(&mut self, text: &[u8], cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        cursor.enter(b'{')?;
        let mut first = true;
        while let Some(key) = cursor.key(&mut first)? {
            let kind = cursor.kind()?;
            let value = Value { kind, raw: &text[cursor.skip()?] };
            if &text[key] == b"cached_tokens" {
                self.cached = value.as_u64().or(self.cached);
            }
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
