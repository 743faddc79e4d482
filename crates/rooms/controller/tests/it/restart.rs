//! A controller that is killed, at any time.

use crate::stage::{Stage, at, day_night};

async fn killed_every(seconds: u64, day: u32, schedule: &str, has_gap: bool) {
    let mut stage = Stage::new(&day_night(day, day, schedule), "2026-12-01T21:30:00Z");
    stage.pass(240).await;
    while stage.world.now() < at("2026-12-01T22:40:00Z") {
        stage.pass(seconds).await;
        let is_gap = has_gap && stage.world.now() >= at("2026-12-01T22:00:00Z");
        assert!(is_gap || stage.is_answered("big"), "{} {:#?}", stage.world.now(), stage.status());
        stage.kill_and_restart().await;
    }
    stage.until("2026-12-01T23:30:00Z").await;
    assert_eq!(stage.serving("big"), ["night-1"], "{:#?}", stage.status());
    assert!(stage.is_answered("big"), "{:#?}", stage.status());
    assert_eq!(stage.world.running().into_iter().collect::<Vec<_>>(), ["night-1"], "{:#?}", stage.status());
    stage.right();
}

#[tokio::test(start_paused = true)]
async fn killed_again_and_again_it_finishes_an_overlap_without_a_gap() {
    for seconds in [7, 61, 113] {
        killed_every(seconds, 160, "", false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn killed_again_and_again_it_finishes_a_replacement() {
    for seconds in [7, 61, 113] {
        killed_every(seconds, 320, ", gap: {allowed: 30m}", true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_sleeps_sleeps_on_over_a_restart_and_is_woken_in_the_morning() {
    let mut stage = Stage::new(&day_night(320, 320, ", gap: {allowed: 30m}"), "2026-12-01T21:00:00Z");
    stage.until("2026-12-01T23:00:00Z").await;
    let is_asleep = |stage: &Stage| stage.status().replicas.iter().any(|replica| replica.state == "asleep");
    assert!(is_asleep(&stage), "{:#?}", stage.status());
    stage.kill_and_restart().await;
    stage.pass(120).await;
    assert!(is_asleep(&stage), "{:#?}", stage.status());
    let started = stage.world.started();
    stage.until("2026-12-02T09:00:00Z").await;
    assert_eq!(stage.serving("big"), ["day-1"], "{:#?}", stage.status());
    assert!(stage.is_answered("big"));
    assert_eq!(stage.world.started(), started, "woken, not started");
    stage.right();
}
