//! The instances of a node, in memory and on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::facts::{FactSource, GpuFacts};
use crate::files;
use crate::guard::Cage;
use crate::id::{GpuUuid, InstanceId};
use crate::instance_folder::{InstanceFolder, Minding};
use crate::order::{LogMark, ModelUse};
use crate::proof::Measured;
use crate::report::{BootMark, Exit, InstanceReport, InstanceState, Proof};
use crate::seam::HeldModel;

/// Most processes of one instance that are remembered by number.
pub(crate) const OWN_PIDS_MAX: usize = 4_096;

/// What is kept of an instance on disk. No environment: there may be secrets in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) instance: InstanceId,
    pub(crate) generation: u64,
    pub(crate) deployment: String,
    pub(crate) replica: u32,
    pub(crate) revision: u64,
    pub(crate) gpus: Vec<u32>,
    /// What those indices meant when it was started: one GPU that falls off the bus moves the others' up.
    #[serde(default)]
    pub(crate) uuids: BTreeMap<u32, GpuUuid>,
    pub(crate) marks: Vec<LogMark>,
    pub(crate) model: Option<ModelUse>,
    pub(crate) host: IpAddr,
    pub(crate) port: Option<u16>,
    pub(crate) started_at: Timestamp,
    /// Who said what GPUs there are when it was started.
    pub(crate) source: FactSource,
    pub(crate) cage: Cage,
    /// Where in the log its last start begins.
    pub(crate) log_from: u64,
    pub(crate) boot: Vec<BootMark>,
    /// Processes of it that were seen on GPUs.
    pub(crate) own_pids: BTreeSet<u32>,
    pub(crate) measured: BTreeMap<u32, Measured>,
    pub(crate) ended: Option<Ended>,
    pub(crate) proof: Option<Proof>,
    /// GPUs that a person said to be free, and why.
    pub(crate) released: BTreeMap<u32, String>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) exit: Option<Exit>,
    pub(crate) cause: Option<String>,
    pub(crate) at: Timestamp,
}

impl Record {
    /// Whether it has ended and its memory is not proven free.
    pub(crate) const fn is_unproven(&self) -> bool {
        self.ended.is_some() && !matches!(self.proof, Some(Proof::Free { .. }))
    }

    /// The index under which it was given what is now this GPU; `None`: it has nothing to do with it.
    pub(crate) fn index_of(&self, gpu: &GpuFacts) -> Option<u32> {
        let is_it = |index: &u32| match (self.uuids.get(index), &gpu.uuid) {
            (Some(then), Some(now)) => then == now,
            (Some(_), None) | (None, _) => *index == gpu.index,
        };
        self.gpus.iter().copied().find(is_it)
    }

    /// What stands against its GPUs being free.
    pub(crate) fn why_not_free(&self) -> String {
        match &self.proof {
            Some(Proof::NotFree { why, .. }) => why.clone(),
            Some(Proof::Free { .. }) | None => "its memory was not proven free yet".to_owned(),
        }
    }
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) folder: InstanceFolder,
    pub(crate) record: Record,
    /// Who minds it, as soon as that is known.
    pub(crate) minding: Option<Minding>,
    /// The time that it was given to end.
    pub(crate) stop: watch::Sender<Option<Duration>>,
    /// Whether its minder has been met, or found gone.
    pub(crate) met: watch::Sender<bool>,
    /// Keeps its model from being evicted.
    pub(crate) model: Option<HeldModel>,
}

impl Entry {
    pub(crate) fn new(folder: InstanceFolder, record: Record) -> Self {
        Self {
            folder,
            record,
            minding: None,
            stop: watch::Sender::new(None),
            met: watch::Sender::new(false),
            model: None,
        }
    }

    pub(crate) const fn is_alive(&self) -> bool {
        self.record.ended.is_none()
    }

    pub(crate) fn report(&self) -> InstanceReport {
        let record = &self.record;
        let log_bytes = fs::metadata(self.folder.log()).map_or(0, |metadata| metadata.len());
        InstanceReport {
            instance: record.instance.clone(),
            generation: record.generation,
            deployment: record.deployment.clone(),
            replica: record.replica,
            revision: record.revision,
            gpus: record.gpus.clone(),
            state: self.state(),
            port: record.port,
            started_at: record.started_at,
            log_bytes,
            boot: record.boot.clone(),
            proof: record.proof.clone(),
        }
    }

    fn state(&self) -> InstanceState {
        if let Some(ended) = &self.record.ended {
            return InstanceState::Ended { exit: ended.exit, cause: ended.cause.clone(), at: ended.at };
        }
        let engine = self.minding.as_ref().map(|minding| minding.engine).filter(|engine| engine.is_alive());
        match (engine, *self.stop.borrow()) {
            (Some(engine), None) => InstanceState::Running { pid: engine.pid.unsigned_abs(), start_time: engine.start },
            (Some(_), Some(_)) | (None, _) => InstanceState::Stopping,
        }
    }

    /// Writes the record. That it cannot be written is logged: what is known in memory stays true.
    pub(crate) fn keep(&self) {
        if let Err(error) = files::write(&self.folder.record(), &self.record) {
            tracing::error!(instance = %self.record.instance, %error, "an instance's record cannot be written");
        }
    }
}

/// What stands in `instances/`.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entries: Vec<Entry>,
    /// Folders without a record that can be read.
    pub(crate) broken: Vec<(InstanceId, InstanceFolder)>,
}

/// Reads `instances/`.
pub(crate) fn read_all(folder: &Path) -> io::Result<Found> {
    let mut found = Found { entries: Vec::new(), broken: Vec::new() };
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(id) = path.file_name().and_then(|name| InstanceId::new(name.to_str()?).ok()) else { continue };
        let folder = InstanceFolder::new(path);
        match files::read::<Record>(&folder.record()) {
            Ok(Some(record)) if record.instance == id => found.entries.push(Entry::new(folder, record)),
            Ok(_) | Err(_) => found.broken.push((id, folder)),
        }
    }
    Ok(found)
}
