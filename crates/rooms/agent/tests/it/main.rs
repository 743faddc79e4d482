//! A node through its agent.

mod away;
mod bounds;
mod conformance;
mod house;
mod trust;
