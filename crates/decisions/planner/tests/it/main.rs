//! Tests of the planner through its public functions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod elastic;
mod elastic_day;
mod examples;
mod fleet;
mod instance;
mod placement;
mod plan;
mod render;
mod site_of;
mod strategy;
mod switch;
mod timetable;
mod zones;
