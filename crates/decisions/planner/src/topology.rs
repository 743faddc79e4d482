//! Which GPUs may form a TP group: aligned blocks, as a buddy allocator cuts them.
//!
//! GPUs are put in order by NVLink domain, NUMA node, rail and index; a block of size n is a stretch of that order that
//! begins at a multiple of n. It lies in one NVLink domain always, and in one NUMA node as long as one has room for it:
//!
//! ```text
//! NUMA 0: 0 1 2 3   NUMA 1: 4 5 6 7      1: {0} {1} …   2: {0,1} {2,3} …   4: {0-3} {4-7}   8: {0-7}
//! ```
//!
//! GPUs whose domain or NUMA node is unknown form one of their own: their blocks are aligned by index, and
//! [`Block::is_known`] says that nobody vouches for the links between them.

use std::collections::{BTreeMap, BTreeSet};

use crate::hardware::{Gpu, GpuState, Node};

/// Largest block that is cut.
const BLOCK_MAX: u32 = 256;

/// GPUs of one node that can be one TP group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Their indices, in order of alignment.
    pub gpus: Vec<u32>,
    /// The NUMA node of all of them.
    pub numa: Option<u32>,
    /// Whether they are known to be in one NVLink domain.
    pub is_known: bool,
    /// The same as a set.
    pub(crate) set: GpuSet,
}

/// All aligned blocks of a node, by size.
#[derive(Clone, Debug, Default)]
pub struct Lattice {
    by_size: BTreeMap<u32, Vec<Block>>,
}

impl Lattice {
    /// Cuts a node's GPUs. GPUs in MIG mode are in no block.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let mut domains: BTreeMap<Option<u32>, Vec<(u32, &Gpu)>> = BTreeMap::new();
        for (index, gpu) in &node.gpus {
            domains.entry(gpu.link).or_default().push((*index, gpu));
        }
        let mut by_size = BTreeMap::new();
        let mut size = 1;
        while size <= BLOCK_MAX && size as usize <= node.gpus.len() {
            let mut blocks: Vec<Block> = domains.values().flat_map(|domain| cut(domain, size)).collect();
            blocks.sort_by(|a, b| a.gpus.iter().min().cmp(&b.gpus.iter().min()));
            by_size.insert(size, blocks);
            size *= 2;
        }
        Self { by_size }
    }

    /// Blocks of a size, by their lowest index; none when the size is no power of two.
    #[must_use]
    pub fn blocks(&self, size: u32) -> &[Block] {
        self.by_size.get(&size).map_or(&[], Vec::as_slice)
    }

    /// Size of the largest block around `block` that is wholly in `free`: what a buddy allocator would have to cut.
    pub(crate) fn cut_from(&self, block: &Block, free: GpuSet) -> u32 {
        let size = block.gpus.len() as u32;
        let larger = self.by_size.range(size + 1..);
        let whole = larger.map_while(|(larger, blocks)| {
            let around = blocks.iter().find(|around| around.set.contains_all(block.set))?;
            free.contains_all(around.set).then_some(*larger)
        });
        whole.last().unwrap_or(size)
    }
}

/// The blocks of one size in one NVLink domain.
fn cut(domain: &[(u32, &Gpu)], size: u32) -> Vec<Block> {
    let mut by_numa: BTreeMap<Option<u32>, Vec<(u32, &Gpu)>> = BTreeMap::new();
    for (index, gpu) in domain {
        by_numa.entry(gpu.numa).or_default().push((*index, gpu));
    }
    for list in by_numa.values_mut() {
        list.sort_by_key(|(index, gpu)| (gpu.rail, *index));
    }
    let size = size as usize;
    let has_room = by_numa.values().any(|list| list.len() >= size);
    let lists: Vec<Vec<(u32, &Gpu)>> =
        if has_room { by_numa.into_values().collect() } else { vec![by_numa.into_values().flatten().collect()] };
    let is_whole = |gpus: &&[(u32, &Gpu)]| gpus.iter().all(|(_, gpu)| !matches!(gpu.state, GpuState::Mig(_)));
    lists.iter().flat_map(|list| list.chunks_exact(size)).filter(is_whole).map(block).collect()
}

fn block(gpus: &[(u32, &Gpu)]) -> Block {
    let numas: BTreeSet<Option<u32>> = gpus.iter().map(|(_, gpu)| gpu.numa).collect();
    Block {
        gpus: gpus.iter().map(|(index, _)| *index).collect(),
        numa: numas.first().copied().flatten().filter(|_| numas.len() == 1),
        is_known: gpus.len() == 1 || gpus.iter().all(|(_, gpu)| gpu.link.is_some()),
        set: gpus.iter().map(|(index, _)| *index).collect(),
    }
}

/// A set of GPU indices of one node, below 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuSet([u64; 4]);

impl GpuSet {
    pub(crate) fn insert(&mut self, index: u32) {
        if let Some(word) = self.0.get_mut(index as usize / 64) {
            *word |= 1 << (index % 64);
        }
    }

    pub(crate) fn contains(self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    pub(crate) fn contains_all(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(own, other)| own & other == other)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(own, other)| *own &= other);
        both
    }

    pub(crate) fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

impl FromIterator<u32> for GpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        let mut set = Self::default();
        indices.into_iter().for_each(|index| set.insert(index));
        set
    }
}
