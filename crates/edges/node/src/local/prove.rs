//! The memory proof of a node's instances.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::Shared;
use super::gpus::Seen;
use crate::facts::FactSource;
use crate::fault::NodeError;
use crate::id::InstanceId;
use crate::process::{Proc, marked};
use crate::proof::{Known, sample};
use crate::report::{Happened, Proof, ProvenBy};

/// Samples that all have to say that a GPU is free.
pub(crate) const SAMPLES: u32 = 3;
/// Time between two of them.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    /// One proof, remembered.
    pub(crate) async fn prove(&self, id: &InstanceId) -> Result<Proof, NodeError> {
        let known = match self.with(id, |entry| (entry.is_alive(), entry.record.proof.clone())) {
            Err(unknown) => return self.stranger_left(id).await.ok_or(unknown),
            Ok(known) => known,
        };
        if let (false, Some(free @ Proof::Free { .. })) = &known {
            return Ok(free.clone());
        }
        let found = if known.0 { Err("it still runs".to_owned()) } else { self.samples(id).await };
        let mut table = self.table.lock();
        let entry = table.get_mut(id).ok_or_else(|| NodeError::UnknownInstance { instance: id.to_string() })?;
        let proof = match (found, &entry.record.proof) {
            // A person may have said so in the meantime.
            (_, Some(free @ Proof::Free { .. })) => free.clone(),
            (Ok(by), _) => Proof::Free { by },
            (Err(why), Some(Proof::NotFree { since, .. })) => Proof::NotFree { why, since: *since },
            (Err(why), None) => Proof::NotFree { why, since: Timestamp::now() },
        };
        if entry.record.proof.as_ref() != Some(&proof) && !entry.is_alive() {
            entry.record.proof = Some(proof.clone());
            entry.keep();
            drop(table);
            self.events.push(Happened::Proven { instance: id.clone(), proof: proof.clone() });
        }
        Ok(proof)
    }

    /// What lives of an instance that was not started here (a Pod's), found by the mark in its environment.
    async fn stranger_left(&self, id: &InstanceId) -> Option<Proof> {
        let mark = id.to_string();
        let left = tokio::task::spawn_blocking(move || marked(|found| found.instance == mark && found.state.is_none()))
            .await
            .unwrap_or_default();
        let pids: Vec<String> = left.iter().map(|proc| proc.pid.to_string()).collect();
        let why = format!("processes {} of it are alive", pids.join(", "));
        (!pids.is_empty()).then(|| Proof::NotFree { why, since: Timestamp::now() })
    }

    async fn samples(&self, id: &InstanceId) -> Result<ProvenBy, String> {
        let record = self.with(id, |entry| entry.record.clone()).map_err(|error| error.to_string())?;
        let gpus: BTreeSet<u32> =
            record.gpus.iter().copied().filter(|gpu| !record.released.contains_key(gpu)).collect();
        self.nobody_is_left(id)?;
        if gpus.is_empty() || record.source != FactSource::Nvml {
            return Ok(ProvenBy::Processes);
        }
        let mut by = ProvenBy::Nvml;
        for number in 0..SAMPLES {
            if number > 0 {
                sleep(SAMPLE_EVERY).await;
                self.nobody_is_left(id)?;
            }
            let seen = self.see().await;
            for gpu in &gpus {
                if self.sample_one(id, *gpu, &seen)? == ProvenBy::Total {
                    by = ProvenBy::Total;
                }
            }
        }
        Ok(by)
    }

    /// The first clause of every proof. That its end was seen is not enough: it is looked for anew.
    fn nobody_is_left(&self, id: &InstanceId) -> Result<(), String> {
        let mark = self.mark(id);
        let left = self.with(id, |entry| entry.folder.survivors(&mark, &entry.record.cage));
        match left.map_err(|error| error.to_string())?.first() {
            Some(proc) => Err(format!("its process {} is alive", proc.pid)),
            None => Ok(()),
        }
    }

    fn sample_one(&self, id: &InstanceId, index: u32, seen: &Seen) -> Result<ProvenBy, String> {
        let table = self.table.lock();
        let Some(entry) = table.get(id) else { return Err("it was forgotten".to_owned()) };
        let gpu = seen.inventory.gpus.iter().find(|gpu| entry.record.index_of(gpu) == Some(index));
        let (Some(gpu), Some(look)) = (gpu, gpu.and_then(|gpu| seen.looks.get(&gpu.index))) else {
            let why = seen.inventory.problems.first().map_or("the driver does not show it", |problem| &problem.what);
            return Err(format!("gpu {index}: {why}"));
        };
        let listed = look.processes.iter().flatten().map(|(pid, _)| *pid);
        let is_alive = |pid: u32| i32::try_from(pid).is_ok_and(|pid| Proc::of(pid).is_some());
        let is_shared = table.iter().any(|(other, entry)| {
            other != id && entry.record.index_of(gpu).is_some() && (entry.is_alive() || entry.record.is_unproven())
        });
        let known = Known {
            // A number may have been given out anew, to another process on the same GPU: then a person has to say so.
            own: entry.record.own_pids.clone(),
            others: listed.filter(|pid| is_alive(*pid)).collect(),
            is_shared,
            baseline_bytes: self.gpus.baseline(gpu),
            measured: entry.record.measured.get(&index).copied().unwrap_or_default(),
        };
        sample(look, &known)
    }
}
