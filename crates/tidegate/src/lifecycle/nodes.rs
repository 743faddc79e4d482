//! The nodes that this process acts on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tidegate_config::Site;
use tidegate_config::site::{Node as Document, SecretRef};
use tidegate_controller::launcher::processes::{Member, Members};
use tidegate_engine::launch::root_cause;
use tidegate_node::tls::{ClientTls, TlsFiles};
use tidegate_node::{LocalNode, LocalNodeSettings, ModelHands, OnExit, RemoteNode};
use tokio::net::lookup_host;
use tokio::task::JoinSet;

use super::CacheHands;
use crate::MINDER;

/// The node's name where the documents have none.
pub(crate) const LOCAL: &str = "local";
/// How long engines go on when this process is gone without having ended them.
const ORPHAN_AFTER: Duration = Duration::from_secs(60);
/// How long an engine has to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// What every node of this machine is made of; `state` is the state folder.
pub(crate) fn local_settings(
    name: &str,
    state: &Path,
    document: Option<Document>,
) -> anyhow::Result<LocalNodeSettings> {
    let own = std::env::current_exe().context("cannot find this program, which engines are started through")?;
    let minder = vec![own.into_os_string(), OsString::from(MINDER)];
    let folder = state.join("nodes").join(name);
    Ok(LocalNodeSettings { document, cause: Arc::new(root_cause), ..LocalNodeSettings::new(name, folder, minder) })
}

/// A node behind an agent, with the address that it was made for.
type Remote = (Arc<str>, Arc<RemoteNode>);

/// Nodes that are this machine, and nodes behind agents.
#[derive(Debug)]
pub(crate) struct Nodes {
    local: BTreeMap<Arc<str>, Arc<LocalNode>>,
    remote: Mutex<BTreeMap<Arc<str>, Remote>>,
    /// Save what engines compile.
    tasks: JoinSet<()>,
}

/// Our end towards the agents.
fn agents_tls(site: &Site) -> anyhow::Result<TlsFiles> {
    let Some(agents) = &site.agents else {
        bail!(
            "a Node has an address, and Site.spec.agents does not say with which certificates its agent is asked: make them with `tidegate pki`"
        );
    };
    // They are read again whenever they change, which a variable cannot.
    let file = |from: &SecretRef, what: &str| match from {
        SecretRef::File(path) => Ok::<PathBuf, anyhow::Error>(path.clone()),
        SecretRef::Env(_) => bail!("Site.spec.agents.{what}: a file is needed (fromFile)"),
    };
    Ok(TlsFiles { ca: file(&agents.ca, "ca")?, cert: file(&agents.cert, "cert")?, key: file(&agents.key, "key")? })
}

/// The IP address of an agent's `HOST:PORT`: its engines are reached there, too.
async fn host_of(address: &str) -> anyhow::Result<IpAddr> {
    let found = lookup_host(address).await.with_context(|| format!("cannot find the host of {address}"))?;
    found.map(|at| at.ip()).next().with_context(|| format!("{address} has no IP address"))
}

impl Nodes {
    /// Opens every node of the documents that has no address: it is this machine.
    pub(crate) async fn open(site: &Site, state: &Path, models: Option<Arc<CacheHands>>) -> anyhow::Result<Self> {
        let here = site.nodes.iter().filter(|(_, node)| node.address.is_none()).map(|(name, _)| Arc::clone(name));
        let mut names: Vec<Arc<str>> = here.collect();
        if site.nodes.is_empty() {
            names.push(LOCAL.into());
        }
        let (mut local, mut tasks) = (BTreeMap::new(), JoinSet::new());
        for name in names {
            let settings = LocalNodeSettings {
                orphan_after: Some(ORPHAN_AFTER),
                models: models.clone().map(|models| -> Arc<dyn ModelHands> { models }),
                ..local_settings(&name, state, site.nodes.get(&name).cloned())?
            };
            let node = LocalNode::open(settings).await.with_context(|| format!("node {name}"))?;
            let node = Arc::new(node);
            if let Some(models) = &models {
                tasks.spawn(Arc::clone(models).follow(Arc::<LocalNode>::clone(&node)));
            }
            local.insert(name, node);
        }
        let nodes = Self { local, remote: Mutex::default(), tasks };
        for (name, _) in site.nodes.iter().filter(|(_, node)| node.address.is_some()) {
            nodes.remote(site, name).with_context(|| format!("node {name}"))?;
        }
        Ok(nodes)
    }

    /// The node behind an agent; made once for each address.
    fn remote(&self, site: &Site, name: &Arc<str>) -> anyhow::Result<Arc<RemoteNode>> {
        let document = site.nodes.get(name).context("not in the documents")?;
        let address = document.address.as_ref().context("it has no address")?;
        let mut remote = self.remote.lock();
        if let Some((_, node)) = remote.get(name).filter(|(known, _)| known == address) {
            return Ok(Arc::clone(node));
        }
        let tls = ClientTls::new(agents_tls(site)?, &site.name, name).context("Site.spec.agents")?;
        let node = Arc::new(RemoteNode::new(name, address, tls));
        remote.insert(Arc::clone(name), (Arc::clone(address), Arc::clone(&node)));
        Ok(node)
    }

    async fn behind_agents(&self, site: &Site) -> Members {
        let mut members = Members::new();
        for (name, document) in &site.nodes {
            let Some(address) = &document.address else { continue };
            let found = match self.remote(site, name) {
                Ok(node) => host_of(address).await.map(|host| Member { node, host }),
                Err(error) => Err(error),
            };
            match found {
                Ok(member) => drop(members.insert(Arc::clone(name), member)),
                Err(error) => tracing::error!(node = &**name, error = format!("{error:#}"), "a node cannot be used"),
            }
        }
        members
    }

    /// Who is asked about each node of the documents.
    pub(crate) async fn members(&self, site: &Site) -> Members {
        let mut members = self.behind_agents(site).await;
        members.extend(self.here(site));
        members
    }

    fn here(&self, site: &Site) -> Members {
        let is_named = |name: &str| site.nodes.contains_key(name) || (site.nodes.is_empty() && name == LOCAL);
        let local = self.local.iter().filter(|(name, _)| is_named(name));
        let member = |(name, node): (&Arc<str>, &Arc<LocalNode>)| {
            let member = Member { node: Arc::<LocalNode>::clone(node), host: IpAddr::V4(Ipv4Addr::LOCALHOST) };
            (Arc::clone(name), member)
        };
        for (name, _) in
            site.nodes.iter().filter(|(name, node)| node.address.is_none() && !self.local.contains_key(*name))
        {
            tracing::warn!(
                node = &**name,
                "a node of this machine that is new in the documents is used after a restart"
            );
        }
        local.map(member).collect()
    }

    /// Ends the engines on this machine; agents keep theirs.
    pub(crate) async fn close(mut self) {
        self.tasks.shutdown().await;
        for (_, node) in self.local {
            node.close(OnExit::Stop(STOP_PATIENCE)).await;
        }
    }
}
