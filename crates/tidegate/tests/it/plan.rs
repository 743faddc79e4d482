//! What is ahead, from the command line.

use std::process::Output;

use crate::gate::program;

const SITE: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: s}
spec: {timeZone: Asia/Seoul}
---
kind: Node
metadata: {name: n}
spec: {gpus: {count: 8, memory: 288GB}}
---
kind: Model
metadata: {name: m}
spec: {engine: vllm, source: {path: m/x}}
---
kind: Deployment
metadata: {name: sun}
spec: {model: m, parallel: {tp: 8}, gpus: {required: 8}}
---
kind: Deployment
metadata: {name: moon}
spec: {model: m, parallel: {tp: 8}, gpus: {required: 8}}
---
kind: Alias
metadata: {name: chat}
spec: {shifts: {day: {targets: [{deployment: sun}]}, night: {targets: [{deployment: moon}]}}}
---
kind: Schedule
metadata: {name: daily}
spec:
  shifts: [{name: day, start: '08:00', deployments: [sun]}, {name: night, start: '22:00', deployments: [moon]}]
  gap: {allowed: GAP}
";

fn run(gap: &str, verb: &[&str]) -> (Output, String, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("site.yaml"), SITE.replace("GAP", gap)).unwrap();
    let output = program().args(&verb[..1]).arg(folder.path()).args(&verb[1..]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn a_schedule_whose_gap_is_longer_than_allowed_is_refused_and_says_what_would_mend_it() {
    let (output, _, said) = run("0s", &["check"]);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("alias `chat` would have a gap of 20m, 0s is allowed"), "{said}");
    assert!(said.contains("gap: {allowed: 20m}"), "{said}");
    let (output, _, said) = run("20m", &["check"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("note: day -> night: alias `chat` has a gap of 20m"), "announced: {said}");
}

#[test]
fn what_check_refuses_is_not_started_either() {
    let (output, _, said) = run("0s", &["up"]);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("alias `chat` would have a gap of 20m, 0s is allowed"), "{said}");
}

#[test]
fn a_plan_says_what_happens_as_text_as_json_and_as_a_picture() {
    let at = ["--at", "2026-12-01T12:00"];
    let (output, text, _) = run("20m", &[&["plan"], at.as_slice()].concat());
    assert_eq!(output.status.code(), Some(0));
    assert!(text.contains("moon  sleep  on n 0-7") && text.contains("21:30") && text.contains("22:20 ready"), "{text}");
    let (_, text, _) = run("20m", &[&["plan", "--json"], at.as_slice()].concat());
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&plan["at"], &plan["longest_gap_seconds"]), (&"2026-12-01T13:00:00Z".into(), &1_200.into()));
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("plan.svg");
    run("20m", &[&["plan", "--svg", picture.to_str().unwrap()], at.as_slice()].concat());
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
    let (output, ..) = run("0s", &[&["plan"], at.as_slice()].concat());
    assert_eq!(output.status.code(), Some(64), "a gap that is not allowed");
    let (output, _, said) = run("20m", &["plan", "--to", "noon"]);
    assert!(!output.status.success() && said.contains("there are day, night"), "{said}");
}

#[test]
fn shifts_are_listed_with_what_is_loaded() {
    let (_, text, _) = run("20m", &["shifts", "--at", "2026-12-01T12:00", "--days", "1"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("now") && lines[0].ends_with("day  sun"), "{text}");
    assert_eq!(lines[1], "Tue 2026-12-01 22:00  night  moon");
}
