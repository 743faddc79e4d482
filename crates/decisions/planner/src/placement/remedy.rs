//! The cheapest things that would make a set fit. Each one that is named has been tried.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tidegate_core::DeploymentName;

use super::{Request, Situation, place};
use crate::hardware::{Gpu, GpuState, Hardware, Node};
use crate::need::Need;

/// Most GPUs that are tried in addition.
const MORE_GPUS_MAX: u32 = 16;

/// Something that makes a set fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Not to keep a group free.
    UseKeptFree {
        /// The node.
        node: Arc<str>,
        /// The group.
        group: Arc<str>,
    },
    /// A smaller TP that its profile passed.
    SmallerTp {
        /// The deployment.
        deployment: DeploymentName,
        /// The tensor-parallel size.
        tp: u32,
    },
    /// To take deployments out of the set; by rising priority.
    Drop(Vec<DeploymentName>),
    /// More GPUs like those that are there, on a node of their own.
    MoreGpus(u32),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UseKeptFree { node, group } => write!(f, "keepFree: false for GPU group {group} of {node}"),
            Self::SmallerTp { deployment, tp } => write!(f, "tp: {tp} for {deployment}, which its profile passed"),
            Self::Drop(names) => {
                let names: Vec<&str> = names.iter().map(DeploymentName::as_str).collect();
                write!(f, "take out {}", names.join(", "))
            }
            Self::MoreGpus(1) => f.write_str("1 GPU more"),
            Self::MoreGpus(count) => write!(f, "{count} GPUs more"),
        }
    }
}

/// What would make situation `index` of the request fit, cheapest first: what costs nothing, what costs capacity, what
/// costs a model, what costs money. Empty when nothing of that helps.
#[must_use]
pub fn remedies(request: Request<'_>, index: usize) -> Vec<Remedy> {
    let Some(situation) = request.situations.get(index) else { return Vec::new() };
    let only = std::slice::from_ref(situation);
    let request = Request { situations: only, ..request };
    let mut found = kept_free(request);
    found.extend(smaller_tp(request, situation));
    found.extend(fewer(request, situation));
    found.extend(more_gpus(request));
    found
}

fn fits(request: Request<'_>) -> bool {
    place(request).misfits.is_empty()
}

fn kept_free(request: Request<'_>) -> Vec<Remedy> {
    let mut found = Vec::new();
    for (name, node) in &request.hardware.nodes {
        for (number, group) in node.groups.iter().enumerate().filter(|(_, group)| group.keep_free) {
            let mut hardware = request.hardware.clone();
            let open = hardware.nodes.get_mut(name).and_then(|node| node.groups.get_mut(number));
            if let Some(open) = open {
                open.keep_free = false;
            }
            if fits(Request { hardware: &hardware, ..request }) {
                found.push(Remedy::UseKeptFree { node: Arc::clone(name), group: Arc::clone(&group.name) });
            }
        }
    }
    found
}

fn smaller_tp(request: Request<'_>, situation: &Situation) -> Vec<Remedy> {
    let mut found = Vec::new();
    for need in situation.set.iter().filter_map(|name| request.needs.get(name)) {
        let smaller = need.passed.keys().rev().copied().find(|tp| *tp < need.tp);
        let Some(tp) = smaller else { continue };
        let mut needs = request.needs.clone();
        needs.insert(need.name.clone(), Need { tp, ..need.clone() });
        if fits(Request { needs: &needs, ..request }) {
            found.push(Remedy::SmallerTp { deployment: need.name.clone(), tp });
        }
    }
    found
}

/// Takes out by rising priority until it fits, then puts back whom it does not need to lose.
fn fewer(request: Request<'_>, situation: &Situation) -> Option<Remedy> {
    let mut order: Vec<&Need> = situation.set.iter().filter_map(|name| request.needs.get(name)).collect();
    order.sort_by_key(|need| (need.priority, need.gpus_per_replica(), need.name.clone()));
    let without = |out: &BTreeSet<DeploymentName>| {
        let set = situation.set.difference(out).cloned().collect();
        fits(Request { situations: &[Situation { set, ..situation.clone() }], ..request })
    };
    let mut out: BTreeSet<DeploymentName> = BTreeSet::new();
    let mut names: Vec<DeploymentName> = Vec::new();
    for need in order {
        if without(&out) {
            break;
        }
        out.insert(need.name.clone());
        names.push(need.name.clone());
    }
    // the most important of them first: it is the dearest to lose
    for name in names.clone().into_iter().rev() {
        let mut fewer = out.clone();
        fewer.remove(&name);
        if without(&fewer) {
            out = fewer;
            names.retain(|other| *other != name);
        }
    }
    (!names.is_empty()).then_some(Remedy::Drop(names))
}

fn more_gpus(request: Request<'_>) -> Option<Remedy> {
    let like = request.hardware.nodes.values().find_map(|node| node.gpus.values().next())?;
    let start = place(request).misfits.iter().filter_map(|misfit| misfit.reason.gpus_short()).min().unwrap_or(1).max(1);
    let with = |count: u32| {
        let gpus: BTreeMap<u32, Gpu> =
            (0..count).map(|index| (index, Gpu { state: GpuState::Usable, ..like.clone() })).collect();
        let node = Node { gpus, ..Node::default() };
        let mut hardware: Hardware = request.hardware.clone();
        // sorts last: nothing moves there that has a place
        hardware.nodes.insert(Arc::from("\u{10ffff}"), node);
        hardware
    };
    let count = (start..=MORE_GPUS_MAX).find(|count| fits(Request { hardware: &with(*count), ..request }))?;
    Some(Remedy::MoreGpus(count))
}
