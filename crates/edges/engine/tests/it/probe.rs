//! Probes and scrapes, against the fake engine and against recordings.

use std::sync::Arc;
use std::time::Duration;

use tidegate_config::site::DeploymentKind;
use tidegate_core::Monotonic;
use tidegate_engine::Dialect;
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Connect, Endpoint, Pool, PoolSettings};
use tidegate_engine::probe::{NotReady, Probe, Ready};
use tidegate_engine::scrape::{self, ScrapeError, Signals};
use tidegate_routing::{Replica, ReplicaState};
use tidegate_testkit::{FakeEngine, Fault, Refusal, Script};
use tokio::time::Instant;

use crate::fixtures;
use crate::memory::Memory;

async fn start(script: Script) -> (FakeEngine, Arc<Pool>) {
    let engine = FakeEngine::start(script).await.unwrap();
    let pool = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    (engine, pool)
}

fn probe(dialect: Dialect, kind: DeploymentKind) -> Probe {
    Probe { dialect, kind, served_name: "m".into() }
}

#[tokio::test]
async fn ready_means_the_right_name_and_one_real_token() {
    let kinds = [DeploymentKind::Llm, DeploymentKind::Vlm, DeploymentKind::Embedding, DeploymentKind::Rerank];
    for kind in kinds {
        let (engine, pool) = start(Script::vllm("m")).await;
        let ready = probe(Dialect::Vllm, kind).run(&pool).await.unwrap();
        assert_eq!(ready, Ready { context_tokens: Some(8_192), slots: None });
        assert_eq!(engine.runs().len(), 1, "{kind:?}");
    }
    let (_engine, pool) = start(Script::llamacpp("m")).await;
    let ready = probe(Dialect::LlamaCpp, DeploymentKind::Llm).run(&pool).await.unwrap();
    assert_eq!(ready, Ready { context_tokens: Some(8_192), slots: Some(4) });
}

#[tokio::test]
async fn an_engine_that_would_answer_any_name_is_found_out() {
    let (engine, pool) = start(Script::llamacpp("something-else")).await;
    let not_ready = probe(Dialect::LlamaCpp, DeploymentKind::Llm).run(&pool).await.unwrap_err();
    assert_eq!(not_ready, NotReady::OtherModel { wanted: "m".into(), found: vec!["something-else".into()] });
    assert!(engine.runs().is_empty());
}

#[tokio::test]
async fn a_closed_port_and_503_are_booting() {
    let (engine, pool) = start(Script { is_loading: true, ..Script::llamacpp("m") }).await;
    let probe = probe(Dialect::LlamaCpp, DeploymentKind::Llm);
    assert!(probe.run(&pool).await.unwrap_err().is_booting());
    engine.stop_listening().await;
    pool.clear();
    assert!(probe.run(&pool).await.unwrap_err().is_booting());
    engine.listen_again().await.unwrap();
    engine.set(Script::llamacpp("m"));
    assert!(probe.run(&pool).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_asleep_lists_its_model_and_is_not_ready() {
    let (_engine, pool) = start(Script::vllm("m").failing(Fault::Freeze(0))).await;
    let within = Duration::from_secs(5);
    let not_ready = probe(Dialect::Vllm, DeploymentKind::Llm).run_within(&pool, within).await.unwrap_err();
    assert_eq!(not_ready, NotReady::Timeout(within));
    for fault in [Fault::Abort(0), Fault::NotJson, Fault::Refuse(Refusal::EngineDead), Fault::BadHead] {
        let (_engine, pool) = start(Script::vllm("m").failing(fault.clone())).await;
        let not_ready = probe(Dialect::Vllm, DeploymentKind::Llm).run(&pool).await.unwrap_err();
        assert!(matches!(not_ready, NotReady::NoToken(_)), "{fault:?}: {not_ready:?}");
    }
}

#[test]
fn recorded_pages_are_read() {
    for (name, dialect, waiting, running) in [
        ("vllm/metrics_idle.prom.http", Dialect::Vllm, 0.0, 0.0),
        ("llamacpp/metrics_idle.http", Dialect::LlamaCpp, 0.0, 0.0),
        ("llamacpp/metrics_load.http", Dialect::LlamaCpp, 2.0, 4.0),
    ] {
        let signals = scrape::parse(dialect, &fixtures::read(name).1);
        assert_eq!((signals.waiting, signals.running), (Some(waiting), Some(running)), "{name}");
        assert_eq!(signals.kv_usage.is_some(), dialect == Dialect::Vllm, "llama.cpp has no such signal: unknown");
    }
    let page = std::fs::read(fixtures::folder().join("vllm/metrics_load.prom")).unwrap();
    let signals = scrape::parse(Dialect::Vllm, &page);
    assert_eq!((signals.waiting, signals.running), (Some(6.0), Some(8.0)));
    assert!(signals.kv_usage.unwrap() < 0.001, "a full queue with an empty cache is normal");
    assert_eq!(signals.progress, Some(392.0 + 4_745.0));
}

#[tokio::test(start_paused = true)]
async fn a_scrape_reads_signals_or_says_why_not() {
    let (engine, pool) = start(Script::vllm("m")).await;
    let sample = scrape::scrape(&pool, Dialect::Vllm).await.unwrap();
    assert_eq!(
        sample.signals,
        Signals { waiting: Some(0.0), running: Some(0.0), kv_usage: Some(0.25), progress: Some(0.0) }
    );
    engine.change(|script| script.metrics = Some("".into()));
    assert_eq!(scrape::scrape(&pool, Dialect::Vllm).await.unwrap().signals, Signals::default());
    engine.change(|script| script.is_loading = true);
    assert!(matches!(scrape::scrape(&pool, Dialect::Vllm).await, Err(ScrapeError::Status(503))));
    engine.stop_listening().await;
    pool.clear();
    assert!(matches!(scrape::scrape(&pool, Dialect::Vllm).await, Err(ScrapeError::Client(_))));
}

/// A replica whose `/metrics` page the test renders.
fn watched() -> (Backend, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    let connect: Arc<dyn Connect> = Arc::clone(&memory) as Arc<dyn Connect>;
    let endpoint = Endpoint::custom(connect, "engine:8000", None).unwrap();
    let replica = Replica::new("replica/0".into());
    replica.set_state(ReplicaState::Serving);
    (Backend::new(replica, &endpoint, PoolSettings::default(), 1), memory)
}

const ONE_RUNS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 28\r\n\r\nvllm:num_requests_running 1\n";

#[tokio::test(start_paused = true)]
async fn a_sample_knows_what_the_engine_must_have_had() {
    let (backend, memory) = watched();
    let first = backend.replica().book(Monotonic::default()).unwrap();
    let mut engine = memory.prepare(4096);
    let (sample, second) = tokio::join!(scrape::scrape(backend.watch_pool(), Dialect::Vllm), async {
        engine.request(0).await;
        let second = backend.replica().book(Monotonic::default());
        engine.say(ONE_RUNS).await;
        second
    });
    let sample = sample.unwrap();
    assert_eq!((sample.booked, sample.signals.running), (Some(1), Some(1.0)));
    let before = sample.at - Duration::from_secs(1);
    backend.set_sample(Some(sample));
    assert!(!backend.claim_let_go(before), "the one that was booked runs");
    backend.set_sample(Some(scrape::Sample { booked: Some(3), ..sample }));
    assert!(!backend.claim_let_go(sample.at), "not taken after");
    assert_eq!([(); 3].map(|()| backend.claim_let_go(before)), [true, true, false], "each is claimed once");
    backend.set_sample(Some(scrape::Sample { booked: None, ..sample }));
    assert!(!backend.claim_let_go(before), "unknown is not idle");
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_not_freed_by_a_page_that_a_request_or_an_answer_on_its_way_is_missing_from() {
    let since = Instant::now() - Duration::from_secs(1);
    // The held one runs. Another was booked just before the scrape, or ends just after it: it is not on the page.
    for is_late in [false, true] {
        let (backend, memory) = watched();
        let book = || backend.replica().book(Monotonic::default()).unwrap();
        let held = book();
        let mut engine = memory.prepare(4096);
        let old = is_late.then(book);
        let (sample, young) = tokio::join!(scrape::scrape(backend.watch_pool(), Dialect::Vllm), async {
            let young = (!is_late).then(book);
            engine.request(0).await;
            engine.say(ONE_RUNS).await;
            drop(old);
            young
        });
        backend.set_sample(Some(sample.unwrap()));
        assert!(!backend.claim_let_go(since), "late: {is_late}");
        // When both were there all the time, the page shows that one has gone.
        let young = young.unwrap_or_else(book);
        let (sample, ()) = tokio::join!(scrape::scrape(backend.watch_pool(), Dialect::Vllm), async {
            engine.request(0).await;
            engine.say(ONE_RUNS).await;
        });
        backend.set_sample(Some(sample.unwrap()));
        assert_eq!([(); 2].map(|()| backend.claim_let_go(since)), [true, false], "late: {is_late}");
        drop((held, young));
    }
}
