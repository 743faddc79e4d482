//! The world's engines, as they are spoken to.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::ReplicaId;
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Endpoint, PoolSettings};
use tidegate_planner::placement::ReplicaKey;
use tidegate_routing::Replica;
use tokio::time::{Duration, sleep};

use super::{Sim, World};
use crate::care::{Care, Fault, Patient};
use crate::launcher::Blueprint;

impl World {
    /// Does something with the instance of a patient.
    fn with<T>(&self, patient: &Patient, work: impl FnOnce(&mut Sim) -> T) -> Option<T> {
        let mut inner = self.inner.lock();
        let is =
            |sim: &&mut Sim| sim.key == patient.key && sim.revision == patient.blueprint.revision && sim.is_running;
        inner.instances.values_mut().find(is).map(work)
    }

    fn temper_of(&self, patient: &Patient) -> super::Temper {
        self.inner.lock().temper(&patient.key.deployment)
    }
}

#[async_trait]
impl Care for World {
    fn backend(&self, key: &ReplicaKey, address: SocketAddr, _blueprint: &Blueprint) -> Result<Arc<Backend>, Fault> {
        let endpoint = Endpoint::parse(&format!("http://{address}"), None, None)
            .map_err(|error| Fault::new("address", error.to_string()))?;
        let replica = Replica::new(ReplicaId::from(key.to_string()));
        Ok(Arc::new(Backend::new(replica, &endpoint, PoolSettings::default(), 1)))
    }

    async fn load(&self, patient: &Patient) -> Result<(), Fault> {
        if self.temper_of(patient).hangs_in_load {
            std::future::pending::<()>().await;
        }
        let passed = self.with(patient, |sim| sim.started.elapsed()).unwrap_or_default();
        sleep(self.pace.load.saturating_sub(passed)).await;
        Ok(())
    }

    async fn prove(&self, patient: &Patient) -> Result<(), Fault> {
        sleep(self.pace.gate).await;
        let temper = self.temper_of(patient);
        let was_asleep = self.with(patient, |sim| sim.is_ready).unwrap_or(false);
        if temper.fails_gate || (temper.wakes_mad && was_asleep) {
            return Err(Fault::new("garbage", "answers with one character again and again"));
        }
        let backend = Arc::clone(&patient.backend);
        self.with(patient, |sim| {
            sim.is_ready = true;
            sim.backend = Some(backend);
        });
        Ok(())
    }

    async fn watch(&self, patient: &Patient) -> Fault {
        let backend = Arc::clone(&patient.backend);
        self.with(patient, |sim| {
            sim.is_ready = true;
            sim.backend = Some(backend);
        });
        if self.temper_of(patient).breaks_in_service {
            sleep(Duration::from_secs(40)).await;
            return Fault::new("hang", "no token within 30 s");
        }
        std::future::pending().await
    }

    async fn sleep(&self, patient: &Patient, level: u8) -> Result<(), Fault> {
        sleep(self.pace.sleep).await;
        if self.temper_of(patient).refuses_sleep {
            return Err(Fault::new("sleep", "it does not sleep"));
        }
        self.with(patient, |sim| sim.sleeps = Some(level));
        Ok(())
    }

    async fn wake(&self, patient: &Patient, _level: u8) -> Result<(), Fault> {
        self.with(patient, |sim| sim.sleeps = None);
        self.inner.lock().check_memory(&self.hardware);
        sleep(self.pace.sleep).await;
        Ok(())
    }

    async fn asleep(&self, key: &ReplicaKey, _address: SocketAddr, blueprint: &Blueprint) -> Option<u8> {
        let inner = self.inner.lock();
        let is = |sim: &&Sim| sim.key == *key && sim.revision == blueprint.revision && sim.is_running;
        inner.instances.values().find(is).and_then(|sim| sim.sleeps)
    }
}
