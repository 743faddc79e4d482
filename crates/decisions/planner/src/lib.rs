//! Which models are loaded where and when. Pure: the clock, what was measured and what is observed are arguments.
//!
//! ```text
//! Schedules ─ timetable ─▶ desired(now) ─┐
//! Nodes, Deployments ─ hardware, need ───┴▶ placement: who is on which GPUs, in every shift
//! ```

pub mod desired;
pub mod hardware;
pub mod memory;
pub mod need;
pub mod placement;
pub mod strategy;
pub mod timetable;
pub mod topology;

pub use desired::{Desired, Override, desired};
pub use timetable::{Slot, Start, Timetable};
