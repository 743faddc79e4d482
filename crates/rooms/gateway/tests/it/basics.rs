//! What a caller who does everything right sees.

use http::Method;
use tidegate_core::{Outcome, UsageSource};
use tidegate_testkit::fake::Script;

use crate::house::{CHAT_STREAM, House, SITE, local};

#[test]
fn a_chat_is_answered_under_the_alias_and_accounted() {
    local(async {
        let mut house = House::new(SITE, vec![Script::vllm("tiny-served")]).await;
        let answer = house.chat().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["model"], "chat");
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello from the fake engine.");
        let sent = &house.engines[0].runs()[0];
        assert_eq!(sent.json()["model"], "tiny-served");
        assert_eq!(sent.json()["max_tokens"], 16);
        assert_eq!(sent.header("authorization"), None, "the caller's key stays here");
        let entry = house.entry();
        assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.source), (37, 6, UsageSource::Engine));
        assert_eq!(entry.outcome, Outcome::Ok);
        assert_eq!(entry.model.unwrap().as_str(), "tiny");
        assert!(answer.headers.contains_key("x-request-id"));
    });
}

#[test]
fn usage_is_asked_of_the_engine_and_cut_when_the_caller_did_not_ask() {
    local(async {
        let mut house = House::new(SITE, vec![Script::vllm("tiny-served")]).await;
        let answer = house.post("/v1/chat/completions", CHAT_STREAM).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
        let text = answer.text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert!(!text.contains("usage"), "{text}");
        assert!(!text.contains("tiny-served"), "{text}");
        assert!(text.contains("\"model\":\"chat\""), "{text}");
        let sent = house.engines[0].runs()[0].json();
        assert_eq!(sent["stream_options"]["include_usage"], true);
        let entry = house.entry();
        assert_eq!((entry.prompt_tokens, entry.output_tokens, entry.source), (37, 6, UsageSource::Engine));
        assert!(entry.streamed && entry.ttft_us.is_some());
    });
}

#[test]
fn a_caller_who_asks_for_usage_gets_one_more_chunk() {
    local(async {
        let mut house = House::new(SITE, vec![Script::vllm("tiny-served")]).await;
        let body =
            CHAT_STREAM.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        let answer = house.post("/v1/chat/completions", &body).await;
        let last = answer.text().trim_end().rsplit("\n\n").nth(1).unwrap().to_owned();
        assert!(last.contains("\"choices\":[]") && last.contains("\"total_tokens\":43"), "{last}");
    });
}

#[test]
fn models_are_listed_by_grant_without_asking_a_replica() {
    local(async {
        let documents = format!(
            "{SITE}---\nkind: Alias\nmetadata: {{name: secret}}\nspec: {{targets: [{{deployment: tiny-v1, weight: 1}}]}}\n"
        );
        let mut house = House::new(&documents, vec![Script::vllm("tiny-served")]).await;
        let request = house.request(Method::GET, "/v1/models", "");
        let answer = house.send(request).await;
        assert_eq!(answer.status, 200);
        let listed = answer.json();
        assert_eq!(listed["data"].as_array().unwrap().len(), 1);
        assert_eq!(listed["data"][0]["id"], "chat");
        assert_eq!(listed["data"][0]["max_model_len"], 8192);
        assert!(house.engines[0].requests().is_empty());
        let request = house.request(Method::GET, "/v1/models/secret", "");
        assert_eq!(house.send(request).await.status, 404);
    });
}

#[test]
fn an_answer_carries_what_is_left_of_the_rates() {
    local(async {
        let documents = SITE.replace("models: [{alias: chat}]", "models: [{alias: chat, rpm: 10, tpm: 1000}]");
        let mut house = House::new(&documents, vec![Script::vllm("tiny-served")]).await;
        let answer = house.chat().await;
        assert_eq!(answer.headers["x-ratelimit-limit-requests"], "10");
        assert_eq!(answer.headers["x-ratelimit-remaining-requests"], "9");
        assert_eq!(answer.headers["x-ratelimit-limit-tokens"], "1000");
        let streamed = house.post("/v1/chat/completions", CHAT_STREAM).await;
        assert_eq!(streamed.headers["x-ratelimit-remaining-requests"], "8");
    });
}
