//! What the admin API says of the lifecycle, and what it passes on to the controller.

use std::future::ready;
use std::sync::Arc;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_console::lifecycle::{Accepted, Ask, LifecycleStatus, Refused, RefusedKind};
use tidegate_console::{Panel, Readiness, Soon};
use tidegate_core::{ShiftName, TeamName, Unix};
use tidegate_store::store::{SwitchMode, SwitchOutcome, SwitchRow};

use super::desk::Desk;

const PATH: &str = "/admin/v1/lifecycle";

/// A process with or without a controller, which writes down what it is asked.
#[derive(Debug, Default)]
struct Process {
    status: Option<LifecycleStatus>,
    refuses: Option<RefusedKind>,
    schedule: bool,
    alone: bool,
    asked: Mutex<Vec<(Ask, String)>>,
}

impl Panel for Process {
    fn readiness(&self) -> Readiness {
        Readiness { ready: true, waiting_for: Vec::new() }
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn status(&self) -> Value {
        json!({})
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
        self.status.clone()
    }

    fn ask<'a>(&'a self, ask: Ask, who: &'a str) -> Soon<'a, Result<Accepted, Refused>> {
        self.asked.lock().push((ask, who.to_owned()));
        let answer = match self.refuses {
            Some(kind) => Err(Refused::new(kind, "not now")),
            None => Ok(Accepted { changes: true, desired: Some("night".into()), generation: 7, later: false }),
        };
        Box::pin(ready(answer))
    }

    fn has_schedule(&self) -> bool {
        self.schedule
    }

    fn is_alone(&self) -> bool {
        self.alone
    }
}

async fn desk(process: Process) -> (Desk, Arc<Process>) {
    let process = Arc::new(process);
    (Desk::with(Arc::<Process>::clone(&process)).await, process)
}

async fn audit(desk: &Desk) -> Vec<(String, String, String)> {
    let rows = desk.console.store.audit(0, 100).await.unwrap();
    rows.into_iter().map(|row| (row.who, row.action, row.subject)).collect()
}

fn row(number: u64, outcome: Option<SwitchOutcome>) -> SwitchRow {
    SwitchRow {
        number,
        generation: number,
        from: "day".into(),
        to: "night".into(),
        at: Unix::from_ms(1_000),
        why: "timetable".to_owned(),
        mode: SwitchMode::Runs,
        failed: ["broken".into()].into(),
        outcome,
        started: Unix::from_ms(500),
        ended: outcome.map(|_| Unix::from_ms(3_000)),
        plan: json!({}),
        record: json!({"notes": [{"at": "2026-12-01T00:00:00Z", "code": "late", "about": "broken", "text": "slow"}]}),
    }
}

#[tokio::test]
async fn every_verb_reaches_the_controller_and_the_audit_log_says_who() {
    let (desk, process) = desk(Process::default()).await;
    for (verb, body) in [
        ("switch", r#"{"to": "night"}"#),
        ("hold", "{}"),
        ("pause", ""),
        ("resume", ""),
        ("abort", ""),
        ("rollback", ""),
        ("release", r#"{"node": "n1", "gpu": 3, "reason": "nvidia-smi shows it empty"}"#),
    ] {
        let answer = desk.ask("POST", &format!("{PATH}/{verb}"), body).await;
        assert_eq!(answer.status, 200, "{verb}: {answer:?}");
        assert_eq!(answer.json(), json!({"changes": true, "desired": "night", "generation": 7, "later": false}));
    }
    let asked: Vec<Ask> = process.asked.lock().iter().map(|(ask, _)| ask.clone()).collect();
    let release = Ask::Release { node: "n1".into(), gpu: 3, reason: "nvidia-smi shows it empty".into() };
    assert_eq!(
        asked,
        [
            Ask::Switch { to: "night".into(), until: None },
            Ask::Hold { until: None },
            Ask::Pause,
            Ask::Resume,
            Ask::Abort,
            Ask::Rollback,
            release
        ]
    );
    let audit = audit(&desk).await;
    assert!(audit.iter().all(|(who, _, _)| who == "owner"));
    let said: Vec<_> = audit.iter().map(|(_, action, subject)| (&**action, &**subject)).collect();
    assert_eq!(
        said,
        [
            ("lifecycle.switch", "night"),
            ("lifecycle.hold", ""),
            ("lifecycle.pause", ""),
            ("lifecycle.resume", ""),
            ("lifecycle.abort", ""),
            ("lifecycle.rollback", ""),
            ("gpu.release", "n1/3"),
        ]
    );
}

#[tokio::test]
async fn the_audit_log_is_read_from_its_end_or_from_a_number_on() {
    let (desk, _) = desk(Process::default()).await;
    for verb in ["pause", "resume", "abort"] {
        desk.ask("POST", &format!("{PATH}/{verb}"), "").await;
    }
    let actions = async |query: &str| {
        let page = desk.ask("GET", &format!("/admin/v1/audit{query}"), "").await.json();
        page["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["action"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(actions("").await, ["lifecycle.pause", "lifecycle.resume", "lifecycle.abort"]);
    assert_eq!(actions("?limit=1").await, ["lifecycle.abort"]);
    assert_eq!(actions("?after=1&limit=1").await, ["lifecycle.resume"]);
    assert_eq!(desk.ask("GET", "/admin/v1/audit?since=1", "").await.status, 400);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    let (desk, process) = desk(Process::default()).await;
    let long = "x".repeat(1_001);
    for (verb, body, says) in [
        ("switch", r#"{"to": "noon"}"#.to_owned(), "there are: day, night"),
        ("switch", r#"{"to": "night", "until": "2020-01-01T00:00"}"#.to_owned(), "is over already"),
        ("switch", r#"{"to": "night", "until": "soon"}"#.to_owned(), "nor an instant"),
        ("switch", r#"{"to": "night", "at": "22:00"}"#.to_owned(), "unknown field"),
        ("hold", r#"{"until": "25:00"}"#.to_owned(), "nor an instant"),
        ("release", r#"{"node": "", "gpu": 0, "reason": "x"}"#.to_owned(), "a node has a name"),
        ("release", r#"{"node": "n", "gpu": 0, "reason": " "}"#.to_owned(), "how you know"),
        ("release", format!(r#"{{"node": "n", "gpu": 0, "reason": "{long}"}}"#), "at most 1000 bytes"),
        ("release", format!(r#"{{"node": "{}", "gpu": 0, "reason": "x"}}"#, "n".repeat(254)), "at most 253 bytes"),
    ] {
        let answer = desk.ask("POST", &format!("{PATH}/{verb}"), &body).await;
        assert!((400..500).contains(&answer.status) && answer.body.contains(says), "{verb} {body}: {answer:?}");
    }
    let bounds = format!(r#"{{"node": "{}", "gpu": 0, "reason": "{}"}}"#, "n".repeat(253), "x".repeat(1_000));
    assert_eq!(process.asked.lock().len(), 0);
    assert_eq!(desk.ask("POST", &format!("{PATH}/release"), &bounds).await.status, 200);
    assert_eq!(process.asked.lock().len(), 1);
}

#[tokio::test]
async fn a_refusal_of_the_controller_says_why_and_what_kind_it_is() {
    for (kind, status) in [
        (RefusedKind::Invalid, 400),
        (RefusedKind::Conflict, 409),
        (RefusedKind::NoController, 409),
        (RefusedKind::Failed, 500),
    ] {
        let (desk, _) = desk(Process { refuses: Some(kind), ..Process::default() }).await;
        let answer = desk.ask("POST", &format!("{PATH}/abort"), "").await;
        assert_eq!(answer.status, status, "{kind:?}: {answer:?}");
        assert_eq!(answer.json()["error"]["message"], "not now");
        assert_eq!(audit(&desk).await.len(), 1, "what was asked is noted whatever came of it");
    }
}

#[tokio::test]
async fn setting_a_shift_is_a_switch_where_a_schedule_is_in_force() {
    let (scheduled, process) = desk(Process { schedule: true, ..Process::default() }).await;
    let answer = scheduled.ask("PUT", "/admin/v1/shift", r#"{"name": "night"}"#).await;
    assert_eq!((answer.status, answer.json()["generation"].clone()), (200, json!(7)));
    assert_eq!(process.asked.lock().len(), 1);
    assert_eq!(scheduled.console.store.shift().await.unwrap(), None);

    let (by_hand, process) = desk(Process::default()).await;
    let answer = by_hand.ask("PUT", "/admin/v1/shift", r#"{"name": "night"}"#).await;
    assert_eq!((answer.status, answer.json()["name"].clone()), (200, json!("night")));
    assert_eq!(process.asked.lock().len(), 0);
}

#[tokio::test]
async fn the_controllers_own_word_goes_before_the_stores() {
    let status = LifecycleStatus { controller: true, generation: 9, paused: true, ..LifecycleStatus::default() };
    let (desk, _) = desk(Process { status: Some(status.clone()), ..Process::default() }).await;
    let answer = desk.ask("GET", PATH, "").await;
    let expected = LifecycleStatus { time_zone: "Asia/Seoul".to_owned(), ..status };
    assert_eq!(serde_json::from_value::<LifecycleStatus>(answer.json()).unwrap(), expected);
    let all = desk.ask("GET", "/admin/v1/status", "").await.json();
    assert_eq!(all["lifecycle"]["generation"], 9, "status shows it, too");
}

#[tokio::test]
async fn without_a_controller_the_store_says_what_the_last_switch_did() {
    let (desk, _) = desk(Process::default()).await;
    assert_eq!(desk.ask("GET", PATH, "").await.json()["controller"], false);
    let store = &desk.console.store;
    let first = store.next_generation().await.unwrap();
    store.save_switch(&row(first, Some(SwitchOutcome::Aborted))).await.unwrap();
    let status = desk.ask("GET", PATH, "").await.json();
    assert_eq!((&status["shift"], &status["switch"]), (&json!("day"), &Value::Null), "it was aborted: day is loaded");
    assert_eq!(status["last"]["outcome"], "aborted");
    assert_eq!(status["last"]["notes"][0]["code"], "late");

    let second = store.next_generation().await.unwrap();
    store.save_switch(&row(second, None)).await.unwrap();
    let status = desk.ask("GET", PATH, "").await.json();
    assert_eq!((&status["switch"]["number"], &status["last"]["number"]), (&json!(second), &json!(first)));
}

#[tokio::test]
async fn the_history_is_paged_and_one_switch_has_its_steps() {
    let (desk, _) = desk(Process::default()).await;
    let store = &desk.console.store;
    for number in 1..=3 {
        assert_eq!(store.next_generation().await.unwrap(), number);
        store.note_step(number, 0, &json!({"start": "a"}), Unix::from_ms(600)).await.unwrap();
        store.save_switch(&row(number, Some(SwitchOutcome::Complete))).await.unwrap();
    }
    let numbers = async |query: &str| {
        let page = desk.ask("GET", &format!("{PATH}/switches{query}"), "").await.json();
        page["switches"].as_array().unwrap().iter().map(|row| row["number"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers("").await, [3, 2, 1]);
    assert_eq!(numbers("?limit=1").await, [3]);
    assert_eq!(numbers("?before=3&limit=1").await, [2]);
    let one = desk.ask("GET", &format!("{PATH}/switches/2"), "").await.json();
    assert_eq!((&one["number"], &one["journal"][0]["effect"]), (&json!(2), &json!({"start": "a"})));
    assert_eq!(desk.ask("GET", &format!("{PATH}/switches/4"), "").await.status, 404);
    assert_eq!(desk.ask("GET", &format!("{PATH}/switches/x"), "").await.status, 400);
    assert_eq!(desk.ask("GET", &format!("{PATH}/switches?size=1"), "").await.status, 400);
}

#[tokio::test]
async fn without_a_process_what_makes_sense_is_said_to_the_next_controller() {
    let (desk, process) = desk(Process { alone: true, ..Process::default() }).await;
    let store = &desk.console.store;
    let post = async |verb: &str, body: &str| desk.ask("POST", &format!("{PATH}/{verb}"), body).await;
    for (verb, body, says) in [
        ("hold", "{}", "nothing was ever loaded"),
        ("rollback", "", "nothing to go back to"),
        ("abort", "", "no process runs"),
        ("pause", "", "no process runs"),
        ("release", r#"{"node": "n", "gpu": 0, "reason": "x"}"#, "no process runs"),
    ] {
        let answer = post(verb, body).await;
        assert!(answer.status == 409 && answer.body.contains(says), "{verb}: {answer:?}");
    }
    let generation = store.next_generation().await.unwrap();
    store.save_switch(&row(generation, Some(SwitchOutcome::Complete))).await.unwrap();
    for (verb, body, shift) in
        [("hold", "{}", "night"), ("rollback", "", "day"), ("switch", r#"{"to": "night", "until": "2h"}"#, "night")]
    {
        let answer = post(verb, body).await.json();
        assert_eq!((&answer["desired"], &answer["later"]), (&json!(shift), &json!(true)));
        let said = store.override_in_force().await.unwrap().unwrap();
        assert_eq!((said.shift.as_str(), said.verb.as_str(), &*said.who), (shift, verb, "owner"));
        assert_eq!(said.until.is_some(), verb == "switch");
    }
    assert_eq!(desk.ask("GET", PATH, "").await.json()["said"]["verb"], "switch");
    assert_eq!(post("resume", "").await.status, 200);
    assert_eq!(store.override_in_force().await.unwrap(), None);
    assert_eq!(process.asked.lock().len(), 0);
}
