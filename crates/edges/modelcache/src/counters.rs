//! What the cache counts, for whoever shows it as metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// `count` more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// How many there have been since the start.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything that the cache counts. Rates follow from the bytes: `rate(fetch_bytes)`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of model files that the store sent, wrong ones included.
    pub fetch_bytes: Counter,
    /// Milliseconds that fetches ran, summed over all; with `fetch_bytes` the mean rate of one.
    pub fetch_ms: Counter,
    /// Requests for a model that was there whole.
    pub hits: Counter,
    /// Requests for a model that had to be fetched, in part or whole.
    pub misses: Counter,
    /// Chunks that the store sent wrong.
    pub checksum_failures_store: Counter,
    /// Chunks that were wrong on the local disk.
    pub checksum_failures_disk: Counter,
    /// Models removed to make room.
    pub evictions: Counter,
    /// Bytes freed by that.
    pub evicted_bytes: Counter,
    /// Requests to the store that were tried again.
    pub retries: Counter,
    /// Fetches that ended with a fault.
    pub failures: Counter,
    /// Compile caches that were there before a load.
    pub artifact_hits: Counter,
    /// Loads for which there was none.
    pub artifact_misses: Counter,
}
