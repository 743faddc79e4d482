//! Which models are loaded where and when. Pure: the clock, what was measured and what is observed are arguments.
//!
//! ```text
//! Schedules ─ timetable ─▶ desired(now)
//! ```

pub mod desired;
pub mod timetable;

pub use desired::{Desired, Override, desired};
pub use timetable::{Slot, Start, Timetable};
