//! A day and a night.

use tidegate_controller::simulation::Temper;
use tidegate_controller::verbs::Verb;

use crate::stage::{Stage, day_night};

#[tokio::test(start_paused = true)]
async fn what_is_desired_is_loaded_at_the_start_and_its_alias_goes_there() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T10:00:00Z");
    stage.pass(240).await;
    assert_eq!(stage.serving("big"), ["day-1"]);
    assert!(stage.is_answered("big"), "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn at_the_hour_the_night_takes_over_without_a_gap_where_both_fit() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T21:50:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"]);
    let mut seconds = 0;
    while stage.serving("big") == ["day-1"] {
        assert!(stage.is_answered("big"), "{:#?}", stage.status());
        stage.pass(1).await;
        seconds += 1;
        assert!(seconds < 3_600, "{:#?}", stage.status());
    }
    assert_eq!(stage.serving("big"), ["night-1"]);
    assert!(stage.is_answered("big"));
    assert!((600..605).contains(&seconds), "{seconds} s after 21:50");
    stage.until("2026-12-01T22:20:00Z").await;
    assert_eq!(stage.world.running().into_iter().collect::<Vec<_>>(), ["night-1"], "{:#?}", stage.status());
    assert!(stage.status().switch.is_none(), "{:#?}", stage.status());
    assert_eq!(stage.status().shift.as_ref().map(|shift| shift.as_str()), Some("night"));
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn where_both_do_not_fit_the_old_goes_first_and_only_at_the_hour() {
    let stage = Stage::new(&day_night(320, 320, ", gap: {allowed: 30m}"), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T21:59:59Z").await;
    assert!(stage.is_answered("big"), "{:#?}", stage.status());
    stage.until("2026-12-01T22:15:00Z").await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    assert!(stage.is_answered("big"));
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn a_broken_night_model_leaves_the_day_serving_past_its_hour_and_says_why() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.world.temper("night-1", Temper { fails_gate: true, ..Temper::default() });
    stage.until("2026-12-01T21:30:00Z").await;
    while stage.world.now() < crate::stage::at("2026-12-01T23:30:00Z") {
        assert!(stage.is_answered("big"), "{:#?}", stage.status());
        stage.pass(10).await;
    }
    let status = stage.status();
    assert_eq!(stage.serving("big"), ["day-1"]);
    assert!(status.failures.iter().any(|failure| failure.fault.contains("garbage")), "{status:#?}");
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn a_broken_night_model_in_a_gap_brings_the_day_back() {
    let stage = Stage::new(&day_night(320, 320, ", gap: {allowed: 30m}"), "2026-12-01T21:00:00Z");
    stage.world.temper("night-1", Temper { fails_gate: true, ..Temper::default() });
    stage.until("2026-12-01T22:14:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    assert!(stage.is_answered("big"));
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn memory_that_does_not_come_back_is_nobodys_and_the_night_does_not_load_on_it() {
    // an engine that cannot sleep
    let documents = day_night(320, 320, ", gap: {allowed: 30m}").replace("engine: vllm", "engine: llama.cpp");
    let stage = Stage::new(&documents, "2026-12-01T21:00:00Z");
    stage.world.temper("day-1", Temper { keeps_memory: true, ..Temper::default() });
    stage.until("2026-12-01T23:30:00Z").await;
    let status = stage.status();
    assert!(status.quarantined().next().is_some(), "{status:#?}");
    assert!(!stage.world.running().contains("night-1"), "{status:#?}");
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_breaks_soon_after_every_proof_is_given_up_with_its_reason() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T10:00:00Z");
    stage.world.temper("day-1", Temper { breaks_in_service: true, ..Temper::default() });
    stage.pass(2 * 3_600).await;
    let status = stage.status();
    assert!(stage.world.running().is_empty(), "{status:#?}");
    assert!(
        status.failures.iter().any(|failure| failure.fault.contains("hang") && failure.next_at.is_none()),
        "{status:#?}"
    );
    assert!(stage.world.started() <= 8, "{} starts", stage.world.started());
    stage.right();
    // Somebody has mended it and says so.
    stage.world.temper("day-1", Temper::default());
    stage.handle.say(Verb::Resume, "test").await.unwrap();
    stage.pass(300).await;
    assert!(stage.is_answered("big"), "{:#?}", stage.status());
}
