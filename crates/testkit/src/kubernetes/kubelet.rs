//! A node that a test plays: it is there, it takes Pods, and what becomes of them is what the test says.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::KubeApi;

/// How often a node says that it lives.
const RENEW: Duration = Duration::from_secs(10);

/// A node to be played.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Its name.
    pub name: String,
    /// GPUs of its device plugin.
    pub gpus: u32,
    /// The address of all its Pods; `None`: one each, from 10.64.0.0/10.
    pub pod_ip: Option<IpAddr>,
    /// Key of a taint `NoSchedule`.
    pub taint: Option<String>,
}

impl NodePlan {
    /// A node with that many GPUs and nothing special.
    #[must_use]
    pub fn new(name: &str, gpus: u32) -> Self {
        Self { name: name.to_owned(), gpus, pod_ip: None, taint: None }
    }
}

/// What a node does with a Pod that was given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// Runs it; ends it at once when it is to end.
    Run,
    /// As [`Conduct::Run`], at this address.
    RunAt(IpAddr),
    /// Does nothing with it.
    Ignore,
    /// Cannot pull its image.
    ImagePull,
    /// Cannot mount a volume: an event says so.
    Mount,
    /// Refuses it for its topology.
    Topology,
    /// Refuses it for another reason.
    Admission,
    /// Runs it, and does not end it until [`Kubelet::let_go`].
    SlowStop,
}

/// What happens to a running Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The memory killer ended it; it was started again.
    OomKilled,
    /// It ends again and again.
    CrashLoop,
    /// It ended with this code; it is not started again yet.
    Exited(i32),
    /// The node ended it for want of disk.
    Evicted,
}

type Choose = Arc<dyn Fn(&Value) -> Conduct + Send + Sync>;

/// A played node. When it is dropped, nobody plays it any more: as if its power was cut.
pub struct Kubelet {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

impl fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubelet").field("plan", &self.shared.plan).finish_non_exhaustive()
    }
}

struct Shared {
    api: KubeApi,
    plan: NodePlan,
    conduct: Mutex<Choose>,
    let_go: watch::Sender<bool>,
}

static NEXT_IP: AtomicU32 = AtomicU32::new(0);

impl Kubelet {
    /// Makes the node and plays it; every Pod is run.
    ///
    /// # Errors
    /// The API server's.
    pub async fn start(api: &KubeApi, plan: NodePlan) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            api: api.clone(),
            plan,
            conduct: Mutex::new(Arc::new(|_| Conduct::Run)),
            let_go: watch::channel(false).0,
        });
        shared.register().await?;
        let mut tasks = JoinSet::new();
        let (pods, lives) = (Arc::clone(&shared), Arc::clone(&shared));
        tasks.spawn(async move { pods.serve().await });
        tasks.spawn(async move { lives.live().await });
        Ok(Self { shared, _tasks: tasks })
    }

    /// What becomes of Pods from now on.
    pub fn conduct(&self, choose: impl Fn(&Value) -> Conduct + Send + Sync + 'static) {
        *self.shared.conduct.lock() = Arc::new(choose);
    }

    /// Lets Pods end that were held by [`Conduct::SlowStop`].
    pub fn let_go(&self) {
        self.shared.let_go.send_replace(true);
    }

    /// Makes something happen to a running Pod.
    ///
    /// # Errors
    /// The API server's.
    pub async fn fail(&self, namespace: &str, pod: &str, failure: Failure) -> io::Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        let found = self.shared.api.get(&path).await?;
        self.shared.set_status(&found, &failed(&found, failure)).await
    }

    /// The cluster's own word that the node does not answer, as its controller says it after a while of silence.
    ///
    /// # Errors
    /// The API server's.
    pub async fn is_given_up(&self) -> io::Result<()> {
        self.shared.ready("Unknown", "NodeStatusUnknown").await
    }
}

fn failed(pod: &Value, failure: Failure) -> Value {
    let ended = |reason: &str, code: i32| json!({ "terminated": { "exitCode": code, "reason": reason, "startedAt": NOW, "finishedAt": NOW } });
    match failure {
        Failure::OomKilled => containers(pod, &running(), &ended("OOMKilled", 137), 1, true),
        Failure::CrashLoop => {
            let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s restarting" } });
            containers(pod, &waiting, &ended("Error", 1), 3, false)
        }
        Failure::Exited(code) => containers(pod, &ended("Error", code), &json!({}), 0, false),
        Failure::Evicted => json!({
            "phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage.",
        }),
    }
}

/// A moment that is not looked at.
const NOW: &str = "2026-01-01T00:00:00Z";

fn running() -> Value {
    json!({ "running": { "startedAt": NOW } })
}

fn containers(pod: &Value, state: &Value, last: &Value, restarts: u32, is_ready: bool) -> Value {
    let spec = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let one = |container: &Value| {
        json!({
            "name": container["name"], "image": container["image"], "imageID": "", "containerID": "test://1",
            "state": state, "lastState": last, "restartCount": restarts, "ready": is_ready, "started": is_ready,
        })
    };
    let word = if is_ready { "True" } else { "False" };
    let condition = |name: &str, status: &str| json!({ "type": name, "status": status, "lastTransitionTime": NOW });
    json!({
        "phase": if state.get("running").is_some() || restarts > 0 { "Running" } else { "Pending" },
        "conditions": [condition("Initialized", "True"), condition("Ready", word), condition("ContainersReady", word)],
        "containerStatuses": spec.iter().map(one).collect::<Vec<_>>(),
    })
}

impl Shared {
    async fn register(&self) -> io::Result<()> {
        let name = &self.plan.name;
        let taints: Vec<Value> =
            self.plan.taint.iter().map(|key| json!({ "key": key, "effect": "NoSchedule" })).collect();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
            "spec": { "taints": taints },
        });
        self.api.create("/api/v1/nodes", &node).await?;
        let amounts = json!({
            "cpu": "192", "memory": "2000Gi", "pods": "110", "nvidia.com/gpu": self.plan.gpus.to_string(),
            "rdma/hca": "8",
        });
        let status = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
        self.api.patch_lists(&format!("/api/v1/nodes/{name}/status"), &status).await?;
        self.ready("True", "KubeletReady").await?;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now() },
        });
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        self.api.create(leases, &lease).await.map(drop)
    }

    async fn ready(&self, status: &str, reason: &str) -> io::Result<()> {
        let condition = json!({
            "type": "Ready", "status": status, "reason": reason, "lastHeartbeatTime": NOW, "lastTransitionTime": NOW,
        });
        let patch = json!({ "status": { "conditions": [condition] } });
        self.api.patch_lists(&format!("/api/v1/nodes/{}/status", self.plan.name), &patch).await.map(drop)
    }

    async fn live(&self) {
        let mut tick = interval(RENEW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", self.plan.name);
        loop {
            tick.tick().await;
            // an API server that is away for a while is what some tests are about
            drop(self.api.patch(&path, &json!({ "spec": { "renewTime": now() } })).await);
        }
    }

    async fn serve(self: &Arc<Self>) {
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.plan.name);
        let mut again = interval(Duration::from_millis(200));
        let mut stops = JoinSet::new();
        loop {
            again.tick().await;
            let (sender, mut events) = mpsc::channel(16);
            let watching = self.api.watch(&path, &sender);
            let handling = async {
                while let Some((kind, pod)) = events.recv().await {
                    if matches!(kind.as_str(), "ADDED" | "MODIFIED") {
                        // a Pod that went away meanwhile is told by the next event
                        drop(self.handle(&pod, &mut stops).await);
                    }
                }
            };
            tokio::select! { _ = watching => {} () = handling => {} }
        }
    }

    async fn handle(self: &Arc<Self>, pod: &Value, stops: &mut JoinSet<()>) -> io::Result<()> {
        let conduct = Arc::clone(&*self.conduct.lock())(pod);
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return self.end(pod, conduct, stops).await;
        }
        let is_new = pod["status"]["phase"] == "Pending" && pod["status"]["containerStatuses"].is_null();
        match conduct {
            _ if !is_new => Ok(()),
            Conduct::Ignore => Ok(()),
            Conduct::Run | Conduct::SlowStop => self.run(pod, self.plan.pod_ip).await,
            Conduct::RunAt(ip) => self.run(pod, Some(ip)).await,
            Conduct::ImagePull => {
                let waiting =
                    json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image" } });
                self.set_status(pod, &containers(pod, &waiting, &json!({}), 0, false)).await
            }
            Conduct::Mount => {
                self.event(pod, "FailedMount", "hostPath type check failed: /model-cache is not a directory").await
            }
            Conduct::Topology => {
                let said = "Pod was rejected: Resources cannot be allocated with Topology locality";
                self.refuse(pod, "TopologyAffinityError", said).await
            }
            Conduct::Admission => {
                let said = "Pod was rejected: Allocate failed due to no healthy devices present";
                self.refuse(pod, "UnexpectedAdmissionError", said).await
            }
        }
    }

    async fn refuse(&self, pod: &Value, reason: &str, message: &str) -> io::Result<()> {
        self.set_status(pod, &json!({ "phase": "Failed", "reason": reason, "message": message })).await
    }

    async fn run(&self, pod: &Value, ip: Option<IpAddr>) -> io::Result<()> {
        let ip = ip.unwrap_or_else(|| {
            let [_, b, c, d] = NEXT_IP.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            IpAddr::from([10, 64 + (b & 63), c, d])
        });
        let mut status = containers(pod, &running(), &json!({}), 0, true);
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{ "ip": ip }]);
        self.set_status(pod, &status).await
    }

    async fn end(self: &Arc<Self>, pod: &Value, conduct: Conduct, stops: &mut JoinSet<()>) -> io::Result<()> {
        match conduct {
            Conduct::Ignore => Ok(()),
            Conduct::SlowStop => {
                let (shared, pod) = (Arc::clone(self), pod.clone());
                stops.spawn(async move {
                    let mut go = shared.let_go.subscribe();
                    if go.wait_for(|go| *go).await.is_ok() {
                        drop(shared.take_away(&pod).await);
                    }
                });
                Ok(())
            }
            Conduct::Run
            | Conduct::RunAt(_)
            | Conduct::ImagePull
            | Conduct::Mount
            | Conduct::Topology
            | Conduct::Admission => self.take_away(pod).await,
        }
    }

    async fn take_away(&self, pod: &Value) -> io::Result<()> {
        self.api.delete(&path_of(pod), Some(0)).await
    }

    async fn set_status(&self, pod: &Value, status: &Value) -> io::Result<()> {
        let path = format!("{}/status", path_of(pod));
        let patch = json!({ "metadata": { "uid": pod["metadata"]["uid"] }, "status": status });
        self.api.patch_lists(&path, &patch).await.map(drop)
    }

    async fn event(&self, pod: &Value, reason: &str, message: &str) -> io::Result<()> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "generateName": "played-", "namespace": namespace },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "namespace": namespace,
                "uid": pod["metadata"]["uid"],
            },
            "type": "Warning", "reason": reason, "message": message, "count": 1,
            "firstTimestamp": NOW, "lastTimestamp": NOW, "source": { "component": "kubelet", "host": self.plan.name },
        });
        self.api.create(&format!("/api/v1/namespaces/{namespace}/events"), &event).await.map(drop)
    }
}

fn path_of(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
    format!("/api/v1/namespaces/{}/pods/{}", text("namespace"), text("name"))
}

/// Now, with the six decimals that a Lease wants.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
