//! The engines behind the gate: how they are asked, how they fail, how they are started and watched.
//!
//! Everything that differs between engine programs is in this crate and nowhere else.
//!
//! - [`client`]: HTTP/1.1 towards an engine, one frame per socket read.
//! - [`dialect`]: what an engine serves and how it behaves, as data.
//! - [`attempt`]: what an attempt's end means for caller, retry and breaker.

pub mod attempt;
pub mod client;
pub mod dialect;

pub use attempt::AttemptEnd;
pub use dialect::{AbortBound, Dialect, Serves};
