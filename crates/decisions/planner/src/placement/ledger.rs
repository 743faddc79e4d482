//! Who has booked what in one situation.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Part, Seat, Situation};
use crate::hardware::{GpuState, Hardware, Node};
use crate::memory::{self, REFUSED_ABOVE};
use crate::need::Need;
use crate::topology::{Block, GpuSet};

/// Bookings of one situation, by node.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    pub(super) nodes: BTreeMap<Arc<str>, NodeLedger>,
}

/// Bookings on one node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeLedger {
    /// GPUs that can be used at all.
    pub(super) usable: GpuSet,
    /// Of those, GPUs without a resident.
    pub(super) free: GpuSet,
    gpus: BTreeMap<u32, Booking>,
    cpu_milli: BTreeMap<Option<u32>, u64>,
    numa_memory: BTreeMap<u32, u64>,
    host_memory: u64,
    residents: u32,
    is_taken_whole: bool,
}

/// What is booked on one GPU.
#[derive(Clone, Debug, Default)]
struct Booking {
    bytes: u64,
    /// Whether every resident has a budget.
    has_unknown: bool,
    /// MIG instances that are taken.
    instances: Vec<u32>,
}

impl Ledger {
    pub(super) fn new(hardware: &Hardware, situation: &Situation) -> Self {
        let mut nodes: BTreeMap<Arc<str>, NodeLedger> = BTreeMap::new();
        for (name, node) in &hardware.nodes {
            let usable = node.gpus.iter().filter(|(_, gpu)| matches!(gpu.state, GpuState::Usable | GpuState::Mig(_)));
            let usable = usable.map(|(index, _)| *index).collect();
            nodes.insert(Arc::clone(name), NodeLedger { usable, ..NodeLedger::default() });
        }
        for blocked in situation.blocked.keys() {
            if let Some(node) = nodes.get_mut(&blocked.node) {
                node.usable =
                    (0..256).filter(|index| *index != blocked.index && node.usable.contains(*index)).collect();
            }
        }
        nodes.values_mut().for_each(|node| node.free = node.usable);
        Self { nodes }
    }

    /// Books a seat. Who books has asked before.
    pub(super) fn book(&mut self, hardware: &Hardware, need: &Need, seat: &Seat) {
        for part in &seat.parts {
            let (Some(ledger), Some(node)) = (self.nodes.get_mut(&part.node), hardware.nodes.get(&part.node)) else {
                continue;
            };
            ledger.book(node, need, part, seat.parts.len() as u64);
        }
    }
}

impl NodeLedger {
    fn book(&mut self, node: &Node, need: &Need, part: &Part, parts: u64) {
        let taken: GpuSet = part.gpus().collect();
        for index in part.gpus() {
            let booking = self.gpus.entry(index).or_default();
            if let Some(instance) = part.mig {
                booking.instances.push(instance);
                continue;
            }
            let memory = node.gpus.get(&index).and_then(|gpu| gpu.memory);
            match memory {
                Some(memory) if need.has_budget() => {
                    booking.bytes += memory::booked(&need.footprint, need.gpus_per_replica(), memory);
                }
                Some(_) | None => booking.has_unknown = true,
            }
        }
        self.free = (0..256).filter(|index| self.free.contains(*index) && !taken.contains(*index)).collect();
        *self.cpu_milli.entry(part.numa).or_default() += need.cpu_milli / parts;
        if let Some(numa) = part.numa {
            *self.numa_memory.entry(numa).or_default() += need.host_memory / parts;
        }
        self.host_memory += need.host_memory / parts;
        self.residents += 1;
        self.is_taken_whole |= need.is_exclusive;
    }

    /// Whether anything of the need may be on this node.
    pub(super) const fn admits(&self, need: &Need) -> bool {
        !self.is_taken_whole && (!need.is_exclusive || self.residents == 0)
    }

    /// Whether the block can take the need beside those who are there: all with budgets, and none above the band.
    pub(super) fn shares(&self, node: &Node, need: &Need, block: &Block) -> bool {
        need.has_budget()
            && self.usable.contains_all(block.set)
            && block.gpus.iter().all(|index| {
                let Some(memory) = node.gpus.get(index).and_then(|gpu| gpu.memory) else { return false };
                let there = self.gpus.get(index);
                let bytes = there.map_or(0, |booking| booking.bytes);
                let more = memory::booked(&need.footprint, need.gpus_per_replica(), memory);
                there.is_none_or(|booking| !booking.has_unknown)
                    && memory::fits(bytes.saturating_add(more), memory, REFUSED_ABOVE)
            })
    }

    /// Whether a MIG instance of a GPU is free.
    pub(super) fn has_instance(&self, gpu: u32, instance: u32) -> bool {
        self.usable.contains(gpu) && self.gpus.get(&gpu).is_none_or(|booking| !booking.instances.contains(&instance))
    }

    /// Whether the host has the CPUs and the memory, on that NUMA node if one is given. What is unknown is not refused.
    pub(super) fn host_has(&self, node: &Node, need: &Need, numa: Option<u32>, parts: u64) -> bool {
        let (cpu, memory) = (need.cpu_milli / parts, need.host_memory / parts);
        let fits = |booked: u64, more: u64, all: Option<u64>| all.is_none_or(|all| booked.saturating_add(more) <= all);
        let all_cpus = (!node.numa.is_empty()).then(|| node.numa.values().map(|numa| numa.cpu_milli).sum());
        let facts = numa.and_then(|numa| node.numa.get(&numa));
        let on_numa = self.cpu_milli.get(&numa).copied().unwrap_or(0);
        let in_numa = numa.and_then(|numa| self.numa_memory.get(&numa)).copied().unwrap_or(0);
        let has_cpus = fits(self.cpu_milli.values().sum(), cpu, all_cpus)
            && fits(on_numa, cpu, facts.map(|facts| facts.cpu_milli));
        let has_memory = fits(self.host_memory, memory, node.host_memory)
            && fits(in_numa, memory, facts.and_then(|facts| facts.memory));
        (cpu == 0 || has_cpus) && (memory == 0 || has_memory)
    }

    /// Bytes of host memory that are booked.
    pub(super) const fn host_memory(&self) -> u64 {
        self.host_memory
    }

    /// Whether nobody is here.
    pub(super) const fn is_empty(&self) -> bool {
        self.residents == 0
    }
}
