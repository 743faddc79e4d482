//! What people say.

use tidegate_controller::verbs::{Verb, VerbError};
use tidegate_core::ShiftName;

use crate::stage::{Stage, day_night};

fn now(to: &str) -> Verb {
    Verb::Now { to: ShiftName::from(to), until: None }
}

#[tokio::test(start_paused = true)]
async fn switch_now_switches_now_and_lasts_until_the_next_start() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T10:00:00Z");
    stage.pass(240).await;
    stage.handle.say(now("night"), "test").await.unwrap();
    stage.pass(200).await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    stage.until("2026-12-01T23:00:00Z").await;
    assert_eq!(stage.serving("big"), ["night-1"]);
    stage.until("2026-12-02T08:30:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn abort_goes_back_to_the_old_set_and_stays_there_until_the_next_start() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T10:00:00Z");
    stage.pass(240).await;
    stage.handle.say(now("night"), "test").await.unwrap();
    stage.pass(60).await;
    stage.handle.say(Verb::Abort, "test").await.unwrap();
    stage.pass(300).await;
    assert_eq!(stage.serving("big"), ["day-1"]);
    assert_eq!(stage.world.running().into_iter().collect::<Vec<_>>(), ["day-1"], "{:#?}", stage.status());
    assert!(stage.status().switch.is_none(), "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn hold_before_the_hour_keeps_the_day() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T21:55:00Z").await;
    stage.handle.say(Verb::Hold { until: Some(crate::stage::at("2026-12-01T23:00:00Z")) }, "test").await.unwrap();
    stage.until("2026-12-01T22:30:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    stage.until("2026-12-01T23:30:00Z").await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn rollback_goes_to_the_set_before_the_last_switch() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T22:30:00Z").await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    stage.handle.say(Verb::Rollback, "test").await.unwrap();
    stage.pass(300).await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn a_pause_takes_no_new_step_until_resume() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T21:30:00Z").await;
    stage.handle.say(Verb::Pause, "test").await.unwrap();
    stage.until("2026-12-01T22:30:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    stage.handle.say(Verb::Resume, "test").await.unwrap();
    stage.pass(400).await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn a_shift_that_is_not_there_is_refused() {
    let stage = Stage::new(&day_night(160, 160, ""), "2026-12-01T21:00:00Z");
    stage.pass(2_000).await;
    let said = stage.handle.say(now("evening"), "test").await;
    assert_eq!(said, Err(VerbError::NoSuchShift(ShiftName::from("evening"))));
    assert_eq!(stage.handle.say(Verb::Abort, "test").await, Err(VerbError::NothingInProgress));
}
