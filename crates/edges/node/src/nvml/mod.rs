//! What the GPU driver says, behind a trait: everything above it builds, runs and is tested without a GPU.

mod library;
#[cfg(feature = "scripted")]
pub mod scripted;

use std::fmt;

pub use library::Library;

use crate::facts::MigFacts;
use crate::id::GpuUuid;

/// The driver did not say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gpu driver: {0}")]
pub struct NvmlFault(pub String);

/// What does not change about a GPU while the driver runs. What the driver does not say is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlGpu {
    /// Its index, by PCI bus order.
    pub index: u32,
    /// Its own name.
    pub uuid: Option<GpuUuid>,
    /// What it is sold as.
    pub product: Option<String>,
    /// Bytes of memory, what the driver keeps for itself included.
    pub memory_bytes: Option<u64>,
    /// PCI address, as `/sys/bus/pci/devices` writes it.
    pub pci: Option<String>,
    /// Indices of GPUs that it reaches over NVLink; `None`: the driver does not say.
    pub linked: Option<Vec<u32>>,
    /// MIG instances.
    pub mig: Vec<MigFacts>,
}

/// What one look at a GPU saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuLook {
    /// Its index.
    pub index: u32,
    /// Bytes in use by whomever, without what the driver keeps for itself.
    pub used_bytes: Option<u64>,
    /// Processes with memory on it, each with its bytes as far as the driver says; `None`: it says nothing.
    pub processes: Option<Vec<(u32, Option<u64>)>>,
    /// Why it cannot be used; `None`: it can.
    pub failed: Option<String>,
}

/// The GPU driver. Calls block for milliseconds.
pub trait Nvml: Send + Sync + fmt::Debug {
    /// Its version.
    ///
    /// # Errors
    /// [`NvmlFault`].
    fn driver(&self) -> Result<String, NvmlFault>;

    /// Every GPU.
    ///
    /// # Errors
    /// [`NvmlFault`].
    fn gpus(&self) -> Result<Vec<NvmlGpu>, NvmlFault>;

    /// A look at every GPU, by index.
    ///
    /// # Errors
    /// [`NvmlFault`].
    fn look(&self) -> Result<Vec<GpuLook>, NvmlFault>;
}
