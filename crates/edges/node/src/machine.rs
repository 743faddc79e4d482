//! The machine as its kernel shows it: NUMA nodes, PCI devices, host memory. What is not written there is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::facts::NumaFacts;

/// Highest number of a CPU that is believed.
const CPU_MAX: u32 = 65_535;
/// PCI classes of network cards: Ethernet and InfiniBand.
const NETWORK_CLASSES: [&str; 2] = ["0x0200", "0x0207"];

/// Where the kernel shows the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into() }
    }
}

impl Machine {
    /// NUMA nodes by number.
    pub(crate) fn numa(&self) -> Vec<NumaFacts> {
        let folder = self.sys.join("devices/system/node");
        let mut nodes = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else { continue };
            let cpus = read(&entry.path().join("cpulist")).map(|list| ranges(&list)).unwrap_or_default();
            let memory = read(&entry.path().join("meminfo")).and_then(|text| kib(&text, "MemTotal:"));
            nodes.push(NumaFacts { node, cpus, memory_bytes: memory });
        }
        nodes.sort_by_key(|numa| numa.node);
        nodes
    }

    /// Bytes of host memory: in all, and what could be had now.
    pub(crate) fn memory(&self) -> (u64, u64) {
        let text = read(&self.proc.join("meminfo")).unwrap_or_default();
        (kib(&text, "MemTotal:").unwrap_or(0), kib(&text, "MemAvailable:").unwrap_or(0))
    }

    /// NUMA node of a PCI device. A virtual machine says -1, which is no node.
    pub(crate) fn numa_of(&self, pci: &str) -> Option<u32> {
        read(&self.device(pci).join("numa_node"))?.parse().ok()
    }

    fn device(&self, pci: &str) -> PathBuf {
        self.sys.join("bus/pci/devices").join(pci)
    }

    /// The PCIe switch of each of these devices, numbered from 0 in the order of the tree, if it has a network card on it
    /// too. A device that hangs on the root port alone, or among no network card, has none.
    pub(crate) fn rails(&self, devices: &[Option<&str>]) -> Vec<Option<u32>> {
        let switch = |pci: &str| switch_of(&fs::canonicalize(self.device(pci)).ok()?);
        let own: Vec<Option<PathBuf>> = devices.iter().map(|pci| switch((*pci)?)).collect();
        let networks: BTreeSet<PathBuf> = self.network_cards().iter().filter_map(|pci| switch(pci)).collect();
        let shared: BTreeSet<&PathBuf> = own.iter().flatten().filter(|switch| networks.contains(*switch)).collect();
        let numbers: BTreeMap<&PathBuf, u32> = shared.into_iter().zip(0..).collect();
        own.iter().map(|switch| numbers.get(switch.as_ref()?).copied()).collect()
    }

    fn network_cards(&self) -> Vec<String> {
        let entries = fs::read_dir(self.sys.join("bus/pci/devices")).into_iter().flatten().flatten();
        let cards = entries.filter(|entry| {
            let class = read(&entry.path().join("class")).unwrap_or_default();
            NETWORK_CLASSES.iter().any(|network| class.starts_with(network))
        });
        cards.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

/// The upstream port of the outermost switch above a device:
/// `…/pci0000:15/<root port>/<upstream port>/<downstream port>/<device>`.
fn switch_of(device: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = device.components().collect();
    let root = parts.iter().position(|part| part.as_os_str().to_string_lossy().starts_with("pci"))?;
    // Root port, upstream, downstream, and the device itself.
    let has_switch = parts.len() > root + 4;
    has_switch.then(|| parts[..=root + 2].iter().collect())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// `0-3,8,10-11`; what is not of that form is passed over.
fn ranges(list: &str) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            all.extend(first..=last.min(CPU_MAX));
        }
    }
    all
}

/// A line `NAME  123 kB`, also with words before the name.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().any(|word| word == name))?;
    let (_, rest) = line.split_once(name)?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_within_bounds() {
        assert_eq!(ranges("0-2,8\n"), BTreeSet::from([0, 1, 2, 8]));
        assert_eq!(ranges("x,3-y,5-4,"), BTreeSet::new());
        assert_eq!(ranges("65535-4294967295"), BTreeSet::from([CPU_MAX]));
    }

    #[test]
    fn a_node_that_is_minus_one_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine { sys: folder.path().into(), proc: folder.path().into() };
        let device = folder.path().join("bus/pci/devices/0000:17:00.0");
        fs::create_dir_all(&device).unwrap();
        assert_eq!(machine.numa_of("0000:17:00.0"), None);
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(machine.numa_of("0000:17:00.0"), None);
        fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(machine.numa_of("0000:17:00.0"), Some(1));
        assert_eq!((machine.numa(), machine.memory()), (Vec::new(), (0, 0)));
    }

    #[test]
    fn a_rail_is_a_switch_with_a_network_card() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine { sys: folder.path().into(), proc: folder.path().into() };
        let links = folder.path().join("bus/pci/devices");
        fs::create_dir_all(&links).unwrap();
        let device = |path: &str, class: &str| {
            let real = folder.path().join("devices").join(path);
            fs::create_dir_all(&real).unwrap();
            fs::write(real.join("class"), class).unwrap();
            let name = real.file_name().unwrap().to_owned();
            std::os::unix::fs::symlink(&real, links.join(name)).unwrap();
        };
        device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "0x030200");
        device("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", "0x020700");
        device("pci0000:37/0000:37:01.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0", "0x030200");
        device("pci0000:59/0000:59:01.0/0000:5a:00.0", "0x030200");
        let rails = machine.rails(&[Some("0000:18:00.0"), Some("0000:3a:00.0"), Some("0000:5a:00.0"), None]);
        assert_eq!(rails, [Some(0), None, None, None]);
    }
}
