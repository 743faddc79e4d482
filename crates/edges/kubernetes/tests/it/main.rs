//! Against a real API server with its controllers and scheduler, on nodes that the tests play.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod lease;
mod pods;
mod pool;
mod replica;
mod route;
mod server;
mod shape;
mod world;
