use bytes::Bytes;
use proptest::prelude::*;
use tidegate_wire::answer::{Answer, Reader, rewrite};
use tidegate_wire::{Endpoint, Usage};

use crate::shared::fixture;

fn text(answer: &Answer) -> &str {
    std::str::from_utf8(&answer.body).unwrap()
}

#[test]
fn captured_answers_name_the_alias_and_keep_every_other_byte() {
    for (endpoint, name, usage) in [
        (Endpoint::ChatCompletions, "vllm/chat.http", (37, 0, 8)),
        (Endpoint::ChatCompletions, "vllm/chat_n2.http", (37, 0, 8)),
        (Endpoint::ChatCompletions, "llamacpp/chat.http", (42, 24, 8)),
        (Endpoint::Completions, "llamacpp/completions_n2.http", (4, 0, 12)),
        (Endpoint::Completions, "vllm/completions_token_ids.http", (4, 0, 3)),
        (Endpoint::Responses, "vllm/responses.http", (31, 0, 4)),
        (Endpoint::Responses, "llamacpp/responses.http", (31, 30, 8)),
        (Endpoint::Messages, "vllm/anthropic_messages.http", (31, 0, 4)),
        (Endpoint::Messages, "llamacpp/anthropic_messages.http", (31, 24, 8)),
    ] {
        let body = Bytes::from(fixture(name));
        let before: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let answer = rewrite(endpoint, body.clone(), "glm-flash");
        assert!(!answer.malformed && !answer.aborted, "{name}");
        let model = before["model"].as_str().unwrap();
        let expected =
            std::str::from_utf8(&body).unwrap().replace(&format!("\"model\":\"{model}\""), "\"model\":\"glm-flash\"");
        assert_eq!(text(&answer), expected, "{name}");
        assert_eq!(answer.engine_id.as_deref(), before["id"].as_str(), "{name}");
        let (prompt, cached, output) = usage;
        let read = answer.usage.unwrap();
        assert_eq!((read.prompt, read.output), (prompt, output), "{name}");
        assert_eq!(read.cached, cached, "{name}");
        let same = rewrite(endpoint, body.clone(), model);
        assert_eq!(same.body.as_ptr(), body.as_ptr(), "{name}: not copied when nothing changes");
    }
}

#[test]
fn embeddings_and_reranks_have_prompt_tokens_only() {
    let body = r#"{"object":"list","data":[{"embedding":[0.1,-2e-3]}],"model":"e","usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    let answer = rewrite(Endpoint::Embeddings, Bytes::from_static(body.as_bytes()), "a");
    assert_eq!(answer.usage, Some(Usage { prompt: 5, cached: 0, output: 0 }));
    assert_eq!(text(&answer), body.replace("\"e\"", "\"a\""));
    let body = r#"{"id":"r","model":"e","usage":{"total_tokens":9},"results":[{"index":0,"document":{"model":"x"}}]}"#;
    let answer = rewrite(Endpoint::Rerank, Bytes::from_static(body.as_bytes()), "a");
    assert_eq!(answer.usage, Some(Usage { prompt: 9, cached: 0, output: 0 }));
    assert_eq!(text(&answer), body.replace("\"e\"", "\"a\""), "nothing deeper is touched");
}

#[test]
fn a_transcription_may_be_plain_text_and_have_no_token_usage() {
    let body = Bytes::from_static(b"1\n00:00 --> 00:01\nhello\n");
    let answer = rewrite(Endpoint::Transcriptions, body.clone(), "a");
    assert_eq!((answer.body, answer.malformed), (body, true));
    let json = Bytes::from_static(br#"{"text":"hello","usage":{"type":"duration","seconds":3}}"#);
    let answer = rewrite(Endpoint::Transcriptions, json, "a");
    assert_eq!((answer.usage, answer.malformed), (None, false));
}

#[test]
fn a_count_of_tokens_is_no_use_of_them() {
    let body = Bytes::from_static(br#"{"input_tokens":31,"usage":{"input_tokens":31}}"#);
    assert_eq!(rewrite(Endpoint::CountTokens, body, "a").usage, None);
}

#[test]
fn an_engine_that_gave_up_is_seen_in_an_answer_with_status_200() {
    for body in [
        r#"{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}"#,
        r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}"#,
        r#"{"error":{"message":"x"}}"#,
    ] {
        assert!(rewrite(Endpoint::ChatCompletions, Bytes::from_static(body.as_bytes()), "a").aborted, "{body}");
    }
    let fine =
        br#"{"error":null,"choices":[{"message":{"content":"\"finish_reason\":\"abort\""},"finish_reason":"stop"}]}"#;
    assert!(!rewrite(Endpoint::ChatCompletions, Bytes::from_static(fine), "a").aborted);
}

#[test]
fn counts_that_are_no_whole_numbers_are_no_counts() {
    for usage in [r#"{"prompt_tokens":-1}"#, r#"{"prompt_tokens":1.5}"#, r#"{"prompt_tokens":"3"}"#, "null", "[1]", "7"]
    {
        let body = format!(r#"{{"usage":{usage}}}"#);
        assert_eq!(rewrite(Endpoint::ChatCompletions, body.into(), "a").usage, None, "{usage}");
    }
    let zero = Bytes::from_static(br#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#);
    assert_eq!(rewrite(Endpoint::ChatCompletions, zero, "a").usage, Some(Usage::default()));
}

/// A chat completion with what differs from answer to answer.
fn chat(id: &str, content: &str, finish: &str, tokens: &str, extra: &str) -> Bytes {
    Bytes::from(format!(
        "{{\"id\":\"{id}\",\"object\":\"chat.completion\",\"created\":{tokens},\"model\":\"m\",\"choices\":[{{\"index\":0,\
         \"message\":{{\"role\":\"assistant\",\"content\":\"{content}\"{extra}}},\"logprobs\":null,\
         \"finish_reason\":\"{finish}\"}}],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens},\
         \"total_tokens\":9,\"prompt_tokens_details\":{{\"cached_tokens\":{tokens}}}}}}}\n"
    ))
}

proptest! {
    #[test]
    fn an_answer_read_by_comparing_comes_to_what_it_comes_to_read_alone(
        answers in proptest::collection::vec(
            (
                prop_oneof![4 => "[a-z0-9-]{1,300}", 1 => Just("\\\"".to_owned())],
                prop_oneof![4 => "[a-z ]{0,20}", 1 => Just("a\\\\".to_owned()), 1 => Just("b\\".to_owned()),
                    1 => Just("c\",\"model\":\"x".to_owned()), 1 => Just("raw\ncontrol".to_owned())],
                prop_oneof![6 => Just("stop"), 1 => Just("length"), 1 => Just("abort")],
                prop_oneof![6 => (0_u32..1000).prop_map(|n| n.to_string()), 1 => Just("1.5".to_owned()),
                    1 => Just("-3".to_owned()), 1 => Just("null".to_owned()), 1 => Just("99999999999999999999".to_owned())],
                prop_oneof![6 => Just(""), 1 => Just(",\"refusal\":null"), 1 => Just(",\"n\":[1,2,[3,\"x\"]]"),
                    1 => Just("}")],
                prop_oneof![4 => Just(Endpoint::ChatCompletions), 1 => Just(Endpoint::Messages),
                    1 => Just(Endpoint::CountTokens), 1 => Just(Endpoint::Embeddings)],
                prop_oneof![3 => Just("alias"), 1 => Just("m")],
            ),
            1..30,
        )
    ) {
        let mut reader = Reader::default();
        for (id, content, finish, tokens, extra, endpoint, alias) in answers {
            let body = chat(&id, &content, finish, &tokens, extra);
            prop_assert_eq!(reader.rewrite(endpoint, body.clone(), alias), rewrite(endpoint, body, alias));
        }
    }
}

#[test]
fn captured_answers_come_to_the_same_the_second_time() {
    let mut reader = Reader::default();
    for (endpoint, name) in [
        (Endpoint::ChatCompletions, "vllm/chat.http"),
        (Endpoint::ChatCompletions, "vllm/chat_n2.http"),
        (Endpoint::ChatCompletions, "llamacpp/chat.http"),
        (Endpoint::Completions, "llamacpp/completions_n2.http"),
        (Endpoint::Responses, "vllm/responses.http"),
        (Endpoint::Messages, "vllm/anthropic_messages.http"),
    ] {
        let body = Bytes::from(fixture(name));
        let expected = rewrite(endpoint, body.clone(), "glm-flash");
        for _ in 0..2 {
            assert_eq!(reader.rewrite(endpoint, body.clone(), "glm-flash"), expected, "{name}");
        }
    }
}
