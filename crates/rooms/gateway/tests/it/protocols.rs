//! Each endpoint as its callers use it: what the engine is sent, what comes back, what is charged.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderValue, Method};
use serde_json::{Value, json};
use tidegate_core::{Outcome, UsageSource};
use tidegate_testkit::fake::{Fault, Script, ToolCall};

use crate::house::{Answer, CHAT, CHAT_STREAM, House, SITE, Setup, alias_with, local, translating};

const CHATS: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const AUDIO: &str = "/v1/audio/transcriptions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

fn calling_a_tool() -> Script {
    Script {
        tool: Some(ToolCall { name: "get_weather".into(), arguments: vec!["{\"city\":".into(), "\"Seoul\"}".into()] }),
        ..good()
    }
}

const TOOLS: &str = r#","tools":[{"name":"get_weather","description":"d","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}],"tool_choice":{"type":"auto"}"#;

fn with_tools(body: &str) -> String {
    format!("{}{TOOLS}}}", body.strip_suffix('}').unwrap())
}

#[test]
fn messages_pass_through_to_an_engine_that_speaks_them() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let body = r#"{ "model" : "chat" ,"max_tokens":16,"system":"be brief","messages":[{"role":"user","content":"hi"}],"unknown":{"a":[1,2.50]}}"#;
        let answer = house.post(MESSAGES, body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["model"], "chat");
        assert_eq!(answer.json()["content"][0]["text"], "Hello from the fake engine.");
        let sent = &house.engines[0].runs()[0];
        assert_eq!(sent.path(), MESSAGES);
        let text = String::from_utf8(sent.body.to_vec()).unwrap();
        assert_eq!(text, body.replace("\"chat\"", "\"tiny-served\""), "all other bytes as they came");
        let entry = house.entry();
        assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.endpoint.as_ref()), (37, 6, MESSAGES));
    });
}

#[test]
fn messages_stream_through_with_their_event_names() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let answer = house.post(MESSAGES, CHAT_STREAM).await;
        let names: Vec<_> = answer.text().lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(names.first(), Some(&"message_start"));
        assert_eq!(names.last(), Some(&"message_stop"));
        assert_eq!(answer.events()[0]["message"]["model"], "chat");
        let entry = house.entry();
        assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.source), (37, 6, UsageSource::Engine));
    });
}

#[test]
fn messages_are_translated_for_an_engine_that_speaks_chat_only() {
    local(async {
        let mut house = House::new(&translating(), vec![Script { messages: false, ..good() }]).await;
        let body = json!({
            "model": "chat", "max_tokens": 20, "system": [{"type": "text", "text": "be brief"}],
            "stop_sequences": ["X"], "temperature": 0.5,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "weather?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Seoul"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
            ],
        });
        let answer = house.post(MESSAGES, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let message = answer.json();
        assert_eq!(
            (&message["type"], &message["role"], &message["model"]),
            (&json!("message"), &json!("assistant"), &json!("chat"))
        );
        assert_eq!(message["content"], json!([{"type": "text", "text": "Hello from the fake engine."}]));
        assert_eq!(message["stop_reason"], "end_turn");
        assert_eq!((&message["usage"]["input_tokens"], &message["usage"]["output_tokens"]), (&json!(37), &json!(6)));
        let sent = &house.engines[0].runs()[0];
        assert_eq!(sent.path(), CHATS);
        let sent = sent.json();
        assert_eq!(
            (&sent["model"], &sent["max_tokens"], &sent["stop"], &sent["temperature"]),
            (&json!("tiny-served"), &json!(20), &json!(["X"]), &json!(0.5))
        );
        let roles: Vec<_> = sent["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(sent["messages"][3]["tool_call_id"], "t1");
        assert_eq!(sent["messages"][2]["tool_calls"][0]["function"]["name"], "get_weather");
        let entry = house.entry();
        assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.endpoint.as_ref()), (37, 6, MESSAGES));
        assert!(entry.reserved_tokens >= 1_024, "an image is counted: {entry:?}");
    });
}

#[test]
fn a_translated_tool_call_is_a_tool_use_block() {
    local(async {
        let mut house = House::new(&translating(), vec![calling_a_tool()]).await;
        let answer = house.post(MESSAGES, &with_tools(CHAT)).await;
        let message = answer.json();
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let block = message["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
        assert_eq!((&block["name"], &block["input"]), (&json!("get_weather"), &json!({"city": "Seoul"})));
        let sent = house.engines[0].runs()[0].json();
        assert_eq!(sent["tools"][0]["function"]["name"], "get_weather");
        assert_eq!(sent["tool_choice"], "auto");
    });
}

#[test]
fn a_translated_stream_has_the_events_of_the_other_protocol_in_their_order() {
    local(async {
        for paced in [Duration::ZERO, Duration::from_millis(10)] {
            let mut house = House::new(&translating(), vec![good().paced(Duration::ZERO, paced)]).await;
            let answer = house.post(MESSAGES, CHAT_STREAM).await;
            let mut names: Vec<_> = answer.text().lines().filter_map(|line| line.strip_prefix("event: ")).collect();
            names.dedup();
            let order = [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ];
            assert_eq!(names, order);
            let events = answer.events();
            let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
            assert_eq!(text, "Hello from the fake engine.");
            let last = &events[events.len() - 2];
            assert_eq!(
                (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
                (&json!("end_turn"), &json!(6))
            );
            assert!(!answer.text().contains("[DONE]"));
            assert_eq!(house.engines[0].runs()[0].json()["stream_options"]["include_usage"], true);
            assert_eq!(house.entry().output_tokens, 6);
        }
    });
}

#[test]
fn a_translated_stream_of_a_tool_call_gives_its_input_in_pieces() {
    local(async {
        let mut house = House::new(&translating(), vec![calling_a_tool()]).await;
        let answer = house.post(MESSAGES, &with_tools(CHAT_STREAM)).await;
        let events = answer.events();
        let input: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert_eq!(input, "{\"city\":\"Seoul\"}");
        let start = events.iter().find(|event| event["content_block"]["type"] == "tool_use").unwrap();
        assert_eq!(start["content_block"]["name"], "get_weather");
        assert!(events.iter().any(|event| event["delta"]["stop_reason"] == "tool_use"));
    });
}

#[test]
fn what_chat_completions_cannot_say_is_400_and_takes_nothing() {
    local(async {
        let mut house = House::new(&translating(), vec![good()]).await;
        let body = r#"{"model":"chat","max_tokens":5,"messages":[{"role":"user","content":[{"type":"nonsense"}]}]}"#;
        let answer = house.post(MESSAGES, body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["type"]), (400, &json!("invalid_request_error")));
        assert_eq!((house.runs(), house.entry().tokens()), (0, 0));
        house.assert_idle().await;
    });
}

#[test]
fn tokens_are_counted_by_the_engine_or_at_the_gate_and_cost_nothing() {
    local(async {
        let body = r#"{"model":"chat","system":"one two","messages":[{"role":"user","content":"three four five"}]}"#;
        let mut house = House::new(SITE, vec![good()]).await;
        assert_eq!(house.post(COUNT, body).await.json(), json!({"input_tokens": 37}));
        assert_eq!((house.entry().tokens(), house.runs()), (0, 1));
        // At the gate: by words with this tokenizer, by bytes without any; the template's overhead in both.
        let overhead = 128 + 16;
        for (setup, tokens) in [(Setup::counting_words(), 5), (Setup::default(), 7 + 15)] {
            let mut house = House::with(&translating(), vec![good()], setup).await;
            let answer = house.post(COUNT, body).await;
            let counted = answer.json()["input_tokens"].as_u64().unwrap();
            assert!((overhead + tokens..overhead + tokens + 32).contains(&counted), "{counted} for {tokens}");
            let entry = house.entry();
            assert_eq!((house.runs(), entry.tokens(), entry.endpoint.as_ref(), entry.status), (0, 0, COUNT, 200));
            assert!(answer.header("x-request-id").is_some());
            house.assert_idle().await;
        }
    });
}

/// One alias of a deployment that counts (engine 0) and one whose tokens the gate counts (engine 1).
const MIXED: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {engines: {plain: {dialect: vllm, messages: translate}}}
---
kind: Model
metadata: {name: tiny}
spec: {engine: vllm}
---
kind: Model
metadata: {name: plain}
spec: {engine: plain}
---
kind: Deployment
metadata: {name: counts-0}
spec: {model: tiny, endpoints: [{url: 'http://engine-0:1'}], servedName: tiny-served}
---
kind: Deployment
metadata: {name: plain-1}
spec: {model: plain, endpoints: [{url: 'http://engine-1:1'}], servedName: tiny-served}
---
kind: Alias
metadata: {name: chat}
spec: {targets: [{deployment: counts-0, weight: 1}, {deployment: plain-1, weight: 99}]}
---
kind: Alias
metadata: {name: first}
spec: {targets: [{deployment: counts-0}], fallback: [second]}
---
kind: Alias
metadata: {name: second}
spec: {targets: [{deployment: plain-1}]}
---
kind: Team
metadata: {name: red}
spec: {models: [{alias: chat}, {alias: first}, {alias: second}]}
";

#[test]
fn an_alias_of_engines_that_count_and_engines_that_do_not_never_answers_400() {
    local(async {
        let body = r#"{"model":"chat","messages":[{"role":"user","content":"three four five"}]}"#;
        let mut house = House::new(MIXED, vec![good(), good()]).await;
        for _ in 0..20 {
            assert_eq!(house.post(COUNT, body).await.json(), json!({"input_tokens": 37}));
        }
        assert_eq!((house.engines[0].runs().len(), house.engines[1].requests().len()), (20, 0));
        house.assert_idle().await;
    });
}

#[test]
fn the_gate_counts_when_the_engines_that_count_have_failed() {
    local(async {
        let body = r#"{"model":"chat","messages":[{"role":"user","content":"three four five"}]}"#;
        for (alias, served) in [("chat", None), ("first", Some("second"))] {
            let mut house = House::new(MIXED, vec![good().failing(Fault::CloseBeforeHead), good()]).await;
            let answer = house.post(COUNT, &body.replace("chat", alias)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(answer.json()["input_tokens"].as_u64().unwrap() > 37, "the byte bound");
            let entry = house.entry();
            assert_eq!((entry.tokens(), entry.deployment.clone(), entry.attempts), (0, None, 1));
            assert_eq!(entry.served_alias.as_ref().map(|alias| alias.as_str()), served);
            assert_eq!(house.engines[1].requests().len(), 0);
            house.assert_idle().await;
        }
    });
}

/// [`SITE`] with a deployment of this kind.
fn of_kind(kind: &str) -> String {
    SITE.replace("  servedName: tiny-served", &format!("  servedName: tiny-served\n  kind: {kind}"))
}

#[test]
fn embeddings_and_rerank_are_charged_by_their_prompt() {
    local(async {
        for (kind, path, body) in [
            ("embedding", "/v1/embeddings", r#"{"model":"chat","input":["a","b"],"dimensions":4}"#),
            ("rerank", "/v1/rerank", r#"{"model":"chat","query":"q","documents":["a","b"],"top_n":2}"#),
        ] {
            let mut house = House::new(&of_kind(kind), vec![good()]).await;
            let answer = house.post(path, body).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["model"], "chat");
            let sent = house.engines[0].runs()[0].clone();
            assert_eq!(String::from_utf8(sent.body.to_vec()).unwrap(), body.replace("\"chat\"", "\"tiny-served\""));
            let entry = house.entry();
            assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.source), (37, 0, UsageSource::Engine));
            assert_eq!(entry.endpoint.as_ref(), path);
            assert_eq!(house.chat().await.code(), "invalid_value", "no chat with it");
        }
    });
}

#[test]
fn responses_work_streamed_and_not() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let body = r#"{"model":"chat","input":"hi","max_output_tokens":16}"#;
        let answer = house.post("/v1/responses", body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &json!("chat")));
        assert_eq!(house.engines[0].runs()[0].json()["max_output_tokens"], 16);
        let streamed = house.post("/v1/responses", &body.replace("\"input\"", "\"stream\":true,\"input\"")).await;
        let last = streamed.events().pop().unwrap();
        assert_eq!((&last["type"], &last["response"]["model"]), (&json!("response.completed"), &json!("chat")));
        for entry in house.entries() {
            assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.source), (37, 6, UsageSource::Engine));
        }
    });
}

#[test]
fn completions_work_with_several_choices() {
    local(async {
        for stream in [false, true] {
            let mut house = House::new(SITE, vec![good()]).await;
            let body = json!({"model": "chat", "prompt": "hi", "n": 2, "max_tokens": 16, "stream": stream});
            let answer = house.post("/v1/completions", &body.to_string()).await;
            assert_eq!(answer.status, 200);
            let entry = house.entry();
            assert_eq!((entry.output_tokens, entry.streamed), (12, stream));
            assert!(entry.reserved_tokens >= 32);
        }
    });
}

#[test]
fn tool_calls_of_a_chat_stream_pass_as_they_are() {
    local(async {
        let mut house = House::new(SITE, vec![calling_a_tool()]).await;
        let answer = house.post(CHATS, &with_tools(CHAT_STREAM)).await;
        let arguments: String = answer
            .events()
            .iter()
            .filter_map(|event| {
                event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned)
            })
            .collect();
        assert_eq!(arguments, "{\"city\":\"Seoul\"}");
    });
}

#[test]
fn continuous_usage_reaches_those_who_ask_for_it() {
    local(async {
        for (options, on_chunks) in
            [(r#"{"include_usage":true,"continuous_usage_stats":true}"#, true), (r#"{"include_usage":true}"#, false)]
        {
            let mut house = House::new(SITE, vec![good()]).await;
            let body = CHAT_STREAM.replace("\"stream\":true", &format!("\"stream\":true,\"stream_options\":{options}"));
            let events = house.post(CHATS, &body).await.events();
            let with_usage = events.iter().filter(|event| event["usage"].is_object()).count();
            assert!(if on_chunks { with_usage > 3 } else { with_usage == 1 }, "{options}: {events:?}");
            assert!(events.iter().all(|event| event.is_string() || event.get("usage").is_some()));
        }
    });
}

#[test]
fn stream_options_without_a_stream_are_400() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let body = CHAT.replace("\"max_tokens\"", "\"stream_options\":{\"include_usage\":true},\"max_tokens\"");
        let answer = house.post(CHATS, &body).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid_value"));
        assert_eq!(answer.json()["error"]["param"], "stream_options");
    });
}

// Recorded answers of real engines.

fn recording(name: &str) -> (Vec<u8>, Vec<u8>) {
    let shared = std::env::var_os("TIDEGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../../shared")), PathBuf::from);
    let file = shared.join("fixtures").join(name);
    let text = std::fs::read(&file)
        .unwrap_or_else(|error| panic!("no recorded answer at {} ({error}): set TIDEGATE_SHARED", file.display()));
    let end = text.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    (text[..end].to_vec(), text[end..].to_vec())
}

/// As it was sent: the recordings hold joined bodies under a chunked head.
fn replayed(name: &str) -> (String, Vec<u8>) {
    let (head, body) = recording(name);
    let head = String::from_utf8(head).unwrap();
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (head + std::str::from_utf8(&body).unwrap(), body);
    }
    let mut sent = head;
    for piece in body.chunks(97) {
        sent.push_str(&format!("{:x}\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap()));
    }
    sent.push_str("0\r\n\r\n");
    (sent, body)
}

#[test]
fn recorded_streams_pass_byte_for_byte_but_for_the_name() {
    local(async {
        for (name, path, served) in [
            ("vllm/chat_stream.http", CHATS, "tiny"),
            ("vllm/chat_stream_n2.http", CHATS, "tiny"),
            ("vllm/chat_tools_required_stream.http", CHATS, "tiny"),
            ("llamacpp/chat_stream.http", CHATS, "smollm2-135m"),
        ] {
            let (sent, body) = replayed(name);
            let mut house = House::of_raw(SITE, sent, false).await;
            let answer = house.post(path, CHAT_STREAM).await;
            let name_of = |name: &str| format!("\"model\":\"{name}\"");
            let expected = String::from_utf8(body).unwrap().replace(&name_of(served), &name_of("chat"));
            assert_eq!(answer.text(), expected, "{name}");
            assert_eq!(house.entry().outcome, Outcome::Ok, "{name}");
        }
    });
}

#[test]
fn recorded_answers_pass_byte_for_byte_but_for_the_name() {
    local(async {
        for (name, path, served) in [
            ("vllm/chat.http", CHATS, "tiny"),
            ("vllm/chat_logprobs.http", CHATS, "tiny"),
            ("vllm/chat_tools_named.http", CHATS, "tiny"),
            ("vllm/completions.http", "/v1/completions", "tiny"),
            ("vllm/responses.http", "/v1/responses", "tiny"),
            ("vllm/anthropic_messages.http", MESSAGES, "tiny"),
            ("llamacpp/chat.http", CHATS, "smollm2-135m"),
            ("llamacpp/anthropic_messages.http", MESSAGES, "smollm2-135m"),
            ("llamacpp/responses.http", "/v1/responses", "smollm2-135m"),
        ] {
            let (sent, body) = replayed(name);
            let mut house = House::of_raw(SITE, sent, false).await;
            let request = match path {
                "/v1/completions" => r#"{"model":"chat","prompt":"hi"}"#,
                "/v1/responses" => r#"{"model":"chat","input":"hi"}"#,
                _ => CHAT,
            };
            let answer = house.post(path, request).await;
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            let name_of = |name: &str| format!("\"model\":\"{name}\"");
            let expected = String::from_utf8(body).unwrap().replacen(&name_of(served), &name_of("chat"), 1);
            assert_eq!(answer.text(), expected, "{name}");
            let entry = house.entry();
            assert_eq!((entry.outcome, entry.source), (Outcome::Ok, UsageSource::Engine), "{name}");
            assert!(entry.prompt_tokens > 0 && entry.output_tokens > 0, "{name}: {entry:?}");
        }
    });
}

#[test]
fn recorded_chat_answers_are_translated() {
    local(async {
        for (name, body) in [
            ("vllm/chat.http", CHAT),
            ("vllm/chat_tools_named.http", CHAT),
            ("llamacpp/chat.http", CHAT),
            ("vllm/chat_stream_usage.http", CHAT_STREAM),
            ("vllm/chat_stream_continuous_usage.http", CHAT_STREAM),
            ("vllm/chat_tools_required_stream.http", CHAT_STREAM),
            ("llamacpp/chat_stream_usage.http", CHAT_STREAM),
        ] {
            let (sent, _) = replayed(name);
            let mut house = House::of_raw(&translating(), sent, false).await;
            let answer = house.post(MESSAGES, body).await;
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            if body == CHAT {
                assert_eq!(answer.json()["type"], "message", "{name}");
            } else {
                assert!(answer.text().trim_end().ends_with("{\"type\":\"message_stop\"}"), "{name}: {}", answer.text());
            }
            assert_eq!(house.entry().outcome, Outcome::Ok, "{name}");
        }
    });
}

// Uploads.

async fn send_form(house: &mut House, model: Option<&str>, header: Option<&str>) -> Answer {
    let fields: Vec<_> = [("language", "ko")].into_iter().chain(model.map(|model| ("model", model))).collect();
    let mut request = house.form(&fields, b"RIFF0000WAVEdata", &[("temperature", "0")]);
    if let Some(header) = header {
        request.headers_mut().insert("x-model", HeaderValue::from_str(header).unwrap());
    }
    house.send(request).await
}

#[test]
fn the_model_of_a_form_is_rewritten_and_the_file_passes() {
    local(async {
        for (model, header) in [(Some("chat"), None), (None, Some("chat")), (Some("chat"), Some("chat"))] {
            let mut house = House::new(SITE, vec![good()]).await;
            let answer = send_form(&mut house, model, header).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["text"], "Hello from the fake engine.");
            let sent = &house.engines[0].runs()[0];
            let text = String::from_utf8(sent.body.to_vec()).unwrap();
            assert_eq!(text.matches("name=\"model\"").count(), 1, "{text}");
            assert!(text.contains("name=\"model\"\r\n\r\ntiny-served\r\n"), "{text}");
            assert!(text.contains("\r\n\r\nRIFF0000WAVEdata\r\n") && text.contains("name=\"language\"\r\n\r\nko\r\n"));
            assert_eq!(sent.header("content-length").unwrap(), text.len().to_string());
            assert_eq!(sent.header("x-model"), None);
            let entry = house.entry();
            assert_eq!((entry.endpoint.as_ref(), entry.outcome), (AUDIO, Outcome::Ok));
            assert_eq!(entry.reserved_tokens, 256, "one request and its output cap");
            assert!(entry.output_tokens > 0 && entry.output_tokens <= 256, "{entry:?}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_form_whose_model_is_missing_late_twice_or_contradicted_is_400() {
    local(async {
        let far = "x".repeat(64 << 10);
        type Fields<'a> = Vec<(&'a str, &'a str)>;
        let cases: Vec<(Fields<'_>, Fields<'_>, Option<&str>, &str)> = vec![
            (vec![], vec![], None, "missing_required_parameter"),
            (vec![("model", "")], vec![], None, "missing_required_parameter"),
            (vec![("model", "chat")], vec![], Some("other"), "invalid_value"),
            (vec![("prompt", &far), ("model", "chat")], vec![], None, "invalid_value"),
            (vec![], vec![("model", "chat")], None, "invalid_value"),
            (vec![], vec![("model", "chat")], Some("chat"), "invalid_value"),
            (vec![("model", "chat"), ("model", "other")], vec![], None, "invalid_value"),
            (vec![("model", "chat")], vec![("model", "other")], None, "invalid_value"),
        ];
        for (before, behind, header, code) in cases {
            let mut house = House::new(SITE, vec![good()]).await;
            let mut request = house.form(&before, b"RIFF", &behind);
            if let Some(header) = header {
                request.headers_mut().insert("x-model", HeaderValue::from_str(header).unwrap());
            }
            let answer = house.send(request).await;
            let name = |fields: &[(&str, &str)]| fields.iter().map(|field| field.0.to_owned()).collect::<Vec<_>>();
            let what = format!("{:?} {:?} {header:?}", name(&before), name(&behind));
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, code), "{what}: {answer:?}");
            assert_eq!(answer.json()["error"]["param"], "model", "{what}");
            assert_eq!((house.runs(), house.entry().tokens()), (0, 0), "{what}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_model_that_ends_at_the_bound_passes_and_one_byte_later_it_does_not() {
    local(async {
        for (more, status) in [(0, 200), (1, 400)] {
            let mut house = House::new(SITE, vec![good()]).await;
            let room = |pad: usize| {
                format!(
                    "--XX\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n{}\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nchat\r\n--XX",
                    "x".repeat(pad)
                )
            };
            let pad = (64 << 10) - room(0).len() + more;
            let request = house.form(&[("prompt", &"x".repeat(pad)), ("model", "chat")], b"RIFF", &[]);
            let answer = house.send(request).await;
            assert_eq!(answer.status, status, "{answer:?}");
        }
    });
}

#[test]
fn an_unknown_model_of_a_form_is_404_before_the_file_is_read() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let answer = send_form(&mut house, Some("nothing"), None).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, "model_not_found"));
        assert_eq!(house.runs(), 0);
    });
}

#[test]
fn a_body_that_is_no_form_is_400() {
    local(async {
        for kind in
            ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/plain; boundary=XX"]
        {
            let mut house = House::new(SITE, vec![good()]).await;
            let mut request = house.form(&[("model", "chat")], b"RIFF", &[]);
            request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
            let answer = house.send(request).await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid_value"), "{kind}");
        }
    });
}

/// The head of an upload by hand, and its form up to the file.
fn upload_head(house: &House, length: &str) -> String {
    format!(
        "POST {AUDIO} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-type: multipart/form-data; boundary=XX\r\n{length}\r\n\r\n",
        house.key
    )
}

const FORM_HEAD: &str = "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nchat\r\n--XX\r\n\
                         Content-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";

fn chunked(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[test]
fn an_upload_reaches_the_engine_while_it_is_still_being_sent() {
    local(async {
        use tokio::io::AsyncWriteExt as _;
        let mut house = House::new(SITE, vec![good()]).await;
        let head = upload_head(&house, "transfer-encoding: chunked") + &chunked(FORM_HEAD);
        let mut stream = house.open(head.as_bytes()).await;
        house.engines[0].wait_for(|log| log.connections == 1).await;
        assert_eq!(house.runs(), 0, "its body is not complete");
        stream.write_all(chunked("RIFF").as_bytes()).await.unwrap();
        house.settle().await;
        stream.write_all((chunked("WAVE\r\n--XX--\r\n") + "0\r\n\r\n").as_bytes()).await.unwrap();
        house.engines[0].wait_for(|log| log.usage.len() == 1).await;
        house.settle().await;
        assert_eq!(house.entry().status, 200);
        let sent = &house.engines[0].runs()[0];
        assert_eq!(sent.header("transfer-encoding"), Some("chunked"));
        assert!(String::from_utf8_lossy(&sent.body).contains("RIFFWAVE\r\n--XX--"));
    });
}

#[test]
fn an_upload_that_turns_bad_on_its_way_is_refused_for_what_it_is() {
    local(async {
        let small = SITE.replace("spec: {timeZone: Asia/Seoul}", "spec: {gateway: {maxBody: 1KiB}}");
        let file = "x".repeat(2_000);
        let late = "RIFF\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nother\r\n--XX--\r\n";
        for (rest, status) in [
            (chunked(&file), "413"),
            (chunked(late) + "0\r\n\r\n", "400"),
            (chunked("RIFF") + "0\r\n\r\n", "400"),
            (chunked("RIFF"), "408"),
        ] {
            let mut house = House::new(&small, vec![good()]).await;
            let head = upload_head(&house, "transfer-encoding: chunked") + &chunked(FORM_HEAD);
            let answer = house.raw_in_two(head.as_bytes(), rest.as_bytes(), Duration::from_secs(30)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
            assert_eq!(house.runs(), 0, "{status}: the engine never had a whole request");
            let entry = house.entry();
            assert_eq!((entry.status.to_string().as_str(), entry.tokens()), (status, 0));
            house.assert_idle().await;
            assert!(house.backends[0].replica().open_until().is_none(), "nobody's fault but the caller's");
        }
    });
}

#[test]
fn a_slow_upload_has_to_keep_a_least_rate_but_not_for_the_engines_pauses() {
    local(async {
        use tokio::io::AsyncWriteExt as _;
        let mut house = House::new(SITE, vec![good()]).await;
        let head = upload_head(&house, "transfer-encoding: chunked") + &chunked(FORM_HEAD);
        let mut stream = house.open(head.as_bytes()).await;
        let start = tokio::time::Instant::now();
        // A byte each second earns next to nothing.
        while house.entries().is_empty() && stream.write_all(chunked("x").as_bytes()).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!((10..13).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        assert_eq!(house.entry().status, 408);
        house.assert_idle().await;
    });
}

#[test]
fn a_caller_who_leaves_in_an_upload_is_cancelled_and_pays_nothing_for_what_never_ran() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let head = upload_head(&house, "content-length: 5000") + FORM_HEAD;
        let stream = house.open(head.as_bytes()).await;
        house.engines[0].wait_for(|log| log.connections == 1).await;
        drop(stream);
        house.assert_idle().await;
        let entry = house.entry();
        assert_eq!((entry.status, entry.outcome, house.runs()), (499, Outcome::Cancelled, 0));
        assert_eq!((entry.tokens(), entry.source), (0, UsageSource::None));
    });
}

#[test]
fn a_transcription_may_be_text_or_a_stream_but_not_a_page() {
    local(async {
        for (kind, status) in [("text/plain", 200), ("text/vtt; charset=utf-8", 200), ("text/html", 502)] {
            let mut house = House::new(SITE, vec![good().failing(Fault::ContentType(kind))]).await;
            let answer = send_form(&mut house, Some("chat"), None).await;
            assert_eq!(answer.status, status, "{kind}");
            if status == 200 {
                assert_eq!(answer.header("content-type"), Some(kind));
            }
        }
        let event = r#"{"id":"x","object":"transcription.chunk","model":"m","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
        let body = format!("data: {event}\n\ndata: [DONE]\n\n");
        let sent = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut house = House::of_raw(SITE, sent, false).await;
        let answer = send_form(&mut house, Some("chat"), None).await;
        assert_eq!(answer.text(), body.replace("\"model\":\"m\"", "\"model\":\"chat\""));
        assert!(house.entry().streamed);
    });
}

#[test]
fn a_forms_own_token_bound_is_reserved_and_clamped() {
    local(async {
        for (asked, sent) in [(Some("40"), 40), (Some("100000"), 256), (None, 256)] {
            let mut house = House::new(SITE, vec![good()]).await;
            let fields: Vec<_> =
                [("model", "chat")].into_iter().chain(asked.map(|asked| ("max_completion_tokens", asked))).collect();
            let request = house.form(&fields, b"RIFF", &[]);
            assert_eq!(house.send(request).await.status, 200, "{asked:?}");
            let told = String::from_utf8(house.engines[0].runs()[0].body.to_vec()).unwrap();
            let field = format!("name=\"max_completion_tokens\"\r\n\r\n{sent}\r\n");
            assert_eq!(
                told.matches("max_completion_tokens").count(),
                told.matches(&field).count(),
                "{asked:?}: {told}"
            );
            assert!(told.contains(&field), "{asked:?}: {told}");
            assert_eq!(house.entry().reserved_tokens, sent, "{asked:?}");
        }
        let mut house = House::new(SITE, vec![good()]).await;
        let request = house.form(&[("model", "chat"), ("max_completion_tokens", "-1")], b"RIFF", &[]);
        let answer = house.send(request).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str(), house.runs()), (400, "invalid_value", 0));
    });
}

#[test]
fn a_form_that_asks_for_a_stream_has_a_streams_time() {
    local(async {
        let documents = alias_with("timeouts: {whole: 5s, wholeStreamed: 20s}");
        let event = r#"{"object":"transcription.chunk","model":"m","choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
        // It begins and does not end.
        let sent = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\ndata: {event}\n\n"
        );
        for (stream, seconds) in [("true", 20), ("false", 5)] {
            let mut house = House::of_raw(&documents, sent.clone(), false).await;
            let request = house.form(&[("stream", stream), ("model", "chat")], b"RIFF", &[]);
            let start = tokio::time::Instant::now();
            assert_eq!(house.send(request).await.status, 200);
            assert_eq!(start.elapsed().as_secs(), seconds, "stream={stream}");
            assert!(house.entry().streamed, "what came was a stream");
        }
    });
}

#[test]
fn an_upload_is_not_sent_twice() {
    local(async {
        let mut house = House::new(SITE, vec![good().failing(Fault::CloseBeforeHead), good()]).await;
        house.prefer_first();
        let answer = send_form(&mut house, Some("chat"), None).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (502, "upstream_unreachable"));
        assert_eq!(house.entry().attempts, 1);
    });
}

#[test]
fn a_listing_names_nothing_but_what_is_the_callers() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let request = house.request(Method::GET, "/v1/models", "");
        let answer = house.send(request).await;
        let listed = answer.json();
        let mut members: Vec<_> = listed["data"][0].as_object().unwrap().keys().cloned().collect();
        members.sort_unstable();
        assert_eq!(members, ["created", "id", "max_model_len", "object", "owned_by"]);
        for hidden in ["tiny", "engine", "http", "replica", "red"] {
            assert!(!answer.text().contains(hidden), "{hidden}: {}", answer.text());
        }
        let request = house.request(Method::GET, "/v1/models/chat", "");
        let one: Value = house.send(request).await.json();
        assert_eq!((&one["id"], &one["tidegate"]), (&json!("chat"), &json!({"available": true})));
    });
}
