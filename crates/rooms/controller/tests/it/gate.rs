//! The gate that a replica passes, against the fake engine.

use std::sync::Arc;
use std::time::Duration;

use tidegate_config::site::DeploymentKind;
use tidegate_controller::gate::{self, GateFault, GateReport, GateSpec, golden, long};
use tidegate_controller::launcher::Blueprint;
use tidegate_engine::Dialect;
use tidegate_engine::client::{Endpoint, Pool, PoolSettings};
use tidegate_engine::sleep::{Level, Sleeper};
use tidegate_testkit::{FakeEngine, Fault, Refusal, Script};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn start(script: Script) -> (FakeEngine, Arc<Pool>) {
    let engine = FakeEngine::start(script).await.unwrap();
    let pool = Pool::new(Endpoint::custom(engine.connector(), "fake", None).unwrap(), PoolSettings::default());
    (engine, pool)
}

/// A fake engine that counts its prompts' tokens.
pub(crate) fn counting() -> Script {
    Script { prompt_tokens: None, ..Script::vllm("m") }
}

fn blueprint(kind: &str, warmup: &str) -> Blueprint {
    let site = crate::stage::site(&format!(
        "kind: Model\nmetadata: {{name: m}}\nspec: {{engine: vllm, source: {{path: a/b}}}}\n---\n\
         kind: Deployment\nmetadata: {{name: d}}\nspec: {{model: m, kind: {kind}, launch: {{replicas: 1}}, limits: {{contextTokens: 8192}}, warmup: {warmup}}}\n"
    ));
    let deployment = site.deployments["d"].clone();
    Blueprint {
        name: "d".into(),
        deployment,
        engine: None,
        model: None,
        dialect: Dialect::Vllm,
        revision: 1,
        may_sleep: true,
    }
}

fn spec(kind: &str, prompts: Option<&str>) -> GateSpec {
    GateSpec::new(&blueprint(kind, "{}"), prompts).unwrap()
}

async fn pass(pool: &Arc<Pool>, spec: &GateSpec) -> Result<GateReport, GateFault> {
    gate::run(pool, spec, &|_| {}).await
}

async fn fails(script: Script) -> GateFault {
    let (_engine, pool) = start(script).await;
    pass(&pool, &spec("llm", None)).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_healthy_replica_passes_and_what_was_seen_of_it_is_told() {
    let (engine, pool) = start(counting().paced(SECOND, Duration::ZERO)).await;
    let report = pass(&pool, &spec("llm", None)).await.unwrap();
    assert_eq!(report.context_tokens, Some(8_192));
    assert_eq!(report.ttft_max, Some(SECOND));
    // token, two warm-ups, one golden prompt, two short prompts and the long one: a second each
    assert_eq!((report.warm_up, report.stabilise), (SECOND * 7, SECOND * 11), "the last one is asked at the end");
    assert_eq!(report.asked, 1 + 4, "every two seconds, each taking one");
    let target = long::target(8_192);
    let long = report.long_tokens.unwrap();
    assert!((target - target / 50..=8_192).contains(&long), "{long} of {target}");
    assert!(report.notes.is_empty());
    assert!(engine.runs().iter().any(|run| run.path() == "/v1/chat/completions"), "the way that callers take");
}

#[tokio::test(start_paused = true)]
async fn l08_out_of_memory_behind_a_healthy_page_does_not_pass() {
    let (engine, pool) = start(Script { faults: vec![Some(Fault::OutOfMemory)], ..counting() }).await;
    let first = pass(&pool, &spec("llm", None)).await.unwrap_err();
    assert_eq!(first.code(), "not_ready", "{first}");
    let second = pass(&pool, &spec("llm", None)).await.unwrap_err();
    assert_eq!(second.code(), "no_token", "it is sticky: {second}");
    let health = pool.send(tidegate_engine::client::Head::get("/health"), "".into()).await.unwrap();
    assert_eq!(health.head.status, 200);
    assert!(engine.log().requests.len() >= 4);
}

#[tokio::test(start_paused = true)]
async fn l08_out_of_memory_at_the_first_long_prompt_does_not_pass_either() {
    // token, warm-ups, golden and short prompts go well
    let faults = [vec![None; 6], vec![Some(Fault::OutOfMemory)]].concat();
    let fault = fails(Script { faults, ..counting() }).await;
    assert_eq!(fault.code(), "context_short");
    assert!(fault.to_string().contains("status 500"), "{fault}");
}

#[tokio::test(start_paused = true)]
async fn l09_a_warm_up_call_that_gets_404_fails_the_gate_though_health_and_token_were_good() {
    let refused = Some(Fault::Refuse(Refusal::NotFound));
    let fault = fails(Script { faults: vec![None, refused.clone(), refused], ..counting() }).await;
    assert_eq!(fault.code(), "warm_up_failed");
    assert!(fault.to_string().contains("404"), "{fault}");
    assert!(fault.hint().contains("by hand"));
}

#[tokio::test(start_paused = true)]
async fn l10_a_hang_behind_a_healthy_page_does_not_pass() {
    let fault = fails(Script { is_stuck: true, ..counting() }).await;
    assert_eq!(fault.code(), "no_token");
    let fault = fails(Script { faults: vec![None, Some(Fault::Hang)], ..counting() }).await;
    assert_eq!(fault, GateFault::NoToken { prompt: "the built-in prompt".into(), within: gate::WARM_UP_WITHIN });
}

#[tokio::test(start_paused = true)]
async fn l12_garbage_after_a_wake_without_a_reload_does_not_pass() {
    let (_engine, pool) = start(Script { has_sleep_routes: true, ..counting() }).await;
    let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
    let spec = spec("llm", None);
    for (level, wake, passes) in
        [(Level::One, Level::One, true), (Level::Two, Level::Two, true), (Level::Two, Level::One, false)]
    {
        sleeper.sleep(level).await.unwrap();
        sleeper.wake(wake, SECOND * 60).await.unwrap();
        let passed = pass(&pool, &spec).await;
        assert_eq!(passed.is_ok(), passes, "{level:?} woken as {wake:?}: {passed:?}");
        assert!(passed.err().is_none_or(|fault| fault.code() == "garbage"));
    }
}

#[tokio::test(start_paused = true)]
async fn l12_garbage_after_a_wake_at_level_one_does_not_pass_either() {
    let (_engine, pool) = start(Script { has_sleep_routes: true, wakes_wrong: true, ..counting() }).await;
    pass(&pool, &spec("llm", None)).await.unwrap();
    let sleeper = Sleeper::new(Dialect::Vllm, &pool).unwrap();
    sleeper.sleep(Level::One).await.unwrap();
    sleeper.wake(Level::One, SECOND * 60).await.unwrap();
    let fault = pass(&pool, &spec("llm", None)).await.unwrap_err();
    assert_eq!(fault.code(), "garbage");
    assert!(fault.to_string().contains("\"!!!!!!\""), "{fault}");
}

#[tokio::test(start_paused = true)]
async fn empty_and_repeated_answers_do_not_pass() {
    assert_eq!(fails(counting().saying("!!!!!!")).await.code(), "garbage");
    let fault = fails(Script { tokens: vec![" ".into()], ..counting() }).await;
    assert_eq!(fault.code(), "empty_answer");
    let allowed = GateSpec::new(&blueprint("llm", "{expectNonEmpty: false}"), None).unwrap();
    let (_engine, pool) = start(Script { tokens: vec![" ".into()], ..counting() }).await;
    assert!(pass(&pool, &allowed).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_first_token_that_is_late_fails_once_the_engine_is_warm() {
    let slow = |seconds: u64| Some(Fault::SlowFirstByte(SECOND * u32::try_from(seconds).unwrap()));
    // token and warm-ups may take their time
    let (_engine, pool) = start(Script { faults: vec![slow(20), slow(100), slow(100)], ..counting() }).await;
    pass(&pool, &spec("llm", None)).await.unwrap();
    let (_engine, pool) = start(Script { faults: vec![None, None, None, slow(31)], ..counting() }).await;
    let fault = pass(&pool, &spec("llm", None)).await.unwrap_err();
    let expected =
        GateFault::SlowFirstToken { prompt: "the built-in prompt".into(), took: SECOND * 31, bound: SECOND * 30 };
    assert_eq!(fault, expected, "the default bound");
    let (_engine, pool) = start(Script { faults: vec![None, None, None, slow(61)], ..counting() }).await;
    assert_eq!(pass(&pool, &spec("llm", None)).await.unwrap_err().code(), "no_token", "over its own bound");
}

#[tokio::test(start_paused = true)]
async fn a_context_shorter_than_promised_does_not_pass_whether_it_is_told_or_not() {
    let told = fails(Script { context_tokens: 4_096, ..counting() }).await;
    assert_eq!(told, GateFault::ContextShort { promised: 8_192, why: "the engine says that it serves 4096".into() });
    let untold = fails(Script { context_served: Some(7_000), ..counting() }).await;
    assert_eq!(untold.code(), "context_short");
    assert!(untold.to_string().contains("refused with status 400"), "{untold}");
    let cut = fails(Script { prompt_tokens: Some(37), ..counting() }).await;
    assert_eq!(cut.code(), "context_unproven", "every prompt has 37 tokens: {cut}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_counted_by_the_engines_tokenizer_when_answers_do_not_say() {
    // the two short prompts and the long one
    let faults = [vec![None; 4], vec![Some(Fault::NoUsage); 3]].concat();
    let (engine, pool) = start(Script { faults, ..counting() }).await;
    let report = pass(&pool, &spec("llm", None)).await.unwrap();
    assert!(report.long_tokens.is_some());
    assert_eq!(engine.requests().iter().filter(|request| request.path() == "/tokenize").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_healthy_only_for_a_while_does_not_pass() {
    let faults = [vec![None; 9], vec![Some(Fault::Refuse(Refusal::EngineDead))]].concat();
    let fault = fails(Script { faults, ..counting() }).await;
    assert_eq!(fault.code(), "unstable");
    assert!(matches!(fault, GateFault::Unstable { after, .. } if after == SECOND * 6), "{fault}");
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_chat_template_is_asked_as_text_and_that_is_told() {
    // with probabilities, without, as a text; the same again
    let refused = Some(Fault::Refuse(Refusal::BadTemperature));
    let (engine, pool) = start(Script { faults: vec![None, refused.clone(), refused], ..counting() }).await;
    let report = pass(&pool, &spec("llm", None)).await.unwrap();
    assert!(report.notes[0].contains("chat template"), "{:?}", report.notes);
    assert_eq!(engine.runs().iter().filter(|run| run.path() == "/v1/chat/completions").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn embeddings_and_rerankers_have_a_shape_of_their_own() {
    for kind in ["embedding", "rerank"] {
        let (_engine, pool) = start(counting()).await;
        let spec = spec(kind, None);
        let passed = pass(&pool, &spec).await;
        // the fake engine scores by position, and the answer is not the first
        match kind {
            "rerank" => assert_eq!(passed.unwrap_err().code(), "unexpected_answer"),
            _ => assert!(passed.unwrap().long_tokens.is_some()),
        }
    }
    let own = r#"{"query": "tide", "documents": ["the tide", "a screw"], "expect": {"first": 0}}"#;
    let (_engine, pool) = start(counting()).await;
    pass(&pool, &spec("rerank", Some(own))).await.unwrap();
    let own = r#"{"input": ["a", "b"], "expect": {"dimensions": 4}}"#;
    pass(&pool, &spec("embedding", Some(own))).await.unwrap();
    let own = r#"{"input": "a", "expect": {"dimensions": 768}}"#;
    assert_eq!(pass(&pool, &spec("embedding", Some(own))).await.unwrap_err().code(), "unexpected_answer");
}

#[tokio::test(start_paused = true)]
async fn a_picture_is_shown_to_a_vision_model_and_a_worker_is_only_asked_whether_it_is_there() {
    let (engine, pool) = start(counting()).await;
    pass(&pool, &spec("vlm", None)).await.unwrap();
    let shown = |run: &tidegate_testkit::Recorded| run.json()["messages"][0]["content"][0]["image_url"]["url"].clone();
    let pictures: Vec<_> = engine.runs().iter().map(shown).filter(|url| url.is_string()).collect();
    assert!(pictures.iter().all(|url| url.as_str().unwrap().starts_with("data:image/png;base64,iVBOR")));
    assert!(!pictures.is_empty());
    let (engine, pool) = start(counting()).await;
    let report = pass(&pool, &spec("document", None)).await.unwrap();
    assert_eq!((report.asked, report.long_tokens, engine.runs().len()), (0, None, 0));
}

#[tokio::test(start_paused = true)]
async fn golden_prompts_of_the_documents_are_judged_as_they_say() {
    let says = "Hello from the fake engine.";
    let digest = "dfaea6f7243844d6dfb9c94382173dee916d4b46c706ebf130bd28e7f8e2b544";
    for (expect, passes) in [
        (r#"{"contains": "fake engine"}"#, true),
        (r#"{"contains": ["Hello", "fake"]}"#, true),
        (r#"{"contains": ["Hello", "real"]}"#, false),
        (r#"{"matches": "^Hello .* engine\\.$"}"#, true),
        (r#"{"matches": "^engine"}"#, false),
        (r#"{"json": true}"#, false),
        (&format!(r#"{{"sha256": "sha256:{digest}"}}"#), true),
        (&format!(r#"{{"sha256": "{}"}}"#, digest.replace('0', "1")), false),
    ] {
        let (_engine, pool) = start(counting()).await;
        let line = format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}], "expect": {expect}}}"#);
        let passed = pass(&pool, &spec("llm", Some(&line))).await;
        assert_eq!(passed.is_ok(), passes, "{expect}: {passed:?}");
        assert!(
            passed.err().is_none_or(|fault| fault.code() == "unexpected_answer" && fault.to_string().contains(says))
        );
    }
    for (answer, json, passes) in [
        (r#"{"a": 1, "b": 2}"#, "true", true),
        (r#"{"a": 1, "b": 2}"#, r#"{"a": 1, "b": null}"#, true),
        (r#"{"a": 1, "b": 2}"#, r#"{"a": 2}"#, false),
        (r#"{"a": 1}"#, r#"{"c": null}"#, false),
        ("42 is it", "true", false),
    ] {
        let (_engine, pool) = start(counting().saying(answer)).await;
        let line = format!(r#"{{"prompt": "p", "max_tokens": 32, "expect": {{"json": {json}}}}}"#);
        assert_eq!(pass(&pool, &spec("llm", Some(&line))).await.is_ok(), passes, "{answer} as {json}");
    }
}

#[test]
fn golden_prompts_that_cannot_be_used_say_in_which_line_and_why() {
    let parse = |text: &str| golden::parse(text, true).map(|goldens| goldens.len());
    assert_eq!(parse("# golden\n\n// more\n{\"prompt\": \"p\"}\n{\"input\": \"p\", \"within\": \"1500ms\"}\n"), Ok(2));
    for (text, why) in [
        ("", "there is none in the file"),
        ("{\"prompt\": \"p\"}\n{", "line 2: EOF"),
        ("{}", "line 1: one of `messages`, `prompt`, `input`"),
        (r#"{"prompt": "p", "messages": []}"#, "line 1: one of"),
        (r#"{"messages": "p"}"#, "`messages` is a list"),
        (r#"{"prompt": "p", "max_tokens": 0}"#, "`max_tokens` is from 1 to 4096"),
        (r#"{"prompt": "p", "max_tokens": 4097}"#, "`max_tokens` is from 1 to 4096"),
        (r#"{"prompt": "p", "within": "0s"}"#, "`within` is a time such as 20s"),
        (r#"{"prompt": "p", "within": "601s"}"#, "`within` is a time such as 20s, up to 600s"),
        (r#"{"prompt": "p", "within": "20"}"#, "`within` is a time"),
        (r#"{"prompt": "p", "expects": {}}"#, "unknown field `expects`"),
        (r#"{"prompt": "p", "expect": {"matches": "("}}"#, "`matches`: regex parse error"),
        (r#"{"prompt": "p", "expect": {"matches": "(\\w{1000}){1000}"}}"#, "`matches`: "),
        (r#"{"prompt": "p", "expect": {"sha256": "12"}}"#, "`sha256` is 64 hexadecimal digits"),
        (r#"{"prompt": "p", "expect": {"json": false}}"#, "`json` is true, or an object"),
    ] {
        let fault = parse(text).unwrap_err();
        assert!(fault.to_string().contains(why), "{text}: {fault}");
        assert_eq!(fault.code(), "golden_prompts");
    }
    let line = "{\"prompt\": \"p\"}\n";
    assert_eq!(parse(&line.repeat(golden::GOLDENS_MAX)), Ok(golden::GOLDENS_MAX));
    assert!(parse(&line.repeat(golden::GOLDENS_MAX + 1)).is_err());
    let pad = |bytes: usize| format!("{line}#{}", "x".repeat(bytes - line.len() - 1));
    assert_eq!(parse(&pad(golden::FILE_MAX)), Ok(1));
    assert!(parse(&pad(golden::FILE_MAX + 1)).is_err());
    assert!(parse(r#"{"prompt": "p", "within": "10m", "max_tokens": 4096}"#).is_ok());
}

#[tokio::test]
async fn golden_prompts_are_read_from_where_the_documents_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("warmup.jsonl");
    std::fs::write(&file, "{\"prompt\": \"p\"}\n").unwrap();
    let own = blueprint("llm", &format!("{{prompts: {{fromFile: {}}}}}", file.display()));
    assert_eq!(GateSpec::read(&own).await.unwrap().goldens.len(), 1);
    std::fs::remove_file(&file).unwrap();
    let fault = GateSpec::read(&own).await.unwrap_err();
    assert!(fault.to_string().contains("warmup.jsonl"), "{fault}");
    let unset = blueprint("llm", "{prompts: {fromEnv: NOBODY_SETS_THIS}}");
    assert!(GateSpec::read(&unset).await.unwrap_err().to_string().contains("NOBODY_SETS_THIS"));
    let spec = GateSpec::read(&blueprint("llm", "{stabilise: 3s, ttft: 2s, longContext: false}")).await.unwrap();
    assert_eq!(
        (spec.stabilise, spec.ttft, spec.long_context, spec.kind),
        (SECOND * 3, SECOND * 2, false, DeploymentKind::Llm)
    );
    assert!(spec.longest() > SECOND * 600);
}
