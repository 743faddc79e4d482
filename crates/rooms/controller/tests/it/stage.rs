//! A site, its world, and its controller.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::{Site, Source, check};
use tidegate_controller::controller::{Controller, ControllerHandle, Ended, Parts};
use tidegate_controller::records::MemoryRecords;
use tidegate_controller::route::{NoGates, OwnTable};
use tidegate_controller::simulation::{Pace, World};
use tidegate_controller::status::Status;
use tidegate_planner::hardware::Hardware;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Two shifts on one node of 8 GPUs. `day` and `night` are the memory of each in GB: of 4 GPUs with 100 GB each.
pub(crate) fn day_night(day: u32, night: u32, schedule: &str) -> String {
    let deployment = |name: &str, memory: u32| {
        format!(
            "kind: Deployment\nmetadata: {{name: {name}}}\nspec: {{model: m, parallel: {{tp: 4}}, gpus: {{required: 4, min: 4, preferred: 4}}, memory: {{weights: {}GB, kvCache: 4GB, workspace: 4GB, reserve: 4GB}}, launch: {{replicas: 1}}}}\n---\n",
            memory - 12
        )
    };
    format!(
        "kind: Node\nmetadata: {{name: n1}}\nspec: {{facts: document, gpus: {{count: 4, product: X, memory: 100GB}}, hostMemory: 64GB}}\n---\n\
         kind: Model\nmetadata: {{name: m}}\nspec: {{engine: vllm, source: {{path: a/b}}}}\n---\n\
         {}{}\
         kind: Alias\nmetadata: {{name: big}}\nspec: {{shifts: {{day: {{targets: [{{deployment: day-1}}]}}, night: {{targets: [{{deployment: night-1}}]}}}}}}\n---\n\
         kind: Schedule\nmetadata: {{name: all}}\nspec: {{timeZone: UTC, shifts: [{{name: day, start: '08:00', deployments: [day-1]}}, {{name: night, start: '22:00', deployments: [night-1]}}]{schedule}}}\n",
        deployment("day-1", day),
        deployment("night-1", night),
    )
}

pub(crate) fn site(documents: &str) -> Arc<Site> {
    let head = "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: s}\nspec: {timeZone: UTC, launcher: processes, modelStore: {url: 'file:///nowhere'}, modelCache: {path: /nowhere}}\n---\n";
    let checked = check(&[Source::new("site.yaml", format!("{head}{documents}"))]);
    let said: Vec<String> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
    Arc::new(checked.site.unwrap_or_else(|| panic!("{}", said.join("\n"))))
}

pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A controller at work in its world.
pub(crate) struct Stage {
    pub(crate) world: Arc<World>,
    pub(crate) records: Arc<MemoryRecords>,
    pub(crate) site: Arc<Site>,
    pub(crate) handle: ControllerHandle,
    end: Option<oneshot::Sender<()>>,
    running: JoinSet<Ended>,
}

impl Stage {
    pub(crate) fn new(documents: &str, now: &str) -> Self {
        Self::paced(documents, now, Pace::default())
    }

    pub(crate) fn paced(documents: &str, now: &str, pace: Pace) -> Self {
        let site = site(documents);
        let world = World::new(Hardware::of(&site), &site, at(now), pace);
        let records = Arc::new(MemoryRecords::default());
        let (handle, end, running) = start(&site, &world, &records);
        Self { world, records, site, handle, end: Some(end), running }
    }

    /// Lets virtual time pass.
    pub(crate) async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Lets time pass until an instant of the world.
    pub(crate) async fn until(&self, instant: &str) {
        let left = at(instant).duration_since(self.world.now());
        tokio::time::sleep(left.try_into().unwrap()).await;
    }

    /// Ends the controller between two steps, as a kill does, and starts another.
    pub(crate) async fn kill_and_restart(&mut self) {
        self.running.shutdown().await;
        let (handle, end, running) = start(&self.site, &self.world, &self.records);
        (self.handle, self.end, self.running) = (handle, Some(end), running);
    }

    pub(crate) fn status(&self) -> Arc<Status> {
        self.handle.status()
    }

    /// Deployments that an alias goes to.
    pub(crate) fn serving(&self, alias: &str) -> Vec<String> {
        let row = self.world.route(alias);
        row.into_iter().flat_map(|row| row.targets).map(|target| target.deployment.to_string()).collect()
    }

    pub(crate) fn is_answered(&self, alias: &str) -> bool {
        self.world.ask(alias).is_some()
    }

    pub(crate) fn right(&self) {
        assert_eq!(self.world.wrongs(), Vec::<String>::new());
    }
}

fn start(
    site: &Arc<Site>,
    world: &Arc<World>,
    records: &Arc<MemoryRecords>,
) -> (ControllerHandle, oneshot::Sender<()>, JoinSet<Ended>) {
    let table = Arc::<MemoryRecords>::clone(records);
    let parts = Parts {
        records: Arc::<MemoryRecords>::clone(records),
        actuators: vec![Arc::new(OwnTable::new(table, Arc::new(NoGates))), Arc::<World>::clone(world)],
        launcher: Arc::<World>::clone(world),
        care: Arc::<World>::clone(world),
        counts: None,
    };
    let clock = Arc::clone(world);
    let (controller, handle) = Controller::new(Arc::clone(site), parts, Arc::new(move || clock.now()));
    let (end, ended) = oneshot::channel::<()>();
    let mut running = JoinSet::new();
    running.spawn(controller.run(async {
        let _ = ended.await;
    }));
    (handle, end, running)
}
