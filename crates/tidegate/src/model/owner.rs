//! The cache of a process that runs: it owns it, serves `owner.sock`, scrubs, and has folders ready for engines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_config::Site;
use tidegate_config::site::{ModelSource, Scrub};
use tidegate_core::Sha256Digest;
use tidegate_modelcache::artifact::{self, ArtifactKey, LaidOut};
use tidegate_modelcache::cache::{Cache, CacheOptions, ListedState};
use tidegate_modelcache::evict::Hold;
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::Server;
use tidegate_modelcache::progress::{Event, Place};
use tidegate_modelcache::room::Disk;
use tidegate_modelcache::verify::VerifyOptions;
use tidegate_modelcache::verify::scrub::{LOOK_EVERY, ScrubOptions, scrub_next};
use tidegate_modelcache::{CacheFault, Layout, ModelPath, cache};
use tidegate_node::ModelState;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::folders::{CompiledFor, ModelFolder};
use super::keeper::{Keeper, Pulled};
use super::place::{StoreAt, digest, keep_free};
use super::show::{Doing, Tally};

/// How often a cache that another process owns, or that cannot be opened, is tried again.
const OPEN_EVERY: Duration = Duration::from_secs(1);
/// How often the progress of a pull stands in the log.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How often it stands in the status.
const SAY_EVERY: Duration = Duration::from_millis(500);
/// In whose name models stay while engines have them.
const BY: &str = "tidegate up";

/// The cache of this process, owned as soon as nobody else owns it.
#[derive(Debug)]
pub(crate) struct Models {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    layout: Layout,
    options: CacheOptions,
    store: StoreAt,
    scrub: Scrub,
    runtime: Handle,
    keeper: watch::Sender<Option<Arc<Keeper>>>,
    /// Why the cache is not ours, while it is not.
    waiting: Mutex<Option<String>>,
    /// How many replicas have each model.
    serving: Mutex<BTreeMap<Sha256Digest, usize>>,
    /// A model came that was not here.
    came: Notify,
}

impl Models {
    /// The cache of a site with a model store; its work runs on `runtime`.
    pub(crate) fn start(site: &Site, state: &Path, runtime: &Handle) -> Option<Arc<Self>> {
        let store = StoreAt::Document(Box::new(site.model_store.clone()?));
        let shared = Arc::new(Shared {
            layout: Layout::new(state.join(&site.model_cache.path)),
            options: CacheOptions { keep_free: keep_free(site.model_cache.keep_free), ..CacheOptions::default() },
            store,
            scrub: site.model_cache.scrub,
            runtime: runtime.clone(),
            keeper: watch::Sender::new(None),
            waiting: Mutex::default(),
            serving: Mutex::default(),
            came: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn_on(Arc::clone(&shared).own(), runtime);
        Some(Arc::new(Self { shared, tasks: Mutex::new(tasks) }))
    }

    /// Gives the cache back. What is being fetched stays for the next owner.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.shared.keeper.send_replace(None);
    }

    /// Returns when a model has come that was not here before.
    pub(crate) async fn came(&self) {
        self.shared.came.notified().await;
    }

    /// Who does the work, while the cache is ours.
    pub(crate) fn keeper(&self) -> Option<Arc<Keeper>> {
        self.shared.keeper.borrow().clone()
    }

    /// What the file system says of itself.
    pub(crate) fn disk(&self) -> Option<Disk> {
        Disk::of(self.shared.layout.root()).ok()
    }

    /// For the status.
    pub(crate) fn status(&self) -> Value {
        let keeper = self.keeper();
        json!({
            "path": self.shared.layout.root(),
            "store": self.shared.store.name(),
            "owned": keeper.is_some(),
            "waitingFor": self.shared.waiting.lock().clone(),
            "fetchRateBytesPerSecond": keeper.map(|keeper| keeper.rates.total()),
            "freeBytes": self.disk().map(|disk| disk.free_bytes),
        })
    }

    /// The folder of a model, if it is cached; whether or not the cache is ours yet.
    pub(crate) fn cached(&self, path: &str) -> Option<PathBuf> {
        let layout = &self.shared.layout;
        let listed = cache::ls(layout).ok()?;
        let is_it = |model: &cache::Listed| {
            model.state == ListedState::Published && model.models.iter().any(|name| name == path)
        };
        let found = listed.into_iter().find(is_it)?;
        Sha256Digest::parse(&found.digest).map(|digest| layout.published(digest))
    }

    /// The local folder or file of a model's source, if it is on this machine.
    pub(crate) fn local(models: Option<&Self>, source: &ModelSource) -> Option<PathBuf> {
        match source {
            ModelSource::Local(path) => Some(path.clone()),
            ModelSource::Store { path, .. } => models.and_then(|models| models.cached(path)),
        }
    }
}

impl Shared {
    /// Owns the cache for as long as it runs.
    async fn own(self: Arc<Self>) {
        let cache = self.open().await;
        take_back_holds(&cache).await;
        let keeper = Arc::new(Keeper::new(cache, Some(self.store.clone()), FetchOptions::default()));
        let server = bind(&keeper.cache);
        *self.waiting.lock() = None;
        self.keeper.send_replace(Some(Arc::clone(&keeper)));
        tracing::info!(path = %self.layout.root().display(), store = self.store.name(), "owner of the model cache");
        let serve = async {
            match server {
                Some(server) => match server.run(Arc::clone(&keeper)).await {},
                None => std::future::pending::<()>().await,
            }
        };
        tokio::join!(serve, scrub(&keeper, self.scrub));
    }

    async fn open(&self) -> Arc<Cache> {
        loop {
            let (root, options) = (self.layout.root().to_path_buf(), self.options);
            let opened = tokio::task::spawn_blocking(move || Cache::open(&root, options)).await;
            let why = match opened.unwrap_or(Err(CacheFault::Cancelled)) {
                Ok(cache) => return Arc::new(cache),
                Err(CacheFault::OwnerBusy { pid, .. }) => format!("process {pid} works on the model cache"),
                Err(fault) => format!("{fault}; {}", fault.hint()),
            };
            self.wait_for(why);
            tokio::time::sleep(OPEN_EVERY).await;
        }
    }

    fn wait_for(&self, why: String) {
        let mut waiting = self.waiting.lock();
        if waiting.as_ref() != Some(&why) {
            tracing::warn!(why, "the model cache is not ours yet");
        }
        *waiting = Some(why);
    }

    /// The owner, as soon as we are it.
    async fn owned(&self, say: &(dyn Fn(String) + Send + Sync)) -> Option<Arc<Keeper>> {
        let mut keeper = self.keeper.subscribe();
        if keeper.borrow().is_none() {
            let why = self.waiting.lock().clone();
            say(format!("waiting for the model cache{}", why.map(|why| format!(": {why}")).unwrap_or_default()));
        }
        let owned = keeper.wait_for(Option::is_some).await.ok()?;
        owned.clone()
    }

    /// A model stays as long as an engine has it.
    fn hold(&self, cache: &Cache, digest: Sha256Digest) -> Result<(), CacheFault> {
        let mut serving = self.serving.lock();
        let count = serving.entry(digest).or_default();
        if *count == 0 {
            cache.pin(digest, Hold::Serving, BY, "")?;
        }
        *count += 1;
        drop(serving);
        cache.used(digest)
    }

    fn release(&self, cache: &Cache, digest: Sha256Digest) {
        let mut serving = self.serving.lock();
        let Some(count) = serving.get_mut(&digest) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        serving.remove(&digest);
        // The next start takes it back.
        if let Err(fault) = cache.unpin(digest, Hold::Serving, BY) {
            tracing::warn!(%fault, %digest, "cannot note that no engine has this model any more");
        }
    }

    /// Has a model here and held.
    async fn bring(
        self: &Arc<Self>,
        keeper: &Arc<Keeper>,
        model: &ModelPath,
        pin: Option<Sha256Digest>,
        told: &Told<'_>,
    ) -> Result<Pulled, CacheFault> {
        let remote = keeper.open()?;
        loop {
            let done = keeper.pull(model, pin, &remote, &|event| told.take(&event)).await?;
            let shared = Arc::clone(self);
            let digest = done.digest;
            keeper.blocking(move |cache| shared.hold(cache, digest)).await?;
            // Between its coming and our hold it may have been removed for another.
            if self.layout.published(digest).is_dir() {
                return Ok(done);
            }
            let shared = Arc::clone(self);
            keeper
                .blocking(move |cache| {
                    shared.release(cache, digest);
                    Ok(())
                })
                .await?;
        }
    }
}

/// What the last process noted for its engines ended with it.
async fn take_back_holds(cache: &Arc<Cache>) {
    if let Err(fault) = blocking(cache, |cache| cache.set_holds(BY, &[])).await {
        tracing::warn!(%fault, "cannot take back what engines of the last process held");
    }
}

fn bind(cache: &Cache) -> Option<Server> {
    let bound = Server::bind(cache);
    bound
        .inspect_err(|fault| {
            tracing::error!(%fault, hint = fault.hint(), "owner.sock: `tidegate model` cannot ask this process");
        })
        .ok()
}

async fn blocking<T: Send + 'static>(
    cache: &Arc<Cache>,
    work: impl FnOnce(&Cache) -> Result<T, CacheFault> + Send + 'static,
) -> Result<T, CacheFault> {
    let cache = Arc::clone(cache);
    tokio::task::spawn_blocking(move || work(&cache)).await.unwrap_or(Err(CacheFault::Cancelled))
}

/// Reads cached models again, for ever.
async fn scrub(keeper: &Keeper, scrub: Scrub) {
    let Some(every) = scrub.every else { return };
    let verify = VerifyOptions { rate_max: Some(scrub.rate), readers: 1, ..VerifyOptions::default() };
    let options = ScrubOptions { every, verify, fetch: FetchOptions::default() };
    loop {
        // Without a store damage is still found.
        let remote = keeper.open().ok();
        let sink = |event: Event| {
            if let Event::ChunkBad { file, chunk, place } = event {
                let place = if place == Place::Disk { "disk" } else { "store" };
                tracing::warn!(file, chunk, place, "scrub: wrong bytes");
            }
        };
        match scrub_next(&keeper.cache, remote.as_ref(), &options, &sink).await {
            Ok(Some((digest, _))) => tracing::debug!(%digest, "scrubbed"),
            Ok(None) => tokio::time::sleep(LOOK_EVERY).await,
            Err(fault) => {
                tracing::warn!(%fault, code = fault.code(), hint = fault.hint(), "scrub failed");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// A pull as log and status show it.
struct Told<'a> {
    say: &'a (dyn Fn(String) + Send + Sync),
    show: &'a (dyn Fn(ModelState) + Send + Sync),
    model: &'a ModelPath,
    state: Mutex<(Tally, Option<Instant>, Option<Instant>)>,
}

impl<'a> Told<'a> {
    fn new(
        model: &'a ModelPath,
        say: &'a (dyn Fn(String) + Send + Sync),
        show: &'a (dyn Fn(ModelState) + Send + Sync),
    ) -> Self {
        let tally = Tally::new(Doing::Pulling, model.as_str(), 0);
        Self { say, show, model, state: Mutex::new((tally, None, None)) }
    }

    fn take(&self, event: &Event) {
        self.log(event);
        let now = Instant::now();
        let mut state = self.state.lock();
        let (tally, said, logged) = &mut *state;
        let due = |last: &Option<Instant>, every| last.is_none_or(|last| now.saturating_duration_since(last) >= every);
        if tally.take(event, now) {
            let line = tally.line();
            if due(said, SAY_EVERY) {
                *said = Some(now);
                (self.say)(line.clone());
                (self.show)(fetching(tally));
            }
            if due(logged, LOG_EVERY) && tally.whole.bytes < tally.whole.total {
                *logged = Some(now);
                log_progress(&line);
            }
        }
    }

    /// What went wrong.
    fn log(&self, event: &Event) {
        match event {
            Event::ChunkBad { file, chunk, .. } => {
                tracing::warn!(model = %self.model, file, chunk, "the store sent wrong bytes");
            }
            Event::Retry { file, fault, attempt, after_ms } => {
                tracing::warn!(model = %self.model, file, fault, attempt, after_ms, "a request to the store is tried again");
            }
            _ => {}
        }
    }
}

fn fetching(tally: &Tally) -> ModelState {
    let (rate, left) = tally.pace();
    let total = (tally.whole.total > 0).then_some(tally.whole.total);
    ModelState::Fetching { bytes: tally.whole.bytes, total, rate, eta_seconds: left.map(|left| left.as_secs()) }
}

fn log_progress(line: &str) {
    tracing::info!("{line}");
}

/// Keeps a model in the cache.
struct Held {
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
    digest: Sha256Digest,
}

impl Drop for Held {
    fn drop(&mut self) {
        let (shared, cache, digest) = (Arc::clone(&self.shared), Arc::clone(&self.keeper.cache), self.digest);
        self.shared.runtime.spawn_blocking(move || shared.release(&cache, digest));
    }
}

impl Models {
    /// As [`ModelFolders::folder`], with how far it is in figures, and a fault in its parts.
    pub(crate) async fn had(
        &self,
        path: &str,
        pinned: Option<&str>,
        say: &(dyn Fn(String) + Send + Sync),
        show: &(dyn Fn(ModelState) + Send + Sync),
    ) -> Result<ModelFolder, ModelState> {
        let failed = |code: &str, message: String, hint: Option<&str>| ModelState::Failed {
            code: code.to_owned(),
            message,
            hint: hint.map(str::to_owned),
            is_retryable: true,
        };
        let model = ModelPath::parse(path).map_err(|error| failed("bad_path", error.to_string(), None))?;
        let shared = &self.shared;
        let ends = || failed("ends", "the process ends".to_owned(), None);
        let keeper = shared.owned(say).await.ok_or_else(ends)?;
        // A version never changes: one that is here whole serves also while the store does not answer.
        let here = pinned.is_none().then(|| self.cached(path)).flatten();
        let here = here.and_then(|folder| Layout::published_digest(folder.file_name()?.to_str()?));
        let pin = pinned.and_then(digest).or(here);
        let told = Told::new(&model, say, show);
        let fault = |fault: CacheFault| failed(fault.code(), format!("model {model}: {fault}"), Some(fault.hint()));
        let done = shared.bring(&keeper, &model, pin, &told).await.map_err(fault)?;
        if done.fetched_bytes > 0 {
            tracing::info!(%model, digest = %done.digest, bytes = done.fetched_bytes, "model fetched");
            shared.came.notify_one();
        }
        let held = Held { shared: Arc::clone(shared), keeper, digest: done.digest };
        Ok(ModelFolder { path: PathBuf::from(done.path), hold: Box::new(held) })
    }

    /// The cache, and the key of what an engine compiles for a model that is published in it.
    async fn compiled(&self, model: &Path, of: &CompiledFor) -> Result<(Arc<Keeper>, ArtifactKey), String> {
        let published = model.file_name().and_then(|name| Layout::published_digest(name.to_str()?));
        let model = published.ok_or("not a folder of the model cache")?;
        let keeper = self.shared.owned(&|_| ()).await.ok_or("the process ends")?;
        let CompiledFor { engine, engine_version, driver, gpu, tensor_parallel, flags } = of;
        let key = ArtifactKey {
            model,
            engine: (*engine).to_owned(),
            engine_version: engine_version.to_string(),
            driver: driver.to_string(),
            gpu: gpu.to_string(),
            tensor_parallel: *tensor_parallel,
            flags: flags.clone(),
        };
        Ok((keeper, key))
    }
}

fn said(fault: CacheFault) -> String {
    format!("{fault} ({}); {}", fault.code(), fault.hint())
}

impl Models {
    /// The folder of model `path` (`family/version`), whose manifest has the digest `pinned` if there is one; fetched
    /// when it is not here. `say` hears how it goes. Dropping the future ends the fetch, and the next goes on from there.
    pub(crate) async fn folder(
        &self,
        path: &str,
        pinned: Option<&str>,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<ModelFolder, String> {
        self.had(path, pinned, say, &|_| ()).await.map_err(|fault| match fault {
            ModelState::Failed { code, message, hint, .. } => {
                format!("{message} ({code}){}", hint.map(|hint| format!("; {hint}")).unwrap_or_default())
            }
            ModelState::Fetching { .. } | ModelState::Verifying { .. } | ModelState::Verified { .. } => {
                "not here yet".to_owned()
            }
        })
    }

    /// Fills `target`, which is not there or empty, with what an earlier load compiled, here or on another node; whether
    /// there was anything. A load goes on without it.
    pub(crate) async fn lay_out_compiled(&self, model: &Path, of: &CompiledFor, target: &Path) -> Result<bool, String> {
        let (keeper, key) = self.compiled(model, of).await?;
        let remote = keeper.open().ok();
        let found = artifact::lay_out(&keeper.cache, remote.as_ref(), &key, target).await.map_err(said)?;
        Ok(found != LaidOut::Miss)
    }

    /// Saves what a load has compiled in `from`, for the next one here or on another node.
    pub(crate) async fn keep_compiled(&self, model: &Path, of: &CompiledFor, from: &Path) -> Result<(), String> {
        let (keeper, key) = self.compiled(model, of).await?;
        let remote = keeper.open().ok();
        let kept = artifact::keep(&keeper.cache, remote.as_ref(), &key, from).await.map_err(said)?;
        tracing::info!(files = kept.files, bytes = kept.bytes, left_out = kept.left_out, "compile cache saved");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_documents_say_by_default_is_what_the_cache_does_by_default() {
        let (documented, own) = (Scrub::default(), ScrubOptions::default());
        assert_eq!(documented.every, Some(own.every));
        assert_eq!(Some(documented.rate), own.verify.rate_max);
        assert_eq!(
            keep_free(tidegate_config::site::KeepFree::Percent(10.0)),
            tidegate_modelcache::room::KeepFree::default()
        );
    }
}
