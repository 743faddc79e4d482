//! Tests of the wire against captures of real engines, hostile input and random splits.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod answer;
mod corpus;
mod json;
mod messages;
mod multipart;
mod request;
mod shared;
mod sse;
