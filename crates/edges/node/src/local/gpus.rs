//! The GPUs of a node: looked at, measured, and found free before something is started on them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Shared;
use super::table::{Entry, OWN_PIDS_MAX};
use crate::facts::{FactSource, GpuFacts, GpuProcess, GpuState};
use crate::fault::NodeError;
use crate::files;
use crate::gather::{Inventory, inventory};
use crate::id::InstanceId;
use crate::nvml::{GpuLook, Library, Nvml, NvmlFault};
use crate::order::StartOrder;
use crate::process;
use crate::proof::{Measured, SLACK_BYTES, mib};

/// Longest that the driver is waited for.
const DRIVER_WAIT: Duration = Duration::from_secs(10);
/// Calls into the driver at once: one that hangs does not take every thread.
const CALLS_MAX: usize = 4;
/// A record is written anew when a measured peak has risen by this.
const PEAK_STEP_BYTES: u64 = 256 * 1024 * 1024;

/// Where the driver's figures come from.
#[derive(Clone, Debug, Default)]
pub enum Driver {
    /// The driver's library, looked for again while there is none.
    #[default]
    Load,
    /// This one.
    Given(Arc<dyn Nvml>),
    /// None: nothing can be measured.
    None,
}

/// The driver, and what is remembered of its GPUs.
#[derive(Debug)]
pub(crate) struct Gpus {
    choice: Driver,
    loaded: Mutex<Option<Arc<dyn Nvml>>>,
    calls: Arc<Semaphore>,
    path: PathBuf,
    /// The least that was ever in use with nobody on it, by UUID, else by index.
    baselines: Mutex<BTreeMap<String, u64>>,
}

impl Gpus {
    pub(crate) fn open(choice: Driver, path: PathBuf) -> Result<Self, NodeError> {
        let baselines = files::read(&path).map_err(|error| NodeError::io("cannot read gpus.json", error))?;
        Ok(Self {
            choice,
            loaded: Mutex::default(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            path,
            baselines: Mutex::new(baselines.unwrap_or_default()),
        })
    }

    fn driver(&self) -> Option<Arc<dyn Nvml>> {
        match &self.choice {
            Driver::None => None,
            Driver::Given(nvml) => Some(Arc::clone(nvml)),
            Driver::Load => {
                let mut loaded = self.loaded.lock();
                if loaded.is_none() {
                    *loaded = Library::load().ok().map(|library| Arc::new(library) as Arc<dyn Nvml>);
                }
                loaded.clone()
            }
        }
    }

    /// Asks the driver something, on a thread of its own and within bounds.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Option<Arc<dyn Nvml>>) -> T + Send + 'static,
    ) -> Result<T, NvmlFault> {
        let silent = || NvmlFault(format!("does not answer within {} s", DRIVER_WAIT.as_secs()));
        let answer = async {
            let permit = Arc::clone(&self.calls).acquire_owned().await.map_err(|_| silent())?;
            let driver = self.driver();
            let call = tokio::task::spawn_blocking(move || {
                let answer = question(driver);
                drop(permit);
                answer
            });
            call.await.map_err(|_| silent())
        };
        timeout(DRIVER_WAIT, answer).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn look(&self) -> Result<Vec<GpuLook>, NvmlFault> {
        self.ask(|nvml| nvml.map_or_else(|| Err(NvmlFault("there is none".to_owned())), |nvml| nvml.look())).await?
    }

    pub(crate) fn baseline(&self, gpu: &GpuFacts) -> u64 {
        self.baselines.lock().get(&key(gpu)).copied().unwrap_or(0)
    }

    fn learn(&self, gpu: &GpuFacts, used: u64) {
        let mut baselines = self.baselines.lock();
        let known = baselines.get(&key(gpu)).copied();
        if known.is_some_and(|known| known <= used) {
            return;
        }
        baselines.insert(key(gpu), used);
        if let Err(error) = files::write(&self.path, &*baselines) {
            tracing::warn!(%error, "what gpus use when idle cannot be kept");
        }
    }
}

/// A process of an instance that was not started here (a Pod's) says so in its environment.
fn named_by_its_mark(process: GpuProcess) -> GpuProcess {
    let marked = || {
        let mark = process::Mark::of(i32::try_from(process.pid).ok()?).filter(|mark| mark.state.is_none())?;
        InstanceId::new(&mark.instance).ok()
    };
    let instance = process.instance.clone().or_else(marked);
    GpuProcess { instance, ..process }
}

fn key(gpu: &GpuFacts) -> String {
    gpu.uuid.as_ref().map_or_else(|| gpu.index.to_string(), |uuid| uuid.as_str().to_owned())
}

/// One look at all GPUs, with everything that is known of them.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) inventory: Inventory,
    /// By index; empty where nothing can be measured.
    pub(crate) looks: BTreeMap<u32, GpuLook>,
}

impl Seen {
    pub(crate) fn gpu(&self, index: u32) -> Option<&GpuFacts> {
        self.inventory.gpus.iter().find(|gpu| gpu.index == index)
    }
}

/// Who has each listed process.
pub(crate) type Owners = BTreeMap<u32, InstanceId>;

impl Shared {
    /// What GPUs there are, and what is on them now. Measures what lives on the way.
    pub(crate) async fn see(&self) -> Seen {
        let (machine, document) = (self.settings.machine.clone(), self.settings.document.clone());
        let gathered = self.gpus.ask(move |nvml| inventory(nvml.as_deref(), &machine, document.as_ref())).await;
        let mut found = gathered.unwrap_or_else(|fault| Inventory {
            source: FactSource::None,
            driver: None,
            gpus: Vec::new(),
            numa: self.settings.machine.numa(),
            problems: vec![crate::facts::Problem { is_error: true, what: fault.to_string(), hint: None }],
        });
        let mut looks = BTreeMap::new();
        if found.source == FactSource::Nvml {
            match self.gpus.look().await {
                Ok(seen) => looks = seen.into_iter().map(|look| (look.index, look)).collect(),
                Err(fault) => {
                    found.problems.push(crate::facts::Problem { is_error: true, what: fault.to_string(), hint: None });
                }
            }
        }
        let seen = Seen { inventory: found, looks };
        self.measure(&seen);
        seen
    }

    /// Who has the processes that the driver lists: by the mark in their environment, or by their cgroup.
    pub(crate) fn owners(&self, looks: &BTreeMap<u32, GpuLook>) -> Owners {
        let listed = looks.values().flat_map(|look| look.processes.iter().flatten().map(|(pid, _)| *pid));
        let listed: BTreeSet<u32> = listed.collect();
        if listed.is_empty() {
            return Owners::new();
        }
        let table = self.table.lock();
        let mut owners = Owners::new();
        for (id, entry) in table.iter().filter(|(_, entry)| entry.is_alive()) {
            for proc in entry.record.cage.procs() {
                owners.insert(proc.pid.unsigned_abs(), id.clone());
            }
        }
        for pid in &listed {
            let mark = i32::try_from(*pid).ok().and_then(process::Mark::of);
            let mark = mark.filter(|mark| mark.state.as_ref() == Some(&self.state));
            if let Some((id, _)) = mark.and_then(|mark| table.get_key_value(mark.instance.as_str())) {
                owners.insert(*pid, id.clone());
            }
        }
        owners.retain(|pid, _| listed.contains(pid));
        owners
    }

    /// Remembers what living instances use, and what a GPU uses with nobody on it.
    fn measure(&self, seen: &Seen) {
        let owners = self.owners(&seen.looks);
        let mut table = self.table.lock();
        for gpu in &seen.inventory.gpus {
            let Some(look) = seen.looks.get(&gpu.index) else { continue };
            let mut is_anybody_there = look.processes.as_ref().is_some_and(|listed| !listed.is_empty());
            for entry in table.values_mut() {
                let Some(index) = entry.record.index_of(gpu) else { continue };
                is_anybody_there |= entry.is_alive() || entry.record.is_unproven();
                if entry.is_alive() {
                    measure_one(entry, index, look, &owners);
                }
            }
            if let (false, None, Some(used)) = (is_anybody_there, &look.failed, look.used_bytes) {
                self.gpus.learn(gpu, used);
            }
        }
    }

    /// GPUs as they are reported.
    pub(crate) fn gpu_facts(&self, seen: &Seen) -> Vec<GpuFacts> {
        let owners = self.owners(&seen.looks);
        let facts = seen.inventory.gpus.iter().map(|gpu| {
            let look = seen.looks.get(&gpu.index);
            let processes = look.and_then(|look| look.processes.as_ref()).map(|listed| {
                let process = |(pid, used_bytes): &(u32, Option<u64>)| GpuProcess {
                    pid: *pid,
                    used_bytes: *used_bytes,
                    instance: owners.get(pid).cloned(),
                    name: process::name_of(*pid),
                };
                listed.iter().map(process).collect::<Vec<_>>()
            });
            let failed = look.and_then(|look| look.failed.clone());
            let state = self.gpu_state(gpu, failed, processes.as_deref().unwrap_or_default());
            // whose they are is said also when it was not us who started them: nothing is started beside them by us
            let processes = processes.map(|listed| listed.into_iter().map(named_by_its_mark).collect());
            GpuFacts { used_bytes: look.and_then(|look| look.used_bytes), processes, state, ..gpu.clone() }
        });
        facts.collect()
    }

    fn gpu_state(&self, gpu: &GpuFacts, failed: Option<String>, processes: &[GpuProcess]) -> GpuState {
        if let Some(why) = failed {
            return GpuState::Failed { why };
        }
        let table = self.table.lock();
        let on_it = || table.values().filter_map(|entry| Some((entry.record.index_of(gpu)?, entry)));
        let unproven =
            |(index, entry): &(u32, &Entry)| entry.record.is_unproven() && !entry.record.released.contains_key(index);
        if let Some((_, entry)) = on_it().find(unproven) {
            return GpuState::Unproven { instance: entry.record.instance.clone(), why: entry.record.why_not_free() };
        }
        if let Some(process) = processes.iter().find(|process| process.instance.is_none()) {
            return GpuState::Foreign { by: named(process.pid) };
        }
        let instances: BTreeSet<InstanceId> =
            on_it().filter(|(_, entry)| entry.is_alive()).map(|(_, entry)| entry.record.instance.clone()).collect();
        if instances.is_empty() { GpuState::Free } else { GpuState::InUse { instances } }
    }

    /// Finds every GPU of an order free for it, and says what was in use before.
    pub(crate) fn found_free(&self, order: &StartOrder, seen: &Seen) -> Result<BTreeMap<u32, Measured>, NodeError> {
        if let (Some(problem), false) = (seen.inventory.problems.iter().find(|p| p.is_error), order.gpus.is_empty()) {
            return Err(NodeError::bad(format!("nothing is started on its gpus: {}", problem.what)));
        }
        let facts = self.gpu_facts(seen);
        let mut before = BTreeMap::new();
        for index in &order.gpus {
            let Some(gpu) = facts.iter().find(|gpu| gpu.index == *index) else {
                return Err(NodeError::bad(format!("there is no gpu {index} on this node")));
            };
            self.one_found_free(order, gpu)?;
            before.insert(*index, Measured { before_bytes: gpu.used_bytes, ..Measured::default() });
        }
        Ok(before)
    }

    fn one_found_free(&self, order: &StartOrder, gpu: &GpuFacts) -> Result<(), NodeError> {
        let taken = |by: String| Err(NodeError::GpuTaken { gpu: gpu.index, by });
        let is_alone = match &gpu.state {
            GpuState::Free => true,
            GpuState::InUse { .. } => false,
            GpuState::Unproven { instance, why } => return taken(format!("{instance}, which has ended: {why}")),
            GpuState::Foreign { by } => return taken(by.clone()),
            GpuState::Failed { why } => return taken(format!("a fault: {why}")),
        };
        let Some(used) = gpu.used_bytes else { return Ok(()) };
        let bound = self.gpus.baseline(gpu).saturating_add(SLACK_BYTES);
        if is_alone && used > bound {
            return taken(format!(
                "nobody that the driver lists: {} are in use, at most {} may be",
                mib(used),
                mib(bound)
            ));
        }
        if let (Some(need), Some(all)) = (order.gpu_free_bytes, gpu.memory_bytes) {
            let free = all.saturating_sub(used);
            if free < need {
                let listed = gpu.processes.as_deref().unwrap_or_default().iter().map(|process| named(process.pid));
                let by = listed.collect::<Vec<_>>().join(", ");
                return taken(format!("{by}: {} are free, {} are needed", mib(free), mib(need)));
            }
        }
        Ok(())
    }
}

fn measure_one(entry: &mut Entry, index: u32, look: &GpuLook, owners: &Owners) {
    let record = &mut entry.record;
    let own = || look.processes.iter().flatten().filter(|(pid, _)| owners.get(pid) == Some(&record.instance));
    let (pids, bytes): (Vec<u32>, Vec<u64>) = own().map(|(pid, bytes)| (*pid, bytes.unwrap_or(0))).unzip();
    let sum = bytes.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let measured = record.measured.entry(index).or_default();
    let peak = measured.own_peak_bytes.unwrap_or(0);
    let mut is_news = sum >= peak.saturating_add(PEAK_STEP_BYTES);
    measured.own_peak_bytes = Some(peak.max(sum)).filter(|peak| *peak > 0);
    is_news |= measured
        .last_bytes
        .is_none_or(|last| look.used_bytes.is_some_and(|used| used.abs_diff(last) >= PEAK_STEP_BYTES));
    measured.last_bytes = look.used_bytes.or(measured.last_bytes);
    for pid in pids {
        if record.own_pids.len() < OWN_PIDS_MAX {
            is_news |= record.own_pids.insert(pid);
        }
    }
    if is_news {
        entry.keep();
    }
}

/// A process, for people.
fn named(pid: u32) -> String {
    let named = process::name_of(pid).map_or_else(|| format!("pid {pid}"), |name| format!("{name} (pid {pid})"));
    let mark = i32::try_from(pid).ok().and_then(process::Mark::of);
    mark.map_or_else(|| named.clone(), |mark| format!("instance {} of another node: {named}", mark.instance))
}
