//! Counters in memory pass the suite that all counters must pass.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate_core::{Monotonic, Unix};
use tidegate_policy::conformance::{self, Bench};
use tidegate_policy::limiter::MemoryCounters;

struct MemoryBench {
    counters: MemoryCounters,
    now_ns: AtomicU64,
}

/// Noon UTC of 2026-06-15.
const START_MS: i64 = 1_781_524_800_000;
const BOOT_NS: u64 = 3_600_000_000_000;

impl Bench for MemoryBench {
    type Counters = MemoryCounters;

    fn counters(&self) -> &MemoryCounters {
        &self.counters
    }

    fn now(&self) -> Monotonic {
        Monotonic::from_ns(BOOT_NS + self.now_ns.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Unix {
        Unix::from_ms(START_MS + (self.now_ns.load(Ordering::Relaxed) / 1_000_000) as i64)
    }

    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        self.now_ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        std::future::ready(())
    }
}

/// Counters in memory are always ready.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("counters in memory made somebody wait"),
    }
}

#[test]
fn counters_in_memory_pass_the_suite() {
    let make = || MemoryBench { counters: MemoryCounters::new(), now_ns: AtomicU64::new(0) };
    assert_eq!(jiff::Timestamp::from_millisecond(START_MS).unwrap().to_string(), "2026-06-15T12:00:00Z");
    ready(conformance::check(make)).unwrap();
    assert!(conformance::CASES.len() >= 17);
}
