//! Limits at five levels in five dimensions: check all, then take all, in one atomic step.
//!
//! ```text
//! subjects(keys, rules) ─> Subjects ─┐
//!                                    ├─ admit(id, demand) ─> Admitted ─┬─ settle(tokens used)   once
//! Demand {tokens, now, wall} ────────┘        │                        ├─ release()             when the engine let go
//!                                             └─> AdmitError           └─ transfer(demand)      to a fallback's limits
//! ```
//!
//! Settling and releasing are separate: the tokens are known when the answer ends, the slot is free when the engine has
//! let go. Both are explicit, none is a `Drop`, because the end of a request is a decision of the account room.
//!
//! Rules (1 to 5 of the design): settling is idempotent per id; nothing is taken before everything was checked; a
//! refusal changes nothing; a reservation whose owner vanished keeps its estimate; what is over its estimate is charged
//! in full.

mod fault;
mod memory;
mod quota;
mod rebuild;
mod spill;
mod subject;
mod view;
mod window;

use std::future::Future;
use std::sync::Arc;

use tidegate_core::{Monotonic, RequestId, Unix};

pub use fault::{AdmitError, CONCURRENCY_RETRY};
pub use memory::{ABANDONED_AFTER, Admitted, LIVE_MAX, LOOK_AGAIN_AFTER, MemoryCounters, SUBJECTS_MAX, Swept};
pub use quota::PERIODS_KEPT;
pub use rebuild::{Names, Rebuild, Span};
pub use spill::SPILLED_MAX;
pub use subject::{Counts, Rules, SUBJECTS_PER_REQUEST, Subject, SubjectKey, Subjects};
pub use view::{Rate, RateView};
pub use window::{BUCKET, BUCKETS_MAX, EXACT_MAX, WINDOW};

/// What one request wants: one request, one slot, and these tokens, of every subject.
#[derive(Debug)]
pub struct Demand<'a, S> {
    /// Whose limits.
    pub subjects: &'a Arc<S>,
    /// Estimated tokens: prompt plus clamped output.
    pub tokens: u64,
    /// For windows. May lag behind what another core said: time never moves backwards in a subject.
    pub now: Monotonic,
    /// For days and months; decides the period that the request is charged to.
    pub wall: Unix,
}

// By hand, because a derive would ask `S` to be `Copy` too.
impl<S> Clone for Demand<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Demand<'_, S> {}

/// Where counts are kept. The suite in [`crate::conformance`] says what an implementation must do.
pub trait Counters: Send + Sync {
    /// The subjects of one kind of request, prepared once.
    type Subjects: Send + Sync;
    /// The proof of an admission.
    type Admitted: Send + Sync;

    /// Prepares subjects and puts their rules in force; of several of one level the last counts. Counts of subjects
    /// that are known already stay.
    ///
    /// # Errors
    /// [`AdmitError::Full`] when no more subjects can be held.
    fn subjects(
        &self,
        wanted: &[(SubjectKey, Rules)],
        now: Monotonic,
        wall: Unix,
    ) -> impl Future<Output = Result<Arc<Self::Subjects>, AdmitError>> + Send;

    /// Checks every limit of every subject and takes from all of them, or from none. `id` is made by the gateway; an id
    /// that is admitted already is admitted again and takes nothing.
    ///
    /// # Errors
    /// The limit that refuses: of several the one with the longest wait, ties by level, then dimension.
    fn admit(
        &self,
        id: RequestId,
        demand: Demand<'_, Self::Subjects>,
    ) -> impl Future<Output = Result<Self::Admitted, AdmitError>> + Send;

    /// Moves a reservation to other subjects: takes the new and gives the old back in one step. Subjects of both count
    /// the request once. When refused, the old one stays as it was.
    ///
    /// # Errors
    /// As [`Counters::admit`]; [`AdmitError::Ended`] when the old one was settled or released before.
    fn transfer(
        &self,
        old: &Self::Admitted,
        demand: Demand<'_, Self::Subjects>,
    ) -> impl Future<Output = Result<Self::Admitted, AdmitError>> + Send;

    /// Replaces the estimate by the tokens used. The first call counts, later ones do nothing.
    fn settle(&self, admitted: &Self::Admitted, tokens: u64) -> impl Future<Output = ()> + Send;

    /// Frees the slot. The first call counts, later ones do nothing.
    fn release(&self, admitted: &Self::Admitted) -> impl Future<Output = ()> + Send;

    /// The rate limits as the headers of an answer say them.
    fn view(&self, subjects: &Self::Subjects, now: Monotonic) -> impl Future<Output = RateView> + Send;

    /// Tokens that could be admitted now: the least over all limits; `None` when nothing limits them.
    fn token_allowance(
        &self,
        subjects: &Self::Subjects,
        now: Monotonic,
        wall: Unix,
    ) -> impl Future<Output = Option<u64>> + Send;
}
