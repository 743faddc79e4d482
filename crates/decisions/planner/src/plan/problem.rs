//! The changes of a switch as bytes on resources, for the search of the best order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::DeploymentName;

use super::units::{Moved, Unit, Units};
use super::{Ask, Phases};
use crate::hardware::GpuId;
use crate::memory::{self, REFUSED_ABOVE};
use crate::need::Need;
use crate::placement::Seat;
use crate::strategy::{AliasMove, Arrival, Leaver, Problem};

/// What new and old compete for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Gpu(GpuId),
    Instance(GpuId, u32),
    HostMemory(Arc<str>),
    HostCpu(Arc<str>),
}

/// The problem with the names of its resources.
pub(super) struct Named {
    pub(super) resources: Vec<Resource>,
    pub(super) problem: Problem,
}

/// Makes the problem of a switch.
pub(super) fn problem(ask: Ask<'_>, units: &Units) -> Named {
    let takes = |unit: &Unit| takes(ask, unit);
    let (go, come): (Vec<_>, Vec<_>) = (units.go.iter().map(takes).collect(), units.come.iter().map(takes).collect());
    let names: BTreeSet<&Resource> = go.iter().chain(&come).flat_map(BTreeMap::keys).collect();
    let resources: Vec<Resource> = names.into_iter().cloned().collect();
    let numbered = |takes: &BTreeMap<Resource, u64>| {
        takes.iter().filter_map(|(name, bytes)| Some((resources.binary_search(name).ok()?, *bytes))).collect()
    };
    let staying = staying(ask, units);
    let capacity =
        resources.iter().map(|name| capacity(ask, name).saturating_sub(staying.get(name).copied().unwrap_or(0)));
    let capacity = capacity.enumerate().collect();
    let leavers = units
        .go
        .iter()
        .zip(&go)
        .map(|(unit, takes)| Leaver { takes: numbered(takes), drain: drain(ask, &unit.deployment) });
    let arrivals = units.come.iter().zip(&come).map(|(unit, takes)| Arrival {
        takes: numbered(takes),
        shares: may_share(ask, unit),
        load: load(ask, &unit.deployment),
    });
    let problem =
        Problem { capacity, leavers: leavers.collect(), arrivals: arrivals.collect(), moves: moves(ask, units) };
    Named { resources, problem }
}

/// From the beginning of a drain to proven free memory.
pub(super) fn drain(ask: Ask<'_>, name: &DeploymentName) -> Duration {
    let stop = ask.known.phases.get(name).map_or(Duration::ZERO, Phases::to_gone);
    ask.rules.drain_timeout + stop
}

/// From the start of an engine to its proof.
pub(super) fn load(ask: Ask<'_>, name: &DeploymentName) -> Duration {
    ask.known.phases.get(name).map_or(ask.rules.lead.deploy, Phases::to_ready)
}

/// What a GPU, an instance or a host has for all its residents.
fn capacity(ask: Ask<'_>, name: &Resource) -> u64 {
    match name {
        Resource::Gpu(gpu) => gpu_memory(ask, gpu).map_or(1, |memory| {
            u64::try_from(u128::from(memory) * u128::from(REFUSED_ABOVE) / 100).unwrap_or(u64::MAX)
        }),
        Resource::Instance(..) => 1,
        Resource::HostMemory(node) => {
            ask.hardware.nodes.get(node).and_then(|node| node.host_memory).unwrap_or(u64::MAX)
        }
        Resource::HostCpu(node) => {
            let numa = ask.hardware.nodes.get(node).map(|node| &node.numa).filter(|numa| !numa.is_empty());
            numa.map_or(u64::MAX, |numa| numa.values().map(|numa| numa.cpu_milli).sum())
        }
    }
}

fn gpu_memory(ask: Ask<'_>, gpu: &GpuId) -> Option<u64> {
    ask.hardware.gpu(gpu).and_then(|gpu| gpu.memory)
}

/// What the replicas of a unit take. One without a budget takes all of a GPU: nothing is planned beside it.
fn takes(ask: Ask<'_>, unit: &Unit) -> BTreeMap<Resource, u64> {
    let mut takes: BTreeMap<Resource, u64> = BTreeMap::new();
    let Some(need) = ask.needs.get(&unit.deployment) else { return takes };
    for (_, seat) in &unit.seats {
        add(ask, need, seat, &mut takes);
    }
    takes
}

fn add(ask: Ask<'_>, need: &Need, seat: &Seat, takes: &mut BTreeMap<Resource, u64>) {
    let parts = seat.parts.len().max(1) as u64;
    for part in &seat.parts {
        for index in part.gpus() {
            let gpu = GpuId { node: Arc::clone(&part.node), index };
            if let Some(instance) = part.mig {
                takes.insert(Resource::Instance(gpu, instance), 1);
                continue;
            }
            let bytes = match gpu_memory(ask, &gpu) {
                Some(memory) if need.has_budget() => memory::booked(&need.footprint, need.gpus_per_replica(), memory),
                Some(_) | None => capacity(ask, &Resource::Gpu(gpu.clone())),
            };
            let sum = takes.entry(Resource::Gpu(gpu)).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for (name, amount) in [
            (Resource::HostMemory(Arc::clone(&part.node)), need.host_memory),
            (Resource::HostCpu(Arc::clone(&part.node)), need.cpu_milli),
        ] {
            if amount > 0 {
                *takes.entry(name).or_default() += amount / parts;
            }
        }
    }
}

fn staying(ask: Ask<'_>, units: &Units) -> BTreeMap<Resource, u64> {
    let mut takes = BTreeMap::new();
    for (key, seat) in &units.stays {
        if let Some(need) = ask.needs.get(&key.deployment) {
            add(ask, need, seat, &mut takes);
        }
    }
    takes
}

/// Whether a deployment may ever be beside one that goes: its memory is known, and we choose its GPUs.
fn may_share(ask: Ask<'_>, unit: &Unit) -> bool {
    let Some(need) = ask.needs.get(&unit.deployment) else { return false };
    let nodes = unit.seats.iter().flat_map(|(_, seat)| &seat.parts).map(|part| ask.hardware.nodes.get(&part.node));
    let is_ours = nodes.into_iter().all(|node| node.is_some_and(|node| !node.is_plugin));
    need.tp == 0 || (need.has_budget() && is_ours)
}

/// Weights are priorities, counted from the lowest of this switch: each second of the least important costs 1.
fn moves(ask: Ask<'_>, units: &Units) -> Vec<AliasMove> {
    let priority = |moved: &Moved| {
        let of = |target: &tidegate_config::site::Target| ask.site.deployments.get(&target.deployment);
        moved.from.iter().chain(&moved.to).filter_map(of).map(|deployment| i64::from(deployment.priority)).max()
    };
    let lowest = units.moved.iter().filter_map(priority).min().unwrap_or(0);
    let one = |moved: &Moved| {
        let numbers = |list: &[Unit], targets: &[tidegate_config::site::Target]| -> Vec<usize> {
            let names: BTreeSet<&DeploymentName> = targets.iter().map(|target| &target.deployment).collect();
            (0..list.len())
                .filter(|number| list.get(*number).is_some_and(|unit| names.contains(&unit.deployment)))
                .collect()
        };
        let (from, to) = (numbers(&units.go, &moved.from), numbers(&units.come, &moved.to));
        let stays = |targets: &[tidegate_config::site::Target], list: &[Unit]| {
            targets.iter().any(|target| {
                let is_changing = list.iter().any(|unit| unit.deployment == target.deployment);
                !is_changing || units.stays.keys().any(|key| key.deployment == target.deployment)
            })
        };
        AliasMove {
            has_stayer: stays(&moved.from, &units.go) || stays(&moved.to, &units.come),
            from,
            to,
            weight: priority(moved).map_or(1, |priority| (priority - lowest).unsigned_abs() + 1),
        }
    };
    units.moved.iter().map(one).collect()
}
