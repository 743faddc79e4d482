//! Tests of the wire against captures of real engines, hostile input and random splits.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod json;
mod messages;
mod request;
mod shared;
mod sse;
