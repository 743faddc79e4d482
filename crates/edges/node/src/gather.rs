//! Facts put together: the driver, the kernel and the document.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_config::site::{GpuFacts as Source, Node as Document};

use crate::facts::{FactSource, GpuFacts, GpuState, NumaFacts, Problem};
use crate::machine::Machine;
use crate::nvml::{Nvml, NvmlFault, NvmlGpu};

/// How far a document's memory may be from the machine's, in thousandths.
const OFF_MAX_MILLI: u128 = 30;
const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// What does not change while the driver runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inventory {
    pub(crate) source: FactSource,
    pub(crate) driver: Option<String>,
    pub(crate) gpus: Vec<GpuFacts>,
    pub(crate) numa: Vec<NumaFacts>,
    pub(crate) problems: Vec<Problem>,
}

/// Looks at the machine. A document that says `facts: document` decides alone; else the driver does, and the document is
/// compared with it.
pub(crate) fn inventory(nvml: Option<&dyn Nvml>, machine: &Machine, document: Option<&Document>) -> Inventory {
    let numa = machine.numa();
    if let Some(document) = document.filter(|document| document.facts == Source::Document) {
        let gpus = (0..document.gpu_count).map(|index| of_document(document, index)).collect();
        let numa = if document.numa.is_empty() { numa } else { numa_of_document(document) };
        return Inventory { source: FactSource::Document, driver: None, gpus, numa, problems: Vec::new() };
    }
    let found = nvml.map(|nvml| Ok::<_, NvmlFault>((nvml.driver()?, nvml.gpus()?)));
    let mut problems = Vec::new();
    let (driver, gpus) = match found {
        Some(Ok((driver, gpus))) => (Some(driver), of_nvml(gpus, machine)),
        Some(Err(fault)) => {
            problems.push(error(fault.to_string(), None));
            (None, Vec::new())
        }
        None => (None, Vec::new()),
    };
    if let Some(document) = document {
        problems.extend(compare(document, &gpus, machine.memory().0));
    }
    let source = if driver.is_some() { FactSource::Nvml } else { FactSource::None };
    Inventory { source, driver, gpus, numa, problems }
}

fn error(what: String, hint: Option<String>) -> Problem {
    Problem { is_error: true, what, hint }
}

fn of_document(document: &Document, index: u32) -> GpuFacts {
    GpuFacts {
        index,
        uuid: None,
        product: document.gpu_product.as_deref().map(str::to_owned),
        memory_bytes: document.gpu_memory_bytes,
        numa: document.numa.iter().find(|numa| numa.gpus.contains(&index)).map(|numa| numa.node),
        link: None,
        rail: None,
        pci: None,
        mig: Vec::new(),
        used_bytes: None,
        processes: None,
        state: GpuState::Free,
    }
}

fn numa_of_document(document: &Document) -> Vec<NumaFacts> {
    let numa = |numa: &tidegate_config::site::NumaNode| NumaFacts {
        node: numa.node,
        cpus: numa.cpus.clone(),
        memory_bytes: None,
    };
    document.numa.iter().map(numa).collect()
}

fn of_nvml(gpus: Vec<NvmlGpu>, machine: &Machine) -> Vec<GpuFacts> {
    let links = links(&gpus);
    let rails = machine.rails(&gpus.iter().map(|gpu| gpu.pci.as_deref()).collect::<Vec<_>>());
    let facts = gpus.into_iter().zip(rails).map(|(gpu, rail)| GpuFacts {
        index: gpu.index,
        numa: gpu.pci.as_deref().and_then(|pci| machine.numa_of(pci)),
        link: links.get(&gpu.index).copied(),
        rail,
        uuid: gpu.uuid,
        product: gpu.product,
        memory_bytes: gpu.memory_bytes,
        pci: gpu.pci,
        mig: gpu.mig,
        used_bytes: None,
        processes: None,
        state: GpuState::Free,
    });
    facts.collect()
}

/// NVLink domains, numbered by their lowest GPU: GPUs of which each reaches each other. One that is linked with some of a
/// domain only (a ring, a pair of pairs) is not in it.
fn links(gpus: &[NvmlGpu]) -> BTreeMap<u32, u32> {
    let peers: BTreeMap<u32, BTreeSet<u32>> =
        gpus.iter().filter_map(|gpu| Some((gpu.index, gpu.linked.as_ref()?.iter().copied().collect()))).collect();
    let mut domains: Vec<BTreeSet<u32>> = Vec::new();
    for (index, own) in &peers {
        let reaches = |domain: &BTreeSet<u32>| {
            domain
                .iter()
                .all(|other| own.contains(other) && peers.get(other).is_some_and(|theirs| theirs.contains(index)))
        };
        match domains.iter_mut().find(|domain| reaches(domain)) {
            Some(domain) => {
                domain.insert(*index);
            }
            None => domains.push(BTreeSet::from([*index])),
        }
    }
    let numbered = domains.iter().zip(0..);
    numbered.flat_map(|(domain, number)| domain.iter().map(move |index| (*index, number))).collect()
}

/// What a document says and the machine does not.
fn compare(document: &Document, gpus: &[GpuFacts], host_bytes: u64) -> Vec<Problem> {
    let mut problems = Vec::new();
    if document.gpu_count as usize != gpus.len() {
        let what = format!("the document has {} GPUs, the driver {}", document.gpu_count, gpus.len());
        problems.push(error(what, Some("correct Node.spec.gpus.count, or write facts: document".to_owned())));
    }
    for gpu in gpus {
        if let (Some(said), Some(is)) = (&document.gpu_product, &gpu.product)
            && !is.to_ascii_lowercase().contains(&said.to_ascii_lowercase())
        {
            problems.push(error(format!("gpu {}: the document says {said}, the driver {is}", gpu.index), None));
        }
        if let (Some(said), Some(is)) = (document.gpu_memory_bytes, gpu.memory_bytes) {
            problems.extend(off(&format!("gpu {}: memory", gpu.index), said, is));
        }
    }
    if let Some(said) = document.host_memory_bytes.filter(|said| *said > host_bytes) {
        problems.extend(off("host memory", said, host_bytes));
    }
    problems.sort_by(|a, b| (&a.what, &a.hint).cmp(&(&b.what, &b.hint)));
    problems
}

fn off(what: &str, said: u64, is: u64) -> Option<Problem> {
    let is_far = |said: u128| said.abs_diff(u128::from(is)) * 1_000 > u128::from(is) * OFF_MAX_MILLI;
    if !is_far(u128::from(said)) {
        return None;
    }
    let in_gib = u128::from(said) * u128::from(GIB) / u128::from(GB);
    let hint = match said.is_multiple_of(GB) && !is_far(in_gib) {
        true => format!("write {}GiB", said / GB),
        false => format!("write {}GB, or remove it: the machine decides", is.div_ceil(GB)),
    };
    Some(error(format!("{what}: the document says {said} bytes, the machine has {is}: more than 3 % off"), Some(hint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::scripted::{B300_BYTES, H200_BYTES, Scripted};
    use tidegate_config::site::{GpuSharing, NumaNode};

    fn document(count: u32, product: &str, memory_bytes: u64) -> Document {
        Document {
            address: None,
            facts: Source::Nvml,
            gpu_count: count,
            gpu_product: Some(product.into()),
            gpu_memory_bytes: Some(memory_bytes),
            host_memory_bytes: None,
            gpu_sharing: GpuSharing::Plugin,
            numa: Vec::new(),
            groups: Vec::new(),
            launcher: None,
            engine_ports: None,
        }
    }

    fn nowhere() -> Machine {
        Machine { sys: "/proc/none".into(), proc: "/proc/none".into() }
    }

    #[test]
    fn a_board_of_eight_is_one_domain_whose_numa_nodes_are_not_guessed() {
        let inventory = inventory(Some(&Scripted::b300_x8()), &nowhere(), Some(&document(8, "B300", 288 * GB)));
        assert_eq!((inventory.source, inventory.driver.as_deref()), (FactSource::Nvml, Some("580.95.05")));
        assert_eq!(inventory.problems, []);
        assert_eq!(inventory.gpus.len(), 8);
        assert!(inventory.gpus.iter().all(|gpu| gpu.link == Some(0) && gpu.numa.is_none() && gpu.rail.is_none()));
        assert_eq!(inventory.gpus[3].memory_bytes, Some(B300_BYTES));
    }

    #[test]
    fn memory_that_was_meant_in_gib_is_said_so() {
        let nvml = Scripted::h200();
        let problems = |said| inventory(Some(&nvml), &nowhere(), Some(&document(1, "h200", said))).problems;
        let found = problems(141 * GB);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].hint.as_deref(), Some("write 141GiB"));
        assert!(found[0].is_error);
        assert_eq!(problems(141 * GIB), [], "141 GiB are within 3 %");
        let found = problems(80 * GB);
        assert_eq!(found[0].hint.as_deref(), Some("write 151GB, or remove it: the machine decides"));
        // At the bound, and a byte above it.
        let most = H200_BYTES + H200_BYTES * 3 / 100;
        assert_eq!(problems(most), []);
        assert_eq!(problems(most + 1).len(), 1);
    }

    #[test]
    fn what_the_document_alone_says_is_a_booking_unit() {
        let mut document = document(2, "any", GB);
        document.facts = Source::Document;
        document.numa = vec![NumaNode { node: 3, gpus: BTreeSet::from([1]), cpus: BTreeSet::from([0]) }];
        let inventory = inventory(Some(&Scripted::h200()), &nowhere(), Some(&document));
        assert_eq!((inventory.source, inventory.driver), (FactSource::Document, None));
        let numa: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.numa).collect();
        assert_eq!(numa, [None, Some(3)]);
        assert_eq!(inventory.numa[0].cpus, BTreeSet::from([0]));
    }

    #[test]
    fn a_machine_that_differs_from_its_document_is_an_error() {
        let wrong = document(8, "B300", 288 * GB);
        let found = inventory(Some(&Scripted::h200()), &nowhere(), Some(&wrong)).problems;
        assert_eq!(found.len(), 3, "{found:?}");
        let found = inventory(None, &nowhere(), Some(&wrong));
        assert_eq!((found.source, found.problems.len()), (FactSource::None, 1));
        let nvml = Scripted::h200();
        nvml.set_away(true);
        assert!(inventory(Some(&nvml), &nowhere(), None).problems[0].what.contains("driver is gone"));
    }

    #[test]
    fn six_and_two_gpus_are_two_domains_and_a_chain_is_none() {
        let nvml = Scripted::b300_x8();
        for index in 0..8 {
            let own = if index < 6 { 0..6 } else { 6..8 };
            nvml.edit(index, |gpu| gpu.linked = Some(own.filter(|other| *other != index).collect()));
        }
        let domains = |nvml: &Scripted| -> Vec<Option<u32>> {
            inventory(Some(nvml), &nowhere(), None).gpus.iter().map(|gpu| gpu.link).collect()
        };
        let (a, b) = (Some(0), Some(1));
        assert_eq!(domains(&nvml), [a, a, a, a, a, a, b, b]);
        // 0 - 1 - 2: 0 does not reach 2. What the driver does not say is unknown.
        for (index, linked) in [(0, Some(vec![1])), (1, Some(vec![0, 2])), (2, Some(vec![1])), (3, None)] {
            nvml.edit(index, |gpu| gpu.linked = linked);
        }
        assert_eq!(domains(&nvml)[..4], [Some(0), Some(0), Some(1), None]);
    }
}
