//! Nodes and Reservations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::url::host_port;
use super::{Documents, check_name, within};
use crate::at::{At, Name, Report};
use crate::bounds::GPUS_MAX;
use crate::raw::node as raw;
use crate::raw::{Class as RawClass, reservation as raw_reservation};
use crate::site::{GpuFacts, GpuGroup, GpuReservation, GpuSharing, Node, NumaNode};

/// Checks all Nodes.
pub(super) fn nodes(documents: &Documents, report: &mut Report) -> BTreeMap<Name, Node> {
    let mut nodes = BTreeMap::new();
    for (doc, spec) in documents.nodes.readable() {
        let root = At::root(&doc.origin);
        if let Some(node) = node(&root.key("spec"), spec, report) {
            nodes.insert(Arc::clone(&doc.name), node);
        }
    }
    nodes
}

fn node(at: &At<'_>, spec: &raw::Node, report: &mut Report) -> Option<Node> {
    let raw::Node { address, facts, gpus, host_memory, gpu_sharing, numa, groups, launcher, engine_ports } = spec;
    if let Some(address) = address
        && host_port(address).is_none_or(|(_, port)| port.is_none())
    {
        report.error_hint(&at.key("address"), "expected the host and port of an agent", "write HOST:8950".to_owned());
    }
    let gpus_at = at.key("gpus");
    let gpus = report.required(at, "gpus", gpus.as_ref())?;
    let count = report.required(&gpus_at, "count", gpus.count.as_ref()).copied();
    let count = count.and_then(|count| within(&gpus_at.key("count"), count, 1, GPUS_MAX, report))?;
    Some(Node {
        address: address.as_deref().map(Name::from),
        facts: match facts {
            None | Some(raw::Facts::Nvml) => GpuFacts::Nvml,
            Some(raw::Facts::Document) => GpuFacts::Document,
        },
        gpu_count: count,
        gpu_product: gpus.product.as_deref().map(Name::from),
        gpu_memory_bytes: gpus.memory.map(|bytes| bytes.0),
        host_memory_bytes: host_memory.map(|bytes| bytes.0),
        gpu_sharing: match gpu_sharing {
            None | Some(raw::Sharing::Plugin) => GpuSharing::Plugin,
            Some(raw::Sharing::Uuid) => GpuSharing::Uuid,
        },
        numa: self::numa(&at.key("numa"), numa, count, report),
        groups: self::groups(&at.key("groups"), groups, count, report),
        launcher: launcher.map(super::raw::site::Launcher::checked),
        engine_ports: engine_ports.as_ref().map(|ports| ports.0.clone()),
    })
}

/// Takes indices that nobody else has, each below `count`.
fn take(at: &At<'_>, what: &str, indices: &BTreeSet<u32>, count: u32, taken: &mut BTreeSet<u32>, report: &mut Report) {
    for index in indices {
        if *index >= count {
            report.error(at, format!("{what} {index} does not exist: there are {count}, from 0"));
        } else if !taken.insert(*index) {
            report.error(at, format!("{what} {index} is in another one already"));
        }
    }
}

fn numa(at: &At<'_>, raw: &[raw::Numa], gpu_count: u32, report: &mut Report) -> Vec<NumaNode> {
    let (mut numbers, mut gpus_taken, mut cpus_taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut nodes = Vec::new();
    for (index, raw::Numa { node, gpus, cpus }) in raw.iter().enumerate() {
        let at = at.index(index);
        let number = report.required(&at, "node", node.as_ref());
        let gpus = report.required(&at, "gpus", gpus.as_ref());
        let cpus = report.required(&at, "cpus", cpus.as_ref());
        let (Some(&number), Some(gpus), Some(cpus)) = (number, gpus, cpus) else { continue };
        if !numbers.insert(number) {
            report.error(&at.key("node"), format!("NUMA node {number} stands twice"));
        }
        take(&at.key("gpus"), "GPU", &gpus.0, gpu_count, &mut gpus_taken, report);
        take(&at.key("cpus"), "CPU", &cpus.0, crate::bounds::CPUS_MAX, &mut cpus_taken, report);
        nodes.push(NumaNode { node: number, gpus: gpus.0.clone(), cpus: cpus.0.clone() });
    }
    nodes
}

fn groups(at: &At<'_>, raw: &[raw::Group], gpu_count: u32, report: &mut Report) -> Vec<GpuGroup> {
    let (mut names, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let mut groups = Vec::new();
    for (index, raw::Group { name, gpus, classes, keep_free }) in raw.iter().enumerate() {
        let at = at.index(index);
        let name = report.required(&at, "name", name.as_ref());
        let gpus = report.required(&at, "gpus", gpus.as_ref());
        let (Some(name), Some(gpus)) = (name, gpus) else { continue };
        check_name(&at.key("name"), name, report);
        if !names.insert(name) {
            report.error(&at.key("name"), format!("another group of this node has the name `{name}`"));
        }
        take(&at.key("gpus"), "GPU", &gpus.0, gpu_count, &mut taken, report);
        groups.push(GpuGroup {
            name: Name::from(name.as_str()),
            gpus: gpus.0.clone(),
            classes: classes.iter().copied().map(RawClass::checked).collect(),
            keep_free: keep_free.unwrap_or(false),
        });
    }
    groups
}

/// Checks all Reservations: each on GPUs that exist, no GPU twice at one time.
pub(super) fn reservations(documents: &Documents, report: &mut Report) -> BTreeMap<Name, GpuReservation> {
    let mut reservations: BTreeMap<Name, GpuReservation> = BTreeMap::new();
    for (doc, spec) in documents.reservations.readable() {
        let root = At::root(&doc.origin);
        let at = root.key("spec");
        let Some(reservation) = reservation(&at, spec, documents, report) else { continue };
        let overlap = reservations.iter().find(|(_, other)| {
            let is_same_time = other.from < reservation.until && reservation.from < other.until;
            other.node == reservation.node && is_same_time && !other.gpus.is_disjoint(&reservation.gpus)
        });
        if let Some((name, other)) = overlap {
            let message =
                format!("GPUs are reserved for {} in part of that time, by Reservation `{name}`", other.owner);
            report.error(&at.key("gpus"), message);
        }
        reservations.insert(Arc::clone(&doc.name), reservation);
    }
    reservations
}

fn reservation(
    at: &At<'_>,
    spec: &raw_reservation::Reservation,
    documents: &Documents,
    report: &mut Report,
) -> Option<GpuReservation> {
    let raw_reservation::Reservation { node, gpus, from, until, owner } = spec;
    let node = report.required(at, "node", node.as_ref());
    let gpus = report.required(at, "gpus", gpus.as_ref());
    let from = report.required(at, "from", from.as_ref());
    let until = report.required(at, "until", until.as_ref());
    let owner = report.required(at, "owner", owner.as_ref());
    if let Some(node) = node {
        let doc = documents.nodes.get(node);
        if doc.is_none() && !documents.may_have(node) {
            report.unknown(&at.key("node"), "Node", node, documents.nodes.names());
        }
        let spec = doc.and_then(|doc| doc.spec.as_ref());
        let count = spec.and_then(|spec| spec.gpus.as_ref()).and_then(|gpus| gpus.count);
        if let (Some(gpus), Some(count)) = (gpus, count) {
            take(&at.key("gpus"), "GPU", &gpus.0, count, &mut BTreeSet::new(), report);
        }
    }
    if let (Some(from), Some(until)) = (from, until)
        && from >= until
    {
        report.error(&at.key("until"), "ends before it begins");
    }
    Some(GpuReservation {
        node: Name::from(node?.as_str()),
        gpus: gpus?.0.clone(),
        from: from?.0,
        until: until?.0,
        owner: Name::from(owner?.as_str()),
    })
}
