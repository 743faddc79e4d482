//! Every switch of the fake engine against what the gate must make of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tidegate_core::Case;
use tidegate_engine::attempt::{self, AttemptEnd, INTERNAL_MAX};
use tidegate_engine::client::{Endpoint, Head, Pool, PoolSettings};
use tidegate_engine::{AttemptEnd as End, Dialect};
use tidegate_testkit::{FakeEngine, Fault, Refusal, Script, Shape};
use tidegate_wire::sse::{Flavour, Stream, StreamOptions, UsageAsked};

use crate::fixtures;

/// Runs one chat request to its end, as a relay would, and says how it ended. Nothing counts as sent to the caller.
async fn attempt(script: Script, path: &str, wants_stream: bool) -> Result<Bytes, AttemptEnd> {
    let dialect = if script.shape == Shape::Vllm { Dialect::Vllm } else { Dialect::LlamaCpp };
    let engine = FakeEngine::start(script).await.unwrap();
    let pool = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "stream": wants_stream,
        "stream_options": {"include_usage": true}});
    let head = Head::post_json(path).with_request_id("attempt-1");
    let deadline = Duration::from_secs(120);
    let sent = tokio::time::timeout(deadline, pool.send(head, Bytes::from(body.to_string()))).await;
    let response = sent.map_err(|_| attempt::first_byte_timeout())?.map_err(|error| attempt::broken(&error))?;
    if response.head.status != 200 {
        let status = response.head.status;
        let body = response.body.collect(1 << 20).await.map_err(|error| attempt::broken(&error))?;
        return Err(attempt::refused(dialect, status, &body));
    }
    attempt::check_success(&response.head, wants_stream)?;
    if !wants_stream {
        return response.body.collect(1 << 20).await.map_err(|error| attempt::broken(&error));
    }
    let options = StreamOptions { flavour: Flavour::Chat, alias: "alias".into(), asked: UsageAsked::No };
    let mut stream = Stream::new(options);
    let mut body = response.body;
    let mut said = Vec::new();
    let mut progress = stream.progress();
    let mut deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        // The gap deadline moves with content, not with comments.
        let frame = tokio::time::timeout_at(deadline, body.frame()).await.map_err(|_| attempt::gap_timeout())?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| attempt::broken(&error))?;
        said.extend(stream.push(frame).map_err(|fault| attempt::stream_broke(dialect, &fault))?);
        if stream.progress() != progress {
            progress = stream.progress();
            deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        }
    }
    said.extend(stream.end().map_err(|fault| attempt::stream_broke(dialect, &fault))?);
    Ok(said.into())
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn a_healthy_engine_is_no_fault() {
    for script in [Script::vllm("m"), Script::llamacpp("m")] {
        assert!(attempt(script.clone(), CHAT, false).await.is_ok());
        let text = attempt(script, CHAT, true).await.unwrap();
        assert!(text.ends_with(b"data: [DONE]\n\n"));
    }
}

/// What a fault comes to: the row, and whether it may be retried and speaks against the replica.
fn sort(end: &AttemptEnd) -> (Case, bool, bool) {
    (end.fault().case, matches!(end, End::Retryable { .. }), end.trips_breaker())
}

#[tokio::test(start_paused = true)]
async fn each_error_answer_is_sorted_and_its_text_stays_inside() {
    let expect = |refusal| match refusal {
        Refusal::UnknownModel | Refusal::LlamaLoading => (Case::ModelUnavailable, true, true),
        Refusal::BadJson
        | Refusal::BadTemperature
        | Refusal::MaxTokens
        | Refusal::LlamaBadJson
        | Refusal::LlamaMaxTokens => (Case::UpstreamRejected, false, false),
        Refusal::MissingMessages | Refusal::SglangBadRequest => (Case::MissingParameter, false, false),
        Refusal::ContextTooLong | Refusal::LlamaContext => (Case::ContextLength, false, false),
        Refusal::NotFound | Refusal::Forbidden | Refusal::LlamaNotSupported | Refusal::LlamaNotFound => {
            (Case::InvalidValue, false, false)
        }
        Refusal::ShuttingDown | Refusal::EngineDead | Refusal::HtmlBadGateway => {
            (Case::UpstreamUnreachable, true, true)
        }
        Refusal::InternalError => (Case::UpstreamUnreachable, true, false),
        Refusal::QueueFull | Refusal::SglangQueueFull | Refusal::TooManyRequests => (Case::Overloaded, true, false),
    };
    for refusal in Refusal::ALL {
        for (script, wants_stream) in
            [(Script::vllm("m"), false), (Script::vllm("m"), true), (Script::llamacpp("m"), false)]
        {
            let end = attempt(script.failing(Fault::Refuse(refusal)), CHAT, wants_stream).await.unwrap_err();
            assert_eq!(sort(&end), expect(refusal), "{refusal:?}: {end:?}");
            let fault = end.fault();
            for secret in
                ["Valid aliases", "tiny", "json.exception", "'loc'", "stack trace", "vllm", "--embeddings", "html"]
            {
                assert!(!fault.public.contains(secret), "{refusal:?} shows {secret}: {}", fault.public);
            }
            let internal = fault.internal.as_deref().unwrap_or_default();
            assert!(internal.len() <= INTERNAL_MAX);
            if end.trips_breaker() || sort(&end).0 == Case::UpstreamRejected {
                assert!(!internal.is_empty(), "{refusal:?}: the log must have the engine's own text");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_values_name_the_field_and_keep_their_status() {
    for (refusal, param, status) in [
        (Refusal::MaxTokens, Some("max_tokens"), 400),
        (Refusal::BadTemperature, Some("temperature"), 400),
        (Refusal::LlamaMaxTokens, Some("max_tokens"), 400),
        (Refusal::MissingMessages, Some("messages"), 400),
        (Refusal::ContextTooLong, Some("messages"), 400),
        (Refusal::LlamaNotSupported, Some("model"), 400),
        (Refusal::BadJson, None, 400),
    ] {
        let end = attempt(Script::vllm("m").failing(Fault::Refuse(refusal)), CHAT, false).await.unwrap_err();
        assert_eq!((end.fault().param.as_deref(), end.fault().status), (param, status), "{refusal:?}");
    }
    let end = attempt::refused(Dialect::Vllm, 422, br#"{"detail":[{"loc":["body","x"]}]}"#);
    assert_eq!((sort(&end), end.fault().status), ((Case::UpstreamRejected, false, false), 422));
    let end = attempt::refused(Dialect::Vllm, 409, b"");
    assert_eq!(end.fault().should_retry, Some(false), "the client library would repeat a 409");
}

#[tokio::test(start_paused = true)]
async fn each_fault_before_the_end_is_the_replicas_and_may_be_tried_elsewhere() {
    let every = Duration::from_secs(30);
    let unreachable = (Case::UpstreamUnreachable, true, true);
    let timeout = (Case::UpstreamTimeout, true, true);
    for (fault, wants_stream, expected) in [
        (Fault::ResetBeforeHead, false, unreachable),
        (Fault::CloseBeforeHead, true, unreachable),
        (Fault::ResetAfterHead, false, unreachable),
        (Fault::ResetAfterHead, true, unreachable),
        (Fault::ErrorEvent(2), true, unreachable),
        (Fault::Abort(2), true, unreachable),
        (Fault::EndWithoutDone(2), true, unreachable),
        (Fault::Cut(2), true, unreachable),
        (Fault::Cut(2), false, unreachable),
        (Fault::Freeze(2), true, timeout),
        (Fault::Freeze(0), false, timeout),
        (Fault::Comments { after: 2, every }, true, timeout),
        (Fault::SlowFirstByte(Duration::from_secs(121)), true, timeout),
        (Fault::ContentType("text/html"), true, unreachable),
        (Fault::ContentType("text/html"), false, unreachable),
        (Fault::HugeEvent(2 << 20), true, unreachable),
        (Fault::BadChunk(2), true, unreachable),
        (Fault::BadHead, false, unreachable),
        (Fault::TwoLengths, true, unreachable),
    ] {
        for script in [Script::vllm("m"), Script::llamacpp("m")] {
            let end = attempt(script.failing(fault.clone()), CHAT, wants_stream).await.unwrap_err();
            assert_eq!(sort(&end), expected, "{fault:?} {wants_stream}: {end:?}");
            let later = end.after_first_byte();
            assert_eq!(sort(&later), (Case::UpstreamInterrupted, false, true), "{fault:?}");
        }
    }
    let slow = Script::vllm("m").failing(Fault::SlowFirstByte(Duration::from_secs(119)));
    assert!(attempt(slow, CHAT, true).await.is_ok());
}

#[tokio::test]
async fn a_closed_port_may_be_tried_elsewhere() {
    let engine = FakeEngine::start(Script::vllm("m")).await.unwrap();
    engine.stop_listening().await;
    let pool = Pool::new(Endpoint::parse(&engine.url(), None, None).unwrap(), PoolSettings::default());
    let error = pool.send(Head::get("/health"), Bytes::new()).await.unwrap_err();
    assert_eq!(sort(&attempt::broken(&error)), (Case::UpstreamUnreachable, true, true));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_the_engine_lacks_is_the_callers_choice_of_model() {
    let end = attempt(Script::llamacpp("m"), "/v1/embeddings", false).await.unwrap_err();
    assert_eq!(sort(&end), (Case::InvalidValue, false, false));
    assert_eq!(end.fault().param.as_deref(), Some("model"));
    let script = Script { embeds: false, ..Script::vllm("m") };
    let end = attempt(script, "/v1/embeddings", false).await.unwrap_err();
    assert_eq!(sort(&end), (Case::InvalidValue, false, false));
}

#[test]
fn recorded_error_answers_never_speak_against_a_replica_that_only_refused() {
    for (name, dialect, expected) in [
        ("vllm/err_stream_unknown_model.http", Dialect::Vllm, (Case::ModelUnavailable, true, true)),
        ("vllm/err_stream_options_without_stream.http", Dialect::Vllm, (Case::UpstreamRejected, false, false)),
        ("vllm/err_negative_max_tokens.http", Dialect::Vllm, (Case::UpstreamRejected, false, false)),
        ("vllm/err_context_too_long.http", Dialect::Vllm, (Case::ContextLength, false, false)),
        ("vllm/load_lora_dup.http", Dialect::Vllm, (Case::UpstreamRejected, false, false)),
        ("llamacpp/slots_none_free.http", Dialect::LlamaCpp, (Case::Overloaded, true, false)),
        ("llamacpp/health_loading.http", Dialect::LlamaCpp, (Case::ModelUnavailable, true, true)),
        ("llamacpp/bad_json.http", Dialect::LlamaCpp, (Case::UpstreamRejected, false, false)),
    ] {
        let (status, body) = fixtures::read(name);
        assert_eq!(sort(&attempt::refused(dialect, status, &body)), expected, "{name}");
    }
}

#[tokio::test]
async fn the_pool_is_shared_by_tasks_of_one_core() {
    let engine = FakeEngine::start(Script::vllm("m")).await.unwrap();
    let pool = Pool::new(Endpoint::parse(&engine.url(), None, None).unwrap(), PoolSettings::default());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let pool = Arc::clone(&pool);
        tasks.spawn(async move {
            let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
            let response = pool.send(Head::post_json(CHAT), Bytes::from(body)).await.unwrap();
            response.body.collect(1 << 16).await.unwrap()
        });
    }
    while let Some(body) = tasks.join_next().await {
        assert!(body.unwrap().ends_with(b"}"));
    }
    assert_eq!(engine.usage_log().len(), 64);
}
