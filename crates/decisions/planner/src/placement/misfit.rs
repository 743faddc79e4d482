//! Why something has no place.

use std::fmt;
use std::sync::Arc;

use super::ReplicaKey;
use super::candidates::Place;
use crate::memory::{self, REFUSED_ABOVE};
use crate::need::Need;

/// A replica without a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Number of the situation.
    pub situation: usize,
    /// Its label.
    pub label: Arc<str>,
    /// The replica.
    pub replica: ReplicaKey,
    /// Why.
    pub reason: Reason,
}

/// Why a replica has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The set needs more GPUs than there are for it.
    Short {
        /// GPUs that the set needs.
        needed: u32,
        /// GPUs that it may use.
        usable: u32,
    },
    /// Enough GPUs are there, but no aligned block of that size is free.
    NoBlock {
        /// GPUs of one TP group, or of the replica.
        size: u32,
        /// GPUs that are free.
        free: u32,
    },
    /// No NUMA and NVLink domain has that many GPUs at all.
    NoDomain {
        /// GPUs of one TP group.
        size: u32,
    },
    /// Its share of the budget is above the band of one GPU.
    TooLarge {
        /// Bytes booked on each GPU.
        booked: u64,
        /// Bytes that a GPU has.
        memory: u64,
    },
    /// No GPU group leaves it a GPU.
    NoGroup,
    /// No node has the CPUs or the memory.
    Host {
        /// Thousandths of CPUs of one replica.
        cpu_milli: u64,
        /// Bytes of host memory of one replica.
        memory: u64,
        /// Bytes of host memory that are free on the node that has most, when that is known.
        free: Option<u64>,
    },
    /// No node is empty, or the one that was is taken whole.
    NotAlone,
    /// Nodes that it would span have no RDMA.
    NoRdma,
    /// No MIG instance of that profile is free.
    NoInstance(Arc<str>),
    /// There is no node.
    NoNode,
}

impl Reason {
    /// GPUs that are missing, when that is what is wrong.
    #[must_use]
    pub const fn gpus_short(&self) -> Option<u32> {
        match self {
            Self::Short { needed, usable } => Some(needed.saturating_sub(*usable)),
            Self::NoBlock { .. }
            | Self::NoDomain { .. }
            | Self::TooLarge { .. }
            | Self::NoGroup
            | Self::Host { .. }
            | Self::NotAlone
            | Self::NoRdma
            | Self::NoInstance(_)
            | Self::NoNode => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, usable } => {
                let short = needed.saturating_sub(*usable);
                let plural = if short == 1 { "GPU" } else { "GPUs" };
                write!(f, "{short} {plural} short: {needed} are needed, {usable} can be used")
            }
            Self::NoBlock { size, free } => {
                write!(f, "{free} GPUs are free, but no aligned block of {size} among them")
            }
            Self::NoDomain { size } => write!(f, "no NUMA and NVLink domain has {size} GPUs"),
            Self::TooLarge { booked, memory } => write!(
                f,
                "needs {} of each GPU, {} of {}: at most {REFUSED_ABOVE} % may be booked",
                memory::gigabytes(*booked),
                memory::percent(*booked, *memory),
                memory::gigabytes(*memory)
            ),
            Self::NoGroup => f.write_str("no GPU group is for its class, or none has that name"),
            Self::Host { cpu_milli, memory, free } => {
                write!(
                    f,
                    "no node has {} CPUs and {} of memory left",
                    *cpu_milli as f64 / 1_000.0,
                    memory::gigabytes(*memory)
                )?;
                free.map_or(Ok(()), |free| write!(f, ", at most {}", memory::gigabytes(free)))
            }
            Self::NotAlone => f.write_str("no node is there for it alone, or somebody has the only one for itself"),
            Self::NoRdma => f.write_str("the nodes that it would span have no RDMA"),
            Self::NoInstance(profile) => write!(f, "no MIG instance {profile} is free"),
            Self::NoNode => f.write_str("there is no node"),
        }
    }
}

/// Finds what is wrong, the most general first.
pub(super) fn reason(places: &[Place<'_>], need: &Need, set: &[&Need]) -> Reason {
    if places.is_empty() {
        return Reason::NoNode;
    }
    if let Some(profile) = &need.mig {
        return Reason::NoInstance(Arc::clone(profile));
    }
    if need.tp == 0 {
        return host(places, need);
    }
    let allowed = |need: &Need| places.iter().map(|place| place.allowed(need, false)).collect::<Vec<_>>();
    let own = allowed(need);
    let usable: u32 = own.iter().map(|set| set.len()).sum();
    if usable == 0 && (need.group.is_some() || places.iter().any(|place| !place.node.groups.is_empty())) {
        return Reason::NoGroup;
    }
    if let Some(reason) = too_large(places, need) {
        return reason;
    }
    if let Some(reason) = impossible(places, need) {
        return reason;
    }
    // whoever may only use the same GPUs competes for them
    let rivals = set
        .iter()
        .filter(|other| other.tp > 0 && allowed(other).iter().zip(&own).all(|(other, own)| own.contains_all(*other)));
    let needed: u32 = rivals.map(|need| need.gpus_per_replica().saturating_mul(need.replicas)).sum();
    if needed > usable {
        return Reason::Short { needed, usable };
    }
    let free: u32 = places.iter().zip(&own).map(|(place, own)| place.free().and(*own).len()).sum();
    if free >= need.gpus_per_replica() {
        let is_alone = places.iter().any(Place::is_empty);
        if need.is_exclusive && !is_alone {
            return Reason::NotAlone;
        }
        if need.cpu_milli > 0 || need.host_memory > 0 {
            return host(places, need);
        }
    }
    if places.iter().all(|place| !place.admits(need)) {
        return Reason::NotAlone;
    }
    Reason::NoBlock { size: need.gpus_per_replica(), free }
}

/// What no node could take even if it were empty.
fn impossible(places: &[Place<'_>], need: &Need) -> Option<Reason> {
    if places.iter().all(|place| place.lattice.blocks(need.tp).is_empty()) {
        return Some(Reason::NoDomain { size: need.tp });
    }
    let largest = places.iter().map(|place| place.node.gpus.len() as u32).max().unwrap_or(0);
    let spans = need.gpus_per_replica() > largest;
    (spans && places.iter().any(|place| place.node.rdma == Some(false))).then_some(Reason::NoRdma)
}

fn too_large(places: &[Place<'_>], need: &Need) -> Option<Reason> {
    if !need.has_budget() {
        return None;
    }
    let memory = places.iter().flat_map(|place| place.node.gpus.values()).map(|gpu| gpu.memory);
    // one GPU whose memory is unknown may be large enough
    let memory = memory.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    let booked = memory::booked(&need.footprint, need.gpus_per_replica(), memory);
    (!memory::fits(booked, memory, REFUSED_ABOVE)).then_some(Reason::TooLarge { booked, memory })
}

fn host(places: &[Place<'_>], need: &Need) -> Reason {
    let free = places.iter().filter_map(|place| {
        let booked = place.ledgers.first().map_or(0, |ledger| ledger.host_memory());
        Some(place.node.host_memory?.saturating_sub(booked))
    });
    Reason::Host { cpu_milli: need.cpu_milli, memory: need.host_memory, free: free.max() }
}
