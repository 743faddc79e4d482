//! Engines that fail in every known way: what is tried again and where, what the caller reads, what the breaker hears,
//! and what is charged.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use tidegate_core::{FaultKind, Monotonic, Outcome, UsageSource};
use tidegate_engine::client::{Connect, Connecting};
use tidegate_routing::breaker::Report;
use tidegate_testkit::fake::{Fault, Refusal, Script};
use tidegate_wire::sse::EVENT_MAX;
use tokio::time::Instant;

use crate::house::{Answer, CHAT, CHAT_STREAM, House, SITE, Setup, alias_with, finish, local, translating};

const CHATS: &str = "/v1/chat/completions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

fn failing(fault: Fault) -> Script {
    good().failing(fault)
}

/// Slow enough that every event is a read of its own.
fn paced() -> Script {
    good().paced(Duration::ZERO, Duration::from_millis(10))
}

/// A house of two engines in which the first is picked first, as long as it may be picked at all.
async fn pair(first: Script, second: Script) -> House {
    let house = House::new(SITE, vec![first, second]).await;
    house.prefer_first();
    house
}

/// Every way of failing before the caller has read anything, with what an unstreamed and a streamed request make of it.
fn early() -> Vec<Fault> {
    let refusals = [
        Refusal::UnknownModel,
        Refusal::ShuttingDown,
        Refusal::EngineDead,
        Refusal::InternalError,
        Refusal::QueueFull,
        Refusal::LlamaLoading,
        Refusal::SglangQueueFull,
        Refusal::HtmlBadGateway,
        Refusal::TooManyRequests,
    ];
    let mut faults = vec![
        Fault::ResetBeforeHead,
        Fault::CloseBeforeHead,
        Fault::ResetAfterHead,
        Fault::BadHead,
        Fault::TwoLengths,
        Fault::Abort(0),
        Fault::EndWithoutDone(0),
        Fault::ContentType("text/html"),
        Fault::ContentType("application/octet-stream"),
    ];
    faults.extend(refusals.map(Fault::Refuse));
    faults
}

#[test]
fn whatever_fails_before_the_first_event_is_tried_on_another_replica_and_charged_once() {
    local(async {
        let streamed = [Fault::ErrorEvent(0), Fault::BadChunk(0), Fault::ContentType("application/json")];
        let unstreamed = [Fault::NotJson, Fault::Cut(0), Fault::ContentType("text/event-stream")];
        let all = early().into_iter().flat_map(|fault| [(fault.clone(), CHAT), (fault, CHAT_STREAM)]);
        let all = all.chain(streamed.map(|fault| (fault, CHAT_STREAM))).chain(unstreamed.map(|fault| (fault, CHAT)));
        for (fault, body) in all {
            let mut house = pair(failing(fault.clone()), good()).await;
            let answer = house.post(CHATS, body).await;
            assert_eq!(answer.status, 200, "{fault:?} {body}: {answer:?}");
            assert!(answer.text().contains(" fake"), "{fault:?}: {answer:?}");
            let entry = house.entry();
            assert_eq!((entry.attempts, entry.outcome), (2, Outcome::Ok), "{fault:?}");
            assert_eq!(entry.replica.unwrap().as_str(), "replica/1", "{fault:?}");
            assert_eq!((entry.prompt_tokens, entry.output_tokens), (37, 6), "{fault:?}");
            assert_eq!(entry.engine_id.unwrap().as_ref(), house.engines[1].usage_log()[0].id, "{fault:?}");
            assert_eq!(house.shared.metrics.retries.get(), 1, "{fault:?}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn what_a_failed_attempt_reported_is_not_the_next_ones() {
    local(async {
        // The first reports usage and dies; the second answers without any.
        let mut house = pair(failing(Fault::Abort(3)), failing(Fault::NoUsage)).await;
        let answer = house.post(CHATS, &CHAT_STREAM.replace("\"stream\":true", "\"stream\":true,\"n\":1")).await;
        assert_eq!(answer.status, 200);
        let entry = house.entry();
        assert_eq!(entry.attempts, 2);
        assert_eq!(entry.engine_id.unwrap().as_ref(), house.engines[1].usage_log()[0].id);
    });
}

#[test]
fn upstream_ids_are_ours_and_differ_by_attempt() {
    local(async {
        let mut house = pair(failing(Fault::CloseBeforeHead), good()).await;
        let mut request = house.request(Method::POST, CHATS, CHAT);
        request.headers_mut().insert("x-request-id", "mine".parse().unwrap());
        let answer = house.send(request).await;
        assert_eq!(answer.header("x-request-id"), Some("mine"));
        let ids: Vec<_> =
            house.engines.iter().map(|engine| engine.runs()[0].header("x-request-id").unwrap().to_owned()).collect();
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| id.len() <= 64 && !id.contains("mine")), "{ids:?}");
        let entry = house.entry();
        assert_eq!(entry.request_id.as_ref(), "mine");
        assert!(ids[0].starts_with(&entry.id.to_string()), "{ids:?} {}", entry.id);
    });
}

/// The endpoints that stream, with documents that make them work.
pub(crate) fn streams() -> Vec<(&'static str, String, String)> {
    let chat = || CHAT_STREAM.to_owned();
    vec![
        (CHATS, SITE.to_owned(), chat()),
        ("/v1/completions", SITE.to_owned(), r#"{"model":"chat","prompt":"hi","max_tokens":16,"stream":true}"#.into()),
        ("/v1/responses", SITE.to_owned(), r#"{"model":"chat","input":"hi","stream":true}"#.into()),
        ("/v1/messages", SITE.to_owned(), chat()),
        ("/v1/messages", translating(), chat()),
    ]
}

/// The last event is the error, in the protocol of the path, and nothing says that the answer is whole.
pub(crate) fn assert_interrupted(path: &str, answer: &Answer) {
    let text = answer.text();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!text.contains("[DONE]") && !text.contains("message_stop"), "{text}");
    assert!(!text.contains("response.completed"), "{text}");
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    if path == "/v1/messages" {
        assert!(
            last.starts_with("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\","),
            "{text}"
        );
        let data: serde_json::Value = serde_json::from_str(last.split_once("data: ").unwrap().1).unwrap();
        assert_eq!(data["request_id"], answer.header("x-request-id").unwrap());
    } else {
        let data: serde_json::Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["error"]["type"], "server_error");
        assert_eq!(data["error"]["code"], "upstream_interrupted");
        assert!(data["error"]["param"].is_null());
    }
    for secret in ["EngineCore", "stack trace", "InternalServerError"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[test]
fn a_stream_that_breaks_ends_in_one_error_event_and_is_never_tried_again() {
    local(async {
        for fault in
            [Fault::ErrorEvent(2), Fault::Abort(2), Fault::EndWithoutDone(2), Fault::Cut(2), Fault::BadChunk(2)]
        {
            for (path, documents, body) in streams() {
                let mut house =
                    House::new(&documents, vec![paced().failing(fault.clone()), paced().failing(fault.clone())]).await;
                let answer = house.post(path, &body).await;
                assert_interrupted(path, &answer);
                assert!(answer.text().contains("Hello"), "{fault:?} {path}: what was good was passed on: {answer:?}");
                assert_eq!(house.runs(), 1, "{fault:?} {path}");
                let entry = house.entry();
                assert_eq!((entry.outcome, entry.status), (Outcome::Failed, 200), "{fault:?} {path}");
                assert_eq!(entry.fault, Some(FaultKind::UpstreamInterrupted), "{fault:?} {path}");
                assert_eq!(entry.code.as_deref(), Some("upstream_interrupted"));
                // What came in one read with broken framing is lost with it.
                let least = if matches!(fault, Fault::BadChunk(_)) { 1 } else { 2 };
                assert!(entry.output_tokens >= least, "{fault:?} {path}: {entry:?}");
                assert_ne!(entry.source, UsageSource::None, "{fault:?} {path}");
                house.assert_idle().await;
            }
        }
    });
}

#[test]
fn an_engine_that_is_killed_in_the_middle_of_a_stream_is_an_error_event() {
    local(async {
        for (path, documents, body) in streams() {
            let slow = paced().answering(1_000);
            let mut house = House::new(&documents, vec![slow]).await;
            let request = house.request(Method::POST, path, &body.replace("\"max_tokens\":16", "\"max_tokens\":200"));
            let response = house.start(request).await;
            tokio::time::sleep(Duration::from_millis(205)).await;
            house.engines[0].kill();
            let answer = finish(response).await;
            assert_interrupted(path, &answer);
            assert!(answer.whole, "the body itself ends as its framing says");
            let entry = house.entry();
            assert!((15..=25).contains(&entry.output_tokens), "{path}: {entry:?}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_stream_that_goes_silent_is_cut_at_the_gap_deadline_and_comments_are_silence() {
    local(async {
        let silent = [Fault::Freeze(2), Fault::Comments { after: 2, every: Duration::from_secs(5) }];
        for fault in silent {
            for (path, documents, body) in streams() {
                let mut house = House::new(&documents, vec![paced().failing(fault.clone())]).await;
                let start = Instant::now();
                let answer = house.post(path, &body).await;
                assert_interrupted(path, &answer);
                let took = start.elapsed().as_millis();
                assert!((60_000..60_200).contains(&took), "{fault:?} {path}: {took} ms");
                assert_eq!(house.entry().fault, Some(FaultKind::UpstreamInterrupted));
                house.assert_idle().await;
            }
        }
    });
}

#[test]
fn comments_before_the_first_event_are_no_beginning() {
    local(async {
        let documents = alias_with("timeouts: {firstByte: 20s}");
        let fault = Fault::Comments { after: 0, every: Duration::from_secs(5) };
        let mut house = House::new(&documents, vec![paced().failing(fault)]).await;
        let start = Instant::now();
        let answer = house.post("/v1/completions", r#"{"model":"chat","prompt":"hi","stream":true}"#).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (504, "upstream_timeout"), "{answer:?}");
        assert!((20_000..20_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        assert_eq!(house.entry().tokens(), 0);
    });
}

#[test]
fn an_event_over_the_bound_breaks_the_stream_and_one_at_the_bound_passes() {
    local(async {
        const FRAME: usize = "data: {\"pad\":\"\"}\n\n".len();
        let completion = r#"{"model":"chat","prompt":"hi","stream":true}"#;
        for (path, body) in [(CHATS, CHAT_STREAM), ("/v1/completions", completion)] {
            let mut house = House::new(SITE, vec![failing(Fault::HugeEvent(EVENT_MAX - FRAME))]).await;
            let answer = house.post(path, body).await;
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{path}");
            assert!(answer.body.len() > EVENT_MAX);
        }
        let huge = || failing(Fault::HugeEvent(EVENT_MAX - FRAME + 1));
        let mut house = House::new(SITE, vec![huge()]).await;
        assert_interrupted(CHATS, &house.post(CHATS, CHAT_STREAM).await);
        // Completions begin with it: nothing has left, so that another replica may do better.
        let mut house = pair(huge(), good()).await;
        let answer = house.post("/v1/completions", completion).await;
        assert_eq!((answer.status.as_u16(), house.entry().attempts), (200, 2));
    });
}

#[test]
fn a_first_byte_that_comes_too_late_is_504_and_not_tried_again() {
    local(async {
        let slow = failing(Fault::SlowFirstByte(Duration::from_secs(121)));
        let mut house = pair(slow.clone(), good()).await;
        let start = Instant::now();
        let answer = house.post(CHATS, CHAT_STREAM).await;
        assert_eq!(answer.status, 504);
        assert!((120_000..120_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        assert_eq!(house.entry().attempts, 1);
        // The same answer is early enough when nothing is streamed: only the whole counts.
        let mut house = House::new(SITE, vec![slow]).await;
        assert_eq!(house.chat().await.status, 200);
    });
}

#[test]
fn a_slot_stays_taken_after_a_time_out_until_the_engine_has_let_go() {
    local(async {
        let documents = alias_with("limits: {concurrency: 1}, timeouts: {whole: 5s}");
        let mut house = House::new(&documents, vec![failing(Fault::SlowFirstByte(Duration::from_secs(3_600)))]).await;
        assert_eq!(house.chat().await.status, 504);
        house.engines[0].set(good());
        assert_eq!(house.chat().await.status, 429, "the engine may still be at work on the first");
        assert_eq!((house.gate.held(), house.backends[0].replica().booked()), (1, 1));
        tokio::time::sleep(Duration::from_millis(550)).await;
        assert_eq!(house.chat().await.status, 200);
        house.assert_idle().await;
    });
}

#[test]
fn the_whole_deadline_covers_all_attempts_and_long_streams() {
    local(async {
        let documents = alias_with("timeouts: {whole: 10s, wholeStreamed: 3s}");
        // The first fails after 6 s, the second would need 6 s more.
        let late = |fault| good().paced(Duration::from_secs(6), Duration::ZERO).failing(fault);
        let mut house =
            House::new(&documents, vec![late(Fault::NotJson), good().paced(Duration::from_secs(6), Duration::ZERO)])
                .await;
        house.prefer_first();
        let start = Instant::now();
        assert_eq!(house.chat().await.status, 504);
        assert!((10_000..10_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        let endless = good().answering(10_000).paced(Duration::ZERO, Duration::from_millis(50));
        let mut house = House::new(&documents, vec![endless]).await;
        let start = Instant::now();
        let answer = house.post(CHATS, &CHAT_STREAM.replace("16", "256")).await;
        assert_interrupted(CHATS, &answer);
        assert!((3_000..3_200).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    });
}

fn is_out(house: &House, index: usize) -> bool {
    house.backends[index].replica().open_until().is_some()
}

#[test]
fn a_replica_that_refuses_connections_is_out_at_once_and_back_after_a_good_trial() {
    local(async {
        let mut house = pair(good(), good()).await;
        house.engines[0].stop_listening().await;
        assert_eq!(house.chat().await.status, 200);
        assert!(is_out(&house, 0));
        for _ in 0..5 {
            assert_eq!(house.chat().await.status, 200);
            assert_eq!(house.last().attempts, 1, "nobody tries it meanwhile");
        }
        house.engines[0].listen_again().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(house.chat().await.status, 200);
        assert_eq!(house.last().replica.unwrap().as_str(), "replica/0", "the trial");
        assert!(!is_out(&house, 0));
    });
}

#[test]
fn faults_of_the_replica_take_it_out_after_three_and_others_never_do() {
    local(async {
        let bad = [
            Fault::CloseBeforeHead,
            Fault::Refuse(Refusal::EngineDead),
            Fault::Refuse(Refusal::ShuttingDown),
            Fault::Refuse(Refusal::HtmlBadGateway),
            Fault::Refuse(Refusal::LlamaLoading),
            Fault::NotJson,
            Fault::Abort(0),
        ];
        for fault in bad {
            let mut house = pair(failing(fault.clone()), good()).await;
            for n in 1..=4 {
                assert!(n == 4 || !is_out(&house, 0), "{fault:?}");
                assert_eq!(house.chat().await.status, 200);
            }
            assert!(is_out(&house, 0), "{fault:?}");
            assert_eq!(house.last().attempts, 1, "{fault:?}");
        }
        let innocent = [
            (Fault::Refuse(Refusal::QueueFull), 503, "server_is_overloaded"),
            (Fault::Refuse(Refusal::SglangQueueFull), 503, "server_is_overloaded"),
            (Fault::Refuse(Refusal::TooManyRequests), 503, "server_is_overloaded"),
            (Fault::Refuse(Refusal::InternalError), 502, "upstream_unreachable"),
            (Fault::Refuse(Refusal::LlamaNotSupported), 400, "invalid_value"),
            (Fault::Refuse(Refusal::NotFound), 400, "invalid_value"),
            (Fault::Refuse(Refusal::BadTemperature), 400, "invalid_value"),
            (Fault::Refuse(Refusal::BadJson), 400, "invalid_value"),
            (Fault::Refuse(Refusal::MissingMessages), 400, "missing_required_parameter"),
            (Fault::Refuse(Refusal::ContextTooLong), 400, "context_length_exceeded"),
            (Fault::Refuse(Refusal::LlamaContext), 400, "context_length_exceeded"),
        ];
        for (fault, status, code) in innocent {
            let mut house = House::new(SITE, vec![failing(fault.clone())]).await;
            for _ in 0..5 {
                let answer = house.chat().await;
                assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{fault:?}: {answer:?}");
            }
            assert!(!is_out(&house, 0), "{fault:?}");
            let once = status == 400;
            assert!(house.entries().iter().all(|entry| entry.attempts == 1), "{fault:?}: one replica, one attempt");
            if once {
                let mut house = pair(failing(fault.clone()), good()).await;
                assert_eq!(house.chat().await.status, status, "{fault:?} is not tried elsewhere");
            }
        }
    });
}

#[test]
fn engine_texts_never_reach_callers() {
    local(async {
        for refusal in Refusal::ALL {
            for body in [CHAT, CHAT_STREAM] {
                let mut house = House::new(SITE, vec![failing(Fault::Refuse(refusal))]).await;
                let answer = house.post(CHATS, body).await;
                assert!(!answer.status.is_success(), "{refusal:?}");
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                let (_, text) = refusal.answer();
                for word in
                    ["tiny", "stack", "dict of", "input_value", "json.exception", "futures", "--embeddings", "body."]
                {
                    assert!(!message.contains(word), "{refusal:?}: {message}");
                }
                assert!(!text.contains(&message), "{refusal:?}: {message}");
                assert_eq!(house.entry().tokens(), 0, "{refusal:?}");
            }
        }
    });
}

#[test]
fn attempts_are_bounded_over_replicas() {
    local(async {
        for attempts in [1, 2, 3] {
            let documents = alias_with(&format!("timeouts: {{attempts: {attempts}}}"));
            let down = || failing(Fault::CloseBeforeHead);
            let mut house = House::new(&documents, vec![down(), down(), down(), down()]).await;
            assert_eq!(house.chat().await.status, 502);
            assert_eq!((house.runs(), house.entry().attempts), (attempts, attempts as u32));
        }
    });
}

#[test]
fn an_engine_that_answers_under_another_name_is_read_under_the_alias() {
    local(async {
        let mut house = House::new(SITE, vec![failing(Fault::OtherModel)]).await;
        assert_eq!(house.chat().await.json()["model"], "chat");
    });
}

#[test]
fn behind_the_end_of_an_answer_nothing_matters_any_more() {
    local(async {
        let body = "data: {\"id\":\"x\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\
                    \"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = format!("{head}{:x}\r\n{body}\r\n", body.len());
        // The connection stays open, or is closed without a last chunk.
        for closes in [false, true] {
            let mut house = House::of_raw(SITE, chunk.clone(), closes).await;
            let answer = house.post(CHATS, CHAT_STREAM).await;
            assert!(answer.text().ends_with("data: [DONE]\n\n"), "{answer:?}");
            let entry = house.entry();
            assert_eq!((entry.outcome, entry.prompt_tokens, entry.output_tokens), (Outcome::Ok, 3, 1));
        }
    });
}

#[test]
fn an_answer_that_names_the_engines_header_does_not_pass_it_on() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let answer = house.chat().await;
        for name in ["server", "x-upstream", "via"] {
            assert_eq!(answer.header(name), None);
        }
        let mut names: Vec<_> = answer.headers.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "content-type", "date", "x-request-id"]);
    });
}

/// Two aliases on engines of their own; `chat` falls back on `second`, then on `third`.
const CHAIN: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {}
---
kind: Model
metadata: {name: tiny}
spec: {engine: vllm}
---
kind: Model
metadata: {name: big}
spec: {engine: vllm}
---
kind: Deployment
metadata: {name: d-0}
spec: {model: tiny, endpoints: [{url: 'http://engine-0:1'}], servedName: tiny-served}
---
kind: Deployment
metadata: {name: d-1}
spec: {model: big, endpoints: [{url: 'http://engine-1:1'}], servedName: tiny-served}
---
kind: Deployment
metadata: {name: d-2}
spec: {model: big, endpoints: [{url: 'http://engine-2:1'}], servedName: tiny-served}
---
kind: Alias
metadata: {name: chat}
spec: {targets: [{deployment: d-0}], fallback: [second, third]}
---
kind: Alias
metadata: {name: second}
spec: {targets: [{deployment: d-1}], class: batch}
---
kind: Alias
metadata: {name: third}
spec: {targets: [{deployment: d-2}]}
---
kind: Team
metadata: {name: red}
spec:
  models: [{alias: chat, rpm: 5}, {alias: second, rpm: 2}, {alias: third}]
";

#[test]
fn a_fallback_serves_under_the_name_asked_for_and_its_limits_are_the_ones_that_count() {
    local(async {
        let mut house = House::new(CHAIN, vec![failing(Fault::CloseBeforeHead), good(), good()]).await;
        let answer = house.chat().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["model"], "chat");
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("2"), "the fallback's");
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("1"));
        let entry = house.entry();
        assert_eq!(entry.alias.unwrap().as_str(), "chat");
        assert_eq!(entry.served_alias.unwrap().as_str(), "second");
        assert_eq!((entry.model.unwrap().as_str(), entry.attempts), ("big", 2));
        // The first alias has its tokens back; the request was made and failed there, so that it counts.
        house.engines[0].set(good());
        tokio::time::sleep(Duration::from_secs(3)).await;
        for left in (0..4).rev() {
            let answer = house.chat().await;
            assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some(left.to_string().as_str()));
        }
        assert_eq!(house.chat().await.status, 429);
        house.assert_idle().await;
    });
}

#[test]
fn a_fallback_without_room_is_passed_over_for_the_next() {
    local(async {
        let mut house = House::new(CHAIN, vec![failing(Fault::CloseBeforeHead), good(), good()]).await;
        for served in ["second", "second", "third", "third"] {
            assert_eq!(house.chat().await.status, 200);
            assert_eq!(house.last().served_alias.unwrap().as_str(), served);
        }
        house.assert_idle().await;
    });
}

#[test]
fn a_fallback_needs_a_grant_a_presence_and_a_key_that_covers_it() {
    local(async {
        let ungranted = CHAIN.replace(", {alias: second, rpm: 2}, {alias: third}", "");
        let mut house = House::new(&ungranted, vec![failing(Fault::CloseBeforeHead), good(), good()]).await;
        assert_eq!(house.chat().await.status, 502);
        assert_eq!(house.runs(), 1);
        let mut house = House::new(CHAIN, vec![failing(Fault::CloseBeforeHead), good(), good()]).await;
        let narrow = house.make_key("red", |record| record.aliases = Some(["chat".into(), "third".into()].into()));
        let request = house.request_with(&narrow, Method::POST, CHATS, CHAT);
        assert_eq!(house.send(request).await.status, 200);
        assert_eq!(house.entry().served_alias.unwrap().as_str(), "third");
        // A key whose scope was narrowed while the gate ran.
        house.change_last_key(|record| record.aliases = Some(["chat".into()].into()));
        let request = house.request_with(&narrow, Method::POST, CHATS, CHAT);
        assert_eq!(house.send(request).await.status, 502);
    });
}

#[test]
fn a_request_of_the_callers_own_fault_does_not_fall_back() {
    local(async {
        let mut house = House::new(CHAIN, vec![failing(Fault::Refuse(Refusal::BadTemperature)), good(), good()]).await;
        assert_eq!(house.chat().await.status, 400);
        assert_eq!(house.runs(), 1);
    });
}

#[test]
fn when_all_fail_the_caller_hears_the_last_fault_and_is_charged_nothing() {
    local(async {
        let down = || failing(Fault::Refuse(Refusal::QueueFull));
        let mut house = House::new(CHAIN, vec![failing(Fault::CloseBeforeHead), down(), down()]).await;
        let answer = house.chat().await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "server_is_overloaded"));
        let entry = house.entry();
        assert_eq!((entry.attempts, entry.tokens()), (3, 0));
        house.assert_idle().await;
    });
}

#[test]
fn deployments_share_by_weight_and_one_without_weight_serves_nobody() {
    local(async {
        let documents = CHAIN.replace(
            "{targets: [{deployment: d-0}], fallback: [second, third]}",
            "{targets: [{deployment: d-0, weight: 90}, {deployment: d-1, weight: 10}, {deployment: d-2, weight: 0}]}",
        );
        let documents = documents.replace("{alias: chat, rpm: 5}", "{alias: chat}");
        let mut house = House::new(&documents, vec![good(), good(), good()]).await;
        for _ in 0..400 {
            assert_eq!(house.chat().await.status, 200);
        }
        let runs: Vec<_> = house.engines.iter().map(|engine| engine.runs().len()).collect();
        // Six standard deviations around 40.
        assert!((4..=76).contains(&runs[1]) && runs[2] == 0, "{runs:?}");
        // When the heavy one is down, all go to the light one, within the same request.
        house.engines[0].stop_listening().await;
        house.backends[0].close_idle();
        assert_eq!(house.chat().await.status, 200);
    });
}

#[test]
fn a_deployment_that_does_not_speak_the_endpoint_is_passed_over() {
    local(async {
        let documents = CHAIN
            .replace(
                "{targets: [{deployment: d-0}], fallback: [second, third]}",
                "{targets: [{deployment: d-0, weight: 99}, {deployment: d-1, weight: 1}]}",
            )
            .replace(
                "metadata: {name: tiny}\nspec: {engine: vllm}",
                "metadata: {name: tiny}\nspec: {engine: llama.cpp}",
            )
            .replace("{alias: chat, rpm: 5}", "{alias: chat}");
        let mut house = House::new(&documents, vec![Script::llamacpp("tiny-served"), good(), good()]).await;
        for _ in 0..20 {
            let answer = house.upload("chat").await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        assert_eq!(house.engines[1].runs().len(), 20);
    });
}

#[test]
fn a_lease_that_was_booked_elsewhere_moves_the_pick() {
    local(async {
        let mut house = House::new(SITE, vec![good(), good()]).await;
        let lease = house.backends[1].replica().book(Monotonic::from_ms(1)).unwrap();
        for _ in 0..5 {
            house.chat().await;
        }
        assert_eq!(house.engines[0].runs().len(), 5);
        lease.release(Report::Good, Monotonic::from_ms(1));
    });
}

#[test]
fn media_of_a_host_that_a_fallback_does_not_list_do_not_go_there() {
    local(async {
        let documents = CHAIN
            .replace("fallback: [second, third]}", "fallback: [second, third], mediaHosts: [images.example]}")
            .replace("{targets: [{deployment: d-2}]}", "{targets: [{deployment: d-2}], mediaHosts: [images.example]}");
        let scripts = vec![failing(Fault::CloseBeforeHead), good(), good()];
        let mut house = House::new(&documents, scripts).await;
        let body = r#"{"model":"chat","max_tokens":16,"messages":[{"role":"user","content":[
            {"type":"image_url","image_url":{"url":"https://images.example/a.png"}}]}]}"#;
        assert_eq!(house.post(CHATS, body).await.status, 200);
        assert_eq!(house.engines[1].requests().len(), 0);
        assert_eq!(house.entry().served_alias.unwrap().as_str(), "third");
        house.assert_idle().await;
    });
}

/// An engine that accepts nobody and refuses nobody.
#[derive(Debug)]
struct Nowhere;

impl Connect for Nowhere {
    fn connect(&self) -> Connecting {
        Box::pin(std::future::pending())
    }
}

#[test]
fn the_connect_deadline_of_the_alias_is_the_one_that_counts() {
    local(async {
        for (documents, millis) in [
            (alias_with("timeouts: {connect: 300ms, attempts: 1}"), 300),
            (alias_with("timeouts: {connect: 7s, attempts: 1}"), 7_000),
        ] {
            let setup = Setup { raw: Some(Arc::new(Nowhere)), ..Setup::default() };
            let mut house = House::with(&documents, Vec::new(), setup).await;
            let began = Instant::now();
            let answer = house.chat().await;
            assert_eq!(answer.code(), "upstream_unreachable", "{answer:?}");
            let took = began.elapsed().as_millis();
            assert!((millis..millis + 100).contains(&took), "{took} ms");
            house.assert_idle().await;
        }
    });
}
