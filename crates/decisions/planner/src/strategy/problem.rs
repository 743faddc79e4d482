//! The changes of one switch, reduced to what decides about gaps.

use std::collections::BTreeMap;
use std::time::Duration;

/// All changes of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// Resources that new and old compete for, by number: GPUs, and the host memory of nodes. What each has left for those who come and go, in bytes: the band, less those who stay.
    pub capacity: BTreeMap<usize, u64>,
    /// Deployments that go.
    pub leavers: Vec<Leaver>,
    /// Deployments that come.
    pub arrivals: Vec<Arrival>,
    /// Aliases whose deployments change.
    pub moves: Vec<AliasMove>,
}

/// A deployment that goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaver {
    /// Bytes that it has of each resource.
    pub takes: BTreeMap<usize, u64>,
    /// From the beginning of its drain to proven free memory.
    pub drain: Duration,
}

/// A deployment that comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes that it takes of each resource.
    pub takes: BTreeMap<usize, u64>,
    /// Resources on which it may be beside a leaver at all; elsewhere it waits for all of them, whatever fits.
    pub shares: bool,
    /// From its start to its proof.
    pub load: Duration,
}

/// An alias whose deployments change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AliasMove {
    /// Leavers that serve it before the hour; none when it appears.
    pub from: Vec<usize>,
    /// Arrivals that serve it afterwards; none when it vanishes.
    pub to: Vec<usize>,
    /// Whether a deployment that stays serves it all along.
    pub has_stayer: bool,
    /// What a second of its gap costs.
    pub weight: u64,
}
