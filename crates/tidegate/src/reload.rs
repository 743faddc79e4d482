//! Changes while the process runs: documents on disk, keys and routes in the store, time passing.
//!
//! A reload is atomic: the new documents are read and checked as a whole and then put in force with one store to one
//! pointer. When they are wrong the old ones stay, and status, metric and log say so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use notify::Watcher as _;
use tidegate_config::Site;
use tidegate_identity::StoreState;
use tidegate_store::store::{ChangeWatcher, Changes, POLL_INTERVAL};
use tokio::signal::unix::Signal;
use tokio::sync::{Notify, watch};
use tokio::time::{interval, sleep};

use crate::app::{self, App, Tokenizers};
use crate::desk::Documents;
use crate::known::Known;
use crate::model::Models;
use crate::{lifecycle, load};

/// Editors write several times for one save, Git many files for one pull: what comes within this is one change.
const SETTLE: Duration = Duration::from_millis(200);
/// The net under file events, which network file systems and bind mounts may not deliver.
const POLL_DOCUMENTS: Duration = Duration::from_secs(10);
/// How often idle limits are forgotten and last uses noted.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// Watches until the process ends; dropped with it.
pub(crate) async fn watch_all(app: &App, hangup: &mut Signal) -> anyhow::Result<()> {
    let changed = Arc::new(Notify::new());
    let _watcher = watch_files(&app.documents, Arc::clone(&changed));
    let store = ChangeWatcher::start(&app.store, POLL_INTERVAL).await?;
    tokio::join!(documents(app, &changed, hangup), store_changes(app, store.changes()), housekeeping(app));
    Ok(())
}

fn watch_files(documents: &Path, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    });
    let watched = watcher.and_then(|mut watcher| {
        // The folder, also of a single file: editors replace files, and a watch on the old one would see nothing more.
        let at = if documents.is_file() { documents.parent().unwrap_or(documents) } else { documents };
        watcher.watch(at, notify::RecursiveMode::Recursive)?;
        Ok(watcher)
    });
    match watched {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(%error, "cannot watch the documents; they are looked at every 10 s and on SIGHUP");
            None
        }
    }
}

async fn came(models: Option<&Models>) {
    match models {
        Some(models) => models.came().await,
        None => std::future::pending().await,
    }
}

async fn documents(app: &App, changed: &Notify, hangup: &mut Signal) {
    let mut poll = interval(POLL_DOCUMENTS);
    let mut seen = app.loaded.clone();
    loop {
        let is_forced = tokio::select! {
            () = changed.notified() => {
                sleep(SETTLE).await;
                false
            }
            _ = poll.tick() => false,
            _ = hangup.recv() => true,
            // A model that came may have brought its tokenizer.
            () = came(app.models.as_deref()) => true,
        };
        let now = Fingerprint::of(&app.documents);
        if is_forced || now != seen {
            seen = now;
            reload(app).await;
        }
    }
}

/// What would make a reload worth while: paths, sizes and times of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Fingerprint {
    /// To be taken before the documents are read: what changes in between is then seen as a change.
    pub(crate) fn of(documents: &Path) -> Self {
        let files = load::read_files(documents);
        let look = |path: PathBuf| {
            let metadata = std::fs::metadata(&path).ok()?;
            Some((path, metadata.len(), metadata.modified().ok()))
        };
        Self(files.into_iter().filter_map(look).collect())
    }
}

/// New documents and what takes long to make of them.
struct Fresh {
    site: Arc<Site>,
    tokenizers: Tokenizers,
}

/// Reads and checks the documents; the text says everything that is wrong with them.
fn read(documents: &Path, models: Option<&Models>) -> Result<Fresh, String> {
    let (checked, _) = load::planned(documents).map_err(|error| format!("{error:#}"))?;
    let site = checked.site.ok_or_else(|| {
        let all: Vec<_> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
        all.join("\n")
    })?;
    app::check_supported(&site).map_err(|error| format!("{error:#}"))?;
    let tokenizers = app::tokenizers(&site, models);
    Ok(Fresh { site: Arc::new(site), tokenizers })
}

async fn reload(app: &App) {
    let (documents, models) = (app.documents.clone(), app.models.clone());
    // Files and tokenizers may take seconds; keys and signals must not wait for them.
    let fresh = tokio::task::spawn_blocking(move || read(&documents, models.as_deref())).await;
    match fresh.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(fresh) => put_in_force(app, fresh).await,
        Err(why) => refused(app, &why),
    }
}

/// What only the next start can change.
fn warn_of_fixed(site: &Site, old: &Site) {
    let (gate, old_gate) = (&site.gateway, &old.gateway);
    let changed = [
        ("gateway.listen", gate.listen != old_gate.listen),
        ("gateway.tls", gate.tls != old_gate.tls),
        ("gateway.workers", gate.workers != old_gate.workers),
        ("gateway.drain", gate.drain != old_gate.drain),
        ("admin.listen", site.admin.listen != old.admin.listen),
        ("store", site.store != old.store),
        ("modelStore", site.model_store != old.model_store),
        ("modelCache", site.model_cache != old.model_cache),
        ("identity.keys.pepper", site.identity.key_pepper != old.identity.key_pepper),
    ];
    for (field, _) in changed.iter().filter(|(_, changed)| *changed) {
        tracing::warn!(field, "changes with the next start only");
    }
}

/// What verbs need when no process runs; store and pepper are those that this process has opened.
fn note_documents(app: &App, site: &Site) {
    let known = Known::of(site, &app.documents).opened_as(&app.opened);
    if let Err(error) = known.save(app.state.path()) {
        tracing::warn!(error = format!("{error:#}"), "cannot note the documents in the state folder");
    }
}

/// Replicas and catalogue change back to back, so that hardly a request meets the old catalogue with the new replicas.
async fn put_in_force(app: &App, fresh: Fresh) {
    let Fresh { site, tokenizers } = fresh;
    let old = app.shared.catalogue.load_full();
    warn_of_fixed(&site, &old.site);
    app.lifecycle.reload(&site).await;
    let backends = lifecycle::backends(&app.lifecycle.handle.traffic().borrow(), &app.lifecycle.externals);
    let shift = lifecycle::shift_now(&site, &app.store).await;
    app.catalogues.change(|ingredients| {
        match shift {
            Ok(shift) => ingredients.shift = shift,
            Err(error) => tracing::error!(%error, "cannot read what was said about the shift"),
        }
        ingredients.site = Arc::clone(&site);
        ingredients.backends = backends;
        ingredients.tokenizers = tokenizers;
    });
    let generation = app.reloaded.lock().generation + 1;
    *app.reloaded.lock() = Documents { generation, loaded_at: jiff::Timestamp::now(), refused: None };
    app.reloads.note("ok");
    note_documents(app, &site);
    tracing::info!(generation, "documents reloaded");
}

fn refused(app: &App, why: &str) {
    tracing::error!(why, "documents refused; the old ones stay in force");
    app.reloaded.lock().refused = Some(why.to_owned());
    app.reloads.note("refused");
}

async fn store_changes(app: &App, mut changes: watch::Receiver<Changes>) {
    let mut seen = *changes.borrow_and_update();
    // Routes that changed between the start's reading and the watcher's are read now.
    let mut routes_behind = seen.routes != app.catalogues.routes_in_force();
    let mut is_behind = false;
    loop {
        let now = tokio::select! {
            changed = changes.changed() => match changed {
                Ok(()) => *changes.borrow_and_update(),
                Err(_) => return,
            },
            // A read that failed is not forgotten: what it missed may be a revocation.
            () = sleep(POLL_INTERVAL), if is_behind || routes_behind => *changes.borrow(),
        };
        if now.reachable != seen.reachable {
            tracing::warn!(reachable = now.reachable, "store");
        }
        if now.keys != seen.keys || is_behind {
            is_behind = !read_keys(app).await;
        }
        if now.routes != seen.routes || routes_behind {
            routes_behind = !read_routes(app).await;
        }
        let state = if now.reachable { StoreState::Connected } else { StoreState::Away };
        app.shared.keyring.note_store(state);
        seen = now;
    }
}

/// Whether aliases go where the store says again.
async fn read_routes(app: &App) -> bool {
    match app.store.routes().await {
        Ok(snapshot) => {
            app.catalogues.set_routes(snapshot);
            true
        }
        Err(error) => {
            tracing::error!(%error, "cannot read the routes; aliases stay where they are");
            false
        }
    }
}

/// Whether the keys in force are the store's again.
async fn read_keys(app: &App) -> bool {
    let before = Arc::clone(&app.shared.keyring.load());
    match tidegate_console::load_keyring(&app.store, Arc::clone(&app.pepper), Some(&before)).await {
        Ok(keyring) => {
            app.shared.keyring.replace(keyring);
            true
        }
        Err(error) => {
            tracing::error!(%error, "cannot read the keys; the last known ones stay in force");
            false
        }
    }
}

async fn housekeeping(app: &App) {
    let mut tick = interval(HOUSEKEEPING);
    let mut noted = tidegate_store::clock::wall();
    loop {
        tick.tick().await;
        let swept = app.shared.counters.sweep(app.shared.clock.now(), tidegate_store::clock::wall());
        if swept.abandoned > 0 {
            tracing::error!(slots = swept.abandoned, "slots were held by nobody");
        }
        noted = app::touch(&app.store, &app.shared, noted).await;
    }
}
