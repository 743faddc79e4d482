//! Numbers that fence what is old.

use serde::{Deserialize, Serialize};

/// The number of a plan. Every effect carries the one of the plan that asked for it; whoever carries effects out keeps
/// the highest it has seen and refuses lower ones, and what answers to a lower one is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// Something with the generation it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamped<T> {
    /// The plan's number.
    pub generation: Generation,
    /// What it is.
    pub what: T,
}
