//! A plan for people: in a terminal, and as a picture. Text in, text out; the same plan gives the same text.

mod svg;
mod terminal;

use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use svg::svg;
pub use terminal::terminal;

use crate::plan::Plan;

/// The time that a picture shows: all steps, and a tenth of their length on both sides.
fn frame(plan: &Plan) -> (Timestamp, Timestamp) {
    let (from, until) = (plan.begins(), plan.ends());
    let length = until.duration_since(from).as_secs().max(600);
    let margin = jiff::SignedDuration::from_secs(length / 10);
    (from.checked_sub(margin).unwrap_or(from), until.checked_add(margin).unwrap_or(until))
}

/// Hours and minutes on a wall clock in the zone; with seconds where they are not zero.
fn clock(at: Timestamp, zone: &TimeZone) -> String {
    let time = at.to_zoned(zone.clone()).time();
    let form = if time.second() == 0 { "%H:%M" } else { "%H:%M:%S" };
    time.strftime(form).to_string()
}
