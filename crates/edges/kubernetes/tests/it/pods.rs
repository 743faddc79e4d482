//! What goes wrong with Pods, by name.

use std::time::Duration;

use serde_json::json;
use tidegate_kubernetes::{Phase, ReplicaSeen, TroubleCode};
use tidegate_testkit::{Conduct, Failure};

use crate::world::World;

fn pending(seen: &ReplicaSeen, code: TroubleCode) -> bool {
    matches!(&seen.phase, Phase::Pending { trouble: Some(trouble) } if trouble.code == code)
}

fn broken(seen: &ReplicaSeen, code: TroubleCode) -> bool {
    matches!(&seen.phase, Phase::Broken { trouble } if trouble.code == code)
}

#[tokio::test]
async fn a_pod_that_no_node_takes_is_unschedulable_and_says_what_it_lacks() {
    let world = World::new("pod-unschedulable").await;
    let mut order = world.order("glm-0-g1");
    order.parts[0].gpus = 16;
    world.cluster.start(1, &order).await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| pending(seen, TroubleCode::Unschedulable)).await;
    let Phase::Pending { trouble: Some(trouble) } = seen.phase else { panic!() };
    assert!(trouble.said.contains("nvidia.com/gpu"), "{trouble}");
    assert!(!trouble.code.is_final(), "a Pod that is leaving may free the GPUs");
    // and it comes up by itself when there is room
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
    world.seen("glm-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. })).await;
}

#[tokio::test]
async fn a_taint_that_is_not_ours_keeps_a_pod_away() {
    let world = World::new("pod-taint").await;
    let path = format!("/api/v1/nodes/{}", world.node_name());
    let taint = json!({ "spec": { "taints": [{ "key": "maintenance", "effect": "NoSchedule" }] } });
    world.api.patch(&path, &taint).await.unwrap();
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| pending(seen, TroubleCode::Unschedulable)).await;
    let Phase::Pending { trouble: Some(trouble) } = seen.phase else { panic!() };
    assert!(trouble.said.contains("taint"), "{trouble}");
    world.api.patch(&path, &json!({ "spec": { "taints": null } })).await.unwrap();
    world.running("glm-0-g1").await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_named_and_waited_for() {
    let world = World::new("pod-image").await;
    world.node.conduct(|_| Conduct::ImagePull);
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| pending(seen, TroubleCode::ImagePull)).await;
    let Phase::Pending { trouble: Some(trouble) } = seen.phase else { panic!() };
    assert_eq!(trouble.to_string(), "image_pull: ImagePullBackOff: Back-off pulling image");
}

#[tokio::test]
async fn a_volume_that_cannot_be_mounted_is_told_by_an_event() {
    let world = World::new("pod-mount").await;
    world.node.conduct(|_| Conduct::Mount);
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let events = world.path("/api/v1", "events", "");
    world.api.until(&events, |_, event| event["reason"] == "FailedMount").await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| seen.pods.len() == 1).await;
    let trouble = world.cluster.events_of(&seen.pods[0].uid).await.unwrap().unwrap();
    assert_eq!(trouble.code, TroubleCode::Mount);
}

#[tokio::test]
async fn a_pod_refused_for_its_topology_is_broken_and_its_storm_of_successors_ends_with_the_stop() {
    let world = World::new("pod-topology").await;
    world.node.conduct(|_| Conduct::Topology);
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    world.seen("glm-0-g1", |seen| broken(seen, TroubleCode::TopologyRefused)).await;
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), Some("topology_refused")).await.unwrap();
    // failed Pods are nobody's to remove but ours; a successor may be made while we look
    world.seen("glm-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. } | Phase::Stopping)).await;
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
    world.seen("glm-0-g1", |seen| seen.phase == Phase::Ended { cause: Some("topology_refused".into()) }).await;
}

#[tokio::test]
async fn a_pod_that_the_kubelet_does_not_admit_is_named_so() {
    let world = World::new("pod-admission").await;
    world.node.conduct(|_| Conduct::Admission);
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    // its owner makes one after the other: waiting for it would not help
    world.seen("glm-0-g1", |seen| broken(seen, TroubleCode::AdmissionRefused)).await;
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
}

#[tokio::test]
async fn an_engine_that_ended_is_broken_whether_or_not_it_was_started_again() {
    let cases = [
        ("pod-oom", Failure::OomKilled, TroubleCode::OomKilled),
        ("pod-crash", Failure::CrashLoop, TroubleCode::CrashLoop),
        ("pod-exit", Failure::Exited(3), TroubleCode::Exited),
        ("pod-evicted", Failure::Evicted, TroubleCode::Evicted),
    ];
    for (name, failure, code) in cases {
        let world = World::new(name).await;
        world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
        let pod = world.running("glm-0-g1").await.pods[0].name.clone();
        world.node.fail(name, &pod, failure).await.unwrap();
        let seen = world.seen("glm-0-g1", |seen| broken(seen, code)).await;
        let Phase::Broken { trouble } = seen.phase else { panic!() };
        assert!(trouble.code.is_final() && !trouble.code.hint().is_empty());
        world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
        world.seen("glm-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. })).await;
    }
}

#[tokio::test]
async fn a_pod_deleted_under_us_is_broken_and_its_successor_is_not_it() {
    let world = World::new("pod-deleted").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let seen = world.running("glm-0-g1").await;
    assert!(!seen.has_own_pods);
    world.cluster.record_pods(1, "glm-0-g1", &[&seen.pods[0].uid]).await.unwrap();
    world.seen("glm-0-g1", |seen| seen.has_own_pods).await;
    world.api.delete(&world.path("/api/v1", "pods", &seen.pods[0].name), None).await.unwrap();
    let is_other = |now: &ReplicaSeen| now.pods.iter().any(|pod| pod.uid != seen.pods[0].uid && pod.is_ready);
    let seen = world.seen("glm-0-g1", |now| is_other(now) && broken(now, TroubleCode::Replaced)).await;
    assert_eq!(seen.pods[0].pool, None, "nobody sends requests to what has not proven itself");
    world.cluster.record_pods(1, "glm-0-g1", &[&seen.pods[0].uid]).await.unwrap();
    world.seen("glm-0-g1", |now| broken(now, TroubleCode::Replaced)).await;
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_noticed_and_what_ran_there_is_not_called_dead() {
    let world = World::new("pod-node").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    world.running("glm-0-g1").await;
    world.node.is_given_up().await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| seen.notice.is_some()).await;
    assert_eq!(seen.notice.unwrap().code, TroubleCode::NodeLost);
    assert!(matches!(seen.phase, Phase::Running { .. }), "its engine may serve on: {:?}", seen.phase);
    // nobody confirms the end of a Pod on such a node: it is on its way out for as long as it takes
    world.node.conduct(|_| Conduct::Ignore);
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
    world.seen("glm-0-g1", |seen| seen.phase == Phase::Stopping).await;
    assert!(world.cluster.forget(1, "glm-0-g1").await.is_err());
}

#[tokio::test]
async fn a_quota_and_a_policy_that_refuse_the_pod_are_named() {
    let world = World::new("pod-quota").await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "gpus" },
        "spec": { "hard": { "requests.nvidia.com/gpu": "2" } },
    });
    world.api.create(&world.path("/api/v1", "resourcequotas", ""), &quota).await.unwrap();
    let quotas = world.path("/api/v1", "resourcequotas", "");
    world.api.until(&quotas, |_, quota| !quota["status"]["hard"].is_null()).await.unwrap();
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    world.seen("glm-0-g1", |seen| pending(seen, TroubleCode::QuotaRefused)).await;

    let world = World::new("pod-policy").await;
    let restricted = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    world.api.patch("/api/v1/namespaces/pod-policy", &restricted).await.unwrap();
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let seen = world.seen("glm-0-g1", |seen| pending(seen, TroubleCode::AdmissionRefused)).await;
    let Phase::Pending { trouble: Some(trouble) } = seen.phase else { panic!() };
    assert!(trouble.said.contains("PodSecurity"), "{trouble}");
}

#[test]
fn every_trouble_has_a_name_of_its_own_and_a_hint() {
    let names: std::collections::BTreeSet<&str> = TroubleCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(names.len(), TroubleCode::ALL.len());
    assert!(TroubleCode::ALL.iter().all(|code| !code.hint().is_empty()));
}
