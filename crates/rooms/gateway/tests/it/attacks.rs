//! Attack cases A01 to A12, B14, B15, B17, C01 to C08, D01 to D07 and E01 to E04, by their numbers. HTTP/2 (A13) has a
//! file of its own.
//!
//! After every refusal the same is checked: no engine saw it, no limit moved, nothing is held, and the next honest
//! request is answered.

use std::time::Duration;

use http::{HeaderValue, Method};
use serde_json::{Value, json};
use tidegate_gateway::HEADERS_MAX;
use tidegate_gateway::server::HEADER_DEADLINE;
use tidegate_testkit::fake::{Fault, Refusal, Script};
use tidegate_wire::Endpoint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::house::{CHAT, CHAT_STREAM, House, SITE, alias_with, granting, local};

const CHATS: &str = "/v1/chat/completions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

/// A house whose limits show if anything was taken.
async fn house() -> House {
    House::new(&granting("rpm: 100k, tpm: 100M, concurrency: 1000"), vec![good()]).await
}

/// What came back over one connection.
struct Heard {
    text: String,
    closed: bool,
}

impl Heard {
    fn statuses(&self) -> Vec<u16> {
        let lines = self.text.split("HTTP/1.1 ").skip(1);
        lines.map(|line| line[..3].parse().unwrap_or_else(|_| panic!("{}", self.text))).collect()
    }
}

async fn hear(house: &mut House, bytes: &[u8]) -> Heard {
    let mut stream = house.open(bytes).await;
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    let closed = loop {
        match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) => break true,
            Ok(Ok(len)) => all.extend_from_slice(&buffer[..len]),
            Err(_) => break false,
        }
    };
    Heard { text: String::from_utf8_lossy(&all).into_owned(), closed }
}

/// Requests and tokens that are left of the limits, as an honest request hears it; it costs one request.
async fn left(house: &mut House) -> (i64, i64) {
    let answer = house.chat().await;
    assert_eq!(answer.status, 200, "an honest request is answered: {answer:?}");
    let number = |name: &str| answer.header(name).unwrap().parse::<i64>().unwrap();
    (number("x-ratelimit-remaining-requests"), number("x-ratelimit-remaining-tokens"))
}

/// U0 and L0: no engine saw anything and no limit moved while `attack` ran.
async fn without_a_trace(house: &mut House, attack: impl AsyncFnOnce(&mut House)) {
    house.forget_entries();
    let before = left(house).await;
    let seen = house.engines[0].requests().len();
    let charged = house.shared.metrics.charged_tokens.get();
    attack(house).await;
    assert_eq!(house.engines[0].requests().len(), seen, "U0");
    assert_eq!(house.shared.metrics.charged_tokens.get(), charged, "L0");
    assert!(house.entries().iter().skip(1).all(|entry| entry.tokens() == 0), "L0");
    let after = left(house).await;
    // The first honest request is settled by now: 119 of what it had reserved has come back.
    assert_eq!(after.0, before.0 - 1, "L0: requests");
    assert!(after.1 > before.1 - 200, "L0: tokens {before:?} {after:?}");
    house.forget_entries();
    house.assert_idle().await;
}

// A: framing and routing, from files that hold the bytes.

fn raw_files() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/raw");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "raw"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    assert!(files.len() >= 60, "{}", files.len());
    files
}

fn with_key(bytes: &[u8], key: &str) -> Vec<u8> {
    const MARK: &[u8] = b"<KEY>";
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(key.as_bytes());
        rest = &rest[at + MARK.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[test]
fn a01_to_a12_every_recorded_request_has_one_reading_or_none() {
    local(async {
        for (name, bytes) in raw_files() {
            let mut house = house().await;
            let bytes = with_key(&bytes, &house.key);
            let heard = hear(&mut house, &bytes).await;
            let (statuses, text) = (heard.statuses(), &heard.text);
            let runs = house.runs();
            match &name[..3] {
                "a01" | "a02" => {
                    assert!(matches!(statuses[..], [400] | [200]), "{name}: {text}");
                    assert!(heard.closed && runs <= 1, "{name}: {text}");
                }
                "a03" | "a04" | "a05" | "a06" | "a07" => {
                    assert!(matches!(statuses[..], [400] | []), "{name}: {text}");
                    assert!(heard.closed && runs == 0, "{name}: {text}");
                    assert_eq!(house.entries(), [], "{name}");
                    assert_eq!(house.shared.metrics.malformed.get() > 0, text.contains("{\"error\""), "{name}");
                }
                "a08" => {
                    let status = if name.ends_with("without-key") { 401 } else { 404 };
                    assert!(statuses[..] == [status] || (statuses[..] == [400] && heard.closed), "{name}: {text}");
                    assert_eq!(house.engines[0].requests().len(), 0, "{name}");
                }
                "a09" => {
                    assert_eq!(statuses, [200, 401], "{name}: each pipelined request is authenticated: {text}");
                    let sent = &house.engines[0].runs()[0];
                    assert!(sent.header("upgrade").is_none() && sent.header("http2-settings").is_none(), "{name}");
                }
                "a10" => {
                    assert_eq!((&statuses[..], runs), (&[200][..], 1), "{name}: {text}");
                    let sent = format!("{:?}", house.engines[0].runs()[0]);
                    assert!(!sent.contains("10.0.0.1") && !sent.contains("Bearer other"), "{name}: {sent}");
                }
                "a11" => {
                    let status = if name == "a11-expect" { 401 } else { 413 };
                    assert_eq!((&statuses[..], runs), (&[status][..], 0), "{name}: before the body: {text}");
                }
                "a12" => {
                    assert_eq!((&statuses[..], runs), (&[200][..], 1), "{name}: {text}");
                    let sent = house.engines[0].runs()[0].clone();
                    let mut names: Vec<_> = sent.headers.iter().map(|(name, _)| name.as_str()).collect();
                    names.sort_unstable();
                    let ours = ["accept", "content-length", "content-type", "host", "x-request-id"];
                    assert!(names.iter().all(|name| ours.contains(name)), "{names:?}");
                }
                other => panic!("{other}"),
            }
            assert_eq!(house.chat().await.status, 200, "{name}: the next honest request");
            house.assert_idle().await;
        }
    });
}

#[test]
fn refused_framing_changes_nothing() {
    local(async {
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            for (name, bytes) in raw_files() {
                if ["a03", "a04", "a05", "a06", "a07", "a08", "a11"].contains(&&name[..3]) {
                    let bytes = with_key(&bytes, &house.key);
                    hear(house, &bytes).await;
                }
            }
        })
        .await;
    });
}

// B: authentication.

#[test]
fn b14_texts_that_are_no_keys_are_401_at_once() {
    local(async {
        let mut house = house().await;
        let long = "k".repeat(20 << 10);
        let mut wrong = house.key.clone();
        let last = wrong.pop().unwrap();
        wrong.push(if last == 'a' { 'b' } else { 'a' });
        let texts =
            ["' OR '1'='1", "sk-' UNION SELECT 1--", "sk-", " ", "\u{1}", &long, &wrong, "tg_test_", "null", "Bearer"];
        without_a_trace(&mut house, async |house| {
            for text in texts {
                for name in ["x-api-key", "api-key"] {
                    let raw = format!(
                        "POST {CHATS} HTTP/1.1\r\nhost: gate\r\n{name}: {text}\r\ncontent-length: {}\r\n\r\n{CHAT}",
                        CHAT.len()
                    );
                    let heard = hear(house, raw.as_bytes()).await;
                    let status = heard.statuses();
                    // Control characters are no header value at all.
                    assert!(matches!(status[..], [401] | [400] | [429]), "{text:?}: {}", heard.text);
                }
            }
            let huge = format!("GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\n\r\n", "k".repeat(1 << 20));
            let heard = hear_all(house, huge.as_bytes()).await;
            assert_eq!(heard.statuses(), [431]);
        })
        .await;
    });
}

/// As [`hear`], for more bytes than the connection holds.
async fn hear_all(house: &mut House, bytes: &[u8]) -> Heard {
    let stream = house.connect();
    let (mut reading, mut writing) = tokio::io::split(stream);
    let write = async {
        // The gate may close before it has read all.
        let _ = writing.write_all(bytes).await;
    };
    let mut all = Vec::new();
    let read = async {
        let mut buffer = [0; 4096];
        loop {
            match tokio::time::timeout(Duration::from_secs(1), reading.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(len)) => all.extend_from_slice(&buffer[..len]),
                Err(_) => return false,
            }
        }
    };
    let ((), closed) = tokio::join!(write, read);
    Heard { text: String::from_utf8_lossy(&all).into_owned(), closed }
}

#[test]
fn b15_each_accepted_form_of_a_key_is_one_policy_and_all_others_are_401() {
    local(async {
        let mut house = house().await;
        let second = house.make_key("red", |_| {});
        let key = house.key.clone();
        let basic = "Basic c2s6eA==".to_owned();
        let bearer = format!("Bearer {key}");
        let cookie = format!("a=b; key={key}");
        let accepted: Vec<Vec<(&'static str, String)>> = vec![
            vec![("authorization", bearer.clone())],
            vec![("authorization", format!("bearer {key}"))],
            vec![("x-api-key", key.clone())],
            vec![("api-key", key.clone())],
            vec![("authorization", bearer.clone()), ("x-api-key", key.clone()), ("api-key", key.clone())],
            vec![("x-api-key", key.clone()), ("cookie", "theme=dark".to_owned())],
        ];
        let refused: Vec<Vec<(&'static str, String)>> = vec![
            vec![],
            vec![("authorization", basic)],
            vec![("authorization", key.clone())],
            vec![("cookie", cookie.clone())],
            vec![("x-api-key", key.clone()), ("cookie", cookie)],
            vec![("authorization", bearer), ("x-api-key", second)],
            vec![("x-api-key", key.clone()), ("api-key", "sk-other".to_owned())],
            vec![("x-api-key", format!("{key} {key}"))],
        ];
        for (forms, status) in [(accepted, 200), (refused, 401)] {
            for headers in forms {
                let mut request = house.request(Method::POST, CHATS, CHAT);
                request.headers_mut().remove("authorization");
                for (name, value) in &headers {
                    request.headers_mut().append(*name, HeaderValue::from_str(value).unwrap());
                }
                let answer = house.send(request).await;
                assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
                assert!(!answer.text().contains(&key));
            }
        }
        for query in ["key", "api_key", "api-key", "access_token", "token", "k%65y", "KEY"] {
            let request = house.request(Method::POST, &format!("{CHATS}?{query}={key}"), CHAT);
            assert_eq!(house.send(request).await.status, 401, "{query}, even beside a good header");
        }
        let request = house.request(Method::POST, &format!("{CHATS}?api-version=2026-01-01"), CHAT);
        assert_eq!(house.send(request).await.status, 200);
    });
}

#[test]
fn b17_every_route_and_method_without_a_good_key_is_401() {
    local(async {
        let mut paths: Vec<&str> = Endpoint::ALL.iter().map(|endpoint| endpoint.path()).collect();
        paths.extend(["/", "/v1", "/admin/keys", "/metrics", "/livez", "/readyz", "/health", "/v1/nothing", "/%00"]);
        let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"];
        for path in paths {
            // A house for each: failures from one address are throttled.
            let mut house = house().await;
            let expired = house.make_key("red", |record| record.expires = Some(tidegate_core::Unix::from_ms(1)));
            let mut refusals = 0;
            for method in methods {
                for key in [None, Some("sk-wrong"), Some(expired.as_str())] {
                    let mut request = house.request(method.parse().unwrap(), path, "{}");
                    match key {
                        None => drop(request.headers_mut().remove("authorization")),
                        Some(key) => {
                            request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
                        }
                    }
                    let answer = house.send(request).await;
                    refusals += 1;
                    let throttled = refusals > tidegate_identity::throttle::FAILURES_BURST;
                    let status = if throttled { 429 } else { 401 };
                    assert_eq!(answer.status, status, "{method} {path} {key:?}");
                    assert!(method == "HEAD" || !answer.json()["error"]["message"].is_null());
                }
            }
            assert_eq!((house.engines[0].requests().len(), house.entries().len()), (0, 0), "{path}");
        }
    });
}

#[test]
fn b19_guessing_is_throttled_and_does_not_lock_out_the_honest_behind_the_same_address() {
    local(async {
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            let mut throttled = 0;
            for n in 0..1_000 {
                let request = house.request_with(&format!("sk-guess-{n}"), Method::POST, CHATS, CHAT);
                throttled += usize::from(house.send(request).await.status == 429);
            }
            assert!(throttled >= 970, "{throttled}");
        })
        .await;
    });
}

// C: authorisation and parameters.

#[test]
fn c01_models_that_are_not_the_callers_are_one_answer() {
    local(async {
        let mut house = house().await;
        let mut bodies = Vec::new();
        let long = "m".repeat(1 << 20);
        for name in ["nothing", "CHAT", "chat ", " chat", "chat\\u0000", "chat/lora", "../chat", "tiny-served", &long] {
            let answer = house.post(CHATS, &CHAT.replace("\"chat\"", &format!("\"{name}\""))).await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, "model_not_found"));
            bodies.push(answer.body);
        }
        assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]));
        for body in [r#"{"model":"x","model":"chat","messages":[]}"#, r#"{"model":["chat"],"messages":[]}"#] {
            assert_eq!(house.post(CHATS, body).await.status, 400);
        }
        // Case or padding do not make the alias: an escape does, because it is the same text.
        let answer = house.post(CHATS, &CHAT.replace("\"chat\"", "\"ch\\u0061t\"")).await;
        assert_eq!((answer.status.as_u16(), house.runs()), (200, 1));
    });
}

/// The time class, without a clock: one thread, and nothing to wait for but the turns of its event loop.
#[test]
fn c01_absent_and_forbidden_models_take_the_same_turns_and_long_names_no_more_than_their_bytes() {
    local(async {
        let hidden = "---\nkind: Alias\nmetadata: {name: hidden}\nspec: {targets: [{deployment: tiny-v1}]}\n";
        let documents = granting("rpm: 100k, tpm: 100M, concurrency: 1000") + hidden;
        let mut house = House::new(&documents, vec![good()]).await;
        let mut turns_for = async |name: &str| {
            let body = CHAT.replace("\"chat\"", &format!("\"{name}\""));
            let requests = (0..10).map(|_| house.request(Method::POST, CHATS, &body)).collect();
            let answers = house.in_turns(requests).await.unwrap();
            for (_, answer) in &answers {
                assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, "model_not_found"));
            }
            let mut turns: Vec<_> = answers.iter().map(|(turns, _)| *turns).collect();
            turns.sort_unstable();
            turns[turns.len() / 2]
        };
        let forbidden = turns_for("hidden").await;
        for absent in ["absent", "HIDDEN", "hidde ", "hiddem"] {
            assert_eq!(turns_for(absent).await, forbidden, "{absent}");
        }
        let mut last = turns_for(&"m".repeat(1 << 17)).await;
        for length in [1 << 18, 1 << 19, 1 << 20] {
            let needed = turns_for(&"m".repeat(length)).await;
            assert!(needed <= 2 * last, "{length} bytes: {needed} turns, half of them {last}");
            last = needed;
        }
        assert!(last > forbidden, "turns count bytes");
    });
}

#[test]
fn c02_values_that_would_hurt_an_engine_are_400_with_their_name() {
    local(async {
        let stops = serde_json::to_string(&vec!["s"; 10_000]).unwrap();
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            for (field, value) in [
                ("n", "1000000000"),
                ("n", "0"),
                ("n", "-1"),
                ("best_of", "1000000"),
                ("logprobs", "1000000"),
                ("top_logprobs", "1000"),
                ("prompt_logprobs", "-1"),
                ("prompt_logprobs", "154880"),
                ("top_k", "1000000000"),
                ("max_tokens", "-1"),
                ("max_tokens", "0"),
                ("max_tokens", "9223372036854775808"),
                ("max_tokens", "1e400"),
                ("max_tokens", "1.5"),
                ("max_tokens", "\"16\""),
                ("max_completion_tokens", "-1"),
                ("temperature", "1e400"),
                ("temperature", "\"hot\""),
                ("stop", stops.as_str()),
                ("logit_bias", "[]"),
                ("stream", "1"),
                ("background", "true"),
            ] {
                let body =
                    format!(r#"{{"model":"chat","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}"#);
                let answer = house.post(CHATS, &body).await;
                let error = answer.json()["error"].clone();
                let shown = &value[..value.len().min(20)];
                assert_eq!(
                    (answer.status.as_u16(), &error["code"]),
                    (400, &json!("invalid_value")),
                    "{field} {shown}: {answer:?}"
                );
                assert_eq!(error["param"], field, "{shown}");
            }
            let nan = CHAT.replace("16", "NaN");
            assert_eq!(house.post(CHATS, &nan).await.code(), "json_parse_error");
        })
        .await;
    });
}

#[test]
fn c05_media_come_as_data_or_from_a_listed_host_only() {
    local(async {
        let ask = |url: &str| {
            json!({"model": "chat", "max_tokens": 5, "messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url}}]}]})
            .to_string()
        };
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            for url in [
                "http://169.254.169.254/latest",
                "http://localhost/x",
                "file:///etc/passwd",
                "http://2852039166/",
                "http://[::ffff:169.254.169.254]/",
                "https://rebind.example/",
                "//169.254.169.254/",
                "gopher://x",
                "/etc/passwd",
            ] {
                let answer = house.post(CHATS, &ask(url)).await;
                assert_eq!(
                    (answer.status.as_u16(), answer.code().as_str()),
                    (400, "invalid_value"),
                    "{url}: {answer:?}"
                );
            }
            let video = ask("http://localhost/v").replace("image_url", "video_url");
            assert_eq!(house.post(CHATS, &video).await.status, 400);
        })
        .await;
        assert_eq!(house.post(CHATS, &ask("data:image/png;base64,AAAA")).await.status, 200);
        let listed = alias_with("mediaHosts: [images.example]");
        let mut house = House::new(&listed, vec![good()]).await;
        assert_eq!(house.post(CHATS, &ask("https://images.example/a.png")).await.status, 200);
        for url in [
            "https://images.example.evil/",
            "https://evil/images.example",
            "https://images.example:8443/",
            "https://images.example@evil/",
        ] {
            assert_eq!(house.post(CHATS, &ask(url)).await.status, 400, "{url}");
        }
    });
}

#[test]
fn c06_and_c08_fields_that_steer_engines_are_dropped_and_the_rest_passes() {
    local(async {
        let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi","priority":1}],"max_tokens":16,
            "api_base":"http://x","base_url":"http://x","extra_body":{"a":1},"chat_template":"{{x}}","lora_path":"/x",
            "kv_transfer_params":{"do_remote_decode":true},"priority":-100,"cache_salt":"s","request_id":"r",
            "custom_logit_processor":"gASV","rid":"r","data_parallel_rank":3,"bootstrap_host":"x","service_tier":"priority",
            "prio\u0072ity":7,"unknown_field":{"keep":[1.50,"é"]},"seed":7}"#;
        let mut house = house().await;
        assert_eq!(house.post(CHATS, &body.replace("\"prio\\u0072ity\":7,", "")).await.status, 200);
        let sent: Value = house.engines[0].runs()[0].json();
        let mut members: Vec<_> = sent.as_object().unwrap().keys().map(String::as_str).collect();
        members.sort_unstable();
        assert_eq!(members, ["max_tokens", "messages", "model", "seed", "unknown_field"]);
        let text = String::from_utf8(house.engines[0].runs()[0].body.to_vec()).unwrap();
        assert!(text.contains(r#""unknown_field":{"keep":[1.50,"é"]}"#), "{text}");
        assert!(text.contains(r#""content":"hi","priority":1"#), "deeper than the top nothing is touched");
        let twice = house.post(CHATS, body).await;
        assert_eq!(twice.code(), "json_parse_error", "the same key under an escape is twice the same key");
        let escaped = CHAT.replace("\"max_tokens\"", "\"prio\\u0072ity\":7,\"max_tokens\"");
        assert_eq!(house.post(CHATS, &escaped).await.status, 200);
        assert!(house.engines[0].runs()[1].json().get("priority").is_none());
        let mut request = house.request(Method::POST, CHATS, CHAT);
        request.headers_mut().insert("x-priority", HeaderValue::from_static("0"));
        assert_eq!(house.send(request).await.status, 200);
        assert_eq!(house.engines[0].runs()[2].header("x-priority"), None);
    });
}

#[test]
fn c07_routes_of_engines_and_other_products_do_not_exist() {
    local(async {
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            for path in [
                "/load_lora_adapter_from_tensors",
                "/mcp-rest/test/connection",
                "/prompts/test",
                "/metrics",
                "/tokenize",
                "/v1/load_lora_adapter",
                "/v1/unload_lora_adapter",
                "/sleep",
                "/wake_up",
                "/pause",
                "/reset_prefix_cache",
                "/pd_register",
                "/collective_rpc",
                "/slots",
                "/props",
                "/server_info",
                "/invocations",
                "/config/update",
                "/key/generate",
                "/chat/completions",
                "/v1/audio/speech",
                "/v1/files",
            ] {
                for method in [Method::POST, Method::GET] {
                    let request = house.request(method, path, "{}");
                    let answer = house.send(request).await;
                    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (404, "null"), "{path}");
                }
            }
        })
        .await;
    });
}

// D: exhaustion. D01 is in `refusals`, D02 too; D06 is in `accounting`.

#[test]
fn d01_a_body_that_is_announced_too_large_is_refused_before_it_is_read() {
    local(async {
        let mut house = house().await;
        without_a_trace(&mut house, async |house| {
            let raw = format!(
                "POST {CHATS} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-length: {}\r\n\r\n{{",
                house.key,
                33 << 20
            );
            let heard = hear(house, raw.as_bytes()).await;
            assert_eq!((heard.statuses(), heard.closed), (vec![413], true), "{}", heard.text);
        })
        .await;
    });
}

#[test]
fn d03_slow_heads_are_closed_at_their_deadline_however_they_drip() {
    local(async {
        for drip in ["", "G", "GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-a: "] {
            let mut house = house().await;
            let mut stream = house.connect();
            let start = Instant::now();
            stream.write_all(drip.as_bytes()).await.unwrap();
            let mut buffer = [0; 1024];
            loop {
                match tokio::time::timeout(Duration::from_secs(1), stream.read(&mut buffer)).await {
                    Ok(Ok(0) | Err(_)) => break,
                    Ok(Ok(_)) => {}
                    // A byte each second.
                    Err(_) if !drip.is_empty() => drop(stream.write_all(b"x").await),
                    Err(_) => assert!(start.elapsed() < Duration::from_secs(60), "never closed"),
                }
            }
            let took = start.elapsed();
            assert!(
                took >= HEADER_DEADLINE - Duration::from_secs(1) && took < HEADER_DEADLINE + Duration::from_secs(2),
                "{drip:?}: {took:?}"
            );
            assert_eq!(house.shared.metrics.connections.get(), 0);
            assert_eq!(house.chat().await.status, 200);
        }
    });
}

#[test]
fn d03_five_thousand_slow_heads_disturb_nobody() {
    local(async {
        let mut house = house().await;
        let mut slow = Vec::new();
        for _ in 0..5_000 {
            let (ours, theirs) = tokio::io::duplex(1024);
            house.gate.serve(theirs, "192.0.2.9:1".parse().unwrap(), false);
            slow.push(ours);
        }
        for stream in &mut slow {
            stream.write_all(b"POST ").await.unwrap();
        }
        assert_eq!(house.chat().await.status, 200);
        tokio::time::sleep(HEADER_DEADLINE + Duration::from_secs(1)).await;
        assert_eq!(house.shared.metrics.connections.get(), 0, "all are closed");
        assert_eq!(house.chat().await.status, 200);
    });
}

#[test]
fn d05_an_idle_connection_is_closed_and_streams_of_one_key_are_capped() {
    local(async {
        let mut house = house().await;
        let raw = format!("GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\n\r\n", house.key);
        let mut stream = house.open(raw.as_bytes()).await;
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        let start = Instant::now();
        while stream.read(&mut buffer).await.unwrap_or(0) > 0 {}
        assert!(start.elapsed() <= HEADER_DEADLINE + Duration::from_secs(1), "{:?}", start.elapsed());

        let endless = good().answering(100_000).paced(Duration::ZERO, Duration::from_secs(1));
        let documents =
            SITE.replace("models: [{alias: chat}]", "models: [{alias: chat}]\n  perCaller: {concurrency: 10}");
        let mut house = House::new(&documents, vec![endless]).await;
        let other = house.make_key("red", |_| {});
        let mut streams = Vec::new();
        for _ in 0..10 {
            let request = house.request(Method::POST, CHATS, CHAT_STREAM);
            streams.push(house.start(request).await);
        }
        let request = house.request(Method::POST, CHATS, CHAT_STREAM);
        assert_eq!(house.start(request).await.status(), 429);
        let request = house.request_with(&other, Method::POST, CHATS, CHAT_STREAM);
        assert_eq!(house.start(request).await.status(), 200, "another identity is not disturbed");
    });
}

#[test]
fn d07_heads_over_their_bounds_are_431_or_414() {
    local(async {
        let mut house = house().await;
        let key = house.key.clone();
        let head = |more: &str| format!("GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-api-key: {key}\r\n{more}\r\n");
        let headers = |count: usize| -> String { (0..count).map(|n| format!("x-{n}: y\r\n")).collect() };
        let at_bound = hear(&mut house, head(&headers(HEADERS_MAX - 2)).as_bytes()).await;
        assert_eq!(at_bound.statuses(), [200], "{}", at_bound.text);
        without_a_trace(&mut house, async |house| {
            for (raw, statuses) in [
                (head(&headers(HEADERS_MAX - 1)), &[431][..]),
                (head(&headers(101)), &[431]),
                (head(&format!("x: {}\r\n", "y".repeat(40 << 10))), &[431]),
                (head(&format!("x: {}\r\n", "y".repeat(512 << 10))), &[431]),
                (head("").replace("/v1/models", &format!("/{}", "a".repeat(70 << 10))), &[414, 431]),
                (head("").replace("/v1/models", &format!("/{}", "a".repeat(9 << 10))), &[414]),
            ] {
                let heard = hear_all(house, raw.as_bytes()).await;
                let status = heard.statuses();
                assert!(status.len() == 1 && statuses.contains(&status[0]), "{}: {status:?}", raw.len());
                assert!(heard.closed);
            }
        })
        .await;
    });
}

#[test]
fn d08_no_text_of_a_caller_becomes_a_label() {
    local(async {
        let mut house = house().await;
        house.chat().await;
        let series = |house: &House| house.metrics().lines().filter(|line| !line.starts_with('#')).count();
        let before = series(&house);
        for n in 0..300 {
            let mut request = house.request(Method::POST, &format!("/v1/x{n}"), "{}");
            request.headers_mut().insert("user-agent", format!("agent-{n}").parse().unwrap());
            house.send(request).await;
            house.post(CHATS, &CHAT.replace("\"chat\"", &format!("\"m{n}\""))).await;
            house.post(CHATS, &CHAT.replace("\"max_tokens\"", &format!("\"user\":\"u{n}\",\"max_tokens\""))).await;
        }
        assert_eq!(series(&house), before);
        assert!(!house.metrics().contains("m299") && !house.metrics().contains("x299"));
    });
}

// E: leaks.

const CANARY_PROMPT: &str = "canary-prompt-7f3a";
const CANARY_ANSWER: &str = "canary-answer-91bc";

#[test]
fn e01_and_e04_prompts_answers_keys_and_engine_texts_stay_inside() {
    let logs = crate::house::Logs::start();
    local(async {
        let mut script = good();
        script.tokens = vec![CANARY_ANSWER.into(), " more".into()];
        let mut house = House::new(SITE, vec![script]).await;
        let secret = house.key.clone();
        let body = |stream: bool| {
            CHAT.replace("hi", CANARY_PROMPT).replace("\"max_tokens\"", &format!("\"stream\":{stream},\"max_tokens\""))
        };
        let mut answers = Vec::new();
        for stream in [false, true] {
            let answer = house.post(CHATS, &body(stream)).await;
            assert!(answer.text().contains(CANARY_ANSWER));
        }
        let faults = Refusal::ALL.map(Fault::Refuse).into_iter();
        for fault in
            faults.chain([Fault::ErrorEvent(1), Fault::Cut(1), Fault::NotJson, Fault::ContentType("text/html")])
        {
            house.engines[0].change(|script| script.fault = Some(fault.clone()));
            for stream in [false, true] {
                let answer = house.post(CHATS, &body(stream)).await;
                let text = answer.text().replace(CANARY_ANSWER, "");
                for leak in [
                    CANARY_PROMPT,
                    "traceback",
                    "stack trace",
                    "EngineCore",
                    "validation error",
                    "127.0.0.1",
                    "tiny-served",
                    "<html",
                    &secret,
                ] {
                    assert!(!text.contains(leak), "{fault:?}: {leak} in {text}");
                }
                answers.push(answer.body);
            }
            house.backends[0].replica().set_state(tidegate_routing::ReplicaState::Failing);
            house.backends[0].replica().set_state(tidegate_routing::ReplicaState::Serving);
        }
        // Refused early, with the canary in every place a caller can put one.
        for (path, text) in [
            ("/v1/canary-prompt-7f3a", "{}"),
            (CHATS, "{\"model\":\"canary-prompt-7f3a\"}"),
            (CHATS, "canary-prompt-7f3a"),
        ] {
            house.post(path, text).await;
        }
        let request = house.request_with(&format!("{secret}x"), Method::POST, CHATS, "{}");
        house.send(request).await;
        house.gate.flush();
        let kept = [house.metrics(), format!("{:?}", house.entries()), house.journal_text(), logs.text()];
        for (place, text) in ["metrics", "ledger", "journal", "logs"].iter().zip(&kept) {
            for canary in [CANARY_PROMPT, CANARY_ANSWER, secret.as_str()] {
                assert!(!text.contains(canary), "{canary} in {place}: {text}");
            }
        }
        assert!(kept[3].contains("failed"), "the log was listened to: {}", kept[3]);
    });
}

#[test]
fn e03_ids_and_names_of_callers_write_no_lines_of_their_own() {
    let logs = crate::house::Logs::start();
    local(async {
        let mut house = House::new(SITE, vec![good().failing(Fault::Refuse(Refusal::EngineDead))]).await;
        let long = "i".repeat(65);
        let most = "i".repeat(64);
        for (id, taken) in [
            ("req-1_A", true),
            (most.as_str(), true),
            (&long, false),
            ("a b", false),
            ("{\"a\":1}", false),
            ("a;b", false),
            ("\u{7f}", false),
        ] {
            let raw = format!(
                "POST {CHATS} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\nx-request-id: {id}\r\ncontent-length: {}\r\n\r\n{CHAT}",
                house.key,
                CHAT.len()
            );
            let heard = hear(&mut house, raw.as_bytes()).await;
            if heard.statuses() != [400] {
                assert_eq!(heard.text.contains(&format!("x-request-id: {id}\r\n")), taken, "{id:?}: {}", heard.text);
            }
        }
        for name in ["\\r\\n{\\\"level\\\":\\\"ERROR\\\"}", "\\u001b]0;x", "\\u2028", "\\u0000"] {
            house.post(CHATS, &CHAT.replace("\"chat\"", &format!("\"{name}\""))).await;
            let bad = format!(
                r#"{{"model":"chat","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"http://{name}/"}}}}]}}]}}"#
            );
            house.post(CHATS, &bad).await;
        }
        let text = logs.text();
        assert!(text.lines().count() > 3, "{text}");
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not one JSON line: {line}"));
            assert!(value["level"].is_string());
        }
        assert!(!text.contains('\u{1b}') && !text.contains('\u{2028}'), "{text}");
    });
}
