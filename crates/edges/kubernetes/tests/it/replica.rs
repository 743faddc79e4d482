//! A replica's life: started once, seen, stopped, forgotten, and fenced.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_kubernetes::{Fault, Phase};
use tidegate_testkit::{Conduct, Failure, Kubelet, NodePlan};

use crate::world::{PATIENCE, World, order};

#[tokio::test]
async fn a_replica_started_twice_is_one_that_runs_and_is_gone_when_it_is_forgotten() {
    let world = World::new("life").await;
    let order = world.order("glm-5.3-0-g1");
    world.cluster.start(1, &order).await.unwrap();
    world.cluster.start(1, &order).await.unwrap();
    let seen = world.running("glm-5.3-0-g1").await;
    assert_eq!(seen.order, order, "what it was made from is read back");
    assert_eq!(seen.pods.len(), 1);
    assert_eq!(seen.pods[0].node.as_deref(), Some("life-a"));
    assert!(seen.scheduled_at.is_some() && seen.started_at.is_some());
    let Phase::Running { address } = seen.phase else { panic!("{:?}", seen.phase) };
    assert_eq!(address.port(), 8000);
    let early = world.cluster.forget(1, "glm-5.3-0-g1").await.unwrap_err();
    assert!(matches!(early, Fault::Order(_)), "{early:?}");
    world.cluster.stop(1, "glm-5.3-0-g1", Duration::from_secs(5), None).await.unwrap();
    world.seen("glm-5.3-0-g1", |seen| seen.phase == Phase::Ended { cause: None }).await;
    world.cluster.stop(1, "glm-5.3-0-g1", Duration::from_secs(5), None).await.unwrap();
    world.cluster.start(1, &order).await.unwrap();
    world.cluster.forget(1, "glm-5.3-0-g1").await.unwrap();
    world.unseen("glm-5.3-0-g1").await;
    world.cluster.forget(1, "glm-5.3-0-g1").await.unwrap();
    world.cluster.stop(1, "glm-5.3-0-g1", Duration::ZERO, None).await.unwrap();
    assert!(world.pods().await.is_empty());
}

#[tokio::test]
async fn an_earlier_controller_is_told_of_the_later_one_and_changes_nothing() {
    let world = World::new("fence").await;
    world.cluster.start(2, &world.order("glm-0-g2")).await.unwrap();
    world.running("glm-0-g2").await;
    world.cluster.fence(5).await.unwrap();
    let stale = Fault::StaleGeneration { highest: 5 };
    let patience = Duration::from_secs(1);
    assert_eq!(world.cluster.start(4, &world.order("glm-1-g4")).await, Err(stale.clone()));
    assert_eq!(world.cluster.stop(4, "glm-0-g2", patience, None).await, Err(stale.clone()));
    assert_eq!(world.cluster.forget(4, "glm-0-g2").await, Err(stale.clone()));
    assert_eq!(world.cluster.record_pods(4, "glm-0-g2", &["x"]).await, Err(stale.clone()));
    let pod = world.running("glm-0-g2").await.pods[0].name.clone();
    assert_eq!(world.cluster.expose(4, "glm-0-g2", &pod, Some("glm")).await, Err(stale));
    assert_eq!(world.deployment("glm-0-g2").await["spec"]["replicas"], 1);
    world.cluster.stop(5, "glm-0-g2", patience, None).await.unwrap();
}

#[tokio::test]
async fn an_object_of_a_later_generation_stops_us_even_when_the_fence_was_lost() {
    let world = World::new("fence-object").await;
    world.cluster.start(9, &world.order("glm-0-g9")).await.unwrap();
    world.api.delete(&world.path("/api/v1", "configmaps", "tidegate-controller"), None).await.unwrap();
    let stale = Fault::StaleGeneration { highest: 9 };
    assert_eq!(world.cluster.stop(8, "glm-0-g9", Duration::from_secs(1), None).await, Err(stale.clone()));
    assert_eq!(world.cluster.start(8, &world.order("glm-0-g9")).await, Err(stale));
}

#[tokio::test]
async fn a_field_that_another_manager_has_is_named_with_the_manager() {
    let world = World::new("conflict").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let path = world.path("/apis/apps/v1", "deployments", "glm-0-g1");
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "glm-0-g1" }, "spec": { "replicas": 3 },
    });
    world.api.apply(&path, "autoscaler", &theirs).await.unwrap();
    let fault = world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap_err();
    assert_eq!(fault.code(), "conflict");
    assert_eq!(fault.to_string(), ".spec.replicas of Deployment glm-0-g1 is managed by autoscaler");
}

#[tokio::test]
async fn a_slow_end_is_stopping_until_the_node_says_so() {
    let world = World::new("slow").await;
    world.node.conduct(|_| Conduct::SlowStop);
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    world.running("glm-0-g1").await;
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(300), Some("drained")).await.unwrap();
    world.seen("glm-0-g1", |seen| seen.phase == Phase::Stopping).await;
    // the Deployment's own deletion gave it the template's time: ours is shorter, and the last word is shorter still
    let grace = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace(&world.pods().await[0]) <= 300);
    world.cluster.stop(1, "glm-0-g1", Duration::ZERO, None).await.unwrap();
    let pods = world.pods().await;
    assert_eq!(grace(&pods[0]), 1, "never zero: the Pod would vanish before its processes");
    assert!(world.cluster.forget(1, "glm-0-g1").await.is_err());
    world.node.let_go();
    let seen = world.seen("glm-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. })).await;
    assert_eq!(seen.phase, Phase::Ended { cause: Some("drained".into()) });
}

#[tokio::test]
async fn a_group_runs_when_all_its_pods_do_and_its_leader_is_the_address() {
    let world = World::new("group").await;
    let other = Kubelet::start(&world.api, NodePlan::new("group-b", 8)).await.unwrap();
    world.cluster.start(1, &order("big-0-g1", &["group-a", "group-b"])).await.unwrap();
    let path = world.path("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", "big-0-g1");
    let group = world.api.get(&path).await.unwrap();
    // the controller of groups is not here: what it makes of one is made by hand
    make_pod(&world, &group, "leaderTemplate", 0).await;
    world.seen("big-0-g1", |seen| seen.pods.len() == 1 && seen.phase == Phase::Pending { trouble: None }).await;
    make_pod(&world, &group, "workerTemplate", 1).await;
    let seen = world.running("big-0-g1").await;
    let leader = seen.pods.iter().find(|pod| pod.is_leader).unwrap();
    assert_eq!(leader.node.as_deref(), Some("group-a"));
    let worker = seen.pods.iter().find(|pod| !pod.is_leader).unwrap();
    assert_eq!(worker.node.as_deref(), Some("group-b"));
    other.fail("group", "big-0-g1-0-1", Failure::Exited(1)).await.unwrap();
    world.seen("big-0-g1", |seen| matches!(&seen.phase, Phase::Broken { .. })).await;
    world.cluster.stop(1, "big-0-g1", Duration::from_secs(1), None).await.unwrap();
    world.seen("big-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. })).await;
    assert_eq!(world.api.get(&path).await.unwrap()["spec"]["replicas"], 0);
    world.cluster.forget(1, "big-0-g1").await.unwrap();
    world.unseen("big-0-g1").await;
}

async fn make_pod(world: &World, group: &Value, template: &str, index: u32) {
    let template = &group["spec"]["leaderWorkerTemplate"][template];
    let mut labels = template["metadata"]["labels"].clone();
    labels["leaderworkerset.sigs.k8s.io/worker-index"] = json!(index.to_string());
    let suffix = if index == 0 { "-0".to_owned() } else { format!("-0-{index}") };
    let name = format!("{}{suffix}", group["metadata"]["name"].as_str().unwrap());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": world.name, "labels": labels },
        "spec": template["spec"],
    });
    world.api.create(&world.path("/api/v1", "pods", ""), &pod).await.unwrap();
}

#[tokio::test]
async fn what_was_not_made_by_us_or_was_broken_by_hand_is_left_alone() {
    let world = World::new("foreign").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    world.running("glm-0-g1").await;
    let path = world.path("/apis/apps/v1", "deployments", "glm-0-g1");
    let broken = json!({ "metadata": { "annotations": { "tidegate.dev/order": "{\"instance\":\"other\"}" } } });
    world.api.patch(&path, &broken).await.unwrap();
    world.unseen("glm-0-g1").await;
    let fault = world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap_err();
    assert_eq!(fault.code(), "foreign");
    assert!(!fault.hint().is_empty());
    assert!(world.view.until(PATIENCE, |_| true).await);
}
