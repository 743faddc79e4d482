use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_core::Case;
use tidegate_wire::json::parse;
use tidegate_wire::messages::{ChatToMessages, TOOL_CALLS_MAX, Told, answer_from_chat, asks_thinking, to_chat};
use tidegate_wire::request::{self, Upstream};
use tidegate_wire::sse::Cause;
use tidegate_wire::{Endpoint, Usage};

use crate::shared::{fixture, streams};

fn told(thinking: bool) -> Told {
    Told { alias: "claude-like".into(), thinking }
}

fn chat(body: &Value) -> Result<Value, tidegate_core::Fault> {
    let text = serde_json::to_vec(body).unwrap();
    let object = parse(&text).unwrap();
    let facts = request::read(Endpoint::Messages, &object)?;
    let upstream = Upstream { model: "served", continuous_usage: true, ..Upstream::default() };
    let out = to_chat(&object, &facts, &upstream)?;
    parse(&out).expect("what is made is strict JSON");
    Ok(serde_json::from_slice(&out).unwrap())
}

#[test]
fn a_conversation_with_tools_is_translated() {
    let body = json!({
        "model": "claude-like", "max_tokens": 50, "stream": true, "temperature": 0.5, "top_k": 4,
        "system": [{"type": "text", "text": "Be \"brief\"."}, {"type": "text", "text": "Be kind."}],
        "stop_sequences": ["END"], "metadata": {"user_id": "u1"}, "priority": 9, "n": 5,
        "tools": [{"name": "weather", "description": "Tells it", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": true},
        "messages": [
            {"role": "user", "content": "Paris\n?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look. "},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Par\"is"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sun"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}]},
                {"type": "text", "text": "And?"}]},
        ],
    });
    assert_eq!(
        chat(&body).unwrap(),
        json!({
            "model": "served", "max_tokens": 50, "stream": true, "temperature": 0.5, "top_k": 4,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
            "stop": ["END"], "user": "u1", "parallel_tool_calls": false,
            "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells it",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "messages": [
                {"role": "system", "content": "Be \"brief\".\nBe kind."},
                {"role": "user", "content": "Paris\n?"},
                {"role": "assistant", "content": "I look. ", "tool_calls": [{"id": "t1", "type": "function",
                    "function": {"name": "weather", "arguments": "{\"city\":\"Par\\\"is\"}"}}]},
                {"role": "tool", "tool_call_id": "t1", "content": "sun"},
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
                    {"type": "text", "text": "And?"}]},
            ],
        })
    );
}

#[test]
fn tool_choices_have_their_counterparts_and_mean_nothing_without_tools() {
    let with = |tools: Value, choice: Value| {
        let messages = json!([{"role": "user", "content": "a"}]);
        chat(&json!({"model": "m", "max_tokens": 1, "messages": messages, "tools": tools, "tool_choice": choice}))
    };
    let tools = json!([{"name": "f", "input_schema": {}}]);
    for (choice, expected) in [("auto", json!("auto")), ("any", json!("required")), ("none", json!("none"))] {
        assert_eq!(with(tools.clone(), json!({"type": choice})).unwrap()["tool_choice"], expected);
    }
    let without = with(json!([]), json!({"type": "auto"})).unwrap();
    assert!(without.get("tools").is_none() && without.get("tool_choice").is_none());
    assert_eq!(with(tools, json!({"type": "tool"})).unwrap_err().param.as_deref(), Some("tool_choice"));
}

#[test]
fn what_chat_completions_cannot_say_is_refused_and_named() {
    let message = |role: &str, block: Value| {
        chat(&json!({"model": "m", "max_tokens": 1, "messages": [{"role": role, "content": [block]}]}))
    };
    for (role, block) in [
        ("user", json!({"type": "server_tool_use"})),
        ("user", json!({"type": "text"})),
        ("user", json!({"type": "image", "source": {"type": "file", "file_id": "f"}})),
        (
            "user",
            json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A"}}),
        ),
        ("user", json!({"type": "tool_result"})),
        ("assistant", json!({"type": "image"})),
        ("assistant", json!({"type": "tool_use", "name": "x"})),
        ("tool", json!({"type": "text", "text": "a"})),
        ("user", json!("text")),
    ] {
        let fault = message(role, block.clone()).unwrap_err();
        assert_eq!((fault.case, fault.param.as_deref()), (Case::InvalidValue, Some("messages")), "{role} {block}");
    }
    let hosted = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    assert_eq!(chat(&hosted).unwrap_err().param.as_deref(), Some("tools"));
}

#[test]
fn thinking_is_asked_for_or_not() {
    let asks = |text: &str| asks_thinking(&parse(text.as_bytes()).unwrap());
    assert!(asks(r#"{"thinking":{"type":"enabled","budget_tokens":1024}}"#));
    assert!(asks(r#"{"thinking":{"type":"adaptive"}}"#));
    assert!(!asks(r#"{"thinking":{"type":"disabled"}}"#));
    assert!(!asks("{}"));
}

#[test]
fn captured_answers_become_messages() {
    let answer = answer_from_chat(&fixture("vllm/chat.http").into(), &told(false));
    assert_eq!(answer.usage, Some(Usage { prompt: 37, cached: 0, output: 8 }));
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(
        body,
        json!({
            "id": "chatcmpl-req-abc-123", "type": "message", "role": "assistant", "model": "claude-like",
            "content": [{"type": "text", "text": " Historic diminaved diminaved diminaved dimin"}],
            "stop_reason": "max_tokens", "stop_sequence": null,
            "usage": {"input_tokens": 37, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 8},
        })
    );
    let tools = answer_from_chat(&fixture("vllm/chat_tools_named.http").into(), &told(false));
    let body: Value = serde_json::from_slice(&tools.body).unwrap();
    assert_eq!(body["stop_reason"], "tool_use", "the engine said stop");
    assert_eq!(
        body["content"],
        json!([{"type": "tool_use", "id": "chatcmpl-tool-a212c99aa8e394a8", "name": "get_weather", "input": {}}])
    );
    let llama = answer_from_chat(&fixture("llamacpp/chat.http").into(), &told(false));
    let body: Value = serde_json::from_slice(&llama.body).unwrap();
    assert_eq!(body["stop_reason"], "end_turn");
}

#[test]
fn tool_input_is_an_object_whatever_the_engine_wrote() {
    for (arguments, input) in [
        (json!("{\"a\": [1, {\"b\": \"c\\n\"}]}"), json!({"a": [1, {"b": "c\n"}]})),
        (json!("{\"a\": 1"), json!({})),
        (json!(""), json!({})),
        (json!("null"), json!({})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!(null), json!({})),
    ] {
        let body = json!({"id": "x", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"content": null, "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": arguments}}]}}]});
        let answer = answer_from_chat(&serde_json::to_vec(&body).unwrap().into(), &told(false));
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["content"][0]["input"], input, "{arguments}");
    }
}

#[test]
fn a_stop_sequence_is_named_and_reasoning_told_only_when_asked_for() {
    let body = json!({"id": "x", "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "stop_reason": "E\"ND",
        "message": {"content": "hi", "reasoning": "hm"}}]});
    let body: Bytes = serde_json::to_vec(&body).unwrap().into();
    let read = |thinking| -> Value { serde_json::from_slice(&answer_from_chat(&body, &told(thinking)).body).unwrap() };
    assert_eq!(read(false)["stop_reason"], "stop_sequence");
    assert_eq!(read(false)["stop_sequence"], "E\"ND");
    assert_eq!(read(false)["content"].as_array().unwrap().len(), 1);
    assert_eq!(read(true)["content"][0], json!({"type": "thinking", "thinking": "hm", "signature": ""}));
}

#[test]
fn an_answer_that_is_no_chat_completion_is_malformed_and_an_aborted_one_aborted() {
    for body in ["", "[]", "{}", "{\"choices\":[]}", "{\"choices\":[{}]}"] {
        assert!(answer_from_chat(&Bytes::from_static(body.as_bytes()), &told(false)).malformed, "{body}");
    }
    let body = br#"{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}"#;
    assert!(answer_from_chat(&Bytes::from_static(body), &told(false)).aborted);
}

/// What left and how it ended.
fn run<'a>(thinking: bool, reads: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Cause>, Option<Usage>) {
    let mut stream = ChatToMessages::new(told(thinking));
    let mut out = Vec::new();
    for read in reads {
        match stream.push(Bytes::copy_from_slice(read)) {
            Ok(bytes) => out.extend_from_slice(&bytes),
            Err(fault) => {
                out.extend_from_slice(&fault.before);
                return (out, Some(fault.cause), stream.usage());
            }
        }
    }
    match stream.end() {
        Ok(bytes) => out.extend_from_slice(&bytes),
        Err(fault) => {
            out.extend_from_slice(&fault.before);
            return (out, Some(fault.cause), stream.usage());
        }
    }
    (out, None, stream.usage())
}

/// Rebuilds the message as Anthropic's client library does, and refuses every order of events that it would not get
/// from Anthropic.
fn accumulate(out: &[u8]) -> Value {
    let mut message = Value::Null;
    let mut open: Option<usize> = None;
    let mut partial = String::new();
    let mut stopped = false;
    for event in std::str::from_utf8(out).unwrap().split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.split_once('\n').expect("a name and data");
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).expect("JSON");
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"].as_str().unwrap());
        assert!(!stopped, "nothing follows message_stop");
        let index = data["index"].as_u64().map(|index| index as usize);
        match data["type"].as_str().unwrap() {
            "message_start" => {
                assert!(message.is_null(), "one start");
                message = data["message"].clone();
            }
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(message["content"].as_array().unwrap().len())));
                open = index;
                partial.clear();
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open.is_some() && open == index, "a delta belongs to the open block");
                let delta = &data["delta"];
                let block = &mut message["content"][index.unwrap()];
                let (key, kind) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "input_json_delta" => ("partial_json", "tool_use"),
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let piece = delta[key].as_str().unwrap();
                if kind == "tool_use" {
                    partial.push_str(piece);
                } else {
                    let so_far = block[key].as_str().unwrap().to_owned();
                    block[key] = (so_far + piece).into();
                }
            }
            "content_block_stop" => {
                assert!(open.is_some() && open == index);
                if let Ok(input @ Value::Object(_)) = serde_json::from_str(&partial) {
                    message["content"][index.unwrap()]["input"] = input;
                }
                open = None;
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            "message_stop" => stopped = true,
            other => panic!("unknown event {other}"),
        }
    }
    assert!(stopped);
    message
}

#[test]
fn captured_streams_become_messages_at_every_split() {
    for (name, body) in streams().into_iter().filter(|(name, _)| !name.contains("completions")) {
        let (whole, fault, _) = run(false, [&body[..]]);
        assert_eq!(fault, None, "{name}");
        let message = accumulate(&whole);
        assert_eq!(message["model"], "claude-like");
        assert!(!message["content"].as_array().unwrap().is_empty(), "{name}");
        for at in (0..=body.len()).step_by(3) {
            assert_eq!(run(false, [&body[..at], &body[at..]]).0, whole, "{name} split at {at}");
        }
    }
}

#[test]
fn a_captured_stream_of_two_tool_calls_has_two_blocks_and_its_pieces() {
    let body = fixture("vllm/chat_tools_required_stream.http");
    let (out, _, _) = run(false, [&body[..]]);
    let message = accumulate(&out);
    let blocks = message["content"].as_array().unwrap();
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[1]["id"], "chatcmpl-tool-9a0df77567473f9a");
    assert_eq!(message["stop_reason"], "max_tokens");
    let pieces = std::str::from_utf8(&out).unwrap().matches("input_json_delta").count();
    assert_eq!(pieces, 6);
}

#[test]
fn usage_of_a_captured_stream_is_in_the_last_event_and_the_prompt_in_the_first_where_known() {
    let body = fixture("vllm/chat_stream_continuous_usage.http");
    let (out, _, usage) = run(false, [&body[..]]);
    assert_eq!(usage, Some(Usage { prompt: 37, cached: 0, output: 4 }));
    assert!(std::str::from_utf8(&out).unwrap().split("\n\n").next().unwrap().contains("\"input_tokens\":37"));
    assert_eq!(accumulate(&out)["usage"]["output_tokens"], 4);
    let (out, _, _) = run(false, [&fixture("llamacpp/chat_stream_usage.http")[..]]);
    let usage = &accumulate(&out)["usage"];
    assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(10), &json!(24)));
}

fn chunk(choice: Value) -> String {
    format!("data: {}\n\n", json!({"id": "c", "model": "m", "choices": [choice]}))
}

#[test]
fn text_reasoning_and_tools_are_blocks_in_the_order_they_come() {
    let mut body = String::new();
    for delta in [
        json!({"role": "assistant", "content": ""}),
        json!({"reasoning_content": "h"}),
        json!({"reasoning_content": "m"}),
        json!({"content": "a\n"}),
        json!({"content": "\"b"}),
        json!({"tool_calls": [{"index": 0, "id": "t0", "function": {"name": "f", "arguments": ""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\":"}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "\"y\"}"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "t1", "function": {"name": "g", "arguments": "{}"}}]}),
    ] {
        body += &chunk(json!({"index": 0, "delta": delta, "finish_reason": null}));
    }
    body += &chunk(json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"}));
    body += "data: [DONE]\n\n";
    let (out, fault, _) = run(true, [body.as_bytes()]);
    assert_eq!(fault, None);
    let message = accumulate(&out);
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "a\n\"b"},
            {"type": "tool_use", "id": "t0", "name": "f", "input": {"x": "y"}},
            {"type": "tool_use", "id": "t1", "name": "g", "input": {}},
        ])
    );
    assert_eq!(message["stop_reason"], "tool_use");
    let quiet = accumulate(&run(false, [body.as_bytes()]).0);
    assert_eq!(quiet["content"][0]["type"], "text");
}

#[test]
fn broken_and_impossible_streams_end_without_message_stop() {
    let late = chunk(json!({"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}))
        + &chunk(json!({"delta": {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "f"}}]}}))
        + &chunk(json!({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}}));
    let many =
        chunk(json!({"delta": {"tool_calls": [{"index": TOOL_CALLS_MAX, "id": "a", "function": {"name": "f"}}]}}));
    let nameless = chunk(json!({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}}));
    let cut = chunk(json!({"delta": {"content": "a"}}));
    let error = cut.clone() + "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n";
    let abort = cut.clone() + &chunk(json!({"delta": {}, "finish_reason": "abort"})) + "data: [DONE]\n\n";
    for (body, expected) in [
        (late, Cause::Malformed),
        (many, Cause::Malformed),
        (nameless, Cause::Malformed),
        (cut, Cause::Truncated),
        (error, Cause::EngineError("{\"message\":\"x\"}".into())),
        (abort, Cause::Aborted),
    ] {
        let (out, fault, _) = run(false, [body.as_bytes()]);
        assert_eq!(fault, Some(expected), "{body}");
        assert!(!std::str::from_utf8(&out).unwrap().contains("message_stop"));
    }
}

proptest! {
    #[test]
    fn any_text_in_any_pieces_arrives_whole_at_any_split(
        pieces in prop::collection::vec((any::<String>(), 0_u8..3), 0..10), cuts in prop::collection::vec(0_usize..4096, 0..12),
    ) {
        let mut body = String::new();
        for (text, kind) in &pieces {
            let delta = match kind {
                0 => json!({"content": text}),
                1 => json!({"reasoning": text}),
                _ => json!({"content": text, "reasoning": text}),
            };
            body += &chunk(json!({"index": 0, "delta": delta, "finish_reason": null}));
        }
        body += &chunk(json!({"index": 0, "delta": {}, "finish_reason": "stop"}));
        body += "data: [DONE]\n\n";
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let reads: Vec<&[u8]> = cuts.windows(2).map(|pair| &body.as_bytes()[pair[0]..pair[1]]).collect();
        let (out, fault, _) = run(true, reads);
        prop_assert_eq!(fault, None);
        prop_assert_eq!(&out, &run(true, [body.as_bytes()]).0);
        let message = accumulate(&out);
        let of = |kind: &str| -> String {
            message["content"].as_array().unwrap().iter().filter_map(|block| block[kind].as_str()).collect()
        };
        let sent = |kinds: &[u8]| -> String {
            pieces.iter().filter(|(_, kind)| kinds.contains(kind)).map(|(text, _)| text.as_str()).collect()
        };
        prop_assert_eq!(of("text"), sent(&[0, 2]));
        prop_assert_eq!(of("thinking"), sent(&[1, 2]));
    }
}
