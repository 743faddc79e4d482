//! Many callers at once: never more than the limit, in each dimension (attack case F01).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use tidegate_core::{AliasName, CallerName, KeyId, Level, Limits, Monotonic, RequestId, TeamName, Unix};
use tidegate_policy::limiter::{Demand, MemoryCounters, Rules, SubjectKey, Subjects};

const CALLERS: usize = 64;
const NOW: Monotonic = Monotonic::from_ms(1_000_000);
const WALL: Unix = Unix::from_ms(1_781_524_800_000);

/// Subjects of one caller: alias and team are shared by all, the rest is its own.
fn subjects_of(counters: &MemoryCounters, caller: usize, shared: Limits) -> Arc<Subjects> {
    let (team, alias) = (TeamName::from("t"), AliasName::from("a"));
    let name = CallerName::from(caller.to_string());
    let keys = [
        (SubjectKey::key(&KeyId::from(caller.to_string())), Rules::default()),
        (SubjectKey::team(&team), Rules::default()),
        (SubjectKey::alias(&alias), Rules { limits: shared, ..Rules::default() }),
        (SubjectKey::caller_parts("keyring", name.as_str(), &team), Rules::default()),
        (SubjectKey::team_alias(&team, &alias), Rules::default()),
    ];
    counters.subjects_now(&keys, NOW, WALL).unwrap()
}

/// 64 callers try 100 times each; whatever is admitted stays in flight. Returns how many were.
fn admitted_by_all(shared: Limits) -> u64 {
    let counters = MemoryCounters::new();
    let (admitted, barrier) = (AtomicU64::new(0), Barrier::new(CALLERS));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (counters, admitted, barrier) = (&counters, &admitted, &barrier);
            scope.spawn(move || {
                let subjects = subjects_of(counters, caller, shared);
                barrier.wait();
                for n in 0..100 {
                    let id = RequestId::new(0, (caller * 1_000 + n) as u128);
                    let demand = Demand { subjects: &subjects, tokens: 100, now: NOW, wall: WALL };
                    if counters.admit_now(id, demand).is_ok() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let alias = counters.subject(&SubjectKey::alias(&AliasName::from("a")), &Rules::default(), NOW, WALL).unwrap();
    let counts = alias.counts(NOW, WALL);
    let total = admitted.into_inner();
    assert_eq!((counts.requests, counts.tokens, counts.in_flight), (total, total * 100, total));
    total
}

#[test]
fn sixty_four_parallel_callers_get_exactly_the_limit_in_each_dimension() {
    let none = Limits::default();
    for (limits, expected) in [
        (Limits { rpm: Some(1_000), ..none }, 1_000),
        (Limits { tpm: Some(1_050), ..none }, 10),
        (Limits { concurrency: Some(7), ..none }, 7),
        (Limits { daily_tokens: Some(123_456), ..none }, 1_234),
        (Limits { monthly_tokens: Some(99), ..none }, 0),
        (Limits { rpm: Some(50), tpm: Some(4_000), concurrency: Some(45), ..none }, 40),
    ] {
        assert_eq!(admitted_by_all(limits), expected, "{limits:?}");
    }
}

#[test]
fn slots_are_never_over_the_limit_while_requests_come_and_go_and_move() {
    let counters = MemoryCounters::new();
    let limits = Limits { concurrency: Some(7), ..Limits::default() };
    let (running, most, admitted) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (counters, running, most, admitted) = (&counters, &running, &most, &admitted);
            scope.spawn(move || {
                let subjects = subjects_of(counters, caller, limits);
                let reversed = subjects_of(counters, CALLERS - 1 - caller, limits);
                for n in 0..200 {
                    let id = RequestId::new(0, (caller * 1_000 + n) as u128);
                    let demand = Demand { subjects: &subjects, tokens: 10, now: NOW, wall: WALL };
                    let Ok(held) = counters.admit_now(id, demand) else { continue };
                    admitted.fetch_add(1, Ordering::Relaxed);
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // A shared alias is counted once while the request moves to another key's limits.
                    let moved = counters.transfer_now(&held, Demand { subjects: &reversed, ..demand });
                    let held = moved.unwrap_or(held);
                    running.fetch_sub(1, Ordering::SeqCst);
                    counters.release_now(&held);
                    counters.settle_now(&held, 3);
                }
            });
        }
    });
    assert!(admitted.into_inner() > 0);
    assert!(most.into_inner() <= 7);
    assert_eq!(counters.live(), 0);
    let subjects = subjects_of(&counters, 0, limits);
    for level in Level::ALL {
        assert_eq!(subjects.at(level).unwrap().counts(NOW, WALL).in_flight, 0, "{level}");
    }
}

#[test]
fn one_id_delivered_by_many_threads_is_admitted_once() {
    let counters = MemoryCounters::new();
    let subjects = subjects_of(&counters, 0, Limits { concurrency: Some(1), ..Limits::default() });
    let barrier = Barrier::new(16);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                barrier.wait();
                let demand = Demand { subjects: &subjects, tokens: 10, now: NOW, wall: WALL };
                let held = counters.admit_now(RequestId::new(0, 1), demand).expect("the id is admitted already");
                barrier.wait();
                counters.settle_now(&held, 4);
                counters.release_now(&held);
            });
        }
    });
    let counts = subjects.at(Level::Alias).unwrap().counts(NOW, WALL);
    assert_eq!((counts.requests, counts.tokens, counts.in_flight, counts.daily_tokens), (1, 4, 0, 4));
    assert_eq!(counters.live(), 0);
}
