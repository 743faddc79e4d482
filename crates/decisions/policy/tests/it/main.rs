//! Tests of policy from outside, in virtual time.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod admission;
mod conformance;
mod corpus;
mod estimate;
mod goldens;
mod grants;
mod limiter;
mod model;
mod periods;
mod queue;
mod rebuild;
mod site;
mod threads;
