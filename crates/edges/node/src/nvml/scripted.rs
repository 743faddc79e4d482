//! A GPU driver that says what a test wants. The machines are composed from public figures; nothing was recorded.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::{GpuLook, Nvml, NvmlFault, NvmlGpu};
use crate::id::GpuUuid;

const MIB: u64 = 1024 * 1024;
/// What a GPU has in use with nobody on it.
pub const IDLE_BYTES: u64 = 4 * MIB;
/// A B300's memory: sold as 288 GB.
pub const B300_BYTES: u64 = 275_040 * MIB;
/// An H200's memory: sold as 141 GB, which are GiB.
pub const H200_BYTES: u64 = 143_771 * MIB;

/// The driver.
#[derive(Debug)]
pub struct Scripted(Mutex<Script>);

#[derive(Debug, Default)]
struct Script {
    gpus: Vec<NvmlGpu>,
    /// Memory of processes, by GPU.
    processes: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// Memory that no process is listed for, by GPU.
    leaked: BTreeMap<u32, u64>,
    figures: Figures,
    failed: BTreeMap<u32, String>,
    is_away: bool,
    looks: u64,
}

/// What the driver says of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Figures {
    /// Who they are and what each has.
    #[default]
    Each,
    /// Who they are.
    Who,
    /// Nothing.
    None,
}

impl Scripted {
    /// A driver with these GPUs.
    #[must_use]
    pub fn new(gpus: Vec<NvmlGpu>) -> Self {
        Self(Mutex::new(Script { gpus, ..Script::default() }))
    }

    /// A board of eight B300, every one linked with every other.
    #[must_use]
    pub fn b300_x8() -> Self {
        Self::new((0..8).map(|index| gpu(index, 8, "NVIDIA B300 SXM6 AC", B300_BYTES)).collect())
    }

    /// One H200.
    #[must_use]
    pub fn h200() -> Self {
        Self::new(vec![gpu(0, 1, "NVIDIA H200", H200_BYTES)])
    }

    /// A driver without GPUs.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Changes what is said of a GPU.
    pub fn edit(&self, index: u32, edit: impl FnOnce(&mut NvmlGpu)) {
        if let Some(gpu) = self.0.lock().gpus.iter_mut().find(|gpu| gpu.index == index) {
            edit(gpu);
        }
    }

    /// A process has memory on a GPU; none: it has left it.
    pub fn set_process(&self, gpu: u32, pid: u32, bytes: u64) {
        let mut script = self.0.lock();
        let processes = script.processes.entry(gpu).or_default();
        if bytes == 0 {
            processes.remove(&pid);
        } else {
            processes.insert(pid, bytes);
        }
    }

    /// Memory of a GPU is in use that no process is listed for.
    pub fn set_leaked(&self, gpu: u32, bytes: u64) {
        self.0.lock().leaked.insert(gpu, bytes);
    }

    /// What it says of processes from now on.
    pub fn set_figures(&self, figures: Figures) {
        self.0.lock().figures = figures;
    }

    /// A GPU has fallen off the bus, or is back.
    pub fn set_failed(&self, gpu: u32, why: Option<&str>) {
        let mut script = self.0.lock();
        match why {
            Some(why) => script.failed.insert(gpu, why.to_owned()),
            None => script.failed.remove(&gpu),
        };
    }

    /// The driver does not answer, or answers again.
    pub fn set_away(&self, is_away: bool) {
        self.0.lock().is_away = is_away;
    }

    /// How often somebody looked.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.0.lock().looks
    }
}

fn gpu(index: u32, count: u32, product: &str, memory_bytes: u64) -> NvmlGpu {
    NvmlGpu {
        index,
        uuid: Some(GpuUuid::from(&*format!("GPU-00000000-0000-0000-0000-{index:012}"))),
        product: Some(product.to_owned()),
        memory_bytes: Some(memory_bytes),
        pci: Some(format!("0000:{:02x}:00.0", 0x17 + 0x10 * index)),
        linked: Some((0..count).filter(|other| *other != index).collect()),
        mig: Vec::new(),
    }
}

impl Nvml for Scripted {
    fn driver(&self) -> Result<String, NvmlFault> {
        let script = self.0.lock();
        if script.is_away { Err(NvmlFault("driver is gone".to_owned())) } else { Ok("580.95.05".to_owned()) }
    }

    fn gpus(&self) -> Result<Vec<NvmlGpu>, NvmlFault> {
        let script = self.0.lock();
        if script.is_away { Err(NvmlFault("driver is gone".to_owned())) } else { Ok(script.gpus.clone()) }
    }

    fn look(&self) -> Result<Vec<GpuLook>, NvmlFault> {
        let mut script = self.0.lock();
        script.looks += 1;
        if script.is_away {
            return Err(NvmlFault("driver is gone".to_owned()));
        }
        let look = |gpu: &NvmlGpu| {
            let index = gpu.index;
            let processes = script.processes.get(&index).cloned().unwrap_or_default();
            let used = processes.values().sum::<u64>() + script.leaked.get(&index).unwrap_or(&0) + IDLE_BYTES;
            let listed = || processes.iter().map(|(pid, bytes)| (*pid, *bytes));
            GpuLook {
                index,
                used_bytes: Some(used),
                processes: match script.figures {
                    Figures::Each => Some(listed().map(|(pid, bytes)| (pid, Some(bytes))).collect()),
                    Figures::Who => Some(listed().map(|(pid, _)| (pid, None)).collect()),
                    Figures::None => None,
                },
                failed: script.failed.get(&index).cloned(),
            }
        };
        Ok(script.gpus.iter().map(look).collect())
    }
}
