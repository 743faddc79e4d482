//! Which replica serves an allowed request. Pure: the clock and randomness are arguments.
//!
//! ```text
//! alias --target()--> deployment --pick()--> replica --book()--> Lease
//!                                    ^                             |
//!                       Breaker, state, bookings  <----------------+ released exactly once, on every exit
//! ```
//!
//! Replica choice is least-loaded by our own bookings, which never lag; scorers over scraped signals and prefix
//! locality take the place of [`pick::least_loaded`] without changing its callers.

pub mod book;
pub mod breaker;
pub mod pick;
pub mod tally;
pub mod target;

pub use book::{Lease, Replica, ReplicaState};
pub use breaker::{Breaker, BreakerSettings};
pub use tally::Tallied;
