//! Every refusal: status, type, code, param and retry signals, in both protocols; what it leaves in the ledger; and in
//! which order a request with several faults meets them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::Full;
use tidegate_core::{AliasName, Case, Outcome, UsageSource};
use tidegate_identity::StoreState;
use tidegate_testkit::fake::{Fault, Refusal, Script};

use crate::house::{Answer, CHAT, House, SITE, Setup, alias_with, granting, local};

const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/messages"];

/// What a caller is told about trying again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Retry {
    /// Nothing: the library's own rule is right.
    Unsaid,
    /// Not to.
    No,
    /// After so many seconds.
    After(u64),
    /// After some time of at most so many seconds.
    Within(u64),
}

struct Row {
    case: Case,
    status: u16,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    anthropic: &'static str,
    retry: Retry,
}

/// The table of the contract, by hand: not derived from what it is to check.
fn row(case: Case) -> Row {
    const BAD: &str = "invalid_request_error";
    const OFF: &str = "service_unavailable_error";
    const DOWN: &str = "server_error";
    let (status, kind, code, param, anthropic, retry) = match case {
        Case::InvalidKey => (401, BAD, Some("invalid_api_key"), None, "authentication_error", Retry::Unsaid),
        Case::AuthUnavailable => (503, OFF, Some("auth_unavailable"), None, "overloaded_error", Retry::After(10)),
        Case::AuthThrottled => {
            (429, "requests", Some("rate_limit_exceeded"), None, "rate_limit_error", Retry::Within(1))
        }
        Case::Forbidden => (403, BAD, Some("insufficient_permissions"), None, "permission_error", Retry::Unsaid),
        Case::UnknownPath => (404, BAD, None, None, "not_found_error", Retry::Unsaid),
        Case::MethodNotAllowed => (405, BAD, Some("method_not_allowed"), None, BAD, Retry::Unsaid),
        Case::Draining => (503, OFF, Some("server_is_overloaded"), None, "overloaded_error", Retry::After(1)),
        Case::Encoding => (415, BAD, Some("unsupported_encoding"), None, BAD, Retry::Unsaid),
        Case::TooLarge => (413, BAD, Some("request_too_large"), None, "request_too_large", Retry::Unsaid),
        Case::SlowBody => (408, BAD, Some("request_timeout"), None, BAD, Retry::No),
        Case::JsonParse => (400, BAD, Some("json_parse_error"), None, BAD, Retry::Unsaid),
        Case::MissingParameter => (400, BAD, Some("missing_required_parameter"), Some("messages"), BAD, Retry::Unsaid),
        Case::InvalidValue => (400, BAD, Some("invalid_value"), Some("n"), BAD, Retry::Unsaid),
        Case::ModelNotFound => (404, BAD, Some("model_not_found"), Some("model"), "not_found_error", Retry::Unsaid),
        Case::ModelUnavailable => {
            (503, OFF, Some("model_unavailable"), Some("model"), "overloaded_error", Retry::After(5))
        }
        Case::ContextLength => (400, BAD, Some("context_length_exceeded"), Some("messages"), BAD, Retry::Unsaid),
        Case::TooLargeForLimit => (429, "tokens", Some("rate_limit_exceeded"), None, "rate_limit_error", Retry::No),
        Case::Quota => (429, "insufficient_quota", Some("insufficient_quota"), None, "rate_limit_error", Retry::No),
        Case::RateRequests => {
            (429, "requests", Some("rate_limit_exceeded"), None, "rate_limit_error", Retry::Within(60))
        }
        Case::RateTokens => (429, "tokens", Some("rate_limit_exceeded"), None, "rate_limit_error", Retry::Within(60)),
        Case::Concurrency => (429, "requests", Some("rate_limit_exceeded"), None, "rate_limit_error", Retry::Within(1)),
        Case::Overloaded => (503, OFF, Some("server_is_overloaded"), None, "overloaded_error", Retry::Within(5)),
        Case::UpstreamUnreachable => (502, DOWN, Some("upstream_unreachable"), None, "api_error", Retry::Unsaid),
        Case::UpstreamTimeout => (504, DOWN, Some("upstream_timeout"), None, "api_error", Retry::Unsaid),
        Case::UpstreamRejected => (400, BAD, Some("invalid_value"), Some("temperature"), BAD, Retry::Unsaid),
        other => panic!("{other:?} is not in this table"),
    };
    Row { case, status, kind, code, param, anthropic, retry }
}

impl Row {
    fn check(&self, path: &str, answer: &Answer) {
        let (case, text) = (self.case, answer.text());
        assert_eq!(answer.status, self.status, "{case:?} on {path}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{case:?}");
        let id = answer.header("x-request-id").unwrap_or_else(|| panic!("{case:?} has no request id"));
        let body = answer.json();
        assert!(!body["error"]["message"].as_str().unwrap().is_empty(), "{case:?}: {text}");
        if path.starts_with("/v1/messages") {
            assert_eq!(body["type"], "error", "{case:?}: {text}");
            assert_eq!(body["error"]["type"], self.anthropic, "{case:?}: {text}");
            assert_eq!(body["request_id"], id, "{case:?}");
        } else {
            assert_eq!(body["error"]["type"], self.kind, "{case:?}: {text}");
            assert_eq!(body["error"]["code"].as_str(), self.code, "{case:?}: {text}");
            assert_eq!(body["error"]["param"].as_str(), self.param, "{case:?}: {text}");
            let members = body["error"].as_object().unwrap();
            assert!(["message", "type", "param", "code"].iter().all(|name| members.contains_key(*name)), "{text}");
        }
        self.check_retry(answer);
    }

    fn check_retry(&self, answer: &Answer) {
        let after: Option<u64> = answer.header("retry-after").map(|value| value.parse().unwrap());
        let should = answer.header("x-should-retry");
        let case = self.case;
        match self.retry {
            Retry::Unsaid => assert_eq!((after, should), (None, None), "{case:?}"),
            Retry::No => assert_eq!(should, Some("false"), "{case:?}"),
            Retry::After(seconds) => assert_eq!((after, should), (Some(seconds), None), "{case:?}"),
            Retry::Within(seconds) => {
                assert!(after.is_some_and(|after| (1..=seconds).contains(&after)), "{case:?}: {after:?}");
                assert_eq!(should, None, "{case:?}");
            }
        }
    }
}

/// Runs `act` in a new house for each protocol and checks the answer against the table, and the ledger.
async fn refused(
    case: Case,
    documents: &str,
    scripts: Vec<Script>,
    act: impl AsyncFn(&mut House, &'static str) -> Answer,
) {
    refused_with(case, documents, scripts, Setup::default, act).await;
}

async fn refused_with(
    case: Case,
    documents: &str,
    scripts: Vec<Script>,
    setup: fn() -> Setup,
    act: impl AsyncFn(&mut House, &'static str) -> Answer,
) {
    for path in PATHS {
        let mut house = House::with(documents, scripts.clone(), setup()).await;
        let answer = act(&mut house, path).await;
        row(case).check(path, &answer);
        let is_accepted = !matches!(case, Case::InvalidKey | Case::AuthUnavailable | Case::AuthThrottled);
        if !is_accepted {
            assert_eq!(house.entries(), [], "{case:?} is refused before anybody stands behind it");
            continue;
        }
        let entry = house.last();
        assert_eq!(entry.outcome, Outcome::Failed, "{case:?}");
        assert_eq!(entry.fault, Some(case.row().kind), "{case:?}");
        assert_eq!((entry.status, entry.code.as_deref()), (row(case).status, row(case).code), "{case:?}");
        assert_eq!((entry.tokens(), entry.source), (0, UsageSource::None), "{case:?} charges nothing");
        assert_eq!(entry.request_id.as_ref(), answer.header("x-request-id").unwrap(), "{case:?}");
        house.assert_idle().await;
    }
}

fn vllm() -> Vec<Script> {
    vec![Script::vllm("tiny-served")]
}

async fn post(house: &mut House, path: &str, body: &str) -> Answer {
    house.post(path, body).await
}

#[test]
fn a_request_without_a_good_key_is_401() {
    local(async {
        refused(Case::InvalidKey, SITE, vllm(), async |house, path| {
            let mut request = house.request(Method::POST, path, CHAT);
            request.headers_mut().remove("authorization");
            let answer = house.send(request).await;
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            answer
        })
        .await;
        refused(Case::InvalidKey, SITE, vllm(), async |house, path| {
            house.revoke_all();
            post(house, path, CHAT).await
        })
        .await;
    });
}

#[test]
fn an_unknown_key_is_503_while_the_store_is_away_and_a_known_one_keeps_working() {
    local(async {
        refused(Case::AuthUnavailable, SITE, vllm(), async |house, path| {
            let unknown = house.make_key("red", |_| {});
            house.forget_last_key();
            house.store_is(StoreState::Away);
            assert_eq!(house.chat().await.status, 200);
            house.forget_entries();
            let request = house.request_with(&unknown, Method::POST, path, CHAT);
            house.send(request).await
        })
        .await;
    });
}

#[test]
fn a_peer_that_guesses_is_429_and_a_good_key_from_there_passes() {
    local(async {
        refused(Case::AuthThrottled, SITE, vllm(), async |house, path| {
            let mut last = None;
            for _ in 0..=tidegate_identity::throttle::FAILURES_BURST {
                let request = house.request_with("sk-nobody", Method::POST, path, CHAT);
                last = Some(house.send(request).await);
            }
            assert_eq!(house.chat().await.status, 200);
            house.forget_entries();
            last.unwrap()
        })
        .await;
    });
}

#[test]
fn an_admin_key_and_a_foreign_team_are_403() {
    local(async {
        refused(Case::Forbidden, SITE, vllm(), async |house, path| {
            let admin = house.make_key("red", |record| record.admin = true);
            let request = house.request_with(&admin, Method::POST, path, CHAT);
            house.send(request).await
        })
        .await;
        refused(Case::Forbidden, SITE, vllm(), async |house, path| {
            let mut request = house.request(Method::POST, path, CHAT);
            request.headers_mut().insert("x-tidegate-team", HeaderValue::from_static("blue"));
            house.send(request).await
        })
        .await;
    });
}

#[test]
fn the_team_of_the_key_may_be_named() {
    local(async {
        let mut house = House::new(SITE, vllm()).await;
        let mut request = house.request(Method::POST, PATHS[0], CHAT);
        request.headers_mut().insert("x-tidegate-team", HeaderValue::from_static("red"));
        assert_eq!(house.send(request).await.status, 200);
    });
}

#[test]
fn unknown_paths_are_404_in_the_protocol_of_their_place() {
    local(async {
        for path in ["/v1/nothing", "/", "/v1/messages/nothing", "/v1/messagesx", "/v1/models/"] {
            let mut house = House::new(SITE, vllm()).await;
            let answer = house.post(path, CHAT).await;
            row(Case::UnknownPath).check(if path == "/v1/messages/nothing" { path } else { "/" }, &answer);
            assert_eq!(house.entry().endpoint.as_ref(), "other");
        }
    });
}

#[test]
fn a_wrong_method_is_405_and_says_which_are_right() {
    local(async {
        for (path, method, allow) in [
            (PATHS[0], Method::GET, "POST"),
            (PATHS[1], Method::DELETE, "POST"),
            ("/v1/models", Method::POST, "GET"),
            ("/v1/models/chat", Method::PUT, "GET"),
        ] {
            let mut house = House::new(SITE, vllm()).await;
            let request = house.request(method, path, "");
            let answer = house.send(request).await;
            row(Case::MethodNotAllowed).check(path, &answer);
            assert_eq!(answer.header("allow"), Some(allow));
            house.entry();
        }
    });
}

#[test]
fn a_draining_gate_is_503() {
    local(async {
        refused(Case::Draining, SITE, vllm(), async |house, path| {
            house.shared.draining.store(true, std::sync::atomic::Ordering::Relaxed);
            let answer = post(house, path, CHAT).await;
            assert_eq!(answer.header("connection"), Some("close"));
            answer
        })
        .await;
    });
}

#[test]
fn a_compressed_body_is_415() {
    local(async {
        for encoding in ["gzip", "br", "zstd", "deflate", "identity, gzip", "nonsense"] {
            refused(Case::Encoding, SITE, vllm(), async |house, path| {
                let mut request = house.request(Method::POST, path, CHAT);
                request.headers_mut().insert("content-encoding", HeaderValue::from_static(encoding));
                house.send(request).await
            })
            .await;
        }
    });
}

fn small_bodies() -> String {
    SITE.replace("spec: {timeZone: Asia/Seoul}", "spec: {gateway: {maxBody: 1KiB}}")
}

/// A chat of exactly so many bytes.
fn chat_of(bytes: usize) -> String {
    let frame = CHAT.replace("hi", "").len();
    CHAT.replace("hi", &"x".repeat(bytes - frame))
}

#[test]
fn a_body_over_the_bound_is_413_whether_its_length_was_announced_or_not() {
    local(async {
        refused(Case::TooLarge, &small_bodies(), vllm(), async |house, path| post(house, path, &chat_of(1025)).await)
            .await;
        for path in PATHS {
            let mut house = House::new(&small_bodies(), vllm()).await;
            assert_eq!(house.post(path, &chat_of(1024)).await.status, 200, "at the bound");
            let body = chat_of(1025);
            let raw = format!(
                "POST {path} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                house.key,
                body.len()
            );
            let answer = house.raw(raw.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            assert_eq!(house.runs(), 1, "the second never went upstream");
        }
    });
}

#[test]
fn a_body_that_comes_too_slowly_is_408_and_not_to_be_repeated() {
    local(async {
        for path in PATHS {
            let mut house = House::new(SITE, vllm()).await;
            let mut raw = format!(
                "POST {path} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-length: 100\r\n\r\n{{",
                house.key
            );
            raw.push_str("\"model\"");
            let answer = house.raw_for(raw.as_bytes(), Duration::from_secs(30)).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(answer.contains("x-should-retry: false\r\n"), "{answer}");
            assert!(answer.contains("connection: close\r\n"), "{answer}");
            assert_eq!(house.entry().status, 408);
            house.assert_idle().await;
        }
    });
}

#[test]
fn json_with_two_readings_or_none_is_400() {
    local(async {
        for body in [
            "",
            "{",
            "[]",
            "\"chat\"",
            "{\"model\":\"chat\"}x",
            "{\"model\":\"chat\",\"model\":\"chat\"}",
            "{\"model\":\"chat\",\"mode\\u006c\":\"chat\"}",
            "{\"model\":\"chat\",}",
            "{\"model\":NaN}",
        ] {
            refused(Case::JsonParse, SITE, vllm(), async |house, path| post(house, path, body).await).await;
        }
        let deep = format!("{{\"model\":\"chat\",\"x\":{}{}}}", "[".repeat(64), "]".repeat(64));
        refused(Case::JsonParse, SITE, vllm(), async |house, path| post(house, path, &deep).await).await;
    });
}

#[test]
fn a_model_that_is_missing_no_string_or_said_differently_twice_is_400() {
    local(async {
        for (body, header, code) in [
            (r#"{"messages":[]}"#, None, "missing_required_parameter"),
            (r#"{"model":null,"messages":[]}"#, None, "missing_required_parameter"),
            (r#"{"model":["chat"],"messages":[]}"#, None, "invalid_value"),
            (r#"{"model":7,"messages":[]}"#, None, "invalid_value"),
            (CHAT, Some("other"), "invalid_value"),
        ] {
            for path in PATHS {
                let mut house = House::new(SITE, vllm()).await;
                let mut request = house.request(Method::POST, path, body);
                if let Some(header) = header {
                    request.headers_mut().insert("x-model", HeaderValue::from_static(header));
                }
                let answer = house.send(request).await;
                assert_eq!(answer.status, 400, "{answer:?}");
                if path == PATHS[0] {
                    assert_eq!((answer.code().as_str(), &answer.json()["error"]["param"]), (code, &"model".into()));
                }
                assert_eq!(house.runs(), 0);
            }
        }
    });
}

#[test]
fn the_model_may_come_from_the_header_alone_or_agree_with_it() {
    local(async {
        for body in [CHAT.replace(r#""model":"chat","#, ""), CHAT.to_owned()] {
            let mut house = House::new(SITE, vllm()).await;
            let mut request = house.request(Method::POST, PATHS[0], &body);
            request.headers_mut().insert("x-model", HeaderValue::from_static("chat"));
            let answer = house.send(request).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.json()["model"], "chat");
            assert_eq!(house.engines[0].runs()[0].json()["model"], "tiny-served");
            assert_eq!(house.engines[0].runs()[0].header("x-model"), None, "read by us and never forwarded");
        }
    });
}

#[test]
fn unknown_ungranted_and_denied_models_are_the_same_404() {
    local(async {
        let more = "---\nkind: Alias\nmetadata: {name: secret}\nspec: {targets: [{deployment: tiny-v1}]}\n\
                    ---\nkind: Alias\nmetadata: {name: denied}\nspec: {targets: [{deployment: tiny-v1}]}\n";
        let documents =
            SITE.replace("models: [{alias: chat}]", "models: [{alias: chat}, {class: interactive}]\n  deny: [denied]");
        let documents = format!("{documents}{more}");
        let mut bodies = Vec::new();
        for model in ["nothing", "secret", "denied", "Chat", "chat ", "chat\\u0000", "tiny-served", "tiny", "tiny-v1"] {
            let body = CHAT.replace("\"chat\"", &format!("\"{model}\""));
            refused(Case::ModelNotFound, &documents, vllm(), async |house, path| post(house, path, &body).await).await;
            let mut house = House::new(&documents, vllm()).await;
            bodies.push(house.post(PATHS[0], &body).await.body);
        }
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "{bodies:?}");
    });
}

#[test]
fn a_key_for_some_aliases_sees_no_others() {
    local(async {
        let more = "---\nkind: Alias\nmetadata: {name: second}\nspec: {targets: [{deployment: tiny-v1}]}\n";
        let documents = format!("{}{more}", SITE.replace("models: [{alias: chat}]", "models: [{all: true}]"));
        let mut house = House::new(&documents, vllm()).await;
        let key = house.make_key("red", |record| record.aliases = Some([AliasName::from("second")].into()));
        let request = house.request_with(&key, Method::POST, PATHS[0], CHAT);
        row(Case::ModelNotFound).check(PATHS[0], &house.send(request).await);
        let request = house.request_with(&key, Method::POST, PATHS[0], &CHAT.replace("\"chat\"", "\"second\""));
        assert_eq!(house.send(request).await.status, 200);
        let request = house.request_with(&key, Method::GET, "/v1/models", "");
        let listed = house.send(request).await.json();
        assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
        let request = house.request_with(&key, Method::GET, "/v1/models/chat", "");
        assert_eq!(house.send(request).await.status, 404);
    });
}

#[test]
fn missing_and_impossible_fields_are_400_with_their_name() {
    local(async {
        let body = r#"{"model":"chat","max_tokens":16}"#;
        refused(Case::MissingParameter, SITE, vllm(), async |house, path| post(house, path, body).await).await;
        let body = CHAT.replace("\"max_tokens\"", "\"n\":1000000000,\"max_tokens\"");
        refused(Case::InvalidValue, SITE, vllm(), async |house, path| post(house, path, &body).await).await;
    });
}

#[test]
fn an_endpoint_that_the_model_lacks_is_400_on_the_model() {
    local(async {
        for (path, body) in [
            ("/v1/embeddings", r#"{"model":"chat","input":"x"}"#),
            ("/v1/rerank", r#"{"model":"chat","query":"x","documents":["y"]}"#),
        ] {
            let mut house = House::new(SITE, vllm()).await;
            let answer = house.post(path, body).await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, "invalid_value"), "{answer:?}");
            assert_eq!(answer.json()["error"]["param"], "model");
            assert_eq!(house.runs(), 0);
        }
    });
}

#[test]
fn a_counted_prompt_over_the_context_or_the_callers_cap_is_400() {
    local(async {
        let long = CHAT.replace("hi", &"word ".repeat(9_000));
        refused_with(Case::ContextLength, SITE, vllm(), Setup::counting_words, async |house, path| {
            post(house, path, &long).await
        })
        .await;
        let capped = granting("maxInputTokens: 200");
        let over = CHAT.replace("hi", &"word ".repeat(201));
        refused_with(Case::ContextLength, &capped, vllm(), Setup::counting_words, async |house, path| {
            post(house, path, &over).await
        })
        .await;
    });
}

#[test]
fn the_field_at_fault_is_the_one_that_holds_the_prompt() {
    local(async {
        for (path, body, param) in [
            ("/v1/completions", r#"{"model":"chat","prompt":"PROMPT"}"#, "prompt"),
            ("/v1/responses", r#"{"model":"chat","input":"PROMPT"}"#, "input"),
        ] {
            let mut house = House::with(SITE, vllm(), Setup::counting_words()).await;
            let answer = house.post(path, &body.replace("PROMPT", &"word ".repeat(9_000))).await;
            assert_eq!(answer.code(), "context_length_exceeded", "{answer:?}");
            assert_eq!(answer.json()["error"]["param"], param);
        }
    });
}

#[test]
fn a_request_larger_than_the_whole_limit_is_429_for_good() {
    local(async {
        refused(Case::TooLargeForLimit, &granting("tpm: 100"), vllm(), async |house, path| {
            post(house, path, CHAT).await
        })
        .await;
    });
}

#[test]
fn limits_are_429_with_the_true_wait_and_what_is_left() {
    local(async {
        refused(Case::RateRequests, &granting("rpm: 1"), vllm(), async |house, path| {
            assert_eq!(post(house, path, CHAT).await.status, 200);
            tokio::time::sleep(Duration::from_secs(13)).await;
            let answer = post(house, path, CHAT).await;
            assert_eq!(answer.header("retry-after"), Some("47"), "the time left, not the window");
            assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("1"));
            assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
            assert!(answer.header("x-ratelimit-reset-requests").is_some());
            answer
        })
        .await;
        refused(Case::RateTokens, &granting("tpm: 200"), vllm(), async |house, path| {
            while post(house, path, CHAT).await.status == 200 {}
            let answer = post(house, path, CHAT).await;
            assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("200"));
            answer
        })
        .await;
        refused(Case::Quota, &granting("dailyTokens: 200"), vllm(), async |house, path| {
            while post(house, path, CHAT).await.status == 200 {}
            post(house, path, CHAT).await
        })
        .await;
        let slow = vec![Script::vllm("tiny-served").paced(Duration::from_secs(5), Duration::ZERO)];
        refused(Case::Concurrency, &granting("concurrency: 1"), slow, async |house, path| {
            let first = house.request(Method::POST, path, CHAT);
            let first = house.begin(first).await;
            house.engines[0].wait_for(|log| log.running == 1).await;
            let answer = post(house, path, CHAT).await;
            let entry = house.entry();
            assert_eq!(first.await.unwrap().status, 200);
            house.forget_entries();
            house.remember(entry);
            answer
        })
        .await;
    });
}

#[test]
fn a_caller_who_waits_as_told_is_admitted() {
    local(async {
        let mut house = House::new(&granting("rpm: 3"), vllm()).await;
        for _ in 0..3 {
            assert_eq!(house.chat().await.status, 200);
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
        let refused = house.chat().await;
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_secs(wait)).await;
        assert_eq!(house.chat().await.status, 200);
    });
}

#[test]
fn a_full_engine_is_503_with_a_wait_of_ours() {
    local(async {
        let full = vec![Script::vllm("tiny-served").failing(Fault::Refuse(Refusal::QueueFull))];
        refused(Case::Overloaded, SITE, full, async |house, path| post(house, path, CHAT).await).await;
    });
}

#[test]
fn no_replica_at_all_is_503_on_the_model() {
    local(async {
        refused(Case::ModelUnavailable, SITE, vllm(), async |house, path| {
            house.backends[0].replica().set_state(tidegate_routing::ReplicaState::Draining);
            post(house, path, CHAT).await
        })
        .await;
    });
}

#[test]
fn an_engine_that_cannot_be_reached_is_502() {
    local(async {
        refused(Case::UpstreamUnreachable, SITE, vllm(), async |house, path| {
            house.engines[0].stop_listening().await;
            post(house, path, CHAT).await
        })
        .await;
        let closing = vec![Script::vllm("tiny-served").failing(Fault::CloseBeforeHead)];
        refused(Case::UpstreamUnreachable, SITE, closing, async |house, path| post(house, path, CHAT).await).await;
    });
}

#[test]
fn an_engine_that_does_not_answer_in_time_is_504() {
    local(async {
        let frozen = vec![Script::vllm("tiny-served").failing(Fault::SlowFirstByte(Duration::from_secs(3_600)))];
        let documents = alias_with("timeouts: {firstByte: 3s, whole: 5s}");
        refused(Case::UpstreamTimeout, &documents, frozen.clone(), async |house, path| post(house, path, CHAT).await)
            .await;
        let streamed = CHAT.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
        refused(Case::UpstreamTimeout, &documents, frozen, async |house, path| post(house, path, &streamed).await)
            .await;
    });
}

#[test]
fn an_engines_refusal_of_the_request_keeps_its_status_and_loses_its_text() {
    local(async {
        let refusing = vec![Script::vllm("tiny-served").failing(Fault::Refuse(Refusal::BadTemperature))];
        refused(Case::UpstreamRejected, SITE, refusing, async |house, path| {
            let answer = post(house, path, CHAT).await;
            assert!(!answer.text().contains("non-negative"), "{answer:?}");
            answer
        })
        .await;
    });
}

#[test]
fn a_journal_that_cannot_be_written_is_503_and_nothing_goes_upstream() {
    local(async {
        refused(Case::Overloaded, SITE, vllm(), async |house, path| {
            tidegate_store::failpoint::set("journal.reserve.before_write", tidegate_store::failpoint::Action::Full, 1);
            let answer = post(house, path, CHAT).await;
            tidegate_store::failpoint::clear("journal.reserve.before_write");
            assert_eq!(house.engines[0].requests().len(), 0);
            answer
        })
        .await;
    });
}

#[test]
fn targets_and_headers_over_their_bounds_are_414_and_431() {
    local(async {
        let mut house = House::new(SITE, vllm()).await;
        let path = |len: usize| format!("/v1/{}", "a".repeat(len - 4));
        for (len, status) in [(8 * 1024, 404), (8 * 1024 + 1, 414)] {
            let answer = house.post(&path(len), CHAT).await;
            assert_eq!(answer.status, status, "{len}");
            if status == 414 {
                assert_eq!(answer.code(), "uri_too_long");
                assert_eq!(answer.header("connection"), Some("close"));
            }
        }
        let many = |count: usize| -> String { (0..count).map(|n| format!("x-{n}: y\r\n")).collect() };
        for (more, status) in
            [(many(60), "200"), (many(101), "431"), (format!("x: {}\r\n", "y".repeat(40 << 10)), "431")]
        {
            let raw = format!("GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\n{more}\r\n", house.key);
            let answer = house.raw(raw.as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    });
}

/// Everything is wrong with the first request; each step mends what it was refused for.
#[test]
fn refusals_come_in_the_stated_order() {
    local(async {
        let documents = SITE
            .replace("spec: {timeZone: Asia/Seoul}", "spec: {gateway: {maxBody: 20KiB}}")
            .replace("models: [{alias: chat}]", "models: [{alias: chat, rpm: 1, tpm: 300, maxInputTokens: 200}]");
        let mut house = House::with(&documents, vllm(), Setup::counting_words()).await;
        let admin = house.make_key("red", |record| record.admin = true);
        house.shared.draining.store(true, std::sync::atomic::Ordering::Relaxed);

        let mut ask = Ask {
            method: Method::GET,
            path: "/v1/nothing",
            key: "sk-nobody".to_owned(),
            headers: vec![("content-encoding", "gzip"), ("x-model", "other"), ("x-tidegate-team", "blue")],
            body: format!("{{{}", "x".repeat(21_000)),
        };
        assert_eq!(ask.status(&mut house).await, (401, "invalid_api_key".into()));
        ask.key = admin;
        assert_eq!(ask.status(&mut house).await, (404, "null".into()));
        ask.path = "/v1/chat/completions";
        assert_eq!(ask.status(&mut house).await, (405, "method_not_allowed".into()));
        ask.method = Method::POST;
        assert_eq!(ask.status(&mut house).await, (403, "insufficient_permissions".into()));
        ask.key = house.key.clone();
        assert_eq!(ask.status(&mut house).await, (403, "insufficient_permissions".into()), "the team");
        ask.headers.pop();
        assert_eq!(ask.status(&mut house).await, (503, "server_is_overloaded".into()));
        house.shared.draining.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(ask.status(&mut house).await, (415, "unsupported_encoding".into()));
        ask.headers.remove(0);
        assert_eq!(ask.status(&mut house).await, (413, "request_too_large".into()));
        ask.body = "{x".into();
        assert_eq!(ask.status(&mut house).await, (400, "json_parse_error".into()));
        let prompt = "word ".repeat(400);
        ask.body = format!(r#"{{"n":0,"max_tokens":400,"prompt":"{prompt}"}}"#).replace("\"n\"", "\"model\":7,\"n\"");
        assert_eq!(ask.status(&mut house).await, (400, "invalid_value".into()), "model is no string");
        ask.body = ask.body.replace("\"model\":7", "\"model\":\"nothing\"");
        assert_eq!(ask.status(&mut house).await, (400, "invalid_value".into()), "x-model says another");
        ask.headers.clear();
        assert_eq!(ask.status(&mut house).await, (404, "model_not_found".into()));
        ask.body = ask.body.replace("nothing", "chat");
        assert_eq!(ask.status(&mut house).await, (400, "invalid_value".into()), "n");
        ask.body = ask.body.replace("\"n\":0", "\"n\":1");
        assert_eq!(ask.status(&mut house).await, (400, "missing_required_parameter".into()), "messages");
        ask.body = ask.body.replace(
            &format!("\"prompt\":\"{prompt}\""),
            &format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}]"),
        );
        assert_eq!(ask.status(&mut house).await, (400, "context_length_exceeded".into()), "the input cap");
        ask.body = ask.body.replace(&prompt, "word");
        assert_eq!(ask.status(&mut house).await, (429, "rate_limit_exceeded".into()), "larger than the whole limit");
        assert_eq!(house.last().fault, Some(tidegate_core::FaultKind::RateLimit));
        ask.body = ask.body.replace("\"max_tokens\":400", "\"max_tokens\":4");
        house.engines[0].set(Script::vllm("tiny-served").failing(Fault::Refuse(Refusal::QueueFull)));
        assert_eq!(ask.status(&mut house).await, (503, "server_is_overloaded".into()));
        assert_eq!(ask.status(&mut house).await, (429, "rate_limit_exceeded".into()), "a failed request counts");
    });
}

struct Ask {
    method: Method,
    path: &'static str,
    key: String,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Ask {
    async fn status(&self, house: &mut House) -> (u16, String) {
        let mut request: http::Request<Full<Bytes>> =
            house.request_with(&self.key, self.method.clone(), self.path, &self.body);
        for (name, value) in &self.headers {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        let answer = house.send(request).await;
        (answer.status.as_u16(), answer.code())
    }
}
