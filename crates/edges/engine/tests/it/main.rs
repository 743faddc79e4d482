//! Integration tests of the engine edge.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod client;
mod command;
mod faults;
mod fixtures;
mod memory;
mod probe;
mod real;
mod sleep;
mod tls;
mod tokenizer;
