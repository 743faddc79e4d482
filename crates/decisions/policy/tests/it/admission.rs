//! The outcome of a saturated pool, as a table.

use std::time::Duration;

use tidegate_config::site::Class;
use tidegate_core::Monotonic;
use tidegate_policy::admission::{
    ClassPolicy, Outcome, ReplicaLoad, Saturation, Situation, Step, THROTTLE_INTERVAL, Thresholds, Throttle, decide,
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const ROOM_IN: Duration = seconds(7);
const THROTTLED: Duration = seconds(4);
const FULL: Situation = Situation {
    saturation: Saturation { queue: true, kv: false, concurrency: false },
    others_wait: false,
    waited: Duration::ZERO,
    queue_has_room: true,
    over_share: false,
    throttle_wait: Some(THROTTLED),
    fallback: true,
    room_in: ROOM_IN,
};

#[test]
fn the_table() {
    use Class::{Batch, General, Interactive};
    let refuse = Outcome::Refuse { retry_after: ROOM_IN };
    let limit = Outcome::RateLimit { retry_after: THROTTLED };
    let queue = |at_most| Outcome::Queue { at_most: seconds(at_most) };
    let free = Situation { saturation: Saturation::default(), ..FULL };
    let rows = [
        // Free pools accept, whatever else is said.
        (Interactive, free, Outcome::Accept),
        (General, free, Outcome::Accept),
        (Batch, free, Outcome::Accept),
        // But nobody overtakes those who wait.
        (Interactive, Situation { others_wait: true, ..free }, queue(10)),
        (Batch, Situation { others_wait: true, ..free }, limit),
        // Interactive: queue, fallback, refuse.
        (Interactive, FULL, queue(10)),
        (Interactive, Situation { waited: seconds(9), ..FULL }, queue(1)),
        (Interactive, Situation { waited: seconds(10), ..FULL }, Outcome::Fallback),
        (Interactive, Situation { queue_has_room: false, ..FULL }, Outcome::Fallback),
        (Interactive, Situation { queue_has_room: false, fallback: false, ..FULL }, refuse),
        (Interactive, Situation { waited: seconds(60), fallback: false, ..FULL }, refuse),
        // General: queue, refuse; the fallback is not tried.
        (General, FULL, queue(60)),
        (General, Situation { waited: seconds(59), ..FULL }, queue(1)),
        (General, Situation { waited: seconds(60), ..FULL }, refuse),
        (General, Situation { queue_has_room: false, ..FULL }, refuse),
        // Batch: rate-limit, refuse.
        (Batch, FULL, limit),
        (Batch, Situation { throttle_wait: None, ..FULL }, refuse),
    ];
    for (class, situation, expected) in rows {
        assert_eq!(decide(&ClassPolicy::of(class), &situation), expected, "{class:?} {situation:?}");
    }
}

#[test]
fn a_class_that_is_not_throttled_rate_limits_teams_above_their_share_only() {
    let policy = ClassPolicy { steps: vec![Step::RateLimit, Step::Fallback], throttle: false };
    assert_eq!(decide(&policy, &FULL), Outcome::Fallback);
    let over = Situation { over_share: true, ..FULL };
    assert_eq!(decide(&policy, &over), Outcome::RateLimit { retry_after: THROTTLED });
}

#[test]
fn each_signal_saturates_at_its_threshold_and_an_unknown_one_never() {
    let idle = ReplicaLoad { waiting: Some(4), kv: Some(0.849), active: 15, capacity: Some(16) };
    let of = |load: ReplicaLoad| Saturation::of_replica(&load, &Thresholds::default());
    assert!(!of(idle).any());
    assert!(of(ReplicaLoad { waiting: Some(5), ..idle }).queue);
    assert!(of(ReplicaLoad { kv: Some(0.85), ..idle }).kv);
    assert!(of(ReplicaLoad { active: 16, ..idle }).concurrency);
    assert!(!of(ReplicaLoad { active: 1_000, ..ReplicaLoad::default() }).any());
    assert!(!of(ReplicaLoad { kv: Some(f64::NAN), ..idle }).any());
}

#[test]
fn a_pool_is_saturated_only_when_every_replica_is() {
    let free = ReplicaLoad::default();
    let waiting = ReplicaLoad { waiting: Some(9), ..free };
    let hot = ReplicaLoad { kv: Some(0.9), ..free };
    let of = |loads: &[ReplicaLoad]| Saturation::of_pool(loads, &Thresholds::default());
    assert!(!of(&[waiting, free, hot]).any());
    assert_eq!(of(&[waiting, hot]), Saturation { queue: true, kv: true, concurrency: false });
    assert!(!of(&[]).any());
}

#[test]
fn a_throttled_rate_halves_per_interval_of_saturation_and_comes_back_by_steps() {
    let mut now = Monotonic::from_ms(5);
    let mut throttle = Throttle::new(100, now);
    let mut interval = |saturated| {
        throttle.observe(saturated, now);
        now = now.after(THROTTLE_INTERVAL);
        throttle.observe(false, now);
        throttle.rate_rpm()
    };
    assert_eq!([interval(true), interval(true), interval(true)], [50, 25, 12]);
    assert_eq!([interval(false), interval(false)], [22, 32]);
    for _ in 0..10 {
        interval(true);
    }
    assert_eq!(interval(true), 1, "never to nothing");
    for _ in 0..20 {
        interval(false);
    }
    assert_eq!(interval(false), 100, "never over the ceiling");
}

#[test]
fn a_throttle_lets_its_rate_pass_and_says_how_long_to_wait() {
    let start = Monotonic::from_ms(1_000);
    let mut throttle = Throttle::new(60, start);
    let mut now = start;
    let mut passed = 0;
    while now.since(start) < seconds(30) {
        match throttle.wait(now) {
            None => {
                throttle.pass(now);
                passed += 1;
            }
            Some(wait) => now = now.after(wait),
        }
    }
    assert_eq!(passed, 30);
}

#[test]
fn requests_that_pass_at_once_are_made_up_for() {
    let now = Monotonic::from_ms(1_000);
    let mut throttle = Throttle::new(60, now);
    for passed in 1..=3 {
        throttle.pass(now);
        assert_eq!(throttle.wait(now), Some(seconds(passed)));
    }
}
