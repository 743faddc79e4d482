//! The replicas there are, over reloads.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tidegate_config::Site;
use tidegate_config::site::SecretRef;
use tidegate_core::{DeploymentName, ReplicaId};
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Endpoint, PoolSettings, tls};
use tidegate_engine::launch::{GpuDriver, lowest_free};
use tidegate_routing::{Replica, ReplicaState};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::folders::ModelFolders;
use crate::member::{Member, MemberError, Source, members};
use crate::supervise::{self, Supervised, supervise};

/// Reads a secret that the documents name.
pub type ReadSecret = dyn Fn(&SecretRef) -> Result<String, String> + Send + Sync;

/// What a fleet is made with.
pub struct FleetSettings {
    /// Where logs of engines go: `<folder>/<instance>.log`.
    pub folder: PathBuf,
    /// Cores of the gate: each has connections of its own.
    pub cores: usize,
    /// The command that becomes an engine's minder.
    pub minder: Vec<OsString>,
    /// Reads secrets.
    pub read_secret: Box<ReadSecret>,
    /// Has models of the store here; `None` when there was no store at the start.
    pub models: Option<Arc<dyn ModelFolders>>,
    /// The GPUs here and their driver. Compiled code is kept only where they are known.
    pub driver: Option<GpuDriver>,
}

impl std::fmt::Debug for FleetSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetSettings")
            .field("folder", &self.folder)
            .field("cores", &self.cores)
            .finish_non_exhaustive()
    }
}

/// One replica as status shows it.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaStatus {
    /// Its id.
    pub replica: String,
    /// Its deployment.
    pub deployment: String,
    /// Its state.
    pub state: &'static str,
    /// Where it is.
    pub address: String,
    /// Requests of ours that it has.
    pub in_flight: u32,
    /// Requests that wait in the engine, if it says so.
    pub waiting: Option<f64>,
    /// Requests that run in the engine, if it says so.
    pub running: Option<f64>,
    /// KV cache in use, 0 to 1, if it says so.
    pub kv_usage: Option<f64>,
    /// Context window that it reports.
    pub context_tokens: Option<u64>,
    /// Whether its breaker keeps it out.
    pub broken: bool,
    /// What is in the way, if something is.
    pub problem: Option<String>,
}

struct Running {
    member: Member,
    supervised: Arc<Supervised>,
    stop: watch::Sender<bool>,
    port: Option<u16>,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    refused: Vec<(Member, MemberError)>,
    tasks: JoinSet<()>,
}

/// All replicas of the process.
pub struct Fleet {
    settings: FleetSettings,
    runtime: Handle,
    /// The authorities that the system believes, read when the first `https://` engine is met.
    tls: OnceLock<Arc<rustls::ClientConfig>>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Replicas by deployment.
pub type Backends = BTreeMap<DeploymentName, Vec<Arc<Backend>>>;

impl Fleet {
    /// An empty fleet whose supervisors run on `runtime`.
    #[must_use]
    pub fn new(settings: FleetSettings, runtime: Handle) -> Self {
        Self { settings, runtime, tls: OnceLock::new(), state: Mutex::default() }
    }

    /// Makes the fleet what the site wants: what is new is started, what is not wanted any more drains and stops, what
    /// is wanted as before stays as it is.
    pub fn apply(&self, site: &Site) -> Backends {
        let mut wanted = members(site);
        let mut state = self.state.lock();
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut state.running).into_iter().partition(|running| {
            // Each wanted replica keeps one that runs, also when one address is listed twice.
            let at = wanted.iter().position(|wanted| running.member.is(wanted));
            at.map(|at| wanted.swap_remove(at)).is_some()
        });
        for running in gone {
            tracing::info!(replica = %running.member.id, "no longer wanted, draining");
            running.stop.send_replace(true);
        }
        state.running = kept;
        state.refused.clear();
        wanted.sort_by(|a, b| a.id.cmp(&b.id));
        for mut member in wanted {
            member.id = free_id(&state.running, &member);
            if let Err(error) = self.start(&mut state, site, member.clone()) {
                tracing::error!(replica = %member.id, %error, "cannot have this replica");
                state.refused.push((member, error));
            }
        }
        let mut backends = Backends::new();
        for running in &state.running {
            let of_deployment = backends.entry(running.member.deployment.clone()).or_default();
            of_deployment.push(Arc::clone(&running.supervised.backend));
        }
        backends
    }

    fn start(&self, state: &mut State, site: &Site, member: Member) -> Result<(), MemberError> {
        let (endpoint, port) = self.endpoint(state, site, &member)?;
        let pool = PoolSettings { connect: site.timeouts.connect, ..PoolSettings::default() };
        let backend = Backend::new(Replica::new(member.id.clone()), &endpoint, pool, self.settings.cores);
        let supervised = Arc::new(Supervised::new(Arc::new(backend), endpoint.authority()));
        let (stop, stopping) = watch::channel(false);
        let plan = supervise::plan(&self.settings, &member, port)?;
        state.tasks.spawn_on(supervise(Arc::clone(&supervised), plan, stopping), &self.runtime);
        // Supervisors that have ended are forgotten here, so that reloads do not pile them up.
        while state.tasks.try_join_next().is_some() {}
        state.running.push(Running { member, supervised, stop, port });
        Ok(())
    }

    fn endpoint(&self, state: &State, site: &Site, member: &Member) -> Result<(Endpoint, Option<u16>), MemberError> {
        let address = |error: tidegate_engine::client::EndpointError| MemberError::Address(error.to_string().into());
        match &member.source {
            Source::External { url, api_key } => {
                let key = api_key.as_ref().map(|from| (self.settings.read_secret)(from)).transpose();
                let key = key.map_err(|text| MemberError::Secret(text.into()))?;
                let tls = if url.starts_with("https://") { Some(self.tls()?) } else { None };
                let endpoint = Endpoint::parse(url, key.as_deref(), tls).map_err(address)?;
                Ok((endpoint, None))
            }
            Source::Launched(_) => {
                let booked: BTreeSet<u16> = state.running.iter().filter_map(|running| running.port).collect();
                let port = lowest_free(site.engine_ports.clone(), &booked, IpAddr::V4(Ipv4Addr::LOCALHOST))
                    .ok_or(MemberError::NoPort)?;
                let endpoint = Endpoint::parse(&format!("http://127.0.0.1:{port}"), None, None).map_err(address)?;
                Ok((endpoint, Some(port)))
            }
        }
    }

    fn tls(&self) -> Result<&Arc<rustls::ClientConfig>, MemberError> {
        if let Some(config) = self.tls.get() {
            return Ok(config);
        }
        let config = tls::system().map_err(|error| MemberError::Address(error.to_string().into()))?;
        Ok(self.tls.get_or_init(|| config))
    }

    /// Stops everything: engines that were started here are ended, and none of their processes is left when this
    /// returns.
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

    /// Waits until every replica has been looked at once, or `within` has passed.
    pub async fn first_look(&self, within: Duration) {
        let looks: Vec<_> = self.state.lock().running.iter().map(|running| running.supervised.looked()).collect();
        let all = async {
            for mut look in looks {
                // An error means that its supervisor is gone: it will not look any more.
                let _ = look.wait_for(|looked| *looked).await;
            }
        };
        let _ = tokio::time::timeout(within, all).await;
    }

    /// Whether at least one replica serves, or none is wanted.
    #[must_use]
    pub fn serves(&self) -> bool {
        let state = self.state.lock();
        let nothing_wanted = state.running.is_empty() && state.refused.is_empty();
        nothing_wanted
            || state.running.iter().any(|running| running.supervised.backend.replica().state() == ReplicaState::Serving)
    }

    /// All replicas, those that cannot be had included.
    #[must_use]
    pub fn status(&self) -> Vec<ReplicaStatus> {
        let state = self.state.lock();
        let now = Instant::now();
        let running = state.running.iter().map(|running| running.supervised.status(&running.member, now));
        let refused = state.refused.iter().map(|(member, error)| ReplicaStatus {
            replica: member.id.to_string(),
            deployment: member.deployment.to_string(),
            state: ReplicaState::Failing.as_str(),
            address: String::new(),
            in_flight: 0,
            waiting: None,
            running: None,
            kv_usage: None,
            context_tokens: None,
            broken: false,
            problem: Some(error.to_string()),
        });
        running.chain(refused).collect()
    }
}

/// The lowest number of the deployment that no running replica has: one that was kept may have the wanted one's.
fn free_id(running: &[Running], member: &Member) -> ReplicaId {
    let taken = |id: &ReplicaId| running.iter().any(|running| running.member.id == *id);
    if !taken(&member.id) {
        return member.id.clone();
    }
    let numbered = (0_usize..).map(|index| ReplicaId::from(format!("{}/{index}", member.deployment)));
    numbered.into_iter().find(|id| !taken(id)).unwrap_or_else(|| member.id.clone())
}
