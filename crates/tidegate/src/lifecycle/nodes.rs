//! The nodes that this process acts on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tidegate_config::Site;
use tidegate_controller::launcher::processes::{Member, Members};
use tidegate_engine::launch::root_cause;
use tidegate_node::{LocalNode, LocalNodeSettings, ModelHands, OnExit};

use crate::MINDER;

/// The node's name where the documents have none.
pub(crate) const LOCAL: &str = "local";
/// How long engines go on when this process is gone without having ended them.
const ORPHAN_AFTER: Duration = Duration::from_secs(60);
/// How long an engine has to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Nodes that are this machine.
#[derive(Debug)]
pub(crate) struct Nodes {
    local: BTreeMap<Arc<str>, Arc<LocalNode>>,
}

impl Nodes {
    /// Opens every node of the documents that has no address: it is this machine.
    pub(crate) async fn open(site: &Site, state: &Path, models: Option<Arc<dyn ModelHands>>) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("cannot find this program, which engines are started through")?;
        let here = site.nodes.iter().filter(|(_, node)| node.address.is_none()).map(|(name, _)| Arc::clone(name));
        let mut names: Vec<Arc<str>> = here.collect();
        if site.nodes.is_empty() {
            names.push(LOCAL.into());
        }
        let mut local = BTreeMap::new();
        for name in names {
            let minder = vec![own.clone().into_os_string(), OsString::from(MINDER)];
            let folder = state.join("nodes").join(&*name);
            let settings = LocalNodeSettings {
                document: site.nodes.get(&name).cloned(),
                orphan_after: Some(ORPHAN_AFTER),
                models: models.clone(),
                cause: Arc::new(root_cause),
                ..LocalNodeSettings::new(&*name, folder, minder)
            };
            let node = LocalNode::open(settings).await.with_context(|| format!("node {name}"))?;
            local.insert(name, Arc::new(node));
        }
        Ok(Self { local })
    }

    /// Who is asked about each node of the documents.
    pub(crate) fn members(&self, site: &Site) -> Members {
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

    /// Ends the engines on this machine.
    pub(crate) async fn close(self) {
        for (_, node) in self.local {
            node.close(OnExit::Stop(STOP_PATIENCE)).await;
        }
    }
}
