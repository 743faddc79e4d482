//! The controller in this process: its nodes, its gates, and what it says.

mod gates;
mod hands;
mod models;
mod nodes;
mod view;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tidegate_config::Site;
use tidegate_controller::controller::{Controller, ControllerHandle, Ended, Parts, Traffic};
use tidegate_controller::engines::Engines;
use tidegate_controller::externals::Externals;
use tidegate_controller::records::StoreRecords;
use tidegate_controller::route::OwnTable;
use tidegate_core::ShiftName;
use tidegate_engine::backend::{BackendSet, Made};
use tidegate_planner::desired::{Override, desired};
use tidegate_store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::gates::Gates;
use self::hands::Hands;
pub(crate) use self::models::CacheHands;
use self::nodes::Nodes;
pub(crate) use self::nodes::local_settings;
pub(crate) use self::view::{asked, lifecycle, replicas};
use crate::catalogues::Catalogues;
use crate::cli::ClusterArgs;

/// The controller and what it acts through.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    pub(crate) handle: ControllerHandle,
    pub(crate) externals: Arc<Externals>,
    hands: Hands,
    nodes: Nodes,
    end: oneshot::Sender<()>,
    /// The controller, and whoever puts what it says into the catalogue; the first returns why it ended.
    controller: JoinSet<Ended>,
    following: JoinSet<()>,
}

/// What a controller is started with.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) site: &'a Arc<Site>,
    pub(crate) store: &'a Store,
    pub(crate) state: &'a Path,
    pub(crate) cluster: &'a ClusterArgs,
    pub(crate) cores: usize,
    pub(crate) catalogues: &'a Arc<Catalogues>,
    pub(crate) externals: Arc<Externals>,
    pub(crate) models: Option<Arc<CacheHands>>,
}

impl Lifecycle {
    /// Opens the nodes, takes over what runs on them, and goes to work.
    pub(crate) async fn start(start: Start<'_>) -> anyhow::Result<Self> {
        let Start { site, store, state, cluster, cores, catalogues, externals, models } = start;
        let nodes = Nodes::open(site, state, models).await?;
        let hands = Hands::start(site, nodes.members(site).await, cluster, store).await?;
        let records = Arc::new(StoreRecords::new(store.clone()));
        let gates = Arc::new(Gates { store: store.clone(), catalogues: Arc::clone(catalogues) });
        let parts = Parts {
            records: Arc::<StoreRecords>::clone(&records),
            actuators: hands.actuators(Arc::new(OwnTable::new(records, gates))),
            launcher: hands.launcher(),
            care: Arc::new(Engines { cores, connect: site.timeouts.connect }),
            counts: None,
        };
        let (controller, handle) = Controller::new(Arc::clone(site), parts, Arc::new(jiff::Timestamp::now));
        let (end, ended) = oneshot::channel();
        let (mut running, mut following) = (JoinSet::new(), JoinSet::new());
        running.spawn(controller.run(async {
            // A sender that is gone means the same.
            let _: Result<(), _> = ended.await;
        }));
        following.spawn(follow(handle.clone(), Arc::clone(catalogues), Arc::clone(&externals)));
        Ok(Self { handle, externals, hands, nodes, end, controller: running, following })
    }

    /// Other documents.
    pub(crate) async fn reload(&self, site: &Arc<Site>) {
        self.externals.apply(site);
        self.hands.reload(site, self.nodes.members(site).await);
        self.handle.reload(Arc::clone(site)).await;
    }

    /// Ends the controller, then the engines that it started.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self { handle: _, externals, hands, nodes, end, mut controller, mut following } = self;
        // One that has ended needs no telling.
        let _ = end.send(());
        following.shutdown().await;
        while let Some(ended) = controller.join_next().await {
            let ended = ended.context("the controller failed")?;
            if ended != Ended::Told {
                tracing::error!(%ended, "the controller had ended before");
            }
        }
        externals.stop().await;
        drop(hands);
        nodes.close().await;
        Ok(())
    }
}

/// The shift that is desired now: what aliases without a route go by.
pub(crate) async fn shift_now(site: &Site, store: &Store) -> anyhow::Result<ShiftName> {
    let said = store.override_in_force().await?.map(|said| Override {
        shift: said.shift,
        made: said.made.to_timestamp(),
        until: said.until.map(tidegate_core::Unix::to_timestamp),
    });
    let said = said.filter(|said| site.shifts().contains(&said.shift));
    Ok(desired(site, said.as_ref(), jiff::Timestamp::now()).shift)
}

/// All engines that can be asked.
pub(crate) fn backends(traffic: &Traffic, externals: &Externals) -> BackendSet {
    let mut set = BackendSet::default();
    for external in externals.status() {
        if let Some(backend) = external.backend {
            set.insert(&external.deployment, 0, None, backend);
        }
    }
    for placed in &traffic.placed {
        let made = Made { document: Arc::new(placed.blueprint.deployment.clone()), dialect: placed.blueprint.dialect };
        set.insert(&placed.deployment, placed.revision, Some(&made), Arc::clone(&placed.backend));
    }
    set
}

/// Puts what the controller has into the catalogue whenever it changes.
async fn follow(handle: ControllerHandle, catalogues: Arc<Catalogues>, externals: Arc<Externals>) {
    let mut traffic = handle.traffic();
    while traffic.changed().await.is_ok() {
        let now = Arc::clone(&traffic.borrow_and_update());
        let set = backends(&now, &externals);
        catalogues.change(|ingredients| {
            ingredients.backends = set;
            if let Some(shift) = now.shift.clone().filter(|shift| ingredients.site.shifts().contains(shift)) {
                ingredients.shift = shift;
            }
        });
    }
}
