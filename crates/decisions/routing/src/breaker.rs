//! A circuit breaker for one replica: takes it out of the pick when its own faults say so, and lets one request try it
//! again later.
//!
//! ```text
//!            refused connection, or `failures_max` faults in a row
//!   Closed ───────────────────────────────────────────────────────> Open{until}
//!      ^                                                             │ until has passed
//!      │ success                                                     v
//!      └──────────────────────────────────────────────────────── HalfOpen (one trial at a time)
//!                                   failure: Open again, twice as long
//! ```
//!
//! Only faults whose origin is the replica are reported here: a caller's bad request never takes a replica out.

use std::time::Duration;

use tidegate_core::Monotonic;

/// Thresholds of a breaker.
#[derive(Clone, Copy, Debug)]
pub struct BreakerSettings {
    /// Faults in a row that open it.
    pub failures_max: u32,
    /// How long it stays open the first time.
    pub open_first: Duration,
    /// Bound of the doubling.
    pub open_max: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures_max: 3, open_first: Duration::from_secs(2), open_max: Duration::from_secs(60) }
    }
}

/// What happened to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It was answered, well or with the caller's own error.
    Good,
    /// A fault of the replica.
    Bad,
    /// It refuses connections: out at once.
    Refused,
    /// It ended without saying anything about the replica: the caller left.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Monotonic, lasted: Duration },
    HalfOpen { lasted: Duration },
}

/// One replica's breaker.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub const fn new(settings: BreakerSettings) -> Self {
        Self { settings, state: State::Closed { failures: 0 } }
    }

    /// Whether a request may go to the replica now. When the open time is over this admits exactly one trial.
    pub fn admit(&mut self, now: Monotonic) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::HalfOpen { .. } => false,
            State::Open { until, lasted } => {
                let due = now >= until;
                if due {
                    self.state = State::HalfOpen { lasted };
                }
                due
            }
        }
    }

    /// Whether [`Breaker::admit`] would let a request pass, without taking the trial.
    #[must_use]
    pub fn would_admit(&self, now: Monotonic) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::HalfOpen { .. } => false,
            State::Open { until, .. } => now >= until,
        }
    }

    /// Until when the replica is out; `None` when it is not, or a trial is running.
    #[must_use]
    pub const fn open_until(&self) -> Option<Monotonic> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// Whether the replica is in rotation without reserve.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Takes note of how an attempt ended.
    pub fn report(&mut self, report: Report, now: Monotonic) {
        self.state = match (self.state, report) {
            (_, Report::Good) => State::Closed { failures: 0 },
            // A trial that said nothing leaves the question open: the next request is the next trial.
            (State::HalfOpen { lasted }, Report::Unknown) => State::Open { until: now, lasted },
            (state, Report::Unknown) => state,
            (State::Closed { failures }, Report::Bad) if failures + 1 < self.settings.failures_max => {
                State::Closed { failures: failures + 1 }
            }
            (State::Closed { .. }, Report::Bad | Report::Refused) => self.open(self.settings.open_first, now),
            (State::HalfOpen { lasted }, Report::Bad | Report::Refused) => {
                self.open((lasted * 2).min(self.settings.open_max), now)
            }
            // Attempts that were running when it opened say nothing new.
            (state @ State::Open { .. }, Report::Bad | Report::Refused) => state,
        };
    }

    fn open(&self, lasts: Duration, now: Monotonic) -> State {
        State::Open { until: now.after(lasts), lasted: lasts }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: Monotonic = Monotonic::from_ms(1_000);

    #[test]
    fn a_replica_that_refuses_connections_is_out_at_once() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        breaker.report(Report::Refused, AT);
        assert!(!breaker.admit(AT));
        assert!(breaker.admit(AT.after(Duration::from_secs(2))));
        assert!(!breaker.admit(AT.after(Duration::from_secs(2))), "one trial at a time");
    }

    #[test]
    fn single_faults_between_good_answers_do_not_open_it() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        for _ in 0..10 {
            breaker.report(Report::Bad, AT);
            breaker.report(Report::Bad, AT);
            breaker.report(Report::Good, AT);
        }
        assert!(breaker.is_closed());
    }

    #[test]
    fn failed_trials_double_the_wait_up_to_the_bound() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        let mut now = AT;
        breaker.report(Report::Refused, now);
        let mut waits = Vec::new();
        for _ in 0..7 {
            let until = breaker.open_until().unwrap();
            waits.push(until.since(now).as_secs());
            now = until;
            assert!(breaker.admit(now));
            breaker.report(Report::Bad, now);
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_trial_whose_caller_left_is_repeated_by_the_next_request() {
        let mut breaker = Breaker::new(BreakerSettings::default());
        breaker.report(Report::Refused, AT);
        let later = AT.after(Duration::from_secs(3));
        assert!(breaker.admit(later));
        breaker.report(Report::Unknown, later);
        assert!(breaker.admit(later));
        breaker.report(Report::Good, later);
        assert!(breaker.is_closed());
    }

    proptest! {
        #[test]
        fn it_never_stays_out_longer_than_the_bound(
            reports in prop::collection::vec((0_u8..4, 0_u64..100_000), 0..60),
        ) {
            let mut breaker = Breaker::new(BreakerSettings::default());
            let mut now = AT;
            for (report, wait_ms) in reports {
                now = now.after(Duration::from_millis(wait_ms));
                if breaker.admit(now) {
                    let report = [Report::Good, Report::Bad, Report::Refused, Report::Unknown][usize::from(report)];
                    breaker.report(report, now);
                }
                let bound = now.after(BreakerSettings::default().open_max);
                prop_assert!(breaker.would_admit(bound));
            }
        }
    }
}
