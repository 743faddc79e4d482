//! One leader: a Lease of Kubernetes, held by renewing it.
//!
//! ```text
//!   waiting ──free, ended, or not renewed for its duration by OUR clock──> taken (leaseTransitions + 1)
//!      ^                                                                      │ renewed every retry
//!      └──────── another holder, or no renewal within the renew deadline ─────┘
//! ```
//!
//! Nobody's clock but our own is believed: a Lease is old when we have seen the same `resourceVersion` for its whole
//! duration. Who holds it stops acting at the renew deadline, which is shorter than the duration that others wait. The
//! number of transitions grows with every new holder: it is what fences ([`Term`]).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::access::{Cluster, call, find};
use crate::fault::Fault;
use crate::names::{MANAGED_BY, MANAGER};

/// Times of a leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClocks {
    /// How long others wait after the last renewal (default 15 s).
    pub duration: Duration,
    /// How long a holder acts after its last renewal (default 10 s); shorter than `duration`.
    pub renew_deadline: Duration,
    /// Between two renewals, and between two looks (default 2 s).
    pub retry: Duration,
}

impl Default for LeaseClocks {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// One holding of the Lease. A later one is greater, whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl Term {
    /// The first generation of this term: above every generation of earlier ones, of which there may be 2³².
    #[must_use]
    pub const fn first_generation(self) -> u64 {
        self.0 << 32
    }
}

/// What is kept in the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Who holds it; `None`: it was given back.
    pub holder: Option<String>,
    /// How long it holds.
    pub duration: Duration,
    /// How often it has changed hands.
    pub transitions: u64,
    /// When it was taken; `None` in what is not written yet.
    pub acquired_at: Option<Timestamp>,
    /// Changes with every write; empty in what is not written yet.
    pub version: String,
}

/// Where the Lease is kept.
#[async_trait]
pub trait LeaseStore: Send + Sync + fmt::Debug {
    /// The Lease; `None`: there is none yet.
    ///
    /// # Errors
    /// [`Fault`].
    async fn read(&self) -> Result<Option<LeaseRecord>, Fault>;

    /// Writes it, if it is still as it was read (`None`: not there). Gives back the new version.
    ///
    /// # Errors
    /// [`Fault::Changed`] when somebody else was faster.
    async fn write(&self, before: Option<&LeaseRecord>, record: &LeaseRecord) -> Result<String, Fault>;
}

/// Whether we lead.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Term>>);

impl Leadership {
    /// The term, while we lead.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        *self.0.borrow()
    }

    /// Waits until we lead.
    pub async fn held(&self) -> Term {
        let mut term = self.0.clone();
        loop {
            if let Some(term) = *term.borrow_and_update() {
                return term;
            }
            if term.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until a term is over.
    pub async fn lost(&self, held: Term) {
        let mut term = self.0.clone();
        while *term.borrow_and_update() == Some(held) {
            if term.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Campaigns for the Lease for as long as the future is polled, and gives it back when `resigned` completes.
pub fn campaign(
    store: Arc<dyn LeaseStore>,
    identity: String,
    clocks: LeaseClocks,
    resigned: impl Future<Output = ()> + Send + 'static,
) -> (Leadership, impl Future<Output = ()> + Send + 'static) {
    let (out, term) = watch::channel(None);
    let campaign = async move {
        let mut candidate = Candidate { store, identity, clocks, out, sighted: None };
        tokio::select! {
            () = candidate.run() => {}
            () = resigned => candidate.resign().await,
        }
    };
    (Leadership(term), campaign)
}

/// A Lease of somebody else, and since when it has not changed.
struct Sighted {
    version: String,
    since: Instant,
}

/// What came of a renewal.
enum Renewal {
    Done(String),
    Over,
    Again,
}

struct Candidate {
    store: Arc<dyn LeaseStore>,
    identity: String,
    clocks: LeaseClocks,
    out: watch::Sender<Option<Term>>,
    sighted: Option<Sighted>,
}

impl Candidate {
    async fn run(&mut self) {
        loop {
            match self.try_to_take().await {
                Ok(Some((held, asked))) => self.hold(held, asked).await,
                Ok(None) => {}
                Err(fault) if fault.is_race() => tracing::debug!(%fault, "lease"),
                Err(fault) => tracing::warn!(%fault, hint = fault.hint(), "lease"),
            }
            sleep(self.clocks.retry).await;
        }
    }

    /// The Lease as we hold it, and the moment before it was asked for.
    async fn try_to_take(&mut self) -> Result<Option<(LeaseRecord, Instant)>, Fault> {
        let found = self.bounded(self.store.read()).await?;
        if let Some(record) = &found
            && !self.is_free(record)
        {
            return Ok(None);
        }
        let transitions = found.as_ref().map_or(1, |record| record.transitions.saturating_add(1));
        let mut record = LeaseRecord {
            holder: Some(self.identity.clone()),
            duration: self.clocks.duration,
            transitions,
            acquired_at: None,
            version: String::new(),
        };
        let asked = Instant::now();
        record.version = self.bounded(self.store.write(found.as_ref(), &record)).await?;
        Ok(Some((record, asked)))
    }

    /// Nobody's, or not renewed for as long as it holds. Our own from before a restart counts as somebody else's: what
    /// that process still does is not known.
    fn is_free(&mut self, record: &LeaseRecord) -> bool {
        let Some(holder) = &record.holder else { return true };
        let now = Instant::now();
        match &self.sighted {
            Some(sighted) if sighted.version == record.version => now - sighted.since >= record.duration,
            _ => {
                tracing::info!(holder, "lease is held");
                self.sighted = Some(Sighted { version: record.version.clone(), since: now });
                false
            }
        }
    }

    /// Renews until that is over. `asked`: when the last renewal that succeeded was begun.
    async fn hold(&mut self, mut held: LeaseRecord, mut asked: Instant) {
        let term = Term(held.transitions);
        tracing::info!(term = term.0, identity = self.identity, "lease taken");
        self.out.send_replace(Some(term));
        loop {
            let deadline = asked + self.clocks.renew_deadline;
            sleep(self.clocks.retry.min(deadline.saturating_duration_since(Instant::now()))).await;
            let begun = Instant::now();
            match self.renew_by(deadline, &held).await {
                Renewal::Done(version) => {
                    held.version = version;
                    asked = begun;
                }
                Renewal::Over => break,
                Renewal::Again if Instant::now() >= deadline => break,
                Renewal::Again => {}
            }
        }
        tracing::error!(term = term.0, "lease lost");
        self.out.send_replace(None);
        self.sighted = None;
    }

    async fn renew_by(&self, deadline: Instant, held: &LeaseRecord) -> Renewal {
        match timeout_at(deadline, self.renew(held)).await {
            Ok(Ok(version)) => Renewal::Done(version),
            Ok(Err(fault @ (Fault::Changed { .. } | Fault::NotFound { .. }))) => {
                tracing::error!(%fault, "lease is another's");
                Renewal::Over
            }
            Ok(Err(fault)) => {
                tracing::warn!(%fault, hint = fault.hint(), "lease not renewed");
                Renewal::Again
            }
            Err(_) => Renewal::Again,
        }
    }

    async fn renew(&self, held: &LeaseRecord) -> Result<String, Fault> {
        let found = self.store.read().await?;
        let gone = || Fault::NotFound { what: "the lease".into() };
        let found = found.ok_or_else(gone)?;
        if found.holder.as_deref() != Some(&self.identity) || found.transitions != held.transitions {
            let said = format!("held by {}", found.holder.as_deref().unwrap_or("nobody"));
            return Err(Fault::Changed { what: "the lease".into(), said: said.into() });
        }
        let record = LeaseRecord { version: String::new(), acquired_at: found.acquired_at, ..held.clone() };
        match self.store.write(Some(&found), &record).await {
            // somebody wrote between: what it says is read at the next try
            Err(fault) if fault.is_race() => Err(Fault::Busy { said: fault.to_string().into() }),
            other => other,
        }
    }

    async fn resign(&self) {
        let was = self.out.send_replace(None);
        let Some(term) = was else { return };
        let given_back = async {
            let Some(found) = self.store.read().await? else { return Ok(()) };
            if found.holder.as_deref() != Some(&self.identity) || found.transitions != term.0 {
                return Ok(());
            }
            let record = LeaseRecord { holder: None, version: String::new(), ..found.clone() };
            self.store.write(Some(&found), &record).await.map(drop)
        };
        if let Err(fault) = self.bounded(given_back).await {
            tracing::warn!(%fault, "lease is not given back: it ends by itself");
        }
    }

    async fn bounded<T>(&self, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let late = || Fault::Unreachable { why: "no answer in time".into() };
        timeout(self.clocks.renew_deadline, answer).await.unwrap_or_else(|_| Err(late()))
    }
}

/// A Lease object of the cluster's namespace.
#[derive(Clone, Debug)]
struct ClusterLease {
    cluster: Cluster,
    name: String,
}

impl Cluster {
    /// The Lease of that name in the namespace.
    #[must_use]
    pub fn lease(&self, name: &str) -> Arc<dyn LeaseStore> {
        Arc::new(ClusterLease { cluster: self.clone(), name: name.to_owned() })
    }
}

impl ClusterLease {
    fn what(&self) -> String {
        format!("Lease {}", self.name)
    }
}

#[async_trait]
impl LeaseStore for ClusterLease {
    async fn read(&self) -> Result<Option<LeaseRecord>, Fault> {
        let leases: Api<Lease> = self.cluster.api();
        let found = find(&self.what(), leases.get(&self.name)).await?;
        Ok(found.map(|lease| {
            let spec = lease.spec.unwrap_or_default();
            let seconds =
                spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
            LeaseRecord {
                holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
                duration: Duration::from_secs(seconds),
                transitions: spec.lease_transitions.and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
                acquired_at: spec.acquire_time.map(|time| time.0),
                version: lease.metadata.resource_version.unwrap_or_default(),
            }
        }))
    }

    async fn write(&self, before: Option<&LeaseRecord>, record: &LeaseRecord) -> Result<String, Fault> {
        let leases: Api<Lease> = self.cluster.api();
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let now = Timestamp::now();
        let is_renewal = before.is_some_and(|before| before.transitions == record.transitions);
        let acquired_at = record.acquired_at.filter(|_| is_renewal).unwrap_or(now);
        let seconds = i32::try_from(record.duration.as_secs()).unwrap_or(i32::MAX).max(1);
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(MANAGED_BY.to_owned(), MANAGER.to_owned())].into()),
                resource_version: before.map(|before| before.version.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(record.holder.clone().unwrap_or_default()),
                lease_duration_seconds: Some(seconds),
                lease_transitions: Some(i32::try_from(record.transitions).unwrap_or(i32::MAX)),
                renew_time: Some(MicroTime(now)),
                acquire_time: Some(MicroTime(acquired_at)),
                ..LeaseSpec::default()
            }),
        };
        let written = match before {
            None => call(&self.what(), leases.create(&params, &lease)).await?,
            Some(_) => call(&self.what(), leases.replace(&self.name, &params, &lease)).await?,
        };
        Ok(written.metadata.resource_version.unwrap_or_default())
    }
}
