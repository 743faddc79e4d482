//! What a healthy engine answers, endpoint by endpoint.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::refusal::Refusal;
use super::script::{Script, Shape};
use super::wire::Recorded;

/// What a request that runs a model comes to.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// The answer's id.
    pub(super) id: String,
    /// Prompt tokens reported.
    pub(super) prompt: u64,
    /// Of these, cached.
    pub(super) cached: u64,
    /// How the answer is shaped.
    pub(super) body: Body,
}

/// The shape of an answer.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// One JSON body that holds so many generated tokens.
    Json(Bytes, u64),
    /// Events.
    Stream(Events),
}

/// A stream of events: each is the text of one event, and the generated tokens in it.
#[derive(Clone, Debug)]
pub(super) struct Events {
    /// Events before any token (role, `message_start`, …).
    pub(super) open: Vec<String>,
    /// Events with a token each.
    pub(super) tokens: Vec<String>,
    /// Events that end an answer properly.
    pub(super) close: Vec<String>,
    /// The same as `close` when the engine aborted, and what a stream that broke with an error event ends with.
    pub(super) abort: Vec<String>,
}

/// Which endpoint a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Chat,
    Completions,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    Rerank,
    Transcriptions,
}

impl Route {
    pub(super) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/rerank" | "/rerank" => Self::Rerank,
            "/v1/audio/transcriptions" => Self::Transcriptions,
            _ => return None,
        })
    }
}

/// Answers a request that runs a model, or says which error a real engine would give.
pub(super) fn run(script: &Script, route: Route, request: &Recorded, serial: u64) -> Result<Run, Refusal> {
    let is_vllm = script.shape == Shape::Vllm;
    let served = match route {
        Route::Embeddings | Route::Rerank => script.embeds,
        Route::Messages | Route::CountTokens => script.messages,
        Route::Transcriptions => script.audio,
        Route::Chat | Route::Completions | Route::Responses => true,
    };
    if !served {
        return Err(match (is_vllm, route) {
            (true, _) => Refusal::NotFound,
            (false, Route::Embeddings | Route::Rerank) => Refusal::LlamaNotSupported,
            (false, _) => Refusal::LlamaNotFound,
        });
    }
    if route == Route::Transcriptions {
        return transcription(script, request, serial);
    }
    let body: Value = serde_json::from_slice(&request.body)
        .map_err(|_| if is_vllm { Refusal::BadJson } else { Refusal::LlamaBadJson })?;
    if is_vllm && body["model"] != *script.model {
        return Err(Refusal::UnknownModel);
    }
    if route == Route::Chat && !body["messages"].is_array() {
        return Err(if is_vllm { Refusal::MissingMessages } else { Refusal::LlamaBadJson });
    }
    let prompt = script.prompt_tokens.unwrap_or_else(|| (request.body.len() as u64).div_ceil(4));
    if prompt > script.context_served.unwrap_or(script.context_tokens) {
        return Err(if is_vllm { Refusal::ContextTooLong } else { Refusal::LlamaContext });
    }
    let asked = Asked::of(script, route, &body)?;
    let id = id_of(script.shape, route, request, serial);
    let answer = Answer { script, id: &id, prompt, asked: &asked };
    let body = match route {
        Route::Chat => answer.chat(),
        Route::Completions => answer.completions(),
        Route::Responses => answer.responses(),
        Route::Messages => answer.messages(),
        Route::CountTokens => json_body(&json!({"input_tokens": prompt}), 0),
        Route::Embeddings => answer.embeddings(&body),
        Route::Rerank | Route::Transcriptions => answer.rerank(&body),
    };
    Ok(Run { id, prompt, cached: script.cached_tokens, body })
}

/// What the request asks of the answer.
struct Asked {
    is_stream: bool,
    has_usage: bool,
    has_continuous_usage: bool,
    has_tools: bool,
    choices: u64,
    tokens: Vec<Arc<str>>,
    is_cut: bool,
}

impl Asked {
    fn of(script: &Script, route: Route, body: &Value) -> Result<Self, Refusal> {
        let is_vllm = script.shape == Shape::Vllm;
        let max = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
            .iter()
            .find_map(|key| body.get(*key)?.as_i64());
        match max {
            Some(max) if is_vllm && (max < 1 || max.unsigned_abs() > script.context_tokens) => {
                return Err(Refusal::MaxTokens);
            }
            Some(..-1) => return Err(Refusal::LlamaMaxTokens),
            _ => {}
        }
        if is_vllm && body["temperature"].as_f64().is_some_and(|value| value < 0.0) {
            return Err(Refusal::BadTemperature);
        }
        let max = max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
        let options = &body["stream_options"];
        let is_stream = body["stream"] == true;
        Ok(Self {
            is_stream,
            has_usage: options["include_usage"] == true,
            has_continuous_usage: is_vllm && options["continuous_usage_stats"] == true,
            has_tools: body["tools"].as_array().is_some_and(|tools| !tools.is_empty()) && script.tool.is_some(),
            choices: if matches!(route, Route::Chat | Route::Completions) {
                body["n"].as_u64().unwrap_or(1)
            } else {
                1
            },
            is_cut: max < script.tokens.len(),
            tokens: script.tokens.iter().take(max).cloned().collect(),
        })
    }

    const fn reason(&self) -> &'static str {
        match (self.has_tools, self.is_cut) {
            (true, _) => "tool_calls",
            (false, true) => "length",
            (false, false) => "stop",
        }
    }
}

fn id_of(shape: Shape, route: Route, request: &Recorded, serial: u64) -> String {
    let prefix = match route {
        Route::Completions => "cmpl",
        Route::Responses => "resp",
        Route::Embeddings => "embd",
        Route::Rerank => "score",
        Route::Chat | Route::Messages | Route::CountTokens | Route::Transcriptions => "chatcmpl",
    };
    let separator = if route == Route::Responses { '_' } else { '-' };
    match request.header("x-request-id") {
        Some(sent) if shape == Shape::Vllm => format!("{prefix}{separator}{sent}"),
        _ => format!("{prefix}{separator}fake{serial:012}"),
    }
}

fn json_body(value: &Value, tokens: u64) -> Body {
    Body::Json(value.to_string().into(), tokens)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn data(json: &str) -> String {
    format!("data: {json}\n\n")
}

fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

struct Answer<'a> {
    script: &'a Script,
    id: &'a str,
    prompt: u64,
    asked: &'a Asked,
}

impl Answer<'_> {
    fn output(&self) -> u64 {
        let one = if self.asked.has_tools { self.tool_pieces() } else { self.asked.tokens.len() as u64 };
        one * self.asked.choices
    }

    fn tool_pieces(&self) -> u64 {
        self.script.tool.as_ref().map_or(0, |tool| tool.arguments.len() as u64 + 1)
    }

    fn text(&self) -> String {
        self.asked.tokens.concat()
    }

    fn usage(&self, output: u64) -> String {
        let (prompt, cached) = (self.prompt, self.script.cached_tokens);
        let total = prompt + output;
        format!(
            r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output},"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
        )
    }

    fn timings(&self) -> &'static str {
        match self.script.shape {
            Shape::Vllm => "",
            Shape::LlamaCpp => {
                r#","timings":{"cache_n":0,"prompt_n":18,"prompt_ms":12.5,"predicted_n":8,"predicted_ms":99.9}"#
            }
        }
    }

    /// One chunk of a chat or completion stream. `choice` is the text of the choice object without its braces.
    fn chunk(&self, object: &str, choice: &str, so_far: u64) -> String {
        let (id, model) = (self.id, quoted(&self.script.model));
        let usage =
            if self.asked.has_continuous_usage { format!(r#","usage":{}"#, self.usage(so_far)) } else { String::new() };
        data(&format!(
            r#"{{"id":"{id}","object":"{object}","created":1796049949,"model":{model},"choices":[{{{choice}}}]{usage}}}"#
        ))
    }

    fn last_chunks(&self, object: &str, choice: impl Fn(u64, &str) -> String, reason: &str) -> Vec<String> {
        let output = self.output();
        let mut last: Vec<String> = (0..self.asked.choices)
            .map(|index| {
                let chunk = self.chunk(object, &choice(index, reason), output);
                let is_last = index + 1 == self.asked.choices;
                if is_last { chunk.replacen("}]", &format!("}}]{}", self.timings()), 1) } else { chunk }
            })
            .collect();
        if self.asked.has_usage {
            let (id, model, usage) = (self.id, quoted(&self.script.model), self.usage(output));
            last.push(data(&format!(
                r#"{{"id":"{id}","object":"{object}","created":1796049949,"model":{model},"choices":[],"usage":{usage}}}"#
            )));
        }
        last.push("data: [DONE]\n\n".to_owned());
        last
    }

    fn chat(&self) -> Body {
        if self.asked.is_stream {
            return Body::Stream(if self.asked.has_tools { self.chat_tool_stream() } else { self.chat_stream() });
        }
        let reason = self.asked.reason();
        let message = match (&self.script.tool, self.asked.has_tools) {
            (Some(tool), true) => json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": "chatcmpl-tool-1", "type": "function",
                "function": {"name": *tool.name, "arguments": tool.arguments.concat()},
            }]}),
            _ => json!({"role": "assistant", "content": self.text(), "refusal": null}),
        };
        let choices: Vec<_> = (0..self.asked.choices)
            .map(|index| {
                format!(r#"{{"index":{index},"message":{message},"logprobs":null,"finish_reason":"{reason}"}}"#)
            })
            .collect();
        self.unstreamed("chat.completion", &choices.join(","))
    }

    fn unstreamed(&self, object: &str, choices: &str) -> Body {
        let (id, model, usage, timings) =
            (self.id, quoted(&self.script.model), self.usage(self.output()), self.timings());
        let body = format!(
            r#"{{"id":"{id}","object":"{object}","created":1796049949,"model":{model},"choices":[{choices}],"usage":{usage}{timings},"kv_transfer_params":null}}"#
        );
        Body::Json(body.into(), self.output())
    }

    fn chat_stream(&self) -> Events {
        const OBJECT: &str = "chat.completion.chunk";
        let first = match self.script.shape {
            Shape::Vllm => r#""""#,
            Shape::LlamaCpp => "null",
        };
        let choice = |index: u64, content: &str| {
            format!(r#""index":{index},"delta":{{"content":{content}}},"logprobs":null,"finish_reason":null"#)
        };
        let end = |index: u64, reason: &str| {
            format!(r#""index":{index},"delta":{{}},"logprobs":null,"finish_reason":"{reason}""#)
        };
        let open = (0..self.asked.choices).map(|index| {
            let role = format!(
                r#""index":{index},"delta":{{"role":"assistant","content":{first}}},"logprobs":null,"finish_reason":null"#
            );
            self.chunk(OBJECT, &role, 0)
        });
        let tokens =
            self.asked.tokens.iter().flat_map(|token| (0..self.asked.choices).map(move |index| (token, index)));
        let tokens = tokens.zip(1..).map(|((token, index), n)| self.chunk(OBJECT, &choice(index, &quoted(token)), n));
        Events {
            open: open.collect(),
            tokens: tokens.collect(),
            close: self.last_chunks(OBJECT, end, self.asked.reason()),
            abort: self.last_chunks(OBJECT, end, "abort"),
        }
    }

    fn chat_tool_stream(&self) -> Events {
        const OBJECT: &str = "chat.completion.chunk";
        let delta = |delta: &Value| format!(r#""index":0,"delta":{delta},"logprobs":null,"finish_reason":null"#);
        let mut pieces = Vec::new();
        if let Some(tool) = &self.script.tool {
            pieces.push(json!({"content": null, "tool_calls": [
                {"id": "chatcmpl-tool-1", "type": "function", "index": 0, "function": {"name": *tool.name}}]}));
            for piece in &tool.arguments {
                pieces.push(json!({"content": null, "tool_calls": [{"index": 0, "function": {"arguments": **piece}}]}));
            }
        }
        let plain = self.chat_stream();
        Events {
            open: plain.open,
            tokens: pieces.iter().zip(1..).map(|(piece, n)| self.chunk(OBJECT, &delta(piece), n)).collect(),
            close: plain.close,
            abort: plain.abort,
        }
    }

    fn completions(&self) -> Body {
        const OBJECT: &str = "text_completion";
        let choice = |index: u64, text: &str, reason: &str| {
            format!(r#""index":{index},"text":{text},"logprobs":null,"finish_reason":{reason}"#)
        };
        if !self.asked.is_stream {
            let reason = quoted(self.asked.reason());
            let text = quoted(&self.text());
            let choices: Vec<_> =
                (0..self.asked.choices).map(|index| format!("{{{}}}", choice(index, &text, &reason))).collect();
            return self.unstreamed(OBJECT, &choices.join(","));
        }
        let end = |index: u64, reason: &str| choice(index, r#""""#, &quoted(reason));
        let tokens =
            self.asked.tokens.iter().flat_map(|token| (0..self.asked.choices).map(move |index| (token, index)));
        let tokens =
            tokens.zip(1..).map(|((token, index), n)| self.chunk(OBJECT, &choice(index, &quoted(token), "null"), n));
        Body::Stream(Events {
            open: Vec::new(),
            tokens: tokens.collect(),
            close: self.last_chunks(OBJECT, end, self.asked.reason()),
            abort: self.last_chunks(OBJECT, end, "abort"),
        })
    }

    fn responses(&self) -> Body {
        let status = if self.asked.is_cut { "incomplete" } else { "completed" };
        let response = |status: &str, has_output: bool| {
            let output = if has_output {
                json!([{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": self.text(), "annotations": [], "logprobs": null}]}])
            } else {
                json!([])
            };
            let usage = if has_output {
                json!({"input_tokens": self.prompt, "input_tokens_details": {"cached_tokens": self.script.cached_tokens},
                    "output_tokens": self.output(), "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": self.prompt + self.output()})
            } else {
                Value::Null
            };
            json!({"id": self.id, "object": "response", "created_at": 1_796_050_042, "model": *self.script.model,
                "status": status, "output": output, "usage": usage})
        };
        if !self.asked.is_stream {
            return json_body(&response(status, true), self.output());
        }
        let of = |name: &str, mut value: Value| {
            value["type"] = name.into();
            event(name, &value.to_string())
        };
        let item =
            json!({"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []});
        let end = |name: &str, status: &str| vec![of(name, json!({"response": response(status, true)}))];
        Body::Stream(Events {
            open: vec![
                of("response.created", json!({"response": response("in_progress", false)})),
                of("response.output_item.added", json!({"output_index": 0, "item": item})),
            ],
            tokens: self
                .asked
                .tokens
                .iter()
                .map(|token| {
                    let delta = json!({"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": **token});
                    of("response.output_text.delta", delta)
                })
                .collect(),
            close: end(&format!("response.{status}"), status),
            abort: end("response.failed", "failed"),
        })
    }

    fn messages(&self) -> Body {
        let reason = if self.asked.is_cut { "max_tokens" } else { "end_turn" };
        let uncached = self.prompt - self.script.cached_tokens.min(self.prompt);
        let input = json!({"input_tokens": uncached, "output_tokens": 0, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.script.cached_tokens});
        let mut usage = input.clone();
        usage["output_tokens"] = self.output().into();
        if !self.asked.is_stream {
            return json_body(
                &json!({"id": self.id, "type": "message", "role": "assistant", "model": *self.script.model,
                    "content": [{"type": "text", "text": self.text()}], "stop_reason": reason, "stop_sequence": null,
                    "usage": usage}),
                self.output(),
            );
        }
        let of = |name: &str, mut value: Value| {
            value["type"] = name.into();
            event(name, &value.to_string())
        };
        let message = json!({"id": self.id, "type": "message", "role": "assistant", "model": *self.script.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": input});
        let end = |reason: &str| {
            vec![
                of("content_block_stop", json!({"index": 0})),
                of("message_delta", json!({"delta": {"stop_reason": reason, "stop_sequence": null}, "usage": usage})),
                of("message_stop", json!({})),
            ]
        };
        Body::Stream(Events {
            open: vec![
                of("message_start", json!({"message": message})),
                of("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})),
            ],
            tokens: self
                .asked
                .tokens
                .iter()
                .map(|token| {
                    of("content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": **token}}))
                })
                .collect(),
            close: end(reason),
            abort: end("abort"),
        })
    }

    fn embeddings(&self, body: &Value) -> Body {
        let count = body["input"].as_array().map_or(1, Vec::len);
        let list: Vec<_> = (0..count)
            .map(|index| {
                let text = if body["input"].is_array() { &body["input"][index] } else { &body["input"] };
                let last = vector_end(&text.to_string());
                json!({"object": "embedding", "index": index, "embedding": [0.25, -0.5, 0.125, last]})
            })
            .collect();
        json_body(
            &json!({"id": self.id, "object": "list", "created": 1_796_049_949, "model": *self.script.model, "data": list,
                "usage": {"prompt_tokens": self.prompt, "total_tokens": self.prompt, "completion_tokens": 0,
                    "prompt_tokens_details": null}}),
            0,
        )
    }

    fn rerank(&self, body: &Value) -> Body {
        let documents = body["documents"].as_array().cloned().unwrap_or_default();
        let results: Vec<_> = documents
            .iter()
            .enumerate()
            .map(|(index, document)| {
                json!({"index": index, "document": {"text": document}, "relevance_score": 1.0 / (index as f64 + 1.0)})
            })
            .collect();
        json_body(
            &json!({"id": self.id, "model": *self.script.model, "results": results,
                "usage": {"prompt_tokens": self.prompt, "total_tokens": self.prompt}}),
            0,
        )
    }
}

/// Another number for another text.
fn vector_end(text: &str) -> f64 {
    let sum: u32 = text.bytes().zip(1..).map(|(byte, at)| u32::from(byte) * at % 1_009).sum();
    1.0 - f64::from(sum % 512) / 256.0
}

fn transcription(script: &Script, request: &Recorded, serial: u64) -> Result<Run, Refusal> {
    let model = form_field(&request.body, b"name=\"model\"").unwrap_or_default();
    if script.shape == Shape::Vllm && model != *script.model {
        return Err(Refusal::UnknownModel);
    }
    let body = json!({"text": script.tokens.concat(), "usage": {"type": "duration", "seconds": 3}});
    Ok(Run {
        id: id_of(script.shape, Route::Transcriptions, request, serial),
        prompt: 0,
        cached: 0,
        body: json_body(&body, script.tokens.len() as u64),
    })
}

/// The value of a form field whose header line holds `name`.
fn form_field(body: &[u8], name: &[u8]) -> Option<String> {
    let rest = &body[memchr::memmem::find(body, name)?..];
    let rest = &rest[memchr::memmem::find(rest, b"\r\n\r\n")? + 4..];
    let value = &rest[..memchr::memmem::find(rest, b"\r\n")?];
    Some(String::from_utf8_lossy(value).into_owned())
}
