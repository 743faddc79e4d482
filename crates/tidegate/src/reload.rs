//! Changes while the process runs: documents on disk, keys in the store, time passing.
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

use crate::app::{self, App};
use crate::desk::Documents;
use crate::known::Known;
use crate::load;

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
    let keys = ChangeWatcher::start(&app.store, POLL_INTERVAL).await?;
    tokio::join!(documents(app, &changed, hangup), self::keys(app, keys.changes()), housekeeping(app));
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
        };
        let now = Fingerprint::of(&app.documents);
        if is_forced || now != seen {
            seen = now;
            reload(app);
        }
    }
}

/// What would make a reload worth while: paths, sizes and times of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Fingerprint {
    /// To be taken before the documents are read: what changes in between is then seen as a change.
    pub(crate) fn of(documents: &Path) -> Self {
        let files = load::files(documents).unwrap_or_default();
        let look = |path: PathBuf| {
            let metadata = std::fs::metadata(&path).ok()?;
            Some((path, metadata.len(), metadata.modified().ok()))
        };
        Self(files.into_iter().filter_map(look).collect())
    }
}

/// Reads and checks the documents; the text says everything that is wrong with them.
fn read(app: &App) -> Result<Site, String> {
    let checked = load::documents(&app.documents).map_err(|error| format!("{error:#}"))?;
    checked.site.ok_or_else(|| {
        let all: Vec<_> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
        all.join("\n")
    })
}

fn reload(app: &App) {
    match read(app) {
        Ok(site) => put_in_force(app, Arc::new(site)),
        Err(why) => refused(app, &why),
    }
}

/// What only the next start can change.
fn warn_of_fixed(site: &Site, old: &Site) {
    if site.gateway.listen != old.gateway.listen || site.admin.listen != old.admin.listen {
        tracing::warn!("listen addresses change with the next start only");
    }
}

fn note_documents(app: &App, site: &Site) {
    if let Err(error) = Known::of(site, &app.documents).save(app.state.path()) {
        tracing::warn!(error = format!("{error:#}"), "cannot note the documents in the state folder");
    }
}

fn put_in_force(app: &App, site: Arc<Site>) {
    let old = app.shared.catalogue.load_full();
    warn_of_fixed(&site, &old.site);
    let backends = app.fleet.apply(&site);
    let tokenizers = app::tokenizers(&site);
    let shift = app::shift_in_force(&site, app.shift.as_ref());
    let generation = old.generation + 1;
    let catalogue = app::catalogue(&site, shift, generation, &backends, &tokenizers, &app.shared.metrics);
    app.shared.catalogue.store(Arc::new(catalogue));
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

async fn keys(app: &App, mut changes: watch::Receiver<Changes>) {
    let mut seen = *changes.borrow_and_update();
    while changes.changed().await.is_ok() {
        let now = *changes.borrow_and_update();
        if now.reachable != seen.reachable {
            tracing::warn!(reachable = now.reachable, "store");
        }
        if now.keys != seen.keys {
            read_keys(app).await;
        }
        let state = if now.reachable { StoreState::Connected } else { StoreState::Away };
        app.shared.keyring.note_store(state);
        seen = now;
    }
}

async fn read_keys(app: &App) {
    let before = Arc::clone(&app.shared.keyring.load());
    match tidegate_console::load_keyring(&app.store, Arc::clone(&app.pepper), Some(&before)).await {
        Ok(keyring) => app.shared.keyring.replace(keyring),
        Err(error) => tracing::error!(%error, "cannot read the keys; the last known ones stay in force"),
    }
}

async fn housekeeping(app: &App) {
    let mut tick = interval(HOUSEKEEPING);
    loop {
        tick.tick().await;
        let swept = app.shared.counters.sweep(app.shared.clock.now(), tidegate_store::clock::wall());
        if swept.abandoned > 0 {
            tracing::error!(slots = swept.abandoned, "slots were held by nobody");
        }
        app::touch(&app.store, &app.shared).await;
    }
}
