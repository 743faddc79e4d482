//! A namespace of its own on the shared control plane, a node or two, and the edge on them.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_kubernetes::{
    Access, Cluster, ClusterOptions, ContainerCommand, PartOrder, Phase, ReplicaOrder, ReplicaSeen, Sharing, View,
};
use tidegate_testkit::{KubeApi, Kubelet, NodePlan, RealKubernetes};
use tokio::task::JoinSet;

/// Far more than anything takes here; only a failing test waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) api: KubeApi,
    pub(crate) cluster: Cluster,
    pub(crate) view: View,
    pub(crate) node: Kubelet,
    _tasks: JoinSet<()>,
}

pub(crate) fn shared() -> &'static RealKubernetes {
    RealKubernetes::shared().expect("a real Kubernetes control plane: `cargo xtask real kubernetes` installs it")
}

pub(crate) async fn connect(real: &RealKubernetes, namespace: &str) -> Cluster {
    let access = Access::Kubeconfig { path: real.kubeconfig(), context: None };
    Cluster::connect(&access, &ClusterOptions { namespace: namespace.to_owned() }).await.unwrap()
}

/// A namespace in which Pods can be made.
pub(crate) async fn namespace(api: &KubeApi, name: &str) {
    let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    api.create("/api/v1/namespaces", &body).await.unwrap();
    let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
    api.until(&accounts, |_, account| account["metadata"]["name"] == "default").await.unwrap();
}

impl World {
    /// Names are the test's: a namespace and a node `NAME-a` with 8 GPUs.
    pub(crate) async fn new(name: &'static str) -> Self {
        let real = tokio::task::spawn_blocking(shared).await.unwrap();
        let api = real.api().unwrap();
        namespace(&api, name).await;
        let node = Kubelet::start(&api, NodePlan::new(&format!("{name}-a"), 8)).await.unwrap();
        let cluster = connect(real, name).await;
        let (view, following) = View::of(cluster.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(following);
        let world = Self { name, api, cluster, view, node, _tasks: tasks };
        assert!(world.view.until(PATIENCE, |_| true).await, "the view is up to date");
        world
    }

    pub(crate) fn node_name(&self) -> String {
        format!("{}-a", self.name)
    }

    /// An order for this world's node.
    pub(crate) fn order(&self, instance: &str) -> ReplicaOrder {
        order(instance, &[&self.node_name()])
    }

    /// Waits until the instance is seen as `found` wants it.
    pub(crate) async fn seen(&self, instance: &str, found: impl Fn(&ReplicaSeen) -> bool) -> ReplicaSeen {
        let one = |all: &[ReplicaSeen]| all.iter().find(|seen| seen.order.instance == instance && found(seen)).cloned();
        if !self.view.until(PATIENCE, |all| one(all).is_some()).await {
            panic!("never seen so: {:#?}", self.view.now());
        }
        one(&self.view.now().unwrap()).unwrap_or_else(|| panic!("it changed again: {:#?}", self.view.now()))
    }

    pub(crate) async fn running(&self, instance: &str) -> ReplicaSeen {
        self.seen(instance, |seen| matches!(seen.phase, Phase::Running { .. })).await
    }

    /// Waits until nothing is seen of an instance.
    pub(crate) async fn unseen(&self, instance: &str) {
        let is_gone = |all: &[ReplicaSeen]| !all.iter().any(|seen| seen.order.instance == instance);
        assert!(self.view.until(PATIENCE, is_gone).await, "{:#?}", self.view.now());
    }

    pub(crate) fn path(&self, group: &str, plural: &str, name: &str) -> String {
        format!("{group}/namespaces/{}/{plural}/{name}", self.name)
    }

    pub(crate) async fn deployment(&self, name: &str) -> Value {
        self.api.get(&self.path("/apis/apps/v1", "deployments", name)).await.unwrap()
    }

    pub(crate) async fn pods(&self) -> Vec<Value> {
        let list = self.api.get(&self.path("/api/v1", "pods", "")).await.unwrap();
        list["items"].as_array().unwrap().clone()
    }
}

pub(crate) fn order(instance: &str, nodes: &[&str]) -> ReplicaOrder {
    let part = |node: &&str| PartOrder { node: (*node).to_owned(), gpus: 4, uuids: Vec::new(), is_whole: false };
    let run = |last: &str| ContainerCommand { command: vec!["vllm".into(), "serve".into()], args: vec![last.into()] };
    ReplicaOrder {
        instance: instance.to_owned(),
        deployment: "glm".to_owned(),
        index: 0,
        revision: 7,
        generation: 1,
        parts: nodes.iter().map(part).collect(),
        sharing: Sharing::Plugin,
        image: "mirror.example/vllm@sha256:0000000000000000000000000000000000000000000000000000000000000000".to_owned(),
        leader: run("--port=8000"),
        worker: (nodes.len() > 1).then(|| run("--headless")),
        env: [("VLLM_NO_USAGE_STATS".to_owned(), "1".to_owned())].into(),
        port: 8000,
        models: Some("/model-cache".to_owned()),
        compiled: None,
        cpu_milli: Some(8_000),
        memory_bytes: Some(64 << 30),
        rdma: None,
        health_path: "/health".to_owned(),
        startup_seconds: 3_600,
        grace_seconds: 360,
        note: json!({ "seat": "0-3" }),
    }
}
