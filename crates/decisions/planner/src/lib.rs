//! Which models are loaded where and when. Pure: the clock, what was measured and what is observed are arguments.
//!
//! ```text
//! Schedules ─ timetable ─▶ desired(now) ─┐
//! Nodes, Deployments ─ hardware, need ───┴▶ placement: who is on which GPUs, in every shift
//!                                          └▶ strategy, plan: what happens at the hour, and why
//!                              outlook: all shifts of a site at once, and what is wrong with them
//! plan ─▶ switch, instance: state machines that ask for the next steps         render: the plan for people
//! demand ─▶ elastic: a replica more, or one less
//! ```

pub mod desired;
pub mod elastic;
pub mod generation;
pub mod hardware;
pub mod instance;
pub mod memory;
pub mod need;
pub mod outlook;
pub mod placement;
pub mod plan;
pub mod render;
pub mod strategy;
pub mod switch;
pub mod timetable;
pub mod topology;

pub use desired::{Desired, Override, desired};
pub use outlook::Outlook;
pub use plan::Plan;
pub use timetable::{Slot, Start, Timetable};

/// A duration for people: `20m`, `1h 5m`, `90s`, as documents write them.
#[must_use]
pub fn span(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3_600, seconds % 3_600 / 60, seconds % 60);
    let parts = [(hours, "h"), (minutes, "m"), (rest, "s")];
    let said: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if said.is_empty() { "0s".to_owned() } else { said.join(" ") }
}
