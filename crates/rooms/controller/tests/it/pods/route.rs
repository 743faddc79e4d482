//! Routes as HTTPRoutes, set by the controller's account.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate_controller::route::{HttpRouteSettings, HttpRoutes, RouteActuator, RouteError, RouteRow, RouteTarget};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_kubernetes::PoolOrder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Stand;

fn row(targets: &[&str], generation: u64) -> RouteRow {
    let target = |name: &&str| RouteTarget { deployment: DeploymentName::from(*name), weight: 50, revision: Some(7) };
    RouteRow {
        alias: AliasName::from("glm"),
        targets: targets.iter().map(target).collect(),
        shift: ShiftName::from("night"),
        until: None,
        generation,
    }
}

async fn routes(stand: &Stand) -> HttpRoutes {
    for name in ["day", "night"] {
        let order = PoolOrder { name: name.to_owned(), port: 8001, picker: "epp".to_owned(), picker_port: 9002 };
        stand.cluster.apply_pool(1, &order).await.unwrap();
    }
    let rule = json!({
        "matches": [{ "path": { "type": "PathPrefix", "value": "/v1" } }],
        "backendRefs": [{ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "day" }],
    });
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "glm", "labels": { "tidegate.dev/alias": "glm" } },
        "spec": { "parentRefs": [{ "name": "gate" }], "rules": [rule] },
    });
    let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes", stand.name);
    stand.api.create(&path, &route).await.unwrap();
    let aliases = BTreeSet::from([AliasName::from("glm")]);
    HttpRoutes::new(stand.cluster.clone(), HttpRouteSettings { aliases, ..HttpRouteSettings::default() })
}

/// A gateway that takes every route, or refuses those that go to `bad`.
pub(super) fn gateway(stand: &Stand, bad: &'static str) -> JoinSet<()> {
    let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes", stand.name);
    let api = stand.api.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (sender, mut events) = mpsc::channel::<(String, Value)>(4);
        let saying = async {
            while let Some((_, route)) = events.recv().await {
                let generation = &route["metadata"]["generation"];
                if route["status"]["parents"][0]["conditions"][0]["observedGeneration"] == *generation {
                    continue;
                }
                let is_bad = route["spec"]["rules"][0]["backendRefs"][0]["name"] == bad;
                let say = |name: &str, word: &str| {
                    json!({ "type": name, "status": word, "observedGeneration": generation, "message": "no picker",
                        "reason": name, "lastTransitionTime": "2026-01-01T00:00:00Z" })
                };
                let resolved = say("ResolvedRefs", if is_bad { "False" } else { "True" });
                let parents = json!([{ "parentRef": { "name": "gate" }, "controllerName": "test.example/gate",
                    "conditions": [say("Accepted", "True"), resolved] }]);
                let status = json!({ "status": { "parents": parents } });
                api.patch(&format!("{path}/glm/status"), &status).await.unwrap();
            }
        };
        tokio::select! { () = saying => {} _ = api.watch(&path, &sender) => {} }
    });
    tasks
}

#[tokio::test]
async fn a_route_is_set_read_back_and_fenced() {
    let stand = Stand::new("routes").await;
    let routes = routes(&stand).await;
    let _gateway = gateway(&stand, "none");
    assert_eq!(routes.read(&AliasName::from("glm")).await.unwrap(), None, "it was never set by us");
    routes.set(&row(&["night"], 3)).await.unwrap();
    assert_eq!(routes.read(&AliasName::from("glm")).await.unwrap(), Some(row(&["night"], 3)));
    routes.set(&row(&[], 4)).await.unwrap();
    assert_eq!(routes.read(&AliasName::from("glm")).await.unwrap(), Some(row(&[], 4)));
    assert_eq!(routes.set(&row(&["day"], 3)).await, Err(RouteError::Stale { highest: 4 }));
    let other = RouteRow { alias: AliasName::from("other"), ..row(&["day"], 4) };
    routes.set(&other).await.unwrap();
    assert_eq!(routes.read(&other.alias).await.unwrap(), None, "not fronted by a route");
}

#[tokio::test]
async fn two_pools_in_one_rule_are_refused() {
    let stand = Stand::new("routes-two").await;
    let routes = routes(&stand).await;
    let Err(RouteError::Refused(why)) = routes.set(&row(&["day", "night"], 1)).await else { panic!() };
    assert!(why.contains("an HTTPRoute rule has one pool"), "{why}");
    let mut silent = row(&["day", "night"], 1);
    silent.targets[1].weight = 0;
    let _gateway = gateway(&stand, "none");
    routes.set(&silent).await.unwrap();
}

#[tokio::test]
async fn a_gateway_that_refuses_leaves_the_route_where_it_was() {
    let stand = Stand::new("routes-refused").await;
    let routes = routes(&stand).await;
    let _gateway = gateway(&stand, "night");
    routes.set(&row(&["day"], 1)).await.unwrap();
    let Err(RouteError::Refused(why)) = routes.set(&row(&["night"], 1)).await else { panic!() };
    assert!(why.contains("no picker"), "{why}");
    assert_eq!(routes.read(&AliasName::from("glm")).await.unwrap(), Some(row(&["day"], 1)));
}

#[tokio::test]
async fn what_somebody_else_wrote_is_read_as_it_is() {
    let stand = Stand::new("routes-other").await;
    let routes = routes(&stand).await;
    let _gateway = gateway(&stand, "none");
    routes.set(&row(&["night"], 1)).await.unwrap();
    let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes/glm", stand.name);
    let backend = json!([{ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "day" }]);
    stand.api.patch(&path, &json!({ "spec": { "rules": [{ "backendRefs": backend }] } })).await.unwrap();
    let read = routes.read(&AliasName::from("glm")).await.unwrap().unwrap();
    assert_eq!(read.targets[0].deployment.as_str(), "day");
    routes.set(&row(&["night"], 1)).await.unwrap();
    assert_eq!(routes.read(&AliasName::from("glm")).await.unwrap(), Some(row(&["night"], 1)));
}
