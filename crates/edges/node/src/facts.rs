//! What a node has. What nobody knows is `None` and stays so: neither 0 nor "the same as the neighbour".

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{GpuUuid, InstanceId};

/// What a node has, as of now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The node's name in the documents.
    pub node: String,
    /// Changes with every boot of the machine: process ids mean something only together with it.
    pub boot_id: String,
    /// The GPU driver's version; `None`: there is none.
    pub driver: Option<String>,
    /// GPUs by index.
    pub gpus: Vec<GpuFacts>,
    /// NUMA nodes by number; empty: unknown.
    pub numa: Vec<NumaFacts>,
    /// Bytes of host memory.
    pub host_memory_bytes: u64,
    /// Bytes of it that could be had now without swapping.
    pub host_free_bytes: u64,
    /// Who says what GPUs there are.
    pub source: FactSource,
    /// What guarantees that no process of an engine is left.
    pub guard: GuardFacts,
    /// How memory is proven free here at best.
    pub proof: ProofKind,
    /// What does not add up, for people: a document that differs from the machine, an instance whose record is broken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// Something that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Whether it forbids starts on the node's GPUs.
    pub is_error: bool,
    /// What is wrong.
    pub what: String,
    /// What would mend it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its index: by PCI bus order with NVML, else as the documents count.
    pub index: u32,
    /// Its own name; `None` where the documents alone say that it is there.
    pub uuid: Option<GpuUuid>,
    /// What it is sold as.
    pub product: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// NUMA node. A virtual machine often does not say.
    pub numa: Option<u32>,
    /// NVLink domain: GPUs with the same number reach each other over NVLink.
    pub link: Option<u32>,
    /// PCIe switch, shared with its network card.
    pub rail: Option<u32>,
    /// PCI address.
    pub pci: Option<String>,
    /// MIG instances; empty: it is not cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<MigFacts>,
    /// Bytes in use, by whomever.
    pub used_bytes: Option<u64>,
    /// Processes that have memory on it; `None`: the driver does not say.
    pub processes: Option<Vec<GpuProcess>>,
    /// Whether something may be started on it.
    pub state: GpuState,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigFacts {
    /// Its own name.
    pub uuid: GpuUuid,
    /// How it is cut, such as `3g.71gb`.
    pub profile: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// A process that has memory on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id, as the driver says it.
    pub pid: u32,
    /// Its memory on this GPU; `None`: the driver does not say.
    pub used_bytes: Option<u64>,
    /// The instance it belongs to; `None`: it is not ours.
    pub instance: Option<InstanceId>,
    /// Its command's name, for people.
    pub name: Option<String>,
}

/// Whether something may be started on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GpuState {
    /// Nothing of ours is on it, nor of anybody else.
    Free,
    /// Instances of ours run on it.
    InUse {
        /// Which.
        instances: BTreeSet<InstanceId>,
    },
    /// An instance has ended and its memory is not proven free: nothing is started on it.
    Unproven {
        /// Which.
        instance: InstanceId,
        /// What stands against it.
        why: String,
    },
    /// A process that is not ours has memory on it: nothing is started on it.
    Foreign {
        /// Its name and id.
        by: String,
    },
    /// It cannot be used.
    Failed {
        /// Why.
        why: String,
    },
}

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaFacts {
    /// Its number.
    pub node: u32,
    /// Its CPUs.
    pub cpus: BTreeSet<u32>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// Who says what GPUs there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactSource {
    /// The driver, through NVML.
    Nvml,
    /// The documents alone: GPUs are booking units and nothing can be measured.
    Document,
    /// Nobody: there are none.
    None,
}

/// How memory is proven free at best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofKind {
    /// By figures of each process.
    Nvml,
    /// By totals: the driver does not say who has what.
    Total,
    /// No process is left: memory cannot be seen.
    Processes,
}

/// What guarantees that no process of an engine is left, and what holds its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardFacts {
    /// How all of an engine's processes are found and ended.
    pub kill: KillBy,
    /// Whether a signal can be bound to a process instead of to its number.
    pub pidfd: bool,
    /// Who holds the limit on memory; `None`: nobody can.
    pub memory: Option<LimitBy>,
    /// Who holds an engine on its CPUs.
    pub cpus: LimitBy,
    /// Why it is not the best there is, for people; empty: it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
}

/// How all of an engine's processes are found and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillBy {
    /// A cgroup v2 of its own: the kernel ends all of it at once.
    CgroupV2,
    /// A cgroup v1 of its own: its list is read and killed until it is empty.
    CgroupV1,
    /// The minder adopts orphans and writes down whom it has seen; the rest are found by their environment.
    RecordedTree,
}

/// Who holds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitBy {
    /// A cgroup v2.
    CgroupV2,
    /// A cgroup v1.
    CgroupV1,
    /// Each process has it from its parent; a process that means to can leave.
    Inherited,
}
