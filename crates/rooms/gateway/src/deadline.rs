//! Deadlines without a timer each: one coarse tick per core looks at all of them.
//!
//! A stream moves its gap deadline with every event. A timer reset per event would cost more than relaying it; here
//! it is one store to a cell. The price is precision: a deadline fires up to one [`TICK`] late, never early.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;
use tidegate_core::{Monotonic, Unix};
use tidegate_routing::Replica;
use tidegate_routing::book::cuts;
use tokio::time::Instant;

/// How late a deadline may fire.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// The clocks of the process: the same for all cores, so that limits compare like with like.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    wall: Wall,
}

/// Where wall time comes from.
#[derive(Clone, Copy, Debug)]
enum Wall {
    /// The system, steps included.
    System,
    /// It was this instant at the start, and has gone on evenly since.
    Since(Unix),
}

impl Clock {
    /// A clock that starts now, with the system's wall time. Its monotonic zero lies an hour back, so that windows may
    /// reach behind the start.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now(), wall: Wall::System }
    }

    /// A clock that starts now, as if it were `wall`: for simulations in paused time.
    #[must_use]
    pub fn start_at(wall: Unix) -> Self {
        Self { start: Instant::now(), wall: Wall::Since(wall) }
    }

    /// Now, on the wall: for records, periods and what callers are told; never for deadlines and windows.
    #[must_use]
    pub fn wall(&self) -> Unix {
        match self.wall {
            Wall::System => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                Unix::from_ms(since.as_millis() as i64)
            }
            Wall::Since(start) => Unix::from_ms(start.ms.saturating_add(self.start.elapsed().as_millis() as i64)),
        }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Monotonic {
        Monotonic::from_ns(self.start.elapsed().as_nanos() as u64).after(Self::OFFSET)
    }

    const OFFSET: Duration = Duration::from_secs(3_600);
}

#[derive(Debug)]
struct Slot {
    at: Cell<Monotonic>,
    fired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Who is asked: when it is cut, that is a deadline, too.
    replica: OnceCell<Arc<Replica>>,
    is_cut: Cell<bool>,
}

impl Slot {
    /// Whether it passes now, and did not before.
    fn passes(&self, now: Monotonic, anybody_was_cut: bool) -> bool {
        if anybody_was_cut && !self.is_cut.get() && self.replica.get().is_some_and(|replica| replica.is_cut()) {
            self.is_cut.set(true);
            return true;
        }
        self.at.get() <= now && !self.fired.replace(true)
    }
}

/// All deadlines of one core.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    slots: RefCell<Slab<Rc<Slot>>>,
    /// As they were at the last tick.
    cuts: Cell<u64>,
}

impl Deadlines {
    /// A deadline at `at`; it is forgotten when the value is dropped.
    pub(crate) fn at(self: &Rc<Self>, at: Monotonic) -> Deadline {
        let slot = Rc::new(Slot {
            at: Cell::new(at),
            fired: Cell::new(false),
            waker: RefCell::new(None),
            replica: OnceCell::new(),
            is_cut: Cell::new(false),
        });
        let key = self.slots.borrow_mut().insert(Rc::clone(&slot));
        Deadline { owner: Rc::clone(self), key, slot }
    }

    /// Wakes everybody whose deadline has passed, or whose replica was cut.
    pub(crate) fn tick(&self, now: Monotonic) {
        let cuts = cuts();
        let anybody_was_cut = self.cuts.replace(cuts) != cuts;
        for (_, slot) in self.slots.borrow().iter() {
            if slot.passes(now, anybody_was_cut)
                && let Some(waker) = slot.waker.borrow_mut().take()
            {
                waker.wake();
            }
        }
    }
}

/// One deadline.
#[derive(Debug)]
pub(crate) struct Deadline {
    owner: Rc<Deadlines>,
    key: usize,
    slot: Rc<Slot>,
}

/// The deadline came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elapsed;

impl Deadline {
    /// Moves the deadline.
    pub(crate) fn set(&self, at: Monotonic) {
        self.slot.at.set(at);
        self.slot.fired.set(false);
    }

    /// From now on it also passes when the replica is cut. Of two replicas the first counts.
    pub(crate) fn follow(&self, replica: &Arc<Replica>) {
        let followed = self.slot.replica.get_or_init(|| Arc::clone(replica));
        // A cut before this is one that no tick will see: ticks look when there was one since the last.
        self.slot.is_cut.set(followed.is_cut());
    }

    /// Whether the replica was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.slot.is_cut.get()
    }

    /// Whether it has passed; if not, the task is woken when it does.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Elapsed> {
        if self.slot.fired.get() || self.is_cut() {
            return Poll::Ready(Elapsed);
        }
        let mut waker = self.slot.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Runs `future` until the deadline.
    pub(crate) const fn bound<F: Future>(&self, future: F) -> Bound<'_, F> {
        Bound { deadline: self, future }
    }
}

pin_project_lite::pin_project! {
    /// A future with a deadline. Not an `async fn`: that would hold the future twice.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Bound<'a, F> {
        deadline: &'a Deadline,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Bound<'_, F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.future.poll(context) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => this.deadline.poll(context).map(Err),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.owner.slots.borrow_mut().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_moved_deadline_fires_at_its_new_time_only() {
        let deadlines = Rc::new(Deadlines::default());
        let deadline = deadlines.at(Monotonic::from_ms(10));
        deadline.set(Monotonic::from_ms(30));
        deadlines.tick(Monotonic::from_ms(20));
        assert_eq!(deadline.bound(async { 7 }).await, Ok(7));
        deadlines.tick(Monotonic::from_ms(30));
        assert_eq!(deadline.bound(std::future::pending::<()>()).await, Err(Elapsed));
        deadline.set(Monotonic::from_ms(60));
        deadlines.tick(Monotonic::from_ms(50));
        assert_eq!(deadline.bound(async { 8 }).await, Ok(8), "it can be used again");
    }

    #[test]
    fn a_cut_replica_is_a_deadline_however_often_it_is_moved() {
        let replica = Arc::new(Replica::new("d/0".into()));
        let (deadlines, other) = (Rc::new(Deadlines::default()), Arc::new(Replica::new("d/1".into())));
        let (deadline, bystander) = (deadlines.at(Monotonic::from_ms(1_000)), deadlines.at(Monotonic::from_ms(1_000)));
        deadline.follow(&replica);
        bystander.follow(&other);
        replica.cut();
        deadlines.tick(Monotonic::from_ms(10));
        deadline.set(Monotonic::from_ms(2_000));
        let context = Context::from_waker(Waker::noop());
        assert_eq!(deadline.poll(&context), Poll::Ready(Elapsed));
        assert!(deadline.is_cut() && !bystander.is_cut());
        assert_eq!(bystander.poll(&context), Poll::Pending);
        let late = deadlines.at(Monotonic::from_ms(1_000));
        late.follow(&replica);
        assert!(late.is_cut(), "booked before the cut, followed after it");
    }

    #[test]
    fn a_dropped_deadline_is_forgotten() {
        let deadlines = Rc::new(Deadlines::default());
        drop(deadlines.at(Monotonic::from_ms(10)));
        assert!(deadlines.slots.borrow().is_empty());
    }
}
