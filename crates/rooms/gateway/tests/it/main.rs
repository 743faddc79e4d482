//! Path tests: the real gate over in-memory sockets, in paused time, with fake engines behind it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod house;

mod accounting;
mod attacks;
mod basics;
mod bounds;
mod drain;
mod faults;
mod h2;
mod http1;
mod kill;
mod protocols;
mod refusals;
mod routes;
mod shifts;
mod sockets;
