//! A replica's order as Pods: image, command, nodes, GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_config::Site;
use tidegate_config::site::GpuSharing;
use tidegate_engine::Dialect;
use tidegate_engine::launch::{CommandLine, EngineSpec};
use tidegate_kubernetes::{ContainerCommand, PartOrder, ReplicaOrder, Sharing};
use tidegate_node::facts::Facts;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::placement::Part;

use super::{GRACE_MARGIN, KubernetesSettings};
use crate::launcher::{LaunchFault, Order};

/// Where ranks of a replica over several nodes meet.
const RENDEZVOUS_PORT: u16 = 29_500;

/// The model as all nodes of a seat have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// In their caches, under this digest.
    Stored(String),
    /// At this path of theirs.
    Local(PathBuf),
}

/// What is kept with an instance's object for the launcher itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Where it was to be.
    pub(super) parts: Vec<Part>,
    /// Bytes in use on its GPUs before it was started that no listed process had, by node and GPU.
    #[serde(default)]
    pub(super) baseline: BTreeMap<Arc<str>, BTreeMap<u32, u64>>,
}

fn refused(code: &str, text: String) -> LaunchFault {
    LaunchFault::Refused { code: code.into(), text: text.into() }
}

pub(super) fn render(
    generation: u64,
    order: &Order,
    site: &Site,
    settings: &KubernetesSettings,
    sharing: GpuSharing,
    model: Option<Verified>,
    facts: &BTreeMap<Arc<str>, Facts>,
) -> Result<(ReplicaOrder, Note), LaunchFault> {
    let blueprint = &order.blueprint;
    let deployment = &blueprint.deployment;
    let image = blueprint.engine.as_ref().and_then(|engine| engine.image.as_deref());
    let image = image.ok_or_else(|| {
        refused("no_image", format!("deployment {} needs Site.spec.engines.NAME.image to run as a Pod", blueprint.name))
    })?;
    let sharing = match sharing {
        GpuSharing::Plugin => Sharing::Plugin,
        GpuSharing::Uuid => Sharing::Uuid,
    };
    let parts = order.seat.parts.iter().map(|part| part_order(part, sharing, facts)).collect::<Result<Vec<_>, _>>()?;
    let (models, path) = mounted(model, settings, blueprint.dialect, &deployment.engine_args)?;
    let port = *site.engine_ports.start();
    let first = order.seat.parts.first();
    let line = CommandLine::render(&EngineSpec {
        dialect: blueprint.dialect,
        engine: blueprint.engine.as_ref(),
        deployment,
        model: &path,
        host: "0.0.0.0",
        port: &port.to_string(),
        gpu_memory_bytes: first.and_then(|part| gpu_memory(part, site, facts)),
        may_sleep: blueprint.may_sleep,
    });
    let (leader, worker) = commands(&line, order.seat.parts.len(), blueprint.dialect)?;
    let mut env: BTreeMap<String, String> =
        line.env.iter().map(|(name, value)| (name.to_string(), literally(value))).collect();
    if let Some(folder) = &settings.compiled {
        for (name, below) in blueprint.dialect.compile_cache_env() {
            let place = folder.join(order.key.deployment.as_str()).join(below);
            env.entry((*name).to_owned()).or_insert_with(|| place.to_string_lossy().into_owned());
        }
    }
    let note = Note { parts: order.seat.parts.clone(), baseline: super::proof::baseline(&order.seat, facts) };
    let grace = settings.drain_and_stop + GRACE_MARGIN;
    let rendered = ReplicaOrder {
        instance: order.instance.as_str().to_owned(),
        deployment: order.key.deployment.to_string(),
        index: order.key.index,
        revision: blueprint.revision,
        generation,
        parts,
        sharing,
        image: image.to_owned(),
        leader,
        worker,
        env,
        port,
        models: models.map(|folder| folder.to_string_lossy().into_owned()),
        compiled: settings.compiled.as_ref().map(|folder| folder.to_string_lossy().into_owned()),
        cpu_milli: deployment.cpu.map(|cpus| (cpus * 1_000.0).ceil() as u64),
        memory_bytes: deployment.host_memory_bytes,
        rdma: settings.rdma.clone(),
        health_path: "/health".to_owned(),
        startup_seconds: u32::try_from(settings.startup.as_secs()).unwrap_or(u32::MAX),
        grace_seconds: u32::try_from(grace.as_secs()).unwrap_or(u32::MAX),
        note: serde_json::to_value(&note).unwrap_or_default(),
    };
    rendered.check().map_err(|fault| refused(fault.code(), fault.to_string()))?;
    Ok((rendered, note))
}

fn part_order(part: &Part, sharing: Sharing, facts: &BTreeMap<Arc<str>, Facts>) -> Result<PartOrder, LaunchFault> {
    let gpus: Vec<u32> = part.gpus().collect();
    if part.mig.is_some() {
        return Err(refused("mig", format!("node {}: MIG instances are given out to processes only", part.node)));
    }
    let there = facts.get(&part.node).map(|facts| &facts.gpus[..]).unwrap_or_default();
    let uuid =
        |index: &u32| there.iter().find(|gpu| gpu.index == *index)?.uuid.as_ref().map(|uuid| uuid.as_str().to_owned());
    let uuids: Vec<String> = match sharing {
        Sharing::Plugin => Vec::new(),
        Sharing::Uuid => gpus.iter().filter_map(uuid).collect(),
    };
    if sharing == Sharing::Uuid && uuids.len() != gpus.len() {
        let text = format!("node {}: its agent does not know the UUIDs of its GPUs: is NVML there?", part.node);
        return Err(LaunchFault::Failed { code: "no_uuid".into(), text: text.into() });
    }
    Ok(PartOrder {
        node: part.node.to_string(),
        gpus: u32::try_from(gpus.len()).unwrap_or(u32::MAX),
        uuids,
        is_whole: !there.is_empty() && there.len() == gpus.len(),
    })
}

/// The folder that is mounted, and the path that the engine is given.
fn mounted(
    model: Option<Verified>,
    settings: &KubernetesSettings,
    dialect: Dialect,
    engine_args: &[Arc<str>],
) -> Result<(Option<PathBuf>, PathBuf), LaunchFault> {
    match model {
        None => Ok((None, PathBuf::new())),
        Some(Verified::Stored(digest)) => {
            let names_file = |arg: &Arc<str>| {
                ["-m", "--model"]
                    .iter()
                    .any(|name| arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
            };
            if dialect == Dialect::LlamaCpp && !engine_args.iter().any(names_file) {
                let text = "llama.cpp as a Pod needs the file of a stored model by name: set --model in engineArgs";
                return Err(refused("model_file", text.to_owned()));
            }
            let digest = digest.strip_prefix("sha256-").or_else(|| digest.strip_prefix("sha256:")).unwrap_or(&digest);
            // the whole cache: a model's folder is made of links into it
            Ok((Some(settings.models.clone()), settings.models.join(format!("sha256-{digest}"))))
        }
        Some(Verified::Local(path)) => {
            let is_file = path.extension().is_some();
            let folder =
                if is_file { path.parent().unwrap_or_else(|| Path::new("/")).to_owned() } else { path.clone() };
            Ok((Some(folder), path))
        }
    }
}

fn gpu_memory(part: &Part, site: &Site, facts: &BTreeMap<Arc<str>, Facts>) -> Option<u64> {
    part.gpus().next()?;
    let measured = facts.get(&part.node).and_then(|facts| facts.gpus.iter().find_map(|gpu| gpu.memory_bytes));
    measured.or_else(|| site.nodes.get(&part.node)?.gpu_memory_bytes)
}

/// Text that Kubernetes would take for a reference to a variable is taken as it is written.
fn literally(text: &str) -> String {
    text.replace("$(", "$$(")
}

/// What the leader runs, and its workers when there are any.
fn commands(
    line: &CommandLine,
    nodes: usize,
    dialect: Dialect,
) -> Result<(ContainerCommand, Option<ContainerCommand>), LaunchFault> {
    let text = |word: &std::ffi::OsString| literally(&word.to_string_lossy());
    let run = |more: &[&str]| ContainerCommand {
        command: vec![text(&line.program)],
        args: line.args.iter().map(text).chain(more.iter().map(|word| (*word).to_owned())).collect(),
    };
    if nodes <= 1 {
        return Ok((run(&[]), None));
    }
    if dialect != Dialect::Vllm {
        return Err(refused("several_nodes", "only vLLM runs over several nodes".to_owned()));
    }
    let (count, port) = (nodes.to_string(), RENDEZVOUS_PORT.to_string());
    // the group's own variables: Kubernetes puts them in
    let meet = ["--nnodes", &count, "--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", &port];
    let leader = [&meet[..], &["--node-rank", "0"]].concat();
    let worker = [&meet[..], &["--node-rank", "$(LWS_WORKER_INDEX)", "--headless"]].concat();
    Ok((run(&leader), Some(run(&worker))))
}

/// Whether a placement would have chosen this set of a node's GPUs: an aligned block, inside one NUMA node when it fits
/// one. Without numbers of NUMA nodes only the block counts.
pub(super) fn is_aligned(hardware: &Hardware, node: &Arc<str>, gpus: &BTreeSet<u32>) -> bool {
    let (Some(first), Some(size)) = (gpus.first(), u32::try_from(gpus.len()).ok()) else { return true };
    let is_block = first % size.next_power_of_two() == 0 && gpus.iter().zip(*first..).all(|(gpu, next)| *gpu == next);
    let Some(place) = hardware.nodes.get(node) else { return is_block };
    let numa: Option<BTreeSet<u32>> = gpus.iter().map(|gpu| place.gpus.get(gpu)?.numa).collect();
    let largest =
        place.gpus.values().filter_map(|gpu| gpu.numa).fold(BTreeMap::<u32, u32>::new(), |mut count, numa| {
            *count.entry(numa).or_default() += 1;
            count
        });
    let fits_one = largest.values().any(|count| *count >= size);
    is_block && (!fits_one || numa.is_none_or(|numa| numa.len() == 1))
}

/// The chosen GPUs in groups of the sizes that were planned.
pub(super) fn groups(planned: &[Vec<u32>], chosen: &BTreeSet<u32>) -> Vec<Vec<u32>> {
    let mut left = chosen.iter().copied();
    planned.iter().map(|group| left.by_ref().take(group.len()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_planner::hardware::{Gpu, Node};

    use super::*;

    fn hardware(numa: impl Fn(u32) -> Option<u32>) -> Hardware {
        let gpu = |index| (index, Gpu { numa: numa(index), ..Gpu::default() });
        let node = Node { gpus: (0..8).map(gpu).collect(), ..Node::default() };
        Hardware { nodes: BTreeMap::from([("a".into(), node)]) }
    }

    #[test]
    fn a_set_that_no_placement_would_have_chosen_is_misaligned() {
        let two = hardware(|index| Some(index / 4));
        let aligned =
            |hardware: &Hardware, gpus: &[u32]| is_aligned(hardware, &"a".into(), &gpus.iter().copied().collect());
        for good in [&[0, 1, 2, 3][..], &[4, 5, 6, 7], &[2, 3], &[5], &[0, 1, 2, 3, 4, 5, 6, 7], &[]] {
            assert!(aligned(&two, good), "{good:?}");
        }
        for bad in [&[2, 3, 4, 5][..], &[1, 2], &[0, 2], &[0, 4]] {
            assert!(!aligned(&two, bad), "{bad:?}");
        }
        assert!(!aligned(&hardware(|index| Some(index % 2)), &[0, 1]), "two NUMA nodes where one would do");
        assert!(aligned(&hardware(|_| None), &[4, 5]), "unknown is not another one");
    }

    #[test]
    fn what_looks_like_a_variable_reaches_the_engine_as_it_is_written() {
        assert_eq!(literally("{\"a\": \"$(HOME) $HOME\"}"), "{\"a\": \"$$(HOME) $HOME\"}");
    }

    #[test]
    fn a_group_meets_at_its_leader() {
        let line = CommandLine { program: "vllm".into(), args: vec!["serve".into()], env: BTreeMap::new() };
        let (leader, worker) = commands(&line, 2, Dialect::Vllm).unwrap();
        assert!(
            leader
                .args
                .join(" ")
                .ends_with("--nnodes 2 --master-addr $(LWS_LEADER_ADDRESS) --master-port 29500 --node-rank 0")
        );
        assert!(worker.unwrap().args.join(" ").ends_with("--node-rank $(LWS_WORKER_INDEX) --headless"));
        assert!(commands(&line, 2, Dialect::LlamaCpp).is_err());
    }

    #[test]
    fn chosen_gpus_are_grouped_as_planned() {
        assert_eq!(groups(&[vec![0, 1], vec![2, 3]], &BTreeSet::from([4, 5, 6, 7])), [vec![4, 5], vec![6, 7]]);
    }
}
