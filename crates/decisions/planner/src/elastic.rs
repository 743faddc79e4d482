//! More replicas where demand holds, from free GPUs or from less important deployments above their `min`; and back.
//!
//! A decision changes at most one deployment, by one whole replica of a TP that its profile passed, and says why. The
//! caller carries it out through the same switch machine, and asks again afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_core::DeploymentName;

use crate::hardware::{GpuId, GpuState, Hardware};
use crate::need::Need;
use crate::placement::{ReplicaKey, Seat, ranges};
use crate::topology::{Block, Lattice};

/// How long demand has to hold before it gets more.
pub const DEMAND_HOLDS: Duration = Duration::from_mins(3);
/// How long a deployment has to be idle before it gives back.
pub const IDLE_HOLDS: Duration = Duration::from_mins(15);
/// From one change of a deployment to its next.
pub const COOL_DOWN: Duration = Duration::from_mins(10);

/// What a deployment has and how it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its replicas with their seats.
    pub seats: BTreeMap<ReplicaKey, Seat>,
    /// Since when p95 of the wait is above half its class's bound, or requests are refused for saturation.
    pub demand_since: Option<Timestamp>,
    /// Since when less than half of its capacity is used.
    pub idle_since: Option<Timestamp>,
    /// When it last grew or shrank.
    pub changed_at: Option<Timestamp>,
}

/// What is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replicas of others are drained, then a new one starts on their GPUs and on free ones.
    Grow {
        /// Who grows.
        deployment: DeploymentName,
        /// Why.
        why: Why,
        /// The tensor-parallel size of the new replica.
        tp: u32,
        /// Its GPUs.
        node: Arc<str>,
        /// Their indices.
        gpus: Vec<u32>,
        /// Whose replicas are drained.
        drains: Vec<ReplicaKey>,
        /// GPUs that it has before and after.
        count: (u32, u32),
    },
    /// A replica is drained and its GPUs are free.
    Shrink {
        /// Which.
        replica: ReplicaKey,
        /// GPUs that it has before and after.
        count: (u32, u32),
    },
}

/// Why a deployment grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Demand on it holds.
    Demand,
    /// It has less than it gets when there is room, and there is.
    Room,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grow { deployment, why, tp, node, gpus, drains, count: (before, after) } => {
                let why = match why {
                    Why::Demand => "demand on",
                    Why::Room => "room for",
                };
                write!(f, "{why} {deployment}: + TP{tp} on {node} {} ({before} -> {after} GPUs)", ranges(gpus))?;
                if !drains.is_empty() {
                    let names: Vec<String> = drains.iter().map(ToString::to_string).collect();
                    write!(f, ", drains {}", names.join(", "))?;
                }
                Ok(())
            }
            Self::Shrink { replica, count: (before, after) } => {
                write!(f, "{replica} is not needed: {before} -> {after} GPUs")
            }
        }
    }
}

/// What the nodes have and who has what.
#[derive(Clone, Copy, Debug)]
pub struct Fleet<'f> {
    /// The nodes.
    pub hardware: &'f Hardware,
    /// What each deployment needs.
    pub needs: &'f BTreeMap<DeploymentName, Need>,
    /// What each has.
    pub loads: &'f BTreeMap<DeploymentName, Load>,
    /// GPUs that are reserved.
    pub blocked: &'f BTreeSet<GpuId>,
}

/// The next change, if there is one. `is_switching` is true from the prefetch of a switch to its end: then none is.
#[must_use]
pub fn decide(fleet: Fleet<'_>, is_switching: bool, now: Timestamp) -> Option<Change> {
    if is_switching {
        return None;
    }
    let mut order: Vec<&Need> = fleet.needs.values().filter(|need| need.tp > 0).collect();
    order.sort_by_key(|need| (std::cmp::Reverse(need.priority), need.name.clone()));
    let rested = |need: &&&Need| {
        let changed_at = fleet.loads.get(&need.name).and_then(|load| load.changed_at);
        held(changed_at, now).is_none_or(|since| since >= COOL_DOWN)
    };
    let demands = order.iter().filter(rested).filter(|need| {
        held(fleet.loads.get(&need.name).and_then(|load| load.demand_since), now)
            .is_some_and(|since| since >= DEMAND_HOLDS)
    });
    let mut grown = demands.filter_map(|need| grow(fleet, need, Why::Demand));
    if let Some(change) = grown.next() {
        return Some(change);
    }
    let has_less = |need: &&&Need| need.gpus.is_some_and(|gpus| has(fleet, &need.name) < gpus.preferred);
    let is_idle = |need: &&&Need| fleet.loads.get(&need.name).is_some_and(|load| load.idle_since.is_some());
    let wishes = order.iter().filter(rested).filter(|need| has_less(need) && !is_idle(need));
    if let Some(change) = wishes.filter_map(|need| grow(fleet, need, Why::Room)).next() {
        return Some(change);
    }
    let idle = order.iter().rev().filter(rested).filter(|need| {
        held(fleet.loads.get(&need.name).and_then(|load| load.idle_since), now).is_some_and(|since| since >= IDLE_HOLDS)
    });
    idle.filter_map(|need| shrink(fleet, need)).next()
}

/// The limit of an alias when only a part of the declared capacity serves: ⌊P × ΣS serving / ΣS declared⌋.
#[must_use]
pub fn limit(peak: u64, serving: u64, declared: u64) -> u64 {
    let scaled = u128::from(peak) * u128::from(serving) / u128::from(declared.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn held(since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    since.map(|since| Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

fn has(fleet: Fleet<'_>, name: &DeploymentName) -> u32 {
    let seats = fleet.loads.get(name).into_iter().flat_map(|load| load.seats.values());
    seats.map(|seat| seat.gpus().len() as u32).sum()
}

/// The largest TP that passed and for which a block can be had, from the fewest and least important replicas, lowest
/// index.
fn grow(fleet: Fleet<'_>, need: &Need, why: Why) -> Option<Change> {
    let before = has(fleet, &need.name);
    let most = need.gpus.and_then(|gpus| match why {
        Why::Demand => gpus.max,
        Why::Room => Some(gpus.preferred),
    });
    let room = most.map_or(u32::MAX, |most| most.saturating_sub(before));
    // a size that the profile did not pass is never taken, not even its own
    let sizes = need.passed.keys().rev().copied().filter(|tp| *tp <= need.tp && *tp <= room);
    sizes.into_iter().find_map(|tp| {
        let (node, block, drains) = block(fleet, need, tp, why)?;
        let count = (before, before + tp);
        Some(Change::Grow { deployment: need.name.clone(), why, tp, node, gpus: block.gpus, drains, count })
    })
}

fn block(fleet: Fleet<'_>, need: &Need, tp: u32, why: Why) -> Option<(Arc<str>, Block, Vec<ReplicaKey>)> {
    let mut best: Option<(Rank, Arc<str>, Block, Vec<ReplicaKey>)> = None;
    for (name, node) in &fleet.hardware.nodes {
        for block in Lattice::of(node).blocks(tp) {
            let Some(drains) = drains(fleet, need, name, block) else { continue };
            // without demand nobody goes, and what is kept free stays free
            let kept = node.kept_free();
            if why == Why::Room && (!drains.is_empty() || block.gpus.iter().any(|gpu| kept.contains(gpu))) {
                continue;
            }
            let priority = |key: &ReplicaKey| fleet.needs.get(&key.deployment).map_or(0, |need| need.priority);
            let rank = (drains.len(), drains.iter().map(priority).max());
            if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                best = Some((rank, Arc::clone(name), block.clone(), drains));
            }
        }
    }
    best.map(|(_, node, block, drains)| (node, block, drains))
}

/// Fewer replicas first, then less important ones.
type Rank = (usize, Option<i32>);

/// The replicas that have to go for a block; `None` when one of them may not, or a GPU is nobody's to give.
fn drains(fleet: Fleet<'_>, need: &Need, node: &Arc<str>, block: &Block) -> Option<Vec<ReplicaKey>> {
    let facts = fleet.hardware.nodes.get(node)?;
    let mut drains: BTreeSet<&ReplicaKey> = BTreeSet::new();
    for index in &block.gpus {
        let gpu = GpuId { node: Arc::clone(node), index: *index };
        let is_usable = facts.gpus.get(index).is_some_and(|gpu| gpu.state == GpuState::Usable);
        let in_group = facts.groups.iter().find(|group| group.gpus.contains(index));
        let is_ours = need.group.as_ref().is_none_or(|own| in_group.is_some_and(|group| group.name == *own))
            && in_group.is_none_or(|group| group.classes.is_empty() || group.classes.contains(&need.class));
        if !is_usable || !is_ours || fleet.blocked.contains(&gpu) {
            return None;
        }
        for load in fleet.loads.values() {
            drains.extend(load.seats.iter().filter(|(_, seat)| seat.gpus().contains(&gpu)).map(|(key, _)| key));
        }
    }
    let mut left: BTreeMap<&DeploymentName, u32> = BTreeMap::new();
    for key in &drains {
        let other = fleet.needs.get(&key.deployment)?;
        let seat = fleet.loads.get(&key.deployment)?.seats.get(*key)?;
        let left = left.entry(&key.deployment).or_insert_with(|| has(fleet, &key.deployment));
        *left = left.checked_sub(seat.gpus().len() as u32)?;
        let min = other.gpus.map_or_else(|| other.gpus_per_replica(), |gpus| gpus.min);
        if other.priority >= need.priority || *left < min {
            return None;
        }
    }
    Some(drains.into_iter().cloned().collect())
}

/// The last replica beyond what it is to have without demand.
fn shrink(fleet: Fleet<'_>, need: &Need) -> Option<Change> {
    let load = fleet.loads.get(&need.name)?;
    let before = has(fleet, &need.name);
    let gpus = need.gpus?;
    let keeps = |seat: &Seat| before.saturating_sub(seat.gpus().len() as u32);
    let can_go = |(_, seat): &(&ReplicaKey, &Seat)| keeps(seat) >= gpus.preferred.max(gpus.min);
    let (key, seat) = load.seats.iter().rev().find(can_go)?;
    Some(Change::Shrink { replica: key.clone(), count: (before, keeps(seat)) })
}
