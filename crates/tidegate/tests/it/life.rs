//! Start, stop, death and what is left of it.

use std::io::Read as _;
use std::time::Duration;

use tidegate_testkit::fake::Script;

use crate::gate::{Gate, documents, free_address, program};

const STREAM: &str = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":40,"stream":true}"#;

#[test]
fn usage_adds_up_to_what_the_engine_reported() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    for _ in 0..5 {
        assert_eq!(gate.chat(&key).status, 200);
        assert_eq!(gate.post(&key, STREAM).status, 200);
    }
    let rows = gate.verb_json(&["usage", "--by", "team,alias"]);
    let engine = gate.engine.usage_log();
    // One more than ours: the probe asked for a token.
    let ours: Vec<_> = engine.iter().filter(|row| row.request_id.is_some()).collect();
    let (prompt, output): (u64, u64) =
        ours.iter().fold((0, 0), |(prompt, output), row| (prompt + row.prompt, output + row.output));
    let row = &rows["rows"][0];
    assert_eq!(row["requests"], 10);
    assert_eq!(row["ok"], 10);
    assert_eq!(row["prompt_tokens"], prompt, "{engine:?}");
    assert_eq!(row["output_tokens"], output);
}

#[test]
fn a_drain_lets_a_stream_finish_and_refuses_what_is_new() {
    let slow = Script::vllm("tiny").answering(20).paced(Duration::from_millis(10), Duration::from_millis(50));
    let mut gate = Gate::start(slow);
    let key = gate.key();
    let mut stream = gate.open(&key, STREAM);
    let log = gate.wait(gate.engine.wait_for(|log| log.running == 1));
    assert_eq!(log.running, 1);
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    assert!(gate.stop().success(), "{}", gate.log());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
}

#[test]
fn what_was_in_flight_at_a_kill_keeps_its_estimate_and_nothing_is_double() {
    let slow = Script::vllm("tiny").answering(200).paced(Duration::from_millis(10), Duration::from_millis(500));
    let mut gate = Gate::start(slow);
    let key = gate.key();
    let mut stream = gate.open(&key, STREAM);
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    gate.kill();
    drop(stream);
    gate.engine.change(|script| *script = Script::vllm("tiny"));
    // Asked while no process runs: the journal belongs to the usage.
    let alone = gate.verb_json(&["usage", "--by", "alias"]);
    assert_eq!(alone["rows"][0]["orphaned"], 1, "{alone}");
    assert_eq!(alone["rows"][0]["output_tokens"], 40, "the estimate stands");
    gate.start_again();
    assert_eq!(gate.chat(&key).status, 200, "the key outlives the process");
    let rows = gate.verb_json(&["usage", "--by", "alias"]);
    assert_eq!((&rows["rows"][0]["requests"], &rows["rows"][0]["orphaned"]), (&2.into(), &1.into()), "{rows}");
}

#[test]
fn a_kill_and_a_start_do_not_admit_the_limit_twice() {
    let mut gate = Gate::start(Script::vllm("tiny"));
    let text = std::fs::read_to_string(gate.documents()).unwrap().replace("rpm: 1000", "rpm: 3");
    std::fs::write(gate.documents(), text).unwrap();
    gate.until("reloaded", || gate.verb_json(&["status"])["documents"]["generation"] == 2);
    let key = gate.key();
    let statuses = |gate: &Gate, times: usize| (0..times).map(|_| gate.chat(&key).status).collect::<Vec<_>>();
    assert_eq!(statuses(&gate, 2), [200, 200]);
    gate.kill();
    gate.start_again();
    assert_eq!(statuses(&gate, 2), [200, 429]);
}

#[test]
fn a_second_process_on_one_state_folder_is_refused_and_names_the_first() {
    let gate = Gate::start(Script::vllm("tiny"));
    let output = program()
        .arg("up")
        .arg(gate.folder.path().join("site"))
        .arg("--state")
        .arg(gate.folder.path().join("state"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("is in use by process "), "{text}");
}

#[test]
fn a_second_gate_on_one_port_is_refused_instead_of_sharing_its_callers() {
    let gate = Gate::start(Script::vllm("tiny"));
    let folder = tempfile::TempDir::new().unwrap();
    let text = documents(gate.address, free_address(), &gate.engine.url());
    std::fs::write(folder.path().join("site.yaml"), text).unwrap();
    let output = program().arg("up").arg(folder.path()).arg("--state").arg(folder.path().join("s")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("cannot listen on {}", gate.address)), "{text}");
}

#[test]
fn a_shift_is_set_by_hand_and_read_at_the_next_start() {
    let mut gate = Gate::start(Script::vllm("tiny"));
    let output = gate.verb(&["shift", "set", "night"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there are: always"), "{output:?}");
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    let text = text.replace(
        "spec: {targets: [{deployment: tiny-v1, weight: 100}]}",
        "spec: {shifts: {day: {targets: [{deployment: tiny-v1, weight: 100}]}, night: {absent: {}}}}",
    ) + "---
kind: Schedule
metadata: {name: daily}
spec:
  timeZone: Asia/Seoul
  shifts:
    - {name: day, start: '08:00', deployments: [tiny-v1]}
    - {name: night, start: '22:00', deployments: []}
";
    std::fs::write(gate.documents(), text).unwrap();
    gate.until("reloaded", || gate.verb_json(&["status"])["documents"]["generation"] == 2);
    // Whatever the hour is, somebody's word counts until the next start.
    gate.verb_json(&["shift", "set", "day"]);
    gate.until("day is loaded", || {
        let shift = &gate.verb_json(&["status"])["shift"];
        (shift["name"].as_str(), shift["source"].as_str()) == (Some("day"), Some("set"))
    });
    let key = gate.key();
    gate.until("it answers", || gate.chat(&key).status == 200);
    assert!(gate.stop().success());
    gate.verb_json(&["shift", "set", "night"]);
    gate.start_again();
    gate.until("absent", || gate.chat(&key).status == 503);
    let absent = gate.chat(&key);
    assert_eq!(absent.status, 503);
    assert_eq!(absent.json()["error"]["code"], "model_unavailable");
    assert!(absent.head.contains("retry-after: "), "{}", absent.head);
    assert!(absent.json()["error"]["message"].as_str().unwrap().contains("08:00:00+09:00"), "{}", absent.body);
}

#[test]
fn a_metrics_page_carries_the_models_labels() {
    let gate = Gate::start(Script::vllm("tiny"));
    let key = gate.key();
    assert_eq!(gate.chat(&key).status, 200);
    let labels = r#"{model="tiny",precision="bf16",tp="1"}"#;
    assert!((gate.metric(&format!("llm_requests_total{labels}")) - 1.0).abs() < f64::EPSILON);
    assert!((gate.metric(&format!("llm_input_tokens_total{labels}")) - 37.0).abs() < f64::EPSILON);
    assert!((gate.metric(&format!("llm_output_tokens_total{labels}")) - 6.0).abs() < f64::EPSILON);
    for family in ["llm_ttft_seconds_count", "llm_itl_seconds_count", "llm_active_requests"] {
        gate.metric(&format!("{family}{labels}"));
    }
    gate.until("scraped", || gate.get_admin("/metrics").unwrap().body.contains(&format!("llm_queue_depth{labels}")));
    gate.metric(&format!("llm_kv_cache_usage_ratio{labels}"));
}

#[test]
fn a_second_signal_does_not_wait_for_the_drain() {
    let slow = Script::vllm("tiny").answering(200).paced(Duration::from_millis(10), Duration::from_secs(5));
    let mut gate = Gate::start(slow);
    let text = std::fs::read_to_string(gate.documents()).unwrap().replace("drain: 5s", "drain: 1h");
    std::fs::write(gate.documents(), text).unwrap();
    gate.kill();
    gate.start_again();
    let key = gate.key();
    let mut stream = gate.open(&key, STREAM);
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    gate.signal("TERM");
    gate.until("draining", || gate.log().contains("draining"));
    let status = gate.stop();
    assert_eq!(status.code(), Some(1), "{}", gate.log());
}
