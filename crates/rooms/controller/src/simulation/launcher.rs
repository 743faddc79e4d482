//! The world's launcher.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_node::{InstanceId, Proof, ProvenBy};
use tidegate_planner::hardware::Hardware;
use tokio::time::{Instant, sleep};

use super::{Sim, World};
use crate::launcher::{Fetched, Kept, LaunchFault, Launcher, Order, Seen, SeenState};

impl World {
    fn obey(&self, generation: u64) -> Result<(), LaunchFault> {
        let mut inner = self.inner.lock();
        if inner.is_away {
            return Err(LaunchFault::Away { who: "node".into(), why: "it is switched off".into() });
        }
        inner.fence(generation).map_err(|highest| LaunchFault::Stale { highest })?;
        inner.pass(Instant::now());
        Ok(())
    }
}

#[async_trait]
impl Launcher for World {
    async fn fetch(&self, generation: u64, order: &Order) -> Result<Fetched, LaunchFault> {
        self.obey(generation)?;
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let begun = *inner.fetched.entry(order.key.deployment.to_string()).or_insert(now);
        if now.duration_since(begun) >= self.pace.fetch {
            return Ok(Fetched::Verified);
        }
        let left = Some(self.pace.fetch.saturating_sub(now.duration_since(begun)));
        Ok(Fetched::Waiting { bytes: 0, total: None, what: "fetching".into(), left, is_verifying: false })
    }

    async fn start(&self, generation: u64, order: &Order) -> Result<(), LaunchFault> {
        self.obey(generation)?;
        let mut inner = self.inner.lock();
        if inner.instances.contains_key(&order.instance) {
            return Ok(());
        }
        let temper = inner.temper(&order.key.deployment);
        if temper.refuses_start {
            return Err(LaunchFault::Refused { code: "launch".into(), text: "the engine is not there".into() });
        }
        if !inner.used.insert(order.instance.clone()) {
            inner.wrong(format!("instance {} is started a second time", order.instance));
        }
        let now = Instant::now();
        let sim = Sim {
            key: order.key.clone(),
            revision: order.blueprint.revision,
            generation,
            seat: order.seat.clone(),
            started: now,
            is_running: true,
            is_stopping: false,
            kill_at: None,
            ends_at: temper.ends_in_load.then(|| now + self.pace.load / 2),
            ended: None,
            sleeps: None,
            is_ready: false,
            backend: None,
        };
        inner.instances.insert(order.instance.clone(), sim);
        inner.check_memory(&self.hardware);
        Ok(())
    }

    async fn look(&self) -> Result<Vec<Seen>, LaunchFault> {
        let mut inner = self.inner.lock();
        inner.pass(Instant::now());
        let seen = |(id, sim): (&InstanceId, &Sim)| Seen {
            instance: id.clone(),
            key: sim.key.clone(),
            revision: sim.revision,
            generation: sim.generation,
            seat: sim.seat.clone(),
            state: match sim {
                Sim { is_running: false, .. } => SeenState::Ended { cause: "ended: exit code 1".into() },
                Sim { is_stopping: true, .. } => SeenState::Stopping,
                Sim { .. } => SeenState::Running { address: SocketAddr::from(([127, 0, 0, 1], 9)) },
            },
            started_at: Some(self.now()),
            boot: Vec::new(),
        };
        Ok(inner.instances.iter().map(seen).collect())
    }

    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), LaunchFault> {
        self.obey(generation)?;
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let Some(name) = inner.instances.get(instance).map(|sim| sim.key.deployment.clone()) else { return Ok(()) };
        let ignores = inner.temper(&name).ignores_term;
        let stop = self.pace.stop;
        if let Some(sim) = inner.instances.get_mut(instance) {
            sim.is_stopping = true;
            let kill_at = now + patience;
            sim.kill_at = Some(sim.kill_at.map_or(kill_at, |known| known.min(kill_at)));
            if !ignores {
                sim.ends_at = Some(sim.ends_at.map_or(now + stop, |known| known.min(now + stop)));
            }
        }
        inner.pass(now);
        Ok(())
    }

    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, LaunchFault> {
        self.obey(generation)?;
        sleep(Duration::from_secs(2)).await;
        let inner = self.inner.lock();
        let Some(sim) = inner.instances.get(instance) else { return Ok(Proof::Free { by: ProvenBy::Processes }) };
        let is_released = sim.seat.gpus().iter().all(|gpu| inner.released.contains(gpu));
        let keeps = inner.temper(&sim.key.deployment).keeps_memory && !is_released;
        let is_free = !sim.is_running && sim.ended.is_some_and(|ended| ended.elapsed() >= self.pace.memory) && !keeps;
        if is_free {
            return Ok(Proof::Free { by: ProvenBy::Nvml });
        }
        Ok(Proof::NotFree { why: "a process has memory".to_owned(), since: self.now() })
    }

    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), LaunchFault> {
        self.obey(generation)?;
        let mut inner = self.inner.lock();
        if inner.instances.get(instance).is_some_and(|sim| sim.is_running) {
            inner.wrong(format!("instance {instance} is forgotten while it runs"));
        }
        inner.instances.remove(instance);
        Ok(())
    }

    async fn hardware(&self) -> Result<Hardware, LaunchFault> {
        Ok(self.hardware.clone())
    }

    async fn keep(&self, generation: u64, _kept: &[Kept]) -> Result<(), LaunchFault> {
        self.obey(generation)
    }

    async fn release(&self, generation: u64, node: &str, gpu: u32, _reason: &str) -> Result<(), LaunchFault> {
        self.obey(generation)?;
        let id = tidegate_planner::hardware::GpuId { node: Arc::from(node), index: gpu };
        self.inner.lock().released.insert(id);
        Ok(())
    }

    fn away(&self) -> Vec<(Arc<str>, Arc<str>)> {
        Vec::new()
    }
}
