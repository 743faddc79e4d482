//! The launcher over Pods.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_controller::launcher::{Exposure, Fetched, LaunchFault, Launcher, SeenState};
use tidegate_node::{Proof, ProvenBy};
use tidegate_planner::hardware::GpuState;
use tidegate_testkit::{Conduct, Failure};

use super::{Leftover, PATIENCE, Stand, id, is_refused, proven};
use crate::conformance::conforms;

const GIB: u64 = 1 << 30;

#[tokio::test]
async fn it_conforms_with_the_rights_of_the_example_and_no_others() {
    conforms(&Stand::new("conformance").await).await;
}

#[tokio::test]
async fn no_pod_before_the_model_is_verified_on_its_node() {
    let stand = Stand::with("unverified", "plugin", false).await;
    let order = stand.order("glm-5.3-0-g1", &[0, 1, 2, 3]);
    let Fetched::Waiting { bytes, total, .. } = stand.fetch(1, &order).await.unwrap() else { panic!() };
    assert_eq!((bytes, total), (4, Some(10)));
    let early = stand.start(1, &order).await.unwrap_err();
    assert!(matches!(&early, LaunchFault::Failed { code, .. } if &**code == "not_verified"), "{early:?}");
    assert!(stand.look().await.unwrap().is_empty());
    assert!(stand.pods().await.is_empty());
    stand.agent.cut(true);
    assert!(stand.start(1, &order).await.unwrap_err().is_away());
    assert!(stand.pods().await.is_empty(), "what nobody can say is not verified");
    stand.agent.cut(false);
    stand.agent.cache.is_verified.store(true, Ordering::SeqCst);
    assert_eq!(stand.fetch(1, &order).await, Ok(Fetched::Verified));
    stand.start(1, &order).await.unwrap();
    stand.running("glm-5.3-0-g1").await;
    let pods = stand.pods().await;
    let args: Vec<&str> =
        pods[0]["spec"]["containers"][0]["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args[..2], ["serve", &format!("/model-cache/sha256-{}", super::DIGEST)]);
    assert!(args.windows(2).any(|pair| pair == ["--tensor-parallel-size", "4"]), "{args:?}");
    assert!(args.windows(2).any(|pair| pair == ["--host", "0.0.0.0"]), "{args:?}");
}

#[tokio::test]
async fn an_agent_that_is_away_at_the_unload_leaves_the_gpus_unproven_until_it_is_back() {
    let stand = Stand::new("away").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    stand.agent.cut(true);
    stand.stop(1, &id("glm-5.3-0-g1"), Duration::from_secs(1)).await.unwrap();
    stand.ended("glm-5.3-0-g1").await;
    let fault = stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap_err();
    assert!(fault.is_away(), "gone as a Pod is not free as memory: {fault:?}");
    stand.agent.cut(false);
    assert_eq!(proven(&*stand.launcher, "glm-5.3-0-g1").await, Proof::Free { by: ProvenBy::Nvml });
}

#[tokio::test]
async fn a_person_frees_the_gpus_of_a_node_that_will_not_come_back() {
    let stand = Stand::new("released").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    // the power of the node is cut: nobody confirms the end of its Pod
    stand.kubelet.conduct(|_| Conduct::Ignore);
    stand.agent.cut(true);
    stand.stop(1, &id("glm-5.3-0-g1"), Duration::ZERO).await.unwrap();
    let proof = stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap();
    assert!(matches!(&proof, Proof::NotFree { why, .. } if why.contains("still there")), "{proof:?}");
    for gpu in 0..4 {
        assert!(matches!(stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap(), Proof::NotFree { .. }), "gpu {gpu}");
        stand.release(1, &stand.node(), gpu, "the machine burnt").await.unwrap();
    }
    assert_eq!(stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Person });
}

#[tokio::test]
async fn a_process_that_outlives_its_pod_and_memory_that_does_not_come_back_are_found() {
    let stand = Stand::new("leftover").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    // a container that is gone proves nothing
    let leftover = Leftover::of("glm-5.3-0-g1");
    stand.agent.driver.set_process(2, leftover.pid(), 22 * GIB);
    stand.stop(1, &id("glm-5.3-0-g1"), Duration::from_secs(1)).await.unwrap();
    stand.ended("glm-5.3-0-g1").await;
    let proof = stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap();
    assert!(matches!(&proof, Proof::NotFree { why, .. } if why.contains("alive")), "{proof:?}");
    let gpus = stand.hardware().await.unwrap().nodes[&stand.node()].gpus.clone();
    assert_eq!(gpus[&2].state, GpuState::Usable, "it is ours: the unproven instance books it");
    let pid = leftover.pid();
    drop(leftover);
    // the process is gone and its memory is not
    stand.agent.driver.set_process(2, pid, 0);
    stand.agent.driver.set_leaked(2, 22 * GIB);
    let proof = stand.prove(1, &id("glm-5.3-0-g1")).await.unwrap();
    assert!(matches!(&proof, Proof::NotFree { why, .. } if why.contains("gpu 2")), "{proof:?}");
    stand.agent.driver.set_leaked(2, 0);
    assert_eq!(proven(&*stand.launcher, "glm-5.3-0-g1").await, Proof::Free { by: ProvenBy::Nvml });
}

#[tokio::test]
async fn gpus_that_the_kubelet_chose_are_read_back_and_a_crooked_set_is_a_fault() {
    let stand = Stand::new("chosen").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    let engine = Leftover::of("glm-5.3-0-g1");
    for gpu in 4..8 {
        stand.agent.driver.set_process(gpu, engine.pid(), 90 * GIB);
    }
    let chosen = |seen: &tidegate_controller::launcher::Seen| {
        seen.seat.gpus().iter().map(|gpu| gpu.index).collect::<Vec<_>>() == [4, 5, 6, 7]
    };
    stand.wait("the chosen GPUs are booked", |all| all.iter().any(chosen)).await;
    stand.running("glm-5.3-0-g1").await;

    let other = Leftover::of("glm-5.3-1-g1");
    stand.up("glm-5.3-1-g1", &[0, 1, 2, 3]).await;
    for gpu in [1, 2, 3, 4] {
        stand.agent.driver.set_process(gpu, other.pid(), 90 * GIB);
    }
    let cause = stand.ended("glm-5.3-1-g1").await;
    assert!(
        cause.starts_with("topology_refused: the kubelet of chosen-a gave glm-5.3-1-g1 the GPUs 1,2,3,4"),
        "{cause}"
    );
}

#[tokio::test]
async fn by_uuid_a_pod_gets_exactly_the_gpus_of_its_seat() {
    let stand = Stand::with("uuid", "uuid", true).await;
    // without the GPU runtime in the cluster the Pod is refused, and that is said
    stand.launcher.start(1, &stand.order("glm-5.3-0-g1", &[4, 5, 6, 7])).await.unwrap();
    let is_refused = |seen: &tidegate_controller::launcher::Seen| matches!(&seen.state, SeenState::Pending { why } if why.starts_with("admission_refused") && why.contains("nvidia"));
    stand.wait("refused", |all| all.iter().any(is_refused)).await;
    stand.stop(1, &id("glm-5.3-0-g1"), Duration::ZERO).await.unwrap();
    let class = serde_json::json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "nvidia" }, "handler": "nvidia",
    });
    stand.api.create("/apis/node.k8s.io/v1/runtimeclasses", &class).await.unwrap();
    stand.up("glm-5.3-0-g2", &[4, 5, 6, 7]).await;
    let facts = tidegate_node::Node::facts(&*stand.agent).await.unwrap();
    let uuids: Vec<String> = facts.gpus[4..].iter().map(|gpu| gpu.uuid.as_ref().unwrap().to_string()).collect();
    let pods = stand.pods().await;
    let env = pods[0]["spec"]["containers"][0]["env"].as_array().unwrap().clone();
    let visible = env.iter().find(|one| one["name"] == "NVIDIA_VISIBLE_DEVICES").unwrap();
    assert_eq!(visible["value"].as_str().unwrap(), uuids.join(","));
}

#[tokio::test]
async fn a_pod_is_in_its_pool_only_between_its_proof_and_its_drain() {
    let stand = Stand::new("exposed").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    let label = async || stand.pods().await[0]["metadata"]["labels"]["model"].clone();
    assert!(label().await.is_null());
    stand.expose(1, &id("glm-5.3-0-g1"), Exposure::In).await.unwrap();
    assert_eq!(label().await, "glm-5.3");
    stand.expose(1, &id("glm-5.3-0-g1"), Exposure::Out).await.unwrap();
    assert!(label().await.is_null());
    let nobody = stand.expose(1, &id("glm-5.3-9-g1"), Exposure::In).await;
    assert!(matches!(nobody, Err(LaunchFault::Failed { .. })), "{nobody:?}");
}

#[tokio::test]
async fn what_happens_to_a_pod_reaches_the_controller_by_name_with_what_to_do() {
    let cases = [
        ("cause-oom", Failure::OomKilled, "oom_killed"),
        ("cause-crash", Failure::CrashLoop, "crash_loop"),
        ("cause-evicted", Failure::Evicted, "evicted"),
    ];
    for (name, failure, code) in cases {
        let stand = Stand::new(name).await;
        stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
        let pod = stand.pods().await[0]["metadata"]["name"].as_str().unwrap().to_owned();
        stand.kubelet.fail(name, &pod, failure).await.unwrap();
        let cause = stand.ended("glm-5.3-0-g1").await;
        assert!(cause.starts_with(&format!("{code}: ")) && cause.contains("; "), "{cause}");
        stand.stop(1, &id("glm-5.3-0-g1"), Duration::from_secs(1)).await.unwrap();
        assert!(matches!(proven(&*stand.launcher, "glm-5.3-0-g1").await, Proof::Free { .. }));
        let after = stand.ended("glm-5.3-0-g1").await;
        assert!(after.starts_with(code), "why it ended outlives its Pod: {after}");
    }
}

#[tokio::test]
async fn what_a_pod_waits_for_is_said_while_it_waits() {
    let cases = [("wait-image", Conduct::ImagePull, "image_pull: "), ("wait-mount", Conduct::Mount, "mount: ")];
    for (name, conduct, text) in cases {
        let stand = Stand::new(name).await;
        stand.kubelet.conduct(move |_| conduct);
        stand.launcher.start(1, &stand.order("glm-5.3-0-g1", &[0, 1, 2, 3])).await.unwrap();
        let waits = |seen: &tidegate_controller::launcher::Seen| matches!(&seen.state, SeenState::Pending { why } if why.starts_with(text) && why.contains("; "));
        stand.wait(text, |all| all.iter().any(waits)).await;
    }
}

#[tokio::test]
async fn a_restarted_controller_sees_what_the_first_one_started_and_a_replaced_pod_is_not_it() {
    let mut stand = Stand::new("restart").await;
    let before = stand.up("glm-5.3-0-g1", &[4, 5, 6, 7]).await;
    // what it was started with is on record before anything can replace it
    let recorded = |object: &serde_json::Value| !object["metadata"]["annotations"]["tidegate.dev/pods"].is_null();
    let path = "/apis/apps/v1/namespaces/restart/deployments";
    stand.wait("it is looked at", |_| true).await;
    stand.api.until(path, |_, object| recorded(object)).await.unwrap();
    let second = stand.restarted();
    let is_there = |all: &[tidegate_controller::launcher::Seen]| !all.is_empty();
    let seen = super::wait(&second, "the second one sees it", is_there).await;
    assert_eq!(seen[0], before);
    let pod = stand.pods().await[0]["metadata"]["name"].as_str().unwrap().to_owned();
    stand.api.delete(&format!("/api/v1/namespaces/restart/pods/{pod}"), None).await.unwrap();
    let third = stand.restarted();
    let is_over = |all: &[tidegate_controller::launcher::Seen]| matches!(all, [seen] if matches!(&seen.state, SeenState::Ended { cause } if cause.starts_with("replaced")));
    super::wait(&third, "the successor is not it", is_over).await;
}

#[tokio::test]
async fn what_cannot_run_as_a_pod_is_refused_by_name() {
    let stand = Stand::new("refused").await;
    let mut order = stand.order("glm-5.3-0-g1", &[0, 1, 2, 3]);
    let blueprint = Arc::make_mut(&mut order.blueprint);
    blueprint.engine.as_mut().unwrap().image = None;
    assert!(is_refused(&stand.start(1, &order).await.unwrap_err(), "no_image"));
    let mut order = stand.order("glm-5.3-0-g1", &[0, 1, 2, 3]);
    Arc::make_mut(&mut order.blueprint).dialect = tidegate_engine::Dialect::LlamaCpp;
    assert!(is_refused(&stand.start(1, &order).await.unwrap_err(), "model_file"));
    let elsewhere = super::order(&stand.site, "glm-5.3-0-g1", &[(&"nowhere".into(), &[0, 1, 2, 3])]);
    assert!(is_refused(&stand.start(1, &elsewhere).await.unwrap_err(), "unknown_node"));
    assert!(stand.pods().await.is_empty());
    let _ = (PATIENCE, order);
}

#[tokio::test]
async fn a_cluster_that_is_not_seen_is_away_and_not_empty() {
    let mut stand = Stand::new("blind").await;
    stand.up("glm-5.3-0-g1", &[0, 1, 2, 3]).await;
    // a launcher whose view nobody keeps up to date
    let settings =
        tidegate_controller::launcher::kubernetes::KubernetesSettings::of(&stand.site, "/model-cache".into());
    let (blind, following) = tidegate_controller::launcher::kubernetes::Kubernetes::new(
        stand.cluster.clone(),
        settings,
        Arc::clone(&stand.site),
        stand.members.clone(),
    );
    assert!(blind.look().await.unwrap_err().is_away());
    assert!(blind.away().iter().any(|(who, _)| &**who == "kubernetes"));
    drop(following);
    let sighted = stand.restarted();
    super::wait(&sighted, "it is seen", |all| all.len() == 1).await;
    assert!(sighted.away().is_empty());
}
