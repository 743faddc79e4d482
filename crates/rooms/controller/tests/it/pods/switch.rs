//! The whole: a controller that switches day and night as Pods, with gates that ask the engines behind them, its own
//! table and an HTTPRoute as routes, and pools that hold who has proven itself.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_controller::controller::{Controller, ControllerHandle, Ended, Parts};
use tidegate_controller::engines::Engines;
use tidegate_controller::launcher::Launcher;
use tidegate_controller::records::MemoryRecords;
use tidegate_controller::replica::Clock;
use tidegate_controller::route::{HttpRouteSettings, HttpRoutes, NoGates, OwnTable};
use tidegate_controller::status::Status;
use tidegate_controller::verbs::Verb;
use tidegate_core::{AliasName, ShiftName};
use tidegate_kubernetes::PoolOrder;
use tidegate_planner::switch::Outcome;
use tidegate_testkit::{Conduct, FakeEngine, Script};
use tokio::task::JoinSet;

use super::{DIGEST, PATIENCE, Stand};

/// Addresses of Pods: of the loopback network, and of this process and test alone.
fn address(test: u8, host: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 + (high & 63), low, test * 16 + host])
}

/// Where engines listen: the first of `enginePorts`, free at both addresses.
fn port(test: u8) -> u16 {
    let first = std::net::TcpListener::bind((address(test, 1), 0)).unwrap();
    let port = first.local_addr().unwrap().port();
    drop(std::net::TcpListener::bind((address(test, 2), port)).unwrap());
    port
}

/// The night is placed in GPU group `night`: the day's is `a`.
fn documents(node: &str, port: u16, night: &str) -> String {
    let deployment = |name: &str, group: &str| {
        format!(
            "kind: Deployment\nmetadata: {{name: {name}}}\nspec: {{model: glm, placement: {{group: {group}}}, servedName: m, parallel: {{tp: 4}}, gpus: {{required: 4, min: 4, preferred: 4}}, memory: {{weights: 280GB, kvCache: 80GB, workspace: 20GB, reserve: 20GB}}, launch: {{replicas: 1}}, warmup: {{stabilise: 1s, longContext: false}}}}\n---\n"
        )
    };
    format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec: {{timeZone: UTC, stage: pooled, launcher: kubernetes, enginePorts: {port}-{port}, modelStore: {{url: 'file:///nowhere'}}, modelCache: {{path: /model-cache}}, engines: {{vllm: {{version: '0.32.0', command: [vllm, serve], image: 'mirror.example/vllm@sha256:{DIGEST}'}}}}}}\n---\n\
         kind: Node\nmetadata: {{name: {node}}}\nspec: {{address: '{node}:8950', gpus: {{count: 8, product: B300, memory: 288GB}}, hostMemory: 2TB, groups: [{{name: a, gpus: 0-3}}, {{name: b, gpus: 4-7}}]}}\n---\n\
         kind: Model\nmetadata: {{name: glm}}\nspec: {{engine: vllm, source: {{path: glm/5.3}}}}\n---\n\
         {}{}\
         kind: Alias\nmetadata: {{name: big}}\nspec: {{shifts: {{day: {{targets: [{{deployment: day-1}}]}}, night: {{targets: [{{deployment: night-1}}]}}}}}}\n---\n\
         kind: Schedule\nmetadata: {{name: all}}\nspec: {{timeZone: UTC, shifts: [{{name: day, start: '08:00', deployments: [day-1]}}, {{name: night, start: '22:00', deployments: [night-1]}}], drain: {{timeout: 1s}}}}\n",
        deployment("day-1", "a"),
        deployment("night-1", night),
    )
}

struct Play {
    stand: Stand,
    day: FakeEngine,
    night: FakeEngine,
    records: Arc<MemoryRecords>,
    clock: Clock,
    handle: ControllerHandle,
    controller: JoinSet<Ended>,
    _gateway: JoinSet<()>,
}

async fn play(name: &'static str, test: u8, night: &str) -> Play {
    let port = port(test);
    let stand = Stand::by(name, &documents(&format!("{name}-a"), port, night), true).await;
    let at = move |host: u8| address(test, host);
    let script = || Script { prompt_tokens: None, ..Script::vllm("m") };
    let day = FakeEngine::start_at((at(1), port).into(), script()).await.unwrap();
    let night = FakeEngine::start_at((at(2), port).into(), script()).await.unwrap();
    stand.kubelet.conduct(move |pod| {
        let is_day = pod["metadata"]["labels"]["tidegate.dev/deployment"] == "day-1";
        Conduct::RunAt(at(if is_day { 1 } else { 2 }))
    });
    for pool in ["day-1", "night-1"] {
        let order = PoolOrder { name: pool.to_owned(), port, picker: "epp".to_owned(), picker_port: 9002 };
        stand.cluster.apply_pool(0, &order).await.unwrap();
    }
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "glm", "labels": { "tidegate.dev/alias": "big" } },
        "spec": { "parentRefs": [{ "name": "gate" }], "rules": [{ "backendRefs": [] }] },
    });
    let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{name}/httproutes");
    stand.api.create(&path, &route).await.unwrap();
    let gateway = super::route::gateway(&stand, "none");
    // noon, whatever the hour is here: the schedule starts nothing by itself
    let noon: jiff::Timestamp = "2026-12-01T12:00:00Z".parse().unwrap();
    let begun = std::time::Instant::now();
    let clock: Clock = Arc::new(move || noon + jiff::SignedDuration::try_from(begun.elapsed()).unwrap());
    let records = Arc::new(MemoryRecords::default());
    let launcher: Arc<dyn Launcher> = Arc::clone(&stand.launcher) as Arc<_>;
    let (handle, controller) = control(&stand, launcher, &records, &clock);
    Play { stand, day, night, records, clock, handle, controller, _gateway: gateway }
}

/// A controller at work.
fn control(
    stand: &Stand,
    launcher: Arc<dyn Launcher>,
    records: &Arc<MemoryRecords>,
    clock: &Clock,
) -> (ControllerHandle, JoinSet<Ended>) {
    let aliases = BTreeSet::from([AliasName::from("big")]);
    let routes = HttpRoutes::new(stand.cluster.clone(), HttpRouteSettings { aliases, ..HttpRouteSettings::default() });
    let table = OwnTable::new(Arc::<MemoryRecords>::clone(records), Arc::new(NoGates));
    let parts = Parts {
        records: Arc::<MemoryRecords>::clone(records),
        actuators: vec![Arc::new(table), Arc::new(routes)],
        launcher,
        care: Arc::new(Engines { cores: 1, connect: Duration::from_secs(2) }),
        counts: None,
    };
    let (controller, handle) = Controller::new(Arc::clone(&stand.site), parts, Arc::clone(clock));
    let mut running = JoinSet::new();
    running.spawn(controller.run(std::future::pending()));
    (handle, running)
}

impl Play {
    /// Ends the controller as a kill does, and starts another with another view of the cluster.
    async fn kill_and_restart(&mut self) {
        self.controller.shutdown().await;
        let launcher: Arc<dyn Launcher> = Arc::new(self.stand.restarted());
        (self.handle, self.controller) = control(&self.stand, launcher, &self.records, &self.clock);
    }

    async fn until(&self, what: &str, found: impl Fn(&Status) -> bool) -> Arc<Status> {
        let mut statuses = self.handle.statuses();
        let waited = async {
            loop {
                let now = Arc::clone(&statuses.borrow_and_update());
                if found(&now) {
                    return now;
                }
                statuses.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, waited).await {
            Ok(status) => status,
            Err(_) => panic!("{what}: never; {:#?}", self.handle.status()),
        }
    }

    /// A switch to that shift is over.
    async fn over(&self, to: &str) -> Option<Outcome> {
        let is_over = |status: &Status| {
            status.switch.is_none() && status.last.as_ref().is_some_and(|last| last.to.as_str() == to)
        };
        self.until(&format!("the switch to {to} is over"), is_over).await.last.as_ref().unwrap().outcome
    }

    async fn backend(&self) -> Value {
        let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes/glm", self.stand.name);
        self.stand.api.get(&path).await.unwrap()["spec"]["rules"][0]["backendRefs"][0]["name"].clone()
    }

    /// Pods by deployment, with the pool they are in.
    async fn pods(&self) -> Vec<(String, String)> {
        let label = |pod: &Value, name: &str| pod["metadata"]["labels"][name].as_str().unwrap_or("-").to_owned();
        let pods = self.stand.pods().await;
        pods.iter().map(|pod| (label(pod, "tidegate.dev/deployment"), label(pod, "model"))).collect()
    }
}

fn pair(deployment: &str, pool: &str) -> (String, String) {
    (deployment.to_owned(), pool.to_owned())
}

/// A night that says one character again and again.
fn garbage() -> Script {
    Script { prompt_tokens: None, ..Script::vllm("m").saying("!!!!!!!!") }
}

#[tokio::test]
async fn the_night_takes_over_from_the_day_once_it_is_proven_and_the_day_is_gone_with_its_memory() {
    for (name, test, night) in [("switch-spare", 1, "b"), ("switch-replace", 2, "a")] {
        let play = play(name, test, night).await;
        play.over("day").await;
        assert_eq!(play.backend().await, "day-1");
        assert_eq!(play.pods().await, [pair("day-1", "day-1")]);
        assert!(!play.day.runs().is_empty(), "the gate asked for tokens");
        play.handle.say(Verb::Now { to: ShiftName::from("night"), until: None }, "test").await.unwrap();
        assert_eq!(play.over("night").await, Some(Outcome::Complete));
        assert_eq!(play.backend().await, "night-1");
        assert_eq!(play.pods().await, [pair("night-1", "night-1")]);
        let is_one = |status: &Status| status.replicas.len() == 1;
        play.until("only the night is left", is_one).await;
    }
}

#[tokio::test]
async fn beside_a_night_that_says_nothing_sensible_the_day_serves_on() {
    let play = play("broken-spare", 3, "b").await;
    play.over("day").await;
    play.night.set(garbage());
    play.handle.say(Verb::Now { to: ShiftName::from("night"), until: None }, "test").await.unwrap();
    let is_told = |status: &Status| {
        let steps = status.switch.iter().flat_map(|switch| &switch.steps);
        steps.filter_map(|step| step.text.as_deref()).any(|text| text.starts_with("garbage"))
    };
    play.until("the reason is told", is_told).await;
    assert_eq!(play.backend().await, "day-1");
    let pods = play.pods().await;
    assert!(pods.contains(&pair("day-1", "day-1")), "it serves on: {pods:?}");
    assert!(!pods.contains(&pair("night-1", "night-1")), "never in its pool: {pods:?}");
}

#[tokio::test]
async fn in_place_of_a_night_that_says_nothing_sensible_the_day_is_loaded_again() {
    let play = play("broken-replace", 4, "a").await;
    play.over("day").await;
    play.night.set(garbage());
    play.handle.say(Verb::Now { to: ShiftName::from("night"), until: None }, "test").await.unwrap();
    let failed = |status: &Status| status.failures.iter().any(|failure| failure.deployment.as_str() == "night-1");
    play.until("the night fails", failed).await;
    let path = "/apis/gateway.networking.k8s.io/v1/namespaces/broken-replace/httproutes";
    let is_day = |_: &str, route: &Value| route["spec"]["rules"][0]["backendRefs"][0]["name"] == "day-1";
    tokio::time::timeout(PATIENCE, play.stand.api.until(path, is_day)).await.expect("the day is back").unwrap();
    assert!(play.pods().await.contains(&pair("day-1", "day-1")));
}

#[tokio::test]
async fn a_controller_that_is_killed_in_every_state_of_every_replica_goes_on_and_finishes() {
    for (name, test, night) in [("killed-spare", 5, "b"), ("killed-replace", 6, "a")] {
        let mut play = play(name, test, night).await;
        play.over("day").await;
        play.handle.say(Verb::Now { to: ShiftName::from("night"), until: None }, "test").await.unwrap();
        let mut met = BTreeSet::new();
        let until = tokio::time::Instant::now() + 2 * PATIENCE;
        loop {
            let mut statuses = play.handle.statuses();
            let status = Arc::clone(&statuses.borrow_and_update());
            let is_done =
                status.switch.is_none() && status.last.as_ref().is_some_and(|last| last.to.as_str() == "night");
            if is_done && status.replicas.len() == 1 {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "after kills in {met:?}: {status:#?}");
            let now = status.replicas.iter().map(|replica| (replica.deployment.to_string(), replica.state));
            let new: Vec<_> = now.filter(|seen| !met.contains(seen)).collect();
            if new.is_empty() {
                let _ = tokio::time::timeout(Duration::from_secs(1), statuses.changed()).await;
            } else {
                met.extend(new);
                play.kill_and_restart().await;
            }
        }
        assert!(met.len() >= 5, "{met:?}");
        assert_eq!(play.backend().await, "night-1");
        assert_eq!(play.pods().await, [pair("night-1", "night-1")]);
    }
}
