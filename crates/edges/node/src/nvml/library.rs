//! The driver's own library, found at run time.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{PciInfo, ProcessInfo};

use super::{GpuLook, Nvml, NvmlFault, NvmlGpu};
use crate::facts::MigFacts;
use crate::id::GpuUuid;

/// The name that comes with the driver; the one without a number comes with the toolkit only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// NVML.
#[derive(Debug)]
pub struct Library(nvml_wrapper::Nvml);

/// A GPU by index, or why it cannot be asked.
type Found<'a> = (u32, Result<Device<'a>, NvmlError>);

impl Library {
    /// Loads the driver's library.
    ///
    /// # Errors
    /// When there is none, or it finds no driver.
    pub fn load() -> Result<Self, NvmlFault> {
        nvml_wrapper::Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map(Self).map_err(fault)
    }

    fn devices(&self) -> Result<Vec<Found<'_>>, NvmlFault> {
        let count = self.0.device_count().map_err(fault)?;
        Ok((0..count).map(|index| (index, self.0.device_by_index(index))).collect())
    }
}

fn fault(error: NvmlError) -> NvmlFault {
    NvmlFault(error.to_string())
}

impl Nvml for Library {
    fn driver(&self) -> Result<String, NvmlFault> {
        self.0.sys_driver_version().map_err(fault)
    }

    fn gpus(&self) -> Result<Vec<NvmlGpu>, NvmlFault> {
        let devices = self.devices()?;
        let usable = || devices.iter().filter_map(|(index, device)| Some((*index, device.as_ref().ok()?)));
        let gpu = |(index, device): &Found<'_>| {
            let device = device.as_ref().ok();
            NvmlGpu {
                index: *index,
                uuid: device.and_then(|device| device.uuid().ok()).map(|uuid| GpuUuid::from(&*uuid)),
                product: device.and_then(|device| device.name().ok()),
                memory_bytes: device.and_then(|device| device.memory_info().ok()).map(|memory| memory.total),
                pci: device.and_then(|device| device.pci_info().ok()).map(|pci| pci_address(&pci)),
                linked: device.and_then(|device| linked(device, usable().filter(|(other, _)| other != index))),
                mig: device.map(mig).unwrap_or_default(),
            }
        };
        Ok(devices.iter().map(gpu).collect())
    }

    fn look(&self) -> Result<Vec<GpuLook>, NvmlFault> {
        let looks = self.devices()?.into_iter().map(|(index, device)| match device {
            Ok(device) => look(index, &device),
            Err(error) => GpuLook { index, failed: Some(error.to_string()), ..GpuLook::default() },
        });
        Ok(looks.collect())
    }
}

fn look(index: u32, device: &Device<'_>) -> GpuLook {
    let memory = device.memory_info();
    let failed = match &memory {
        Err(error @ (NvmlError::GpuLost | NvmlError::CorruptedInfoROM | NvmlError::IrqIssue)) => {
            Some(error.to_string())
        }
        Ok(_) | Err(_) => None,
    };
    // A process may be among both, for the same memory.
    let processes = device.running_compute_processes().ok().map(|compute| {
        let graphics = device.running_graphics_processes().unwrap_or_default();
        let mut found: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for process in graphics.into_iter().chain(compute) {
            let used = used(&process);
            let known = found.entry(process.pid).or_insert(used);
            *known = (*known).max(used);
        }
        found.into_iter().collect()
    });
    GpuLook { index, used_bytes: memory.ok().map(|memory| memory.used), processes, failed }
}

const fn used(process: &ProcessInfo) -> Option<u64> {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

/// `None` as soon as the driver does not say it of one of them.
fn linked<'a>(device: &Device<'_>, others: impl Iterator<Item = (u32, &'a Device<'a>)>) -> Option<Vec<u32>> {
    let mut linked = Vec::new();
    for (index, other) in others {
        match device.p2p_status(other, P2pCapabilitiesIndex::NvLink) {
            Ok(P2pStatus::Ok) => linked.push(index),
            Ok(P2pStatus::Unknown) | Err(_) => return None,
            Ok(_) => {}
        }
    }
    Some(linked)
}

fn mig(device: &Device<'_>) -> Vec<MigFacts> {
    let count = device.mig_device_count().unwrap_or(0);
    let instances = (0..count).filter_map(|index| device.mig_device_by_index(index).ok());
    let facts = instances.filter_map(|instance| {
        let name = instance.name().ok();
        // "NVIDIA H200 MIG 3g.71gb"
        let profile = name.as_deref().and_then(|name| name.rsplit_once("MIG ")).map(|(_, profile)| profile.to_owned());
        let memory_bytes = instance.memory_info().ok().map(|memory| memory.total);
        Some(MigFacts { uuid: GpuUuid::from(&*instance.uuid().ok()?), profile, memory_bytes })
    });
    facts.collect()
}

/// The driver writes eight digits of the domain, the kernel four.
fn pci_address(pci: &PciInfo) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
}
