//! What requests said of one replica: counts that only grow, for whoever compares replicas.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of times to the first token, in milliseconds; one more bucket holds the rest.
pub const TTFT_BOUNDS_MS: [u64; 18] =
    [10, 25, 50, 100, 200, 350, 500, 750, 1_000, 1_500, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000, 160_000];
/// Buckets.
pub const TTFT_BUCKETS: usize = TTFT_BOUNDS_MS.len() + 1;

/// The bucket of a time to the first token.
#[must_use]
pub fn ttft_bucket(time: Duration) -> usize {
    TTFT_BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < time)
}

/// Counts of one replica.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    ended: AtomicU64,
    faults: AtomicU64,
    ttft: [AtomicU64; TTFT_BUCKETS],
}

/// What was counted up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Bookings that were given back.
    pub ended: u64,
    /// Attempts that failed by the replica's own fault.
    pub faults: u64,
    /// Times to the first token, by bucket.
    pub ttft: [u64; TTFT_BUCKETS],
}

impl Tally {
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.ttft[ttft_bucket(time)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Tallied {
        Tallied {
            ended: self.ended.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
            ttft: std::array::from_fn(|bucket| self.ttft[bucket].load(Ordering::Relaxed)),
        }
    }
}
