//! The engines behind the gate: how they are asked, how they fail, how they are started and watched.
//!
//! Everything that differs between engine programs is in this crate and nowhere else.
//!
//! - [`backend`]: one replica as gate and controller share it.
//! - [`client`]: HTTP/1.1 towards an engine, one frame per socket read.
//! - [`dialect`]: what an engine serves and how it behaves, as data.
//! - [`attempt`]: what an attempt's end means for caller, retry and breaker.
//! - [`launch`]: engines as processes of ours.
//! - [`probe`], [`scrape`]: whether an engine is ready, and how busy it says it is.
//! - [`trial`]: one request, judged as if a caller had asked.
//! - [`sleep`]: engines that sleep and wake.
//! - [`tokenizer`]: prompt tokens, counted.

pub mod attempt;
pub mod backend;
pub mod client;
pub mod dialect;
pub mod fuzz;
pub mod launch;
pub mod probe;
pub mod scrape;
pub mod sleep;
pub mod tokenizer;
pub mod trial;

pub use attempt::AttemptEnd;
pub use dialect::{AbortBound, Dialect, Serves};
