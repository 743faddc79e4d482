//! Who starts engines: processes of the nodes, or Pods.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tidegate_config::Site;
use tidegate_config::site::Launcher as Kind;
use tidegate_controller::launcher::Launcher;
use tidegate_controller::launcher::kubernetes::{Kubernetes, KubernetesSettings};
use tidegate_controller::launcher::processes::{Members, Processes};
use tidegate_controller::route::{HttpRouteSettings, HttpRoutes, RouteActuator};
use tidegate_core::AliasName;
use tidegate_kubernetes::{Access, Cluster, ClusterOptions, Fault};
use tidegate_store::Store;
use tokio::task::JoinSet;

use crate::cli::ClusterArgs;

/// Tries at a start.
const TRIES: u32 = 30;
/// Between two of them.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The launcher that the documents name.
#[derive(Debug)]
pub(super) enum Hands {
    /// Processes.
    Processes(Arc<Processes>),
    /// Pods.
    Pods {
        launcher: Arc<Kubernetes>,
        /// HTTPRoutes, where aliases have some.
        routes: Option<Arc<HttpRoutes>>,
        /// Keeps the view of the cluster up to date.
        _following: JoinSet<()>,
    },
}

impl Hands {
    /// What the documents name, with these nodes.
    pub(super) async fn start(
        site: &Arc<Site>,
        members: Members,
        args: &ClusterArgs,
        store: &Store,
    ) -> anyhow::Result<Self> {
        let kinds = site.nodes.values().map(|node| node.launcher.unwrap_or(site.launcher));
        let is_other = kinds.into_iter().any(|kind| kind != site.launcher);
        match site.launcher {
            _ if is_other => bail!("one launcher for all nodes: Node.spec.launcher has to be that of the Site"),
            Kind::Processes => Ok(Self::Processes(Arc::new(Processes::new(Arc::clone(site), members)))),
            Kind::Kubernetes => Self::pods(site, members, args, store).await,
        }
    }

    async fn pods(site: &Arc<Site>, members: Members, args: &ClusterArgs, store: &Store) -> anyhow::Result<Self> {
        let access = args
            .kubeconfig
            .as_ref()
            .map_or(Access::InCluster, |path| Access::Kubeconfig { path: path.clone(), context: None });
        let options = ClusterOptions { namespace: args.namespace.clone() };
        let cluster = Cluster::connect(&access, &options).await.map_err(told)?;
        // a store that is younger than the cluster would be taken for an earlier controller's for ever
        let highest = patiently(async || cluster.highest().await).await.map_err(told)?;
        if highest > store.generation().await? {
            store.next_generation_above(highest).await.context("the store's generation")?;
        }
        let aliases = patiently(async || cluster.routed_aliases().await).await.map_err(told)?;
        let routes = (!aliases.is_empty()).then(|| {
            tracing::info!(?aliases, "HTTPRoutes are set, too");
            let aliases = aliases.iter().map(|name| AliasName::from(name.as_str())).collect();
            Arc::new(HttpRoutes::new(cluster.clone(), HttpRouteSettings { aliases, ..HttpRouteSettings::default() }))
        });
        let settings = KubernetesSettings::of(site, site.model_cache.path.clone());
        let (launcher, follow) = Kubernetes::new(cluster, settings, Arc::clone(site), members);
        let mut following = JoinSet::new();
        following.spawn(follow);
        Ok(Self::Pods { launcher: Arc::new(launcher), routes, _following: following })
    }

    pub(super) fn launcher(&self) -> Arc<dyn Launcher> {
        match self {
            Self::Processes(processes) => Arc::<Processes>::clone(processes),
            Self::Pods { launcher, .. } => Arc::<Kubernetes>::clone(launcher),
        }
    }

    /// Our own table first; then whoever else carries requests.
    pub(super) fn actuators(&self, own: Arc<dyn RouteActuator>) -> Vec<Arc<dyn RouteActuator>> {
        let mut all = vec![own];
        if let Self::Pods { routes: Some(routes), .. } = self {
            all.push(Arc::<HttpRoutes>::clone(routes));
        }
        all
    }

    pub(super) fn reload(&self, site: &Arc<Site>, members: Members) {
        match self {
            Self::Processes(processes) => processes.reload(Arc::clone(site), members),
            Self::Pods { launcher, .. } => launcher.reload(Arc::clone(site), members),
        }
    }
}

fn told(fault: Fault) -> anyhow::Error {
    anyhow::anyhow!("kubernetes: {fault} ({}); {}", fault.code(), fault.hint())
}

/// Asks again while the API server is away, which at a start of everything it may be.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Fault>) -> Result<T, Fault> {
    for _ in 1..TRIES {
        match ask().await {
            Err(fault) if fault.is_away() => tracing::warn!(%fault, "kubernetes"),
            answer => return answer,
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    ask().await
}
