//! Replicas as processes, through the nodes that they are on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_config::Site;
use tidegate_config::site::{GpuFacts, ModelSource};
use tidegate_core::DeploymentName;
use tidegate_engine::Dialect;
use tidegate_engine::launch::{CommandLine, EngineSpec};
use tidegate_node::facts::{Facts, GpuState as FactState};
use tidegate_node::order::{COMPILED, HOST, MODEL, PORT};
use tidegate_node::report::{InstanceReport, InstanceState};
use tidegate_node::{
    Command, InstanceId, Keep, LogMark, ModelAt, ModelFile, ModelOrder, ModelState, ModelUse, Node, NodeError, Proof,
    StartOrder,
};
use tidegate_planner::hardware::{Gpu, GpuState, Hardware, Node as Place, Numa};
use tidegate_planner::memory::booked;
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};

use super::{BootMark, Fetched, Kept, LaunchFault, Launcher, Order, Seen, SeenState};

/// Who is asked about a node, and where its engines listen.
#[derive(Clone, Debug)]
pub struct Member {
    /// The node.
    pub node: Arc<dyn Node>,
    /// Where its engines bind, and are reached.
    pub host: IpAddr,
}

/// The nodes by name.
pub type Members = BTreeMap<Arc<str>, Member>;

#[derive(Debug, Default)]
struct State {
    site: Option<Arc<Site>>,
    members: Members,
    /// What each node said last: of one that is away, that is what is known.
    last: BTreeMap<Arc<str>, Vec<Seen>>,
    facts: BTreeMap<Arc<str>, Facts>,
    away: BTreeMap<Arc<str>, Arc<str>>,
    /// Where each instance is.
    places: BTreeMap<InstanceId, Vec<Arc<str>>>,
}

/// Starts replicas as processes on nodes.
#[derive(Debug, Default)]
pub struct Processes {
    state: Mutex<State>,
}

impl Processes {
    /// On these nodes, by these documents.
    #[must_use]
    pub fn new(site: Arc<Site>, members: Members) -> Self {
        let processes = Self::default();
        processes.reload(site, members);
        processes
    }

    /// Other documents, and the nodes they name.
    pub fn reload(&self, site: Arc<Site>, members: Members) {
        let mut state = self.state.lock();
        state.site = Some(site);
        state.members = members;
    }

    fn member(&self, node: &str) -> Result<Member, LaunchFault> {
        let member = self.state.lock().members.get(node).cloned();
        member.ok_or_else(|| LaunchFault::Refused {
            code: "unknown_node".into(),
            text: format!("the documents have no node {node}").into(),
        })
    }

    fn members(&self) -> Members {
        self.state.lock().members.clone()
    }

    /// The nodes that an instance is on; one that nobody knows may be on any.
    fn nodes_of(&self, instance: &InstanceId) -> Vec<(Arc<str>, Arc<dyn Node>)> {
        let state = self.state.lock();
        let names = state.places.get(instance).cloned().unwrap_or_else(|| state.members.keys().cloned().collect());
        let node = |name: Arc<str>| state.members.get(&name).map(|member| (name.clone(), Arc::clone(&member.node)));
        names.into_iter().filter_map(node).collect()
    }

    fn gpu_memory(&self, node: &str) -> Option<u64> {
        let state = self.state.lock();
        let measured = state.facts.get(node).and_then(|facts| facts.gpus.iter().find_map(|gpu| gpu.memory_bytes));
        measured.or_else(|| state.site.as_ref()?.nodes.get(node)?.gpu_memory_bytes)
    }

    /// What one of a replica's GPUs has to have free before it is started.
    fn booked(&self, name: &DeploymentName, memory: u64) -> Option<u64> {
        let site = self.state.lock().site.clone()?;
        let need = Need::of(&site, name)?;
        Some(booked(&need.footprint, need.gpus_per_replica(), memory))
    }

    fn start_order(&self, order: &Order, part: &Part, member: &Member) -> StartOrder {
        let blueprint = &order.blueprint;
        let ports = {
            let state = self.state.lock();
            let own = state.site.as_ref().and_then(|site| site.nodes.get(&part.node)?.engine_ports.clone());
            own.or_else(|| state.site.as_ref().map(|site| site.engine_ports.clone()))
        };
        let ports = ports.map_or((8001, 8099), |ports| (*ports.start(), *ports.end()));
        let gpus: Vec<u32> = part.gpus().collect();
        let memory = self.gpu_memory(&part.node).filter(|_| !gpus.is_empty());
        StartOrder {
            instance: order.instance.clone(),
            engine: engine_name(order),
            deployment: order.key.deployment.to_string(),
            replica: order.key.index,
            revision: blueprint.revision,
            command: command(order, memory),
            model: blueprint.model.as_ref().map(|model| model_use(model, blueprint.dialect)),
            gpus,
            gpu_free_bytes: memory.and_then(|memory| self.booked(&order.key.deployment, memory)),
            numa: part.numa,
            memory_max_bytes: blueprint.deployment.host_memory_bytes,
            cpu_milli: blueprint.deployment.cpu.map(|cpus| (cpus * 1_000.0).ceil() as u64),
            ports,
            host: member.host,
            marks: marks(order.blueprint.dialect),
        }
    }
}

/// What the engine's log says of its start.
fn marks(dialect: Dialect) -> Vec<LogMark> {
    let mark = |(text, phase): &(&str, &str)| LogMark { phase: (*phase).to_owned(), text: (*text).to_owned() };
    dialect.boot_marks().iter().map(mark).collect()
}

/// Dialect and version of the engine; `None` where the documents do not say which it is.
fn engine_name(order: &Order) -> Option<String> {
    let engine = order.blueprint.engine.as_ref()?;
    let version = engine.image.as_ref().or(engine.version.as_ref())?;
    Some(format!("{} {version}", order.blueprint.dialect.as_str()))
}

/// The engine's command, with places for what only the node knows.
fn command(order: &Order, gpu_memory_bytes: Option<u64>) -> Command {
    let blueprint = &order.blueprint;
    let line = CommandLine::render(&EngineSpec {
        dialect: blueprint.dialect,
        engine: blueprint.engine.as_ref(),
        deployment: &blueprint.deployment,
        model: Path::new(MODEL),
        host: HOST,
        port: PORT,
        gpu_memory_bytes,
        may_sleep: blueprint.may_sleep,
    });
    let mut env: BTreeMap<String, String> =
        line.env.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    if matches!(blueprint.model, Some(ModelSource::Store { .. })) {
        for (name, below) in blueprint.dialect.compile_cache_env() {
            env.entry((*name).to_owned()).or_insert_with(|| format!("{COMPILED}/{below}"));
        }
    }
    let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
    Command { program: text(line.program), args: line.args.into_iter().map(text).collect(), env }
}

fn model_use(model: &ModelSource, dialect: Dialect) -> ModelUse {
    let file = match dialect {
        Dialect::LlamaCpp => ModelFile::Gguf,
        Dialect::Vllm => ModelFile::Folder,
    };
    let at = match model {
        ModelSource::Store { path, digest } => {
            ModelAt::Stored { path: path.to_string(), digest: digest.as_ref().map(ToString::to_string) }
        }
        ModelSource::Local(path) => ModelAt::Local(path.clone()),
    };
    ModelUse { at, file }
}

fn fault(node: &Arc<str>, error: &NodeError) -> LaunchFault {
    match error {
        NodeError::StaleGeneration { highest, .. } => LaunchFault::Stale { highest: *highest },
        NodeError::Away { why } => LaunchFault::Away { who: format!("node {node}").into(), why: why.as_str().into() },
        NodeError::Refused { .. } | NodeError::BadRequest { .. } | NodeError::UnknownModel { .. } => {
            LaunchFault::Refused { code: error.code().into(), text: format!("node {node}: {error}").into() }
        }
        other => LaunchFault::Failed { code: other.code().into(), text: format!("node {node}: {other}").into() },
    }
}

#[async_trait]
impl Launcher for Processes {
    async fn fetch(&self, generation: u64, order: &Order) -> Result<Fetched, LaunchFault> {
        let Some(ModelSource::Store { path, digest }) = &order.blueprint.model else { return Ok(Fetched::Verified) };
        let wanted = ModelOrder { path: path.to_string(), digest: digest.as_ref().map(ToString::to_string) };
        let (mut there, mut all, mut what) = (0, Some(0), None);
        let (mut left, mut is_verifying) = (None, true);
        for part in &order.seat.parts {
            let member = self.member(&part.node)?;
            let report =
                member.node.have(generation, wanted.clone()).await.map_err(|error| fault(&part.node, &error))?;
            match report.state {
                ModelState::Verified { .. } => {}
                ModelState::Failed { code, message, hint, .. } => {
                    let text = hint.map_or_else(|| message.clone(), |hint| format!("{message}; {hint}"));
                    return Err(LaunchFault::Failed { code: code.into(), text: text.into() });
                }
                ModelState::Fetching { bytes, total, eta_seconds, .. } => {
                    is_verifying = false;
                    left = left.max(eta_seconds.map(Duration::from_secs));
                    there += bytes;
                    all = all.zip(total).map(|(all, total)| all + total);
                    what = Some(format!("{}: {path} is being fetched: {bytes} bytes", part.node));
                }
                ModelState::Verifying { bytes, .. } => {
                    what = Some(format!("{}: {path} is being verified: {bytes} bytes", part.node));
                }
            }
        }
        Ok(what.map_or(Fetched::Verified, |what| Fetched::Waiting {
            bytes: there,
            total: all,
            what: what.into(),
            left,
            is_verifying,
        }))
    }

    async fn start(&self, generation: u64, order: &Order) -> Result<(), LaunchFault> {
        if order.seat.parts.len() > 1 {
            let text = "a replica over several nodes is started through Kubernetes only (Site.spec.launcher)";
            return Err(LaunchFault::Refused { code: "several_nodes".into(), text: text.into() });
        }
        let names = order.seat.parts.iter().map(|part| Arc::clone(&part.node)).collect();
        self.state.lock().places.insert(order.instance.clone(), names);
        for part in &order.seat.parts {
            let member = self.member(&part.node)?;
            let start = self.start_order(order, part, &member);
            member.node.start(generation, start).await.map_err(|error| fault(&part.node, &error))?;
        }
        Ok(())
    }

    async fn look(&self) -> Result<Vec<Seen>, LaunchFault> {
        for (name, member) in self.members() {
            let reports = member.node.instances().await;
            let mut state = self.state.lock();
            match reports {
                Ok(reports) => {
                    state.away.remove(&name);
                    for report in &reports {
                        let places = state.places.entry(report.instance.clone()).or_default();
                        if !places.contains(&name) {
                            places.push(Arc::clone(&name));
                        }
                    }
                    let seen = reports.into_iter().map(|report| to_seen(&name, member.host, report)).collect();
                    state.last.insert(name, seen);
                }
                Err(error) => {
                    if state.away.insert(Arc::clone(&name), error.to_string().into()).is_none() {
                        tracing::warn!(node = &*name, %error, "node does not answer; what it had is assumed to be there");
                    }
                }
            }
        }
        let mut state = self.state.lock();
        let members: BTreeSet<Arc<str>> = state.members.keys().cloned().collect();
        state.last.retain(|name, _| members.contains(name));
        Ok(state.last.values().flatten().cloned().collect())
    }

    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), LaunchFault> {
        for (name, node) in self.nodes_of(instance) {
            match node.stop(generation, instance, patience).await {
                Ok(()) | Err(NodeError::UnknownInstance { .. }) => {}
                Err(error) => return Err(fault(&name, &error)),
            }
        }
        Ok(())
    }

    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, LaunchFault> {
        let mut proven = Proof::Free { by: tidegate_node::ProvenBy::Processes };
        for (name, node) in self.nodes_of(instance) {
            match node.prove(generation, instance).await {
                Ok(Proof::NotFree { why, since }) => {
                    return Ok(Proof::NotFree { why: format!("node {name}: {why}"), since });
                }
                Ok(free) => proven = free,
                // It was never started there: nothing of it can be left.
                Err(NodeError::UnknownInstance { .. }) => {}
                Err(error) => return Err(fault(&name, &error)),
            }
        }
        Ok(proven)
    }

    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), LaunchFault> {
        for (name, node) in self.nodes_of(instance) {
            match node.forget(generation, instance).await {
                Ok(()) | Err(NodeError::UnknownInstance { .. }) => {}
                Err(error) => return Err(fault(&name, &error)),
            }
        }
        self.state.lock().places.remove(instance);
        Ok(())
    }

    async fn hardware(&self) -> Result<Hardware, LaunchFault> {
        let site = self.state.lock().site.clone();
        let mut hardware = site.as_ref().map(|site| Hardware::of(site)).unwrap_or_default();
        for (name, member) in self.members() {
            match member.node.facts().await {
                Ok(facts) => {
                    let is_document = site
                        .as_ref()
                        .and_then(|site| site.nodes.get(&name))
                        .is_some_and(|node| node.facts == GpuFacts::Document);
                    merge(hardware.nodes.entry(Arc::clone(&name)).or_default(), &facts, is_document);
                    self.state.lock().facts.insert(name, facts);
                }
                Err(error) => tracing::debug!(node = &*name, %error, "its facts are not known"),
            }
        }
        Ok(hardware)
    }

    async fn keep(&self, generation: u64, kept: &[Kept]) -> Result<(), LaunchFault> {
        let mut by_node: BTreeMap<Arc<str>, Vec<Keep>> = BTreeMap::new();
        for one in kept {
            by_node.entry(Arc::clone(&one.node)).or_default().push(Keep {
                path: one.path.to_string(),
                digest: one.digest.as_ref().map(ToString::to_string),
                next_use: one.next_use,
                why: one.why.to_string(),
            });
        }
        for (name, member) in self.members() {
            let kept = by_node.remove(&name).unwrap_or_default();
            member.node.keep(generation, kept).await.map_err(|error| fault(&name, &error))?;
        }
        Ok(())
    }

    async fn release(&self, generation: u64, node: &str, gpu: u32, reason: &str) -> Result<(), LaunchFault> {
        let member = self.member(node)?;
        let name: Arc<str> = node.into();
        member.node.release(generation, gpu, reason).await.map_err(|error| fault(&name, &error))
    }

    fn away(&self) -> Vec<(Arc<str>, Arc<str>)> {
        self.state.lock().away.iter().map(|(name, why)| (Arc::clone(name), Arc::clone(why))).collect()
    }
}

fn to_seen(node: &Arc<str>, host: IpAddr, report: InstanceReport) -> Seen {
    let host = if host.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { host };
    let state = match report.state {
        InstanceState::Running { .. } => match report.port {
            Some(port) => SeenState::Running { address: SocketAddr::new(host, port) },
            None => SeenState::Pending { why: "it has no port yet".into() },
        },
        InstanceState::Stopping => SeenState::Stopping,
        InstanceState::Ended { exit, cause, .. } => {
            let how = exit.map_or_else(|| "nobody saw how".to_owned(), |exit| exit.to_string());
            let cause = cause.unwrap_or_else(|| "its log does not say why".to_owned());
            SeenState::Ended { cause: format!("ended ({how}): {cause}").into() }
        }
    };
    let groups = if report.gpus.is_empty() { Vec::new() } else { vec![report.gpus.clone()] };
    let part = Part { node: Arc::clone(node), groups, numa: None, mig: None };
    Seen {
        instance: report.instance,
        key: ReplicaKey { deployment: DeploymentName::from(report.deployment), index: report.replica },
        revision: report.revision,
        generation: report.generation,
        seat: Seat { parts: vec![part] },
        state,
        started_at: Some(report.started_at),
        boot: report.boot.into_iter().map(|mark| BootMark { phase: mark.phase.into(), at: mark.at }).collect(),
    }
}

/// What a node says of itself wins over what the documents say; what it does not know, they say.
fn merge(place: &mut Place, facts: &Facts, is_document: bool) {
    place.host_memory = place.host_memory.or(Some(facts.host_memory_bytes));
    for numa in facts.numa.iter().filter(|_| !is_document) {
        let known = place.numa.entry(numa.node).or_default();
        *known = Numa { cpu_milli: 1_000 * numa.cpus.len() as u64, memory: numa.memory_bytes };
    }
    for gpu in &facts.gpus {
        let known = place.gpus.entry(gpu.index).or_default();
        *known = Gpu {
            memory: gpu.memory_bytes.or(known.memory),
            numa: gpu.numa.or(known.numa),
            link: gpu.link.or(known.link),
            rail: gpu.rail.or(known.rail),
            state: match &gpu.state {
                FactState::Free | FactState::InUse { .. } | FactState::Unproven { .. } if gpu.mig.is_empty() => {
                    GpuState::Usable
                }
                FactState::Free | FactState::InUse { .. } | FactState::Unproven { .. } => {
                    GpuState::Mig(gpu.mig.iter().map(|mig| mig.profile.clone().unwrap_or_default().into()).collect())
                }
                FactState::Foreign { by } => GpuState::Foreign(by.as_str().into()),
                FactState::Failed { .. } => GpuState::Failed,
            },
        };
    }
}
