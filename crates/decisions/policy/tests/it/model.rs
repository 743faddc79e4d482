//! The limiter against an exact log of events, in virtual time: it never admits what the log forbids, and refuses
//! little that the log allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{AliasName, Dimension, KeyId, Limits, Monotonic, RequestId, Unix};
use tidegate_policy::limiter::{AdmitError, Admitted, Demand, MemoryCounters, Rules, Subject, SubjectKey, Subjects};

const WINDOW_NS: u64 = 60_000_000_000;
/// 2026-06-15T12:00:00Z.
const START_MS: i64 = 1_781_524_800_000;
const BOOT_NS: u64 = 7_200_000_000_000;

/// Every admission ever made, with what it counts as now.
#[derive(Default)]
struct Log {
    admissions: Vec<(u64, u64)>,
}

impl Log {
    /// Requests and tokens in (now − 60 s, now].
    fn window(&self, now_ns: u64) -> (u64, u64) {
        let until_now = self.admissions.iter().rev().skip_while(|(at, _)| *at > now_ns);
        let inside = until_now.take_while(|(at, _)| at + WINDOW_NS > now_ns);
        inside.fold((0, 0), |(requests, tokens), (_, amount)| (requests + 1, tokens + amount))
    }

    /// The fullest window of all, wherever it starts.
    fn fullest(&self) -> (u64, u64) {
        let windows = self.admissions.iter().map(|(at, _)| self.window(*at));
        windows.fold((0, 0), |(r, t), (requests, tokens)| (r.max(requests), t.max(tokens)))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Admit(u64),
    /// Ends the n-th request in flight with this part (of 8) of its estimate; twice, to see that once counts.
    Settle(usize, u64),
    Release(usize),
    /// Settles and releases in the other order, and again.
    End(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u64..2_000_000_000).prop_map(Step::Wait),
        1 => (0_u64..70_000_000_000).prop_map(Step::Wait),
        8 => (0_u64..400).prop_map(Step::Admit),
        2 => (any::<usize>(), 0_u64..=8).prop_map(|(n, part)| Step::Settle(n, part)),
        2 => any::<usize>().prop_map(Step::Release),
        2 => (any::<usize>(), 0_u64..=8).prop_map(|(n, part)| Step::End(n, part)),
    ];
    prop::collection::vec(step, 1..300)
}

struct Run {
    counters: MemoryCounters,
    subjects: Arc<Subjects>,
    subject: Arc<Subject>,
    limits: Limits,
    now_ns: u64,
    next: u128,
    log: Log,
    /// In flight or unsettled: handle, its place in the log, what is over.
    open: Vec<(Admitted, usize, bool, bool)>,
    in_flight: u64,
    charged: BTreeMap<i64, u64>,
}

impl Run {
    fn new(limits: Limits) -> Self {
        let counters = MemoryCounters::new();
        let rules = Rules { generation: 1, limits, ..Rules::default() };
        let (now, wall) = (Monotonic::from_ns(BOOT_NS), Unix::from_ms(START_MS));
        let keys =
            [(SubjectKey::alias(&AliasName::from("a")), rules), (SubjectKey::key(&KeyId::from("k")), Rules::default())];
        let subjects = counters.subjects_now(&keys, now, wall).unwrap();
        let subject = Arc::clone(subjects.at(tidegate_core::Level::Alias).unwrap());
        Self {
            counters,
            subjects,
            subject,
            limits,
            now_ns: BOOT_NS,
            next: 0,
            log: Log::default(),
            open: Vec::new(),
            in_flight: 0,
            charged: BTreeMap::new(),
        }
    }

    fn now(&self) -> Monotonic {
        Monotonic::from_ns(self.now_ns)
    }

    fn wall(&self) -> Unix {
        Unix::from_ms(START_MS + ((self.now_ns - BOOT_NS) / 1_000_000) as i64)
    }

    fn day(&self) -> i64 {
        self.wall().ms.div_euclid(86_400_000)
    }

    fn admit(&mut self, tokens: u64) {
        self.next += 1;
        let before = self.subject.counts(self.now(), self.wall());
        let demand = Demand { subjects: &self.subjects, tokens, now: self.now(), wall: self.wall() };
        match self.counters.admit_now(RequestId::new(0, self.next), demand) {
            Ok(admitted) => {
                self.log.admissions.push((self.now_ns, tokens));
                self.in_flight += 1;
                *self.charged.entry(self.day()).or_default() += tokens;
                self.open.push((admitted, self.log.admissions.len() - 1, false, false));
                self.check_limits();
            }
            Err(AdmitError::Limit(refusal)) => {
                let after = self.subject.counts(self.now(), self.wall());
                assert_eq!(before, after, "a refusal changed something (I6)");
                self.check_refusal(refusal.dimension, tokens, before);
                self.check_wait(&refusal, tokens);
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// I2, I1 and I5 at this instant, by the exact log.
    fn check_limits(&self) {
        let (requests, tokens) = self.log.window(self.now_ns);
        assert!(self.limits.rpm.is_none_or(|limit| requests <= limit), "{requests} requests in a window");
        assert!(self.limits.tpm.is_none_or(|limit| tokens <= limit), "{tokens} tokens in a window");
        assert!(self.limits.concurrency.is_none_or(|limit| self.in_flight <= limit), "{} in flight", self.in_flight);
        let charged = self.charged[&self.day()];
        assert!(self.limits.daily_tokens.is_none_or(|limit| charged <= limit), "{charged} tokens in a day");
    }

    /// A refusal has a reason: what counts is at most what the log holds in a window longer by one bucket.
    fn check_refusal(&self, dimension: Dimension, tokens: u64, counts: tidegate_policy::limiter::Counts) {
        let slack_ns = 250_000_000;
        let inside = self.log.admissions.iter().rev().take_while(|(at, _)| at + WINDOW_NS + slack_ns > self.now_ns);
        let (most_requests, most_tokens) = inside.fold((0, 0), |(r, t), (_, amount)| (r + 1, t + amount));
        assert!(counts.requests <= most_requests && counts.tokens <= most_tokens, "counts what is long gone");
        match dimension {
            Dimension::Requests => assert!(counts.requests + 1 > self.limits.rpm.unwrap()),
            Dimension::Tokens => assert!(counts.tokens + tokens > self.limits.tpm.unwrap()),
            Dimension::Concurrency => assert_eq!(self.in_flight, self.limits.concurrency.unwrap()),
            Dimension::DailyTokens => {
                let charged = self.charged.get(&self.day()).copied().unwrap_or(0);
                assert!(charged + tokens > self.limits.daily_tokens.unwrap());
            }
            Dimension::MonthlyTokens => panic!("there is no monthly limit here"),
        }
    }

    /// Nobody else comes: who waits as told is not refused again for the same reason.
    fn check_wait(&self, refusal: &tidegate_core::Refusal, tokens: u64) {
        let Some(wait) = refusal.retry_after else {
            assert!(refusal.too_large || refusal.dimension == Dimension::Concurrency);
            return;
        };
        let rates = matches!(refusal.dimension, Dimension::Requests | Dimension::Tokens);
        assert!(!rates || (!wait.is_zero() && wait <= Duration::from_secs(60)), "{wait:?}");
        let then_ns = self.now_ns + wait.as_nanos() as u64;
        // What the windows will hold at that time, by the exact log.
        let (requests, window) = self.log.window(then_ns);
        match refusal.dimension {
            Dimension::Requests => assert!(requests < self.limits.rpm.unwrap()),
            Dimension::Tokens => assert!(window + tokens <= self.limits.tpm.unwrap()),
            Dimension::Concurrency | Dimension::DailyTokens | Dimension::MonthlyTokens => {}
        }
    }

    fn settle(&mut self, n: usize, part: u64) {
        let Some(n) = n.checked_rem(self.open.len()) else { return };
        let (admitted, place, settled, _) = &mut self.open[n];
        let used = admitted.tokens() * part / 8;
        self.counters.settle_now(admitted, used);
        if !std::mem::replace(settled, true) {
            let day =
                (START_MS + ((self.log.admissions[*place].0 - BOOT_NS) / 1_000_000) as i64).div_euclid(86_400_000);
            *self.charged.get_mut(&day).unwrap() -= admitted.tokens() - used;
            self.log.admissions[*place].1 = used;
        }
        // Delivered again, with another figure: nothing happens (I8).
        self.counters.settle_now(admitted, 0);
    }

    fn release(&mut self, n: usize) {
        let Some(n) = n.checked_rem(self.open.len()) else { return };
        let (admitted, _, _, released) = &mut self.open[n];
        self.counters.release_now(admitted);
        self.counters.release_now(admitted);
        if !std::mem::replace(released, true) {
            self.in_flight -= 1;
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Wait(ns) => self.now_ns += ns,
            Step::Admit(tokens) => self.admit(tokens),
            Step::Settle(n, part) => self.settle(n, part),
            Step::Release(n) => self.release(n),
            Step::End(n, part) => {
                self.release(n);
                self.settle(n, part);
            }
        }
    }

    fn finish(mut self) {
        for n in 0..self.open.len() {
            self.release(n);
            self.settle(n, 3);
        }
        let (requests, tokens) = self.log.fullest();
        assert!(self.limits.rpm.is_none_or(|limit| requests <= limit));
        assert!(self.limits.tpm.is_none_or(|limit| tokens <= limit));
        assert_eq!(self.counters.live(), 0, "a reservation outlived its request (I9)");
        let counts = self.subject.counts(Monotonic::from_ns(self.now_ns + WINDOW_NS), self.wall());
        assert_eq!((counts.requests, counts.tokens, counts.in_flight), (0, 0, 0), "counts outlived the window");
        assert_eq!(counts.daily_tokens, self.charged.get(&self.day()).copied().unwrap_or(0), "charged is not kept");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// I2, I5, I6, I8, I9.
    #[test]
    fn no_window_and_no_day_exceeds_its_limit_and_refusals_have_a_reason(
        steps in steps(),
        rpm in prop::option::of(0_u64..120),
        tpm in prop::option::of(0_u64..20_000),
        concurrency in prop::option::of(0_u64..40),
        daily_tokens in prop::option::of(0_u64..60_000),
    ) {
        let mut run = Run::new(Limits { rpm, tpm, concurrency, daily_tokens, monthly_tokens: None });
        for step in &steps {
            run.step(step);
        }
        run.finish();
    }

    /// Many admissions, so that most of them are in buckets when their refunds come.
    #[test]
    fn refunds_find_their_bucket(
        gaps in prop::collection::vec(0_u64..400, 300..600),
        parts in prop::collection::vec(0_u64..=8, 600),
    ) {
        let mut run = Run::new(Limits { tpm: Some(30_000), ..Limits::default() });
        for (n, gap) in gaps.iter().enumerate() {
            run.step(&Step::Wait(gap * 1_000_000));
            run.step(&Step::Admit(100));
            if n >= 120 {
                run.step(&Step::End(n * 7 % run.open.len().max(1), parts[n]));
            }
        }
        run.finish();
    }

    /// Bursts inside buckets, and pauses of about a window: where a bucket that leaves too early would show.
    #[test]
    fn bursts_a_window_apart_do_not_add_up(
        bursts in prop::collection::vec((1_usize..150, 0_u64..4, prop_oneof![0_u64..300, 59_000_u64..61_000]), 1..12),
        rpm in 60_u64..300,
    ) {
        let mut run = Run::new(Limits { rpm: Some(rpm), ..Limits::default() });
        for (size, gap_ms, pause_ms) in bursts {
            for _ in 0..size {
                run.step(&Step::Admit(1));
                run.step(&Step::Wait(gap_ms * 1_000_000));
            }
            run.step(&Step::Wait(pause_ms * 1_000_000));
        }
        run.finish();
    }

    /// I11: steps of the wall clock admit no more than the quota of each day it shows.
    #[test]
    fn a_stepping_wall_clock_admits_no_more_than_each_days_quota(
        steps in prop::collection::vec((-40_i64..40, 1_u64..50), 1..200),
    ) {
        let counters = MemoryCounters::new();
        let limits = Limits { daily_tokens: Some(200), ..Limits::default() };
        let keys = [(SubjectKey::alias(&AliasName::from("a")), Rules { limits, ..Rules::default() })];
        let subjects = counters.subjects_now(&keys, Monotonic::default(), Unix::from_ms(START_MS)).unwrap();
        let mut charged: BTreeMap<i64, u64> = BTreeMap::new();
        for (n, (hours, tokens)) in steps.into_iter().enumerate() {
            let wall = Unix::from_ms(START_MS + hours * 3_600_000);
            let demand = Demand { subjects: &subjects, tokens, now: Monotonic::from_ms(n as u64), wall };
            if let Ok(admitted) = counters.admit_now(RequestId::new(0, n as u128), demand) {
                *charged.entry(wall.ms.div_euclid(86_400_000)).or_default() += tokens;
                counters.settle_now(&admitted, tokens);
                counters.release_now(&admitted);
            }
        }
        prop_assert!(charged.values().all(|tokens| *tokens <= 200), "{charged:?}");
    }

    /// I11: a monotonic clock that is read late by some cores, or steps back, admits no more than the limit.
    #[test]
    fn late_and_backward_instants_admit_no_more_than_the_limit(
        instants in prop::collection::vec(0_u64..90_000, 1..400),
    ) {
        let mut run = Run::new(Limits { rpm: Some(50), ..Limits::default() });
        let mut latest = 0;
        let mut admitted = Vec::new();
        for (n, ms) in instants.into_iter().enumerate() {
            run.now_ns = BOOT_NS + ms * 1_000_000;
            let demand = Demand { subjects: &run.subjects, tokens: 1, now: run.now(), wall: run.wall() };
            latest = latest.max(run.now_ns);
            if run.counters.admit_now(RequestId::new(0, n as u128), demand).is_ok() {
                // Time does not go back: it was admitted at the latest instant seen.
                admitted.push((latest, 1));
            }
        }
        let (requests, _) = Log { admissions: admitted }.fullest();
        prop_assert!(requests <= 50);
    }
}

/// Refused part of a steady demand of exactly the limit, in one dimension.
fn refused_part(limit: u64, limits: Limits, tokens: u64) -> f64 {
    let counters = MemoryCounters::new();
    let keys = [(SubjectKey::alias(&AliasName::from("a")), Rules { limits, ..Rules::default() })];
    let subjects = counters.subjects_now(&keys, Monotonic::default(), Unix::from_ms(START_MS)).unwrap();
    let demands = (limit * 4).max(400);
    let mut refused = 0;
    for n in 0..demands {
        // Exactly `limit` per minute, off the grid of the buckets.
        let now =
            Monotonic::from_ns(BOOT_NS + 123_456_789 + (n as u128 * u128::from(WINDOW_NS) / u128::from(limit)) as u64);
        let wall = Unix::from_ms(START_MS);
        let demand = Demand { subjects: &subjects, tokens, now, wall };
        match counters.admit_now(RequestId::new(0, u128::from(n)), demand) {
            Ok(admitted) => {
                counters.settle_now(&admitted, tokens);
                counters.release_now(&admitted);
            }
            Err(_) => refused += 1,
        }
    }
    refused as f64 / demands as f64
}

#[test]
fn a_steady_demand_of_exactly_the_limit_is_refused_at_most_two_in_a_hundred() {
    for limit in [5, 6, 7, 10, 13, 30, 50, 59, 60, 63, 64, 65, 66, 77, 100, 128, 240, 250, 600, 1_000, 3_000, 10_000] {
        let by_requests = refused_part(limit, Limits { rpm: Some(limit), ..Limits::default() }, 7);
        assert!(by_requests <= 0.02, "{limit} requests a minute: {by_requests}");
        let by_tokens = refused_part(limit, Limits { tpm: Some(limit * 7), ..Limits::default() }, 7);
        assert!(by_tokens <= 0.02, "{limit} a minute, by tokens: {by_tokens}");
    }
}
