//! The stream: chunks of a chat completion to Anthropic's events.
//!
//! ```text
//! first chunk        message_start
//! text, reasoning,   content_block_stop of the block before, content_block_start,
//! call of a tool     then one content_block_delta for each chunk
//! [DONE]             content_block_stop, message_delta (reason to stop, usage), message_stop
//! ```

use std::mem;

use bytes::Bytes;

use super::{Told, reasoning, stop, text, write_quoted, write_usage};
use crate::endpoint::Flavour;
use crate::json::text::write_u64;
use crate::json::{Kind, Object, Value, write_str};
use crate::request::UsageAsked;
use crate::sse::frame::{Data, Framer, joined, parts};
use crate::sse::{Cause, Stream, StreamFault, StreamOptions};
use crate::usage::Usage;

/// Most tool calls in one answer.
pub const TOOL_CALLS_MAX: u64 = 128;

/// The block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    None,
    Text,
    Thinking,
    /// The engine's index of the call.
    Tool(u64),
}

/// Translates one answer's stream. Used as [`Stream`] is, and reads the engine's events through one.
#[derive(Debug)]
pub struct ChatToMessages {
    chat: Stream,
    told: Told,
    started: bool,
    block: Block,
    /// Blocks begun.
    blocks: u64,
    /// Calls of tools begun.
    calls: u64,
    reason: Option<(&'static str, Option<Box<[u8]>>)>,
    broken: bool,
}

impl ChatToMessages {
    /// A stream of which nothing has been read.
    #[must_use]
    pub fn new(told: Told) -> Self {
        let alias = told.alias.clone();
        Self {
            chat: Stream::new(StreamOptions { flavour: Flavour::Chat, alias, asked: UsageAsked::Continuous }),
            told,
            started: false,
            block: Block::None,
            blocks: 0,
            calls: 0,
            reason: None,
            broken: false,
        }
    }

    /// Takes one read and returns the events that may leave now.
    ///
    /// # Errors
    /// As [`Stream::push`]; also when calls of tools come in an order that Anthropic's events cannot have.
    pub fn push(&mut self, read: Bytes) -> Result<Bytes, StreamFault> {
        let result = self.chat.push(read);
        self.translated(result)
    }

    /// The engine closed its answer.
    ///
    /// # Errors
    /// As [`Stream::end`].
    pub fn end(&mut self) -> Result<Bytes, StreamFault> {
        let result = self.chat.end();
        self.translated(result)
    }

    /// Tokens as last reported by the engine.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.chat.usage()
    }

    /// The engine's own id of the answer.
    #[must_use]
    pub fn engine_id(&self) -> Option<&str> {
        self.chat.engine_id()
    }

    /// As [`Stream::content_events`].
    #[must_use]
    pub const fn content_events(&self) -> u64 {
        self.chat.content_events()
    }

    /// As [`Stream::progress`].
    #[must_use]
    pub const fn progress(&self) -> u64 {
        self.chat.progress()
    }

    /// Whether the end was seen.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.chat.ended()
    }

    fn translated(&mut self, result: Result<Bytes, StreamFault>) -> Result<Bytes, StreamFault> {
        if self.broken {
            return Ok(Bytes::new());
        }
        let (events, cause) = match result {
            Ok(events) => (events, None),
            Err(fault) => (fault.before, Some(fault.cause)),
        };
        let mut out = Vec::with_capacity(events.len() + 128);
        let cause = self.events(&events, &mut out).err().or(cause);
        match cause {
            None => Ok(out.into()),
            Some(cause) => {
                self.broken = true;
                Err(StreamFault { cause, before: out.into() })
            }
        }
    }

    /// Translates whole events.
    fn events(&mut self, events: &[u8], out: &mut Vec<u8>) -> Result<(), Cause> {
        let mut framer = Framer::default();
        let mut rest = events;
        while !rest.is_empty() {
            // Only whole events come here: a CR at the very end waits for nothing.
            let len = framer.end(rest).unwrap_or(rest.len());
            let event = &rest[..len];
            let parts = parts(event);
            match parts.data {
                // Comments keep connections open, whatever they say. A name without data is no event.
                Data::None if event.starts_with(b":") => out.extend_from_slice(b":\n\n"),
                Data::None => {}
                Data::Line { start, end } => self.data(&event[start..end], out)?,
                Data::Lines => self.data(&joined(event), out)?,
            }
            rest = &rest[len..];
        }
        Ok(())
    }

    fn data(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Cause> {
        if data.is_empty() {
            return Ok(());
        }
        if data == b"[DONE]" {
            self.finish(out);
            return Ok(());
        }
        let chunk = Value { kind: Kind::Object, raw: data }.object().ok_or(Cause::Malformed)?;
        self.start(Some(&chunk), out);
        let choice = chunk.get("choices").and_then(|choices| choices.array()?.next()?.object());
        let Some(choice) = choice else { return Ok(()) };
        if let Some(delta) = choice.get("delta").and_then(|delta| delta.object()) {
            self.delta(&delta, out)?;
        }
        if let Some(reason) = text(&choice, "finish_reason") {
            let (word, sequence) = stop(&choice, reason, self.calls > 0);
            self.reason = Some((word, sequence.map(Into::into)));
        }
        Ok(())
    }

    /// Begins the message with what its first chunk says, however much was read with it.
    fn start(&mut self, chunk: Option<&Object<'_>>, out: &mut Vec<u8>) {
        if mem::replace(&mut self.started, true) {
            return;
        }
        event(out, "message_start");
        out.extend_from_slice(b",\"message\":{\"id\":");
        write_quoted(out, chunk.and_then(|chunk| text(chunk, "id")).unwrap_or_default());
        out.extend_from_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
        write_str(out, &self.told.alias);
        out.extend_from_slice(b",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        // Without continuous usage the prompt's count comes with the last event only.
        let usage = chunk.and_then(|chunk| Usage::read(&chunk.get("usage")?)).unwrap_or_default();
        write_usage(out, Usage { output: 0, ..usage });
        out.extend_from_slice(b"}}\n\n");
    }

    fn delta(&mut self, delta: &Object<'_>, out: &mut Vec<u8>) -> Result<(), Cause> {
        if let Some(thought) = reasoning(delta).filter(|_| self.told.thinking) {
            self.open(Block::Thinking, out, |out| {
                out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
            });
            self.piece(out, b"thinking_delta", b"thinking", thought);
        }
        if let Some(content) = text(delta, "content") {
            self.open(Block::Text, out, |out| out.extend_from_slice(b"{\"type\":\"text\",\"text\":\"\"}"));
            self.piece(out, b"text_delta", b"text", content);
        }
        for call in delta.get("tool_calls").and_then(|calls| calls.array()).into_iter().flatten() {
            self.call(&call.object().ok_or(Cause::Malformed)?, out)?;
        }
        Ok(())
    }

    /// A piece of a tool's call: its first has id and name, the others pieces of its arguments.
    fn call(&mut self, call: &Object<'_>, out: &mut Vec<u8>) -> Result<(), Cause> {
        let index = call.get("index").and_then(|index| index.as_u64()).unwrap_or(0);
        let function = call.get("function").and_then(|function| function.object());
        if self.block != Block::Tool(index) {
            // Events for a block that is closed have no place, and a call without a name cannot begin.
            let name = function.as_ref().and_then(|function| text(function, "name"));
            let (true, Some(name)) = (index >= self.calls && index < TOOL_CALLS_MAX, name) else {
                return Err(Cause::Malformed);
            };
            let id = text(call, "id").unwrap_or_default();
            self.calls = index + 1;
            self.open(Block::Tool(index), out, |out| {
                out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":");
                write_quoted(out, id);
                out.extend_from_slice(b",\"name\":");
                write_quoted(out, name);
                out.extend_from_slice(b",\"input\":{}}");
            });
        }
        if let Some(arguments) = function.as_ref().and_then(|function| text(function, "arguments")) {
            self.piece(out, b"input_json_delta", b"partial_json", arguments);
        }
        Ok(())
    }

    /// Opens a block, unless it is open; closes the one before.
    fn open(&mut self, block: Block, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
        if self.block == block {
            return;
        }
        self.close(out);
        self.block = block;
        event(out, "content_block_start");
        out.extend_from_slice(b",\"index\":");
        write_u64(out, self.blocks);
        out.extend_from_slice(b",\"content_block\":");
        content(out);
        out.extend_from_slice(b"}\n\n");
        self.blocks += 1;
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if mem::replace(&mut self.block, Block::None) == Block::None {
            return;
        }
        event(out, "content_block_stop");
        out.extend_from_slice(b",\"index\":");
        write_u64(out, self.blocks.saturating_sub(1));
        out.extend_from_slice(b"}\n\n");
    }

    fn piece(&self, out: &mut Vec<u8>, kind: &[u8], key: &[u8], content: &[u8]) {
        event(out, "content_block_delta");
        out.extend_from_slice(b",\"index\":");
        write_u64(out, self.blocks.saturating_sub(1));
        out.extend_from_slice(b",\"delta\":{\"type\":");
        write_quoted(out, kind);
        out.push(b',');
        write_quoted(out, key);
        out.push(b':');
        write_quoted(out, content);
        out.extend_from_slice(b"}}\n\n");
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.start(None, out);
        self.close(out);
        let (reason, sequence) = self.reason.take().unwrap_or(("end_turn", None));
        event(out, "message_delta");
        out.extend_from_slice(b",\"delta\":{\"stop_reason\":");
        write_str(out, reason);
        out.extend_from_slice(b",\"stop_sequence\":");
        out.extend_from_slice(sequence.as_deref().unwrap_or(b"null"));
        out.extend_from_slice(b"},\"usage\":");
        write_usage(out, self.chat.usage().unwrap_or_default());
        out.extend_from_slice(b"}\n\n");
        event(out, "message_stop");
        out.extend_from_slice(b"}\n\n");
    }
}

/// Starts an event: its name, and the data up to its type.
fn event(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: {\"type\":\"");
    out.extend_from_slice(name.as_bytes());
    out.push(b'"');
}
