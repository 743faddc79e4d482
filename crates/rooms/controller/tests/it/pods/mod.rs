//! Replicas as Pods: a real API server with its controllers and scheduler, nodes that the tests play, and on each of them
//! a real agent's node over a scripted GPU driver. The launcher runs with the roles of `docs/kubernetes/rbac.yaml`.

mod launcher;
mod leader;
mod route;
mod switch;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_config::Site;
use tidegate_controller::launcher::kubernetes::{Kubernetes, KubernetesSettings};
use tidegate_controller::launcher::processes::{Member, Members};
use tidegate_controller::launcher::{Blueprint, LaunchFault, Launcher, Order, Seen, SeenState};
use tidegate_engine::Dialect;
use tidegate_kubernetes::{Access, Cluster, ClusterOptions};
use tidegate_node::facts::Facts;
use tidegate_node::nvml::scripted::Scripted;
use tidegate_node::{
    Driver, Event, HeldModel, InstanceId, InstanceReport, Keep, LocalNode, LocalNodeSettings, LogPart, ModelHands,
    ModelOrder, ModelReport, ModelState, Node, NodeError, Proof, StartOrder,
};
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};
use tidegate_testkit::{KubeApi, Kubelet, NodePlan, RealKubernetes};
use tokio::task::JoinSet;

/// Far more than anything takes here; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);
const DIGEST: &str = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4";

/// A node's model cache: one model, which is on its way until the test says that it is there.
#[derive(Debug, Default)]
struct Cache {
    is_verified: AtomicBool,
}

#[async_trait]
impl ModelHands for Cache {
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        Ok(Vec::new())
    }

    async fn have(&self, order: ModelOrder) -> Result<ModelReport, NodeError> {
        let state = if self.is_verified.load(Ordering::SeqCst) {
            ModelState::Verified { bytes: 10 }
        } else {
            ModelState::Fetching { bytes: 4, total: Some(10), rate: None, eta_seconds: None }
        };
        Ok(ModelReport { path: order.path, digest: Some(DIGEST.to_owned()), state })
    }

    async fn keep(&self, _: Vec<Keep>) -> Result<(), NodeError> {
        Ok(())
    }

    async fn hold(&self, order: ModelOrder, _: &InstanceId) -> Result<HeldModel, NodeError> {
        Err(NodeError::UnknownModel { model: order.path, why: "engines are Pods here".to_owned() })
    }

    async fn compiled(&self, _: &StartOrder, _: &HeldModel) -> Result<std::path::PathBuf, NodeError> {
        Err(NodeError::BadRequest { why: "engines are Pods here".to_owned() })
    }

    async fn changed(&self) {
        std::future::pending::<()>().await;
    }
}

/// An agent that can be cut off.
#[derive(Debug)]
struct Agent {
    node: LocalNode,
    driver: Arc<Scripted>,
    cache: Arc<Cache>,
    is_away: AtomicBool,
}

impl Agent {
    fn there(&self) -> Result<&LocalNode, NodeError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(NodeError::Away { why: "cut off".to_owned() });
        }
        Ok(&self.node)
    }

    fn cut(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }
}

#[async_trait]
impl Node for Agent {
    async fn facts(&self) -> Result<Facts, NodeError> {
        self.there()?.facts().await
    }
    async fn instances(&self) -> Result<Vec<InstanceReport>, NodeError> {
        self.there()?.instances().await
    }
    async fn start(&self, generation: u64, order: StartOrder) -> Result<InstanceReport, NodeError> {
        self.there()?.start(generation, order).await
    }
    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), NodeError> {
        self.there()?.stop(generation, instance, patience).await
    }
    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, NodeError> {
        self.there()?.prove(generation, instance).await
    }
    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), NodeError> {
        self.there()?.forget(generation, instance).await
    }
    async fn log(&self, instance: &InstanceId, from: u64, bytes_max: u32) -> Result<LogPart, NodeError> {
        self.there()?.log(instance, from, bytes_max).await
    }
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        self.there()?.models().await
    }
    async fn have(&self, generation: u64, order: ModelOrder) -> Result<ModelReport, NodeError> {
        self.there()?.have(generation, order).await
    }
    async fn keep(&self, generation: u64, kept: Vec<Keep>) -> Result<(), NodeError> {
        self.there()?.keep(generation, kept).await
    }
    async fn release(&self, generation: u64, gpu: u32, reason: &str) -> Result<(), NodeError> {
        self.there()?.release(generation, gpu, reason).await
    }
    async fn events(&self, after: u64) -> Result<Vec<Event>, NodeError> {
        self.there()?.events(after).await
    }
}

/// A namespace with the controller's roles, a played node with its agent, and the launcher.
struct Stand {
    name: &'static str,
    api: KubeApi,
    cluster: Cluster,
    site: Arc<Site>,
    launcher: Arc<Kubernetes>,
    kubelet: Kubelet,
    agent: Arc<Agent>,
    members: Members,
    _tasks: JoinSet<()>,
    _folder: TempDir,
}

fn shared() -> &'static RealKubernetes {
    RealKubernetes::shared().expect("a real Kubernetes control plane: `cargo xtask real kubernetes` installs it")
}

fn documents(node: &str, sharing: &str) -> String {
    format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec: {{timeZone: UTC, stage: pooled, launcher: kubernetes, modelStore: {{url: 'file:///nowhere'}}, modelCache: {{path: /model-cache}}, engines: {{vllm: {{version: '0.32.0', command: [vllm, serve], image: 'mirror.example/vllm@sha256:{DIGEST}'}}}}}}\n---\n\
         kind: Node\nmetadata: {{name: {node}}}\nspec: {{address: '{node}:8950', gpus: {{count: 8, product: B300, memory: 288GB}}, hostMemory: 2TB, gpuSharing: {sharing}, numa: [{{node: 0, gpus: 0-3, cpus: 0-63}}, {{node: 1, gpus: 4-7, cpus: 64-127}}]}}\n---\n\
         kind: Model\nmetadata: {{name: glm}}\nspec: {{engine: vllm, source: {{path: glm/5.3}}}}\n---\n\
         kind: Deployment\nmetadata: {{name: glm-5.3}}\nspec: {{model: glm, parallel: {{tp: 4}}, gpus: {{required: 4, min: 4, preferred: 4}}, memory: {{weights: 280GB, kvCache: 80GB, workspace: 20GB, reserve: 20GB}}, launch: {{replicas: 1}}}}\n---\n\
         kind: Alias\nmetadata: {{name: glm}}\nspec: {{targets: [{{deployment: glm-5.3}}]}}\n"
    )
}

fn checked(text: &str) -> Arc<Site> {
    let checked = tidegate_config::check(&[tidegate_config::Source::new("site.yaml", text)]);
    let said: Vec<String> = checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect();
    Arc::new(checked.site.unwrap_or_else(|| panic!("{}", said.join("\n"))))
}

/// Makes the objects of `docs/kubernetes/rbac.yaml` for a namespace, and gives back a kubeconfig of its account.
async fn account(real: &RealKubernetes, api: &KubeApi, namespace: &str) -> std::path::PathBuf {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/kubernetes/rbac.yaml");
    let text = std::fs::read_to_string(file).unwrap().replace("tidegate-models", namespace);
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let kind = object["kind"].as_str().unwrap().to_owned();
        let (path, is_shared) = match kind.as_str() {
            "ServiceAccount" => (format!("/api/v1/namespaces/{namespace}/serviceaccounts"), false),
            "Role" => (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"), false),
            "RoleBinding" => (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"), false),
            "ClusterRole" => ("/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(), true),
            "ClusterRoleBinding" => ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), true),
            other => panic!("{other} is not expected in rbac.yaml"),
        };
        let mut object = object.clone();
        if is_shared {
            // tests share the cluster: each has its own
            let own = format!("tidegate-controller-{namespace}");
            object["metadata"]["name"] = json!(own);
            if kind == "ClusterRoleBinding" {
                object["roleRef"]["name"] = json!(own);
            }
        }
        api.create(&path, &object).await.unwrap();
    }
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 3600 },
    });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/tidegate-controller/token");
    let token = api.create(&path, &asked).await.unwrap()["status"]["token"].as_str().unwrap().to_owned();
    real.kubeconfig_of(namespace, &token).unwrap()
}

impl Stand {
    async fn new(name: &'static str) -> Self {
        Self::with(name, "plugin", true).await
    }

    async fn with(name: &'static str, sharing: &str, is_verified: bool) -> Self {
        Self::by(name, &documents(&format!("{name}-a"), sharing), is_verified).await
    }

    async fn by(name: &'static str, documents: &str, is_verified: bool) -> Self {
        let real = tokio::task::spawn_blocking(shared).await.unwrap();
        let api = real.api().unwrap();
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        api.create("/api/v1/namespaces", &namespace).await.unwrap();
        let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
        api.until(&accounts, |_, account| account["metadata"]["name"] == "default").await.unwrap();
        let path = account(real, &api, name).await;
        let access = Access::Kubeconfig { path, context: None };
        let cluster = Cluster::connect(&access, &ClusterOptions { namespace: name.to_owned() }).await.unwrap();
        let node = format!("{name}-a");
        let kubelet = Kubelet::start(&api, NodePlan::new(&node, 8)).await.unwrap();
        let folder = TempDir::new().unwrap();
        let (driver, cache) = (Arc::new(Scripted::b300_x8()), Arc::new(Cache::default()));
        cache.is_verified.store(is_verified, Ordering::SeqCst);
        let mut settings = LocalNodeSettings::new(&node, folder.path().join("agent"), vec!["/bin/false".into()]);
        settings.driver = Driver::Given(Arc::clone(&driver) as Arc<_>);
        settings.models = Some(Arc::clone(&cache) as Arc<_>);
        let agent =
            Agent { node: LocalNode::open(settings).await.unwrap(), driver, cache, is_away: AtomicBool::new(false) };
        let agent = Arc::new(agent);
        let member = Member { node: Arc::clone(&agent) as Arc<_>, host: [127, 0, 0, 1].into() };
        let members = Members::from([(Arc::from(node.as_str()), member)]);
        let site = checked(documents);
        let settings = KubernetesSettings::of(&site, "/model-cache".into());
        let (launcher, following) = Kubernetes::new(cluster.clone(), settings, Arc::clone(&site), members.clone());
        let launcher = Arc::new(launcher);
        let mut tasks = JoinSet::new();
        tasks.spawn(following);
        let stand =
            Self { name, api, cluster, site, launcher, kubelet, agent, members, _tasks: tasks, _folder: folder };
        stand.wait("the launcher sees", |seen| seen.is_empty()).await;
        stand
    }

    /// Another launcher on the same cluster and agents: the controller was restarted.
    fn restarted(&mut self) -> Kubernetes {
        let settings = KubernetesSettings::of(&self.site, "/model-cache".into());
        let (launcher, following) =
            Kubernetes::new(self.cluster.clone(), settings, Arc::clone(&self.site), self.members.clone());
        self._tasks.spawn(following);
        launcher
    }

    fn node(&self) -> Arc<str> {
        format!("{}-a", self.name).into()
    }

    fn order(&self, instance: &str, gpus: &[u32]) -> Order {
        order(&self.site, instance, &[(&self.node(), gpus)])
    }

    async fn wait(&self, what: &str, found: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        wait(&*self.launcher, what, found).await
    }

    async fn running(&self, instance: &str) -> Seen {
        let is_up = |seen: &Seen| seen.instance.as_str() == instance && matches!(seen.state, SeenState::Running { .. });
        let all = self.wait("it runs", |all| all.iter().any(is_up)).await;
        all.into_iter().find(is_up).unwrap()
    }

    async fn ended(&self, instance: &str) -> Arc<str> {
        let cause = |all: &[Seen]| {
            all.iter().find(|seen| seen.instance.as_str() == instance).and_then(|seen| match &seen.state {
                SeenState::Ended { cause } => Some(Arc::clone(cause)),
                _ => None,
            })
        };
        cause(&self.wait("it has ended", |all| cause(all).is_some()).await).unwrap()
    }

    async fn pods(&self) -> Vec<Value> {
        let list = self.api.get(&format!("/api/v1/namespaces/{}/pods", self.name)).await.unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// Started, and seen to run.
    async fn up(&self, instance: &str, gpus: &[u32]) -> Seen {
        self.launcher.start(1, &self.order(instance, gpus)).await.unwrap();
        self.running(instance).await
    }
}

fn order(site: &Site, instance: &str, parts: &[(&Arc<str>, &[u32])]) -> Order {
    let name = tidegate_core::DeploymentName::from("glm-5.3");
    let (deployment, model) = (&site.deployments[&name], &site.models[&site.deployments[&name].model]);
    let need = Need::of(site, &name).unwrap();
    let part = |(node, gpus): &(&Arc<str>, &[u32])| Part {
        node: Arc::clone(node),
        groups: vec![gpus.to_vec()],
        numa: None,
        mig: None,
    };
    Order {
        is_first: false,
        instance: id(instance),
        key: ReplicaKey { deployment: name.clone(), index: 0 },
        seat: Seat { parts: parts.iter().map(part).collect() },
        blueprint: Arc::new(Blueprint {
            name,
            deployment: deployment.clone(),
            engine: site.engines.get(&model.engine).cloned(),
            model: model.source.clone(),
            dialect: Dialect::from(model.dialect),
            revision: need.revision,
            may_sleep: false,
        }),
    }
}

fn id(text: &str) -> InstanceId {
    InstanceId::new(text).unwrap()
}

/// Looks until it is seen; what changes wakes nobody here, so it is looked at often.
async fn wait(launcher: &dyn Launcher, what: &str, found: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
    let until = tokio::time::Instant::now() + PATIENCE;
    let mut last = Ok(Vec::new());
    while tokio::time::Instant::now() < until {
        last = launcher.look().await;
        if let Ok(seen) = &last
            && found(seen)
        {
            return last.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: never; last seen {last:#?}");
}

/// Proves again and again, as a controller does.
async fn proven(launcher: &dyn Launcher, instance: &str) -> Proof {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let proof = launcher.prove(1, &id(instance)).await;
        if matches!(proof, Ok(Proof::Free { .. })) || tokio::time::Instant::now() >= until {
            return proof.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A process that is an engine's as far as anybody can see: it carries the mark.
struct Leftover(std::process::Child);

impl Leftover {
    fn of(instance: &str) -> Self {
        let mut command = std::process::Command::new("sleep");
        Self(command.arg("1000").env("TIDEGATE_INSTANCE", instance).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A launcher of whichever kind, as the conformance suite drives it.
#[async_trait]
pub(crate) trait Subject: Send + Sync {
    fn launcher(&self) -> &dyn Launcher;
    /// An order that can be started.
    fn fresh(&self) -> Order;
    /// How it ends when nobody stopped it.
    async fn break_it(&self, instance: &InstanceId);
}

#[async_trait]
impl Subject for Stand {
    fn launcher(&self) -> &dyn Launcher {
        &*self.launcher
    }

    fn fresh(&self) -> Order {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.order(&format!("glm-5.3-0-g{}", NUMBER.fetch_add(1, Ordering::Relaxed)), &[0, 1, 2, 3])
    }

    async fn break_it(&self, instance: &InstanceId) {
        let name = tidegate_kubernetes::object_name(instance.as_str());
        let pods = self.pods().await;
        let own = pods.iter().find(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with(&name)).unwrap();
        let pod = own["metadata"]["name"].as_str().unwrap();
        self.kubelet.fail(self.name, pod, tidegate_testkit::Failure::Exited(3)).await.unwrap();
    }
}

impl Deref for Stand {
    type Target = Kubernetes;

    fn deref(&self) -> &Kubernetes {
        &self.launcher
    }
}

/// That a fault is final, of this name.
fn is_refused(fault: &LaunchFault, code: &str) -> bool {
    matches!(fault, LaunchFault::Refused { code: own, .. } if &**own == code)
}
