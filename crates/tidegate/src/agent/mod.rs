//! `tidegate agent`: this machine as a node, for a controller on another one.

mod args;
mod check;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tidegate_agent::Agent;
use tidegate_config::Site;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::cache::Cache;
use tidegate_node::tls::{ServerTls, TlsFiles};
use tidegate_node::{LocalNode, LocalNodeSettings, ModelHands, OnExit};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

pub(crate) use self::args::AgentArgs;
use crate::app::hands;
use crate::lifecycle::local_settings;
use crate::model::Models;
use crate::state::StateFolder;
use crate::up::Signals;
use crate::{EXIT_DOCUMENTS, load, telemetry, terminal};

/// Threads: nothing here is on a request's path.
const THREADS: usize = 2;

/// Checks, or serves until SIGTERM.
pub(crate) fn agent(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    telemetry::start(args.log_text || args.check);
    let Some(site) = documents(args)? else { return Ok(ExitCode::from(EXIT_DOCUMENTS)) };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("agent")
        .enable_all()
        .build()?;
    let outcome =
        if args.check { runtime.block_on(check::check(args, &site)) } else { runtime.block_on(run(args, &site)) };
    runtime.shutdown_background();
    outcome
}

/// What is known of the site.
#[derive(Debug)]
struct Known {
    name: Arc<str>,
    site: Option<Site>,
}

impl Known {
    /// What this node runs with; nothing of it is opened yet.
    fn settings(&self, args: &AgentArgs) -> anyhow::Result<LocalNodeSettings> {
        let document = self.site.as_ref().and_then(|site| site.nodes.get(args.node.as_str())).cloned();
        let state = std::path::absolute(&args.state.state)?;
        let settings = local_settings(&args.node, &state, document)?;
        // The agent may be away for long, an upgrade say: its engines serve on.
        Ok(LocalNodeSettings { orphan_after: None, ..settings })
    }
}

/// `None`: the documents are wrong, and that has been said.
fn documents(args: &AgentArgs) -> anyhow::Result<Option<Known>> {
    let Some(path) = &args.documents else {
        let name = args.site.as_deref().context("--site or --documents is needed")?;
        return Ok(Some(Known { name: name.into(), site: None }));
    };
    let checked = load::documents(path)?;
    let Some(mut site) = checked.site else {
        for diagnostic in &checked.diagnostics {
            terminal::note(&diagnostic.render());
        }
        return Ok(None);
    };
    if !site.nodes.contains_key(args.node.as_str()) {
        let names: Vec<_> = site.nodes.keys().map(|name| &**name).collect();
        bail!("the documents have no Node {}: they have {}", args.node, names.join(", "));
    }
    if let Some(cache) = &args.cache {
        site.model_cache.path = std::path::absolute(cache)?;
    }
    let name = args.site.as_deref().map_or_else(|| Arc::clone(&site.name), Arc::from);
    Ok(Some(Known { name, site: Some(site) }))
}

fn tls_files(args: &AgentArgs) -> TlsFiles {
    let of = TlsFiles::in_folder(&args.certificates, &args.node);
    TlsFiles {
        ca: args.ca.clone().unwrap_or(of.ca),
        cert: args.cert.clone().unwrap_or(of.cert),
        key: args.key.clone().unwrap_or(of.key),
    }
}

/// Where the model cache is.
fn cache_path(site: &Site, state: &Path) -> PathBuf {
    state.join(&site.model_cache.path)
}

/// A node's cache has one writer: a second agent on it does not start.
async fn refuse_shared_cache(site: &Site, state: &Path) -> anyhow::Result<()> {
    let path = cache_path(site, state);
    let root = path.clone();
    let opened = tokio::task::spawn_blocking(move || Cache::open(&root, Default::default()).map(drop)).await?;
    match opened {
        Err(CacheFault::OwnerBusy { pid, .. }) => bail!(
            "the model cache {} belongs to process {pid}: stop that one, or give this agent another with --cache",
            path.display()
        ),
        // A disk that cannot be used now may be one later: it is tried again and said until then.
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn run(args: &AgentArgs, known: &Known) -> anyhow::Result<ExitCode> {
    let tls = ServerTls::new(tls_files(args), &known.name, &args.node)
        .context("certificates: make them with `tidegate pki`")?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}: is another agent there? (--listen)", args.listen))?;
    let address = listener.local_addr()?;
    let state = StateFolder::open(&args.state.state)?;
    let mut signals = Signals::new()?;
    let models = match known.site.as_ref().filter(|site| site.model_store.is_some()) {
        Some(site) => {
            refuse_shared_cache(site, state.path()).await?;
            Models::start(site, state.path(), &Handle::current())
        }
        None => None,
    };
    let hands = models.as_ref().map(|models| hands(models, state.path()));
    let settings = LocalNodeSettings {
        models: hands.clone().map(|hands| -> Arc<dyn ModelHands> { hands }),
        ..known.settings(args)?
    };
    let node = Arc::new(LocalNode::open(settings).await.with_context(|| format!("node {}", args.node))?);
    tracing::info!(node = args.node, site = &*known.name, %address, state = %state.path().display(), "agent serves");
    let mut tasks = JoinSet::new();
    if let Some(hands) = hands {
        tasks.spawn(hands.follow(Arc::<LocalNode>::clone(&node)));
    }
    let agent = Agent::new(Arc::<LocalNode>::clone(&node), tls);
    agent
        .serve(listener, async {
            let signal = signals.stop().await;
            tracing::info!(signal, "the agent ends; its engines go on");
        })
        .await;
    tasks.shutdown().await;
    node.close(OnExit::Leave).await;
    if let Some(models) = models {
        models.stop().await;
    }
    Ok(ExitCode::SUCCESS)
}
