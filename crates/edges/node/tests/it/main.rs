//! Integration tests of the node edge: real processes, real cgroups, a scripted GPU driver.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod adoption;
mod bounds;
mod golden;
mod guard;
mod house;
mod memory;
mod models;
mod processes;
