//! Tests of policy from outside, in virtual time.

mod admission;
mod conformance;
mod estimate;
mod goldens;
mod grants;
mod limiter;
mod model;
mod periods;
mod queue;
mod site;
mod threads;
