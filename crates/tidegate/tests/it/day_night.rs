//! Switches of real processes, by hand and over a restart: the controller, its node, the gate and the command line.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Output, Stdio};

use serde_json::Value;
use tidegate_testkit::fake::Script;
use tidegate_testkit::fake_engine_program;

use crate::gate::{Gate, documents, free_address, program};

/// How the engines of the two shifts behave.
#[derive(Clone, Copy)]
pub(crate) struct Engines {
    /// Switches of the fake engine that answers `sun`, and of the one that answers `moon`.
    sun: &'static str,
    moon: &'static str,
    drain: &'static str,
}

pub(crate) const GOOD: Engines = Engines { sun: "answer=sun", moon: "answer=moon", drain: "1s" };

/// `chat` is `sun` in the shift that the clock says now and `moon` in the other one, so that every test begins alike.
pub(crate) fn site(gate: SocketAddr, admin: SocketAddr, engines: Engines) -> String {
    let engine = fake_engine_program().unwrap();
    let port = free_address().port().min(65_000);
    let (first, second) = (now_and_then(-60), now_and_then(12 * 60));
    let deployment = |name: &str, switches: &str| {
        format!(
            "---
kind: Deployment
metadata: {{name: {name}}}
spec:
  model: {name}
  launch: {{replicas: 1, command: ['{}', serve], env: {{FAKE_ENGINE: '{switches}'}}}}
  hostMemory: 700MB
  limits: {{contextTokens: 8192, maxOutputTokens: 256}}
  warmup: {{prompts: {{fromFile: golden.jsonl}}, stabilise: 0s, longContext: false}}
---
kind: Model
metadata: {{name: {name}}}
spec: {{engine: vllm, source: {{local: .}}}}
",
            engine.display()
        )
    };
    let base = documents(gate, admin, "http://127.0.0.1:9");
    let (head, rest) = base.split_once("---\nkind: Model").unwrap();
    let (_, team) = rest.split_once("---\nkind: Team").unwrap();
    format!(
        "{}  enginePorts: {port}-{}
---
kind: Node
metadata: {{name: here}}
spec: {{facts: document, gpus: {{count: 1}}, hostMemory: 2GB}}
{}{}---
kind: Schedule
metadata: {{name: every}}
spec:
  timeZone: UTC
  shifts:
    - {{name: day, start: '{first}', deployments: [sun]}}
    - {{name: night, start: '{second}', deployments: [moon]}}
  lead: {{prefetch: 5s, verify: 4s, deploy: 3s, load: 2s, ready: 1s}}
  drain: {{timeout: {}}}
---
kind: Alias
metadata: {{name: chat}}
spec: {{shifts: {{day: {{targets: [{{deployment: sun}}]}}, night: {{targets: [{{deployment: moon}}]}}}}}}
---
kind: Team{}",
        head,
        port + 20,
        deployment("sun", engines.sun),
        deployment("moon", engines.moon),
        engines.drain,
        team.replace("rpm: 1000", "rpm: 1000000"),
    )
}

/// The time of the day so many minutes from now, in UTC.
fn now_and_then(minutes: i64) -> String {
    let at = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_mins(minutes)).unwrap();
    at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M").to_string()
}

/// A gate whose first switch, into the day, is over.
fn start(engines: Engines) -> Gate {
    let gate = Gate::start_in(Script::vllm("unused"), |folder, gate, admin, _| {
        let golden = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 4}\n";
        std::fs::write(folder.join("golden.jsonl"), golden).unwrap();
        site(gate, admin, engines)
    });
    gate.until("day is loaded", || {
        let status = gate.lifecycle();
        status["shift"] == "day" && status["switch"].is_null()
    });
    gate
}

impl Gate {
    fn says(&self, key: &str) -> String {
        let answer = self.chat(key);
        assert_eq!(answer.status, 200, "{}\n{}", answer.body, self.log());
        answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    fn lifecycle(&self) -> Value {
        self.verb_json(&["switch", "status"])
    }

    fn begin(&self, args: &[&str]) -> Child {
        let mut command = program();
        command.args(args).arg("--state").arg(self.folder.path().join("state"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// One stream after the other until it is told to stop; every one that is not whole.
fn stream_until(address: SocketAddr, key: &str, stop: &std::sync::atomic::AtomicBool) -> (usize, Vec<String>) {
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"stream":true}"#;
    let (mut whole, mut broken) = (0, Vec::new());
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        let text = crate::gate::post_to(address, key, body).map_or_else(String::new, |answer| answer.body);
        if text.ends_with("data: [DONE]\n\n") { whole += 1 } else { broken.push(text) }
    }
    (whole, broken)
}

/// Stops the load also when an assertion fails.
struct Stopping<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_switch_and_a_rollback_under_load_lose_no_request() {
    let gate = start(GOOD);
    let key = gate.key();
    assert!(gate.says(&key).contains("sun"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (address, key) = (gate.address, &*key);
    let results: Vec<_> = std::thread::scope(|scope| {
        let load: Vec<_> = (0..2).map(|_| scope.spawn(|| stream_until(address, key, &stop))).collect();
        let stopping = Stopping(&stop);
        let there = gate.verb(&["switch", "now", "--to", "night", "--wait", "--timeout", "1m"]);
        assert_eq!(code(&there), Some(0), "{}", said(&there));
        for line in ["new moon: proven", "alias chat goes to moon", "is complete after"] {
            assert!(said(&there).contains(line), "{line}: {}", said(&there));
        }
        assert!(gate.says(key).contains("moon"));
        let back = gate.verb(&["switch", "rollback", "--wait", "--timeout", "1m", "--json"]);
        assert_eq!(code(&back), Some(0), "{}", said(&back));
        let last = String::from_utf8_lossy(&back.stdout).lines().last().unwrap().to_owned();
        assert_eq!(serde_json::from_str::<Value>(&last).unwrap()["outcome"], "complete");
        drop(stopping);
        load.into_iter().map(|load| load.join().unwrap()).collect()
    });
    assert!(gate.says(key).contains("sun"));
    for (whole, broken) in results {
        assert!(whole > 10 && broken.is_empty(), "{whole} whole, broken: {broken:?}");
    }
    let listed = gate.verb_json(&["switch", "ls"]);
    let outcomes: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes[..2], ["complete", "complete"]);
    assert!(gate.metric("tidegate_switch_lateness_seconds") >= 0.0);
    assert!((gate.metric(r#"tidegate_switch_state{state="idle"}"#) - 1.0).abs() < f64::EPSILON);
    let again = gate.verb(&["switch", "now", "--to", "day", "--wait"]);
    assert_eq!(code(&again), Some(5), "nothing to do: {}", said(&again));
}

/// It is tried again after a minute, five and fifteen; nobody has to wait for that to go back.
#[test]
fn a_broken_night_leaves_the_day_serving_and_says_why() {
    let gate = start(Engines { moon: "exit-at-load", ..GOOD });
    let key = gate.key();
    assert_eq!(code(&gate.verb(&["switch", "now", "--to", "night"])), Some(0));
    let why = "ValueError: no kernel for this model";
    let says_why = || String::from_utf8(gate.verb(&["status"]).stdout).unwrap().contains(why);
    gate.until("it says why", says_why);
    assert!(gate.says(&key).contains("sun"));
    let waited = gate.verb(&["switch", "now", "--to", "night", "--wait", "--timeout", "1s"]);
    assert_eq!(code(&waited), Some(4), "{}", said(&waited));
    assert!(said(&waited).contains(why), "whoever waits hears it, too: {}", said(&waited));
    let aborted = gate.verb(&["switch", "abort", "--wait", "--timeout", "1m"]);
    assert_eq!(code(&aborted), Some(0), "{}", said(&aborted));
    assert!(gate.says(&key).contains("sun"));
}

#[test]
fn an_abort_ends_with_the_old_set() {
    let gate = start(Engines { moon: "answer=moon,load=60000", ..GOOD });
    let key = gate.key();
    let nothing = gate.verb(&["switch", "abort"]);
    assert_eq!(code(&nothing), Some(5), "{}", said(&nothing));
    let begun = gate.verb(&["switch", "now", "--to", "night"]);
    assert_eq!(code(&begun), Some(0), "{}", said(&begun));
    gate.until("moon loads", || gate.lifecycle()["switch"]["new"]["moon"] == "starting");
    let aborted = gate.verb(&["switch", "abort", "--wait", "--timeout", "1m"]);
    assert_eq!(code(&aborted), Some(0), "{}", said(&aborted));
    assert!(gate.says(&key).contains("sun"));
    assert_eq!(gate.lifecycle()["last"]["outcome"], "aborted");
}

#[test]
fn whoever_waits_sees_a_switch_through_the_death_of_the_controller() {
    let mut gate = start(Engines { moon: "answer=moon,load=3000", ..GOOD });
    let key = gate.key();
    let mut waiting = gate.begin(&["switch", "now", "--to", "night", "--wait", "--timeout", "2m"]);
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains("new moon: starting")));
    gate.kill();
    gate.start_again();
    let rest: Vec<String> = lines.collect();
    assert_eq!(waiting.wait().unwrap().code(), Some(0), "{rest:?}\n{}", gate.log());
    assert!(gate.says(&key).contains("moon"), "{rest:?}");
}

#[test]
fn what_is_said_while_no_process_runs_is_in_force_when_one_starts() {
    let mut gate = start(GOOD);
    let key = gate.key();
    gate.stop();
    let told = gate.verb(&["switch", "now", "--to", "night"]);
    assert!(said(&told).contains("the next one is told: night"), "{}", said(&told));
    gate.start_again();
    gate.until("moon", || gate.chat(&key).body.contains("moon"));
    assert_eq!(gate.lifecycle()["said"]["who"], "owner");
    let back = gate.verb(&["switch", "resume", "--wait", "--timeout", "1m"]);
    assert_eq!(code(&back), Some(0), "{}", said(&back));
    assert!(gate.says(&key).contains("sun"), "the Schedule decides again");
}

/// L17 and L20, with a real process behind the gate.
#[test]
fn a_stream_that_outlasts_the_drain_ends_in_an_error_event() {
    let gate = start(Engines { sun: "pace=200,tokens=5000", ..GOOD });
    let key = gate.key();
    let body = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":250,"stream":true}"#;
    let mut stream: TcpStream = gate.open(&key, body);
    let mut first = [0; 1];
    stream.read_exact(&mut first).unwrap();
    let output = gate.verb(&["switch", "now", "--to", "night", "--wait", "--timeout", "1m"]);
    assert_eq!(code(&output), Some(0), "{}", said(&output));
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("upstream_interrupted") && !text.contains("[DONE]"), "{text}");
    assert!(text.ends_with("0\r\n\r\n"), "the body itself ends as its framing says: {text}");
    assert!(gate.says(&key).contains("moon"));
}
