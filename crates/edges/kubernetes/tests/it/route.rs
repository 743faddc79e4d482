//! HTTPRoutes: one pool a rule, confirmed by the gateway that the test plays, undone when it refuses.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_kubernetes::{Backend, BackendOrder, Fault, PoolOrder};
use tokio::task::JoinSet;

use crate::world::{World, namespace};

const API: &str = "/apis/gateway.networking.k8s.io/v1";

async fn make_pool(world: &World, name: &str) {
    let order = PoolOrder { name: name.to_owned(), port: 8000, picker: "epp".to_owned(), picker_port: 9002 };
    world.cluster.apply_pool(1, &order).await.unwrap();
}

async fn make_route(world: &World, name: &str) {
    let rule = |path: &str| {
        json!({
            "matches": [{ "path": { "type": "PathPrefix", "value": path } }],
            "timeouts": { "request": "0s" },
            "backendRefs": [{ "group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "day" }],
        })
    };
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": name, "labels": { "tidegate.dev/alias": "glm" } },
        "spec": { "parentRefs": [{ "name": "gate" }], "rules": [rule("/v1/chat"), rule("/v1/completions")] },
    });
    world.api.apply(&world.path(API, "httproutes", name), "renderer", &route).await.unwrap();
}

/// A gateway's controller: what it says of every version of every route of the namespace.
fn gateway(world: &World, verdict: impl Fn(&Value) -> (bool, &'static str) + Send + Sync + 'static) -> JoinSet<()> {
    let (api, path) = (world.api.clone(), world.path(API, "httproutes", ""));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (sender, mut events) = tokio::sync::mpsc::channel::<(String, Value)>(4);
        let saying = async {
            while let Some((_, route)) = events.recv().await {
                let generation = &route["metadata"]["generation"];
                let condition = &route["status"]["parents"][0]["conditions"][0];
                if condition["observedGeneration"] == *generation {
                    continue;
                }
                let (is_good, message) = verdict(&route);
                let word = if is_good { "True" } else { "False" };
                let say = |name: &str, word: &str| {
                    json!({ "type": name, "status": word, "observedGeneration": generation, "message": message,
                        "reason": name, "lastTransitionTime": "2026-01-01T00:00:00Z" })
                };
                let parents = json!([{
                    "parentRef": { "name": "gate" }, "controllerName": "test.example/gate",
                    "conditions": [say("Accepted", "True"), say("ResolvedRefs", word)],
                }]);
                let name = route["metadata"]["name"].as_str().unwrap();
                let status = json!({ "status": { "parents": parents } });
                api.patch(&format!("{path}{name}/status"), &status).await.unwrap();
            }
        };
        tokio::select! { () = saying => {} _ = api.watch(path.trim_end_matches('/'), &sender) => {} }
    });
    tasks
}

fn to(world: &World, pool: Option<&str>) -> BackendOrder {
    let backend = pool.map(|name| Backend { namespace: world.name.to_owned(), name: name.to_owned() });
    BackendOrder { alias: "glm".to_owned(), backend, may_cross: false, note: format!("to {pool:?}") }
}

async fn rules(world: &World, name: &str) -> Vec<Value> {
    let route = world.api.get(&world.path(API, "httproutes", name)).await.unwrap();
    route["spec"]["rules"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_switch_replaces_the_one_backend_of_every_rule_and_nothing_else() {
    let world = World::new("route").await;
    for pool in ["day", "night"] {
        make_pool(&world, pool).await;
    }
    make_route(&world, "glm").await;
    let _gateway = gateway(&world, |_| (true, ""));
    let before = rules(&world, "glm").await;
    world.cluster.set_backend(1, &to(&world, Some("night"))).await.unwrap();
    let after = rules(&world, "glm").await;
    for (before, after) in before.iter().zip(&after) {
        let backends = after["backendRefs"].as_array().unwrap();
        assert_eq!(backends.len(), 1, "one pool a rule");
        assert_eq!(backends[0]["name"], "night");
        assert_eq!((&before["matches"], &before["timeouts"]), (&after["matches"], &after["timeouts"]));
    }
    let seen = world.cluster.backend("glm").await.unwrap().unwrap();
    assert_eq!(seen.backend, to(&world, Some("night")).backend);
    assert_eq!((seen.is_mixed, seen.generation), (false, Some(1)));
    assert_eq!(seen.note.as_deref(), Some("to Some(\"night\")"));
    // again, and to nowhere
    world.cluster.set_backend(1, &to(&world, Some("night"))).await.unwrap();
    world.cluster.set_backend(2, &to(&world, None)).await.unwrap();
    assert_eq!(world.cluster.backend("glm").await.unwrap().unwrap().backend, None);
    let stale = world.cluster.set_backend(1, &to(&world, Some("day"))).await.unwrap_err();
    assert_eq!(stale, Fault::StaleGeneration { highest: 2 });
    assert_eq!(world.cluster.backend("other").await.unwrap(), None);
}

#[tokio::test]
async fn what_somebody_else_changed_is_seen_as_it_is() {
    let world = World::new("route-mixed").await;
    make_pool(&world, "night").await;
    make_route(&world, "glm").await;
    let _gateway = gateway(&world, |_| (true, ""));
    world.cluster.set_backend(1, &to(&world, Some("night"))).await.unwrap();
    let mut changed = rules(&world, "glm").await;
    changed[1]["backendRefs"][0]["name"] = json!("day");
    let path = world.path(API, "httproutes", "glm");
    world.api.patch(&path, &json!({ "spec": { "rules": changed } })).await.unwrap();
    assert!(world.cluster.backend("glm").await.unwrap().unwrap().is_mixed);
}

#[tokio::test]
async fn a_route_that_the_gateway_refuses_goes_back_to_where_it_was() {
    let world = World::new("route-refused").await;
    for pool in ["day", "night"] {
        make_pool(&world, pool).await;
    }
    make_route(&world, "glm-a").await;
    make_route(&world, "glm-b").await;
    let _gateway = gateway(&world, |route| {
        let is_night = route["spec"]["rules"][0]["backendRefs"][0]["name"] == "night";
        let is_b = route["metadata"]["name"] == "glm-b";
        (!(is_night && is_b), "pool night has no picker")
    });
    let fault = world.cluster.set_backend(1, &to(&world, Some("night"))).await.unwrap_err();
    assert_eq!(fault.to_string(), "the gateway refuses the route glm-b: pool night has no picker");
    for name in ["glm-a", "glm-b"] {
        assert_eq!(rules(&world, name).await[0]["backendRefs"][0]["name"], "day", "{name}");
    }
}

#[tokio::test]
async fn a_route_that_no_gateway_confirms_goes_back_and_says_so() {
    let world = World::new("route-alone").await;
    make_pool(&world, "night").await;
    make_route(&world, "glm").await;
    let fault = world.cluster.set_backend_within(1, &to(&world, Some("night")), Duration::from_secs(1)).await;
    assert_eq!(fault, Err(Fault::RouteUnconfirmed { route: "glm".into(), seconds: 1 }));
    assert_eq!(rules(&world, "glm").await[0]["backendRefs"][0]["name"], "day");
}

#[tokio::test]
async fn a_pool_that_is_not_there_or_an_alias_without_a_route_changes_nothing() {
    let world = World::new("route-missing").await;
    let none = world.cluster.set_backend(1, &to(&world, None)).await.unwrap_err();
    assert_eq!(none.code(), "not_found");
    make_route(&world, "glm").await;
    let none = world.cluster.set_backend(1, &to(&world, Some("night"))).await.unwrap_err();
    assert_eq!(none.to_string(), "InferencePool route-missing/night is not there");
    assert_eq!(rules(&world, "glm").await[0]["backendRefs"][0]["name"], "day");
}

#[tokio::test]
async fn a_pool_in_another_namespace_is_refused_unless_it_is_allowed_and_granted() {
    let world = World::new("route-cross").await;
    namespace(&world.api, "route-cross-b").await;
    let pools = "/apis/inference.networking.k8s.io/v1/namespaces/route-cross-b/inferencepools";
    let pool = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": { "name": "night" },
        "spec": {
            "selector": { "matchLabels": { "model": "night" } }, "targetPorts": [{ "number": 8000 }],
            "endpointPickerRef": { "name": "epp", "port": { "number": 9002 } },
        },
    });
    world.api.create(pools, &pool).await.unwrap();
    make_route(&world, "glm").await;
    let _gateway = gateway(&world, |_| (true, ""));
    let backend = Some(Backend { namespace: "route-cross-b".to_owned(), name: "night".to_owned() });
    let order = |may_cross| BackendOrder { alias: "glm".into(), backend: backend.clone(), may_cross, note: "n".into() };
    for may_cross in [false, true] {
        let fault = world.cluster.set_backend(1, &order(may_cross)).await.unwrap_err();
        assert_eq!(fault.code(), "other_namespace", "not allowed, or not granted");
    }
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": { "name": "gate" },
        "spec": {
            "from": [{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "route-cross" }],
            "to": [{ "group": "inference.networking.k8s.io", "kind": "InferencePool" }],
        },
    });
    let grants = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/route-cross-b/referencegrants";
    world.api.create(grants, &grant).await.unwrap();
    assert_eq!(world.cluster.set_backend(1, &order(false)).await.unwrap_err().code(), "other_namespace");
    world.cluster.set_backend(1, &order(true)).await.unwrap();
    assert_eq!(world.cluster.backend("glm").await.unwrap().unwrap().backend, backend);
}
