//! Tests of the admin API from outside.
#![expect(clippy::unwrap_used, reason = "tests")]

mod desk;
mod doors;
mod keys;
mod lifecycle;
mod usage;
