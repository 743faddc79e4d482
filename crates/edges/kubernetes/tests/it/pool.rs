//! Pools: who is in, and who is not any more.

use std::time::Duration;

use serde_json::json;
use tidegate_kubernetes::{Fault, Phase, PoolOrder};

use crate::world::World;

fn pool() -> PoolOrder {
    PoolOrder { name: "glm".to_owned(), port: 8000, picker: "glm-epp".to_owned(), picker_port: 9002 }
}

#[tokio::test]
async fn a_pod_is_in_its_pool_from_its_proof_to_its_drain() {
    let world = World::new("pool").await;
    world.cluster.apply_pool(1, &pool()).await.unwrap();
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let pod = world.running("glm-0-g1").await.pods[0].name.clone();
    assert!(world.cluster.pool_members("glm").await.unwrap().is_empty(), "a Pod that is ready has not proven itself");
    for _ in 0..2 {
        world.cluster.expose(1, "glm-0-g1", &pod, Some("glm")).await.unwrap();
        assert_eq!(world.cluster.pool_members("glm").await.unwrap(), std::slice::from_ref(&pod));
    }
    world.seen("glm-0-g1", |seen| seen.pods[0].pool.as_deref() == Some("glm")).await;
    for _ in 0..2 {
        world.cluster.expose(1, "glm-0-g1", &pod, None).await.unwrap();
        assert!(world.cluster.pool_members("glm").await.unwrap().is_empty());
    }
    let seen = world.running("glm-0-g1").await;
    assert!(matches!(seen.phase, Phase::Running { .. }), "it serves what it has");
    world.cluster.expose(1, "glm-0-g1", &pod, Some("glm")).await.unwrap();
    world.cluster.stop(1, "glm-0-g1", Duration::from_secs(1), None).await.unwrap();
    world.seen("glm-0-g1", |seen| matches!(seen.phase, Phase::Ended { .. })).await;
    assert!(world.cluster.pool_members("glm").await.unwrap().is_empty());
    world.cluster.expose(1, "glm-0-g1", &pod, None).await.unwrap();
    let gone = world.cluster.expose(1, "glm-0-g1", &pod, Some("glm")).await.unwrap_err();
    assert!(matches!(gone, Fault::NotFound { .. }), "{gone:?}");
}

#[tokio::test]
async fn a_pod_of_another_instance_is_not_put_in() {
    let world = World::new("pool-other").await;
    world.cluster.start(1, &world.order("glm-0-g1")).await.unwrap();
    let pod = world.running("glm-0-g1").await.pods[0].name.clone();
    let fault = world.cluster.expose(1, "glm-1-g1", &pod, Some("glm")).await.unwrap_err();
    assert_eq!(fault.code(), "foreign");
}

#[tokio::test]
async fn a_pool_is_made_once_read_back_and_not_changed_by_an_earlier_controller() {
    let world = World::new("pool-made").await;
    world.cluster.apply_pool(3, &pool()).await.unwrap();
    world.cluster.apply_pool(3, &pool()).await.unwrap();
    let seen = world.cluster.pool("pool-made", "glm").await.unwrap().unwrap();
    assert_eq!(seen.ports, [8000]);
    assert!(seen.selects(&[("model", "glm"), ("x", "y")]));
    assert!(!seen.selects(&[("tidegate.dev/deployment", "glm")]));
    let stale = world.cluster.apply_pool(2, &PoolOrder { port: 1, ..pool() }).await.unwrap_err();
    assert_eq!(stale, Fault::StaleGeneration { highest: 3 });
    assert_eq!(world.cluster.pool("pool-made", "other").await.unwrap(), None);
    // what another manager added stays: only what is ours is applied
    let path = world.path("/apis/inference.networking.k8s.io/v1", "inferencepools", "glm");
    world.api.patch(&path, &json!({ "metadata": { "labels": { "team": "a" } } })).await.unwrap();
    world.cluster.apply_pool(4, &PoolOrder { port: 8001, ..pool() }).await.unwrap();
    let after = world.api.get(&path).await.unwrap();
    assert_eq!(after["metadata"]["labels"]["team"], "a");
    assert_eq!(after["spec"]["targetPorts"], json!([{ "number": 8001 }]));
}
