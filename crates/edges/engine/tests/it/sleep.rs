//! Sleep and wake, against the fake engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_engine::Dialect;
use tidegate_engine::client::{Endpoint, Pool, PoolSettings};
use tidegate_engine::sleep::{Level, SleepFault, Sleeper};
use tidegate_engine::trial::{Generated, Question, Terms, Trial, TrialFault};
use tidegate_testkit::{FakeEngine, Fault, Refusal, Script};

const MINUTE: Duration = Duration::from_secs(60);

async fn start(script: Script) -> (FakeEngine, Arc<Pool>) {
    let engine = FakeEngine::start(script).await.unwrap();
    let pool = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    (engine, pool)
}

fn sleepy() -> Script {
    Script { has_sleep_routes: true, ..Script::vllm("m") }
}

async fn ask(pool: &Arc<Pool>, terms: Terms) -> Result<Generated, TrialFault> {
    let trial = Trial { dialect: Dialect::Vllm, served_name: "m".into(), pool: Arc::clone(pool) };
    trial.generate(&Question::Chat(json!([{"role": "user", "content": "Hi"}])), terms).await
}

const TERMS: Terms = Terms { tokens_max: 16, within: MINUTE, has_logprobs: false };

#[tokio::test(start_paused = true)]
async fn an_engine_that_slept_without_its_weights_says_the_same_after_its_wake() {
    for level in [Level::One, Level::Two] {
        let (engine, pool) = start(sleepy()).await;
        let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
        assert_eq!(sleeper.level().await.unwrap(), None);
        sleeper.sleep(level).await.unwrap();
        assert_eq!(sleeper.level().await.unwrap(), Some(level));
        sleeper.wake(level, MINUTE).await.unwrap();
        assert_eq!(sleeper.level().await.unwrap(), None);
        let answer = ask(&pool, TERMS).await.unwrap();
        assert_eq!(answer.text, "Hello from the fake engine.", "{level:?}");
        let posts: Vec<_> = engine.requests().into_iter().filter(|request| request.method == "POST").collect();
        let targets: Vec<_> = posts.iter().map(|request| &*request.target).collect();
        let expected: &[&str] = match level {
            Level::One => &["/sleep?level=1&mode=wait", "/wake_up", "/v1/chat/completions"],
            Level::Two => &[
                "/sleep?level=2&mode=wait",
                "/wake_up?tags=weights",
                "/collective_rpc",
                "/wake_up?tags=kv_cache",
                "/v1/chat/completions",
            ],
        };
        assert_eq!(targets, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_after_a_wake_without_a_reload_is_what_the_fake_engine_shows_too() {
    let (_engine, pool) = start(sleepy()).await;
    let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
    sleeper.sleep(Level::Two).await.unwrap();
    sleeper.wake(Level::One, MINUTE).await.unwrap();
    assert_eq!(ask(&pool, TERMS).await.unwrap().text, "!!!!!!", "no error anywhere");
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_waited_for_and_frozen_when_it_does_not_end_but_never_aborted() {
    let (engine, pool) = start(sleepy().answering(40).paced(Duration::ZERO, Duration::from_secs(1))).await;
    let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
    let answer = async { ask(&pool, Terms { tokens_max: 40, within: MINUTE * 10, ..TERMS }).await };
    let night = async {
        engine.wait_for(|log| log.running == 1).await;
        sleeper.sleep(Level::One).await.unwrap();
        assert!(sleeper.is_sleeping().await.unwrap());
        assert_eq!(engine.log().running, 1, "it is frozen, not gone");
        sleeper.wake(Level::One, MINUTE).await.unwrap();
    };
    let (answer, ()) = tokio::join!(answer, night);
    let answer = answer.unwrap();
    assert_eq!((answer.output_tokens, &*answer.finish), (Some(40), "stop"), "whole");
    let modes = engine.requests().into_iter().filter(|request| request.path() == "/sleep");
    let modes: Vec<_> = modes.map(|request| request.target).collect();
    assert_eq!(modes, ["/sleep?level=1&mode=wait", "/sleep?level=1&mode=keep"]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_without_the_routes_says_what_it_was_started_without() {
    let (_engine, pool) = start(Script::vllm("m")).await;
    let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
    let fault = sleeper.sleep(Level::One).await.unwrap_err();
    assert!(matches!(fault, SleepFault::Unsupported { .. }));
    assert!(fault.to_string().contains("VLLM_SERVER_DEV_MODE=1"), "{fault}");
    assert!(Sleeper::new(Dialect::LlamaCpp, &pool).is_none());
    assert_eq!(
        [Level::of(0), Level::of(1), Level::of(2), Level::of(3)],
        [None, Some(Level::One), Some(Level::Two), None]
    );
    assert_eq!((Level::One.number(), Level::Two.number()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_timed_counted_and_judged_as_a_callers_would_be() {
    let (engine, pool) = start(Script::vllm("m").paced(Duration::from_secs(2), Duration::from_secs(1))).await;
    let answer = ask(&pool, TERMS).await.unwrap();
    assert_eq!((&*answer.text, &*answer.finish), ("Hello from the fake engine.", "stop"));
    assert_eq!((answer.prompt_tokens, answer.output_tokens), (Some(37), Some(6)));
    assert_eq!((answer.first_token, answer.took), (Some(Duration::from_secs(2)), Duration::from_secs(7)));
    let asked = engine.runs()[0].json();
    assert_eq!((&asked["stream"], &asked["temperature"]), (&json!(true), &json!(0)));

    for fault in [Fault::Abort(2), Fault::ErrorEvent(2), Fault::EndWithoutDone(2), Fault::Cut(2)] {
        engine.change(|script| script.fault = Some(fault.clone()));
        let error = ask(&pool, TERMS).await.unwrap_err();
        assert!(matches!(error, TrialFault::Broken(_) | TrialFault::Client(_)), "{fault:?}: {error}");
    }
    engine.change(|script| script.fault = Some(Fault::Refuse(Refusal::NotFound)));
    assert!(matches!(ask(&pool, TERMS).await.unwrap_err(), TrialFault::Refused { status: 404, .. }));
    engine.change(|script| script.fault = Some(Fault::Freeze(1)));
    assert!(matches!(ask(&pool, TERMS).await.unwrap_err(), TrialFault::Timeout { has_begun: true, .. }));
    engine.change(|script| script.fault = Some(Fault::Hang));
    assert!(matches!(ask(&pool, TERMS).await.unwrap_err(), TrialFault::Timeout { has_begun: false, .. }));
}

#[tokio::test(start_paused = true)]
async fn both_engines_count_tokens_their_own_way() {
    for (dialect, script) in [(Dialect::Vllm, Script::vllm("m")), (Dialect::LlamaCpp, Script::llamacpp("m"))] {
        let (_engine, pool) = start(script).await;
        let trial = Trial { dialect, served_name: "m".into(), pool };
        assert_eq!(trial.count("twelve bytes", MINUTE).await, Some(3), "{dialect:?}");
    }
}
