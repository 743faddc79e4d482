//! The controller in a simulated world, in virtual time.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod at_the_hour;
mod conformance;
mod gate;
mod phases;
mod pods;
mod processes;
mod restart;
mod stage;
mod switch;
mod verbs;
mod watch_window;
mod watchdog;
