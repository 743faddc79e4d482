//! Who may use how much: grants, cost estimates, limits, and what happens when a pool is full.
//!
//! Pure and synchronous: `now` and randomness are arguments, nothing here does I/O. The seam towards counters that live
//! elsewhere is the trait [`limiter::Counters`], whose methods are async for their sake.

pub mod admission;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod estimate;
pub mod fuzz;
pub mod grants;
pub mod limiter;
pub mod period;
pub mod queue;
