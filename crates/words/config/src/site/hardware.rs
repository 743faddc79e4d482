//! GPU nodes and reservations.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::civil::DateTime;

use super::{Class, Launcher};
/// One GPU node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its agent's `host:port`.
    pub address: Option<Arc<str>>,
    /// Whether GPUs are what NVML says or what the document says.
    pub facts: GpuFacts,
    /// Number of GPUs.
    pub gpu_count: u32,
    /// GPU product.
    pub gpu_product: Option<Arc<str>>,
    /// Bytes of one GPU's memory.
    pub gpu_memory_bytes: Option<u64>,
    /// Bytes of host memory.
    pub host_memory_bytes: Option<u64>,
    /// How Pods get GPUs.
    pub gpu_sharing: GpuSharing,
    /// NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// GPU groups.
    pub groups: Vec<GpuGroup>,
    /// Overrides [`Site::launcher`].
    pub launcher: Option<Launcher>,
    /// Overrides [`Site::engine_ports`].
    pub engine_ports: Option<RangeInclusive<u16>>,
}

/// Where GPU facts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFacts {
    /// NVML decides; the document is compared.
    Nvml,
    /// The document decides: GPUs are booking units only.
    Document,
}

/// How Pods get GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuSharing {
    /// The device plugin.
    Plugin,
    /// By UUID, counted in our own ledger.
    Uuid,
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Indices of its GPUs.
    pub gpus: BTreeSet<u32>,
    /// Indices of its CPUs.
    pub cpus: BTreeSet<u32>,
}

/// A named set of a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGroup {
    /// Its name.
    pub name: Arc<str>,
    /// Indices of its GPUs.
    pub gpus: BTreeSet<u32>,
    /// Classes it is for; empty means all.
    pub classes: BTreeSet<Class>,
    /// Kept free for elastic replicas and for replicas of a failed GPU.
    pub keep_free: bool,
}

/// GPUs that are somebody else's for a time. Civil times in the site's zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReservation {
    /// The node.
    pub node: Arc<str>,
    /// Indices of the GPUs.
    pub gpus: BTreeSet<u32>,
    /// First instant, inclusive.
    pub from: DateTime,
    /// Last instant, exclusive.
    pub until: DateTime,
    /// Who has them.
    pub owner: Arc<str>,
}
