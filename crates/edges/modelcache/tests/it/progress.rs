//! Progress: its pace, its arithmetic, and queues that never make the fetch wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::progress::{
    Event, Feed, LISTENERS_MAX, Listener, Meter, Place, QUEUE_MAX, RATE_WINDOW, REPORT_EVERY,
};

fn report(file: &str, bytes: u64) -> Event {
    let (file, rate_bytes_per_s) = (file.to_owned(), 0);
    Event::Progress {
        file,
        bytes,
        total: 1000,
        fetched_total: bytes,
        model_total: 1000,
        rate_bytes_per_s,
        left_ms: None,
    }
}

fn done(file: usize) -> Event {
    Event::FileDone { file: file.to_string(), bytes: 1 }
}

fn published() -> Event {
    Event::Published { digest: "d".into(), path: "/p".into() }
}

/// Everything that waits, once the feed is closed.
async fn all(mut listener: Listener) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = listener.next().await {
        events.push(event);
    }
    events
}

#[test]
fn events_are_one_json_object_each_and_come_back_as_they_were() {
    let file = || "weights/a".to_owned();
    let events = [
        (
            Event::Resolved { model: "m/1".into(), digest: "d".into(), files: 2, bytes: 9, cached_bytes: 1 },
            r#"{"event":"resolved","model":"m/1","digest":"d","files":2,"bytes":9,"cached_bytes":1}"#,
        ),
        (
            Event::FileStarted { file: file(), bytes: 9, resumed_bytes: 3 },
            r#"{"event":"file_started","file":"weights/a","bytes":9,"resumed_bytes":3}"#,
        ),
        (
            Event::ChunkBad { file: file(), chunk: 7, place: Place::Disk },
            r#"{"event":"chunk_bad","file":"weights/a","chunk":7,"where":"disk"}"#,
        ),
        (
            Event::Retry { file: None, fault: "throttled".into(), attempt: 2, after_ms: 60_000 },
            r#"{"event":"retry","fault":"throttled","attempt":2,"after_ms":60000}"#,
        ),
        (published(), r#"{"event":"published","digest":"d","path":"/p"}"#),
        (
            Event::failed(&CacheFault::Cancelled),
            r#"{"event":"failed","code":"cancelled","message":"cancelled","hint":"start it again: it goes on where it was"}"#,
        ),
    ];
    for (event, text) in events {
        assert_eq!(serde_json::to_string(&event).unwrap(), text);
        assert_eq!(serde_json::from_str::<Event>(text).unwrap(), event);
    }
}

#[test]
fn a_file_reports_ten_times_a_second_and_at_its_end() {
    let start = Instant::now();
    let meter = Meter::new(1_000_000, 0, start);
    meter.start("a", 1_000_000, 0);
    let reports = (1..=1000).filter(|at| meter.add("a", 1000, start + Duration::from_millis(*at)).is_some()).count();
    // One at the first byte, one in each tenth of a second after it, one at the end.
    assert_eq!(reports, 11);
    assert_eq!(meter.done("a"), Some(Event::FileDone { file: "a".into(), bytes: 1_000_000 }));
    assert_eq!(meter.done("a"), None);
}

#[test]
fn the_rate_is_that_of_the_last_seconds_and_gives_the_time_left() {
    let start = Instant::now();
    let meter = Meter::new(100_000, 10_000, start);
    meter.start("a", 90_000, 5_000);
    let at = |ms| start + Duration::from_millis(ms);
    let Some(Event::Progress { rate_bytes_per_s, left_ms, fetched_total, bytes, .. }) = meter.add("a", 5_000, at(1000))
    else {
        panic!("it is due")
    };
    // What lay on the disk is progress, not rate.
    assert_eq!((rate_bytes_per_s, left_ms, fetched_total, bytes), (5_000, Some(16_000), 20_000, 10_000));
    // A stall brings the rate down, and after the window nothing of the time before it is left.
    let Some(Event::Progress { rate_bytes_per_s, .. }) = meter.add("a", 0, at(2000)) else { panic!("it is due") };
    assert_eq!(rate_bytes_per_s, 2_500);
    let later = 2000 + 2 * RATE_WINDOW.as_millis() as u64;
    meter.add("a", 0, at(later));
    let Some(Event::Progress { rate_bytes_per_s, left_ms, .. }) = meter.add("a", 0, at(later + 1000)) else {
        panic!("it is due")
    };
    assert_eq!((rate_bytes_per_s, left_ms), (0, None), "unknown is not for ever");
}

proptest! {
    #[test]
    fn whatever_comes_no_sum_is_more_than_all_and_no_pace_is_too_fast(
        steps in proptest::collection::vec((0_usize..3, 0_u64..2000, 0_u64..300), 1..200),
        restart in proptest::option::of(0_usize..200),
    ) {
        let start = Instant::now();
        let meter = Meter::new(3000, 0, start);
        let names = ["a", "b", "c"];
        for name in names {
            meter.start(name, 1000, 0);
        }
        let mut now = start;
        let mut reported = [None; 3];
        for (at, (file, bytes, after_ms)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(after_ms);
            if restart == Some(at) {
                meter.start(names[file], 1000, 0);
                reported[file] = None;
            }
            let event = meter.add(names[file], bytes, now);
            if let Some(Event::Progress { bytes, total, fetched_total, .. }) = event {
                prop_assert!(bytes <= total && fetched_total <= 3000);
                let soon = reported[file].is_some_and(|last: Instant| now - last < REPORT_EVERY);
                prop_assert!(!soon || bytes == total);
                reported[file] = Some(now);
            }
        }
        prop_assert!(meter.totals().0 <= 3000);
    }
}

#[tokio::test]
async fn a_slow_listener_keeps_the_newest_report_of_each_file() {
    let feed = Feed::new();
    let listener = feed.listen().unwrap();
    for bytes in 0..100_000 {
        feed.send(report("a", bytes));
        feed.send(report("b", bytes + 1));
    }
    feed.send(published());
    feed.close();
    assert_eq!(all(listener).await, [report("a", 99_999), report("b", 100_000), published()]);
}

#[tokio::test]
async fn a_queue_is_bounded_drops_the_oldest_says_how_many_and_never_the_end() {
    let feed = Feed::new();
    let listener = feed.listen().unwrap();
    for file in 0..QUEUE_MAX {
        feed.send(done(file));
    }
    let full = feed.listen().unwrap();
    drop(full);
    for file in QUEUE_MAX..QUEUE_MAX + 10 {
        feed.send(done(file));
    }
    feed.fail(&CacheFault::Cancelled);
    feed.close();
    let events = all(listener).await;
    assert_eq!(events[0], Event::Missed { events: 11 });
    assert_eq!(events[1], done(11), "the oldest are gone");
    assert_eq!(events.len(), QUEUE_MAX + 1);
    assert_eq!(events[QUEUE_MAX], Event::failed(&CacheFault::Cancelled));
}

#[tokio::test]
async fn reports_go_before_what_says_more() {
    let feed = Feed::new();
    let listener = feed.listen().unwrap();
    feed.send(report("a", 1));
    for file in 0..QUEUE_MAX {
        feed.send(done(file));
    }
    feed.close();
    let events = all(listener).await;
    assert_eq!(events[..2], [Event::Missed { events: 1 }, done(0)]);
    assert_eq!(events.len(), QUEUE_MAX + 1);
}

#[tokio::test]
async fn who_joins_late_first_hears_where_things_stand() {
    let feed = Feed::new();
    let resolved = Event::Resolved { model: "m/1".into(), digest: "d".into(), files: 2, bytes: 9, cached_bytes: 1 };
    let started = |file: &str| Event::FileStarted { file: file.into(), bytes: 9, resumed_bytes: 0 };
    for event in [resolved.clone(), started("a"), started("b"), report("a", 3), report("a", 5)] {
        feed.send(event);
    }
    feed.send(Event::FileDone { file: "b".into(), bytes: 9 });
    let late = feed.listen().unwrap();
    feed.send(report("a", 9));
    feed.send(published());
    feed.send(report("a", 10));
    let after = feed.listen().unwrap();
    feed.close();
    assert_eq!(all(late).await, [resolved.clone(), report("a", 9), published()]);
    assert_eq!(all(after).await, [resolved, report("a", 9), published()]);
    assert_eq!(all(feed.listen().unwrap()).await.last(), Some(&published()), "closed, but it still says how it ended");
}

#[tokio::test]
async fn a_listener_that_waits_is_woken_by_events_and_by_the_end() {
    let feed = Feed::new();
    let mut listener = feed.listen().unwrap();
    let feed = Arc::new(feed);
    let (first, second) = tokio::join!(listener.next(), async { feed.send(done(1)) });
    assert_eq!((first, second), (Some(done(1)), ()));
    let (end, ()) = tokio::join!(listener.next(), async { feed.close() });
    assert_eq!(end, None);
}

#[test]
fn listeners_are_bounded_and_those_that_left_do_not_count() {
    let feed = Feed::new();
    let listeners: Vec<_> = (0..LISTENERS_MAX).map(|_| feed.listen().unwrap()).collect();
    assert!(feed.listen().is_none());
    drop(listeners);
    assert!(feed.listen().is_some());
}
