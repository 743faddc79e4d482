//! The Pod of a replica.

use serde_json::{Map, Value, json};

use crate::names::{INSTANCE, INSTANCE_VARIABLE, TAINT, label_value};
use crate::order::{ContainerCommand, PartOrder, ReplicaOrder, Sharing};

/// The engine's container.
pub(crate) const CONTAINER: &str = "engine";
/// The resource of whole GPUs.
const GPU: &str = "nvidia.com/gpu";
/// How often a starting engine is asked.
const STARTUP_PERIOD_SECONDS: u32 = 5;
/// How often a running engine is asked.
const READY_PERIOD_SECONDS: u32 = 5;
/// Shared memory that ranks of one node speak through.
const SHARED_MEMORY_BYTES: u64 = 16 << 30;
/// Place of what an engine writes: its home too, since images' own are not writable for it.
const SCRATCH: &str = "/tmp";

/// Which Pod of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one.
    Only,
    /// The first of several.
    Leader,
    /// One of the others.
    Worker,
}

pub(crate) fn spec(order: &ReplicaOrder, role: Role) -> Value {
    let (own, others) = order.parts.split_at(1);
    let parts = if role == Role::Worker { others } else { own };
    let mut spec = json!({
        "affinity": affinity(order, role, parts),
        "tolerations": tolerations(order),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": order.grace_seconds,
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [container(order, role, parts)],
        "volumes": volumes(order),
    });
    if order.sharing == Sharing::Uuid && gpus(parts) > 0 {
        spec["runtimeClassName"] = json!("nvidia");
    }
    spec
}

fn gpus(parts: &[PartOrder]) -> u32 {
    parts.first().map_or(0, |part| part.gpus)
}

/// Exactly the nodes of the seat: the model is verified there, and nowhere else for certain.
fn affinity(order: &ReplicaOrder, role: Role, parts: &[PartOrder]) -> Value {
    let nodes: Vec<&str> = parts.iter().map(|part| part.node.as_str()).collect();
    let names = json!([{ "key": "metadata.name", "operator": "In", "values": nodes }]);
    // a field selector takes one value; several nodes are several terms, any of which will do
    let terms: Vec<Value> = if nodes.len() == 1 {
        vec![json!({ "matchFields": names })]
    } else {
        let term = |node| json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] });
        nodes.iter().map(term).collect()
    };
    let mut affinity = json!({
        "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } },
    });
    if role == Role::Worker {
        affinity["podAntiAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { INSTANCE: label_value(&order.instance) } },
                "topologyKey": "kubernetes.io/hostname",
            }],
        });
    }
    affinity
}

fn tolerations(order: &ReplicaOrder) -> Value {
    let mut tolerations = vec![json!({ "key": GPU, "operator": "Exists", "effect": "NoSchedule" })];
    if order.sharing == Sharing::Uuid {
        tolerations.push(json!({ "key": TAINT, "operator": "Exists", "effect": "NoSchedule" }));
    }
    Value::Array(tolerations)
}

fn container(order: &ReplicaOrder, role: Role, parts: &[PartOrder]) -> Value {
    let run = match (role, &order.worker) {
        (Role::Worker, Some(worker)) => worker,
        _ => &order.leader,
    };
    let mut container = json!({
        "name": CONTAINER,
        "image": order.image,
        "imagePullPolicy": "IfNotPresent",
        "args": run.args,
        "env": environment(order, parts),
        "resources": resources(order, parts),
        "securityContext": security(order),
        "volumeMounts": mounts(order),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    set_command(&mut container, run);
    if role != Role::Worker {
        container["ports"] = json!([{ "name": "http", "containerPort": order.port, "protocol": "TCP" }]);
        container["startupProbe"] = startup(order);
        container["readinessProbe"] = ready(order);
        // No livenessProbe: a hung engine often answers its health check (and a busy one does not); the controller
        // watches progress, and a restart in place would bring an engine that nobody has proven.
    }
    container
}

fn set_command(container: &mut Value, run: &ContainerCommand) {
    if !run.command.is_empty() {
        container["command"] = json!(run.command);
    }
}

fn startup(order: &ReplicaOrder) -> Value {
    json!({
        "httpGet": { "path": order.health_path, "port": order.port, "scheme": "HTTP" },
        "periodSeconds": STARTUP_PERIOD_SECONDS,
        "timeoutSeconds": STARTUP_PERIOD_SECONDS,
        "failureThreshold": order.startup_seconds.div_ceil(STARTUP_PERIOD_SECONDS),
    })
}

fn ready(order: &ReplicaOrder) -> Value {
    json!({
        "httpGet": { "path": order.health_path, "port": order.port, "scheme": "HTTP" },
        "periodSeconds": READY_PERIOD_SECONDS,
        "timeoutSeconds": READY_PERIOD_SECONDS,
        "failureThreshold": 3,
    })
}

fn environment(order: &ReplicaOrder, parts: &[PartOrder]) -> Value {
    let mut env: Map<String, Value> = Map::new();
    for (name, value) in [("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("XDG_CACHE_HOME", "/tmp/.cache")] {
        env.insert(name.to_owned(), json!(value));
    }
    env.extend(order.env.iter().map(|(name, value)| (name.clone(), json!(value))));
    env.insert(INSTANCE_VARIABLE.to_owned(), json!(order.instance));
    match order.sharing {
        Sharing::Uuid => {
            env.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), json!(visible(parts)));
        }
        // the plugin sets it; without a GPU, an image's own `all` would show every one
        Sharing::Plugin if gpus(parts) == 0 => {
            env.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), json!("void"));
        }
        Sharing::Plugin => {}
    }
    // a keyed list: no name twice
    env.into_iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn visible(parts: &[PartOrder]) -> String {
    match parts {
        [] => "void".to_owned(),
        [part, ..] if part.gpus == 0 => "void".to_owned(),
        [part] if !part.uuids.is_empty() => part.uuids.join(","),
        // several workers share one template: whole nodes, as was checked
        [..] => "all".to_owned(),
    }
}

fn resources(order: &ReplicaOrder, parts: &[PartOrder]) -> Value {
    let mut amounts = Map::new();
    if let Some(milli) = order.cpu_milli {
        // whole CPUs with GPUs: only those are given out exclusively, near the GPUs
        let cpu = if gpus(parts) > 0 { milli.div_ceil(1_000).to_string() } else { format!("{milli}m") };
        amounts.insert("cpu".to_owned(), json!(cpu));
    }
    if let Some(bytes) = order.memory_bytes {
        amounts.insert("memory".to_owned(), json!(bytes.to_string()));
    }
    if order.sharing == Sharing::Plugin && gpus(parts) > 0 {
        amounts.insert(GPU.to_owned(), json!(gpus(parts).to_string()));
    }
    if let (Some(rdma), true) = (&order.rdma, order.is_group()) {
        amounts.insert(rdma.clone(), json!("1"));
    }
    // requests equal to limits: the Pod is Guaranteed where CPU and memory are known
    json!({ "limits": amounts, "requests": amounts })
}

fn security(order: &ReplicaOrder) -> Value {
    let mut capabilities = json!({ "drop": ["ALL"] });
    if order.rdma.is_some() && order.is_group() {
        capabilities["add"] = json!(["IPC_LOCK"]);
    }
    json!({
        "allowPrivilegeEscalation": false,
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "capabilities": capabilities,
    })
}

fn needs_shared_memory(order: &ReplicaOrder) -> bool {
    order.is_group() || order.parts.iter().any(|part| part.gpus > 1)
}

fn volumes(order: &ReplicaOrder) -> Value {
    let mut volumes = vec![json!({ "name": "scratch", "emptyDir": {} })];
    if needs_shared_memory(order) {
        let bytes = order.memory_bytes.map_or(SHARED_MEMORY_BYTES, |memory| SHARED_MEMORY_BYTES.min(memory / 2));
        let shm = json!({ "medium": "Memory", "sizeLimit": bytes.to_string() });
        volumes.push(json!({ "name": "shm", "emptyDir": shm }));
    }
    if let Some(models) = &order.models {
        // `Directory`: a node without the cache refuses the Pod instead of giving it an empty one
        volumes.push(json!({ "name": "models", "hostPath": { "path": models, "type": "Directory" } }));
    }
    if let Some(compiled) = &order.compiled {
        volumes.push(json!({ "name": "compiled", "hostPath": { "path": compiled, "type": "DirectoryOrCreate" } }));
    }
    Value::Array(volumes)
}

fn mounts(order: &ReplicaOrder) -> Value {
    let mut mounts = vec![json!({ "name": "scratch", "mountPath": SCRATCH })];
    if needs_shared_memory(order) {
        mounts.push(json!({ "name": "shm", "mountPath": "/dev/shm" }));
    }
    if let Some(models) = &order.models {
        mounts.push(json!({ "name": "models", "mountPath": models, "readOnly": true }));
    }
    if let Some(compiled) = &order.compiled {
        mounts.push(json!({ "name": "compiled", "mountPath": compiled }));
    }
    Value::Array(mounts)
}
