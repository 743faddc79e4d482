//! A node through its agent.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod away;
mod bounds;
mod conformance;
mod house;
mod trust;
