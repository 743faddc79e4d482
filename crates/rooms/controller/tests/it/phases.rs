//! Cold starts: where the time went, what is expected, what will be late.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use tidegate_controller::launcher::BootMark;
use tidegate_controller::phases::{
    Beginning, ColdStart, CompiledCode, KINDS_MAX, MEASURED_MAX, Measured, Phase, forecast,
};
use tidegate_controller::replica::Mark;
use tidegate_core::DeploymentName;
use tidegate_planner::plan::Phases;

const MINUTE: u64 = 60;

fn at(seconds: u64) -> Timestamp {
    let start: Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
    start + SignedDuration::from_secs(i64::try_from(seconds).unwrap())
}

fn mark(what: &'static str, seconds: u64) -> Mark {
    Mark { what, at: at(seconds) }
}

fn boot(phase: &str, seconds: u64) -> BootMark {
    BootMark { phase: phase.into(), at: at(seconds) }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Fetched and verified, started, loaded, compiled, proven, watched.
fn start() -> ColdStart {
    let marks = [
        mark("fetching", 0),
        mark("verifying", 100),
        mark("loading", 130),
        mark("warming", 700),
        mark("stabilise", 708),
        mark("serving", 720),
    ];
    let boot =
        [boot("start", 150), boot("load", 190), boot("compile", 253), boot("compiled_anew", 600), boot("serve", 650)];
    ColdStart::of(&marks, &boot).unwrap()
}

#[test]
fn g19_phases_of_a_start_are_named_and_sum_to_the_wall_time() {
    let start = start();
    let times: Vec<_> = start.phases().map(|(phase, time)| (phase.as_str(), time.as_secs())).collect();
    assert_eq!(
        times,
        [
            ("image_pull", 0),
            ("fetch", 100),
            ("verify", 30),
            ("load", 63),
            ("compile", 397),
            ("warm_up", 8),
            ("stabilise", 12),
            // the program and its imports, and a server that opens its port
            ("unexplained", 60 + 50),
        ]
    );
    assert_eq!(start.wall(), secs(720));
    assert_eq!(start.phases().map(|(_, time)| time).sum::<Duration>(), start.wall());
    assert_eq!(
        start.summary(),
        "ready after 12m: compile 6m 37s, unexplained 1m 50s, fetch 1m 40s, load 1m 3s, verify 30s, stabilise 12s, warm_up 8s"
    );
}

#[test]
fn a_pod_waits_for_its_node_and_image_before_it_loads() {
    let marks = [mark("fetching", 0), mark("loading", 10), mark("warming", 100), mark("serving", 130)];
    let boot = [boot("schedule", 10), boot("image_pull", 15), boot("load", 75)];
    let start = ColdStart::of(&marks, &boot).unwrap();
    assert_eq!(start.time(Phase::ImagePull), secs(60));
    assert_eq!(start.time(Phase::Load), secs(25));
    assert_eq!(start.time(Phase::Unexplained), secs(5));
}

#[test]
fn one_that_is_not_ready_or_was_taken_over_is_no_cold_start_and_a_wake_changes_none() {
    assert_eq!(ColdStart::of(&[mark("fetching", 0), mark("loading", 10)], &[]), None);
    assert_eq!(ColdStart::of(&[mark("serving", 10)], &[]), None, "nobody saw how it began");
    let slept = [
        mark("fetching", 0),
        mark("loading", 5),
        mark("warming", 50),
        mark("serving", 60),
        mark("asleep", 1_000),
        mark("warming", 40_000),
        mark("serving", 40_010),
    ];
    assert_eq!(ColdStart::of(&slept, &[]).unwrap().wall(), secs(60));
}

#[test]
fn l13_a_compile_cache_that_is_laid_out_and_not_used_is_said() {
    let found = |marks: &[&str]| {
        let boot: Vec<_> = marks.iter().map(|mark| boot(mark, 20)).collect();
        let marks = [mark("loading", 0), mark("warming", 50), mark("serving", 60)];
        ColdStart::of(&marks, &boot).unwrap()
    };
    let (hit, miss, both) =
        (found(&["compiled_found"]), found(&["compiled_anew"]), found(&["compiled_found", "compiled_anew"]));
    assert_eq!(
        [hit.compiled, miss.compiled, both.compiled, found(&[]).compiled],
        [CompiledCode::Hit, CompiledCode::Miss, CompiledCode::Miss, CompiledCode::Unknown]
    );
    assert_eq!(hit.findings(true), None);
    assert_eq!(miss.findings(false), None, "there was none to be used");
    assert!(start().findings(true).unwrap().contains("compiling took 6m 37s"));
}

#[test]
fn l13_the_part_of_a_start_that_is_in_no_log_is_a_phase_and_is_expected_next_time() {
    let silent = ColdStart::of(&[mark("loading", 0), mark("warming", 50), mark("serving", 60)], &[]).unwrap();
    assert_eq!(silent.time(Phase::Unexplained), secs(50));
    let name = DeploymentName::from("d");
    let mut measured = Measured::default();
    measured.started(&name, 1, silent);
    let expected = measured.expected(&name, 1).unwrap();
    assert_eq!(expected.load, secs(50));
    assert_eq!(expected.to_ready(), silent.wall());
}

fn loading(seconds: u64) -> ColdStart {
    ColdStart::explain(at(0), at(seconds), &[Beginning { phase: Phase::Load, at: at(0) }], CompiledCode::Unknown)
}

#[test]
fn what_is_expected_is_what_nine_of_the_last_did_not_exceed_by_deployment_and_revision() {
    let name = DeploymentName::from("d");
    let mut measured = Measured::default();
    assert_eq!(measured.expected(&name, 1), None);
    for seconds in [10, 20, 30, 40, 50, 60, 70, 80, 90, 1_000] {
        measured.started(&name, 1, loading(seconds));
    }
    assert_eq!(measured.expected(&name, 1).unwrap().load, secs(90), "the slowest of ten was an accident");
    assert_eq!(measured.last(&name, 1).unwrap().wall(), secs(1_000));
    assert_eq!(measured.expected(&name, 2), None, "another revision is another thing");
    for _ in 0..MEASURED_MAX {
        measured.started(&name, 1, loading(5));
    }
    assert_eq!(measured.expected(&name, 1).unwrap().load, secs(5), "what was long ago is forgotten");
    measured.stopped(&name, 1, secs(7), secs(3));
    assert_eq!(measured.expected(&name, 1).unwrap().to_gone(), secs(10));
}

#[test]
fn what_an_earlier_controller_expected_holds_until_there_is_better() {
    let name = DeploymentName::from("d");
    let mut measured = Measured::default();
    let earlier = Phases { load: secs(100), stop: secs(9), ..Phases::default() };
    measured.recall(&name, 1, earlier);
    assert_eq!(measured.expected(&name, 1), Some(earlier));
    measured.started(&name, 1, loading(20));
    assert_eq!(measured.expected(&name, 1).unwrap().load, secs(100), "of two the longer one");
    for _ in 0..MEASURED_MAX {
        measured.started(&name, 1, loading(20));
    }
    assert_eq!(measured.expected(&name, 1).unwrap().load, secs(20));
    let kept = serde_json::to_string(&measured).unwrap();
    let again: Measured = serde_json::from_str(&kept).unwrap();
    assert_eq!(again.expected(&name, 1), measured.expected(&name, 1));
}

#[test]
fn deployments_and_revisions_are_bounded_and_the_oldest_goes() {
    let name = DeploymentName::from("d");
    let mut measured = Measured::default();
    let of = |revision: u64| ColdStart::explain(at(0), at(revision + 1), &[], CompiledCode::Unknown);
    for revision in 0..KINDS_MAX as u64 {
        measured.started(&name, revision, of(revision));
    }
    assert!(measured.expected(&name, 0).is_some());
    measured.started(&name, KINDS_MAX as u64, of(KINDS_MAX as u64));
    assert_eq!(measured.expected(&name, 0), None);
    assert!(measured.expected(&name, 1).is_some() && measured.expected(&name, KINDS_MAX as u64).is_some());
}

fn expected() -> Phases {
    Phases {
        fetch: secs(10 * MINUTE),
        load: secs(5 * MINUTE),
        compile: secs(3 * MINUTE),
        warm_up: secs(MINUTE),
        stabilise: secs(10),
        ..Phases::default()
    }
}

fn began(phase: Phase, seconds: u64) -> Beginning {
    Beginning { phase, at: at(seconds) }
}

#[test]
fn a_start_that_will_miss_its_hour_is_told_early_with_the_phase_that_is_late() {
    let due = at(60 * MINUTE);
    let fetched = [began(Phase::Fetch, 30 * MINUTE), began(Phase::Load, 42 * MINUTE)];
    assert_eq!(forecast(&fetched, &expected(), None, at(45 * MINUTE), due), None, "two minutes of spare are used up");
    let late = forecast(&fetched, &expected(), None, at(57 * MINUTE), due).unwrap();
    assert_eq!((late.phase, late.taken, late.expected), (Phase::Load, secs(15 * MINUTE), secs(5 * MINUTE)));
    assert_eq!(late.by, secs(MINUTE + 10), "compile, warm-up and stabilisation are still to come");
    assert_eq!(late.text("22:00"), "will miss 22:00 by 1m 10s: load has taken 15m, 5m were expected");
}

#[test]
fn a_fetch_that_knows_its_rate_is_late_before_it_has_taken_too_long() {
    let due = at(60 * MINUTE);
    let fetching = [began(Phase::Fetch, 30 * MINUTE)];
    assert_eq!(forecast(&fetching, &expected(), None, at(35 * MINUTE), due), None);
    let late = forecast(&fetching, &expected(), Some(secs(40 * MINUTE)), at(35 * MINUTE), due).unwrap();
    assert_eq!((late.phase, late.by), (Phase::Fetch, secs(24 * MINUTE + 10)));
    assert_eq!(late.text("22:00"), "will miss 22:00 by 24m 10s: fetch began too late, it is expected to take 10m");
}

#[test]
fn one_that_began_too_late_is_told_at_once_and_one_that_has_not_begun_is_not() {
    let due = at(60 * MINUTE);
    assert_eq!(forecast(&[], &expected(), None, at(59 * MINUTE), due), None);
    let late = forecast(&[began(Phase::Unexplained, 58 * MINUTE)], &expected(), None, at(58 * MINUTE), due).unwrap();
    assert_eq!((late.phase, late.taken), (Phase::Load, Duration::ZERO));
    assert!(late.text("22:00").contains("load began too late"));
}

fn phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(Phase::ALL.to_vec())
}

proptest! {
    #[test]
    fn phases_sum_to_the_wall_time_whatever_the_marks_are(
        wall in 0_u64..10_000,
        marks in prop::collection::vec((phase(), -1_000_i64..12_000, 0_i32..1_000_000_000), 0..20),
    ) {
        let beginnings: Vec<_> = marks
            .iter()
            .map(|&(phase, seconds, nanos)| Beginning { phase, at: at(0) + SignedDuration::new(seconds, nanos.max(0)) })
            .collect();
        let start = ColdStart::explain(at(0), at(wall), &beginnings, CompiledCode::Unknown);
        prop_assert_eq!(start.phases().map(|(_, time)| time).sum::<Duration>(), start.wall());
        prop_assert_eq!(start.wall(), secs(wall));
        let mut turned = beginnings.clone();
        turned.reverse();
        prop_assert_eq!(ColdStart::explain(at(0), at(wall), &turned, CompiledCode::Unknown), start, "in any order");
    }

    #[test]
    fn what_is_expected_was_seen_and_is_never_below_the_middle(times in prop::collection::vec(1_u64..5_000, 1..40)) {
        let name = DeploymentName::from("d");
        let mut measured = Measured::default();
        for &seconds in &times {
            measured.started(&name, 1, loading(seconds));
        }
        let last = &times[times.len().saturating_sub(MEASURED_MAX)..];
        let expected = measured.expected(&name, 1).unwrap().load.as_secs();
        prop_assert!(last.contains(&expected));
        let below = last.iter().filter(|seconds| **seconds <= expected).count();
        prop_assert!(below * 10 >= last.len() * 9);
    }

    #[test]
    fn a_forecast_never_turns_good_while_a_phase_stands_still(step in 0_u64..5_000, more in 0_u64..5_000) {
        let due = at(60 * MINUTE);
        let loading = [began(Phase::Load, 0)];
        if forecast(&loading, &expected(), None, at(step), due).is_some() {
            prop_assert!(forecast(&loading, &expected(), None, at(step + more), due).is_some());
        }
    }
}
