//! Integration tests of the model cache.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod disk;
mod evict;
mod fetch;
mod kill;
mod manifest;
mod model;
mod owner;
mod push;
mod source;
mod store;
