//! Engines as they really are: asked over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::ReplicaId;
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Endpoint, PoolSettings};
use tidegate_engine::probe::{BOOTING_EVERY, NotReady, Probe};
use tidegate_engine::sleep::{Level, Sleeper};
use tidegate_planner::placement::ReplicaKey;
use tidegate_routing::Replica;
use tokio::time::sleep;

use crate::care::{Care, Fault, Patient};
use crate::gate::{self, GateSpec, watchdog};
use crate::launcher::Blueprint;

/// Time between probes of an engine that fails otherwise than by booting.
pub const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Longest wake of an engine.
pub const WAKE_WITHIN: Duration = Duration::from_mins(10);

/// Speaks to engines.
#[derive(Clone, Copy, Debug)]
pub struct Engines {
    /// Cores of the gate: each has connections of its own.
    pub cores: usize,
    /// Longest time to connect.
    pub connect: Duration,
}

/// How an engine of a deployment is probed.
#[must_use]
pub fn probe(blueprint: &Blueprint) -> Probe {
    Probe {
        dialect: blueprint.dialect,
        kind: blueprint.deployment.kind,
        served_name: Arc::clone(&blueprint.deployment.served_name),
    }
}

fn sleeper(patient: &Patient) -> Result<Sleeper, Fault> {
    Sleeper::new(patient.blueprint.dialect, patient.backend.watch_pool())
        .ok_or_else(|| Fault::new("cannot_sleep", "its engine cannot sleep"))
}

fn level(number: u8) -> Result<Level, Fault> {
    Level::of(number).ok_or_else(|| Fault::new("sleep_level", format!("there is no level {number}")))
}

#[async_trait]
impl Care for Engines {
    fn backend(&self, key: &ReplicaKey, address: SocketAddr, _blueprint: &Blueprint) -> Result<Arc<Backend>, Fault> {
        let endpoint = Endpoint::parse(&format!("http://{address}"), None, None)
            .map_err(|error| Fault::new("address", error.to_string()))?;
        let pool = PoolSettings { connect: self.connect, ..PoolSettings::default() };
        let replica = Replica::new(ReplicaId::from(key.to_string()));
        Ok(Arc::new(Backend::new(replica, &endpoint, pool, self.cores)))
    }

    async fn load(&self, patient: &Patient) -> Result<(), Fault> {
        let probe = probe(&patient.blueprint);
        loop {
            match probe.run(patient.backend.watch_pool()).await {
                Ok(ready) => {
                    patient.backend.set_context_tokens(ready.context_tokens);
                    (patient.tell)(None);
                    return Ok(());
                }
                Err(wrong @ NotReady::OtherModel { .. }) => return Err(Fault::new("other_model", wrong.to_string())),
                Err(NotReady::Booting(why)) => {
                    (patient.tell)(Some(format!("booting: {why}")));
                    sleep(BOOTING_EVERY).await;
                }
                // It answers, and that is all that a load is: what is wrong with its answers the gate says, at once.
                Err(NotReady::NoToken(_) | NotReady::Timeout(_)) => return Ok(()),
            }
        }
    }

    async fn prove(&self, patient: &Patient) -> Result<(), Fault> {
        let mut spec = GateSpec::read(&patient.blueprint).await?;
        if patient.is_first {
            // Nobody serves these callers meanwhile: whoever is healthy now is better than nobody.
            spec.stabilise = Duration::ZERO;
            spec.long_context = false;
        }
        let tell = |what| (patient.tell)(Some(what));
        let report = gate::run(patient.backend.watch_pool(), &spec, &tell).await?;
        patient.backend.set_context_tokens(report.context_tokens);
        (patient.tell)(None);
        (patient.mark)("stabilise", report.stabilise);
        let (warm_up, stabilise) = (report.warm_up.as_secs_f64(), report.stabilise.as_secs_f64());
        for note in &report.notes {
            tracing::warn!(replica = %patient.key, note, "gate");
        }
        tracing::info!(replica = %patient.key, warm_up, stabilise, asked = report.asked, "healthy");
        Ok(())
    }

    async fn watch(&self, patient: &Patient) -> Fault {
        let tell = |what| (patient.tell)(what);
        watchdog::watch(&patient.backend, &probe(&patient.blueprint), &tell).await.into()
    }

    async fn sleep(&self, patient: &Patient, number: u8) -> Result<(), Fault> {
        let slept = sleeper(patient)?.sleep(level(number)?).await;
        slept.map_err(|fault| Fault::new("sleep", fault.to_string()))
    }

    async fn wake(&self, patient: &Patient, number: u8) -> Result<(), Fault> {
        let woken = sleeper(patient)?.wake(level(number)?, WAKE_WITHIN).await;
        woken.map_err(|fault| Fault::new("wake", fault.to_string()))
    }

    async fn asleep(&self, key: &ReplicaKey, address: SocketAddr, blueprint: &Blueprint) -> Option<u8> {
        let backend = self.backend(key, address, blueprint).ok()?;
        let sleeper = Sleeper::new(blueprint.dialect, backend.watch_pool())?;
        sleeper.level().await.ok().flatten().map(Level::number)
    }
}
