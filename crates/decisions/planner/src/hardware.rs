//! What there is to place on: nodes, their GPUs and host resources. What nobody knows is `None` and stays so: it is
//! neither 0 nor "the same as the neighbour".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_config::Site;
use tidegate_config::site::{GpuGroup, GpuSharing, Launcher, Node as Document};

/// One GPU of the site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId {
    /// Its node.
    pub node: Arc<str>,
    /// Its index on the node.
    pub index: u32,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.index)
    }
}

/// All nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Nodes by name.
    pub nodes: BTreeMap<Arc<str>, Node>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// GPUs by index.
    pub gpus: BTreeMap<u32, Gpu>,
    /// Named sets of them.
    pub groups: Vec<GpuGroup>,
    /// Host memory in bytes.
    pub host_memory: Option<u64>,
    /// NUMA nodes by number; empty: unknown.
    pub numa: BTreeMap<u32, Numa>,
    /// Whether a scheduler that is not ours chooses the GPUs (a device plugin): then nothing shares a GPU.
    pub is_plugin: bool,
    /// Whether replicas may span it and others over RDMA.
    pub rdma: Option<bool>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// NVLink domain: GPUs with the same number reach each other over NVLink.
    pub link: Option<u32>,
    /// PCIe switch with its network card.
    pub rail: Option<u32>,
    /// Whether it can be used.
    pub state: GpuState,
}

/// Whether a GPU can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuState {
    /// Yes.
    #[default]
    Usable,
    /// It is broken.
    Failed,
    /// An unload was not proven.
    Quarantined,
    /// A process that is not ours is on it.
    Foreign(Arc<str>),
    /// It is cut into MIG instances of these profiles: only for deployments that ask for one.
    Mig(Vec<Arc<str>>),
}

/// Host resources of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// Thousandths of CPUs.
    pub cpu_milli: u64,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

impl Hardware {
    /// What the documents say. NVLink domains and rails are unknown there: they come from the node itself.
    #[must_use]
    pub fn of(site: &Site) -> Self {
        let node = |document: &Document| {
            let launcher = document.launcher.unwrap_or(site.launcher);
            Node::of(document, launcher == Launcher::Kubernetes && document.gpu_sharing == GpuSharing::Plugin)
        };
        Self { nodes: site.nodes.iter().map(|(name, document)| (Arc::clone(name), node(document))).collect() }
    }

    /// Every GPU.
    pub fn gpus(&self) -> impl Iterator<Item = (GpuId, &Gpu)> {
        self.nodes.iter().flat_map(|(name, node)| {
            node.gpus.iter().map(|(index, gpu)| (GpuId { node: Arc::clone(name), index: *index }, gpu))
        })
    }

    /// One GPU.
    #[must_use]
    pub fn gpu(&self, id: &GpuId) -> Option<&Gpu> {
        self.nodes.get(&id.node)?.gpus.get(&id.index)
    }
}

impl Node {
    fn of(document: &Document, is_plugin: bool) -> Self {
        let numa_of = |index: u32| document.numa.iter().find(|numa| numa.gpus.contains(&index)).map(|numa| numa.node);
        let gpu = |index| {
            let gpu = Gpu { memory: document.gpu_memory_bytes, numa: numa_of(index), ..Gpu::default() };
            (index, gpu)
        };
        let numa = document.numa.iter().map(|numa| {
            let cpu_milli = 1_000 * numa.cpus.len() as u64;
            (numa.node, Numa { cpu_milli, memory: None })
        });
        Self {
            gpus: (0..document.gpu_count).map(gpu).collect(),
            groups: document.groups.clone(),
            host_memory: document.host_memory_bytes,
            numa: numa.collect(),
            is_plugin,
            rdma: None,
        }
    }

    /// GPUs that are kept free.
    #[must_use]
    pub fn kept_free(&self) -> BTreeSet<u32> {
        self.groups.iter().filter(|group| group.keep_free).flat_map(|group| group.gpus.iter().copied()).collect()
    }
}
