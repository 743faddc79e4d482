//! Bounds, restarts, headers and texts of the limiter.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate_core::{AliasName, Case, Dimension, Level, Limits, Monotonic, Refusal, RequestId, TeamName, Unix};
use tidegate_policy::limiter::{
    ABANDONED_AFTER, AdmitError, BUCKET, Demand, EXACT_MAX, LIVE_MAX, LOOK_AGAIN_AFTER, MemoryCounters, Rules,
    SUBJECTS_MAX, SubjectKey, Subjects, Swept, WINDOW,
};
use tidegate_policy::period::Period;

/// 2026-06-15T12:00:00Z.
const WALL: Unix = Unix::from_ms(1_781_524_800_000);
const NOW: Monotonic = Monotonic::from_ms(10_000_000);

fn rules(limits: Limits) -> Rules {
    Rules { limits, ..Rules::default() }
}

fn alias(name: &str) -> SubjectKey {
    SubjectKey::alias(&AliasName::from(name))
}

fn subjects(counters: &MemoryCounters, limits: Limits) -> Arc<Subjects> {
    counters.subjects_now(&[(alias("a"), rules(limits))], NOW, WALL).unwrap()
}

fn demand(subjects: &Arc<Subjects>, tokens: u64, now: Monotonic) -> Demand<'_, Subjects> {
    Demand { subjects, tokens, now, wall: WALL }
}

fn id(n: u128) -> RequestId {
    RequestId::new(0, n)
}

fn after(by: Duration) -> Monotonic {
    NOW.after(by)
}

#[test]
fn windows_rebuilt_after_a_restart_refuse_what_the_last_minute_used_up() {
    let counters = MemoryCounters::new();
    let subjects = subjects(&counters, Limits { rpm: Some(10), ..Limits::default() });
    for second in 0..10 {
        counters.restore_window(&subjects, Monotonic::from_ms(NOW.ns / 1_000_000 - 59_000 + second * 1_000), 5);
    }
    let Err(AdmitError::Limit(refusal)) = counters.admit_now(id(1), demand(&subjects, 1, NOW)) else {
        panic!("kill and start admitted 2 L in a minute")
    };
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    let held = counters.admit_now(id(2), demand(&subjects, 1, after(Duration::from_secs(1)))).unwrap();
    counters.settle_now(&held, 1);
    counters.release_now(&held);
}

#[test]
fn windows_of_another_boot_count_in_full_from_now() {
    let counters = MemoryCounters::new();
    let subjects = subjects(&counters, Limits { tpm: Some(100), ..Limits::default() });
    // Out of order too: the clamp is on the safe side.
    counters.restore_window(&subjects, NOW, 60);
    counters.restore_window(&subjects, Monotonic::from_ms(1), 40);
    let Err(AdmitError::Limit(refusal)) = counters.admit_now(id(1), demand(&subjects, 1, NOW)) else {
        panic!("admitted")
    };
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(60)));
}

#[test]
fn quotas_rebuilt_from_the_ledger_hold() {
    let counters = MemoryCounters::new();
    let limits = Limits { daily_tokens: Some(100), monthly_tokens: Some(1_000), ..Limits::default() };
    let subjects = subjects(&counters, limits);
    counters.restore_quota(subjects.at(Level::Alias).unwrap(), Period::Day, WALL, 70);
    counters.restore_quota(subjects.at(Level::Alias).unwrap(), Period::Month, WALL, 980);
    assert_eq!(counters.token_allowance_now(&subjects, NOW, WALL), Some(20));
    let Err(AdmitError::Limit(refusal)) = counters.admit_now(id(1), demand(&subjects, 31, NOW)) else {
        panic!("admitted")
    };
    assert_eq!(refusal.dimension, Dimension::MonthlyTokens, "the longer wait is named");
}

#[test]
fn a_change_of_zone_keeps_what_the_period_has_used() {
    let counters = MemoryCounters::new();
    let limits = Limits { daily_tokens: Some(100), ..Limits::default() };
    let subjects = subjects(&counters, limits);
    let held = counters.admit_now(id(1), demand(&subjects, 80, NOW)).unwrap();
    let seoul = Rules { generation: 1, limits, zone: TimeZone::get("Asia/Seoul").unwrap() };
    counters.subject(&alias("a"), &seoul, NOW, WALL).unwrap();
    assert_eq!(counters.token_allowance_now(&subjects, NOW, WALL), Some(20));
    counters.settle_now(&held, 30);
    assert_eq!(counters.token_allowance_now(&subjects, NOW, WALL), Some(70));
    // Seoul's next day begins at 15:00Z.
    let evening = Unix::from_ms(WALL.ms + 3 * 3_600_000);
    assert_eq!(counters.token_allowance_now(&subjects, NOW, evening), Some(100));
    counters.release_now(&held);
}

/// Admits, settles and releases one request; whether it passed.
fn passes(counters: &MemoryCounters, subjects: &Arc<Subjects>, serial: &mut u128, now: Monotonic) -> bool {
    *serial += 1;
    let Ok(held) = counters.admit_now(id(*serial), demand(subjects, 1, now)) else { return false };
    counters.settle_now(&held, 1);
    counters.release_now(&held);
    true
}

#[test]
fn an_admission_counts_until_exactly_sixty_seconds_later() {
    let (counters, mut serial) = (MemoryCounters::new(), 0);
    let subjects = subjects(&counters, Limits { rpm: Some(1), ..Limits::default() });
    assert!(passes(&counters, &subjects, &mut serial, NOW));
    assert!(!passes(&counters, &subjects, &mut serial, after(WINDOW - Duration::from_nanos(1))));
    assert!(passes(&counters, &subjects, &mut serial, after(WINDOW)));
}

#[test]
fn the_newest_64_admissions_leave_one_by_one() {
    let (counters, mut serial) = (MemoryCounters::new(), 0);
    let subjects = subjects(&counters, Limits { rpm: Some(EXACT_MAX as u64), ..Limits::default() });
    assert_eq!(EXACT_MAX, 64);
    for ms in 0..64 {
        assert!(passes(&counters, &subjects, &mut serial, after(Duration::from_millis(ms))));
    }
    for ms in 0..64 {
        let now = after(WINDOW + Duration::from_millis(ms));
        assert!(passes(&counters, &subjects, &mut serial, now), "{ms}");
        assert!(!passes(&counters, &subjects, &mut serial, now), "{ms}");
    }
}

#[test]
fn a_bucket_counts_whole_until_its_last_admission_has_left() {
    let (counters, mut serial) = (MemoryCounters::new(), 0);
    let subjects = subjects(&counters, Limits { rpm: Some(200), ..Limits::default() });
    // One at the start of a bucket, 199 at its end: most of them are folded into it.
    assert!(passes(&counters, &subjects, &mut serial, NOW));
    let late = after(BUCKET - Duration::from_millis(1));
    assert!((0..199).all(|_| passes(&counters, &subjects, &mut serial, late)));
    assert!(!passes(&counters, &subjects, &mut serial, after(WINDOW)), "the first one's leaving frees the bucket");
    let now = late.after(WINDOW);
    assert_eq!((0..300).filter(|_| passes(&counters, &subjects, &mut serial, now)).count(), 200);
}

#[test]
fn requests_in_flight_are_bounded() {
    let counters = MemoryCounters::new();
    let subjects = subjects(&counters, Limits::default());
    let held: Vec<_> =
        (0..LIVE_MAX as u128).map(|n| counters.admit_now(id(n), demand(&subjects, 1, NOW)).unwrap()).collect();
    let full = counters.admit_now(id(LIVE_MAX as u128), demand(&subjects, 1, NOW));
    assert!(matches!(full, Err(AdmitError::Full)));
    assert_eq!(AdmitError::Full.to_fault(WALL).case, Case::Overloaded);
    assert!(counters.admit_now(id(5), demand(&subjects, 1, NOW)).is_ok(), "known ids are no new ones");
    counters.release_now(&held[0]);
    counters.settle_now(&held[0], 0);
    assert!(counters.admit_now(id(LIVE_MAX as u128), demand(&subjects, 1, NOW)).is_ok());
}

#[test]
fn subjects_are_bounded_and_idle_ones_make_room() {
    let counters = MemoryCounters::new();
    let quota = rules(Limits { daily_tokens: Some(10), ..Limits::default() });
    let with_use = |n: usize| {
        let subjects = counters.subjects_now(&[(alias(&n.to_string()), quota.clone())], NOW, WALL).unwrap();
        let held = counters.admit_now(id(n as u128), demand(&subjects, 1, NOW)).unwrap();
        counters.settle_now(&held, 1);
        counters.release_now(&held);
        subjects
    };
    let all: Vec<_> = (0..SUBJECTS_MAX).map(with_use).collect();
    let more = |now, wall| counters.subject(&alias("one more"), &Rules::default(), now, wall).is_ok();
    let later = after(Duration::from_secs(61));
    let next_month = Unix::from_ms(WALL.ms + 30 * 86_400_000);
    assert!(!more(later, next_month), "all are held");
    drop(all);
    assert!(!more(later, next_month), "no second look at once");
    let earlier = after(Duration::from_secs(59));
    assert!(!more(earlier, next_month), "the last minute counts");
    assert!(more(later.after(LOOK_AGAIN_AFTER), next_month));
    assert_eq!((counters.known_subjects(), counters.spilled_subjects()), (1, 0), "the month was over");
}

#[test]
fn a_quota_is_not_given_out_again_after_its_subject_made_room() {
    let counters = MemoryCounters::new();
    let quota = rules(Limits { daily_tokens: Some(10), monthly_tokens: Some(15), ..Limits::default() });
    let of = |n: usize, now, wall| counters.subjects_now(&[(alias(&n.to_string()), quota.clone())], now, wall).unwrap();
    for n in 0..SUBJECTS_MAX {
        let held = counters.admit_now(id(n as u128), demand(&of(n, NOW, WALL), 8, NOW)).unwrap();
        counters.settle_now(&held, 8);
        counters.release_now(&held);
    }
    let later = after(Duration::from_secs(61));
    drop(of(SUBJECTS_MAX, later, WALL));
    assert_eq!((counters.known_subjects(), counters.spilled_subjects()), (1, SUBJECTS_MAX));
    let left = |n: usize, wall| counters.token_allowance_now(&of(n, later, wall), later, wall);
    for n in [0, 1, SUBJECTS_MAX - 1] {
        assert_eq!(left(n, WALL), Some(2), "{n}: the day");
    }
    let tomorrow = Unix::from_ms(WALL.ms + 86_400_000);
    assert_eq!((left(0, tomorrow), left(2, tomorrow)), (Some(7), Some(7)), "the month, whenever it came back");
    let next_month = Unix::from_ms(WALL.ms + 30 * 86_400_000);
    assert_eq!(left(3, next_month), Some(10));
    counters.sweep(later, next_month);
    assert_eq!(counters.spilled_subjects(), 0, "their periods are over");
}

#[test]
fn a_sweep_forgets_idle_subjects_and_frees_slots_that_nobody_holds() {
    let counters = MemoryCounters::new();
    let limits = Limits { concurrency: Some(1), daily_tokens: Some(100), ..Limits::default() };
    let subjects = subjects(&counters, limits);
    drop(counters.admit_now(id(1), demand(&subjects, 40, NOW)).unwrap());
    let soon = after(ABANDONED_AFTER - Duration::from_nanos(1));
    assert_eq!(counters.sweep(soon, WALL), Swept::default());
    let late = after(ABANDONED_AFTER);
    assert_eq!(counters.sweep(late, WALL), Swept { subjects: 0, abandoned: 1 });
    assert_eq!(counters.live(), 0);
    assert_eq!(counters.token_allowance_now(&subjects, late, WALL), Some(60), "an orphan keeps its estimate");
    let held = counters.admit_now(id(2), demand(&subjects, 10, late)).unwrap();
    assert_eq!(counters.sweep(after(ABANDONED_AFTER * 3), WALL), Swept::default(), "a held one is nobody's orphan");
    counters.settle_now(&held, 10);
    counters.release_now(&held);
    drop((held, subjects));
    let next_month = Unix::from_ms(WALL.ms + 30 * 86_400_000);
    assert_eq!(counters.sweep(after(ABANDONED_AFTER * 9), next_month), Swept { subjects: 1, abandoned: 0 });
}

#[test]
fn ten_thousand_cancelled_requests_leave_nothing_behind() {
    let counters = MemoryCounters::new();
    let limits = Limits { concurrency: Some(3), tpm: Some(1_000), daily_tokens: Some(1_000), ..Limits::default() };
    let subjects = subjects(&counters, limits);
    for n in 0..10_000 {
        let held = counters.admit_now(id(n), demand(&subjects, 900, NOW)).unwrap();
        counters.settle_now(&held, 0);
        counters.release_now(&held);
    }
    let counts = subjects.at(Level::Alias).unwrap().counts(NOW, WALL);
    assert_eq!((counts.tokens, counts.in_flight, counts.daily_tokens, counts.requests), (0, 0, 0, 10_000));
    assert_eq!(counters.live(), 0);
}

#[test]
fn a_caller_who_obeys_the_headers_is_never_refused() {
    let counters = MemoryCounters::new();
    let limits = Limits { rpm: Some(70), tpm: Some(5_000), ..Limits::default() };
    let subjects = subjects(&counters, limits);
    let mut now = NOW;
    let mut reset = Duration::ZERO;
    let (mut requests, mut tokens) = (70, 5_000);
    for n in 0..2_000_u64 {
        let cost = 1 + (n * 37) % 150;
        if requests == 0 || tokens < cost {
            now = now.after(reset);
        }
        let held = counters.admit_now(id(u128::from(n)), demand(&subjects, cost, now)).expect("told to come now");
        let view = held.view();
        let (by_requests, by_tokens) = (view.requests.unwrap(), view.tokens.unwrap());
        assert_eq!((by_requests.limit, by_tokens.limit), (70, 5_000));
        (requests, tokens) = (by_requests.remaining, by_tokens.remaining);
        reset = by_requests.reset.max(by_tokens.reset);
        assert!(reset <= Duration::from_secs(60));
        counters.settle_now(&held, cost);
        counters.release_now(&held);
        now = now.after(Duration::from_millis(n % 400));
    }
}

#[test]
fn without_limits_there_are_no_headers_and_nothing_is_refused() {
    let counters = MemoryCounters::new();
    let subjects = subjects(&counters, Limits::default());
    let held = counters.admit_now(id(1), demand(&subjects, u64::MAX, NOW)).unwrap();
    let again = counters.admit_now(id(2), demand(&subjects, u64::MAX, NOW)).unwrap();
    assert_eq!((held.view().requests, held.view().tokens), (None, None));
    assert_eq!(counters.token_allowance_now(&subjects, NOW, WALL), None);
    drop(again);
}

#[test]
fn names_cannot_be_joined_into_the_name_of_another_subject() {
    let key = |team: &str, alias: &str| SubjectKey::team_alias(&TeamName::from(team), &AliasName::from(alias));
    assert_ne!(key("a", "b/c"), key("a/b", "c"));
    assert_ne!(key("ab", "c"), key("a", "bc"));
    assert_ne!(alias("t"), SubjectKey::team(&TeamName::from("t")));
}

#[test]
fn every_refusal_reads_as_the_table_says() {
    let refusal = Refusal {
        level: Level::Team,
        dimension: Dimension::Requests,
        limit: 60,
        retry_after: Some(Duration::from_millis(1_500)),
        too_large: false,
    };
    let fault = AdmitError::from(refusal).to_fault(WALL);
    assert_eq!((fault.case, fault.retry_after), (Case::RateRequests, Some(Duration::from_millis(1_500))));
    assert_eq!(fault.public, "limit of 60 requests per minute at level team reached");

    let quota =
        Refusal { dimension: Dimension::DailyTokens, retry_after: Some(Duration::from_secs(43_200)), ..refusal };
    let fault = AdmitError::from(quota).to_fault(WALL);
    assert_eq!((fault.case, fault.retry_after, fault.should_retry), (Case::Quota, None, Some(false)));
    assert!(fault.public.ends_with("the next period starts at 2026-06-16T00:00:00Z"), "{}", fault.public);

    let large = Refusal { dimension: Dimension::Tokens, retry_after: None, too_large: true, ..refusal };
    let fault = AdmitError::from(large).to_fault(WALL);
    assert_eq!((fault.case, fault.should_retry, fault.retry_after), (Case::TooLargeForLimit, Some(false), None));

    let slots = Refusal { dimension: Dimension::Concurrency, retry_after: None, ..refusal };
    let fault = AdmitError::from(slots).to_fault(WALL);
    assert_eq!((fault.case, fault.should_retry), (Case::Concurrency, None));
    assert!(fault.retry_after.is_some());

    let none = Refusal { dimension: Dimension::Concurrency, retry_after: None, too_large: true, ..refusal };
    let fault = AdmitError::from(none).to_fault(WALL);
    assert_eq!((fault.should_retry, fault.retry_after), (Some(false), None));
}
