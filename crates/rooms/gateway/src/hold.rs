//! Slots that stay taken until the engine has let go of a request whose caller left.
//!
//! An engine notices a closed connection late, some only when they next write. Freeing the slot at once would let more
//! run than the limit allows (rule 3 of the limits); so it is held for the dialect's bound, or until the engine shows
//! itself idle.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Monotonic;
use tidegate_engine::dialect::AbortBound;
use tidegate_policy::limiter::{Admitted, MemoryCounters};
use tidegate_routing::Lease;
use tokio::time::Instant;

use tidegate_engine::backend::Backend;

/// However an engine behaves, a slot is not held longer than this.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Held {
    admitted: Admitted,
    lease: Lease,
    backend: Arc<Backend>,
    since: Monotonic,
    /// The same instant on the clock of scrapes.
    scraped_after: Instant,
    bound: AbortBound,
}

/// All slots that one core holds.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    held: RefCell<Vec<Held>>,
}

impl Holds {
    /// Holds the slot and the booking of one request.
    pub(crate) fn hold(
        &self,
        admitted: Admitted,
        lease: Lease,
        backend: Arc<Backend>,
        bound: AbortBound,
        since: Monotonic,
    ) {
        self.held.borrow_mut().push(Held { admitted, lease, backend, since, scraped_after: Instant::now(), bound });
    }

    /// Frees what the engines have let go of.
    pub(crate) fn tick(&self, counters: &MemoryCounters, now: Monotonic) {
        let mut held = self.held.borrow_mut();
        if held.is_empty() {
            return;
        }
        for over in held.extract_if(.., |held| held.is_over(now)) {
            counters.release_now(&over.admitted);
            drop(over.lease);
        }
    }

    /// Number of slots held.
    pub(crate) fn len(&self) -> usize {
        self.held.borrow().len()
    }

    /// The core ends: with it end the connections that the slots stood for.
    pub(crate) fn free_all(&self, counters: &MemoryCounters) {
        for held in self.held.borrow_mut().drain(..) {
            counters.release_now(&held.admitted);
        }
    }
}

impl Held {
    fn is_over(&self, now: Monotonic) -> bool {
        let waited = now.since(self.since);
        match self.bound {
            AbortBound::After(bound) => waited >= bound,
            AbortBound::UntilIdle => waited >= HOLD_MAX || self.backend.claim_let_go(self.scraped_after),
        }
    }
}
