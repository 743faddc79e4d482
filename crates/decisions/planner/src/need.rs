//! What a deployment needs to be placed: its documents, read for that purpose.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_config::Site;
use tidegate_config::site::{Class, Deployment, EngineDialect, GpuNeeds, Serve};
use tidegate_core::DeploymentName;

use crate::memory::{FLAG_DEFAULT, Footprint, Hundredths};

const MEMORY_FLAG: &str = "--gpu-memory-utilization";

/// What one deployment needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// The deployment.
    pub name: DeploymentName,
    /// Fingerprint of everything that a running engine cannot change: another one is a change with a strategy.
    pub revision: u64,
    /// Replicas that are started.
    pub replicas: u32,
    /// GPUs of one TP group; 0 for a worker without GPUs.
    pub tp: u32,
    /// TP groups of one replica.
    pub groups: u32,
    /// Elastic bounds.
    pub gpus: Option<GpuNeeds>,
    /// TP sizes that the profile passed.
    pub passed: BTreeMap<u32, u64>,
    /// Its GPU memory.
    pub footprint: Footprint,
    /// Thousandths of CPUs of one replica.
    pub cpu_milli: u64,
    /// Bytes of host memory of one replica.
    pub host_memory: u64,
    /// Service class.
    pub class: Class,
    /// Higher goes first.
    pub priority: i32,
    /// Only on this GPU group.
    pub group: Option<Arc<str>>,
    /// Alone on its node.
    pub is_exclusive: bool,
    /// Only on a MIG instance of this profile.
    pub mig: Option<Arc<str>>,
    /// Whether its engine can sleep.
    pub can_sleep: bool,
}

impl Need {
    /// GPUs of one replica.
    #[must_use]
    pub const fn gpus_per_replica(&self) -> u32 {
        self.tp.saturating_mul(self.groups)
    }

    /// Whether its memory is known, so that it may share a GPU.
    #[must_use]
    pub const fn has_budget(&self) -> bool {
        matches!(self.footprint, Footprint::Budget(_))
    }

    /// What this deployment needs; `None` when it is run by somebody else.
    #[must_use]
    pub fn of(site: &Site, name: &DeploymentName) -> Option<Self> {
        let deployment = site.deployments.get(name)?;
        let Serve::Launch { replicas, command: _, env: _ } = &deployment.serve else { return None };
        let dialect = site.models.get(&deployment.model).map(|model| model.dialect);
        let parallel = deployment.parallel;
        let groups = parallel.pp.saturating_mul(parallel.dp);
        let has_gpus = deployment.gpus.is_some() || parallel.tp.saturating_mul(groups) > 1;
        Some(Self {
            name: name.clone(),
            revision: revision(site, deployment),
            replicas: *replicas,
            tp: if has_gpus { parallel.tp } else { 0 },
            groups,
            gpus: deployment.gpus,
            passed: deployment.profile.passed.clone(),
            footprint: deployment.memory.map_or_else(|| Footprint::Flag(flag(deployment)), Footprint::Budget),
            cpu_milli: deployment.cpu.map_or(0, |cpus| (cpus * 1_000.0).ceil() as u64),
            host_memory: deployment.host_memory_bytes.unwrap_or(0),
            class: deployment.class,
            priority: deployment.priority,
            group: deployment.placement.group.clone(),
            is_exclusive: deployment.placement.exclusive_node,
            mig: None,
            can_sleep: has_gpus && dialect == Some(EngineDialect::Vllm),
        })
    }

    /// What every deployment needs that we start.
    #[must_use]
    pub fn all(site: &Site) -> BTreeMap<DeploymentName, Self> {
        site.deployments.keys().filter_map(|name| Some((name.clone(), Self::of(site, name)?))).collect()
    }
}

/// The memory flag that the engine's arguments set, else the engine's default.
fn flag(deployment: &Deployment) -> Hundredths {
    let mut arguments = deployment.engine_args.iter();
    let mut flag = FLAG_DEFAULT;
    while let Some(argument) = arguments.next() {
        let value = match argument.split_once('=') {
            Some((MEMORY_FLAG, value)) => Some(value),
            None if &**argument == MEMORY_FLAG => arguments.next().map(|value| &**value),
            Some(_) | None => None,
        };
        // the last one wins, as in the engine
        flag = value.and_then(Hundredths::parse).unwrap_or(flag);
    }
    flag
}

/// FNV-1a over what the engine is started with. Limits, priority, class and replicas change without a restart.
fn revision(site: &Site, deployment: &Deployment) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let model = site.models.get(&deployment.model);
    let engine = model.and_then(|model| site.engines.get(&model.engine));
    let parallel = deployment.parallel;
    let launch = match &deployment.serve {
        Serve::Launch { replicas: _, command, env } => Some((command, env)),
        Serve::Endpoints(_) => None,
    };
    let text = format!(
        "{} {:?} {:?} {}/{}/{}/{} {:?} {:?} {:?} {:?} {:?} {:?} {} {:?} {:?}",
        deployment.model,
        model.and_then(|model| model.source.as_ref()),
        engine.map(|engine| (&engine.version, &engine.command, &engine.image, &engine.env)),
        parallel.tp,
        parallel.ep,
        parallel.pp,
        parallel.dp,
        deployment.memory,
        deployment.cpu,
        deployment.host_memory_bytes,
        launch,
        deployment.engine_args,
        deployment.kv_tier,
        deployment.served_name,
        deployment.kv_tier_settings,
        deployment.context_tokens,
    );
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
