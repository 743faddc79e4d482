//! HTTPRoutes: which pool a route's requests go to.
//!
//! A route belongs to an alias by its label [`ALIAS`]. Every rule of it has one backend at most: two pools in one rule
//! break several gateways (one picker then serves both, or an empty pool answers 503). `rules` is one field to the API
//! server, so its owner owns all of it: what was read is written back with other backends, forced, since whoever wrote
//! the route owned it before. Whoever goes on applying the route has to leave `spec.rules` out, or ignore differences in
//! it.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams, Patch};
use kube::core::ApiResource;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::access::{Cluster, call, find};
use crate::fault::{Fault, bounded};
use crate::names::{ALIAS, GENERATION, ROUTE};
use crate::pods::{annotation, generation_of, label};
use crate::pool::{POOL_GROUP, POOL_KIND};
use crate::write::{as_owner, not_later, resource};

/// How long a gateway may take to say that it took a route.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks at what a gateway says.
const CONFIRM_LOOK: Duration = Duration::from_millis(200);
/// Routes of one alias at most.
const ROUTES_MAX: usize = 16;

const KIND: &str = "HTTPRoute";
const API: &str = "gateway.networking.k8s.io/v1";

fn route_resource() -> ApiResource {
    resource(API, KIND, "httproutes")
}

fn grant_resource() -> ApiResource {
    resource("gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "referencegrants")
}

/// A pool, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Where an alias's routes are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendOrder {
    /// The alias.
    pub alias: String,
    /// The pool; `None`: nowhere, and the gateway answers 500 by itself.
    pub backend: Option<Backend>,
    /// Whether it may be in another namespace than the route, where a ReferenceGrant allows it.
    pub may_cross: bool,
    /// What is kept with the route, to be read back.
    pub note: String,
}

/// Where an alias's routes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSeen {
    /// The pool that all its rules go to; `None`: nowhere.
    pub backend: Option<Backend>,
    /// Whether rules differ: somebody else changed them.
    pub is_mixed: bool,
    /// The generation that wrote it last; `None`: none of ours.
    pub generation: Option<u64>,
    /// What was kept with it.
    pub note: Option<String>,
}

impl Cluster {
    /// Sends an alias's routes to one pool, and waits until their gateways say that they do so. When one refuses, the
    /// routes go back to where they were.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::NotFound`] when the alias has no route or the pool is not there.
    pub async fn set_backend(&self, generation: u64, order: &BackendOrder) -> Result<(), Fault> {
        self.set_backend_within(generation, order, CONFIRM_WITHIN).await
    }

    /// As [`Cluster::set_backend`], with another time for the gateways.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn set_backend_within(
        &self,
        generation: u64,
        order: &BackendOrder,
        within: Duration,
    ) -> Result<(), Fault> {
        self.fence(generation).await?;
        let routes = self.routes(&order.alias).await?;
        if routes.is_empty() {
            return Err(Fault::NotFound { what: format!("{KIND} with the label {ALIAS}={}", order.alias).into() });
        }
        if let Some(backend) = &order.backend {
            self.check_backend(order, backend).await?;
        }
        let mut done = Vec::new();
        for route in &routes {
            let written = self.write_backend(generation, route, order).await;
            let confirmed = match written {
                Ok(version) => {
                    done.push(route);
                    self.confirm(&order.alias, route, version, within).await
                }
                Err(fault) => Err(fault),
            };
            if let Err(fault) = confirmed {
                for route in done {
                    self.undo(generation, route).await;
                }
                return Err(fault);
            }
        }
        Ok(())
    }

    /// Where an alias's routes go; `None`: it has none.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn backend(&self, alias: &str) -> Result<Option<RouteSeen>, Fault> {
        let routes = self.routes(alias).await?;
        let Some(first) = routes.first() else { return Ok(None) };
        let mut backends =
            routes.iter().flat_map(|route| rules(route).iter().map(|rule| backend_of(rule, &route.metadata)));
        let backend = backends.next().unwrap_or(Ok(None));
        let is_mixed = backend.is_err() || backends.any(|other| other != backend);
        Ok(Some(RouteSeen {
            backend: backend.unwrap_or(None),
            is_mixed,
            generation: generation_of(&first.metadata),
            note: annotation(&first.metadata, ROUTE).map(str::to_owned),
        }))
    }

    /// Aliases that have routes here; none where the cluster has no HTTPRoutes.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn routed_aliases(&self) -> Result<BTreeSet<String>, Fault> {
        let params = ListParams::default().labels(ALIAS);
        match call(KIND, self.route_api().list(&params)).await {
            Ok(routes) => {
                Ok(routes.items.iter().filter_map(|route| label(&route.metadata, ALIAS)).map(str::to_owned).collect())
            }
            Err(Fault::NotInstalled { .. }) => Ok(BTreeSet::new()),
            Err(fault) => Err(fault),
        }
    }

    fn route_api(&self) -> Api<DynamicObject> {
        self.dynamic(self.namespace(), &route_resource())
    }

    async fn routes(&self, alias: &str) -> Result<Vec<DynamicObject>, Fault> {
        let params = ListParams::default().labels(&format!("{ALIAS}={alias}"));
        let mut routes = call(KIND, self.route_api().list(&params)).await?.items;
        if routes.len() > ROUTES_MAX {
            return Err(Fault::Order(format!("alias {alias} has more than {ROUTES_MAX} routes").into()));
        }
        routes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Ok(routes)
    }

    async fn check_backend(&self, order: &BackendOrder, backend: &Backend) -> Result<(), Fault> {
        if backend.namespace != self.namespace() {
            let refuse = || Fault::OtherNamespace {
                route: order.alias.as_str().into(),
                namespace: backend.namespace.as_str().into(),
            };
            if !order.may_cross || !self.is_granted(backend).await? {
                return Err(refuse());
            }
        }
        match self.pool(&backend.namespace, &backend.name).await? {
            Some(_) => Ok(()),
            None => Err(Fault::NotFound { what: format!("{POOL_KIND} {}/{}", backend.namespace, backend.name).into() }),
        }
    }

    /// Whether the pool's namespace lets our routes in.
    async fn is_granted(&self, backend: &Backend) -> Result<bool, Fault> {
        let grants = self.dynamic(&backend.namespace, &grant_resource());
        let grants = call("ReferenceGrant", grants.list(&ListParams::default())).await?.items;
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let list = |grant: &DynamicObject, key: &str| {
            grant.data.pointer(key).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        Ok(grants.iter().any(|grant| {
            let from = list(grant, "/spec/from").iter().any(|from| {
                text(from, "group").as_deref() == Some("gateway.networking.k8s.io")
                    && text(from, "kind").as_deref() == Some(KIND)
                    && text(from, "namespace").as_deref() == Some(self.namespace())
            });
            let to = list(grant, "/spec/to").iter().any(|to| {
                text(to, "group").as_deref() == Some(POOL_GROUP)
                    && text(to, "kind").as_deref() == Some(POOL_KIND)
                    && text(to, "name").is_none_or(|name| name == backend.name)
            });
            from && to
        }))
    }

    /// Gives back the `metadata.generation` that a gateway has to have seen.
    async fn write_backend(&self, generation: u64, route: &DynamicObject, order: &BackendOrder) -> Result<i64, Fault> {
        let name = route.metadata.name.clone().unwrap_or_default();
        let what = format!("{KIND} {name}");
        racing!({
            let found = call(&what, self.route_api().get(&name)).await?;
            not_later(&found.metadata, generation)?;
            let rules =
                rules(&found).iter().map(|rule| with_backend(rule, order.backend.as_ref(), self.namespace())).collect();
            self.write_rules(generation, &found, rules, Some(&order.note)).await
        })
    }

    async fn write_rules(
        &self,
        generation: u64,
        found: &DynamicObject,
        rules: Vec<Value>,
        note: Option<&str>,
    ) -> Result<i64, Fault> {
        let name = found.metadata.name.clone().unwrap_or_default();
        let mut annotations = json!({ GENERATION: generation.to_string() });
        if let Some(note) = note {
            annotations[ROUTE] = json!(note);
        }
        let body = json!({
            "apiVersion": API, "kind": KIND,
            "metadata": {
                "name": name, "namespace": self.namespace(), "uid": found.metadata.uid,
                "resourceVersion": found.metadata.resource_version, "annotations": annotations,
            },
            "spec": { "rules": rules },
        });
        let (routes, params, patch) = (self.route_api(), as_owner().force(), Patch::Apply(&body));
        let written = call(&format!("{KIND} {name}"), routes.patch(&name, &params, &patch)).await?;
        Ok(written.metadata.generation.unwrap_or_default())
    }

    /// Waits until every parent of a route says that it took this version of it.
    async fn confirm(&self, alias: &str, route: &DynamicObject, version: i64, within: Duration) -> Result<(), Fault> {
        let name = route.metadata.name.clone().unwrap_or_default();
        let deadline = Instant::now() + within;
        loop {
            let what = format!("{KIND} {name}");
            if let Some(found) = find(&what, self.route_api().get(&name)).await? {
                match said(&found, version) {
                    Said::Taken => return Ok(()),
                    Said::Refused(said) => {
                        return Err(Fault::RouteRefused { route: name.into(), said: bounded(&said) });
                    }
                    Said::Nothing => {}
                }
            }
            if Instant::now() >= deadline {
                tracing::warn!(alias, route = name, "not confirmed");
                return Err(Fault::RouteUnconfirmed { route: name.into(), seconds: within.as_secs() });
            }
            sleep(CONFIRM_LOOK).await;
        }
    }

    async fn undo(&self, generation: u64, before: &DynamicObject) {
        let name = before.metadata.name.clone().unwrap_or_default();
        let what = format!("{KIND} {name}");
        let undone = racing!({
            let found = call(&what, self.route_api().get(&name)).await?;
            not_later(&found.metadata, generation)?;
            let note = annotation(&before.metadata, ROUTE);
            self.write_rules(generation, &found, rules(before).to_vec(), note).await
        });
        if let Err(fault) = undone {
            tracing::error!(route = name, %fault, "route is not set back");
        }
    }
}

fn rules(route: &DynamicObject) -> &[Value] {
    route.data.pointer("/spec/rules").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The rule with one backend, or none; all else as it was.
fn with_backend(rule: &Value, backend: Option<&Backend>, own_namespace: &str) -> Value {
    let mut rule = rule.clone();
    let mut refs = Vec::new();
    if let Some(backend) = backend {
        let mut one = json!({ "group": POOL_GROUP, "kind": POOL_KIND, "name": backend.name });
        if backend.namespace != own_namespace {
            one["namespace"] = json!(backend.namespace);
        }
        refs.push(one);
    }
    if let Some(members) = rule.as_object_mut() {
        members.insert("backendRefs".to_owned(), Value::Array(refs));
    }
    rule
}

/// The one pool of a rule; the error: several backends, or one that is no pool.
fn backend_of(rule: &Value, meta: &kube::api::ObjectMeta) -> Result<Option<Backend>, ()> {
    let refs = rule.get("backendRefs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text = |one: &Value, key: &str| one.get(key).and_then(Value::as_str).map(str::to_owned);
    match refs {
        [] => Ok(None),
        [one] if text(one, "kind").as_deref() == Some(POOL_KIND) => {
            let namespace = text(one, "namespace").or_else(|| meta.namespace.clone()).unwrap_or_default();
            Ok(Some(Backend { namespace, name: text(one, "name").unwrap_or_default() }))
        }
        _ => Err(()),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Taken,
    Refused(String),
    Nothing,
}

/// What a route's parents say of this version of it, all together.
fn said(route: &DynamicObject, version: i64) -> Said {
    let array = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let parents = array(route.data.pointer("/status/parents"));
    let wanted = array(route.data.pointer("/spec/parentRefs"));
    let mut is_taken = !parents.is_empty() && parents.len() >= wanted.len();
    for parent in &parents {
        let conditions = array(parent.get("conditions"));
        for name in ["Accepted", "ResolvedRefs"] {
            let condition = conditions.iter().find(|one| one.get("type").and_then(Value::as_str) == Some(name));
            let seen = condition.and_then(|one| one.get("observedGeneration")).and_then(Value::as_i64);
            let status = condition.and_then(|one| one.get("status")).and_then(Value::as_str);
            match (seen, status) {
                (Some(seen), Some("True")) if seen >= version => {}
                (Some(seen), Some("False")) if seen >= version => {
                    let message = condition.and_then(|one| one.get("message")).and_then(Value::as_str).unwrap_or(name);
                    return Said::Refused(message.to_owned());
                }
                _ => is_taken = false,
            }
        }
    }
    if is_taken { Said::Taken } else { Said::Nothing }
}
