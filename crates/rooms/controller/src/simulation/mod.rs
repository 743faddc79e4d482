//! A simulated world for the real controller: nodes, engines, routes and callers in virtual time.
//!
//! Everything that a controller touches is one [`World`]: it starts instances, lets them load and fail as told, carries
//! routes, and checks with every step what must never happen: a GPU whose residents have more memory than it has, a
//! command of an older generation that was obeyed, an instance that was ended under its requests before its time.

mod care;
mod launcher;
mod routes;
pub mod switches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tidegate_core::{AliasName, DeploymentName};
use tidegate_engine::backend::Backend;
use tidegate_node::InstanceId;
use tidegate_planner::hardware::{GpuId, Hardware};
use tidegate_planner::memory::booked;
use tidegate_planner::need::Need;
use tidegate_planner::placement::{ReplicaKey, Seat};
use tokio::time::Instant;

use crate::route::RouteRow;

/// How an engine of a deployment behaves from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Temper {
    /// It is refused at its start.
    pub refuses_start: bool,
    /// It ends by itself in mid-load.
    pub ends_in_load: bool,
    /// It never answers.
    pub hangs_in_load: bool,
    /// It answers, and wrongly.
    pub fails_gate: bool,
    /// It ignores SIGTERM.
    pub ignores_term: bool,
    /// Its memory does not come back.
    pub keeps_memory: bool,
    /// It does not sleep.
    pub refuses_sleep: bool,
    /// It wakes, and answers wrongly.
    pub wakes_mad: bool,
    /// It breaks soon after it was proven.
    pub breaks_in_service: bool,
}

/// How long things take in the world.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Having a model on a node.
    pub fetch: Duration,
    /// From the start to an answer.
    pub load: Duration,
    /// The proof.
    pub gate: Duration,
    /// Falling asleep, and waking.
    pub sleep: Duration,
    /// From the signal to the end.
    pub stop: Duration,
    /// From the end to free memory.
    pub memory: Duration,
    /// A route's change.
    pub route: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            fetch: seconds(20),
            load: seconds(90),
            gate: seconds(15),
            sleep: seconds(5),
            stop: seconds(3),
            memory: seconds(2),
            route: Duration::from_millis(50),
        }
    }
}

/// An instance of the world.
#[derive(Clone, Debug)]
struct Sim {
    key: ReplicaKey,
    revision: u64,
    generation: u64,
    seat: Seat,
    started: Instant,
    is_running: bool,
    is_stopping: bool,
    kill_at: Option<Instant>,
    ends_at: Option<Instant>,
    ended: Option<Instant>,
    sleeps: Option<u8>,
    is_ready: bool,
    backend: Option<Arc<Backend>>,
}

#[derive(Debug, Default)]
struct Inner {
    instances: BTreeMap<InstanceId, Sim>,
    used: BTreeSet<InstanceId>,
    fetched: BTreeMap<String, Instant>,
    routes: BTreeMap<AliasName, RouteRow>,
    tempers: BTreeMap<DeploymentName, Temper>,
    refused_routes: BTreeSet<AliasName>,
    needs: BTreeMap<DeploymentName, Need>,
    highest: u64,
    released: BTreeSet<GpuId>,
    is_away: bool,
    wrongs: Vec<String>,
    cut: Vec<InstanceId>,
}

/// A simulated world.
#[derive(Debug)]
pub struct World {
    hardware: Hardware,
    pace: Pace,
    base: Timestamp,
    born: Instant,
    inner: Mutex<Inner>,
}

impl World {
    /// A world with these nodes that begins at an instant. Needs a tokio runtime whose time is paused.
    #[must_use]
    pub fn new(hardware: Hardware, site: &tidegate_config::Site, at: Timestamp, pace: Pace) -> Arc<Self> {
        let inner = Inner { needs: Need::all(site), ..Inner::default() };
        Arc::new(Self { hardware, pace, base: at, born: Instant::now(), inner: Mutex::new(inner) })
    }

    /// The world's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.born.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    /// New documents.
    pub fn reload(&self, site: &tidegate_config::Site) {
        self.inner.lock().needs.extend(Need::all(site));
    }

    /// How engines of a deployment behave from now on.
    pub fn temper(&self, deployment: &str, temper: Temper) {
        self.inner.lock().tempers.insert(DeploymentName::from(deployment), temper);
    }

    /// Whether the gate refuses routes of an alias.
    pub fn refuse_route(&self, alias: &str, refuses: bool) {
        let mut inner = self.inner.lock();
        if refuses {
            inner.refused_routes.insert(AliasName::from(alias));
        } else {
            inner.refused_routes.remove(&AliasName::from(alias));
        }
    }

    /// Whether the nodes answer.
    pub fn away(&self, is_away: bool) {
        self.inner.lock().is_away = is_away;
    }

    /// Ends an instance of a deployment as the kernel would.
    pub fn break_one(&self, deployment: &str) -> bool {
        let mut inner = self.inner.lock();
        let alive = |sim: &&mut Sim| sim.key.deployment.as_str() == deployment && sim.is_running;
        let Some(sim) = inner.instances.values_mut().find(alive) else { return false };
        sim.is_running = false;
        sim.ended = Some(Instant::now());
        true
    }

    /// What went wrong that must never: empty.
    #[must_use]
    pub fn wrongs(&self) -> Vec<String> {
        self.inner.lock().wrongs.clone()
    }

    /// Instances that ended with requests on them, oldest first.
    #[must_use]
    pub fn cut(&self) -> Vec<InstanceId> {
        self.inner.lock().cut.clone()
    }

    /// How many instances were started.
    #[must_use]
    pub fn started(&self) -> usize {
        self.inner.lock().used.len()
    }

    /// Where an alias goes.
    #[must_use]
    pub fn route(&self, alias: &str) -> Option<RouteRow> {
        self.inner.lock().routes.get(&AliasName::from(alias)).cloned()
    }

    /// Deployments of which an instance runs and answers.
    #[must_use]
    pub fn running(&self) -> BTreeSet<String> {
        let inner = self.inner.lock();
        let running = inner.instances.values().filter(|sim| sim.is_running && sim.is_ready && sim.sleeps.is_none());
        running.map(|sim| sim.key.deployment.to_string()).collect()
    }

    /// Instances that have been started and whose memory is not proven free.
    #[must_use]
    pub fn held(&self) -> usize {
        self.inner.lock().instances.len()
    }

    /// Books a request on a replica that serves an alias, as a gate would. `None`: nobody serves it.
    #[must_use]
    pub fn ask(&self, alias: &str) -> Option<tidegate_routing::Lease> {
        let inner = self.inner.lock();
        let row = inner.routes.get(&AliasName::from(alias))?;
        let serves = |sim: &&Sim| {
            sim.is_running
                && sim.is_ready
                && sim.sleeps.is_none()
                && row.targets.iter().any(|target| {
                    target.deployment == sim.key.deployment
                        && target.revision.is_none_or(|revision| revision == sim.revision)
                })
        };
        let now = tidegate_core::Monotonic::from_ns(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let mut serving = inner.instances.values().filter(serves).filter_map(|sim| sim.backend.as_ref());
        serving.find(|backend| backend.replica().is_pickable(now)).and_then(|backend| backend.replica().book(now))
    }
}

impl Inner {
    fn temper(&self, name: &DeploymentName) -> Temper {
        self.tempers.get(name).copied().unwrap_or_default()
    }

    fn wrong(&mut self, what: String) {
        if self.wrongs.len() < 100 {
            self.wrongs.push(what);
        }
    }

    /// Whether a command may be obeyed.
    fn fence(&mut self, generation: u64) -> Result<(), u64> {
        if generation < self.highest {
            return Err(self.highest);
        }
        self.highest = generation;
        Ok(())
    }

    /// Ends what is to end by now.
    fn pass(&mut self, now: Instant) {
        let mut cut = Vec::new();
        for (id, sim) in &mut self.instances {
            let is_due = sim.ends_at.is_some_and(|at| now >= at) || sim.kill_at.is_some_and(|at| now >= at);
            if sim.is_running && is_due {
                sim.is_running = false;
                sim.ended = Some(now);
                if sim.backend.as_ref().is_some_and(|backend| backend.replica().booked() > 0) {
                    cut.push(id.clone());
                }
            }
        }
        self.cut.extend(cut);
    }

    /// Checks that no GPU is promised twice.
    fn check_memory(&mut self, hardware: &Hardware) {
        let mut taken: BTreeMap<GpuId, u64> = BTreeMap::new();
        for sim in self.instances.values() {
            let Some(need) = self.needs.get(&sim.key.deployment) else { continue };
            for gpu in sim.seat.gpus() {
                let Some(memory) = hardware.gpu(&gpu).and_then(|gpu| gpu.memory) else { continue };
                let bytes = match sim.sleeps {
                    Some(_) => tidegate_planner::memory::RESIDUE_DEFAULT,
                    None => booked(&need.footprint, need.gpus_per_replica(), memory),
                };
                *taken.entry(gpu).or_default() += bytes;
            }
        }
        for (gpu, bytes) in taken {
            let memory = hardware.gpu(&gpu).and_then(|gpu| gpu.memory).unwrap_or(u64::MAX);
            if bytes > memory {
                let who: Vec<String> = self.instances.keys().map(ToString::to_string).collect();
                self.wrong(format!("GPU {gpu} is promised twice: {bytes} of {memory} bytes, among {who:?}"));
            }
        }
    }
}
