//! One replica as everybody who deals with it sees it: picked by the gate, proven and watched by the controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_config::site::Deployment;
use tidegate_core::DeploymentName;
use tidegate_routing::Replica;
use tokio::time::Instant;

use crate::client::{Endpoint, Pool, PoolSettings};
use crate::dialect::Dialect;
use crate::scrape::{Sample, Signals};

/// A replica: who it is, how it is asked, what it last said of itself.
#[derive(Debug)]
pub struct Backend {
    replica: Arc<Replica>,
    authority: Box<str>,
    /// One pool per core, then one for probes and scrapes.
    pools: Box<[Arc<Pool>]>,
    context_tokens: AtomicU64,
    sample: Mutex<Option<Sample>>,
}

impl Backend {
    /// A replica that is not proven yet, with connections for so many cores.
    #[must_use]
    pub fn new(replica: Replica, endpoint: &Endpoint, settings: PoolSettings, cores: usize) -> Self {
        let replica = Arc::new(replica);
        let own = (0..cores).map(|_| Pool::new(endpoint.clone(), settings));
        let watch = Pool::watching(endpoint.clone(), settings, Arc::clone(&replica));
        let pools = own.chain([watch]).collect();
        Self {
            replica,
            authority: endpoint.authority().into(),
            pools,
            context_tokens: AtomicU64::new(0),
            sample: Mutex::new(None),
        }
    }

    /// Its state, bookings and breaker.
    #[must_use]
    pub const fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Where it listens: `host:port`.
    #[must_use]
    pub const fn authority(&self) -> &str {
        &self.authority
    }

    /// The connections of one core.
    #[must_use]
    pub fn pool(&self, core: usize) -> &Arc<Pool> {
        &self.pools[core.min(self.pools.len() - 1)]
    }

    /// The connections of probes and scrapes.
    #[must_use]
    pub fn watch_pool(&self) -> &Arc<Pool> {
        &self.pools[self.pools.len() - 1]
    }

    /// Closes all idle connections, as before the engine is stopped.
    pub fn close_idle(&self) {
        self.pools.iter().for_each(|pool| pool.clear());
    }

    /// Context window that the engine reported, in tokens.
    #[must_use]
    pub fn context_tokens(&self) -> Option<u64> {
        Some(self.context_tokens.load(Ordering::Relaxed)).filter(|&tokens| tokens > 0)
    }

    /// Takes note of the context window that the engine reports.
    pub fn set_context_tokens(&self, tokens: Option<u64>) {
        self.context_tokens.store(tokens.unwrap_or(0), Ordering::Relaxed);
    }

    /// What a scrape said; `None` when the engine is gone.
    pub fn set_sample(&self, sample: Option<Sample>) {
        *self.sample.lock() = sample;
    }

    /// The last sample, however old.
    #[must_use]
    pub fn sample(&self) -> Option<Sample> {
        *self.sample.lock()
    }

    /// Whether a sample taken after `since` shows that the engine has let go of a request that was booked there: it
    /// counts fewer than it must have had ([`Sample::booked`]). Every request that it is short of can be claimed once, over all
    /// cores, so that of two that are held only one goes when one still runs.
    #[must_use]
    pub fn claim_let_go(&self, since: Instant) -> bool {
        let mut sample = self.sample.lock();
        let Some(sample) = sample.as_mut().filter(|sample| sample.at > since) else { return false };
        let (Some(booked), Some(running)) = (sample.booked, sample.signals.running) else { return false };
        let is_short = running + sample.signals.waiting.unwrap_or(0.0) < f64::from(booked);
        if is_short {
            sample.booked = Some(booked - 1);
        }
        is_short
    }

    /// Signals fresh enough to be acted on.
    #[must_use]
    pub fn signals(&self, now: Instant) -> Option<Signals> {
        self.sample().and_then(|sample| sample.fresh(now))
    }
}

/// What replicas were started from, when that may differ from the documents in force.
#[derive(Clone, Debug)]
pub struct Made {
    /// Their deployment as it was then.
    pub document: Arc<Deployment>,
    /// Their engine as it was then.
    pub dialect: Dialect,
}

/// Replicas of one deployment that were started from the same documents.
#[derive(Clone, Debug)]
pub struct Group {
    /// Fingerprint of everything that a running engine cannot change; 0 for engines that somebody else runs.
    pub revision: u64,
    /// What they were started from; `None`: the documents in force.
    pub made: Option<Made>,
    /// The replicas.
    pub backends: Vec<Arc<Backend>>,
}

/// All replicas there are, by deployment and revision: the same objects over reloads.
#[derive(Clone, Debug, Default)]
pub struct BackendSet(BTreeMap<DeploymentName, Vec<Group>>);

impl BackendSet {
    /// Adds a replica; of several of one revision the first says what they were started from.
    pub fn insert(&mut self, deployment: &DeploymentName, revision: u64, made: Option<&Made>, backend: Arc<Backend>) {
        let groups = self.0.entry(deployment.clone()).or_default();
        match groups.iter_mut().find(|group| group.revision == revision) {
            Some(group) => group.backends.push(backend),
            None => groups.push(Group { revision, made: made.cloned(), backends: vec![backend] }),
        }
    }

    /// The replicas of a deployment, of all revisions.
    pub fn all(&self, deployment: &DeploymentName) -> impl Iterator<Item = &Arc<Backend>> {
        self.groups(deployment).iter().flat_map(|group| &group.backends)
    }

    /// The replicas of a deployment by revision.
    #[must_use]
    pub fn groups(&self, deployment: &DeploymentName) -> &[Group] {
        self.0.get(deployment).map_or(&[], Vec::as_slice)
    }

    /// The replicas of one revision.
    #[must_use]
    pub fn group(&self, deployment: &DeploymentName, revision: u64) -> Option<&Group> {
        self.groups(deployment).iter().find(|group| group.revision == revision)
    }
}

impl From<BTreeMap<DeploymentName, Vec<Arc<Backend>>>> for BackendSet {
    /// Replicas that are all as the documents in force say.
    fn from(all: BTreeMap<DeploymentName, Vec<Arc<Backend>>>) -> Self {
        let group = |backends| vec![Group { revision: 0, made: None, backends }];
        Self(all.into_iter().map(|(name, backends)| (name, group(backends))).collect())
    }
}
