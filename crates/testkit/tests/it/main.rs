//! The fake engine must itself be right: what it says is what path tests are judged by.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod process;
mod real;
mod s3;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_engine::client::{ClientError, Endpoint, Head, Pool, PoolSettings, Response};
use tidegate_testkit::{FakeEngine, Fault, Finish, Refusal, Script, ToolCall};

async fn start(script: Script) -> (FakeEngine, Arc<Pool>) {
    let engine = FakeEngine::start(script).await.unwrap();
    let pool = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    (engine, pool)
}

async fn post(pool: &Arc<Pool>, path: &str, body: &Value) -> Result<Response, ClientError> {
    pool.send(Head::post_json(path).with_request_id("attempt-1"), Bytes::from(body.to_string())).await
}

async fn text(pool: &Arc<Pool>, path: &str, body: &Value) -> String {
    let response = post(pool, path, body).await.unwrap();
    assert_eq!(response.head.status, 200, "{path}");
    String::from_utf8(response.body.collect(1 << 20).await.unwrap().to_vec()).unwrap()
}

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn events(text: &str) -> Vec<Value> {
    text.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")))
        .collect()
}

#[tokio::test]
async fn a_stream_has_role_deltas_final_chunk_usage_when_asked_and_done() {
    let (engine, pool) = start(Script::vllm("m")).await;
    let text = text(&pool, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"));
    let all = events(&text);
    assert_eq!(all.len(), 8);
    assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(all[7]["choices"][0]["finish_reason"], "stop");
    assert!(all.iter().all(|event| event.get("usage").is_none()));

    let options = json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let text = self::text(&pool, "/v1/chat/completions", &chat(options)).await;
    let all = events(&text);
    assert_eq!(all[3]["usage"]["completion_tokens"], 3);
    assert_eq!(all[8]["choices"], json!([]));
    assert_eq!(all[8]["usage"]["completion_tokens"], 6);
    assert_eq!(all[8]["id"], "chatcmpl-attempt-1");

    let rows = engine.usage_log();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.output == 6 && row.finish == Finish::Done && row.prompt == 37));
    assert_eq!(engine.runs()[1].header("x-request-id"), Some("attempt-1"));
    assert_eq!(engine.log().connections, 1);
}

#[tokio::test]
async fn every_endpoint_answers_in_its_own_shape() {
    let (_engine, pool) = start(Script::vllm("m")).await;
    let get =
        async |path: &str, body: Value| -> Value { serde_json::from_str(&text(&pool, path, &body).await).unwrap() };
    let answer = get("/v1/chat/completions", chat(json!({"max_tokens": 2, "n": 2}))).await;
    assert_eq!(answer["choices"][1]["message"]["content"], "Hello from");
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    let answer = get("/v1/completions", json!({"model": "m", "prompt": "x"})).await;
    assert_eq!(answer["choices"][0]["text"], "Hello from the fake engine.");
    let answer = get("/v1/responses", json!({"model": "m", "input": "x", "max_output_tokens": 1})).await;
    assert_eq!((&answer["status"], &answer["usage"]["output_tokens"]), (&json!("incomplete"), &json!(1)));
    let answer = get("/v1/messages", chat(json!({}))).await;
    assert_eq!(answer["content"][0]["text"], "Hello from the fake engine.");
    assert_eq!(get("/v1/messages/count_tokens", chat(json!({}))).await, json!({"input_tokens": 37}));
    let answer = get("/v1/embeddings", json!({"model": "m", "input": ["a", "b"]})).await;
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    let answer = get("/v1/rerank", json!({"model": "m", "query": "q", "documents": ["a", "b", "c"]})).await;
    assert_eq!(answer["results"][2]["index"], 2);
    for (path, body) in [
        ("/v1/completions", json!({"model": "m", "prompt": "x", "stream": true})),
        ("/v1/responses", json!({"model": "m", "input": "x", "stream": true})),
        ("/v1/messages", chat(json!({"stream": true}))),
    ] {
        assert!(events(&text(&pool, path, &body).await).len() > 6, "{path}");
    }
}

#[tokio::test]
async fn tools_and_audio_are_answered() {
    let tool = ToolCall { name: "get_weather".into(), arguments: vec!["{\"city\":".into(), "\"Seoul\"}".into()] };
    let (_engine, pool) = start(Script { tool: Some(tool), ..Script::vllm("m") }).await;
    let tools = json!({"tools": [{"type": "function", "function": {"name": "get_weather"}}]});
    let answer: Value = serde_json::from_str(&text(&pool, "/v1/chat/completions", &chat(tools.clone())).await).unwrap();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\":\"Seoul\"}");
    let mut streamed = tools;
    streamed["stream"] = true.into();
    let all = events(&text(&pool, "/v1/chat/completions", &chat(streamed)).await);
    assert_eq!(all.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    let form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b\r\n\
                Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n";
    let head =
        Head { content_type: Some("multipart/form-data; boundary=b"), ..Head::post_json("/v1/audio/transcriptions") };
    let response = pool.send(head, Bytes::from(form)).await.unwrap();
    assert_eq!(response.head.status, 200);
}

#[tokio::test]
async fn llama_cpp_answers_any_model_under_its_own_name() {
    let (_engine, pool) = start(Script::llamacpp("own")).await;
    let answer: Value = serde_json::from_str(&text(&pool, "/v1/chat/completions", &chat(json!({}))).await).unwrap();
    assert_eq!(answer["model"], "own");
    assert_ne!(answer["id"], "chatcmpl-attempt-1");
    let response = post(&pool, "/v1/embeddings", &json!({"model": "own", "input": "a"})).await.unwrap();
    assert_eq!(response.head.status, 501);
    let (_engine, pool) = start(Script::vllm("own")).await;
    assert_eq!(post(&pool, "/v1/chat/completions", &chat(json!({}))).await.unwrap().head.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_stops_the_generation_and_is_in_the_log() {
    let script = Script::vllm("m").answering(100).paced(Duration::ZERO, Duration::from_millis(10));
    let (engine, pool) = start(script).await;
    let mut response = post(&pool, "/v1/chat/completions", &chat(json!({"stream": true}))).await.unwrap();
    for _ in 0..5 {
        response.body.frame().await.unwrap().unwrap();
    }
    assert_eq!(engine.log().running, 1);
    drop(response);
    let log = engine.wait_for(|log| !log.usage.is_empty()).await;
    assert_eq!(log.running, 0);
    assert_eq!(log.usage[0].finish, Finish::PeerLeft);
    assert!((4..=7).contains(&log.usage[0].output), "{}", log.usage[0].output);
}

#[tokio::test(start_paused = true)]
async fn every_fault_shows_as_itself() {
    type IsRight = fn(&str, Option<&ClientError>) -> bool;
    let cases: Vec<(Fault, IsRight)> = vec![
        (Fault::ErrorEvent(2), |text, error| {
            text.contains("{\"error\"") && text.ends_with("[DONE]\n\n") && error.is_none()
        }),
        (Fault::Abort(2), |text, error| text.contains("\"finish_reason\":\"abort\"") && error.is_none()),
        (Fault::EndWithoutDone(2), |text, error| !text.contains("[DONE]") && error.is_none()),
        (Fault::Cut(2), |_, error| matches!(error, Some(ClientError::Truncated))),
        (Fault::BadChunk(2), |_, error| matches!(error, Some(ClientError::Malformed(_)))),
        (Fault::HugeEvent(2 << 20), |text, error| text.len() > 2 << 20 && error.is_none()),
        (Fault::ResetAfterHead, |text, error| text.is_empty() && error.is_some()),
        (Fault::SlowFirstByte(Duration::from_secs(30)), |text, error| text.ends_with("[DONE]\n\n") && error.is_none()),
        (Fault::ContentType("text/html"), |text, error| text.ends_with("[DONE]\n\n") && error.is_none()),
        (Fault::NoUsage, |text, error| !text.contains("\"usage\"") && error.is_none()),
    ];
    for (fault, is_right) in cases {
        let (_engine, pool) = start(Script::vllm("m").failing(fault.clone())).await;
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let mut text = Vec::new();
        // What comes in one read with the head is read with the head.
        let error = match post(&pool, "/v1/chat/completions", &chat(options)).await {
            Err(error) => Some(error),
            Ok(mut response) => loop {
                match response.body.frame().await {
                    Some(Ok(frame)) => text.extend_from_slice(&frame),
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            },
        };
        assert!(is_right(&String::from_utf8_lossy(&text), error.as_ref()), "{fault:?}: {error:?}");
    }
    for fault in [Fault::ResetBeforeHead, Fault::CloseBeforeHead, Fault::BadHead, Fault::TwoLengths] {
        let (_engine, pool) = start(Script::vllm("m").failing(fault.clone())).await;
        assert!(post(&pool, "/v1/chat/completions", &chat(json!({}))).await.is_err(), "{fault:?}");
    }
    for fault in [Fault::Freeze(2), Fault::Comments { after: 2, every: Duration::from_secs(30) }] {
        let (_engine, pool) = start(Script::vllm("m").failing(fault.clone())).await;
        let mut response = post(&pool, "/v1/chat/completions", &chat(json!({"stream": true}))).await.unwrap();
        let mut text = Vec::new();
        let silent = tokio::time::timeout(Duration::from_secs(300), async {
            while let Some(Ok(frame)) = response.body.frame().await {
                text.extend_from_slice(&frame);
            }
        });
        assert!(silent.await.is_err(), "{fault:?}");
        assert_eq!(events(&String::from_utf8_lossy(&text)).len(), 3, "{fault:?}");
    }
}

#[tokio::test]
async fn faults_are_used_up_one_by_one_before_the_standing_one() {
    let script = Script { faults: vec![Some(Fault::Refuse(Refusal::QueueFull)), None], ..Script::vllm("m") }
        .failing(Fault::Refuse(Refusal::ShuttingDown));
    let (_engine, pool) = start(script).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(post(&pool, "/v1/chat/completions", &chat(json!({}))).await.unwrap().head.status);
    }
    assert_eq!(seen, [503, 200, 500, 500]);
}

#[tokio::test]
async fn a_closed_port_refuses_and_opens_again_where_it_was() {
    let engine = FakeEngine::start(Script::vllm("m")).await.unwrap();
    let over_tcp = Pool::new(Endpoint::parse(&engine.url(), None, None).unwrap(), PoolSettings::default());
    let in_memory = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    engine.stop_listening().await;
    for pool in [&over_tcp, &in_memory] {
        let error = pool.send(Head::get("/health"), Bytes::new()).await.unwrap_err();
        assert!(matches!(error, ClientError::Connect(_)), "{error:?}");
    }
    engine.listen_again().await.unwrap();
    for pool in [&over_tcp, &in_memory] {
        assert_eq!(pool.send(Head::get("/health"), Bytes::new()).await.unwrap().head.status, 200);
    }
}

#[tokio::test]
async fn a_reset_over_tcp_is_a_reset() {
    let engine = FakeEngine::start(Script::vllm("m").failing(Fault::ResetBeforeHead)).await.unwrap();
    let pool = Pool::new(Endpoint::parse(&engine.url(), None, None).unwrap(), PoolSettings::default());
    let error = post(&pool, "/v1/chat/completions", &chat(json!({}))).await.unwrap_err();
    assert!(matches!(error, ClientError::BeforeResponse(_)), "{error:?}");
}

#[tokio::test]
async fn a_killed_engine_cuts_its_streams() {
    let script = Script::vllm("m").failing(Fault::Freeze(1));
    let (engine, pool) = start(script).await;
    let mut response = post(&pool, "/v1/chat/completions", &chat(json!({"stream": true}))).await.unwrap();
    assert!(response.body.frame().await.unwrap().is_ok());
    engine.kill();
    assert!(response.body.frame().await.unwrap().is_err());
}

#[test]
fn error_answers_are_those_of_the_recordings() {
    let shared = std::env::var_os("TIDEGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")), PathBuf::from);
    let folder = shared.join("fixtures");
    assert!(folder.is_dir(), "no recorded answers at {}: set TIDEGATE_SHARED", folder.display());
    let mut count = 0;
    for refusal in Refusal::ALL {
        let (status, body) = refusal.answer();
        if let Some(recording) = refusal.recording() {
            let text = std::fs::read_to_string(folder.join(recording)).expect(recording);
            let (head, recorded) = text.split_once("\r\n\r\n").expect(recording);
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{recording}");
            assert_eq!(body, recorded.trim_end(), "{recording}");
            count += 1;
        }
    }
    assert_eq!(count, 12);
}

#[tokio::test]
async fn a_second_mock_on_a_taken_port_fails_instead_of_sharing_it() {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let holder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    // As permissive as a socket can be: only the mock's own refusal to share is in the way.
    holder.set_reuse_address(true).unwrap();
    holder.set_reuse_port(true).unwrap();
    holder.bind(&any.into()).unwrap();
    holder.listen(1).unwrap();
    let taken = holder.local_addr().unwrap().as_socket().unwrap();
    let mut mock = tokio::process::Command::new(env!("CARGO_BIN_EXE_mock-upstream"));
    let mock = mock.args(["--listen", &taken.to_string(), "--threads", "2"]).kill_on_drop(true).output();
    // One that shares serves for ever.
    let output = tokio::time::timeout(Duration::from_secs(60), mock).await.expect("the port is shared").unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("AddrInUse"), "{said}");
}
