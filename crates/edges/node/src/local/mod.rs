//! A node's own hands: [`crate::Node`] on the machine it runs on.
//!
//! ```text
//! start ── held model ── GPUs seen free ── port ── cgroups ── record.json ── minder ── engine
//! watch ── connected to the minder: stop, log, phases ── minder gone ── nobody left ── cause ── record.json
//! prove ── nobody left ── three samples of every GPU ── record.json        forget ── nothing
//! ```
//!
//! Everything that has to survive this process is in the state folder before it matters: whoever opens it again finds
//! every instance, connects to its minder and goes on, or ends what a dead minder left.

mod events;
mod fence;
mod gpus;
mod prove;
mod settings;
mod start;
mod table;
mod watch;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{RwLock, oneshot};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use self::events::Events;
use self::fence::Fence;
pub use self::gpus::Driver;
use self::gpus::Gpus;
pub use self::settings::{LocalNodeSettings, OnExit};
use self::table::{Entry, read_all};
use crate::facts::{FactSource, Facts, Problem, ProofKind};
use crate::fault::NodeError;
use crate::files::{self, Lock};
use crate::guard::Guard;
use crate::id::InstanceId;
use crate::instance_folder::InstanceFolder;
use crate::log;
use crate::minder::LEFTOVER_PATIENCE;
use crate::order::{Keep, ModelAt, ModelOrder, StartOrder};
use crate::process::{self, Mark};
use crate::report::{Event, Happened, InstanceReport, LogPart, ModelReport, ModelState, Proof, ProvenBy};
use crate::seam::{ModelHands, Node};

/// How often what lives on the GPUs is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// How long the end of everything may take beyond the patience that was given.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// How long an engine without a record has to end.
const UNKNOWN_PATIENCE: Duration = Duration::from_secs(10);
/// How long a minder may take to be met when a state folder is opened.
const MEET_WITHIN: Duration = Duration::from_secs(5);
/// Longest patience: a day.
const PATIENCE_MAX: Duration = Duration::from_secs(86_400);

/// This machine as a node.
#[derive(Debug)]
pub struct LocalNode {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    settings: LocalNodeSettings,
    lead: Vec<String>,
    /// Our state folder's fingerprint.
    state: String,
    instances: PathBuf,
    guard: Guard,
    gpus: Gpus,
    fence: Fence,
    events: Events,
    table: Mutex<BTreeMap<InstanceId, Entry>>,
    ports: Mutex<BTreeMap<InstanceId, u16>>,
    starting: Mutex<BTreeMap<InstanceId, Arc<tokio::sync::Mutex<()>>>>,
    broken: Mutex<BTreeMap<InstanceId, String>>,
    tasks: Mutex<JoinSet<()>>,
    /// Held by every start, and by the end of everything; whether that has begun.
    closing: RwLock<bool>,
    /// Until the end of everything.
    lock: Mutex<Option<Lock>>,
}

impl LocalNode {
    /// Opens the state folder, finds what runs and goes on with it. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process uses it.
    pub async fn open(settings: LocalNodeSettings) -> Result<Self, NodeError> {
        let (instances, own) = (settings.folder.join("instances"), settings.folder.join("node"));
        let failed = |error: io::Error| NodeError::io(format!("state folder {}", settings.folder.display()), error);
        files::private_folder(&instances).and_then(|()| files::private_folder(&own)).map_err(failed)?;
        let lock = lock(&own.join("lock")).map_err(failed)?;
        let found = read_all(&instances).map_err(failed)?;
        let state = fingerprint(&settings.folder);
        let shared = Arc::new(Shared {
            lead: start::lead(&settings.minder),
            guard: Guard::detect(settings.guard, &format!("tidegate-{state}")),
            state,
            gpus: Gpus::open(settings.driver.clone(), own.join("gpus.json"))?,
            fence: Fence::open(own.join("generation.json"))?,
            events: Events::new(jiff::Timestamp::now()),
            table: Mutex::default(),
            ports: Mutex::default(),
            starting: Mutex::default(),
            broken: Mutex::default(),
            tasks: Mutex::default(),
            closing: RwLock::new(false),
            instances,
            settings,
            lock: Mutex::new(Some(lock)),
        });
        for entry in found.entries {
            shared.adopt(entry).await;
        }
        for (id, folder) in found.broken {
            shared.end_unknown(id, folder);
        }
        shared.meet_all().await;
        let own = Arc::clone(&shared);
        shared.spawn(async move { own.measure_for_ever().await });
        if let Some(hands) = shared.settings.models.clone() {
            let own = Arc::clone(&shared);
            shared.spawn(async move { own.tell_of_models(&*hands).await });
        }
        // What GPUs use when idle is best learned before anything is started.
        shared.see().await;
        Ok(Self { shared })
    }

    /// Ends this process's part. The state folder may be opened again afterwards.
    pub async fn close(&self, on_exit: OnExit) {
        // A start that was begun is finished or undone first; none begins after it.
        *self.shared.closing.write().await = true;
        if let OnExit::Stop(patience) = on_exit {
            let ids: Vec<InstanceId> = self.shared.table.lock().keys().cloned().collect();
            for id in ids {
                drop(self.shared.stop(&id, patience));
            }
            let all_ended = async {
                let mut after = 0;
                while self.shared.table.lock().values().any(Entry::is_alive) {
                    after = self.shared.events.after(after).await.last().map_or(after, |event| event.number);
                }
            };
            if timeout(patience + LEFTOVER_PATIENCE + SHUTDOWN_GRACE, all_ended).await.is_err() {
                tracing::error!("an engine's processes do not end: its minder goes on trying");
            }
        }
        let mut tasks = std::mem::take(&mut *self.shared.tasks.lock());
        tasks.shutdown().await;
        self.shared.guard.tidy();
        // Whoever opens the folder next may do so now.
        drop(self.shared.lock.lock().take());
    }
}

/// What a node on this machine would have, guarantee and see, without being one: for a look before, or beside, the one that
/// runs. Nothing is started and nothing is kept.
///
/// # Errors
/// When no temporary folder can be made.
pub async fn check(mut settings: LocalNodeSettings) -> Result<Facts, NodeError> {
    let folder = std::env::temp_dir().join(format!("tidegate-check-{}", std::process::id()));
    settings.folder.clone_from(&folder);
    settings.models = None;
    let node = LocalNode::open(settings).await?;
    let facts = node.shared.facts().await;
    node.close(OnExit::Leave).await;
    fs::remove_dir_all(&folder).map_err(|error| NodeError::io("cannot remove the folder of a check", error))?;
    Ok(facts)
}

fn lock(path: &Path) -> io::Result<Lock> {
    let taken = || io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it: stop that one first");
    Lock::try_new(path)?.ok_or_else(taken)
}

/// Tells the cgroups and processes of two nodes on one machine apart: FNV-1a of the state folder's path.
fn fingerprint(folder: &Path) -> String {
    let path = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let hash = path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

impl Shared {
    /// Runs a task until the node is closed.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Does something with an instance.
    fn with<T>(&self, id: &InstanceId, act: impl FnOnce(&mut Entry) -> T) -> Result<T, NodeError> {
        let mut table = self.table.lock();
        let entry = table.get_mut(id).ok_or_else(|| NodeError::UnknownInstance { instance: id.to_string() })?;
        Ok(act(entry))
    }

    /// What every process of an instance has in its environment.
    fn mark(&self, id: &InstanceId) -> Mark {
        Mark { instance: id.to_string(), state: Some(self.state.clone()) }
    }

    fn hands(&self) -> Result<&Arc<dyn ModelHands>, NodeError> {
        self.settings.models.as_ref().ok_or_else(|| NodeError::bad("this node has no model cache"))
    }

    fn orphan_after_ms(&self) -> Option<u64> {
        self.settings.orphan_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
    }

    /// One start of an instance at a time.
    fn lock_of(&self, id: &InstanceId) -> Arc<tokio::sync::Mutex<()>> {
        let mut starting = self.starting.lock();
        starting.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(starting.entry(id.clone()).or_default())
    }

    /// Goes on with an instance that an earlier process of ours started.
    async fn adopt(self: &Arc<Self>, mut entry: Entry) {
        let id = entry.record.instance.clone();
        let is_alive = entry.is_alive();
        if is_alive {
            if let Some(port) = entry.record.port {
                self.ports.lock().insert(id.clone(), port);
            }
            entry.minding = files::read(&entry.folder.minding()).ok().flatten();
            entry.model = self.hold_again(&entry).await;
        }
        self.table.lock().insert(id.clone(), entry);
        if is_alive {
            tracing::info!(instance = %id, "going on with an instance that was started before");
            Self::watch(self, id, None, None);
        }
    }

    /// Waits until every minder has been met, within bounds: what is reported then is how it is.
    async fn meet_all(&self) {
        let alive = |entry: &Entry| entry.is_alive().then(|| entry.met.subscribe());
        let all: Vec<_> = self.table.lock().values().filter_map(alive).collect();
        for mut met in all {
            drop(timeout(MEET_WITHIN, met.wait_for(|met| *met)).await);
        }
    }

    async fn hold_again(&self, entry: &Entry) -> Option<crate::seam::HeldModel> {
        let ModelAt::Stored { path, digest } = &entry.record.model.as_ref()?.at else { return None };
        let model = ModelOrder { path: path.clone(), digest: digest.clone() };
        let held = self.hands().ok()?.hold(model, &entry.record.instance).await;
        held.map_err(|error| tracing::warn!(%error, "the model of a running engine cannot be held")).ok()
    }

    /// Ends the engine of a folder whose record cannot be read: nobody knows any more what it is.
    fn end_unknown(self: &Arc<Self>, id: InstanceId, folder: InstanceFolder) {
        self.broken.lock().insert(id.clone(), "its record cannot be read: its processes are being ended".to_owned());
        let own = Arc::clone(self);
        self.spawn(async move {
            if let Some(mut stream) = watch::connect(&folder).await {
                let told = format!("stop {}\n", UNKNOWN_PATIENCE.as_millis());
                drop(tokio::io::AsyncWriteExt::write_all(&mut stream, told.as_bytes()).await);
                drop(tokio::io::AsyncReadExt::read(&mut stream, &mut [0]).await);
            }
            let launch = files::read::<crate::instance_folder::Launch>(&folder.launch()).ok().flatten();
            own.sweep(&folder, &id, &launch.map(|launch| launch.cage).unwrap_or_default()).await;
            let why = format!("its record cannot be read: nothing of it runs; remove {}", folder.path().display());
            own.broken.lock().insert(id, why);
        });
    }

    /// Says when a model came, or could not be had.
    async fn tell_of_models(&self, hands: &dyn ModelHands) {
        let mut known: BTreeMap<ModelOrder, Discriminant<ModelState>> = BTreeMap::new();
        loop {
            let before = std::mem::take(&mut known);
            for report in hands.models().await.unwrap_or_default() {
                let model = ModelOrder { path: report.path.clone(), digest: report.digest.clone() };
                let state = discriminant(&report.state);
                let is_news = before.get(&model) != Some(&state);
                known.insert(model, state);
                if is_news {
                    self.events.push(Happened::Model { report });
                }
            }
            hands.changed().await;
        }
    }

    async fn measure_for_ever(&self) {
        let mut every = interval(MEASURE_EVERY);
        loop {
            every.tick().await;
            let is_needed = self.table.lock().values().any(|entry| entry.is_alive() && !entry.record.gpus.is_empty());
            if is_needed {
                self.see().await;
            }
        }
    }

    fn stop(&self, id: &InstanceId, patience: Duration) -> Result<(), NodeError> {
        let patience = patience.min(PATIENCE_MAX);
        self.with(id, |entry| {
            if entry.is_alive() {
                entry.stop.send_modify(|given| *given = Some(given.map_or(patience, |given| given.min(patience))));
            }
        })
    }

    fn forget(&self, id: &InstanceId) -> Result<(), NodeError> {
        let mut table = self.table.lock();
        let Some(entry) = table.get(id) else { return Ok(()) };
        if entry.is_alive() {
            return Err(NodeError::bad("it runs: stop it first"));
        }
        if entry.record.is_unproven() {
            return Err(NodeError::bad(format!("its memory is not proven free: {}", entry.record.why_not_free())));
        }
        fs::remove_dir_all(entry.folder.path()).map_err(|error| NodeError::io("cannot remove its folder", error))?;
        table.remove(id);
        drop(table);
        self.events.push(Happened::Forgotten { instance: id.clone() });
        Ok(())
    }

    fn release(&self, gpu: u32, reason: &str) {
        let mut proven = Vec::new();
        let mut table = self.table.lock();
        let on_it = |entry: &&mut Entry| entry.record.gpus.contains(&gpu) && entry.record.is_unproven();
        for entry in table.values_mut().filter(on_it) {
            let record = &mut entry.record;
            record.released.insert(gpu, reason.to_owned());
            if record.gpus.iter().all(|gpu| record.released.contains_key(gpu)) {
                let proof = Proof::Free { by: ProvenBy::Person };
                record.proof = Some(proof.clone());
                proven.push(Happened::Proven { instance: record.instance.clone(), proof });
            }
            entry.keep();
        }
        drop(table);
        self.events.push(Happened::Released { gpu, reason: reason.to_owned() });
        for event in proven {
            self.events.push(event);
        }
    }

    async fn facts(&self) -> Facts {
        let seen = self.see().await;
        let gpus = self.gpu_facts(&seen);
        let (host_memory_bytes, host_free_bytes) = self.settings.machine.memory();
        let mut problems = seen.inventory.problems;
        problems.extend(self.broken.lock().iter().map(|(id, why)| Problem {
            is_error: false,
            what: format!("instance {id}: {why}"),
            hint: None,
        }));
        let has_figures = || {
            let mut listed = gpus.iter().map(|gpu| gpu.processes.as_ref());
            listed.all(|listed| listed.is_some_and(|listed| listed.iter().all(|process| process.used_bytes.is_some())))
        };
        let proof = match seen.inventory.source {
            FactSource::Nvml if has_figures() => ProofKind::Nvml,
            FactSource::Nvml => ProofKind::Total,
            FactSource::Document | FactSource::None => ProofKind::Processes,
        };
        Facts {
            node: self.settings.name.clone(),
            boot_id: process::boot_id(),
            driver: seen.inventory.driver,
            gpus,
            numa: seen.inventory.numa,
            host_memory_bytes,
            host_free_bytes,
            source: seen.inventory.source,
            guard: self.guard.facts().clone(),
            proof,
            problems,
        }
    }
}

#[async_trait]
impl Node for LocalNode {
    async fn facts(&self) -> Result<Facts, NodeError> {
        Ok(self.shared.facts().await)
    }

    async fn instances(&self) -> Result<Vec<InstanceReport>, NodeError> {
        Ok(self.shared.table.lock().values().map(Entry::report).collect())
    }

    async fn start(&self, generation: u64, order: StartOrder) -> Result<InstanceReport, NodeError> {
        self.shared.fence.admit(generation)?;
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        // A task of its own: who asked may stop waiting, and a start that was begun is finished or undone.
        self.shared.spawn(async move {
            let closing = shared.closing.read().await;
            if !*closing {
                drop(sender.send(Arc::clone(&shared).start(generation, order).await));
            }
        });
        receiver.await.unwrap_or_else(|_| Err(NodeError::Away { why: "the node is closing".to_owned() }))
    }

    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), NodeError> {
        self.shared.fence.admit(generation)?;
        // A start in progress comes first.
        let lock = self.shared.lock_of(instance);
        let _one_at_a_time = lock.lock().await;
        self.shared.stop(instance, patience)
    }

    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, NodeError> {
        self.shared.fence.admit(generation)?;
        self.shared.prove(instance).await
    }

    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), NodeError> {
        self.shared.fence.admit(generation)?;
        self.shared.forget(instance)
    }

    async fn log(&self, instance: &InstanceId, from: u64, bytes_max: u32) -> Result<LogPart, NodeError> {
        let path = self.shared.with(instance, |entry| entry.folder.log())?;
        log::part(&path, from, bytes_max).map_err(|error| NodeError::io("cannot read the log", error))
    }

    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        match &self.shared.settings.models {
            Some(hands) => hands.models().await,
            None => Ok(Vec::new()),
        }
    }

    async fn have(&self, generation: u64, order: ModelOrder) -> Result<ModelReport, NodeError> {
        self.shared.fence.admit(generation)?;
        self.shared.hands()?.have(order).await
    }

    async fn keep(&self, generation: u64, kept: Vec<Keep>) -> Result<(), NodeError> {
        self.shared.fence.admit(generation)?;
        match &self.shared.settings.models {
            Some(hands) => hands.keep(kept).await,
            None if kept.is_empty() => Ok(()),
            None => self.shared.hands().map(|_| ()),
        }
    }

    async fn release(&self, generation: u64, gpu: u32, reason: &str) -> Result<(), NodeError> {
        self.shared.fence.admit(generation)?;
        self.shared.release(gpu, reason);
        Ok(())
    }

    async fn events(&self, after: u64) -> Result<Vec<Event>, NodeError> {
        Ok(self.shared.events.after(after).await)
    }
}
