//! The order of placing, and the bounded search for another choice when the first one of each does not work out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::DeploymentName;

use super::candidates::{Place, seats};
use super::ledger::Ledger;
use super::misfit::{self, Misfit};
use super::{Placement, ReplicaKey, Request, Seat, Seats};
use crate::hardware::{GpuState, Node};
use crate::need::Need;
use crate::topology::Lattice;

/// Seats that the search tries in all before it gives up. Bounds the time of one placement.
const TRIES_MAX: u32 = 4_000;

/// A request with what is derived from it once.
pub(super) struct Stand<'r> {
    pub(super) request: Request<'r>,
    lattices: BTreeMap<Arc<str>, Lattice>,
    order: Vec<Item<'r>>,
}

/// One replica with the situations that it is in.
#[derive(Clone, Debug)]
pub(super) struct Item<'r> {
    pub(super) need: &'r Need,
    key: ReplicaKey,
    situations: Vec<usize>,
}

impl<'r> Stand<'r> {
    pub(super) fn new(request: Request<'r>) -> Self {
        let lattice = |(name, node): (&Arc<str>, &Node)| (Arc::clone(name), Lattice::of(node));
        let lattices = request.hardware.nodes.iter().map(lattice).collect();
        Self { request, lattices, order: order(request) }
    }

    fn ledgers(&self) -> Vec<Ledger> {
        self.request.situations.iter().map(|situation| Ledger::new(self.request.hardware, situation)).collect()
    }

    fn places<'p>(&'p self, ledgers: &'p [Ledger], situations: &[usize]) -> Vec<Place<'p>> {
        let ledgers: Vec<&Ledger> = situations.iter().filter_map(|index| ledgers.get(*index)).collect();
        let nodes = self.request.hardware.nodes.iter();
        nodes.filter_map(|(name, node)| Some(Place::new(name, node, self.lattices.get(name)?, &ledgers))).collect()
    }

    /// The seats that an item could take: where it is already, or else the best ones.
    fn seats(&self, ledgers: &[Ledger], item: &Item<'_>, situations: &[usize]) -> Vec<Seat> {
        let places = self.places(ledgers, situations);
        let pinned = self.request.pinned.get(&item.key);
        let lost = pinned.is_some_and(|seat| is_lost(self.request, seat));
        let mut seats = seats(&places, item.need, false);
        if lost {
            // it may go where GPUs are kept free for that, when there is no other place
            let kept = super::candidates::seats(&places, item.need, true);
            let more: Vec<Seat> = kept.into_iter().filter(|seat| !seats.contains(seat)).collect();
            seats.extend(more);
        }
        if let Some(pinned) = pinned.filter(|_| !lost)
            && pinned_fits(&places, item.need, pinned)
        {
            seats.retain(|seat| seat != pinned);
            seats.insert(0, pinned.clone());
        }
        seats
    }

    fn book(&self, ledgers: &mut [Ledger], item: &Item<'_>, seat: &Seat, situations: &[usize]) {
        for index in situations {
            if let Some(ledger) = ledgers.get_mut(*index) {
                ledger.book(self.request.hardware, item.need, seat);
            }
        }
    }

    /// Each takes its best seat in turn; who finds none for all its situations takes one for each.
    pub(super) fn greedy(&self) -> Placement {
        let mut ledgers = self.ledgers();
        let mut placement = self.empty();
        for item in &self.order {
            if let Some(seat) = self.seats(&ledgers, item, &item.situations).into_iter().next() {
                self.book(&mut ledgers, item, &seat, &item.situations);
                record(&mut placement.seats, item, &seat, &item.situations);
                continue;
            }
            for index in &item.situations {
                let only = [*index];
                match self.seats(&ledgers, item, &only).into_iter().next() {
                    Some(seat) => {
                        self.book(&mut ledgers, item, &seat, &only);
                        record(&mut placement.seats, item, &seat, &only);
                    }
                    None => placement.misfits.extend(self.misfit(&ledgers, item, *index)),
                }
            }
        }
        placement
    }

    fn empty(&self) -> Placement {
        Placement { seats: vec![Seats::new(); self.request.situations.len()], misfits: Vec::new() }
    }

    fn misfit(&self, ledgers: &[Ledger], item: &Item<'_>, index: usize) -> Option<Misfit> {
        let situation = self.request.situations.get(index)?;
        let places = self.places(ledgers, &[index]);
        let in_set = situation.set.iter().filter_map(|name| self.request.needs.get(name)).collect::<Vec<_>>();
        let reason = misfit::reason(&places, item.need, &in_set);
        Some(Misfit { situation: index, label: Arc::clone(&situation.label), replica: item.key.clone(), reason })
    }

    /// Depth first over all seats of each, in the same order, within bounds; the same GPUs in all situations.
    pub(super) fn search(&self) -> Option<Placement> {
        if self.cannot() {
            return None;
        }
        let mut tries = TRIES_MAX;
        let mut chosen: Vec<Seat> = Vec::new();
        if !self.deeper(&self.ledgers(), &mut chosen, &mut tries) {
            return None;
        }
        let mut placement = self.empty();
        for (item, seat) in self.order.iter().zip(&chosen) {
            record(&mut placement.seats, item, seat, &item.situations);
        }
        Some(placement)
    }

    /// Whether a need has no seat even on empty nodes: no choice of the others can help.
    fn cannot(&self) -> bool {
        let empty = self.ledgers();
        let mut asked: BTreeSet<&DeploymentName> = BTreeSet::new();
        self.order
            .iter()
            .any(|item| asked.insert(&item.need.name) && self.seats(&empty, item, &item.situations).is_empty())
    }

    fn deeper(&self, ledgers: &[Ledger], chosen: &mut Vec<Seat>, tries: &mut u32) -> bool {
        let Some(item) = self.order.get(chosen.len()) else { return true };
        for seat in self.seats(ledgers, item, &item.situations) {
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            let mut ledgers = ledgers.to_vec();
            self.book(&mut ledgers, item, &seat, &item.situations);
            chosen.push(seat);
            if self.deeper(&ledgers, chosen, tries) {
                return true;
            }
            chosen.pop();
        }
        false
    }
}

fn record(seats: &mut [Seats], item: &Item<'_>, seat: &Seat, situations: &[usize]) {
    for index in situations {
        if let Some(seats) = seats.get_mut(*index) {
            seats.insert(item.key.clone(), seat.clone());
        }
    }
}

/// Whether a replica's seat has a GPU that can no longer be used.
fn is_lost(request: Request<'_>, seat: &Seat) -> bool {
    let is_sound = |gpu| {
        let state = request.hardware.gpu(&gpu).map(|gpu| &gpu.state);
        matches!(state, Some(GpuState::Usable | GpuState::Mig(_)))
    };
    !seat.gpus().into_iter().all(is_sound)
}

/// Whether a replica can stay where it is: its GPUs are still its own to have, and nobody else's.
fn pinned_fits(places: &[Place<'_>], need: &Need, pinned: &Seat) -> bool {
    seats(places, need, false).contains(pinned) || super::candidates::is_free(places, need, pinned)
}

/// Who is placed when: pinned ones, then those of several situations, by GPUs descending, priority and name; the
/// replicas of a deployment by number.
fn order(request: Request<'_>) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    for need in request.needs.values() {
        let situations: Vec<usize> = (0..request.situations.len())
            .filter(|index| request.situations.get(*index).is_some_and(|situation| situation.set.contains(&need.name)))
            .collect();
        if situations.is_empty() {
            continue;
        }
        for index in 0..need.replicas {
            let key = ReplicaKey { deployment: need.name.clone(), index };
            items.push(Item { need, key, situations: situations.clone() });
        }
    }
    items.sort_by_key(|item| {
        let is_pinned = request.pinned.get(&item.key).is_some_and(|seat| !is_lost(request, seat));
        let gpus = item.need.gpus_per_replica();
        let rank = (!is_pinned, !item.need.is_exclusive, item.situations.len() < 2);
        (rank, std::cmp::Reverse(gpus), std::cmp::Reverse(item.need.priority), item.key.clone())
    });
    items
}
