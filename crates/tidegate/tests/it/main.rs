//! The binary as a person runs it: real processes, real sockets, a fake engine behind it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod agent;
mod compiled;
mod day_night;
mod gate;

mod keys;
mod life;
mod model;
mod model_served;
mod plan;
mod pods;
mod reload;
mod switch;
mod tls;
