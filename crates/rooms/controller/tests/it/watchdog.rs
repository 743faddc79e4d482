//! The watchdog of a serving replica, against the fake engine and as pure rules.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tidegate_config::site::DeploymentKind;
use tidegate_controller::gate::GateFault;
use tidegate_controller::gate::watchdog::{self, DEAD_AFTER, Doubt, Look, NO_EVIDENCE_MAX, TOKEN_WITHIN, Vitals};
use tidegate_engine::Dialect;
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Endpoint, Head, PoolSettings};
use tidegate_engine::probe::Probe;
use tidegate_engine::scrape::{EVERY, Signals};
use tidegate_routing::{Replica, ReplicaState};
use tidegate_testkit::{FakeEngine, Script};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

struct Ward {
    engine: FakeEngine,
    backend: Arc<Backend>,
    probe: Probe,
    told: Mutex<Vec<Option<String>>>,
}

impl Ward {
    async fn new(script: Script) -> Self {
        let dialect = match script.shape {
            tidegate_testkit::Shape::Vllm => Dialect::Vllm,
            tidegate_testkit::Shape::LlamaCpp => Dialect::LlamaCpp,
        };
        let engine = FakeEngine::start(script).await.unwrap();
        let endpoint = Endpoint::custom(engine.connector(), "fake", None).unwrap();
        let replica = Replica::new("d/0".into());
        replica.set_state(ReplicaState::Serving);
        let backend = Arc::new(Backend::new(replica, &endpoint, PoolSettings::default(), 1));
        let probe = Probe { dialect, kind: DeploymentKind::Llm, served_name: "m".into() };
        Self { engine, backend, probe, told: Mutex::default() }
    }

    async fn watch(&self) -> GateFault {
        watchdog::watch(&self.backend, &self.probe, &|what| self.told.lock().push(what)).await
    }

    /// The fault within so long, if there is one.
    async fn watch_for(&self, time: Duration) -> Option<GateFault> {
        timeout(time, self.watch()).await.ok()
    }

    /// A caller's request.
    async fn ask(&self) {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": true}).to_string();
        let answer = self.backend.pool(0).send(Head::post_json("/v1/chat/completions"), body.into()).await;
        if let Ok(answer) = answer {
            drop(answer.body.collect(1 << 24).await);
        }
    }

    fn state(&self) -> ReplicaState {
        self.backend.replica().state()
    }
}

#[tokio::test(start_paused = true)]
async fn a_healthy_idle_replica_is_asked_for_a_token_now_and_then_and_nothing_else_happens() {
    let ward = Ward::new(Script::vllm("m")).await;
    assert_eq!(ward.watch_for(SECOND * 600).await, None);
    let asked = ward.engine.runs().len();
    assert!((15..=20).contains(&asked), "once in half a minute: {asked}");
    assert_eq!(ward.state(), ReplicaState::Serving);
    assert!(ward.told.lock().iter().all(Option::is_none));
}

#[tokio::test(start_paused = true)]
async fn a_busy_healthy_replica_is_never_asked() {
    let ward = Ward::new(Script::vllm("m").answering(1_000).paced(Duration::ZERO, SECOND)).await;
    let watch = ward.watch_for(SECOND * 600);
    let (fault, _) = tokio::join!(watch, timeout(SECOND * 600, ward.ask()));
    assert_eq!(fault, None);
    assert_eq!(ward.engine.runs().len(), 1, "its counters show that it works");
}

#[tokio::test(start_paused = true)]
async fn l10_an_idle_engine_that_hangs_behind_a_healthy_page_is_out_of_the_pick_and_then_given_up() {
    for script in [Script::vllm("m"), Script::llamacpp("m")] {
        let ward = Ward::new(Script { is_stuck: true, ..script }).await;
        let begun = Instant::now();
        let out = async {
            while ward.state() == ReplicaState::Serving {
                sleep(SECOND).await;
            }
            begun.elapsed()
        };
        let (fault, out) = tokio::join!(ward.watch(), out);
        assert_eq!(fault.code(), "hung", "{fault}");
        assert!(
            fault.to_string().contains("though nothing runs") || fault.to_string().contains("requests run"),
            "{fault}"
        );
        assert!(out <= NO_EVIDENCE_MAX + EVERY + TOKEN_WITHIN + SECOND, "{out:?}");
        assert!(begun.elapsed() <= NO_EVIDENCE_MAX + EVERY + DEAD_AFTER + TOKEN_WITHIN * 2, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn l11_requests_that_hang_on_a_dead_core_are_noticed_by_what_does_not_come_out() {
    let ward = Ward::new(Script { is_stuck: true, ..Script::vllm("m") }).await;
    let (fault, _) = tokio::join!(ward.watch(), timeout(SECOND * 300, async { tokio::join!(ward.ask(), ward.ask()) }));
    assert_eq!(fault.code(), "hung");
    assert!(fault.to_string().contains("while 2 requests run"), "{fault}");
    assert!(fault.hint().contains("CUDA"), "{}", fault.hint());
    assert_eq!(ward.state(), ReplicaState::Failing);
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_serves_again() {
    let ward = Ward::new(Script { is_stuck: true, ..Script::vllm("m") }).await;
    let mend = async {
        while ward.state() == ReplicaState::Serving {
            sleep(SECOND).await;
        }
        ward.engine.change(|script| script.is_stuck = false);
    };
    let (fault, ()) = tokio::join!(ward.watch_for(SECOND * 600), mend);
    assert_eq!(fault, None);
    assert_eq!(ward.state(), ReplicaState::Serving);
    let told = ward.told.lock();
    assert!(told.iter().any(Option::is_some));
    assert_eq!(told.last(), Some(&None), "nothing is in the way any more");
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_closed_takes_it_out_at_once() {
    let ward = Ward::new(Script::vllm("m")).await;
    ward.engine.kill();
    let begun = Instant::now();
    let fault = ward.watch().await;
    assert_eq!(fault.code(), "silent", "{fault}");
    assert!(begun.elapsed() <= EVERY * 2 + DEAD_AFTER + SECOND * 5, "{:?}", begun.elapsed());
    assert_eq!(ward.state(), ReplicaState::Failing);
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_a_metrics_page_is_asked_when_it_is_idle() {
    let ward = Ward::new(Script { metrics: Some("".into()), ..Script::vllm("m") }).await;
    assert_eq!(ward.watch_for(SECOND * 300).await, None);
    assert!(!ward.engine.runs().is_empty());
}

fn signals(running: f64, progress: f64) -> Look {
    Look::Signals(Signals { running: Some(running), progress: Some(progress), ..Signals::default() })
}

#[tokio::test(start_paused = true)]
async fn doubts_have_their_reasons_and_a_queue_that_moves_is_none() {
    let start = Instant::now();
    let mut vitals = Vitals::new(start);
    assert_eq!(vitals.look(&signals(0.0, 5.0), 0, false, start + SECOND * 29), None);
    assert_eq!(vitals.look(&signals(0.0, 5.0), 0, false, start + SECOND * 30), Some(Doubt::Idle));
    assert_eq!(vitals.look(&signals(3.0, 5.0), 3, false, start + SECOND * 31), Some(Doubt::Stalled { running: 3 }));
    assert_eq!(vitals.look(&signals(3.0, 6.0), 3, false, start + SECOND * 32), None, "something came out");
    assert_eq!(vitals.look(&signals(3.0, 2.0), 3, false, start + SECOND * 90), None, "another engine counts anew");
    assert_eq!(vitals.look(&signals(3.0, 2.0), 3, true, start + SECOND * 91), Some(Doubt::Broken));
    let missed = Look::Missed("refused".into());
    assert_eq!(vitals.look(&missed, 0, false, start + SECOND * 92), None, "one is no reason");
    assert_eq!(vitals.look(&missed, 0, false, start + SECOND * 97), Some(Doubt::Silent("refused".into())));
    vitals.token(start + SECOND * 98);
    assert_eq!(vitals.look(&missed, 0, false, start + SECOND * 99), None);
    assert_eq!(vitals.look(&Look::NoPage, 4, false, start + SECOND * 900), None, "nobody can tell a queue from a hang");
    assert_eq!(vitals.look(&Look::NoPage, 0, false, start + SECOND * 930), Some(Doubt::Idle));
    let unknown = Look::Signals(Signals { running: Some(2.0), ..Signals::default() });
    assert_eq!(vitals.look(&unknown, 2, false, start + SECOND * 2_000), None);
    assert!(Doubt::Broken.is_grave() && Doubt::Silent("x".into()).is_grave());
    assert!(!Doubt::Idle.is_grave() && !Doubt::Stalled { running: 1 }.is_grave());
}
