//! Proof that nothing of a Pod is left on a node's GPUs, by what the node's agent sees. An agent keeps no record of what
//! it did not start, so what it says of processes and memory is judged here by the same rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_node::facts::{Facts, GpuFacts};
use tidegate_node::{InstanceId, Node, NodeError, Proof, ProvenBy};
use tidegate_planner::placement::Seat;
use tokio::time::sleep;

/// How much may be in use above the idle baseline.
pub(super) const SLACK_BYTES: u64 = 512 * 1024 * 1024;
/// Samples that all have to say so.
const SAMPLES: u32 = 3;
/// Between them.
const BETWEEN: Duration = Duration::from_secs(1);

/// GPUs on which a process of the instance is.
pub(super) fn gpus_of(instance: &InstanceId, facts: &Facts) -> BTreeSet<u32> {
    let has_it = |gpu: &&GpuFacts| listed(gpu).any(|process| process.instance.as_ref() == Some(instance));
    facts.gpus.iter().filter(has_it).map(|gpu| gpu.index).collect()
}

fn listed(gpu: &GpuFacts) -> impl Iterator<Item = &tidegate_node::facts::GpuProcess> {
    gpu.processes.iter().flatten()
}

/// Whether all processes on a GPU are of instances that are known.
pub(super) fn is_ours(gpu: &GpuFacts, known: &BTreeSet<InstanceId>) -> bool {
    listed(gpu).all(|process| process.instance.as_ref().is_some_and(|instance| known.contains(instance)))
}

/// Bytes in use that no listed process has; `None`: it cannot be said.
fn unexplained(gpu: &GpuFacts) -> Option<u64> {
    let used = gpu.used_bytes?;
    let processes = gpu.processes.as_ref()?;
    let theirs: Option<Vec<u64>> = processes.iter().map(|process| process.used_bytes).collect();
    Some(used.saturating_sub(theirs?.into_iter().fold(0, u64::saturating_add)))
}

/// What is in use on a seat's GPUs before anything is started there.
pub(super) fn baseline(seat: &Seat, facts: &BTreeMap<Arc<str>, Facts>) -> BTreeMap<Arc<str>, BTreeMap<u32, u64>> {
    let mut baseline: BTreeMap<Arc<str>, BTreeMap<u32, u64>> = BTreeMap::new();
    for id in seat.gpus() {
        let gpu = facts.get(&id.node).and_then(|facts| facts.gpus.iter().find(|gpu| gpu.index == id.index));
        if let Some(bytes) = gpu.and_then(unexplained) {
            baseline.entry(id.node).or_default().insert(id.index, bytes);
        }
    }
    baseline
}

/// The one that says less.
pub(super) const fn weaker(one: ProvenBy, other: ProvenBy) -> ProvenBy {
    match (one, other) {
        (ProvenBy::Person, _) | (_, ProvenBy::Person) => ProvenBy::Person,
        // what is proven of a node without GPUs takes nothing away
        (ProvenBy::Processes, other) => other,
        (one, ProvenBy::Processes) => one,
        (ProvenBy::Total, _) | (_, ProvenBy::Total) => ProvenBy::Total,
        (ProvenBy::Nvml, ProvenBy::Nvml) => ProvenBy::Nvml,
    }
}

/// Three samples of a node.
pub(super) async fn prove(
    node: &dyn Node,
    generation: u64,
    instance: &InstanceId,
    gpus: &BTreeSet<u32>,
    baseline: &BTreeMap<u32, u64>,
) -> Result<Proof, NodeError> {
    // what an agent knows by itself counts, and it is told our generation
    match node.prove(generation, instance).await {
        Ok(proof @ Proof::NotFree { .. }) => return Ok(proof),
        Ok(Proof::Free { .. }) | Err(NodeError::UnknownInstance { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut by = ProvenBy::Processes;
    for number in 0..SAMPLES {
        if number > 0 {
            sleep(BETWEEN).await;
        }
        match sample(&node.facts().await?, instance, gpus, baseline) {
            Ok(how) => by = how,
            Err(why) => return Ok(Proof::NotFree { why, since: Timestamp::now() }),
        }
    }
    Ok(Proof::Free { by })
}

/// One look at a node.
fn sample(
    facts: &Facts,
    instance: &InstanceId,
    gpus: &BTreeSet<u32>,
    baseline: &BTreeMap<u32, u64>,
) -> Result<ProvenBy, String> {
    // on every GPU of the node: a kubelet may have chosen others than were planned
    if let Some(gpu) = gpus_of(instance, facts).first() {
        return Err(format!("gpu {gpu}: a process of it is still there"));
    }
    let mut by = ProvenBy::Processes;
    for index in gpus {
        let gpu = facts.gpus.iter().find(|gpu| gpu.index == *index);
        let gpu = gpu.ok_or_else(|| format!("gpu {index}: the node does not show it any more"))?;
        if gpu.used_bytes.is_none() && gpu.processes.is_none() {
            // nothing can be measured here, and that no Pod is left was said before
            continue;
        }
        // a driver that lists nobody still says how much is in use
        let bytes = unexplained(gpu).or_else(|| gpu.used_bytes.filter(|_| gpu.processes.is_none()));
        let bytes = bytes.ok_or_else(|| format!("gpu {index}: the driver does not say who has what on it"))?;
        let bound = baseline.get(index).copied().unwrap_or_default().saturating_add(SLACK_BYTES);
        if bytes > bound {
            return Err(format!("gpu {index}: {bytes} bytes are in use that nobody has, at most {bound} may be"));
        }
        by = weaker(by, if gpu.processes.is_some() { ProvenBy::Nvml } else { ProvenBy::Total });
    }
    Ok(by)
}
