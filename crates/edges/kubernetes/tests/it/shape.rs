//! What an order becomes, as the API server has it afterwards: its own defaults are then part of what is compared.

use serde_json::{Value, json};
use tidegate_kubernetes::{Fault, ORDER_BYTES_MAX, Sharing};
use tidegate_testkit::Kubelet;

use crate::world::{World, order};

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

fn env(container: &Value, name: &str) -> Option<String> {
    let list = container["env"].as_array()?;
    let one = list.iter().find(|one| one["name"] == name)?;
    one["value"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_replica_is_one_pod_pinned_to_its_node_with_its_gpus_from_the_plugin() {
    let world = World::new("shape-plugin").await;
    world.cluster.start(3, &world.order("glm-0-g3")).await.unwrap();
    let made = world.deployment("glm-0-g3").await;
    assert_eq!(made["spec"]["replicas"], 1);
    assert_eq!(made["spec"]["strategy"]["type"], "Recreate");
    assert_eq!(made["metadata"]["annotations"]["tidegate.dev/generation"], "3");
    let template = &made["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["tidegate.dev/deployment"], "glm");
    assert_eq!(template["metadata"]["labels"]["tidegate.dev/instance"], "glm-0-g3");
    assert_eq!(template["metadata"]["labels"]["model"], Value::Null, "a Pod has to earn it");
    let terms = &template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!([world.node_name()]));
    let container = container(&made);
    for side in ["limits", "requests"] {
        let amounts = json!({ "cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4" });
        let seen = &container["resources"][side];
        assert_eq!(seen["cpu"], amounts["cpu"]);
        assert_eq!(seen["nvidia.com/gpu"], amounts["nvidia.com/gpu"]);
        assert_eq!(seen["memory"], "68719476736");
    }
    assert_eq!(env(container, "NVIDIA_VISIBLE_DEVICES"), None, "the plugin's own");
    assert_eq!(env(container, "TIDEGATE_INSTANCE").as_deref(), Some("glm-0-g3"));
    assert_eq!(env(container, "VLLM_NO_USAGE_STATS").as_deref(), Some("1"));
    assert_eq!(template["spec"]["runtimeClassName"], Value::Null);
}

#[tokio::test]
async fn a_pod_is_probed_given_time_to_end_and_lets_nothing_be_written_where_the_models_are() {
    let world = World::new("shape-safe").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let made = world.deployment("glm-0-g1").await;
    let (spec, container) = (&made["spec"]["template"]["spec"], container(&made));
    let startup = &container["startupProbe"];
    let seconds = startup["periodSeconds"].as_u64().unwrap() * startup["failureThreshold"].as_u64().unwrap();
    assert_eq!(seconds, 3_600);
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/health");
    assert_eq!(container["livenessProbe"], Value::Null, "a restart in place would bring an engine nobody has proven");
    assert_eq!(spec["terminationGracePeriodSeconds"], 360);
    assert_eq!(spec["automountServiceAccountToken"], false);
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }));
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let mounts = container["volumeMounts"].as_array().unwrap();
    let models = mounts.iter().find(|mount| mount["name"] == "models").unwrap();
    assert_eq!(models, &json!({ "name": "models", "mountPath": "/model-cache", "readOnly": true }));
    let volumes = spec["volumes"].as_array().unwrap();
    let models = volumes.iter().find(|volume| volume["name"] == "models").unwrap();
    assert_eq!(models["hostPath"], json!({ "path": "/model-cache", "type": "Directory" }));
    assert!(volumes.iter().any(|volume| volume["emptyDir"]["medium"] == "Memory"), "ranks speak through shared memory");
    assert_eq!(env(container, "HOME").as_deref(), Some("/tmp"));
}

#[tokio::test]
async fn gpus_given_out_by_uuid_are_seen_by_uuid_and_not_asked_of_the_scheduler() {
    let world = World::new("shape-uuid").await;
    let mut order = world.order("glm-0-g1");
    order.sharing = Sharing::Uuid;
    order.parts[0].uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"].map(str::to_owned).to_vec();
    world.cluster.start(1, &order).await.unwrap();
    let made = world.deployment("glm-0-g1").await;
    let container = container(&made);
    assert_eq!(env(container, "NVIDIA_VISIBLE_DEVICES").as_deref(), Some("GPU-a,GPU-b,GPU-c,GPU-d"));
    assert_eq!(container["resources"]["limits"]["nvidia.com/gpu"], Value::Null);
    let spec = &made["spec"]["template"]["spec"];
    assert_eq!(spec["runtimeClassName"], "nvidia");
    let tolerations = spec["tolerations"].as_array().unwrap();
    assert!(tolerations.iter().any(|one| one["key"] == "tidegate.dev/gpus"));
}

#[tokio::test]
async fn a_worker_without_gpus_sees_none() {
    let world = World::new("shape-none").await;
    let mut order = world.order("ocr-0-g1");
    order.parts[0].gpus = 0;
    order.cpu_milli = Some(1_500);
    world.cluster.start(1, &order).await.unwrap();
    let made = world.deployment("ocr-0-g1").await;
    assert_eq!(env(container(&made), "NVIDIA_VISIBLE_DEVICES").as_deref(), Some("void"));
    assert_eq!(container(&made)["resources"]["limits"]["cpu"], "1500m");
}

#[tokio::test]
async fn a_replica_over_nodes_is_one_group_whose_workers_lie_elsewhere() {
    let world = World::new("shape-group").await;
    let mut order = order("big-0-g1", &["shape-group-a", "shape-group-b", "shape-group-c"]);
    order.rdma = Some("rdma/hca".to_owned());
    world.cluster.start(1, &order).await.unwrap();
    let made = world.api.get(&world.path("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", "big-0-g1")).await;
    let spec = &made.unwrap()["spec"];
    assert_eq!(spec["replicas"], 1);
    let template = &spec["leaderWorkerTemplate"];
    assert_eq!(template["size"], 3);
    assert_eq!(template["restartPolicy"], "RecreateGroupAfterStart");
    let nodes = |role: &str| {
        let affinity = &template[role]["spec"]["affinity"]["nodeAffinity"];
        let terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array().unwrap();
        let node = |term: &Value| term["matchFields"][0]["values"][0].as_str().unwrap().to_owned();
        terms.iter().map(node).collect::<Vec<_>>()
    };
    assert_eq!(nodes("leaderTemplate"), ["shape-group-a"]);
    assert_eq!(nodes("workerTemplate"), ["shape-group-b", "shape-group-c"]);
    let anti = &template["workerTemplate"]["spec"]["affinity"]["podAntiAffinity"];
    assert!(anti["requiredDuringSchedulingIgnoredDuringExecution"].is_array(), "one worker on a node");
    for role in ["leaderTemplate", "workerTemplate"] {
        let container = &template[role]["spec"]["containers"][0];
        assert_eq!(container["resources"]["limits"]["rdma/hca"], "1");
        assert_eq!(container["securityContext"]["capabilities"]["add"], json!(["IPC_LOCK"]));
    }
    assert_eq!(template["workerTemplate"]["spec"]["containers"][0]["args"], json!(["--headless"]));
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_before_anything_is_written() {
    let world = World::new("shape-refused").await;
    let good = world.order("glm-0-g1");
    let with = |change: &dyn Fn(&mut tidegate_kubernetes::ReplicaOrder)| {
        let mut order = good.clone();
        change(&mut order);
        order
    };
    let long = "x".repeat(ORDER_BYTES_MAX);
    let bad = [
        with(&|order| order.image.clear()),
        with(&|order| order.parts.clear()),
        with(&|order| order.port = 0),
        with(&|order| order.startup_seconds = 0),
        with(&|order| order.models = Some("models".into())),
        with(&|order| order.models = Some("/a/../b".into())),
        with(&|order| order.sharing = Sharing::Uuid),
        with(&|order| order.parts.push(order.parts[0].clone())),
        with(&|order| order.deployment = "d".repeat(64)),
        with(&|order| {
            order.env.insert("A".into(), long.clone());
        }),
    ];
    for order in bad {
        let refused = world.cluster.start(1, &order).await.unwrap_err();
        assert!(matches!(refused, Fault::Order(_)), "{refused:?}");
    }
    assert!(world.pods().await.is_empty());
    let _: &Kubelet = &world.node;
}
