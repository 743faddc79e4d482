//! What the owner of the cache does for itself and for those who ask over its socket.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::Cache;
use tidegate_modelcache::fetch::{FetchOptions, fetch};
use tidegate_modelcache::flight::{Join, Lead, follow};
use tidegate_modelcache::owner::{Request, Serve};
use tidegate_modelcache::progress::{Event, Sink};
use tidegate_modelcache::remote::Remote;
use tidegate_modelcache::verify::{Report, VerifyOptions, repair, verify};
use tidegate_modelcache::{CacheFault, Manifest, ModelPath, cache};

use super::place::StoreAt;

/// How a pull ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pulled {
    /// The digest of the manifest.
    pub(crate) digest: Sha256Digest,
    /// The folder that an engine loads.
    pub(crate) path: String,
    /// Bytes that came from the store for it.
    pub(crate) fetched_bytes: u64,
}

/// A chunk that is not right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WrongChunk {
    /// Path in the manifest.
    pub(crate) file: String,
    /// Counted from 0.
    pub(crate) chunk: u64,
}

/// What a verification found, and what was done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verified {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) wrong: Vec<WrongChunk>,
    pub(crate) missing: Vec<String>,
    pub(crate) contradicted: Vec<String>,
    pub(crate) strangers: Vec<String>,
    /// Bytes that were fetched to put it right; `None` when nothing was put right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) repaired_bytes: Option<u64>,
}

impl Verified {
    fn of(report: &Report) -> Self {
        Self {
            files: report.files,
            bytes: report.bytes,
            wrong: report
                .wrong
                .iter()
                .map(|wrong| WrongChunk { file: wrong.file.clone(), chunk: wrong.chunk })
                .collect(),
            missing: report.missing.clone(),
            contradicted: report.contradicted.clone(),
            strangers: report.strangers.iter().map(|path| path.display().to_string()).collect(),
            repaired_bytes: None,
        }
    }

    /// Whether every byte was right when it was read.
    pub(crate) fn was_right(&self) -> bool {
        let nothing = [&self.missing, &self.contradicted, &self.strangers].iter().all(|list| list.is_empty());
        self.wrong.is_empty() && nothing
    }
}

/// The rate of each pull that runs, by the model's name: who joins a pull does not double it.
#[derive(Debug, Default)]
pub(crate) struct Rates(Mutex<BTreeMap<String, u64>>);

impl Rates {
    /// Bytes per second, all pulls together.
    pub(crate) fn total(&self) -> u64 {
        self.0.lock().values().sum()
    }
}

/// Forgets a pull's rate when it ends, however it ends.
struct Rated<'a>(&'a Rates, &'a str);

impl Rated<'_> {
    fn take(&self, event: &Event) {
        if let Event::Progress { rate_bytes_per_s, .. } = event {
            self.0.0.lock().insert(self.1.to_owned(), *rate_bytes_per_s);
        }
    }
}

impl Drop for Rated<'_> {
    fn drop(&mut self) {
        self.0.0.lock().remove(self.1);
    }
}

/// The owner of the cache, at work.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) cache: Arc<Cache>,
    store: Option<StoreAt>,
    fetch: FetchOptions,
    pub(crate) rates: Rates,
}

impl Keeper {
    pub(crate) fn new(cache: Arc<Cache>, store: Option<StoreAt>, fetch: FetchOptions) -> Self {
        Self { cache, store, fetch, rates: Rates::default() }
    }

    /// The store, when it is the one that the asker means.
    fn remote(&self, asked: &str) -> Result<Remote, CacheFault> {
        let own = self.store.as_ref().map(StoreAt::name).unwrap_or_default();
        if own != asked {
            let named = |name: &str| if name.is_empty() { "none".to_owned() } else { name.to_owned() };
            let (own, asked) = (named(&own), named(asked));
            let reason = format!("the cache's owner, process {}, has the store {own}, not {asked}", std::process::id());
            return Err(CacheFault::BadSettings { reason });
        }
        self.open()
    }

    /// The store.
    pub(crate) fn open(&self) -> Result<Remote, CacheFault> {
        let reason = "no model store is named".to_owned();
        self.store.as_ref().ok_or(CacheFault::BadSettings { reason })?.open()
    }

    /// Has a model here.
    pub(crate) async fn pull(
        &self,
        model: &ModelPath,
        pin: Option<Sha256Digest>,
        remote: &Remote,
        sink: Sink<'_>,
    ) -> Result<Pulled, CacheFault> {
        let options = FetchOptions { pin, ..self.fetch.clone() };
        let rated = Rated(&self.rates, model.as_str());
        let told = |event: Event| {
            rated.take(&event);
            sink(event);
        };
        let done = fetch(&self.cache, remote, model, &options, &told).await?;
        Ok(Pulled { digest: done.digest, path: done.path.display().to_string(), fetched_bytes: done.fetched_bytes })
    }

    /// The right to work on a model alone: it is not removed and not fetched meanwhile.
    async fn lead(&self, digest: Sha256Digest, sink: Sink<'_>) -> Result<Lead, CacheFault> {
        loop {
            match self.cache.models().join(digest)? {
                Join::Lead(lead) => return Ok(lead),
                // Whatever comes of it: it is looked at afterwards.
                Join::Follow(listener) => drop(follow(listener, sink).await),
            }
        }
    }

    async fn verify(&self, digest: Sha256Digest, store: Option<&str>, sink: Sink<'_>) -> Result<Verified, CacheFault> {
        let _lead = self.lead(digest, sink).await?;
        let manifest = self.cache.manifest(digest)?;
        let report = verify(self.cache.layout(), &manifest, &VerifyOptions::default(), sink).await?;
        let mut verified = Verified::of(&report);
        if let Some(store) = store.filter(|_| !report.is_right()) {
            let (remote, name) = (self.remote(store)?, self.name(&manifest)?);
            let fetched = repair(&self.cache, &remote, &name, &manifest, &report, &self.fetch, sink).await?;
            verified.repaired_bytes = Some(fetched);
        } else {
            // A repair counts them itself.
            self.cache.counters().checksum_failures_disk.add(report.wrong.len() as u64);
        }
        Ok(verified)
    }

    /// A name under which the model is in the store.
    fn name(&self, manifest: &Manifest) -> Result<ModelPath, CacheFault> {
        let digest = manifest.digest().to_string();
        let listed = cache::ls(self.cache.layout())?.into_iter().find(|listed| listed.digest == digest);
        let name = listed.and_then(|listed| listed.models.iter().find_map(|name| ModelPath::parse(name).ok()));
        name.ok_or_else(|| CacheFault::NoSuchModel { model: format!("sha256-{digest}") })
    }

    /// Does something that blocks on the disk.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cache) -> Result<T, CacheFault> + Send + 'static,
    ) -> Result<T, CacheFault> {
        let cache = Arc::clone(&self.cache);
        tokio::task::spawn_blocking(move || work(&cache)).await.unwrap_or(Err(CacheFault::Cancelled))
    }
}

/// A result as the socket carries it.
fn value<T: Serialize>(result: &T) -> Result<Value, CacheFault> {
    let unfit = |error: serde_json::Error| CacheFault::OwnerBusy { pid: std::process::id(), reason: error.to_string() };
    serde_json::to_value(result).map_err(unfit)
}

#[async_trait]
impl Serve for Keeper {
    async fn serve(&self, request: Request, sink: Sink<'_>) -> Result<Value, CacheFault> {
        match request {
            Request::Pull { model, pin, store } => value(&self.pull(&model, pin, &self.remote(&store)?, sink).await?),
            Request::Verify { digest, repair, store } => {
                value(&self.verify(digest, repair.then_some(&*store), sink).await?)
            }
            Request::Pin { digest, hold, by, note } => {
                self.blocking(move |cache| cache.pin(digest, hold, &by, &note)).await?;
                Ok(Value::Null)
            }
            Request::Unpin { digest, hold, by } => {
                value(&self.blocking(move |cache| cache.unpin(digest, hold, &by)).await?)
            }
            Request::Gc { mode } => value(&self.blocking(move |cache| cache.gc(mode)).await?),
        }
    }
}
