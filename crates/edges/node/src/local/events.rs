//! What happened on a node, for whoever asks from where it was.

use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::report::{Event, Happened};
use crate::seam::EVENTS_WAIT;

/// Events that are remembered. Who asks from further back is told that some are lost.
pub(crate) const EVENTS_MAX: usize = 4_096;

/// The remembered events.
#[derive(Debug)]
pub(crate) struct Events {
    ring: Mutex<Ring>,
    came: Notify,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    /// The number before the first that was ever given.
    base: u64,
    last: u64,
}

impl Events {
    /// Numbers begin at the clock, in microseconds: so they grow over restarts without being kept.
    pub(crate) fn new(now: Timestamp) -> Self {
        let base = u64::try_from(now.as_microsecond()).unwrap_or(0);
        Self { ring: Mutex::new(Ring { events: VecDeque::new(), base, last: base }), came: Notify::new() }
    }

    pub(crate) fn push(&self, what: Happened) {
        let mut ring = self.ring.lock();
        ring.last += 1;
        let event = Event { number: ring.last, at: Timestamp::now(), what };
        ring.events.push_back(event);
        if ring.events.len() > EVENTS_MAX {
            ring.events.pop_front();
        }
        drop(ring);
        self.came.notify_waiters();
    }

    /// Those after a number; waits for one when there is none.
    pub(crate) async fn after(&self, number: u64) -> Vec<Event> {
        let came = async {
            loop {
                let came = self.came.notified();
                let mut came = std::pin::pin!(came);
                // Registered before the look: an event in between is not missed.
                came.as_mut().enable();
                let events = self.now_after(number);
                if !events.is_empty() {
                    return events;
                }
                came.await;
            }
        };
        timeout(EVENTS_WAIT, came).await.unwrap_or_default()
    }

    fn now_after(&self, number: u64) -> Vec<Event> {
        let ring = self.ring.lock();
        let after: Vec<Event> = ring.events.iter().filter(|event| event.number > number).cloned().collect();
        let first_kept = ring.events.front().map_or(ring.last + 1, |event| event.number);
        // From an earlier life of ours, or from further back than is remembered. 0 asks for what there is.
        let is_lost =
            number != 0 && (number < ring.base || number.saturating_add(1) < first_kept || number > ring.last);
        if !is_lost {
            return after;
        }
        let number = first_kept.saturating_sub(1);
        let after = if number > ring.last { Vec::new() } else { ring.events.iter().cloned().collect() };
        let lost = Event { number, at: Timestamp::now(), what: Happened::Lost };
        std::iter::once(lost).chain(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(gpu: u32) -> Happened {
        Happened::Released { gpu, reason: String::new() }
    }

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_told_at_once_or_when_something_happens_or_not_at_all() {
        let events = std::sync::Arc::new(Events::new(Timestamp::from_microsecond(1_000).unwrap()));
        assert_eq!(events.after(0).await, [], "after the longest wait");
        events.push(released(1));
        events.push(released(2));
        assert_eq!(numbers(&events.after(0).await), [1_001, 1_002]);
        assert_eq!(numbers(&events.after(1_001).await), [1_002]);
        let (waiting, ()) = tokio::join!(events.after(1_002), async { events.push(released(3)) });
        assert_eq!(numbers(&waiting), [1_003]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_said_once() {
        let events = Events::new(Timestamp::from_microsecond(1_000).unwrap());
        // From an earlier life.
        let told = events.after(17).await;
        assert_eq!((numbers(&told), &told[0].what), (vec![1_000], &Happened::Lost));
        assert_eq!(events.after(1_000).await, []);
        for gpu in 0..=EVENTS_MAX as u32 {
            events.push(released(gpu));
        }
        assert_eq!(events.after(1_001).await.len(), EVENTS_MAX, "at the bound nothing is lost");
        let told = events.after(1_000).await;
        assert_eq!((told.len(), &told[0].what), (EVENTS_MAX + 1, &Happened::Lost));
        assert_eq!(told[1].number, 1_002);
        // A clock that was set back gave higher numbers before.
        assert_eq!(events.after(u64::MAX).await[0].what, Happened::Lost);
    }
}
