//! One replica's life: started if it is ours, proven by a real token, watched, ended.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_config::site::ModelSource;
use tidegate_engine::Dialect;
use tidegate_engine::backend::Backend;
use tidegate_engine::launch::{CommandLine, EngineSpec, Exit, Process, boot_log, root_cause};
use tidegate_engine::probe::{BOOTING_EVERY, NotReady, Probe};
use tidegate_engine::scrape::{self, scrape};
use tidegate_routing::ReplicaState;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::compiled::{Compiled, Found};
use crate::fleet::{FleetSettings, ReplicaStatus};
use crate::folders::{ModelFolder, ModelFolders};
use crate::member::{Launch, Member, MemberError, Source, model_path};

/// First wait after an engine of ours ended by itself; doubles.
pub(crate) const RESTART_FIRST: Duration = Duration::from_secs(1);
/// Bound of the doubling.
pub(crate) const RESTART_MAX: Duration = Duration::from_secs(60);
/// An engine that served this long starts the doubling anew.
pub(crate) const RESTART_FORGIVEN: Duration = Duration::from_secs(600);
/// Time between probes of an engine that fails otherwise than by booting.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Scrapes in a row that may fail before the engine has to prove itself again.
pub(crate) const SCRAPES_MISSED_MAX: u32 = 2;
/// How long a drain waits for what runs.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How long an engine has to end after SIGTERM.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// A replica and what its supervisor says of it.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) backend: Arc<Backend>,
    address: Box<str>,
    problem: Mutex<Option<String>>,
    looked: watch::Sender<bool>,
}

/// What a supervisor does.
#[derive(Debug)]
pub(crate) struct Plan {
    probe: Probe,
    start: Option<Start>,
}

#[derive(Debug)]
struct Start {
    minder: Vec<OsString>,
    instance: String,
    launch: Launch,
    dialect: Dialect,
    port: u16,
    model: Model,
    compiled: Option<Compiled>,
    log: PathBuf,
}

/// Where the model of an engine is.
enum Model {
    /// On this machine, as it is.
    Here(PathBuf),
    /// In the store: to be had here first.
    Stored { path: Arc<str>, digest: Option<Arc<str>>, folders: Arc<dyn ModelFolders> },
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Here(path) => f.debug_tuple("Here").field(path).finish(),
            Self::Stored { path, digest, folders: _ } => {
                f.debug_struct("Stored").field("path", path).field("digest", digest).finish_non_exhaustive()
            }
        }
    }
}

impl Start {
    /// Has the model here. The folder of one that came from the store is to be held while the engine has it.
    async fn model(&self, replica: &Supervised) -> Result<(PathBuf, Option<ModelFolder>), String> {
        match &self.model {
            Model::Here(path) => Ok((path.clone(), None)),
            Model::Stored { path, digest, folders } => {
                let say = |text| replica.tell(text);
                let folder = folders.folder(path, digest.as_deref(), &say).await?;
                let model = model_path(&folder.path, self.dialect).map_err(|error| error.to_string())?;
                Ok((model, Some(folder)))
            }
        }
    }

    /// What the engine compiles, if that is kept: only of a model whose digest is known.
    fn compiled(&self) -> Option<(&Compiled, &dyn ModelFolders)> {
        match &self.model {
            Model::Stored { folders, .. } => Some((self.compiled.as_ref()?, &**folders)),
            Model::Here(_) => None,
        }
    }

    fn command(&self, model: &Path) -> CommandLine {
        let mut command = CommandLine::render(&EngineSpec {
            dialect: self.dialect,
            engine: self.launch.engine.as_ref(),
            deployment: &self.launch.deployment,
            model,
            host: "127.0.0.1",
            port: &self.port.to_string(),
            gpu_memory_bytes: None,
            may_sleep: false,
        });
        if let Some((compiled, _)) = self.compiled() {
            compiled.tell(&mut command.env);
        }
        command
    }
}

/// Prepares a supervisor.
pub(crate) fn plan(settings: &FleetSettings, member: &Member, port: Option<u16>) -> Result<Plan, MemberError> {
    let probe = Probe { dialect: member.dialect, kind: member.kind, served_name: Arc::clone(&member.served_name) };
    let start = match (&member.source, port) {
        (Source::Launched(launch), Some(port)) => Some(start(settings, member, launch, port)?),
        (Source::Launched(_) | Source::External { .. }, _) => None,
    };
    Ok(Plan { probe, start })
}

fn start(settings: &FleetSettings, member: &Member, launch: &Launch, port: u16) -> Result<Start, MemberError> {
    let name = || launch.deployment.model.as_str().into();
    let model = match &launch.model {
        Some(ModelSource::Local(path)) => Model::Here(model_path(path, member.dialect)?),
        Some(ModelSource::Store { path, digest }) => {
            let folders = settings.models.clone().ok_or_else(|| MemberError::NoStore(name()))?;
            Model::Stored { path: Arc::clone(path), digest: digest.clone(), folders }
        }
        None => return Err(MemberError::NoSource(name())),
    };
    let instance = member.id.as_str().replace('/', "-");
    let log = settings.folder.join(format!("{instance}.log"));
    let compiled = Compiled::new(settings, member, launch, &instance);
    Ok(Start {
        compiled,
        minder: settings.minder.clone(),
        instance,
        launch: launch.clone(),
        dialect: member.dialect,
        port,
        model,
        log,
    })
}

impl Supervised {
    pub(crate) fn new(backend: Arc<Backend>, address: &str) -> Self {
        Self { backend, address: address.into(), problem: Mutex::new(None), looked: watch::Sender::new(false) }
    }

    pub(crate) fn looked(&self) -> watch::Receiver<bool> {
        self.looked.subscribe()
    }

    pub(crate) fn status(&self, member: &Member, now: Instant) -> ReplicaStatus {
        let signals = self.backend.signals(now).unwrap_or_default();
        let replica = self.backend.replica();
        ReplicaStatus {
            replica: member.id.to_string(),
            deployment: member.deployment.to_string(),
            state: replica.state().as_str(),
            address: self.address.to_string(),
            in_flight: replica.booked(),
            waiting: signals.waiting,
            running: signals.running,
            kv_usage: signals.kv_usage,
            context_tokens: self.backend.context_tokens(),
            broken: replica.open_until().is_some(),
            problem: self.problem.lock().clone(),
        }
    }

    fn set_state(&self, state: ReplicaState) {
        self.backend.replica().set_state(state);
    }

    fn note(&self, what: &'static str) {
        tracing::info!(replica = %self.backend.replica().id(), "{what}");
    }

    /// The engine is gone: nothing it said holds any more.
    fn lost(&self, why: String) {
        self.set_state(ReplicaState::Failing);
        self.backend.set_sample(None);
        self.backend.close_idle();
        self.say(Some(why));
        self.looked.send_replace(true);
    }

    /// Says how far something is that is in the way, in status only: whoever does it logs it at its own pace.
    fn tell(&self, progress: String) {
        *self.problem.lock() = Some(progress);
    }

    /// Says what is in the way, in status always and in the log when it is news.
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
}

/// Runs until `stopping` says so.
pub(crate) async fn supervise(replica: Arc<Supervised>, plan: Plan, mut stopping: watch::Receiver<bool>) {
    let mut wait = RESTART_FIRST;
    loop {
        let served_since = Instant::now();
        match &plan.start {
            None => watch_external(&replica, &plan.probe, &mut stopping).await,
            Some(start) => run_ours(&replica, &plan.probe, start, &mut stopping).await,
        }
        if *stopping.borrow() {
            break;
        }
        if served_since.elapsed() >= RESTART_FORGIVEN {
            wait = RESTART_FIRST;
        }
        tokio::select! {
            () = sleep(wait) => wait = (wait * 2).min(RESTART_MAX),
            () = stop_asked(&mut stopping) => break,
        }
    }
    replica.set_state(ReplicaState::Stopped);
}

async fn stop_asked(stopping: &mut watch::Receiver<bool>) {
    // An error means that whoever could ask is gone.
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn watch_external(replica: &Supervised, probe: &Probe, stopping: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = watch_forever(replica, probe) => {}
        () = stop_asked(stopping) => drain(replica).await,
    }
}

async fn run_ours(replica: &Supervised, probe: &Probe, start: &Start, stopping: &mut watch::Receiver<bool>) {
    let model = tokio::select! {
        model = start.model(replica) => model,
        () = stop_asked(stopping) => return,
    };
    // The folder is held until the engine has ended.
    let (model, folder) = match model {
        Ok(model) => model,
        Err(why) => {
            replica.say(Some(why));
            replica.looked.send_replace(true);
            return;
        }
    };
    let found = tokio::select! {
        found = lay_out(start, folder.as_ref()) => found,
        () = stop_asked(stopping) => return,
    };
    let mut process = match Process::start(&start.minder, &start.instance, &start.command(&model), &start.log) {
        Ok(process) => process,
        Err(error) => {
            replica.say(Some(format!("cannot be started: {error}")));
            replica.looked.send_replace(true);
            return;
        }
    };
    let log_from = process.log_start();
    replica.note("engine started");
    tokio::select! {
        () = watch_ours(replica, probe, start, folder.as_ref(), found) => {}
        exit = process.exited() => replica.lost(ended(&exit, start, log_from)),
        () = stop_asked(stopping) => {
            drain(replica).await;
            replica.backend.close_idle();
            process.stop(STOP_PATIENCE).await;
            replica.note("engine ended");
        }
    }
}

/// Has what an earlier load compiled where the engine looks for it.
async fn lay_out(start: &Start, folder: Option<&ModelFolder>) -> Option<Found> {
    let ((compiled, folders), folder) = (start.compiled()?, folder?);
    Some(compiled.lay_out(folders, &folder.path).await)
}

/// As [`watch_forever`]; what the engine compiled in this load is kept once it serves.
async fn watch_ours(
    replica: &Supervised,
    probe: &Probe,
    start: &Start,
    folder: Option<&ModelFolder>,
    found: Option<Found>,
) {
    prove(replica, probe).await;
    let keep = async {
        if let (Some(Found::Miss), Some((compiled, folders)), Some(folder)) = (found, start.compiled(), folder) {
            compiled.keep(folders, &folder.path).await;
        }
    };
    let watch = async {
        watch_serving(replica, probe.dialect).await;
        watch_forever(replica, probe).await;
    };
    tokio::join!(keep, watch);
}

/// The reason of an end, from the log of this boot: the first exception, not the last line.
fn ended(exit: &Exit, start: &Start, log_from: u64) -> String {
    let log = boot_log(&start.log, log_from).unwrap_or_default();
    let cause = root_cause(&log).unwrap_or_else(|| "its log is empty".to_owned());
    format!("engine ended ({exit}); {}: {cause}", start.log.display())
}

/// Proves the engine, then scrapes it until it falls silent, and again.
async fn watch_forever(replica: &Supervised, probe: &Probe) {
    loop {
        prove(replica, probe).await;
        watch_serving(replica, probe.dialect).await;
    }
}

/// Asks for a token until one comes.
async fn prove(replica: &Supervised, probe: &Probe) {
    loop {
        let outcome = probe.run(replica.backend.watch_pool()).await;
        let wait = match outcome {
            Ok(ready) => {
                replica.backend.set_context_tokens(ready.context_tokens);
                replica.say(None);
                replica.set_state(ReplicaState::Serving);
                replica.looked.send_replace(true);
                tracing::info!(replica = %replica.backend.replica().id(), "serving");
                return;
            }
            Err(NotReady::Booting(why)) => {
                replica.say(Some(format!("booting: {why}")));
                BOOTING_EVERY
            }
            Err(why) => {
                replica.say(Some(why.to_string()));
                PROBE_EVERY
            }
        };
        replica.looked.send_replace(true);
        sleep(wait).await;
    }
}

/// Scrapes until the engine has to prove itself again: it missed scrapes, or requests found it broken and the breaker
/// has been open since the last look.
async fn watch_serving(replica: &Supervised, dialect: Dialect) {
    let mut missed = 0;
    loop {
        match scrape(replica.backend.watch_pool(), dialect).await {
            Ok(sample) => {
                replica.backend.set_sample(Some(sample));
                missed = 0;
            }
            // It answers; it just has no such page, or not for us.
            Err(scrape::ScrapeError::Status(401 | 403 | 404 | 405 | 501)) => missed = 0,
            Err(error) => {
                missed += 1;
                if missed >= SCRAPES_MISSED_MAX {
                    replica.set_state(ReplicaState::Failing);
                    replica.backend.set_sample(None);
                    replica.say(Some(format!("does not answer: {error}")));
                    return;
                }
            }
        }
        sleep(scrape::EVERY).await;
        if replica.backend.replica().open_until().is_some() {
            replica.set_state(ReplicaState::Failing);
            replica.say(Some("requests found it broken".to_owned()));
            return;
        }
    }
}

/// Out of the pick first; then what runs may finish.
async fn drain(replica: &Supervised) {
    replica.set_state(ReplicaState::Draining);
    let gone = async {
        while replica.backend.replica().booked() > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    if timeout(DRAIN_MAX, gone).await.is_err() {
        tracing::warn!(replica = %replica.backend.replica().id(), "drain timeout passed");
    }
}
