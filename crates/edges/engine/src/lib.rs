//! The engines behind the gate: how they are asked, how they fail, how they are started and watched.
//!
//! Everything that differs between engine programs is in this crate and nowhere else.

pub mod client;
