//! `tidegate up` with a cluster: engines are Pods on a real API server, whose node the test plays.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tidegate_testkit::fake::Script;
use tidegate_testkit::{KubeApi, Kubelet, NodePlan, RealKubernetes};

use crate::gate::{Gate, documents};

const NAMESPACE: &str = "tidegate-models";

/// `chat` is `sun` in the shift that the clock says now, `moon` in the other one. All Pods are the one fake engine.
fn site(gate: SocketAddr, admin: SocketAddr, engine: &str) -> String {
    let port = engine.rsplit(':').next().unwrap();
    let base = documents(gate, admin, "http://127.0.0.1:9");
    let (head, rest) = base.split_once("---\nkind: Model").unwrap();
    let (_, team) = rest.split_once("---\nkind: Team").unwrap();
    let now_and_then = |minutes: i64| {
        let at = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_mins(minutes)).unwrap();
        at.to_zoned(jiff::tz::TimeZone::UTC).strftime("%H:%M").to_string()
    };
    let deployment = |name: &str, group: &str| {
        format!(
            "---
kind: Deployment
metadata: {{name: {name}}}
spec:
  model: {name}
  servedName: m
  gpus: {{required: 1, min: 1, preferred: 1}}
  placement: {{group: {group}}}
  launch: {{replicas: 1}}
  limits: {{contextTokens: 8192, maxOutputTokens: 256}}
  warmup: {{stabilise: 0s, longContext: false}}
---
kind: Model
metadata: {{name: {name}}}
spec: {{engine: vllm, source: {{local: .}}}}
"
        )
    };
    format!(
        "{head}  enginePorts: {port}-{port}
  launcher: kubernetes
  engines: {{vllm: {{command: [vllm, serve], image: 'mirror.example/vllm@sha256:0'}}}}
---
kind: Node
metadata: {{name: here}}
spec: {{facts: document, gpus: {{count: 2}}, hostMemory: 2GB, groups: [{{name: a, gpus: 0}}, {{name: b, gpus: 1}}]}}
{}{}---
kind: Schedule
metadata: {{name: every}}
spec:
  timeZone: UTC
  shifts:
    - {{name: day, start: '{}', deployments: [sun]}}
    - {{name: night, start: '{}', deployments: [moon]}}
  lead: {{prefetch: 5s, verify: 4s, deploy: 3s, load: 2s, ready: 1s}}
  drain: {{timeout: 1s}}
---
kind: Alias
metadata: {{name: chat}}
spec: {{shifts: {{day: {{targets: [{{deployment: sun}}]}}, night: {{targets: [{{deployment: moon}}]}}}}}}
---
kind: Team{team}",
        deployment("sun", "a"),
        deployment("moon", "b"),
        now_and_then(-60),
        now_and_then(12 * 60),
    )
}

/// Deployment and identity of every Pod.
fn pods(gate: &Gate, api: &KubeApi) -> Vec<(String, String)> {
    let list = gate.wait(api.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods"))).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let pod =
        |pod: &Value| (text(&pod["metadata"]["labels"]["tidegate.dev/deployment"]), text(&pod["metadata"]["uid"]));
    list["items"].as_array().unwrap().iter().map(pod).collect()
}

#[test]
fn pods_serve_are_switched_and_are_met_again_after_a_kill() {
    let real = RealKubernetes::shared().unwrap_or_else(|error| panic!("`cargo xtask real kubernetes`: {error}"));
    let api = real.api().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _node = runtime.block_on(async {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        api.create("/api/v1/namespaces", &namespace).await.unwrap();
        let accounts = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        api.until(&accounts, |_, account| account["metadata"]["name"] == "default").await.unwrap();
        let plan = NodePlan { pod_ip: Some([127, 0, 0, 1].into()), ..NodePlan::new("here", 2) };
        Kubelet::start(&api, plan).await.unwrap()
    });
    let script = Script { prompt_tokens: None, ..Script::vllm("m") };
    let mut gate = Gate::start_in(script, |folder, address, admin, engine| {
        std::fs::copy(real.kubeconfig(), folder.parent().unwrap().join("kubeconfig")).unwrap();
        site(address, admin, engine)
    });
    let key = gate.key();
    gate.until("the day answers", || gate.chat(&key).status == 200);
    assert_eq!(pods(&gate, &api).iter().map(|pod| &*pod.0).collect::<Vec<_>>(), ["sun"]);

    let switched = gate.verb(&["switch", "now", "--to", "night", "--wait", "--timeout", "1m"]);
    assert_eq!(switched.status.code(), Some(0), "{}{}", String::from_utf8_lossy(&switched.stderr), gate.log());
    assert_eq!(gate.chat(&key).status, 200);
    let before = pods(&gate, &api);
    assert_eq!(before.iter().map(|pod| &*pod.0).collect::<Vec<_>>(), ["moon"]);

    gate.kill();
    gate.start_again();
    gate.until("the night answers again", || gate.chat(&key).status == 200);
    assert_eq!(pods(&gate, &api), before, "the Pod is met again, not started again");
}
