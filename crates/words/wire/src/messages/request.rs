//! The request: messages to chat completions.

use tidegate_core::Fault;

use super::{text, write_quoted, write_raw};
use crate::json::text::{write_i64, write_str, write_u64};
use crate::json::{Kind, Object, Value};
use crate::request::{DENIED, Facts, Upstream, invalid};

/// Members that are translated, or that mean nothing to an engine which speaks chat completions. All others pass.
const TRANSLATED: &[&str] = &[
    "model",
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "metadata",
    "thinking",
    "context_management",
    "output_config",
    "container",
    "mcp_servers",
    // Fields of the other protocol that would contradict what is set here.
    "n",
    "best_of",
    "stop",
    "stream_options",
    "max_completion_tokens",
    "parallel_tool_calls",
    "user",
];

/// Makes the chat completions request that asks the same of an engine.
///
/// # Errors
/// A block, image source, tool or tool choice that chat completions cannot say.
pub fn to_chat(object: &Object<'_>, facts: &Facts, upstream: &Upstream<'_>) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::with_capacity(object.text().len() + object.text().len() / 4 + 256);
    out.extend_from_slice(b"{\"model\":");
    write_str(&mut out, upstream.model);
    messages(&mut out, object)?;
    if let Some(tokens) = upstream.max_tokens.or(facts.max_tokens) {
        out.extend_from_slice(b",\"max_tokens\":");
        write_u64(&mut out, tokens);
    }
    if facts.stream {
        out.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true");
        if upstream.continuous_usage {
            out.extend_from_slice(b",\"continuous_usage_stats\":true");
        }
        out.push(b'}');
    }
    if let Some(stop) = object.get("stop_sequences").filter(|value| !value.is_null()) {
        out.extend_from_slice(b",\"stop\":");
        out.extend_from_slice(stop.raw);
    }
    if let Some(user) = object.get("metadata").and_then(|metadata| metadata.object()?.get("user_id"))
        && user.kind == Kind::String
    {
        out.extend_from_slice(b",\"user\":");
        out.extend_from_slice(user.raw);
    }
    if tools(&mut out, object)? {
        tool_choice(&mut out, object)?;
    }
    if let Some(priority) = upstream.priority {
        out.extend_from_slice(b",\"priority\":");
        write_i64(&mut out, priority);
    }
    if let Some(salt) = upstream.cache_salt {
        out.extend_from_slice(b",\"cache_salt\":");
        write_str(&mut out, salt);
    }
    for (key, value) in object.members() {
        if !TRANSLATED.contains(&&*key) && !DENIED.contains(&&*key) {
            out.push(b',');
            write_str(&mut out, &key);
            out.push(b':');
            out.extend_from_slice(value.raw);
        }
    }
    out.push(b'}');
    Ok(out)
}

fn wrong(text: &'static str) -> Fault {
    invalid("messages", text)
}

/// The list of messages, which grows as they are translated.
struct List<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl List<'_> {
    /// Starts a message.
    fn open(&mut self, role: &str) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"role\":");
        write_str(self.out, role);
    }
}

fn messages(out: &mut Vec<u8>, object: &Object<'_>) -> Result<(), Fault> {
    out.extend_from_slice(b",\"messages\":[");
    let mut list = List { out, first: true };
    if let Some(system) = object.get("system") {
        system_message(&mut list, &system)?;
    }
    for message in object.get("messages").and_then(|list| list.array()).into_iter().flatten() {
        let message = message.object().ok_or_else(|| wrong("a message must be an object"))?;
        let role = message.get("role").and_then(|role| role.as_str());
        let content = message.get("content").ok_or_else(|| wrong("a message must have content"))?;
        match role.as_deref() {
            Some("user") => user(&mut list, &content)?,
            Some("assistant") => assistant(&mut list, &content)?,
            // Newer clients put instructions between messages.
            Some("system") => system_message(&mut list, &content)?,
            _ => return Err(wrong("role must be user or assistant")),
        }
    }
    out.push(b']');
    Ok(())
}

fn system_message(list: &mut List<'_>, system: &Value<'_>) -> Result<(), Fault> {
    if system.is_null() {
        return Ok(());
    }
    let texts = texts(system).ok_or_else(|| invalid("system", "system must be text"))?;
    if texts.iter().all(|text| text.is_empty()) {
        return Ok(());
    }
    list.open("system");
    list.out.extend_from_slice(b",\"content\":\"");
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            list.out.extend_from_slice(b"\\n");
        }
        list.out.extend_from_slice(text);
    }
    list.out.extend_from_slice(b"\"}");
    Ok(())
}

/// The texts of a string or of a list of text blocks, as they stand between their quotes.
fn texts<'a>(value: &Value<'a>) -> Option<Vec<&'a [u8]>> {
    if let Some(content) = value.content() {
        return Some(vec![content]);
    }
    value.array()?.map(|block| block.object()?.get("text")?.content()).collect()
}

/// The blocks of a message's content; a string is one text block.
fn blocks<'a>(content: &Value<'a>) -> Result<Vec<Object<'a>>, Fault> {
    let list = content.array().ok_or_else(|| wrong("content must be a string or a list of blocks"))?;
    list.map(|block| block.object().ok_or_else(|| wrong("a block must be an object"))).collect()
}

fn kind<'a>(block: &Object<'a>) -> &'a [u8] {
    text(block, "type").unwrap_or_default()
}

/// A user's message: results of tools first, each a message of its own, then everything else.
fn user(list: &mut List<'_>, content: &Value<'_>) -> Result<(), Fault> {
    if let Some(content) = content.content() {
        list.open("user");
        list.out.extend_from_slice(b",\"content\":");
        write_quoted(list.out, content);
        list.out.push(b'}');
        return Ok(());
    }
    let mut parts = Vec::new();
    for block in blocks(content)? {
        match kind(&block) {
            b"text" => text_part(&mut parts, &block)?,
            b"image" => image_part(&mut parts, &block)?,
            b"document" => document_part(&mut parts, &block)?,
            b"tool_result" => tool_result(list, &block, &mut parts)?,
            _ => return Err(wrong("a user's block must be text, image, document or tool_result")),
        }
    }
    if !parts.is_empty() {
        list.open("user");
        list.out.extend_from_slice(b",\"content\":[");
        list.out.extend_from_slice(&parts);
        list.out.extend_from_slice(b"]}");
    }
    Ok(())
}

fn part(parts: &mut Vec<u8>, kind: &[u8]) {
    if !parts.is_empty() {
        parts.push(b',');
    }
    parts.extend_from_slice(b"{\"type\":");
    write_quoted(parts, kind);
}

fn text_part(parts: &mut Vec<u8>, block: &Object<'_>) -> Result<(), Fault> {
    let content = block.get("text").and_then(|value| value.content());
    let content = content.ok_or_else(|| wrong("a text block must have text"))?;
    part(parts, b"text");
    parts.extend_from_slice(b",\"text\":");
    write_quoted(parts, content);
    parts.push(b'}');
    Ok(())
}

fn image_part(parts: &mut Vec<u8>, block: &Object<'_>) -> Result<(), Fault> {
    let source = block.get("source").and_then(|source| source.object());
    let source = source.ok_or_else(|| wrong("an image must have a source"))?;
    part(parts, b"image_url");
    parts.extend_from_slice(b",\"image_url\":{\"url\":\"");
    match (kind(&source), text(&source, "media_type"), text(&source, "data"), text(&source, "url")) {
        (b"base64", Some(media), Some(data), _) => {
            parts.extend_from_slice(b"data:");
            parts.extend_from_slice(media);
            parts.extend_from_slice(b";base64,");
            parts.extend_from_slice(data);
        }
        (b"url", _, _, Some(url)) => parts.extend_from_slice(url),
        _ => return Err(wrong("an image must be given as base64 or by url")),
    }
    parts.extend_from_slice(b"\"}}");
    Ok(())
}

/// A document in plain text is text; others need an engine that reads them.
fn document_part(parts: &mut Vec<u8>, block: &Object<'_>) -> Result<(), Fault> {
    let source = block.get("source").and_then(|source| source.object());
    let data = source.filter(|source| kind(source) == b"text").and_then(|source| text(&source, "data"));
    let data = data.ok_or_else(|| wrong("a document must be given as plain text"))?;
    part(parts, b"text");
    parts.extend_from_slice(b",\"text\":");
    write_quoted(parts, data);
    parts.push(b'}');
    Ok(())
}

/// A tool's result. Chat completions allow text only in it, so images follow in the user's own message.
fn tool_result(list: &mut List<'_>, block: &Object<'_>, parts: &mut Vec<u8>) -> Result<(), Fault> {
    let id = text(block, "tool_use_id").ok_or_else(|| wrong("a tool_result must have a tool_use_id"))?;
    list.open("tool");
    list.out.extend_from_slice(b",\"tool_call_id\":");
    write_quoted(list.out, id);
    list.out.extend_from_slice(b",\"content\":\"");
    match block.get("content").filter(|content| !content.is_null()) {
        None => {}
        Some(content) if content.content().is_some() => {
            list.out.extend_from_slice(content.content().unwrap_or_default());
        }
        Some(content) => {
            let mut first = true;
            for inner in blocks(&content)? {
                match kind(&inner) {
                    b"text" => {
                        if !std::mem::replace(&mut first, false) {
                            list.out.extend_from_slice(b"\\n");
                        }
                        list.out.extend_from_slice(text(&inner, "text").unwrap_or_default());
                    }
                    b"image" => image_part(parts, &inner)?,
                    _ => return Err(wrong("a tool_result must hold text or images")),
                }
            }
        }
    }
    list.out.extend_from_slice(b"\"}");
    Ok(())
}

/// An assistant's message: texts run together, calls of tools beside them, thinking left out.
fn assistant(list: &mut List<'_>, content: &Value<'_>) -> Result<(), Fault> {
    let mut said = Vec::new();
    let mut calls = Vec::new();
    if let Some(content) = content.content() {
        said.extend_from_slice(content);
    } else {
        for block in blocks(content)? {
            match kind(&block) {
                b"text" => said.extend_from_slice(text(&block, "text").unwrap_or_default()),
                b"tool_use" => tool_call(&mut calls, &block)?,
                b"thinking" | b"redacted_thinking" => {}
                _ => return Err(wrong("an assistant's block must be text, tool_use or thinking")),
            }
        }
    }
    list.open("assistant");
    list.out.extend_from_slice(b",\"content\":");
    if said.is_empty() && !calls.is_empty() {
        list.out.extend_from_slice(b"null");
    } else {
        write_quoted(list.out, &said);
    }
    if !calls.is_empty() {
        list.out.extend_from_slice(b",\"tool_calls\":[");
        list.out.extend_from_slice(&calls);
        list.out.push(b']');
    }
    list.out.push(b'}');
    Ok(())
}

fn tool_call(calls: &mut Vec<u8>, block: &Object<'_>) -> Result<(), Fault> {
    let (Some(id), Some(name)) = (text(block, "id"), text(block, "name")) else {
        return Err(wrong("a tool_use must have id and name"));
    };
    let input = block.get("input").filter(|input| input.kind == Kind::Object);
    let input = input.and_then(|input| std::str::from_utf8(input.raw).ok()).unwrap_or("{}");
    if !calls.is_empty() {
        calls.push(b',');
    }
    calls.extend_from_slice(b"{\"id\":");
    write_quoted(calls, id);
    calls.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
    write_quoted(calls, name);
    calls.extend_from_slice(b",\"arguments\":");
    write_str(calls, input);
    calls.extend_from_slice(b"}}");
    Ok(())
}

/// Writes the tools; says whether there are any.
fn tools(out: &mut Vec<u8>, object: &Object<'_>) -> Result<bool, Fault> {
    let Some(value) = object.get("tools").filter(|value| !value.is_null()) else { return Ok(false) };
    let list = value.array().ok_or_else(|| invalid("tools", "tools must be a list"))?;
    let mut first = true;
    for tool in list {
        let tool = tool.object().ok_or_else(|| invalid("tools", "a tool must be an object"))?;
        if !matches!(kind(&tool), b"" | b"custom") {
            return Err(invalid("tools", "only tools of the caller's own can be used with this model"));
        }
        let name = text(&tool, "name").ok_or_else(|| invalid("tools", "a tool must have a name"))?;
        out.extend_from_slice(if first { b",\"tools\":[" } else { b"," });
        first = false;
        out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
        write_quoted(out, name);
        if let Some(description) = tool.get("description").filter(|value| value.kind == Kind::String) {
            out.extend_from_slice(b",\"description\":");
            out.extend_from_slice(description.raw);
        }
        out.extend_from_slice(b",\"parameters\":");
        write_raw(out, tool.get("input_schema").filter(|value| value.kind == Kind::Object), br#"{"type":"object"}"#);
        out.extend_from_slice(b"}}");
    }
    if !first {
        out.push(b']');
    }
    Ok(!first)
}

fn tool_choice(out: &mut Vec<u8>, object: &Object<'_>) -> Result<(), Fault> {
    let Some(value) = object.get("tool_choice").filter(|value| !value.is_null()) else { return Ok(()) };
    let wrong = || invalid("tool_choice", "tool_choice must be auto, any, none or a tool's name");
    let choice = value.object().ok_or_else(wrong)?;
    out.extend_from_slice(b",\"tool_choice\":");
    match kind(&choice) {
        b"auto" => out.extend_from_slice(b"\"auto\""),
        b"any" => out.extend_from_slice(b"\"required\""),
        b"none" => out.extend_from_slice(b"\"none\""),
        b"tool" => {
            out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
            write_quoted(out, text(&choice, "name").ok_or_else(wrong)?);
            out.extend_from_slice(b"}}");
        }
        _ => return Err(wrong()),
    }
    if choice.get("disable_parallel_tool_use").and_then(|value| value.as_bool()) == Some(true) {
        out.extend_from_slice(b",\"parallel_tool_calls\":false");
    }
    Ok(())
}
