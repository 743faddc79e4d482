//! Which replica is on which GPUs, in every shift at once.
//!
//! ```text
//! needs ─ order: in several sets first, GPUs descending, priority, name
//!           └▶ for each the smallest free aligned block, lowest index   candidates.rs
//!                └▶ booked in the ledger of every set it is in          ledger.rs
//! what found no place ─▶ a bounded search over other choices            search.rs
//!                    └─▶ why not, and the cheapest that would help      misfit.rs, remedy.rs
//! ```
//!
//! A deployment that is in several sets has the same GPUs in all of them, so that it stays when they change. The
//! outcome depends on nothing but the arguments: asked again after a restart it is the same.

mod candidates;
mod ledger;
mod misfit;
mod remedy;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_core::DeploymentName;

use crate::hardware::{GpuId, Hardware};
use crate::need::Need;

pub use misfit::{Misfit, Reason};
pub use remedy::{Remedy, remedies};

/// One replica of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReplicaKey {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its number, from 0.
    pub index: u32,
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.deployment, self.index)
    }
}

/// Where one replica is: a part on one node, or on several as one indivisible resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seat {
    /// Its parts; the first one has the leader.
    pub parts: Vec<Part>,
}

/// What a replica has of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The node.
    pub node: Arc<str>,
    /// Its TP groups, each an aligned block; none for a worker without GPUs.
    pub groups: Vec<Vec<u32>>,
    /// The NUMA node that its CPUs and memory are bound to, when all of it is in one.
    pub numa: Option<u32>,
    /// The MIG instance (its number on the GPU), when it asked for one.
    pub mig: Option<u32>,
}

impl Seat {
    /// All its GPUs.
    #[must_use]
    pub fn gpus(&self) -> BTreeSet<GpuId> {
        let parts = self.parts.iter();
        parts.flat_map(|part| part.gpus().map(|index| GpuId { node: Arc::clone(&part.node), index })).collect()
    }

    /// Whether it has a GPU in common with another one.
    #[must_use]
    pub fn shares_gpu(&self, other: &Self) -> bool {
        self.parts.iter().any(|part| {
            let there = other.parts.iter().filter(|other| other.node == part.node);
            there.flat_map(Part::gpus).any(|gpu| part.gpus().any(|own| own == gpu))
        })
    }
}

impl Part {
    /// Indices of its GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().flatten().copied()
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            write!(f, "{}", part.node)?;
            for (number, group) in part.groups.iter().enumerate() {
                write!(f, "{}{}", if number == 0 { " " } else { ";" }, ranges(group))?;
            }
        }
        Ok(())
    }
}

/// Indices for people: `0-3`, `0,2`.
#[must_use]
pub fn ranges(indices: &[u32]) -> String {
    let sorted: BTreeSet<u32> = indices.iter().copied().collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for index in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            Some(_) | None => runs.push((index, index)),
        }
    }
    let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// A set that has to be loaded together: a shift, or a part of it in which GPUs are reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// What it is called.
    pub label: Arc<str>,
    /// What is loaded in it.
    pub set: BTreeSet<DeploymentName>,
    /// GPUs that are not ours in it, with whose they are.
    pub blocked: BTreeMap<GpuId, Arc<str>>,
}

/// What is to be placed, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The nodes.
    pub hardware: &'r Hardware,
    /// What each deployment needs.
    pub needs: &'r BTreeMap<DeploymentName, Need>,
    /// The sets, placed together.
    pub situations: &'r [Situation],
    /// Where replicas are now, or were planned before: they stay there while it is possible.
    pub pinned: &'r BTreeMap<ReplicaKey, Seat>,
}

/// Seats by replica.
pub type Seats = BTreeMap<ReplicaKey, Seat>;

/// Who is where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The seats in each situation, in the order of the request.
    pub seats: Vec<Seats>,
    /// What found no place.
    pub misfits: Vec<Misfit>,
}

/// Places all sets together. What finds no place is a [`Misfit`]; everything else has its seat all the same.
#[must_use]
pub fn place(request: Request<'_>) -> Placement {
    let stand = search::Stand::new(request);
    let greedy = stand.greedy();
    if greedy.misfits.is_empty() {
        return greedy;
    }
    stand.search().unwrap_or(greedy)
}
