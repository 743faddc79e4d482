//! One run for each digest, whoever asks: the first asker leads, the others follow its events.
//!
//! ```text
//! join(digest) ── nobody runs it ──> Lead     does the work; tells through its feed; ends, or is dropped
//!              └─ somebody does ───> Follow   hears where things stand, then what happens;
//!                                             no last event: the leader was cancelled, join again
//! ```
//!
//! A leader that is dropped, because its caller went away, leaves the work to the next one that joins; what it wrote is
//! there and is not fetched again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::Sha256Digest;

use crate::fault::CacheFault;
use crate::progress::{Event, Feed, Listener, Sink};

/// What runs now, by digest. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Flights {
    running: Arc<Mutex<HashMap<Sha256Digest, Feed>>>,
}

/// The part that a caller of [`Flights::join`] has.
#[derive(Debug)]
pub enum Join {
    /// It does the work.
    Lead(Lead),
    /// Another does.
    Follow(Listener),
}

impl Flights {
    /// Leads the work on `digest`, or follows who leads it.
    ///
    /// # Errors
    ///
    /// `owner_busy` when as many follow it as are allowed.
    pub fn join(&self, digest: Sha256Digest) -> Result<Join, CacheFault> {
        let mut running = self.running.lock();
        if let Some(feed) = running.get(&digest) {
            let busy = || CacheFault::OwnerBusy {
                pid: std::process::id(),
                reason: format!("too many wait for sha256-{digest}"),
            };
            return feed.listen().map(Join::Follow).ok_or_else(busy);
        }
        let feed = Feed::new();
        running.insert(digest, feed.clone());
        Ok(Join::Lead(Lead { flights: self.clone(), digest, feed }))
    }

    /// Whether somebody leads the work on `digest`.
    #[must_use]
    pub fn is_running(&self, digest: Sha256Digest) -> bool {
        self.running.lock().contains_key(&digest)
    }

    /// All digests that are worked on.
    #[must_use]
    pub fn running(&self) -> Vec<Sha256Digest> {
        self.running.lock().keys().copied().collect()
    }
}

/// The right to work on one digest. Dropping it gives it up.
#[derive(Debug)]
pub struct Lead {
    flights: Flights,
    digest: Sha256Digest,
    feed: Feed,
}

impl Lead {
    /// Tells the followers.
    pub fn tell(&self, event: Event) {
        self.feed.send(event);
    }

    /// Tells the followers the fault that ends the work.
    pub fn fail(&self, fault: &CacheFault) {
        self.feed.fail(fault);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        // Out of the table first: who joins from here on leads, who follows already hears the end.
        self.flights.running.lock().remove(&self.digest);
        self.feed.close();
    }
}

/// How a followed run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Followed {
    /// It was published.
    Done,
    /// Its leader gave up: join again.
    Abandoned,
}

/// Passes a followed run's events on until it ends. Its last event is not passed on: the caller tells its own.
///
/// # Errors
///
/// The fault that ended it.
pub async fn follow(mut listener: Listener, sink: Sink<'_>) -> Result<Followed, CacheFault> {
    while let Some(event) = listener.next().await {
        match event {
            Event::Published { .. } => return Ok(Followed::Done),
            Event::Failed { .. } => break,
            event => sink(event),
        }
    }
    listener.fault().map_or(Ok(Followed::Abandoned), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Sha256Digest = Sha256Digest([7; 32]);

    fn lead(flights: &Flights) -> Lead {
        match flights.join(DIGEST).unwrap() {
            Join::Lead(lead) => lead,
            Join::Follow(_) => panic!("somebody leads"),
        }
    }

    fn listener(flights: &Flights) -> Listener {
        match flights.join(DIGEST).unwrap() {
            Join::Follow(listener) => listener,
            Join::Lead(_) => panic!("nobody leads"),
        }
    }

    fn published() -> Event {
        Event::Published { digest: DIGEST.to_string(), path: "/cache".into() }
    }

    #[tokio::test]
    async fn the_second_follows_the_first_and_ends_with_it() {
        let flights = Flights::default();
        let first = lead(&flights);
        let followers = [listener(&flights), listener(&flights)];
        first.tell(published());
        drop(first);
        for follower in followers {
            assert_eq!(follow(follower, &|_| ()).await, Ok(Followed::Done));
        }
        assert!(!flights.is_running(DIGEST));
        drop(lead(&flights));
    }

    #[tokio::test]
    async fn a_leader_that_is_dropped_leaves_the_lead_to_a_follower() {
        let flights = Flights::default();
        let first = lead(&flights);
        let follower = listener(&flights);
        drop(first);
        assert_eq!(follow(follower, &|_| ()).await, Ok(Followed::Abandoned));
        let second = lead(&flights);
        assert_eq!(flights.running(), [DIGEST]);
        second.fail(&CacheFault::Cancelled);
    }

    #[tokio::test]
    async fn a_follower_gets_the_fault_itself() {
        let flights = Flights::default();
        let first = lead(&flights);
        let follower = listener(&flights);
        let fault = CacheFault::WrongBytes { file: "weights/a".into(), chunk: 3 };
        first.fail(&fault);
        drop(first);
        assert_eq!(follow(follower, &|_| ()).await, Err(fault));
    }

    #[test]
    fn followers_are_bounded() {
        let flights = Flights::default();
        let _lead = lead(&flights);
        let followers: Vec<_> = (0..crate::progress::LISTENERS_MAX).map(|_| listener(&flights)).collect();
        assert_eq!(flights.join(DIGEST).unwrap_err().code(), "owner_busy");
        drop(followers);
        drop(listener(&flights));
    }
}
