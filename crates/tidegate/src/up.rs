//! `tidegate up`: everything in one process.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tidegate_config::Site;
use tidegate_console::{Console, Trust};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::app::{self, App};
use crate::cli::{ClusterArgs, Up};
use crate::reload::Fingerprint;
use crate::state::StateFolder;
use crate::{EXIT_DOCUMENTS, load, reload, telemetry, terminal};

/// Threads for everything that is not the data path.
const BACKGROUND_THREADS: usize = 2;

/// Loads, builds, runs, drains.
pub(crate) fn up(args: &Up) -> anyhow::Result<ExitCode> {
    telemetry::start(args.log_text);
    let loaded = Fingerprint::of(&args.documents);
    let (checked, _) = load::planned(&args.documents)?;
    let Some(site) = checked.site else {
        for diagnostic in &checked.diagnostics {
            terminal::note(&diagnostic.render());
        }
        return Ok(ExitCode::from(EXIT_DOCUMENTS));
    };
    for warning in &checked.diagnostics {
        tracing::warn!(warning = warning.render(), "documents");
    }
    let state = StateFolder::open(&args.state.state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(BACKGROUND_THREADS)
        .thread_name("background")
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(run(site, (args.documents.clone(), loaded), state, &args.cluster));
    // After a second signal a drain may still run on a blocking thread: it is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn run(
    site: Site,
    documents: (PathBuf, Fingerprint),
    state: StateFolder,
    cluster: &ClusterArgs,
) -> anyhow::Result<ExitCode> {
    let admin = TcpListener::bind(site.admin.listen).await.with_context(|| {
        format!("cannot listen on {}: is another process there? (Site.spec.admin.listen)", site.admin.listen)
    })?;
    let socket = own_socket(&state.socket())?;
    // Before anybody can know that the process is there: a SIGHUP without a handler would end it.
    let mut signals = Signals::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let app = app::build(site, documents, state, cluster).await?;
    let mut servers = serve_admin(&app, admin, socket)?;
    let ran = tokio::select! {
        watched = reload::watch_all(&app, &mut hangup) => watched,
        name = signals.stop() => {
            tracing::info!(signal = name, "draining");
            Ok(())
        }
        Some(ended) = servers.join_next() => ended.map_err(Into::into).and_then(|served| Ok(served?)),
    };
    // Whatever ended it: what runs may finish, and what is settled is written.
    let socket = app.state.socket();
    let stopped = stop(app, &mut signals).await;
    servers.shutdown().await;
    // Whoever starts next makes a new one.
    let _ = std::fs::remove_file(socket);
    ran.and(stopped).map(|()| ExitCode::SUCCESS)
}

/// Drains and stops everything; a second signal does not wait for it.
async fn stop(app: App, signals: &mut Signals) -> anyhow::Result<()> {
    app.gateway.drain();
    tokio::select! {
        stopped = app.stop() => stopped,
        name = signals.stop() => Err(anyhow::anyhow!("{name} again: not everything could finish")),
    }
}

/// What ends the process.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The admin socket, for the owner alone. We hold the state folder's lock, so one that is there is a dead process's.
fn own_socket(path: &Path) -> anyhow::Result<UnixListener> {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("cannot replace {}", path.display()));
    }
    // The folder is 0700, so there is no moment in which somebody else could connect.
    let socket = UnixListener::bind(path).with_context(|| format!("cannot make the socket {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

fn serve_admin(app: &App, tcp: TcpListener, socket: UnixListener) -> anyhow::Result<JoinSet<std::io::Result<()>>> {
    let panel: Arc<dyn tidegate_console::Panel> = Arc::<crate::desk::Desk>::clone(&app.desk);
    let console = Console { store: app.store.clone(), keyring: Arc::clone(&app.shared.keyring), panel };
    let address = tcp.local_addr()?;
    let mut servers = JoinSet::new();
    servers.spawn(tidegate_console::serve(tcp, console.clone().router(Trust::AdminKey)));
    servers.spawn(tidegate_console::serve(socket, console.router(Trust::Owner)));
    tracing::info!(
        gate = app.desk.gate, admin = %address, state = %app.state.path().display(),
        documents = %app.documents.display(), "serving"
    );
    Ok(servers)
}
