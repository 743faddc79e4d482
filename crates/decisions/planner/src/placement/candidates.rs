//! Every seat that a replica could take, best first.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ledger::{Ledger, NodeLedger};
use super::{Part, Seat};
use crate::hardware::{GpuState, Node};
use crate::memory::{self, REFUSED_ABOVE};
use crate::need::Need;
use crate::topology::{Block, GpuSet, Lattice};

/// A node with what is cut and booked on it in the situations in question.
#[derive(Clone, Debug)]
pub(super) struct Place<'p> {
    pub(super) name: &'p Arc<str>,
    pub(super) node: &'p Node,
    pub(super) lattice: &'p Lattice,
    pub(super) ledgers: Vec<&'p NodeLedger>,
}

impl<'p> Place<'p> {
    pub(super) fn new(name: &'p Arc<str>, node: &'p Node, lattice: &'p Lattice, ledgers: &[&'p Ledger]) -> Self {
        let ledgers = ledgers.iter().filter_map(|ledger| ledger.nodes.get(name)).collect();
        Self { name, node, lattice, ledgers }
    }

    /// GPUs that the need may have here if nobody else had one.
    pub(super) fn allowed(&self, need: &Need, may_use_kept: bool) -> GpuSet {
        let allowed = allowed_by_groups(self.node, need);
        let kept = self.node.kept_free();
        let gpus = self.node.gpus.iter();
        let open = gpus.filter(|(_, gpu)| matches!(gpu.state, GpuState::Mig(_)) == need.mig.is_some());
        let open: GpuSet = open.map(|(index, _)| *index).filter(|gpu| may_use_kept || !kept.contains(gpu)).collect();
        self.ledgers.iter().fold(allowed.and(open), |set, ledger| set.and(ledger.usable))
    }

    pub(super) fn admits(&self, need: &Need) -> bool {
        self.ledgers.iter().all(|ledger| ledger.admits(need))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ledgers.iter().all(|ledger| ledger.is_empty())
    }

    pub(super) fn free(&self) -> GpuSet {
        let all: GpuSet = self.node.gpus.keys().copied().collect();
        self.ledgers.iter().fold(all, |set, ledger| set.and(ledger.free))
    }

    fn host_has(&self, need: &Need, numa: Option<u32>, parts: u64) -> bool {
        self.ledgers.iter().all(|ledger| ledger.host_has(self.node, need, numa, parts))
    }

    fn part(&self, groups: Vec<Vec<u32>>, numa: Option<u32>) -> Part {
        Part { node: Arc::clone(self.name), groups, numa, mig: None }
    }
}

/// GPUs that groups leave to a need: those of its group; without one, those of no group and of groups for its class.
fn allowed_by_groups(node: &Node, need: &Need) -> GpuSet {
    let is_for = |classes: &BTreeSet<_>| classes.is_empty() || classes.contains(&need.class);
    match &need.group {
        Some(name) => {
            let own = node.groups.iter().filter(|group| group.name == *name && is_for(&group.classes));
            own.flat_map(|group| group.gpus.iter().copied()).collect()
        }
        None => {
            let closed = node.groups.iter().filter(|group| !is_for(&group.classes));
            let closed: BTreeSet<u32> = closed.flat_map(|group| group.gpus.iter().copied()).collect();
            node.gpus.keys().copied().filter(|index| !closed.contains(index)).collect()
        }
    }
}

/// Seats on free GPUs first, each by the size of the free block it is cut from, node and index; then, where all have
/// budgets and no block is free, seats beside others.
pub(super) fn seats(places: &[Place<'_>], need: &Need, may_use_kept: bool) -> Vec<Seat> {
    let open: Vec<&Place<'_>> = places.iter().filter(|place| place.admits(need)).collect();
    if let Some(profile) = &need.mig {
        return open.iter().flat_map(|place| instances(place, need, profile)).collect();
    }
    if need.tp == 0 {
        return open.iter().flat_map(|place| hosts(place, need)).collect();
    }
    let mut ranked: Vec<(u32, Seat)> = Vec::new();
    for place in &open {
        ranked.extend(free_seats(place, need, may_use_kept));
    }
    // stable: by node and index within one size
    ranked.sort_by_key(|(cut_from, _)| *cut_from);
    if !ranked.is_empty() {
        return ranked.into_iter().map(|(_, seat)| seat).collect();
    }
    if must_span(places, need) {
        return spanning(&open, need, may_use_kept).into_iter().collect();
    }
    open.iter().flat_map(|place| shared_seats(place, need, may_use_kept)).collect()
}

/// Whether a replica alone fills a GPU beyond the band; unknown memory is not refused.
fn is_too_large(node: &Node, need: &Need, block: &Block) -> bool {
    need.has_budget()
        && block.gpus.iter().any(|index| {
            let memory = node.gpus.get(index).and_then(|gpu| gpu.memory);
            memory.is_some_and(|memory| {
                let booked = memory::booked(&need.footprint, need.gpus_per_replica(), memory);
                !memory::fits(booked, memory, REFUSED_ABOVE)
            })
        })
}

fn free_seats(place: &Place<'_>, need: &Need, may_use_kept: bool) -> Vec<(u32, Seat)> {
    let free = place.free().and(place.allowed(need, may_use_kept));
    let whole = whole_blocks(place, need, free);
    let fits = |block: &&Block| !is_too_large(place.node, need, block) && place.host_has(need, block.numa, 1);
    let seats: Vec<_> = whole
        .into_iter()
        .filter(fits)
        .map(|block| {
            let groups = block.gpus.chunks(need.tp as usize).map(<[u32]>::to_vec).collect();
            (place.lattice.cut_from(block, free), Seat { parts: vec![place.part(groups, block.numa)] })
        })
        .collect();
    if !seats.is_empty() || need.groups <= 1 {
        return seats;
    }
    // several TP groups that are no block together: each one its own, the smallest first
    let Some(groups) = scattered(place, need, free, need.groups) else { return Vec::new() };
    let seat = Seat { parts: vec![place.part(groups, None)] };
    if place.host_has(need, None, 1) { vec![(u32::MAX, seat)] } else { Vec::new() }
}

/// Free blocks of the size of a whole replica.
fn whole_blocks<'b>(place: &'b Place<'_>, need: &Need, free: GpuSet) -> Vec<&'b Block> {
    let blocks = place.lattice.blocks(need.gpus_per_replica()).iter();
    blocks.filter(|block| free.contains_all(block.set)).collect()
}

/// So many TP groups on free blocks of one node, each cut from the smallest.
fn scattered(place: &Place<'_>, need: &Need, free: GpuSet, groups: u32) -> Option<Vec<Vec<u32>>> {
    let mut free = free;
    let mut taken = Vec::new();
    for _ in 0..groups {
        let blocks = place.lattice.blocks(need.tp).iter();
        let open = blocks.filter(|block| free.contains_all(block.set) && !is_too_large(place.node, need, block));
        let block = open.min_by_key(|block| place.lattice.cut_from(block, free))?;
        free = place.node.gpus.keys().copied().filter(|gpu| free.contains(*gpu) && !block.set.contains(*gpu)).collect();
        taken.push(block.gpus.clone());
    }
    Some(taken)
}

/// Whether no node has as many GPUs as a replica needs.
fn must_span(places: &[Place<'_>], need: &Need) -> bool {
    need.groups > 1 && places.iter().all(|place| (place.node.gpus.len() as u32) < need.gpus_per_replica())
}

/// A seat over the fewest nodes that take the same number of TP groups each, on the same rails where those are known.
fn spanning(places: &[&Place<'_>], need: &Need, may_use_kept: bool) -> Option<Seat> {
    let able: Vec<&&Place<'_>> = places.iter().filter(|place| place.node.rdma != Some(false)).collect();
    let spans = (2..=need.groups).filter(|nodes| need.groups.is_multiple_of(*nodes));
    spans.into_iter().find_map(|nodes| {
        let each = need.groups / nodes;
        let mut parts: Vec<Part> = Vec::new();
        let mut rails: Option<Vec<u32>> = None;
        for place in &able {
            let free = place.free().and(place.allowed(need, may_use_kept));
            let Some(groups) = scattered(place, need, free, each) else { continue };
            let own: Option<Vec<u32>> =
                groups.iter().flatten().map(|gpu| place.node.gpus.get(gpu).and_then(|gpu| gpu.rail)).collect();
            let is_aligned = rails.is_none() || own.is_none() || rails == own;
            if is_aligned && place.host_has(need, None, u64::from(nodes)) {
                rails = rails.or(own);
                parts.push(place.part(groups, None));
            }
            if parts.len() as u32 == nodes {
                return Some(Seat { parts });
            }
        }
        None
    })
}

fn shared_seats(place: &Place<'_>, need: &Need, may_use_kept: bool) -> Vec<Seat> {
    if place.node.is_plugin || need.is_exclusive {
        return Vec::new();
    }
    let allowed = place.allowed(need, may_use_kept);
    let blocks = place.lattice.blocks(need.gpus_per_replica()).iter();
    let shares = |block: &&Block| {
        allowed.contains_all(block.set)
            && place.ledgers.iter().all(|ledger| ledger.shares(place.node, need, block))
            && place.host_has(need, block.numa, 1)
    };
    let seat = |block: &Block| {
        let groups = block.gpus.chunks(need.tp as usize).map(<[u32]>::to_vec).collect();
        Seat { parts: vec![place.part(groups, block.numa)] }
    };
    blocks.filter(shares).map(seat).collect()
}

/// A worker's seats: on one NUMA node that has the CPUs and the memory, else on the node as a whole.
fn hosts(place: &Place<'_>, need: &Need) -> Vec<Seat> {
    let numas = place.node.numa.keys().copied().map(Some).chain([None]);
    let fits = |numa: &Option<u32>| place.host_has(need, *numa, 1);
    numas.filter(fits).map(|numa| Seat { parts: vec![place.part(Vec::new(), numa)] }).collect()
}

/// MIG instances of the profile that was asked for.
fn instances(place: &Place<'_>, need: &Need, profile: &Arc<str>) -> Vec<Seat> {
    let allowed = place.allowed(need, false);
    let mut seats = Vec::new();
    for (index, gpu) in &place.node.gpus {
        let GpuState::Mig(cut) = &gpu.state else { continue };
        let matching = cut.iter().enumerate().filter(|(_, own)| *own == profile).map(|(number, _)| number as u32);
        let free = matching.filter(|number| place.ledgers.iter().all(|ledger| ledger.has_instance(*index, *number)));
        for number in free.filter(|_| allowed.contains(*index) && place.host_has(need, gpu.numa, 1)) {
            let part = Part { mig: Some(number), ..place.part(vec![vec![*index]], gpu.numa) };
            seats.push(Seat { parts: vec![part] });
        }
    }
    seats
}

/// Whether a seat, wherever it came from, is on usable GPUs that nobody has yet.
pub(super) fn is_free(places: &[Place<'_>], need: &Need, seat: &Seat) -> bool {
    seat.parts.iter().all(|part| {
        places.iter().any(|place| {
            *place.name == part.node
                && part.mig.is_none()
                && place.admits(need)
                && place.free().and(place.allowed(need, true)).contains_all(part.gpus().collect())
                && place.host_has(need, part.numa, seat.parts.len() as u64)
        })
    })
}
