//! The API server itself going away, forgetting history, and refusing us. Each test has a control plane of its own.

use std::time::Duration;

use serde_json::json;
use tidegate_kubernetes::{Access, Cluster, ClusterOptions, Fault, Phase, View};
use tidegate_testkit::real::ControlPlane;
use tidegate_testkit::{KubeApi, RealKubernetes};
use tokio::task::JoinSet;

use crate::world::{PATIENCE, connect, order};

async fn start() -> (RealKubernetes, KubeApi) {
    let started = tokio::task::spawn_blocking(|| RealKubernetes::start(ControlPlane::ApiServer)).await.unwrap();
    let real = started.expect("a real Kubernetes control plane: `cargo xtask real kubernetes` installs it");
    let api = real.api().unwrap();
    (real, api)
}

#[tokio::test]
async fn a_view_says_when_it_is_behind_and_catches_up_after_the_server_lost_its_history() {
    let (real, api) = start().await;
    let cluster = connect(&real, "default").await;
    let (view, following) = View::of(cluster.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(following);
    // without LeaderWorkerSets in the cluster, too
    assert!(view.until(PATIENCE, |_| true).await);
    cluster.start(1, &order("glm-0-g1", &["node-a"])).await.unwrap();
    assert!(view.until(PATIENCE, |all| all.len() == 1).await);
    assert_eq!(view.now().unwrap()[0].phase, Phase::Pending { trouble: None }, "nobody makes its Pod here");

    real.kill("apiserver").unwrap();
    while view.now().is_ok() {
        view.changed().await;
    }
    let away = view.now().unwrap_err();
    assert!(away.is_away(), "{away:?}");
    let fault = cluster.fence(1).await.unwrap_err();
    assert!(matches!(fault, Fault::Unreachable { .. }), "{fault:?}");

    // watches that are older than the server's start get 410, and everything is listed anew
    real.start_again().unwrap();
    cluster.start(1, &order("glm-1-g1", &["node-a"])).await.unwrap();
    assert!(view.until(PATIENCE, |all| all.len() == 2).await, "{:?}", view.now());
    api.delete("/apis/apps/v1/namespaces/default/deployments/glm-0-g1", None).await.unwrap();
    assert!(view.until(PATIENCE, |all| all.len() == 1).await, "{:?}", view.now());
}

#[tokio::test]
async fn two_pods_of_a_wrong_kind_and_missing_rights_are_named() {
    let (real, api) = start().await;
    let cluster = connect(&real, "default").await;
    let missing = cluster.start(1, &order("big-0-g1", &["a", "b"])).await.unwrap_err();
    assert_eq!(missing, Fault::NotInstalled { kind: "LeaderWorkerSet".into() });
    let elsewhere = connect(&real, "nowhere").await.fence(1).await.unwrap_err();
    assert_eq!(elsewhere.code(), "not_found", "{elsewhere:?}");
    // an account without any role
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "nobody" } });
    api.create("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap();
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 600 },
    });
    let path = "/api/v1/namespaces/default/serviceaccounts/nobody/token";
    let token = api.create(path, &asked).await.unwrap()["status"]["token"].as_str().unwrap().to_owned();
    for (token, code) in [(token.as_str(), "forbidden"), ("wrong", "unauthenticated")] {
        let access = Access::Kubeconfig { path: real.kubeconfig_of(code, token).unwrap(), context: None };
        let cluster = Cluster::connect(&access, &ClusterOptions { namespace: "default".to_owned() }).await.unwrap();
        let fault = cluster.fence(1).await.unwrap_err();
        assert_eq!(fault.code(), code, "{fault}");
        let (view, following) = View::of(cluster);
        let mut tasks = JoinSet::new();
        tasks.spawn(following);
        assert!(!view.until(Duration::from_secs(1), |_| true).await);
        assert_eq!(view.now().unwrap_err().code(), code);
    }
    let nowhere = Access::Kubeconfig { path: "/nowhere/kubeconfig".into(), context: None };
    let fault = Cluster::connect(&nowhere, &ClusterOptions { namespace: "default".to_owned() }).await.unwrap_err();
    assert_eq!(fault.code(), "access");
    let _: &KubeApi = &api;
}
