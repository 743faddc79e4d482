//! The lease book: how many requests of ours each replica has, and who may be picked.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Monotonic, ReplicaId};

use crate::breaker::{Breaker, BreakerSettings, Report};
use crate::tally::{Tallied, Tally};

/// Where a replica is in its life, as far as picking is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplicaState {
    /// Not yet proven: it has not answered a real token.
    Starting = 0,
    /// May be picked.
    Serving = 1,
    /// Finishes what it has, gets nothing new.
    Draining = 2,
    /// Was proven once and fails now.
    Failing = 3,
    /// Gone.
    Stopped = 4,
}

impl ReplicaState {
    /// The state as status and metrics show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Failing => "failing",
            Self::Stopped => "stopped",
        }
    }

    const fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Starting,
            1 => Self::Serving,
            2 => Self::Draining,
            3 => Self::Failing,
            _ => Self::Stopped,
        }
    }
}

/// One replica as the picker sees it; shared by all cores.
#[derive(Debug)]
pub struct Replica {
    id: ReplicaId,
    state: AtomicU8,
    bookings: Bookings,
    breaker: Mutex<Breaker>,
    /// Mirror of "the breaker is closed", so that the common case takes no lock.
    closed: AtomicBool,
    /// Whether what it still has is to be ended.
    cut: AtomicBool,
    tally: Tally,
}

/// Counts cuts of all replicas, so that whoever has many requests looks at them only when there was one.
static CUTS: AtomicU64 = AtomicU64::new(0);

/// How often any replica of this process was cut: it moves after [`Replica::is_cut`] has become true.
#[must_use]
pub fn cuts() -> u64 {
    CUTS.load(Ordering::Acquire)
}

impl Replica {
    /// A replica in state [`ReplicaState::Starting`].
    #[must_use]
    pub fn new(id: ReplicaId) -> Self {
        Self {
            id,
            state: AtomicU8::new(ReplicaState::Starting as u8),
            bookings: Bookings::default(),
            breaker: Mutex::new(Breaker::new(BreakerSettings::default())),
            closed: AtomicBool::new(true),
            cut: AtomicBool::new(false),
            tally: Tally::default(),
        }
    }

    /// What requests have said of it since it was made.
    #[must_use]
    pub fn tallied(&self) -> Tallied {
        self.tally.read()
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &ReplicaId {
        &self.id
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ReplicaState {
        ReplicaState::from_u8(self.state.load(Ordering::Acquire))
    }

    /// Sets the state; only the prober and the launcher do. A replica that was proven again starts with a closed
    /// breaker, and what it gets from then on is not cut.
    pub fn set_state(&self, state: ReplicaState) {
        if state == ReplicaState::Serving {
            self.cut.store(false, Ordering::Release);
        }
        let before = self.state.swap(state as u8, Ordering::AcqRel);
        if state == ReplicaState::Serving && before != state as u8 {
            self.with_breaker(|breaker| *breaker = Breaker::new(BreakerSettings::default()));
        }
    }

    /// Ends what it still has: the end of a drain. Streams get a terminal error event, requests that have no answer yet
    /// are tried elsewhere or get an error answer, within a tick of the gate. Does nothing to a replica that serves.
    pub fn cut(&self) {
        if self.state() == ReplicaState::Serving {
            return;
        }
        self.cut.store(true, Ordering::Release);
        CUTS.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether what it still has is to be ended.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Requests of ours that it has now.
    #[must_use]
    pub fn booked(&self) -> u32 {
        self.bookings.count()
    }

    /// Draws a line under the bookings there are now; one before is forgotten. For one observer.
    pub fn mark_bookings(&self) {
        self.bookings.mark();
    }

    /// Of the requests that were booked when the line was drawn, those that still are.
    #[must_use]
    pub fn booked_before_mark(&self) -> u32 {
        self.bookings.count_before_mark()
    }

    /// Whether it may be picked now.
    #[must_use]
    pub fn is_pickable(&self, now: Monotonic) -> bool {
        self.state() == ReplicaState::Serving
            && (self.closed.load(Ordering::Relaxed) || self.with_breaker(|breaker| breaker.would_admit(now)))
    }

    /// Until when its breaker keeps it out, if it does.
    #[must_use]
    pub fn open_until(&self) -> Option<Monotonic> {
        self.with_breaker(|breaker| breaker.open_until())
    }

    /// Books one request. `None` when it went out of the pick since it was chosen.
    #[must_use]
    pub fn book(self: &Arc<Self>, now: Monotonic) -> Option<Lease> {
        if self.state() != ReplicaState::Serving {
            return None;
        }
        if !self.closed.load(Ordering::Relaxed) && !self.with_breaker(|breaker| breaker.admit(now)) {
            return None;
        }
        let mark = self.bookings.begin();
        Some(Lease { replica: Some(Arc::clone(self)), mark })
    }

    fn with_breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut breaker);
        self.closed.store(breaker.is_closed(), Ordering::Relaxed);
        result
    }
}

/// Bookings now, those of them since the last mark, and which mark that is, in one word: they change together, and a
/// booking costs one atomic step.
#[derive(Debug, Default)]
struct Bookings(AtomicU64);

impl Bookings {
    /// Bits of each count: 16 million, more than connections can be open. The mark has the rest and goes round after
    /// 65,536: drawn every few seconds that is days, longer than any request lasts.
    const COUNT_BITS: u32 = 24;
    const COUNT: u64 = (1 << Self::COUNT_BITS) - 1;
    /// One booking since the mark.
    const FRESH: u64 = (1 << Self::COUNT_BITS) + 1;
    /// One booking from before it.
    const OLD: u64 = 1;

    const fn mark_of(word: u64) -> u16 {
        (word >> (2 * Self::COUNT_BITS)) as u16
    }

    /// One more. The mark under which it stands is to be given back with it.
    fn begin(&self) -> u16 {
        Self::mark_of(self.0.fetch_add(Self::FRESH, Ordering::Relaxed))
    }

    fn end(&self, mark: u16) {
        let less = |word| word - if Self::mark_of(word) == mark { Self::FRESH } else { Self::OLD };
        self.0.update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn mark(&self) {
        let next = |word| {
            let mark = u64::from(Self::mark_of(word).wrapping_add(1));
            (mark << (2 * Self::COUNT_BITS)) | (word & Self::COUNT)
        };
        self.0.update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    fn count(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) & Self::COUNT) as u32
    }

    fn count_before_mark(&self) -> u32 {
        let word = self.0.load(Ordering::Relaxed);
        ((word & Self::COUNT) - (word >> Self::COUNT_BITS & Self::COUNT)) as u32
    }
}

/// One booking of a replica; released exactly once on every exit, also when it is dropped unreported.
#[derive(Debug)]
#[must_use = "a lease that is dropped at once books nothing"]
pub struct Lease {
    replica: Option<Arc<Replica>>,
    /// The line under the bookings before it.
    mark: u16,
}

impl Lease {
    /// Gives the booking back and tells the breaker how the attempt ended.
    pub fn release(mut self, report: Report, now: Monotonic) {
        if let Some(replica) = self.replica.take() {
            give_back(&replica, self.mark, report, now);
        }
    }

    /// Counts the time to the first token of what it was booked for.
    pub fn first_token(&self, time: Duration) {
        if let Some(replica) = &self.replica {
            replica.tally.first_token(time);
        }
    }

    /// Tells the breaker how the attempt ended while the booking stays: the engine has not let go yet.
    pub fn report(&self, report: Report, now: Monotonic) {
        if let Some(replica) = &self.replica {
            report_to(replica, report, now);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(replica) = self.replica.take() {
            give_back(&replica, self.mark, Report::Unknown, Monotonic::default());
        }
    }
}

fn give_back(replica: &Replica, mark: u16, report: Report, now: Monotonic) {
    replica.bookings.end(mark);
    replica.tally.end();
    report_to(replica, report, now);
}

fn report_to(replica: &Replica, report: Report, now: Monotonic) {
    // A closed breaker learns nothing from an attempt that says nothing.
    if report == Report::Unknown && replica.closed.load(Ordering::Relaxed) {
        return;
    }
    if matches!(report, Report::Bad | Report::Refused) {
        replica.tally.fault();
    }
    replica.with_breaker(|breaker| breaker.report(report, now));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Monotonic = Monotonic::from_ms(1);

    #[test]
    fn a_lease_is_released_exactly_once_however_it_ends() {
        let replica = Arc::new(Replica::new("d/0".into()));
        assert!(replica.book(NOW).is_none(), "not proven yet");
        replica.set_state(ReplicaState::Serving);
        let kept = replica.book(NOW).unwrap();
        drop(replica.book(NOW).unwrap());
        assert_eq!(replica.booked(), 1);
        kept.release(Report::Good, NOW);
        assert_eq!(replica.booked(), 0);
    }

    #[test]
    fn a_replica_counts_what_ended_and_what_was_its_own_fault() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        let lease = replica.book(NOW).unwrap();
        lease.first_token(Duration::from_millis(30));
        lease.release(Report::Good, NOW);
        replica.book(NOW).unwrap().release(Report::Bad, NOW);
        drop(replica.book(NOW).unwrap());
        let tallied = replica.tallied();
        assert_eq!((tallied.ended, tallied.faults), (3, 1));
        assert_eq!(tallied.ttft.iter().sum::<u64>(), 1);
        assert_eq!(tallied.ttft[crate::tally::ttft_bucket(Duration::from_millis(30))], 1);
    }

    #[test]
    fn a_replica_that_is_proven_again_is_back_at_once() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        replica.book(NOW).unwrap().release(Report::Refused, NOW);
        assert!(!replica.is_pickable(NOW));
        replica.set_state(ReplicaState::Failing);
        replica.set_state(ReplicaState::Serving);
        assert!(replica.is_pickable(NOW));
    }

    #[test]
    fn only_what_does_not_serve_is_cut_and_serving_again_ends_it() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        let before = cuts();
        replica.cut();
        assert!(!replica.is_cut());
        replica.set_state(ReplicaState::Draining);
        replica.cut();
        assert!(replica.is_cut() && cuts() > before);
        replica.set_state(ReplicaState::Serving);
        assert!(!replica.is_cut());
    }

    #[test]
    fn a_trial_whose_lease_is_dropped_does_not_keep_the_replica_out_for_ever() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        replica.book(NOW).unwrap().release(Report::Refused, NOW);
        let later = Monotonic::from_ms(10_000);
        drop(replica.book(later).unwrap());
        assert!(replica.is_pickable(later));
    }

    #[test]
    fn bookings_before_a_mark_are_told_from_those_after_it_however_they_end() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        let counts = || (replica.booked(), replica.booked_before_mark());
        let book = || replica.book(NOW).unwrap();
        let (old, older) = (book(), book());
        assert_eq!(counts(), (2, 0), "no line was drawn yet");
        replica.mark_bookings();
        let young = book();
        assert_eq!(counts(), (3, 2));
        drop(book());
        assert_eq!(counts(), (3, 2));
        drop(old);
        assert_eq!(counts(), (2, 1));
        replica.mark_bookings();
        assert_eq!(counts(), (2, 2), "all are old now");
        drop((young, older));
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn marks_go_round_and_counts_stay_exact_while_all_cores_book() {
        let replica = Arc::new(Replica::new("d/0".into()));
        replica.set_state(ReplicaState::Serving);
        let kept = replica.book(NOW).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| drop(replica.book(NOW).unwrap())));
            }
            for _ in 0..=u16::MAX {
                replica.mark_bookings();
                assert_eq!(replica.booked_before_mark().min(1), 1, "the one that stays was there before");
            }
        });
        assert_eq!((replica.booked(), replica.booked_before_mark()), (1, 1));
        replica.mark_bookings();
        drop(kept);
        assert_eq!((replica.booked(), replica.booked_before_mark()), (0, 0));
    }
}
