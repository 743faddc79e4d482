//! The life of one replica, under any sequence of events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use tidegate_planner::generation::{Generation, Stamped};
use tidegate_planner::instance::{ATTEMPTS_MAX, Clocks, Effect, Event, Instance, State, Then};

const GENERATION: Generation = Generation(7);

fn new() -> Instance {
    let clocks =
        Clocks { load: Duration::from_secs(600), gate: Duration::from_secs(120), drain: Duration::from_secs(300) };
    Instance::new(GENERATION, clocks)
}

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn step(instance: Instance, event: Event, now: Timestamp) -> (Instance, Vec<Effect>) {
    let (instance, effects) = instance.step(Stamped { generation: GENERATION, what: event }, now);
    (instance, effects.into_iter().map(|effect| effect.what).collect())
}

fn run(events: &[Event]) -> (Instance, Vec<Effect>) {
    let mut all = Vec::new();
    let mut instance = new();
    for event in events {
        let (next, effects) = step(instance, event.clone(), start());
        instance = next;
        all.extend(effects);
    }
    (instance, all)
}

fn events() -> Vec<Event> {
    vec![
        Event::Prefetch,
        Event::Want,
        Event::Verified,
        Event::Loaded,
        Event::Proven,
        Event::Fault(Arc::from("oom")),
        Event::Drain(Then::Stop),
        Event::Drain(Then::Sleep { level: 1 }),
        Event::Keep,
        Event::Drained,
        Event::Slept,
        Event::Wake,
        Event::Ended,
        Event::MemoryFree,
        Event::Release,
        Event::Forget,
        Event::Unwant,
        Event::Tick,
    ]
}

#[test]
fn a_replica_comes_serves_and_goes() {
    use Event::{Drain, Drained, Ended, Loaded, MemoryFree, Prefetch, Proven, Verified, Want};
    let (instance, effects) = run(&[Prefetch, Verified, Want, Loaded, Proven]);
    assert_eq!(instance.state, State::Serving);
    assert_eq!(effects, [Effect::Fetch, Effect::Launch, Effect::RunGate]);
    let (instance, effects) = run(&[Want, Verified, Loaded, Proven, Drain(Then::Stop), Drained, Ended, MemoryFree]);
    assert_eq!(instance.state, State::Stopped);
    assert_eq!(effects[3..], [Effect::Drain, Effect::Terminate, Effect::ProveMemory, Effect::FreeGpus]);
}

#[test]
fn the_same_wish_twice_loads_once() {
    let (_, effects) = run(&[Event::Want, Event::Want, Event::Verified, Event::Want, Event::Verified]);
    assert_eq!(effects, [Effect::Fetch, Effect::Launch]);
}

#[test]
fn a_drain_that_does_not_end_is_ended_with_a_proper_event() {
    let (instance, _) = run(&[Event::Want, Event::Verified, Event::Loaded, Event::Proven, Event::Drain(Then::Stop)]);
    let (instance, effects) = step(instance, Event::Tick, start() + SignedDuration::from_secs(299));
    assert_eq!(effects, []);
    let (_, effects) = step(instance, Event::Tick, start() + SignedDuration::from_secs(300));
    assert_eq!(effects, [Effect::EndStreams, Effect::Terminate]);
}

#[test]
fn memory_that_does_not_come_back_quarantines_the_gpus_until_proven_or_released() {
    let (instance, _) = run(&[
        Event::Want,
        Event::Verified,
        Event::Loaded,
        Event::Proven,
        Event::Drain(Then::Stop),
        Event::Drained,
        Event::Ended,
    ]);
    let (same, effects) = step(instance.clone(), Event::Release, start());
    assert_eq!((same.state.has_gpus(), effects.len()), (true, 0), "no word before the proof has failed");
    let (instance, effects) = step(instance, Event::Tick, start() + SignedDuration::from_secs(60));
    assert_eq!(effects[0], Effect::Quarantine);
    for event in [Event::MemoryFree, Event::Release] {
        let (instance, effects) = step(instance.clone(), event, start());
        assert_eq!((instance.state, effects), (State::Stopped, vec![Effect::FreeGpus]));
    }
}

#[test]
fn a_failed_start_is_tried_three_times_after_one_and_five_minutes() {
    let (mut instance, _) = run(&[Event::Want]);
    let mut now = start();
    for minutes in [1, 5] {
        instance = step(instance, Event::Fault(Arc::from("disk_full")), now).0;
        now += SignedDuration::from_secs(60 * minutes - 1);
        assert_eq!(step(instance.clone(), Event::Tick, now).1, []);
        now += SignedDuration::from_secs(1);
        let (next, effects) = step(instance, Event::Tick, now);
        assert_eq!(effects, [Effect::Fetch]);
        instance = next;
    }
    instance = step(instance, Event::Fault(Arc::from("disk_full")), now).0;
    assert_eq!(step(instance.clone(), Event::Tick, now + SignedDuration::from_hours(100)).1, []);
    assert_eq!(step(instance, Event::Forget, now).1, [Effect::Fetch], "a change of documents begins anew");
}

#[test]
fn an_event_of_an_older_plan_changes_nothing() {
    let (instance, _) = run(&[Event::Want, Event::Verified, Event::Loaded, Event::Proven]);
    let stale = Stamped { generation: Generation(6), what: Event::Drain(Then::Stop) };
    let (after, effects) = instance.clone().step(stale, start());
    assert_eq!((after, effects), (instance, Vec::new()));
}

/// What holds in and between any two states.
fn check(before: &Instance, event: &Event, after: &Instance, effects: &[Effect]) {
    let frees = effects.contains(&Effect::FreeGpus);
    let why = format!("{before:?} {event:?} {after:?} {effects:?}");
    assert_eq!(frees, before.state.has_gpus() && !after.state.has_gpus(), "GPUs are freed once, and said so: {why}");
    assert!(!frees || matches!(event, Event::MemoryFree | Event::Release), "only proof or a person frees: {why}");
    assert!(!effects.contains(&Effect::Launch) || !before.state.has_gpus(), "never a second engine: {why}");
    let attempt = match &after.state {
        State::Fetching { attempt }
        | State::Verified { attempt }
        | State::Loading { attempt, .. }
        | State::Warming { attempt, .. }
        | State::Failed { attempt, .. } => *attempt,
        _ => 1,
    };
    assert!(attempt <= ATTEMPTS_MAX, "{why}");
    let serves = after.state == State::Serving && before.state != State::Serving;
    assert!(!serves || matches!(event, Event::Proven | Event::Keep), "serves only after the gate: {why}");
    if matches!(after.state, State::Warming { .. }) && !matches!(before.state, State::Warming { .. }) {
        assert!(effects.contains(&Effect::RunGate), "every way to serving passes the gate: {why}");
    }
}

#[test]
fn every_reachable_state_keeps_the_invariants_and_can_still_end() {
    // time moves by whole hours, so that each clock has run out or has not
    let mut seen: BTreeMap<State, u32> = BTreeMap::new();
    let mut queue = VecDeque::from([(new(), 0_u32)]);
    let mut steps = 0;
    while let Some((instance, depth)) = queue.pop_front() {
        if depth > 14 || seen.get(&instance.state).is_some_and(|known| *known >= 3) {
            continue;
        }
        *seen.entry(instance.state.clone()).or_default() += 1;
        for event in events() {
            for now in [start(), start() + SignedDuration::from_hours(1)] {
                let (next, effects) = step(instance.clone(), event.clone(), now);
                check(&instance, &event, &next, &effects);
                queue.push_back((next, depth + 1));
                steps += 1;
            }
        }
        assert!(ends(instance));
    }
    assert!(steps > 1_000, "{steps}");
}

/// With a world that does what it is told, an unwanted replica leaves its GPUs.
fn ends(mut instance: Instance) -> bool {
    let mut now = start() + SignedDuration::from_hours(10);
    instance = step(instance, Event::Unwant, now).0;
    for _ in 0..8 {
        let event = match instance.state {
            State::Draining { .. } => Event::Drained,
            State::Stopping { .. } => Event::Ended,
            State::Proving { .. } | State::Quarantined { .. } => Event::MemoryFree,
            _ => return !instance.state.has_gpus(),
        };
        now += SignedDuration::from_secs(1);
        instance = step(instance, event, now).0;
    }
    false
}

proptest! {
    #[test]
    fn any_sequence_of_events_keeps_the_invariants(
        sequence in proptest::collection::vec((prop::sample::select(events()), 0_i64..1_000), 0..120),
    ) {
        let mut instance = new();
        let mut now = start();
        for (event, seconds) in sequence {
            now += SignedDuration::from_secs(seconds);
            let (next, effects) = step(instance.clone(), event.clone(), now);
            check(&instance, &event, &next, &effects);
            instance = next;
        }
        prop_assert!(ends(instance));
    }
}

#[test]
fn one_that_breaks_on_its_way_out_is_not_started_again_by_itself_but_can_be_wanted_again() {
    use Event::{Drain, Drained, Ended, Fault, Loaded, MemoryFree, Proven, Tick, Verified, Want};
    let refuses = Fault(Arc::from("refuses to sleep"));
    let way = [Want, Verified, Loaded, Proven, Drain(Then::Sleep { level: 1 }), Drained, refuses, Ended, MemoryFree];
    let (replica, _) = run(&way);
    assert!(matches!(replica.state, State::Failed { retry_at: None, .. }), "{:?}", replica.state);
    let later = start() + SignedDuration::from_hours(2);
    let (replica, effects) = step(replica, Tick, later);
    assert_eq!(effects, [], "its GPUs may be another's");
    let (replica, _) = step(replica, Want, later);
    assert_eq!(replica.state, State::Fetching { attempt: 1 });
}

#[test]
fn an_engine_that_breaks_soon_after_every_proof_is_not_started_without_end() {
    let (mut instance, _) = run(&[Event::Want]);
    let mut now = start();
    let mut waits = Vec::new();
    for _ in 0..4 {
        for event in [Event::Verified, Event::Loaded, Event::Proven] {
            instance = step(instance, event, now).0;
        }
        assert_eq!(instance.state, State::Serving);
        now += SignedDuration::from_secs(30);
        for event in [Event::Fault(Arc::from("hang")), Event::Ended, Event::MemoryFree] {
            instance = step(instance, event, now).0;
        }
        let State::Failed { at, retry_at, .. } = instance.state else { panic!("{instance:?}") };
        let wait = retry_at.map(|retry_at| retry_at.duration_since(at).as_secs());
        waits.push(wait);
        now += SignedDuration::from_secs(wait.unwrap_or(0));
        instance = step(instance, Event::Tick, now).0;
    }
    assert_eq!(waits, [Some(1), Some(60), Some(300), None], "at once, then as a start that fails, then not by itself");
}

#[test]
fn an_engine_that_breaks_after_a_long_service_is_started_at_once_every_time() {
    let (mut instance, _) = run(&[Event::Want, Event::Verified, Event::Loaded, Event::Proven]);
    let mut now = start();
    for _ in 0..6 {
        now += SignedDuration::from_mins(10);
        for event in [Event::Fault(Arc::from("hang")), Event::Ended, Event::MemoryFree] {
            instance = step(instance, event, now).0;
        }
        now += SignedDuration::from_secs(1);
        for event in [Event::Tick, Event::Verified, Event::Loaded, Event::Proven] {
            instance = step(instance, event, now).0;
        }
        assert_eq!(instance.state, State::Serving);
    }
}
