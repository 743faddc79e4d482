//! Tests of identity from outside.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod authenticate;
mod corpus;
mod counting;
mod credential;
mod key;
mod keyring;
mod pepper;
mod throttle;
