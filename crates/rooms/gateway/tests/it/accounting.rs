//! Every accepted request ends in exactly one ledger entry, every reservation and slot is given back, and the sums are
//! the engines' own.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use tidegate_core::{FaultKind, Limits, Outcome, UsageSource};
use tidegate_testkit::fake::{Fault, Script};

use crate::house::{CHAT, CHAT_STREAM, House, SITE, alias_with, finish, granting, local, translating};

const CHATS: &str = "/v1/chat/completions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

/// One token each 10 ms.
fn slow(tokens: usize) -> Script {
    good().answering(tokens).paced(Duration::ZERO, Duration::from_millis(10))
}

fn long_stream() -> String {
    CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":256")
}

/// Opens a stream, reads it for so long, leaves, and returns when the engine has noticed.
async fn leave_after(house: &mut House, path: &str, body: &str, time: Duration) {
    let request = house.request(Method::POST, path, body);
    let reading = house.begin(request).await;
    tokio::time::sleep(time).await;
    let ended = house.engines[0].usage_log().len();
    reading.abort();
    house.engines[0].wait_for(|log| log.running == 0 && log.usage.len() > ended).await;
}

#[test]
fn a_caller_who_leaves_anywhere_in_a_stream_pays_for_what_the_engine_delivered() {
    local(async {
        for percent in [0, 1, 25, 50, 99] {
            let mut house = House::new(SITE, vec![slow(200)]).await;
            let time = Duration::from_millis(5 + percent * 20);
            leave_after(&mut house, CHATS, &long_stream(), time).await;
            let entry = house.entry();
            let engine = &house.engines[0].usage_log()[0];
            assert_eq!((entry.outcome, entry.fault), (Outcome::Cancelled, Some(FaultKind::ClientGone)), "{percent} %");
            assert_eq!(entry.status, 200);
            assert_eq!(entry.source, UsageSource::Engine, "continuous usage makes it exact");
            assert_eq!((entry.prompt_tokens, entry.output_tokens), (37, 1 + percent * 2), "{percent} %");
            assert!(engine.output - entry.output_tokens <= 1, "{percent} %: {engine:?}");
            house.assert_idle().await;
            assert_eq!(house.entries().len(), 1);
        }
    });
}

#[test]
fn without_continuous_usage_a_cancelled_stream_is_counted_by_its_events() {
    local(async {
        let llama = SITE.replace("engine: vllm", "engine: llama.cpp");
        let script = || Script::llamacpp("tiny-served").answering(200).paced(Duration::ZERO, Duration::from_millis(10));
        for (documents, script, path, source) in [
            (llama.clone(), script(), CHATS, UsageSource::Estimated),
            (llama, script(), "/v1/messages", UsageSource::Estimated),
            (SITE.to_owned(), slow(200), "/v1/messages", UsageSource::Estimated),
            (translating(), slow(200), "/v1/messages", UsageSource::Engine),
            (SITE.to_owned(), slow(200), "/v1/responses", UsageSource::Estimated),
        ] {
            let mut house = House::new(&documents, vec![script]).await;
            let body = long_stream();
            let body = if path == "/v1/responses" { body.replace("\"messages\"", "\"input\"") } else { body };
            leave_after(&mut house, path, &body, Duration::from_millis(505)).await;
            let entry = house.entry();
            assert_eq!((entry.output_tokens, entry.source), (51, source), "{path}: {entry:?}");
            assert!(entry.prompt_tokens >= 37, "{path}: {entry:?}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_caller_who_leaves_before_the_head_of_an_unstreamed_answer_keeps_the_estimate() {
    local(async {
        let mut house = House::new(SITE, vec![good().paced(Duration::from_secs(30), Duration::ZERO)]).await;
        let request = house.request(Method::POST, CHATS, CHAT);
        let pending = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        pending.abort();
        house.engines[0].wait_for(|log| log.running == 0).await;
        let entry = house.entry();
        assert_eq!((entry.outcome, entry.status), (Outcome::Cancelled, 499));
        assert_eq!((entry.source, entry.output_tokens), (UsageSource::Estimated, 16));
        assert_eq!(entry.tokens(), entry.reserved_tokens);
        house.assert_idle().await;
    });
}

#[test]
fn a_caller_who_leaves_before_the_first_event_pays_for_the_prompt() {
    local(async {
        let mut house = House::new(SITE, vec![good().paced(Duration::from_secs(30), Duration::ZERO)]).await;
        let request = house.request(Method::POST, CHATS, CHAT_STREAM);
        let pending = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        pending.abort();
        house.engines[0].wait_for(|log| log.running == 0).await;
        let entry = house.entry();
        assert_eq!((entry.outcome, entry.source, entry.output_tokens), (Outcome::Cancelled, UsageSource::Estimated, 0));
        assert!(entry.prompt_tokens > 0);
        house.assert_idle().await;
    });
}

#[test]
fn a_caller_who_leaves_while_the_body_is_read_pays_nothing() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let head =
            format!("POST {CHATS} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-length: 100\r\n\r\n{{", house.key);
        let stream = house.open(head.as_bytes()).await;
        house.settle().await;
        assert_eq!(house.shared.metrics.in_flight.get(), 1);
        drop(stream);
        house.assert_idle().await;
        let entry = house.entry();
        assert_eq!((entry.tokens(), entry.source), (0, UsageSource::None));
        assert_eq!((entry.outcome, entry.status, entry.fault), (Outcome::Cancelled, 499, Some(FaultKind::ClientGone)));
        assert_eq!(house.runs(), 0);
    });
}

#[test]
fn a_half_closed_connection_is_one_that_was_left() {
    local(async {
        let mut house = House::new(SITE, vec![slow(200)]).await;
        let body = long_stream();
        let raw = format!(
            "POST {CHATS} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-length: {}\r\n\r\n{body}",
            house.key,
            body.len()
        );
        let mut stream = house.open(raw.as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
        house.engines[0].wait_for(|log| log.usage.len() == 1).await;
        assert!(house.engines[0].usage_log()[0].output < 20, "within a moment");
        house.assert_idle().await;
        assert_eq!(house.entry().outcome, Outcome::Cancelled);
    });
}

#[test]
fn a_slot_is_free_only_after_the_engine_has_let_go() {
    local(async {
        let documents = alias_with("limits: {concurrency: 1}");
        let llama = documents.replace("engine: vllm", "engine: llama.cpp");
        let streaming = |script: Script| script.answering(200).paced(Duration::ZERO, Duration::from_millis(10));
        for (documents, script, bound) in
            [(documents, streaming(good()), 500), (llama, streaming(Script::llamacpp("tiny-served")), 200)]
        {
            let mut house = House::new(&documents, vec![script]).await;
            leave_after(&mut house, CHATS, &long_stream(), Duration::from_millis(100)).await;
            house.entry();
            assert_eq!(house.chat().await.status, 429);
            assert_eq!((house.gate.held(), house.backends[0].replica().booked()), (1, 1));
            tokio::time::sleep(Duration::from_millis(bound - 40)).await;
            assert_eq!(house.chat().await.status, 429, "{bound}");
            tokio::time::sleep(Duration::from_millis(60)).await;
            let request = house.request(Method::POST, CHATS, CHAT);
            let next = house.begin(request).await;
            house.engines[0].wait_for(|log| log.running == 1).await;
            assert_eq!(house.engines[0].log().running_max, 1, "never two at once");
            next.abort();
        }
    });
}

#[test]
fn where_nobody_knows_when_an_engine_lets_go_a_scrape_shows_it() {
    local(async {
        let documents = alias_with("limits: {concurrency: 1}").replace("engine: vllm", "engine: llama.cpp");
        let script = Script::llamacpp("tiny-served").paced(Duration::from_secs(30), Duration::ZERO);
        let mut house = House::new(&documents, vec![script]).await;
        let request = house.request(Method::POST, CHATS, CHAT);
        let pending = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        // As a scrape shows it that was taken before the request got there.
        house.scraped(0, 0.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        pending.abort();
        house.engines[0].wait_for(|log| log.running == 0).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(house.gate.held(), 1, "the sample is older than the cancel");
        house.scraped(0, 1.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((house.gate.held(), house.chat().await.status.as_u16()), (1, 429), "it still runs there");
        house.scraped(0, 0.0);
        house.assert_idle().await;
    });
}

/// An engine of one slow answer per request, of which nobody knows when it lets go.
async fn endless(concurrency: u32) -> House {
    let documents =
        alias_with(&format!("limits: {{concurrency: {concurrency}}}")).replace("engine: vllm", "engine: llama.cpp");
    House::new(&documents, vec![Script::llamacpp("tiny-served").paced(Duration::from_secs(300), Duration::ZERO)]).await
}

/// Asks, and leaves while the engine works on it; the engine of the tests notices at once.
async fn leave_running(house: &mut House) {
    let request = house.request(Method::POST, CHATS, CHAT);
    let pending = house.begin(request).await;
    house.engines[0].wait_for(|log| log.running == 1).await;
    pending.abort();
    house.engines[0].wait_for(|log| log.running == 0).await;
}

#[test]
fn a_slot_is_not_freed_by_an_old_sample_when_others_are_booked_later() {
    local(async {
        let mut house = endless(2).await;
        leave_running(&mut house).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        house.scraped(0, 1.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(house.gate.held(), 1);
        // Booked after the sample, which can know nothing of it.
        let request = house.request(Method::POST, CHATS, CHAT);
        let next = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((house.gate.held(), house.chat().await.status.as_u16()), (1, 429), "it still runs there");
        next.abort();
    });
}

#[test]
fn of_two_slots_held_only_one_is_freed_when_one_still_runs() {
    local(async {
        let mut house = endless(2).await;
        for _ in 0..2 {
            leave_running(&mut house).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(house.gate.held(), 2);
        house.scraped(0, 1.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((house.gate.held(), house.backends[0].replica().booked()), (1, 1));
        house.scraped(0, 0.0);
        house.assert_idle().await;
    });
}

#[test]
fn a_slot_that_no_scrape_frees_is_free_after_the_longest_hold() {
    local(async {
        let documents = alias_with("limits: {concurrency: 1}").replace("engine: vllm", "engine: llama.cpp");
        let script = Script::llamacpp("tiny-served").paced(Duration::from_secs(30), Duration::ZERO);
        let mut house = House::new(&documents, vec![script]).await;
        let request = house.request(Method::POST, CHATS, CHAT);
        let pending = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        pending.abort();
        tokio::time::sleep(Duration::from_secs(599)).await;
        assert_eq!(house.gate.held(), 1);
        tokio::time::sleep(Duration::from_secs(2)).await;
        house.assert_idle().await;
    });
}

#[test]
fn ten_thousand_callers_who_leave_leave_nothing_behind() {
    local(async {
        let documents = granting("concurrency: 64, tpm: 10G, rpm: 10G");
        let mut house = House::new(&documents, vec![slow(64), slow(64)]).await;
        let body = CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":64");
        for round in 0_u64..250 {
            let mut readings = Vec::new();
            for _ in 0..40 {
                let request = house.request(Method::POST, CHATS, if round % 5 == 4 { CHAT } else { &body });
                readings.push(house.begin(request).await);
            }
            tokio::time::sleep(Duration::from_millis(1 + round % 9 * 5)).await;
            readings.iter().for_each(tokio::task::JoinHandle::abort);
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        house.assert_idle().await;
        assert_eq!(house.entries().len(), 10_000);
        assert_eq!(house.shared.metrics.accepted.get(), 10_000);
        assert!(house.entries().iter().all(|entry| entry.code.as_deref() != Some("rate_limit_exceeded")));
        let charged: u64 = house.entries().iter().map(tidegate_core::Entry::tokens).sum();
        assert_eq!(house.shared.metrics.charged_tokens.get(), charged);
        // All that was taken came back: a full house of callers is admitted at once.
        let mut readings = Vec::new();
        for _ in 0..64 {
            let request = house.request(Method::POST, CHATS, &body);
            readings.push(house.begin(request).await);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let last: Vec<_> = house.entries().into_iter().skip(10_000).collect();
        assert!(last.len() == 64 && last.iter().all(|entry| entry.outcome == Outcome::Ok));
    });
}

#[test]
fn the_ledger_adds_up_to_what_the_engines_logged() {
    local(async {
        let scripts = vec![good().answering(9), good().answering(17)];
        let mut house = House::new(SITE, scripts).await;
        for n in 0..60 {
            let max = format!("\"max_tokens\":{}", 1 + n % 20);
            let body = if n % 2 == 0 { CHAT } else { CHAT_STREAM }.replace("\"max_tokens\":16", &max);
            let body = if n % 7 == 0 { body.replace("\"max_tokens\"", "\"n\":3,\"max_tokens\"") } else { body };
            assert_eq!(house.post(CHATS, &body).await.status, 200);
        }
        house.settle().await;
        let logs: Vec<_> = house.engines.iter().flat_map(|engine| engine.usage_log()).collect();
        let entries = house.entries();
        assert_eq!((logs.len(), entries.len()), (60, 60));
        for log in logs {
            let entry = entries.iter().find(|entry| entry.engine_id.as_deref() == Some(&log.id)).unwrap();
            assert_eq!((entry.prompt_tokens, entry.output_tokens), (log.prompt, log.output), "{entry:?}");
            assert!(entry.tokens() <= entry.reserved_tokens, "{entry:?}");
        }
    });
}

#[test]
fn an_answer_without_a_report_is_charged_by_our_own_count() {
    local(async {
        let mut house = House::new(SITE, vec![good().failing(Fault::NoUsage)]).await;
        assert_eq!(house.chat().await.status, 200);
        let entry = house.last();
        assert_eq!(entry.source, UsageSource::Estimated);
        assert_eq!(entry.output_tokens, 16, "at most what was reserved, at least what could be in the bytes");
        let llama = SITE.replace("engine: vllm", "engine: llama.cpp");
        let mut house = House::new(&llama, vec![Script::llamacpp("tiny-served").failing(Fault::NoUsage)]).await;
        assert_eq!(house.post(CHATS, CHAT_STREAM).await.status, 200);
        let entry = house.entry();
        assert_eq!((entry.source, entry.output_tokens), (UsageSource::Estimated, 6));
        assert_eq!(house.shared.metrics.estimated.get(), 1);
    });
}

#[test]
fn an_explicit_zero_is_a_count() {
    local(async {
        let mut script = good();
        script.prompt_tokens = Some(0);
        script.tokens = Vec::new();
        for body in [CHAT, CHAT_STREAM] {
            let mut house = House::new(SITE, vec![script.clone()]).await;
            assert_eq!(house.post(CHATS, body).await.status, 200);
            let entry = house.entry();
            assert_eq!((entry.tokens(), entry.source), (0, UsageSource::Engine));
        }
    });
}

#[test]
fn cached_prompt_tokens_are_charged_and_shown() {
    local(async {
        for (path, body) in [(CHATS, CHAT), (CHATS, CHAT_STREAM), ("/v1/messages", CHAT), ("/v1/messages", CHAT_STREAM)]
        {
            let mut script = good();
            script.cached_tokens = 32;
            let mut house = House::new(SITE, vec![script]).await;
            assert_eq!(house.post(path, body).await.status, 200);
            let entry = house.entry();
            assert_eq!((entry.prompt_tokens, entry.cached_tokens, entry.output_tokens), (37, 32, 6), "{path}");
        }
    });
}

#[test]
fn what_is_over_its_estimate_is_charged_in_full_and_counted() {
    local(async {
        let mut script = good();
        script.prompt_tokens = Some(5_000);
        let mut house = House::new(SITE, vec![script]).await;
        house.chat().await;
        let entry = house.entry();
        assert_eq!(entry.prompt_tokens, 5_000);
        assert!(entry.reserved_tokens < 5_000);
        assert_eq!(house.shared.metrics.over_estimate.get(), 1);
    });
}

#[test]
fn the_reservation_is_what_the_engine_is_told() {
    local(async {
        // C03 and C04: nothing named, more than the cap, two that disagree.
        for (fields, sent) in [
            ("", 256),
            (",\"max_tokens\":100000", 256),
            (",\"max_tokens\":7,\"max_completion_tokens\":9", 7),
            (",\"max_completion_tokens\":9", 9),
        ] {
            let mut house = House::new(SITE, vec![good()]).await;
            let body = CHAT.replace(",\"max_tokens\":16", fields);
            assert_eq!(house.post(CHATS, &body).await.status, 200);
            let told = house.engines[0].runs()[0].json();
            assert_eq!(told["max_tokens"], sent, "{fields}");
            if fields.contains("completion") {
                assert_eq!(told["max_completion_tokens"], sent, "{fields}");
            }
            let entry = house.entry();
            assert!(entry.reserved_tokens > sent && entry.reserved_tokens < sent + 250, "{entry:?}");
        }
        let mut house = House::new(&granting("maxOutputTokens: 100"), vec![good()]).await;
        house.post(CHATS, &CHAT.replace(",\"max_tokens\":16", "")).await;
        assert_eq!(house.engines[0].runs()[0].json()["max_tokens"], 100, "the identity's cap");
    });
}

/// E24: without a cap, a `max_tokens` of the caller's and a tokenizer, only the context is left.
#[test]
fn max_tokens_is_sent_when_only_the_context_bounds_the_output() {
    local(async {
        let documents = SITE.replace("contextTokens: 8192, maxOutputTokens: 256", "contextTokens: 8192");
        let mut house = House::new(&documents, vec![good()]).await;
        let bound = house.bound(CHATS, CHAT).await;
        assert_eq!(house.post(CHATS, &CHAT.replace(",\"max_tokens\":16", "")).await.status, 200);
        let told = house.engines[0].runs()[1].json();
        assert_eq!(told["max_tokens"], 8_192 - bound);
        assert_eq!(house.last().reserved_tokens, 8_192);
    });
}

/// G 2, through the gate.
#[test]
fn one_minute_of_a_teams_grant_admits_by_tokens_or_by_requests_whichever_is_first() {
    local(async {
        let documents = granting("rpm: 60, tpm: 500k, concurrency: 10, dailyTokens: 20M")
            .replace("contextTokens: 8192, maxOutputTokens: 256", "contextTokens: 131072, maxOutputTokens: 100000");
        for (tokens, admitted, code, kind) in [(50_000_u64, 10, "tokens", 500_000), (500, 60, "requests", 30_000)] {
            let mut script = good();
            // Prompt and output add up to the estimate, so that nothing comes back.
            script.prompt_tokens = Some(160);
            script.context_tokens = 131_072;
            script.tokens = vec!["x".into(); 1];
            let mut house = House::new(&documents, vec![script]).await;
            let prompt = house.bound(CHATS, CHAT).await;
            let body = CHAT.replace("\"max_tokens\":16", &format!("\"max_tokens\":{}", tokens - prompt));
            house.engines[0].change(|script| {
                script.prompt_tokens = Some(prompt);
                script.tokens = vec!["x".into(); (tokens - prompt) as usize];
            });
            house.forget_entries();
            tokio::time::sleep(Duration::from_secs(61)).await;
            for n in 0..admitted {
                assert_eq!(house.post(CHATS, &body).await.status, 200, "{tokens}: {n}");
                assert_eq!(house.last().reserved_tokens, tokens);
            }
            let refused = house.post(CHATS, &body).await;
            assert_eq!(refused.status, 429);
            assert_eq!(refused.json()["error"]["type"], code);
            let charged: u64 = house.entries().iter().map(tidegate_core::Entry::tokens).sum();
            assert_eq!(charged, kind);
        }
    });
}

/// G 3, through the gate: shares of a team over two aliases, and grants that end at the team.
#[test]
fn a_teams_slots_are_shared_by_its_aliases_and_other_teams_aliases_are_unknown() {
    local(async {
        let documents = G3.to_owned();
        let held = || good().paced(Duration::from_secs(50), Duration::ZERO);
        let mut house = House::new(&documents, vec![held()]).await;
        let wizard = house.make_key("wizard", |_| {});
        let ask = |alias: &str| CHAT.replace("\"chat\"", &format!("\"{alias}\""));
        let mut pending = Vec::new();
        for n in 0..20 {
            let alias = if n < 7 { "discovery" } else { "qwen" };
            let request = house.request(Method::POST, CHATS, &ask(alias));
            pending.push(house.begin(request).await);
            house.engines[0].wait_for(|log| log.running == n + 1).await;
        }
        for alias in ["discovery", "qwen"] {
            let answer = house.post(CHATS, &ask(alias)).await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "rate_limit_exceeded"));
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("20 requests in flight at level team"), "{message}");
        }
        assert_eq!(house.post(CHATS, &ask("document")).await.status, 404);
        let request = house.request_with(&wizard, Method::POST, CHATS, &ask("discovery"));
        assert_eq!(house.send(request).await.status, 404);
        for request in pending {
            assert_eq!(request.await.unwrap().status, 200);
        }
        house.assert_idle().await;
    });
}

const G3: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {}
---
kind: Model
metadata: {name: tiny}
spec: {engine: vllm}
---
kind: Deployment
metadata: {name: d-0}
spec: {model: tiny, endpoints: [{url: 'http://engine-0:1'}], servedName: tiny-served, limits: {contextTokens: 8192, maxOutputTokens: 256}}
---
kind: Alias
metadata: {name: discovery}
spec: {targets: [{deployment: d-0}]}
---
kind: Alias
metadata: {name: qwen}
spec: {targets: [{deployment: d-0}]}
---
kind: Alias
metadata: {name: document}
spec: {targets: [{deployment: d-0}]}
---
kind: Team
metadata: {name: red}
spec:
  limits: {tpm: 2M, rpm: 100, concurrency: 20}
  models: [{alias: discovery}, {alias: qwen}]
---
kind: Team
metadata: {name: wizard}
spec:
  limits: {tpm: 500k, rpm: 50, concurrency: 8}
  models: [{alias: qwen}, {alias: document}]
";

#[test]
fn limits_hold_under_sixty_four_parallel_callers() {
    local(async {
        for (limits, most) in
            [("concurrency: 7", 7), ("tpm: 1000", 1_000 / 162), ("rpm: 11", 11), ("dailyTokens: 900", 900 / 162)]
        {
            let held = good().answering(16).paced(Duration::from_millis(200), Duration::ZERO);
            let mut house = House::new(&granting(limits), vec![held.clone(), held]).await;
            let mut pending = Vec::new();
            for _ in 0..64 {
                let request = house.request(Method::POST, CHATS, CHAT);
                pending.push(house.begin(request).await);
            }
            let mut good = 0;
            for request in pending {
                let answer = request.await.unwrap();
                assert!(answer.status == 200 || answer.status == 429, "{answer:?}");
                good += usize::from(answer.status == 200);
            }
            let running: usize = house.engines.iter().map(|engine| engine.log().running_max).sum();
            assert_eq!((good, running), (most, most), "{limits}");
            assert_eq!(house.entries().len(), 64);
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_quota_is_a_hard_bound_and_a_refusal_takes_nothing() {
    local(async {
        let documents = granting("dailyTokens: 2000");
        let mut house = House::new(&documents, vec![good()]).await;
        let mut charged = 0;
        let mut refused = 0;
        for _ in 0..80 {
            let status = house.chat().await.status;
            refused += usize::from(status == 429);
            charged += house.last().tokens();
        }
        assert!(refused > 10, "{refused}");
        assert!(charged <= 2_000 && charged > 2_000 - 162, "{charged}");
    });
}

#[test]
fn each_level_limits_for_itself() {
    local(async {
        let site = SITE.replace("models: [{alias: chat}]", "models: [{alias: chat}]\n  perCaller: {rpm: 2}");
        let mut house = House::new(&site, vec![good()]).await;
        let other = house.make_key("red", |_| {});
        let mut statuses = Vec::new();
        for key in [house.key.clone(), house.key.clone(), house.key.clone(), other] {
            let request = house.request_with(&key, Method::POST, CHATS, CHAT);
            statuses.push(house.send(request).await.status.as_u16());
        }
        assert_eq!(statuses, [200, 200, 429, 200]);
        let mut house = House::new(SITE, vec![good()]).await;
        let limited = house.make_key("red", |record| record.limits = Limits { rpm: Some(1), ..Limits::default() });
        let ask = async |house: &mut House| {
            let request = house.request_with(&limited, Method::POST, CHATS, CHAT);
            house.send(request).await
        };
        assert_eq!(ask(&mut house).await.status, 200);
        let answer = ask(&mut house).await;
        assert_eq!(answer.status, 429);
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("at level key"));
        // A key whose limits are raised is felt on the next request.
        house.change_last_key(|record| record.limits = Limits { rpm: Some(5), ..Limits::default() });
        assert_eq!(ask(&mut house).await.status, 200);
    });
}

#[test]
fn a_revoked_or_expired_key_is_refused_on_the_next_request() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        assert_eq!(house.chat().await.status, 200);
        house.revoke_all();
        assert_eq!(house.chat().await.status, 401);
        assert_eq!(house.entries().len(), 1);
        let mut house = House::with(
            SITE,
            vec![good()],
            crate::house::Setup { wall: Some(1_000_000), ..crate::house::Setup::default() },
        )
        .await;
        let key = house.make_key("red", |record| record.expires = Some(tidegate_core::Unix::from_ms(1_005_000)));
        let request = house.request_with(&key, Method::POST, CHATS, CHAT);
        assert_eq!(house.send(request).await.status, 200);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let request = house.request_with(&key, Method::POST, CHATS, CHAT);
        assert_eq!(house.send(request).await.status, 401);
    });
}

#[test]
fn a_stream_that_runs_when_its_key_is_revoked_is_still_accounted() {
    local(async {
        let mut house = House::new(SITE, vec![slow(50)]).await;
        let request = house.request(Method::POST, CHATS, &long_stream());
        let response = house.start(request).await;
        house.revoke_all();
        assert!(finish(response).await.text().ends_with("[DONE]\n\n"));
        assert_eq!(house.entry().output_tokens, 50);
    });
}

#[test]
fn a_daily_quota_starts_anew_at_midnight_of_the_teams_zone() {
    local(async {
        // 2026-12-01T14:59:00Z is a minute before midnight in Seoul.
        let setup = crate::house::Setup { wall: Some(1_796_137_140_000), ..crate::house::Setup::default() };
        let mut house = House::with(&granting("dailyTokens: 170"), vec![good().answering(16)], setup).await;
        assert_eq!(house.chat().await.status, 200);
        while house.chat().await.status == 200 {}
        let refused = house.chat().await;
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains("2026-12-01T15:00:00Z"), "{refused:?}");
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(house.chat().await.status, 200);
    });
}

#[test]
fn a_drain_lets_streams_finish_and_refuses_what_is_new() {
    local(async {
        let mut house = House::new(SITE, vec![slow(50)]).await;
        let request = house.request(Method::POST, CHATS, &long_stream());
        let response = house.start(request).await;
        house.gate.drain();
        assert!(house.shared.draining.load(Ordering::Relaxed));
        let answer = finish(response).await;
        assert!(answer.whole && answer.text().ends_with("[DONE]\n\n"));
        assert_eq!(house.entry().outcome, Outcome::Ok);
        house.assert_idle().await;
    });
}

#[test]
fn a_repeated_request_id_makes_two_entries() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        for _ in 0..2 {
            let mut request = house.request(Method::POST, CHATS, CHAT);
            request.headers_mut().insert("x-request-id", "same".parse().unwrap());
            assert_eq!(house.send(request).await.header("x-request-id"), Some("same"));
        }
        let entries = house.entries();
        assert_eq!(entries.len(), 2);
        assert_ne!(entries[0].id, entries[1].id);
        let ids: Vec<_> =
            house.engines[0].runs().iter().map(|run| run.header("x-request-id").unwrap().to_owned()).collect();
        assert_ne!(ids[0], ids[1]);
    });
}

#[test]
fn metrics_move_with_the_ledger() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        house.chat().await;
        house.post(CHATS, CHAT_STREAM).await;
        house.post("/v1/nothing", "").await;
        let text = house.metrics();
        for line in [
            "llm_requests_total{model=\"tiny\",precision=\"bf16\",tp=\"1\"} 2",
            "llm_input_tokens_total{model=\"tiny\",precision=\"bf16\",tp=\"1\"} 74",
            "llm_output_tokens_total{model=\"tiny\",precision=\"bf16\",tp=\"1\"} 12",
            "llm_ttft_seconds_count{model=\"tiny\",precision=\"bf16\",tp=\"1\"} 2",
            "tidegate_accepted_total 3",
            "tidegate_requests_total{endpoint=\"/v1/chat/completions\"} 2",
            "tidegate_requests_total{endpoint=\"other\"} 1",
            "tidegate_faults_total{kind=\"no_route\"} 1",
            "tidegate_charged_tokens_total 86",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    });
}
