//! `tidegate switch` and `tidegate gpu`: against a controller that plays a script, and without one.

use std::collections::VecDeque;
use std::future::ready;
use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tidegate_console::lifecycle::{
    Accepted, Ask, Failure, LifecycleStatus, NextShift, Note, QuarantinedGpu, Refused, RefusedKind, SwitchView,
};
use tidegate_console::{Console, Panel, Readiness, Soon, Trust, load_keyring, serve};
use tidegate_core::{ShiftName, TeamName, Unix};
use tidegate_identity::{Pepper, SharedKeyring};
use tidegate_store::Store;
use tidegate_store::store::{RouteRow, SwitchMode, SwitchOutcome, SwitchRow};
use tidegate_testkit::fake::Script;
use tokio::net::UnixListener;

use crate::gate::{Gate, documents, program};

/// What the controller says, one look after the other; the last one stays.
#[derive(Debug)]
struct Play {
    looks: Mutex<VecDeque<LifecycleStatus>>,
    answer: Result<Accepted, Refused>,
    asked: Mutex<Vec<Ask>>,
}

impl Panel for Play {
    fn readiness(&self) -> Readiness {
        Readiness { ready: true, waiting_for: Vec::new() }
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn status(&self) -> Value {
        serde_json::json!({"site": "test"})
    }

    fn has_team(&self, _: &TeamName) -> bool {
        false
    }

    fn shifts(&self) -> Vec<ShiftName> {
        vec!["day".into(), "night".into()]
    }

    fn time_zone(&self) -> TimeZone {
        TimeZone::get("Asia/Seoul").unwrap()
    }

    fn settle(&self) -> Soon<'_, ()> {
        Box::pin(ready(()))
    }

    fn lifecycle(&self) -> Option<LifecycleStatus> {
        let mut looks = self.looks.lock();
        if looks.len() > 1 { looks.pop_front() } else { looks.front().cloned() }
    }

    fn ask<'a>(&'a self, ask: Ask, _: &'a str) -> Soon<'a, Result<Accepted, Refused>> {
        self.asked.lock().push(ask);
        Box::pin(ready(self.answer.clone()))
    }

    fn has_schedule(&self) -> bool {
        true
    }
}

/// An admin socket with a scripted controller behind it.
struct Stage {
    play: Arc<Play>,
    folder: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new(looks: impl IntoIterator<Item = LifecycleStatus>, answer: Result<Accepted, Refused>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folder = TempDir::new().unwrap();
        let looks = Mutex::new(looks.into_iter().collect());
        let play = Arc::new(Play { looks, answer, asked: Mutex::default() });
        let panel: Arc<dyn Panel> = Arc::<Play>::clone(&play);
        let path = folder.path().to_owned();
        let (listener, console) = runtime.block_on(async move {
            let store = Store::open_sqlite(&path.join("tidegate.db")).await.unwrap();
            let pepper = Arc::new(Pepper::new(&[7; 32]).unwrap());
            let keyring = Arc::new(SharedKeyring::new(load_keyring(&store, pepper, None).await.unwrap()));
            (UnixListener::bind(path.join("admin.sock")).unwrap(), Console { store, keyring, panel })
        });
        runtime.handle().spawn(serve(listener, console.router(Trust::Owner)));
        Self { play, folder, _runtime: runtime }
    }

    fn run(&self, args: &[&str]) -> Output {
        program().args(args).arg("--state").arg(self.folder.path()).output().unwrap()
    }

    /// Exit code, standard output, standard error.
    fn said(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }
}

fn taken(changes: bool) -> Result<Accepted, Refused> {
    Ok(Accepted { changes, desired: Some("night".into()), generation: 4, later: false })
}

fn at(second: i64) -> Timestamp {
    // 2026-12-01 22:00 in Seoul.
    Timestamp::from_second(1_796_130_000 + second).unwrap()
}

fn switch(new: &str, old: &str, to: &str) -> SwitchView {
    SwitchView {
        number: 5,
        generation: 5,
        from: "day".into(),
        to: "night".into(),
        at: at(0),
        started: at(-60),
        ended: None,
        mode: SwitchMode::Runs,
        outcome: None,
        why: "the Schedule weekday".to_owned(),
        new: [("glm".into(), new.to_owned())].into(),
        old: [("deepseek".into(), old.to_owned())].into(),
        aliases: [("chat".into(), vec![to.into()])].into(),
        steps: Vec::new(),
        overrun: [].into(),
        notes: Vec::new(),
    }
}

fn running(switch: SwitchView) -> LifecycleStatus {
    LifecycleStatus {
        controller: true,
        generation: 5,
        shift: Some("day".into()),
        desired: Some("night".into()),
        switch: Some(switch),
        ..LifecycleStatus::default()
    }
}

fn over(shift: &str, outcome: SwitchOutcome) -> LifecycleStatus {
    let last = SwitchView { outcome: Some(outcome), ended: Some(at(30)), ..switch("proven", "gone", "glm") };
    LifecycleStatus {
        controller: true,
        shift: Some(shift.into()),
        desired: Some("night".into()),
        last: Some(last),
        ..LifecycleStatus::default()
    }
}

#[test]
fn waiting_says_each_step_and_ends_with_the_switch() {
    let looks = [
        running(switch("starting", "serving", "deepseek")),
        running(switch("proven", "serving", "deepseek")),
        running(switch("proven", "draining", "glm")),
        over("night", SwitchOutcome::Complete),
    ];
    let stage = Stage::new(looks, taken(true));
    let (code, out, err) = stage.said(&["switch", "now", "--to", "night", "--wait"]);
    assert_eq!((code, &*out), (0, ""), "{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(
        lines,
        [
            "switch 5: day to night, at 2026-12-01T13:00:00Z",
            "  new glm: starting",
            "  old deepseek: serving",
            "  alias chat goes to deepseek",
            "  new glm: proven",
            "  old deepseek: draining",
            "  alias chat goes to glm",
            "  old deepseek: gone",
            "switch 5 is complete after 90 s",
        ]
    );
    assert_eq!(*stage.play.asked.lock(), [Ask::Switch { to: "night".into(), until: None }]);
}

#[test]
fn for_programs_progress_is_a_line_of_json_each() {
    let looks = [running(switch("starting", "serving", "deepseek")), over("night", SwitchOutcome::Complete)];
    let stage = Stage::new(looks, taken(true));
    let (code, out, err) = stage.said(&["switch", "now", "--to", "night", "--wait", "--json"]);
    assert_eq!((code, &*err), (0, ""));
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((names.first(), names.last()), (Some(&"switch"), Some(&"finished")));
    assert_eq!(events.last().unwrap()["outcome"], "complete");
}

#[test]
fn the_exit_code_says_how_it_ended() {
    let conflict = || Err(Refused::new(RefusedKind::Conflict, "no switch is in progress"));
    let now = &["switch", "now", "--to", "night", "--wait"][..];
    let going = running(switch("starting", "serving", "deepseek"));
    let timeout = &["switch", "now", "--to", "night", "--wait", "--timeout", "0s"][..];
    for (args, last, answer, code) in [
        (now, over("day", SwitchOutcome::Aborted), taken(true), 3),
        (now, over("night", SwitchOutcome::Partly), taken(true), 3),
        (now, over("night", SwitchOutcome::Complete), taken(false), 5),
        (&["switch", "now", "--to", "night"], going.clone(), taken(true), 0),
        (&["switch", "now", "--to", "noon"], going.clone(), taken(true), 2),
        (&["switch", "now", "--to", "night", "--until", "soon"], going.clone(), taken(true), 2),
        (timeout, going.clone(), taken(true), 4),
        (&["switch", "abort", "--wait"], over("day", SwitchOutcome::Aborted), taken(true), 0),
        (&["switch", "abort", "--wait"], over("night", SwitchOutcome::Complete), taken(true), 3),
        (&["switch", "abort"], going.clone(), conflict(), 5),
        (&["switch", "rollback"], going.clone(), conflict(), 5),
        (&["switch", "pause"], going.clone(), taken(false), 0),
        (&["switch", "hold", "--until", "2h"], going.clone(), taken(false), 0),
        (&["switch", "resume"], going.clone(), taken(false), 0),
        (&["switch", "now"], going.clone(), taken(true), 2),
        (&["switch", "now", "--to", "night", "--timeout", "1h"], going.clone(), taken(true), 2),
        (&["shift", "set", "night"], going.clone(), taken(true), 0),
        (&["gpu", "release", "n1/3", "--reason", "empty"], going.clone(), taken(false), 0),
        (&["gpu", "release", "n1", "--reason", "empty"], going.clone(), taken(false), 2),
        (&["gpu", "release", "n1/x", "--reason", "empty"], going.clone(), taken(false), 2),
        (&["gpu", "release", "n1/3", "--reason", " "], going.clone(), taken(false), 2),
        (&["gpu", "release", "n1/3"], going.clone(), taken(false), 2),
        (&["gpu", "release", "n1/3", "--reason", "empty"], going, conflict(), 5),
    ] {
        let stage = Stage::new([last], answer);
        let (found, out, err) = stage.said(args);
        assert_eq!(found, code, "{args:?}: {out}{err}");
        assert!(code == 0 || !(err.is_empty() && out.is_empty()), "{args:?} says why");
    }
}

#[test]
fn a_controller_that_is_away_for_a_while_is_waited_for() {
    let stage = Stage::new([running(switch("starting", "serving", "deepseek"))], taken(true));
    let socket = stage.folder.path().join("admin.sock");
    let mut child = program()
        .args(["switch", "now", "--to", "night", "--wait", "--state"])
        .arg(stage.folder.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    let mut until = |what: &str| lines.by_ref().find(|line| line.contains(what)).unwrap();
    until("old deepseek");
    std::fs::rename(&socket, stage.folder.path().join("elsewhere")).unwrap();
    until("no answer");
    assert!(!stage.folder.path().join("lock").exists(), "the store is left alone: a process is about to start");
    stage.play.looks.lock().push_back(over("night", SwitchOutcome::Complete));
    std::fs::rename(stage.folder.path().join("elsewhere"), &socket).unwrap();
    until("is complete");
    assert!(child.wait().unwrap().success());
}

#[test]
fn status_shows_what_is_in_progress_and_what_is_in_the_way() {
    let mut view = switch("starting", "serving", "deepseek");
    view.mode = SwitchMode::Paused;
    view.overrun = [("chat".into(), 95)].into();
    view.notes.push(Note { at: at(1), code: "late".into(), about: "glm".into(), text: "still loads".into() });
    let status = LifecycleStatus {
        paused: true,
        next: Some(NextShift { shift: "day".into(), at: at(36_000), begins: Some(at(35_000)) }),
        quarantined: vec![QuarantinedGpu {
            node: "n1".into(),
            gpu: 3,
            replica: "deepseek/0".into(),
            why: Some("pid 77 still holds 22 GB".into()),
        }],
        failures: vec![Failure { deployment: "qwen".into(), failed: 3, fault: "out of memory".into(), next_at: None }],
        ..running(view)
    };
    let stage = Stage::new([status], taken(false));
    for args in [&["switch", "status"][..], &["status"]] {
        let (code, out, err) = stage.said(args);
        assert_eq!(code, 0, "{err}");
        for line in [
            "loaded     day (should be night)",
            "next       day at 2026-12-02 08:00+09:00, first step at 07:43:20",
            "switch     5 from day to night at 2026-12-01 22:00+09:00, since 21:59:00, PAUSED (the Schedule weekday)",
            "new glm: starting",
            "alias chat goes to deepseek, 95 s past its hour",
            "22:00:01 late glm: still loads",
            "QUARANTINE GPU n1/3, last of deepseek/0: pid 77 still holds 22 GB",
            "FAILED     qwen (3 times): out of memory; not tried again by itself",
            "tidegate switch resume",
        ] {
            assert!(out.contains(line), "{args:?} lacks {line:?}:\n{out}");
        }
    }
    let (_, out, _) = stage.said(&["switch", "status", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["quarantined"][0]["gpu"], 3);
}

#[test]
fn help_teaches_with_examples_and_exit_codes() {
    let output = program().args(["switch", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["tidegate switch now --to night --wait", "Exit codes:", "  5    nothing to do", "audit log"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

fn with_shifts(gate: std::net::SocketAddr, admin: std::net::SocketAddr, engine: &str) -> String {
    let schedule = "---
kind: Schedule
metadata: {name: every}
spec:
  shifts:
    - {name: day, start: '08:00', deployments: [tiny-v1]}
    - {name: night, start: '22:00', deployments: [tiny-v1]}
";
    documents(gate, admin, engine) + schedule
}

fn store(gate: &Gate) -> Store {
    gate.wait(Store::open_sqlite(&gate.folder.path().join("state/tidegate.db"))).unwrap()
}

fn row(number: u64, outcome: Option<SwitchOutcome>) -> SwitchRow {
    SwitchRow {
        number,
        generation: number,
        from: "day".into(),
        to: "night".into(),
        at: Unix::from_ms(1_796_130_000_000),
        why: "the Schedule weekday".to_owned(),
        mode: SwitchMode::Runs,
        failed: [].into(),
        outcome,
        started: Unix::from_ms(1_796_129_000_000),
        ended: outcome.map(|_| Unix::from_ms(1_796_130_100_000)),
        plan: serde_json::json!({}),
        record: serde_json::json!({}),
    }
}

#[test]
fn without_a_process_the_store_says_what_the_last_switch_did_and_takes_what_makes_sense() {
    let mut gate = Gate::start_with(Script::vllm("tiny"), with_shifts);
    gate.stop();
    let store = store(&gate);
    let generation = gate.wait(async {
        let generation = store.next_generation().await.unwrap();
        store.save_switch(&row(generation, Some(SwitchOutcome::Complete))).await.unwrap();
        store.close().await;
        generation
    });
    let status = gate.verb(&["status"]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(
        text.contains("not running") && text.contains(&format!("{generation} from day to night: is complete")),
        "{text}"
    );
    let list = String::from_utf8(gate.verb(&["switch", "ls"]).stdout).unwrap();
    assert!(list.contains("the Schedule weekday") && list.contains("complete"), "{list}");

    for refused in [&["switch", "abort"][..], &["switch", "pause"], &["gpu", "release", "n/0", "--reason", "x"]] {
        let output = gate.verb(refused);
        assert_eq!(output.status.code(), Some(5), "{refused:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("no process runs"), "{output:?}");
    }
    let held = gate.verb(&["switch", "hold", "--until", "2h"]);
    assert!(held.status.success(), "{held:?}");
    let text = String::from_utf8(held.stdout).unwrap();
    assert!(text.contains("the next one is told: night"), "{text}");
    assert_eq!(gate.verb_json(&["switch", "status"])["said"]["verb"], "hold");
    assert!(gate.verb(&["switch", "resume"]).status.success());
    let audit = String::from_utf8(gate.verb(&["audit", "--limit", "2"]).stdout).unwrap();
    assert!(
        audit.contains("lifecycle.hold") && audit.contains("lifecycle.resume") && audit.contains("owner"),
        "{audit}"
    );
    assert!(!audit.contains("lifecycle.pause"), "the last two: {audit}");
    assert_eq!(gate.verb_json(&["switch", "status"])["said"], Value::Null);
}

/// The controller may be another process: its routes are felt through the store, and ours does nothing any more.
#[test]
fn a_route_that_a_later_controller_writes_moves_the_alias_until_ours_starts_anew() {
    let mut gate = Gate::start_with(Script::vllm("tiny"), with_shifts);
    let key = gate.key();
    assert_eq!(gate.chat(&key).status, 200);
    let store = store(&gate);
    gate.wait(async {
        let row = RouteRow {
            alias: "chat".into(),
            targets: Vec::new(),
            shift: "night".into(),
            until: Some(Unix::from_ms(4_000_000_000_000)),
            generation: store.next_generation().await.unwrap(),
            at: Unix::from_ms(0),
        };
        store.set_route(&row).await.unwrap();
    });
    gate.until("in a gap", || gate.chat(&key).status == 503);
    let answer = gate.chat(&key);
    assert!(answer.body.contains("it is expected back at 2096-10-02"), "{}", answer.body);
    gate.stop();
    gate.start_again();
    gate.until("adopted", || gate.chat(&key).status == 200);
}
