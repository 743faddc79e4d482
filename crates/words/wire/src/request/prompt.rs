//! What the prompt may cost: an upper bound of its tokens from its bytes, without a tokenizer.
//!
//! A byte-level tokenizer never makes more tokens than there are bytes. Around the text stands the chat template: some
//! tokens for each message, and some for what templates say of their own accord.

use std::borrow::Cow;

use tidegate_core::Fault;

use super::checks::invalid;
use super::media::{self, Medium};
use super::missing;
use crate::endpoint::Endpoint;
use crate::json::text::unescaped_len;
use crate::json::{Kind, Object, Value};

/// Tokens of a chat template around all messages: start, a system text of the template's own, generation prompt.
pub const TEMPLATE_BASE: u64 = 128;
/// Tokens of a chat template around each message, tool or prompt.
pub const TEMPLATE_PER_MESSAGE: u64 = 16;
/// Most prompts of one batch of completions or embeddings.
pub const INPUTS_MAX: u64 = 2_048;
/// Most documents of one rerank.
pub const DOCUMENTS_MAX: u64 = 10_000;
/// Bytes of inline sound that are counted as one token on top of the medium's own: sound is counted by its length.
const SOUND_BYTES_PER_TOKEN: u64 = 64;

/// What a prompt adds up to.
#[derive(Debug, Default)]
pub(super) struct Prompt<'a> {
    pub(super) text_bytes: u64,
    pub(super) token_ids: u64,
    pub(super) template_tokens: u64,
    pub(super) prompts: u64,
    pub(super) images: u64,
    pub(super) media_hosts: Vec<Box<str>>,
    /// The field that is at fault when something is wrong.
    param: &'static str,
    /// Where the texts go when they are asked for.
    texts: Option<Vec<Cow<'a, str>>>,
}

/// Adds up the prompt of a request.
pub(super) fn measure<'a>(endpoint: Endpoint, object: &Object<'a>) -> Result<Prompt<'a>, Fault> {
    Prompt { prompts: 1, ..Prompt::default() }.walk(endpoint, object)
}

/// The texts of a prompt in their order, for a tokenizer. Add [`super::Facts::template_tokens`] and
/// [`super::Facts::token_ids`] to what it counts.
///
/// # Errors
/// As [`super::read`].
pub fn prompt_text<'a>(endpoint: Endpoint, object: &Object<'a>) -> Result<Vec<Cow<'a, str>>, Fault> {
    let prompt = Prompt { prompts: 1, texts: Some(Vec::new()), ..Prompt::default() };
    Ok(prompt.walk(endpoint, object)?.texts.unwrap_or_default())
}

fn required<'a>(object: &Object<'a>, key: &'static str) -> Result<Value<'a>, Fault> {
    object.get(key).filter(|value| !value.is_null()).ok_or_else(|| missing(key))
}

impl<'a> Prompt<'a> {
    fn walk(mut self, endpoint: Endpoint, object: &Object<'a>) -> Result<Self, Fault> {
        match endpoint {
            Endpoint::ChatCompletions => self.chat(object)?,
            Endpoint::Completions => {
                self.inputs("prompt", &required(object, "prompt")?)?;
                self.extra(object, &["suffix"]);
            }
            Endpoint::Embeddings => match object.get("input").filter(|value| !value.is_null()) {
                // Some engines take a chat to embed.
                None if object.get("messages").is_some() => self.chat(object)?,
                None => return Err(missing("input")),
                Some(input) => {
                    self.inputs("input", &input)?;
                    self.prompts = 1;
                }
            },
            Endpoint::Rerank => self.rerank(object)?,
            Endpoint::Responses => self.responses(object)?,
            Endpoint::Messages | Endpoint::CountTokens => {
                self.template_tokens += TEMPLATE_BASE;
                self.param = "system";
                if let Some(system) = object.get("system") {
                    self.content(&system)?;
                }
                self.messages("messages", &required(object, "messages")?)?;
                self.tools(object, &["tools"]);
            }
            Endpoint::Transcriptions | Endpoint::Models | Endpoint::Model => {}
        }
        Ok(self)
    }

    fn chat(&mut self, object: &Object<'a>) -> Result<(), Fault> {
        self.template_tokens += TEMPLATE_BASE;
        self.messages("messages", &required(object, "messages")?)?;
        self.tools(object, &["tools", "functions", "documents"]);
        self.extra(object, &["response_format"]);
        Ok(())
    }

    fn responses(&mut self, object: &Object<'a>) -> Result<(), Fault> {
        self.template_tokens += TEMPLATE_BASE;
        let input = required(object, "input")?;
        match input.kind {
            Kind::String => self.text(&input),
            _ => self.messages("input", &input)?,
        }
        self.tools(object, &["tools"]);
        self.extra(object, &["instructions", "text"]);
        Ok(())
    }

    fn rerank(&mut self, object: &Object<'a>) -> Result<(), Fault> {
        let query = required(object, "query")?;
        self.param = "query";
        self.content(&query)?;
        // The query is read again with every document.
        let query_bytes = self.text_bytes;
        let documents = required(object, "documents")?;
        self.param = "documents";
        let list = documents.array().ok_or_else(|| invalid("documents", "documents must be a list"))?;
        let mut count = 0;
        for document in list {
            count += 1;
            if count > DOCUMENTS_MAX {
                return Err(invalid("documents", format!("documents must be at most {DOCUMENTS_MAX}")));
            }
            self.content(&document)?;
        }
        self.text_bytes = self.text_bytes.saturating_add(query_bytes.saturating_mul(count));
        self.template_tokens += TEMPLATE_PER_MESSAGE * count;
        Ok(())
    }

    /// A string, a list of strings, a list of token ids, or a list of such lists.
    fn inputs(&mut self, param: &'static str, value: &Value<'a>) -> Result<(), Fault> {
        self.param = param;
        if value.kind == Kind::String {
            self.text(value);
            self.template_tokens += TEMPLATE_PER_MESSAGE;
            return Ok(());
        }
        let wrong = || invalid(param, format!("{param} must be a string, a list of strings, or lists of token ids"));
        let mut prompts = 0;
        let mut ids = 0;
        for element in value.array().ok_or_else(wrong)? {
            match element.kind {
                Kind::Number => ids += 1,
                Kind::String => self.text(&element),
                Kind::Array => self.token_ids += element.array().map_or(0, |list| list.count() as u64),
                Kind::Object => self.content(&element)?,
                Kind::Null | Kind::Bool => return Err(wrong()),
            }
            prompts += u64::from(element.kind != Kind::Number);
            if prompts > INPUTS_MAX {
                return Err(invalid(param, format!("{param} must be at most {INPUTS_MAX} prompts")));
            }
        }
        if prompts > 0 && ids > 0 || prompts + ids == 0 {
            return Err(wrong());
        }
        self.token_ids += ids;
        self.prompts = prompts.max(1);
        self.template_tokens += TEMPLATE_PER_MESSAGE * self.prompts;
        Ok(())
    }

    fn messages(&mut self, param: &'static str, value: &Value<'a>) -> Result<(), Fault> {
        self.param = param;
        let wrong = || invalid(param, format!("{param} must be a list of objects that is not empty"));
        let mut count = 0;
        for message in value.array().ok_or_else(wrong)? {
            let message = message.object().ok_or_else(wrong)?;
            count += 1;
            for (key, value) in message.entries() {
                match &*key {
                    b"content" | b"output" => self.content(&value)?,
                    // Words of the protocol, inside the template's overhead.
                    b"role" | b"type" if value.raw.len() <= 16 => {}
                    _ => self.plain(&value),
                }
            }
        }
        if count == 0 {
            return Err(wrong());
        }
        self.template_tokens += TEMPLATE_PER_MESSAGE * count;
        Ok(())
    }

    /// The content of a message, or of a part of one: text, a part, or a list of parts.
    fn content(&mut self, value: &Value<'a>) -> Result<(), Fault> {
        match value.kind {
            Kind::String => self.text(value),
            Kind::Array => {
                for part in value.array().into_iter().flatten() {
                    self.content(&part)?;
                }
            }
            Kind::Object => {
                if let Some(part) = value.object() {
                    self.part(&part)?;
                }
            }
            Kind::Null | Kind::Bool | Kind::Number => {}
        }
        Ok(())
    }

    fn part(&mut self, part: &Object<'a>) -> Result<(), Fault> {
        let inline = part.get("type").is_some_and(|kind| kind.raw == b"\"base64\"");
        for (key, value) in part.entries() {
            match &*key {
                b"type" | b"role" | b"media_type" | b"cache_control" if value.raw.len() <= 64 => {}
                // What a tool was called with is data, URLs in it included.
                b"input" | b"arguments" => self.plain(&value),
                b"data" if inline && value.kind == Kind::String => self.inline(&value)?,
                b"input_audio" => self.sound(&value),
                key if value.kind == Kind::String && media::is_url_key(key) => self.medium(&value)?,
                key if value.kind == Kind::String && media::is_medium_key(key) => {
                    match value.content().is_some_and(media::is_address) {
                        true => self.medium(&value)?,
                        false => self.inline(&value)?,
                    }
                }
                _ => self.content(&value)?,
            }
        }
        Ok(())
    }

    fn medium(&mut self, value: &Value<'a>) -> Result<(), Fault> {
        self.images += 1;
        if let Medium::Remote(host) = media::medium(self.param, value)?
            && !self.media_hosts.contains(&host)
        {
            self.media_hosts.push(host);
        }
        Ok(())
    }

    fn inline(&mut self, value: &Value<'a>) -> Result<(), Fault> {
        self.images += 1;
        media::bounded(self.param, value)
    }

    fn sound(&mut self, value: &Value<'a>) {
        self.images += 1;
        self.text_bytes += value.raw.len() as u64 / SOUND_BYTES_PER_TOKEN;
    }

    fn tools(&mut self, object: &Object<'a>, keys: &[&str]) {
        for value in keys.iter().filter_map(|key| object.get(key)) {
            let count = value.array().map_or(0, |list| list.count() as u64);
            self.template_tokens += TEMPLATE_PER_MESSAGE * count;
            self.plain(&value);
        }
    }

    fn extra(&mut self, object: &Object<'a>, keys: &[&str]) {
        for value in keys.iter().filter_map(|key| object.get(key)) {
            self.plain(&value);
        }
    }

    /// Text as text; a structure as it is written.
    fn plain(&mut self, value: &Value<'a>) {
        match value.kind {
            Kind::String => self.text(value),
            Kind::Array | Kind::Object => {
                self.text_bytes += value.raw.len() as u64;
                if let (Some(texts), Ok(text)) = (&mut self.texts, std::str::from_utf8(value.raw)) {
                    texts.push(Cow::Borrowed(text));
                }
            }
            Kind::Null | Kind::Bool | Kind::Number => {}
        }
    }

    fn text(&mut self, value: &Value<'a>) {
        let Some(content) = value.content() else { return };
        self.text_bytes += unescaped_len(content) as u64;
        if let Some(texts) = &mut self.texts {
            texts.extend(value.as_str());
        }
    }
}
