//! Replicas as Pods: started through the API server, with everything that concerns a node (its models, its memory, its
//! GPUs) asked of the agent there.
//!
//! ```text
//! fetch, keep ─────────────> agents              no Pod before every node of the seat has the model verified
//! start, stop, expose ─────> API server          fenced twice: see the kubernetes edge
//! look ────────────────────> View                watched; what is seen is what the last moment said
//! prove ───────────────────> API server, then agents
//!          no Pod, nobody who makes one  ──>  no process of it, memory as before, on every GPU
//! ```

mod order;
mod proof;
mod proving;
mod sight;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_config::Site;
use tidegate_config::site::{GpuSharing, ModelSource};
use tidegate_kubernetes::{Cluster, Fault, Phase, ReplicaSeen, Trouble, View};
use tidegate_node::facts::{Facts, GpuState as FactState};
use tidegate_node::{InstanceId, ModelOrder, ModelState, NodeError, Proof, ProvenBy};
use tidegate_planner::hardware::{GpuState, Hardware};
use tidegate_planner::placement::Seat;
use tokio::time::Instant;

use self::order::{Note, Verified};
use super::processes::{Member, Members, Processes};
use super::{Exposure, Fetched, Kept, LaunchFault, Launcher, Order, Seen};

/// How long what was just written may take to be seen.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// What a Pod's template says when nobody says another time: above every drain and stop.
const GRACE_MARGIN: Duration = Duration::from_secs(60);

/// How replicas become Pods.
#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    /// The folder of models on every node.
    pub models: PathBuf,
    /// The folder for what engines compile on every node; `None`: it is lost with the Pod.
    pub compiled: Option<PathBuf>,
    /// The resource that stands for RDMA.
    pub rdma: Option<String>,
    /// How long an engine may take until it answers its health check.
    pub startup: Duration,
    /// The longest drain of any Schedule, and the stop after it.
    pub drain_and_stop: Duration,
    /// Whether Pods of a deployment are put into its pool when they have proven themselves.
    pub pools: bool,
}

impl KubernetesSettings {
    /// By the documents, for a cluster whose agents keep models at `models`.
    #[must_use]
    pub fn of(site: &Site, models: PathBuf) -> Self {
        let drains = site.schedules.values().map(|schedule| schedule.drain_timeout);
        Self {
            models,
            compiled: None,
            rdma: None,
            startup: Duration::from_secs(3_600),
            drain_and_stop: drains.max().unwrap_or(Duration::from_secs(300)),
            pools: true,
        }
    }
}

/// What is known of an instance besides what the API server says.
#[derive(Clone, Debug)]
struct Known {
    seat: Seat,
    note: Note,
    is_plugin: bool,
    /// GPUs that a kubelet chose, by node, once a process of it was seen on them.
    chosen: BTreeMap<Arc<str>, BTreeSet<u32>>,
    /// When events or GPUs were last asked for, and what an event said.
    asked: Option<Instant>,
    event: Option<Trouble>,
}

impl Known {
    fn new(note: Note, is_plugin: bool) -> Self {
        let seat = Seat { parts: note.parts.clone() };
        Self { seat, note, is_plugin, chosen: BTreeMap::new(), asked: None, event: None }
    }
}

/// Starts replicas as Pods.
#[derive(Debug)]
pub struct Kubernetes {
    cluster: Cluster,
    view: View,
    settings: KubernetesSettings,
    site: Mutex<Arc<Site>>,
    members: Mutex<Members>,
    /// Whatever is asked of agents in the same way, whoever starts engines.
    agents: Processes,
    /// The highest generation of any command: what is noted on the way is written with it.
    generation: AtomicU64,
    known: Mutex<BTreeMap<InstanceId, Known>>,
    /// GPUs that a person called free, until something is started on them.
    released: Mutex<BTreeSet<(Arc<str>, u32)>>,
}

impl Kubernetes {
    /// On this cluster, with these agents. The future keeps the view of the cluster up to date; without it nothing is
    /// seen.
    pub fn new(
        cluster: Cluster,
        settings: KubernetesSettings,
        site: Arc<Site>,
        members: Members,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (view, following) = View::of(cluster.clone());
        let launcher = Self {
            cluster,
            view,
            settings,
            agents: Processes::new(Arc::clone(&site), members.clone()),
            site: Mutex::new(site),
            members: Mutex::new(members),
            generation: AtomicU64::new(0),
            known: Mutex::default(),
            released: Mutex::default(),
        };
        (launcher, following)
    }

    /// Other documents, and the agents they name.
    pub fn reload(&self, site: Arc<Site>, members: Members) {
        self.agents.reload(Arc::clone(&site), members.clone());
        *self.site.lock() = site;
        *self.members.lock() = members;
    }

    fn site(&self) -> Arc<Site> {
        Arc::clone(&self.site.lock())
    }

    fn member(&self, node: &str) -> Result<Member, LaunchFault> {
        let member = self.members.lock().get(node).cloned();
        member.ok_or_else(|| LaunchFault::Refused {
            code: "unknown_node".into(),
            text: format!("the documents have no node {node}, or it has no agent").into(),
        })
    }

    fn at(&self, generation: u64) {
        self.generation.fetch_max(generation, Ordering::AcqRel);
    }

    fn sharing(&self, node: &str) -> GpuSharing {
        self.site().nodes.get(node).map_or(GpuSharing::Plugin, |node| node.gpu_sharing)
    }

    /// That every node of the seat has the model, verified, under one digest.
    async fn verified(&self, generation: u64, order: &Order) -> Result<Option<Verified>, LaunchFault> {
        let (path, digest) = match &order.blueprint.model {
            None => return Ok(None),
            Some(ModelSource::Local(path)) => return Ok(Some(Verified::Local(path.clone()))),
            Some(ModelSource::Store { path, digest }) => (path, digest),
        };
        let wanted = ModelOrder { path: path.to_string(), digest: digest.as_ref().map(ToString::to_string) };
        let mut digests = BTreeSet::new();
        for part in &order.seat.parts {
            let member = self.member(&part.node)?;
            let report = member.node.have(generation, wanted.clone()).await;
            let report = report.map_err(|error| of_node(&part.node, &error))?;
            match (report.state, report.digest) {
                (ModelState::Verified { .. }, Some(digest)) => {
                    digests.insert(digest);
                }
                (state, _) => {
                    let text = format!("node {} has {path} not verified yet: {state:?}", part.node);
                    return Err(LaunchFault::Failed { code: "not_verified".into(), text: text.into() });
                }
            }
        }
        match digests.into_iter().collect::<Vec<_>>().as_slice() {
            [digest] => Ok(Some(Verified::Stored(digest.clone()))),
            several => {
                let text = format!("the nodes have {path} in {} versions: pin Model.source.digest", several.len());
                Err(LaunchFault::Failed { code: "not_verified".into(), text: text.into() })
            }
        }
    }

    /// What the agents of a seat's nodes say of them. Nodes without GPUs of the seat are not asked.
    async fn facts(&self, seat: &Seat) -> Result<BTreeMap<Arc<str>, Facts>, LaunchFault> {
        let mut facts = BTreeMap::new();
        for part in seat.parts.iter().filter(|part| part.gpus().next().is_some()) {
            let member = self.member(&part.node)?;
            let said = member.node.facts().await.map_err(|error| of_node(&part.node, &error))?;
            facts.insert(Arc::clone(&part.node), said);
        }
        Ok(facts)
    }
}

fn with_hint(trouble: &Trouble) -> Arc<str> {
    format!("{trouble}; {}", trouble.code.hint()).into()
}

fn of_node(node: &Arc<str>, error: &NodeError) -> LaunchFault {
    match error {
        NodeError::StaleGeneration { highest, .. } => LaunchFault::Stale { highest: *highest },
        NodeError::Away { why } => LaunchFault::Away { who: format!("node {node}").into(), why: why.as_str().into() },
        other => LaunchFault::Failed { code: other.code().into(), text: format!("node {node}: {other}").into() },
    }
}

fn of_cluster(fault: &Fault) -> LaunchFault {
    let text = || format!("{fault}; {}", fault.hint()).into();
    match fault {
        Fault::StaleGeneration { highest } => LaunchFault::Stale { highest: *highest },
        fault if fault.is_away() || fault.is_race() => {
            LaunchFault::Away { who: "the API server".into(), why: fault.to_string().into() }
        }
        Fault::Forbidden { .. } | Fault::Invalid { .. } | Fault::Order(_) | Fault::NotInstalled { .. } => {
            LaunchFault::Refused { code: fault.code().into(), text: text() }
        }
        _ => LaunchFault::Failed { code: fault.code().into(), text: text() },
    }
}

#[async_trait]
impl Launcher for Kubernetes {
    async fn fetch(&self, generation: u64, order: &Order) -> Result<Fetched, LaunchFault> {
        self.agents.fetch(generation, order).await
    }

    async fn start(&self, generation: u64, order: &Order) -> Result<(), LaunchFault> {
        self.at(generation);
        let is_there = |all: &[ReplicaSeen]| all.iter().any(|seen| seen.order.instance == order.instance.as_str());
        if self.view.now().is_ok_and(|all| is_there(&all)) {
            return self.cluster.fence(generation).await.map_err(|fault| of_cluster(&fault));
        }
        let model = self.verified(generation, order).await?;
        let facts = self.facts(&order.seat).await?;
        let sharing = order.seat.parts.first().map_or(GpuSharing::Plugin, |part| self.sharing(&part.node));
        let (rendered, note) = order::render(generation, order, &self.site(), &self.settings, sharing, model, &facts)?;
        self.released
            .lock()
            .retain(|(node, gpu)| !order.seat.gpus().iter().any(|own| own.node == *node && own.index == *gpu));
        let is_plugin = sharing == GpuSharing::Plugin;
        self.known.lock().insert(order.instance.clone(), Known::new(note, is_plugin));
        self.cluster.start(generation, &rendered).await.map_err(|fault| of_cluster(&fault))?;
        // what looks next has to see it; if the view is behind, it says so by itself
        self.view.until(SEEN_WITHIN, is_there).await;
        Ok(())
    }

    async fn look(&self) -> Result<Vec<Seen>, LaunchFault> {
        let replicas = self.view.now().map_err(|fault| of_cluster(&fault))?;
        let mut all = Vec::with_capacity(replicas.len());
        for replica in &replicas {
            self.record(replica).await;
            all.extend(self.to_seen(replica).await);
        }
        Ok(all)
    }

    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), LaunchFault> {
        self.at(generation);
        let replicas = self.view.now().unwrap_or_default();
        let broken = replicas.iter().find_map(|seen| match &seen.phase {
            Phase::Broken { trouble } if seen.order.instance == instance.as_str() => Some(trouble.to_string()),
            _ => None,
        });
        let stopped = self.cluster.stop(generation, instance.as_str(), patience, broken.as_deref()).await;
        stopped.map_err(|fault| of_cluster(&fault))
    }

    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, LaunchFault> {
        self.at(generation);
        self.cluster.fence(generation).await.map_err(|fault| of_cluster(&fault))?;
        let known = self.known.lock().get(instance).cloned();
        if let Some(known) = &known
            && self.is_released(known)
        {
            return Ok(Proof::Free { by: ProvenBy::Person });
        }
        let left = self.cluster.left_of(instance.as_str()).await.map_err(|fault| of_cluster(&fault))?;
        if let Some(why) = left {
            return Ok(Proof::NotFree { why, since: jiff::Timestamp::now() });
        }
        self.prove_on_nodes(generation, instance, known).await
    }

    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), LaunchFault> {
        self.at(generation);
        self.cluster.forget(generation, instance.as_str()).await.map_err(|fault| of_cluster(&fault))?;
        self.known.lock().remove(instance);
        let is_gone = |all: &[ReplicaSeen]| !all.iter().any(|seen| seen.order.instance == instance.as_str());
        self.view.until(SEEN_WITHIN, is_gone).await;
        Ok(())
    }

    async fn hardware(&self) -> Result<Hardware, LaunchFault> {
        let mut hardware = self.agents.hardware().await?;
        let ours: BTreeSet<InstanceId> = self.known.lock().keys().cloned().collect();
        let foreign = hardware.gpus().filter(|(_, gpu)| matches!(gpu.state, GpuState::Foreign(_)));
        let nodes: BTreeSet<Arc<str>> = foreign.map(|(id, _)| id.node).collect();
        for name in nodes {
            // an agent knows only what it started itself: the processes of our Pods are no strangers
            let Ok(member) = self.member(&name) else { continue };
            let Ok(facts) = member.node.facts().await else { continue };
            let Some(place) = hardware.nodes.get_mut(&name) else { continue };
            for gpu in facts.gpus.iter().filter(|gpu| matches!(gpu.state, FactState::Foreign { .. })) {
                if let Some(known) = place.gpus.get_mut(&gpu.index)
                    && proof::is_ours(gpu, &ours)
                {
                    known.state = GpuState::Usable;
                }
            }
        }
        Ok(hardware)
    }

    async fn keep(&self, generation: u64, kept: &[Kept]) -> Result<(), LaunchFault> {
        self.agents.keep(generation, kept).await
    }

    async fn release(&self, generation: u64, node: &str, gpu: u32, reason: &str) -> Result<(), LaunchFault> {
        self.at(generation);
        self.cluster.fence(generation).await.map_err(|fault| of_cluster(&fault))?;
        tracing::warn!(node, gpu, reason, "a person says that it is free");
        self.released.lock().insert((node.into(), gpu));
        // for its own book; an agent that is away is why a person has to say it
        match self.agents.release(generation, node, gpu, reason).await {
            Err(LaunchFault::Stale { highest }) => Err(LaunchFault::Stale { highest }),
            _ => Ok(()),
        }
    }

    async fn expose(&self, generation: u64, instance: &InstanceId, exposure: Exposure) -> Result<(), LaunchFault> {
        self.at(generation);
        if !self.settings.pools {
            return Ok(());
        }
        let replicas = self.view.now().map_err(|fault| of_cluster(&fault))?;
        let found = replicas.iter().find(|seen| seen.order.instance == instance.as_str());
        let leader = found.and_then(|seen| Some((seen, seen.pods.iter().find(|pod| pod.is_leader)?)));
        let Some((seen, pod)) = leader else {
            return match exposure {
                Exposure::Out => Ok(()),
                Exposure::In => {
                    Err(LaunchFault::Failed { code: "not_found".into(), text: "its Pod is not there".into() })
                }
            };
        };
        let pool = match exposure {
            Exposure::In => Some(seen.order.deployment.as_str()),
            Exposure::Out => None,
        };
        let exposed = self.cluster.expose(generation, instance.as_str(), &pod.name, pool).await;
        exposed.map_err(|fault| of_cluster(&fault))
    }

    fn away(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut away = self.agents.away();
        if let Err(fault) = self.view.now() {
            away.push(("kubernetes".into(), fault.to_string().into()));
        }
        away
    }
}
