//! How long to wait before a request is made again, and when to stop: pure.
//!
//! Exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", 2015): each wait is drawn evenly from
//! zero to a bound that doubles, so that many clients of a store that recovers do not come back together.

use std::time::Duration;

use crate::fault::CacheFault;

/// Bound of the first wait.
pub const BACKOFF_BASE: Duration = Duration::from_millis(200);
/// Largest bound of a wait.
pub const BACKOFF_MAX: Duration = Duration::from_secs(20);
/// Longest wait that a store's `Retry-After` gets.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// How often one request is tried without going forward by [`PROGRESS_BYTES`].
pub const TRIES_MAX: u32 = 8;
/// What a try has to bring for the count to begin anew, in bytes. Less is a drip, not progress.
pub const PROGRESS_BYTES: u64 = 4 << 20;

/// How patient a fetch is; what is not set is the constant of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
    pub retry_after_max: Duration,
    /// At least one.
    pub tries_max: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: BACKOFF_BASE, max: BACKOFF_MAX, retry_after_max: RETRY_AFTER_MAX, tries_max: TRIES_MAX }
    }
}

/// The tries of one request.
#[derive(Debug)]
pub(crate) struct Tries {
    backoff: Backoff,
    failed: u32,
    brought: u64,
}

impl Tries {
    pub(crate) const fn new(backoff: Backoff) -> Self {
        Self { backoff, failed: 0, brought: 0 }
    }

    /// Bytes came.
    pub(crate) fn brought(&mut self, bytes: u64) {
        self.brought += bytes;
        if self.brought >= PROGRESS_BYTES {
            *self = Self::new(self.backoff);
        }
    }

    /// How many tries have failed since the count began.
    pub(crate) const fn failed(&self) -> u32 {
        self.failed
    }

    /// A try failed: how long to wait for the next, or `None` when there is none. `random` is even in 0..1.
    pub(crate) fn after(&mut self, fault: &CacheFault, random: f64) -> Option<Duration> {
        self.failed += 1;
        if !fault.retryable() || self.failed >= self.backoff.tries_max {
            return None;
        }
        let bound = self.backoff.base.saturating_mul(1 << (self.failed - 1).min(16)).min(self.backoff.max);
        let asked = fault.retry_after().unwrap_or_default().min(self.backoff.retry_after_max);
        // what the store asks for is waited for whole, and the jitter comes on top
        Some(asked + bound.mul_f64(random.clamp(0.0, 1.0)))
    }
}

/// What a fault is called after its last try: a store that says "slow down" for ever has lost something.
pub(crate) fn given_up(fault: CacheFault, tries: u32) -> CacheFault {
    match fault {
        CacheFault::Throttled { object, status: 503, reason, retry_after_ms } => {
            let reason = format!("{reason}, {tries} times: not load, but a lost part, if other objects answer");
            CacheFault::StoreUnavailable { object, status: 503, reason, retry_after_ms }
        }
        fault => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttled(retry_after_ms: Option<u64>) -> CacheFault {
        CacheFault::Throttled { object: "o".into(), status: 429, reason: "r".into(), retry_after_ms }
    }

    #[test]
    fn waits_double_to_their_bound_and_end() {
        let mut tries = Tries::new(Backoff::default());
        let waits: Vec<_> = std::iter::from_fn(|| tries.after(&throttled(None), 1.0)).collect();
        assert_eq!(waits.len() as u32, TRIES_MAX - 1);
        assert_eq!(waits[..3], [BACKOFF_BASE, BACKOFF_BASE * 2, BACKOFF_BASE * 4]);
        assert!(waits.iter().all(|wait| *wait <= BACKOFF_MAX));
        assert_eq!(Tries::new(Backoff::default()).after(&throttled(None), 0.0), Some(Duration::ZERO), "full jitter");
    }

    #[test]
    fn retry_after_is_honoured_up_to_its_cap() {
        let wait = |ms| Tries::new(Backoff::default()).after(&throttled(Some(ms)), 0.0).unwrap();
        assert_eq!(wait(60_000), Duration::from_secs(60));
        assert_eq!(wait(120_000), RETRY_AFTER_MAX);
        assert_eq!(wait(u64::MAX), RETRY_AFTER_MAX);
    }

    #[test]
    fn only_real_progress_begins_the_count_anew() {
        let mut tries = Tries::new(Backoff::default());
        tries.after(&throttled(None), 0.5);
        tries.brought(PROGRESS_BYTES - 1);
        assert_eq!(tries.failed(), 1);
        tries.brought(1);
        assert_eq!(tries.failed(), 0);
    }

    #[test]
    fn what_will_not_go_away_is_not_tried_again() {
        assert_eq!(Tries::new(Backoff::default()).after(&CacheFault::ChangedObject { object: "o".into() }, 0.5), None);
    }

    #[test]
    fn a_503_that_does_not_end_is_no_throttling() {
        let fault = |status| CacheFault::Throttled {
            object: "o".into(),
            status,
            reason: "SlowDownRead".into(),
            retry_after_ms: None,
        };
        let named = given_up(fault(503), TRIES_MAX);
        assert_eq!(named.code(), "store_unavailable");
        assert!(named.to_string().contains("SlowDownRead, 8 times"), "{named}");
        assert_eq!(given_up(fault(429), TRIES_MAX).code(), "throttled");
    }
}
