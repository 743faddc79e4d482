//! Integration tests of the model cache.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod answers;
mod artifact;
mod cache;
mod disk;
mod evict;
mod faults;
mod fetch;
mod goldens;
mod kill;
mod manifest;
mod model;
mod owner;
mod progress;
mod push;
mod room;
mod source;
mod store;
