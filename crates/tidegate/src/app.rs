//! Wiring: from checked documents to a process in which everything runs.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, bail};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate_config::Site;
use tidegate_config::site::{Counters, SecretRef, Tls};
use tidegate_controller::controller::Traffic;
use tidegate_controller::externals::Externals;
use tidegate_core::{ModelName, Unix};
use tidegate_engine::launch::{DRIVER_FOLDER, GpuDriver};
use tidegate_engine::tokenizer::Tokenizer;
use tidegate_gateway::metrics::Metrics;
use tidegate_gateway::{Clock, CoreParts, Gateway, Shared};
use tidegate_identity::{PeerThrottle, Pepper, SharedKeyring};
use tidegate_policy::limiter::MemoryCounters;
use tidegate_store::{JournalOptions, Journals, LedgerWriter, Recovery, Store, WriterOptions};
use tokio::runtime::Handle;

use crate::catalogues::{Catalogues, Ingredients};
use crate::cli::ClusterArgs;
use crate::desk::{Desk, Documents};
use crate::fleet_metrics::{FleetCollector, LedgerCollector, ReloadLabels};
use crate::known::Known;
use crate::lifecycle::{self, CacheHands, Lifecycle, Start};
use crate::load;
use crate::model::{CacheCollector, Models};
use crate::rebuild::rebuild;
use crate::reload::Fingerprint;
use crate::state::StateFolder;

/// How long the listener waits for replicas to be looked at for the first time.
const FIRST_LOOK: Duration = Duration::from_millis(150);

/// A process in which everything runs.
pub(crate) struct App {
    pub(crate) documents: PathBuf,
    /// The files as they were when the documents in force were read.
    pub(crate) loaded: Fingerprint,
    pub(crate) state: StateFolder,
    /// What this process has opened, for verbs when it is gone.
    pub(crate) opened: Known,
    pub(crate) store: Store,
    pub(crate) journals: Arc<Journals>,
    pub(crate) writer: Arc<LedgerWriter>,
    pub(crate) shared: Arc<Shared>,
    /// Makes the catalogue in force anew.
    pub(crate) catalogues: Arc<Catalogues>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) pepper: Arc<Pepper>,
    pub(crate) reloaded: Arc<Mutex<Documents>>,
    pub(crate) reloads: Reloads,
    pub(crate) desk: Arc<Desk>,
    pub(crate) gateway: Gateway,
    /// The model cache, when the site has a model store.
    pub(crate) models: Option<Arc<Models>>,
}

/// Metrics of reloading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) count: Family<ReloadLabels, Counter>,
    pub(crate) in_force: Gauge,
}

impl Reloads {
    fn register(registry: &mut Registry) -> Self {
        let reloads = Self::default();
        registry.register("tidegate_reloads", "Loads of the documents by outcome", reloads.count.clone());
        let help = "1 when the documents on disk are the ones in force, else 0";
        registry.register("tidegate_documents_in_force", help, reloads.in_force.clone());
        for outcome in ["ok", "refused"] {
            drop(reloads.count.get_or_create(&ReloadLabels { outcome }));
        }
        reloads.in_force.set(1);
        reloads
    }

    pub(crate) fn note(&self, outcome: &'static str) {
        self.count.get_or_create(&ReloadLabels { outcome }).inc();
        self.in_force.set(i64::from(outcome == "ok"));
    }
}

/// Ledger and keys, opened and caught up with what a dead process left.
struct Books {
    store: Store,
    journals: Arc<Journals>,
    writer: Arc<LedgerWriter>,
    recovery: Recovery,
}

impl Books {
    async fn open(site: &Site, state: &Path) -> anyhow::Result<Self> {
        let store = Store::open(&site.store, state).await?;
        let (journals, recovery) = Journals::open(&state.join("journal"), JournalOptions::default())?;
        report(&recovery);
        let writer = LedgerWriter::start(store.clone(), &journals, &recovery, WriterOptions::default()).await?;
        Ok(Self { store, journals: Arc::new(journals), writer: Arc::new(writer), recovery })
    }
}

fn report(recovery: &Recovery) {
    let orphans = recovery.orphans.len();
    if orphans > 0 {
        tracing::warn!(orphans, "the last process died with requests in flight; their estimates stand");
    }
    for damage in &recovery.damage {
        tracing::warn!(?damage, "a part of the journal is unreadable");
    }
}

/// Builds and starts everything. Sockets are bound before anything else is touched, so that a taken address changes
/// nothing.
pub(crate) async fn build(
    site: Site,
    (documents, loaded): (PathBuf, Fingerprint),
    state: StateFolder,
    cluster: &ClusterArgs,
) -> anyhow::Result<App> {
    check_supported(&site)?;
    let cores = site.gateway.workers.unwrap_or_else(default_workers);
    let listeners = tidegate_gateway::server::bind(site.gateway.listen, cores).with_context(|| {
        format!("cannot listen on {}: is another process there? (Site.spec.gateway.listen)", site.gateway.listen)
    })?;
    let tls = site.gateway.tls.as_ref().map(server_tls).transpose()?;
    let books = Books::open(&site, state.path()).await?;
    let mut registry = Registry::default();
    let reloads = Reloads::register(&mut registry);
    let pepper = Arc::new(pepper(site.identity.key_pepper.as_ref(), state.path())?);
    let models = Models::start(&site, state.path(), &Handle::current());
    if let Some(models) = &models {
        registry.register_collector(Box::new(CacheCollector(Arc::clone(models))));
    }
    let read_secret = |from: &SecretRef| load::secret_text(from).map_err(|error| format!("{error:#}"));
    let externals = Arc::new(Externals::new(cores, Box::new(read_secret), Handle::current()));
    let site = Arc::new(site);
    let opened = Known::of(&site, &documents);
    opened.save(state.path())?;
    let tokenizers = tokenizers(&site, models.as_deref());
    let (shared, catalogues) = share(&site, &tokenizers, &books, &pepper, &externals, &mut registry).await?;
    externals.first_look(FIRST_LOOK).await;
    let start = Start {
        site: &site,
        store: &books.store,
        state: state.path(),
        cluster,
        cores,
        catalogues: &catalogues,
        externals,
        models: models.as_ref().map(|models| hands(models, state.path())),
    };
    let lifecycle = Lifecycle::start(start).await?;
    let gateway = Gateway::start(&shared, core_parts(listeners, &books.journals)?, tls, site.gateway.drain)?;
    let reloaded = Arc::new(Mutex::new(Documents { generation: 1, loaded_at: jiff::Timestamp::now(), refused: None }));
    let scheme = if site.gateway.tls.is_some() { "https" } else { "http" };
    let desk = Arc::new(Desk {
        shared: Arc::clone(&shared),
        lifecycle: lifecycle.handle.clone(),
        externals: Arc::clone(&lifecycle.externals),
        registry,
        writer: Arc::clone(&books.writer),
        journals: Arc::clone(&books.journals),
        documents: Arc::clone(&reloaded),
        gate: format!("{scheme}://{}", gateway.address()),
        started: jiff::Timestamp::now(),
        models: models.clone(),
    });
    let Books { store, journals, writer, recovery: _ } = books;
    Ok(App {
        documents,
        loaded,
        state,
        opened,
        store,
        journals,
        writer,
        shared,
        catalogues,
        lifecycle,
        pepper,
        reloaded,
        reloads,
        desk,
        gateway,
        models,
    })
}

/// What the cores share, counted up to now.
async fn share(
    site: &Arc<Site>,
    tokenizers: &Tokenizers,
    books: &Books,
    pepper: &Arc<Pepper>,
    externals: &Externals,
    registry: &mut Registry,
) -> anyhow::Result<(Arc<Shared>, Arc<Catalogues>)> {
    let metrics = Arc::new(Metrics::register(registry));
    let clock = Clock::start();
    let counters = Arc::new(MemoryCounters::new());
    let now = (clock.now(), tidegate_store::clock::wall());
    rebuild(&counters, site, &books.store, &books.recovery, now).await?;
    let keyring = tidegate_console::load_keyring(&books.store, Arc::clone(pepper), None).await?;
    externals.apply(site);
    let backends = lifecycle::backends(&Traffic::default(), externals);
    let (shift, routes) = (lifecycle::shift_now(site, &books.store).await?, books.store.routes().await?);
    let ingredients = Ingredients::new(Arc::clone(site), shift, backends, tokenizers.clone(), routes);
    let shared = Arc::new(Shared {
        catalogue: ArcSwap::from_pointee(ingredients.catalogue(1, &metrics)),
        keyring: Arc::new(SharedKeyring::new(keyring)),
        counters,
        metrics,
        throttle: PeerThrottle::new(),
        clock,
        draining: AtomicBool::new(false),
        observer: None,
    });
    registry.register_collector(Box::new(FleetCollector(Arc::clone(&shared))));
    let (journals, writer) = (Arc::clone(&books.journals), Arc::clone(&books.writer));
    registry.register_collector(Box::new(LedgerCollector { journals, writer }));
    let catalogues = Catalogues::new(Arc::clone(&shared), ingredients);
    Ok((shared, Arc::new(catalogues)))
}

/// What the documents may say but this version does not do yet is refused, not ignored.
pub(crate) fn check_supported(site: &Site) -> anyhow::Result<()> {
    if matches!(site.counters, Counters::Redis(_)) {
        bail!("Site.spec.counters: redis is not supported yet, use memory:");
    }
    Ok(())
}

fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn core_parts(listeners: Vec<TcpListener>, journals: &Journals) -> anyhow::Result<Vec<CoreParts>> {
    let parts = listeners.into_iter().enumerate().map(|(index, listener)| {
        let journal = journals.journal(u16::try_from(index)?)?;
        Ok(CoreParts { listener, journal })
    });
    parts.collect()
}

/// The cache as the nodes of this process use it.
pub(crate) fn hands(models: &Arc<Models>, state: &Path) -> Arc<CacheHands> {
    let driver = GpuDriver::read(&driver_folder());
    Arc::new(CacheHands::new(Arc::clone(models), state.join("compiled"), driver))
}

/// Where the GPU driver tells of itself: in a container that may be another place than on the machine.
fn driver_folder() -> PathBuf {
    std::env::var_os("TIDEGATE_DRIVER_FOLDER").map_or_else(|| PathBuf::from(DRIVER_FOLDER), PathBuf::from)
}

/// The pepper that the documents name, else the state folder's own.
pub(crate) fn pepper(named: Option<&SecretRef>, state: &Path) -> anyhow::Result<Pepper> {
    match named {
        Some(from) => Pepper::new(&load::secret(from)?).context("identity.keys.pepper"),
        None => Pepper::open(&state.join("pepper")).context("the pepper of the state folder"),
    }
}

fn server_tls(tls: &Tls) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    use rustls_pki_types::pem::PemObject as _;
    let chain = load::secret(&tls.cert)?;
    let chain: Result<Vec<_>, _> = rustls_pki_types::CertificateDer::pem_slice_iter(&chain).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).context("gateway.tls.cert holds no certificate in PEM")?;
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(&load::secret(&tls.key)?)
        .ok()
        .context("gateway.tls.key holds no private key in PEM")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("gateway.tls: certificate and key do not fit")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Tokenizers by model.
pub(crate) type Tokenizers = BTreeMap<ModelName, Arc<Tokenizer>>;

/// Tokenizers of the models whose folder has one. A broken one is said and the byte bound used instead.
pub(crate) fn tokenizers(site: &Site, models: Option<&Models>) -> Tokenizers {
    let mut found = BTreeMap::new();
    for (name, model) in &site.models {
        let local = || model.source.as_ref().and_then(|source| Models::local(models, source));
        let beside = |path: PathBuf| if path.is_file() { path.parent().map(Path::to_path_buf) } else { Some(path) };
        let Some(folder) = model.tokenizer.clone().or_else(|| local().and_then(beside)) else { continue };
        match Tokenizer::load(&folder) {
            Ok(Some(tokenizer)) => drop(found.insert(name.clone(), Arc::new(tokenizer))),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(model = %name, %error, "cannot use the tokenizer; prompts are bounded by bytes");
            }
        }
    }
    found
}

impl App {
    /// Brings every part to rest, in the order in which they need each other.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self { gateway, lifecycle, writer, journals, store, shared, desk, models, .. } = self;
        gateway.drain();
        let joined = tokio::task::spawn_blocking(move || gateway.join()).await;
        lifecycle.stop().await?;
        if let Some(models) = models {
            models.stop().await;
        }
        touch(&store, &shared, Unix::default()).await;
        drop(desk);
        if let Err(error) = writer.drain().await {
            tracing::warn!(error, "the ledger writer could not finish; the journal keeps what is left");
        }
        drop(writer);
        if let Some(journals) = Arc::into_inner(journals) {
            journals.close();
        }
        store.close().await;
        joined.context("the gate could not be joined")?.context("a core of the gate failed")
    }
}

/// Notes when keys were last used: those used since `noted`. Returns the latest use there is now.
pub(crate) async fn touch(store: &Store, shared: &Shared, noted: Unix) -> Unix {
    let uses: Vec<(_, Unix)> = shared
        .keyring
        .load()
        .records()
        .filter_map(|record| record.last_used.get().map(|used| (record.id.clone(), used)))
        .filter(|(_, used)| *used > noted)
        .collect();
    let Some(latest) = uses.iter().map(|(_, used)| *used).max() else { return noted };
    match store.touch_keys(&uses).await {
        Ok(()) => latest,
        Err(error) => {
            tracing::warn!(%error, "cannot note when keys were last used");
            noted
        }
    }
}
