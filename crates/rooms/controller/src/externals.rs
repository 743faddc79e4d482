//! Engines that somebody else runs: proven, watched, never started or stopped.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_config::Site;
use tidegate_config::site::{Endpoint as Document, SecretRef, Serve};
use tidegate_core::{DeploymentName, ReplicaId};
use tidegate_engine::Dialect;
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Endpoint, PoolSettings, tls};
use tidegate_engine::probe::{BOOTING_EVERY, NotReady, Probe};
use tidegate_routing::{Replica, ReplicaState};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::engines::PROBE_EVERY;
use crate::gate::watchdog;

/// How long a drain of an engine that is no longer named waits for what runs.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Reads a secret that the documents name.
pub type ReadSecret = dyn Fn(&SecretRef) -> Result<String, String> + Send + Sync;

/// One engine as status shows it.
#[derive(Clone, Debug)]
pub struct ExternalStatus {
    /// `deployment/number`.
    pub replica: ReplicaId,
    /// Its deployment.
    pub deployment: DeploymentName,
    /// How it is asked; `None`: it cannot be.
    pub backend: Option<Arc<Backend>>,
    /// Where it is.
    pub address: Box<str>,
    /// What is in the way.
    pub problem: Option<String>,
}

/// What a wanted engine is: another one is another engine.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    deployment: DeploymentName,
    endpoint: Document,
    dialect: Dialect,
    probe: (tidegate_config::site::DeploymentKind, Arc<str>),
}

struct Running {
    wanted: Wanted,
    id: ReplicaId,
    watched: Arc<Watched>,
    stop: watch::Sender<bool>,
}

struct Watched {
    backend: Arc<Backend>,
    address: Box<str>,
    problem: Mutex<Option<String>>,
    looked: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    refused: Vec<(Wanted, ReplicaId, String)>,
    tasks: JoinSet<()>,
}

/// All engines that somebody else runs.
pub struct Externals {
    cores: usize,
    read_secret: Box<ReadSecret>,
    runtime: Handle,
    /// The authorities that the system believes, read when the first `https://` engine is met.
    tls: OnceLock<Arc<rustls::ClientConfig>>,
    state: Mutex<State>,
}

impl fmt::Debug for Externals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Externals").field("cores", &self.cores).finish_non_exhaustive()
    }
}

impl Externals {
    /// None yet. They are watched on `runtime`; each of the gate's cores has connections of its own.
    #[must_use]
    pub fn new(cores: usize, read_secret: Box<ReadSecret>, runtime: Handle) -> Self {
        Self { cores, read_secret, runtime, tls: OnceLock::new(), state: Mutex::default() }
    }

    /// Makes them what the site names: one that is named as before stays as it is.
    pub fn apply(&self, site: &Site) {
        let mut wanted = wanted(site);
        let mut state = self.state.lock();
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut state.running).into_iter().partition(|running| {
            let at = wanted.iter().position(|wanted| running.wanted == *wanted);
            at.map(|at| wanted.remove(at)).is_some()
        });
        for running in gone {
            tracing::info!(replica = %running.id, "no longer wanted, draining");
            running.stop.send_replace(true);
        }
        state.running = kept;
        state.refused.clear();
        for one in wanted {
            let id = free_id(&state.running, &one.deployment);
            if let Err(why) = self.start(&mut state, site, &one, &id) {
                tracing::error!(replica = %id, why, "cannot have this replica");
                state.refused.push((one, id, why));
            }
        }
        while state.tasks.try_join_next().is_some() {}
    }

    fn start(&self, state: &mut State, site: &Site, wanted: &Wanted, id: &ReplicaId) -> Result<(), String> {
        let Document { url, api_key } = &wanted.endpoint;
        let key = api_key.as_ref().map(|from| (self.read_secret)(from)).transpose()?;
        let tls = if url.starts_with("https://") { Some(self.tls()?) } else { None };
        let endpoint = Endpoint::parse(url, key.as_deref(), tls).map_err(|error| error.to_string())?;
        let pool = PoolSettings { connect: site.timeouts.connect, ..PoolSettings::default() };
        let backend = Arc::new(Backend::new(Replica::new(id.clone()), &endpoint, pool, self.cores));
        let watched = Arc::new(Watched {
            backend,
            address: endpoint.authority().into(),
            problem: Mutex::new(None),
            looked: watch::Sender::new(false),
        });
        let (kind, served_name) = wanted.probe.clone();
        let probe = Probe { dialect: wanted.dialect, kind, served_name };
        let (stop, stopping) = watch::channel(false);
        state.tasks.spawn_on(mind(Arc::clone(&watched), probe, stopping), &self.runtime);
        state.running.push(Running { wanted: wanted.clone(), id: id.clone(), watched, stop });
        Ok(())
    }

    fn tls(&self) -> Result<&Arc<rustls::ClientConfig>, String> {
        if let Some(config) = self.tls.get() {
            return Ok(config);
        }
        let config = tls::system().map_err(|error| error.to_string())?;
        Ok(self.tls.get_or_init(|| config))
    }

    /// All of them.
    #[must_use]
    pub fn status(&self) -> Vec<ExternalStatus> {
        let state = self.state.lock();
        let running = state.running.iter().map(|running| ExternalStatus {
            replica: running.id.clone(),
            deployment: running.wanted.deployment.clone(),
            backend: Some(Arc::clone(&running.watched.backend)),
            address: running.watched.address.clone(),
            problem: running.watched.problem.lock().clone(),
        });
        let refused = state.refused.iter().map(|(wanted, id, why)| ExternalStatus {
            replica: id.clone(),
            deployment: wanted.deployment.clone(),
            backend: None,
            address: Box::default(),
            problem: Some(why.clone()),
        });
        running.chain(refused).collect()
    }

    /// Waits until each has been looked at once, or `within` has passed.
    pub async fn first_look(&self, within: Duration) {
        let looks: Vec<_> =
            self.state.lock().running.iter().map(|running| running.watched.looked.subscribe()).collect();
        let all = async {
            for mut look in looks {
                // An error means that nobody looks any more.
                let _ = look.wait_for(|looked| *looked).await;
            }
        };
        let _ = timeout(within, all).await;
    }

    /// Stops watching.
    pub async fn stop(&self) {
        let mut tasks = {
            let mut state = self.state.lock();
            for running in &state.running {
                running.stop.send_replace(true);
            }
            state.running.clear();
            std::mem::take(&mut state.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }
}

fn wanted(site: &Site) -> Vec<Wanted> {
    let mut all = Vec::new();
    for (name, deployment) in &site.deployments {
        let Serve::Endpoints(endpoints) = &deployment.serve else { continue };
        let dialect = site.models.get(&deployment.model).map_or(Dialect::Vllm, |model| model.dialect.into());
        all.extend(endpoints.iter().map(|endpoint| Wanted {
            deployment: name.clone(),
            endpoint: endpoint.clone(),
            dialect,
            probe: (deployment.kind, Arc::clone(&deployment.served_name)),
        }));
    }
    all
}

/// The lowest number of the deployment that is free.
fn free_id(running: &[Running], deployment: &DeploymentName) -> ReplicaId {
    let taken: BTreeSet<&str> = running.iter().map(|running| running.id.as_str()).collect();
    let mut numbered = (0..=running.len()).map(|index| format!("{deployment}/{index}"));
    numbered.find(|id| !taken.contains(&**id)).unwrap_or_default().into()
}

impl Watched {
    fn say(&self, problem: Option<String>) {
        let mut known = self.problem.lock();
        if *known == problem {
            return;
        }
        if let Some(problem) = &problem {
            tracing::warn!(replica = %self.backend.replica().id(), problem, "replica is not serving");
        }
        *known = problem;
    }

    /// Asks for a token until one comes.
    async fn prove(&self, probe: &Probe) {
        loop {
            let wait = match probe.run(self.backend.watch_pool()).await {
                Ok(ready) => {
                    self.backend.set_context_tokens(ready.context_tokens);
                    self.say(None);
                    self.backend.replica().set_state(ReplicaState::Serving);
                    self.looked.send_replace(true);
                    tracing::info!(replica = %self.backend.replica().id(), "serving");
                    return;
                }
                Err(NotReady::Booting(why)) => {
                    self.say(Some(format!("booting: {why}")));
                    BOOTING_EVERY
                }
                Err(why) => {
                    self.say(Some(why.to_string()));
                    PROBE_EVERY
                }
            };
            self.looked.send_replace(true);
            sleep(wait).await;
        }
    }

    /// Watches it until it has to prove itself again: nobody here can start it anew.
    async fn watch(&self, probe: &Probe) {
        let tell = |problem| self.say(problem);
        let fault = watchdog::watch(&self.backend, probe, &tell).await;
        self.fail(fault.to_string());
    }

    fn fail(&self, why: String) {
        self.backend.replica().set_state(ReplicaState::Failing);
        self.backend.set_sample(None);
        self.say(Some(why));
    }
}

async fn mind(watched: Arc<Watched>, probe: Probe, mut stopping: watch::Receiver<bool>) {
    let forever = async {
        loop {
            watched.prove(&probe).await;
            watched.watch(&probe).await;
        }
    };
    tokio::select! {
        () = forever => {}
        // An error means that whoever could ask is gone.
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    let replica = watched.backend.replica();
    replica.set_state(ReplicaState::Draining);
    let empty = async {
        while replica.booked() > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(DRAIN_MAX, empty).await.is_err() {
        tracing::warn!(replica = %replica.id(), "drain timeout passed");
    }
    replica.set_state(ReplicaState::Stopped);
}
