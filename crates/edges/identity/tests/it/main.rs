//! Tests of identity from outside.
#![expect(clippy::unwrap_used, reason = "tests")]

mod authenticate;
mod counting;
mod credential;
mod key;
mod keyring;
mod pepper;
mod throttle;
