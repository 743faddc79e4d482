//! Writes, each fenced: by the highest generation of the namespace, and by the version that was read just before.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::access::{Cluster, call, find};
use crate::fault::Fault;
use crate::names::{FENCE, GENERATION, INSTANCE, MANAGED_BY, MANAGER, MODEL, label_value, object_name};
use crate::order::ReplicaOrder;
use crate::pods::{Object, generation_of, label};
use crate::render::{GROUP_API, GROUP_KIND, Marks, Wanted, render};
use crate::trouble::{self, Trouble};

/// Tries of a write that lost a race.
pub(crate) const RACES_MAX: u32 = 5;
/// How long the owner of Pods may take to hear that none is wanted.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at it.
const SETTLE_LOOK: Duration = Duration::from_millis(50);
/// The label by which a LeaderWorkerSet's StatefulSets name it.
const GROUP_NAME: &str = "leaderworkerset.sigs.k8s.io/name";
/// Events of one Pod that are read.
const EVENTS_MAX: u32 = 50;

/// How a LeaderWorkerSet is asked for.
pub(crate) fn group_resource() -> ApiResource {
    resource(GROUP_API, GROUP_KIND, "leaderworkersets")
}

pub(crate) fn resource(api_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Applies exactly these fields, as their owner. Not forced: what another manager has is a named fault.
pub(crate) fn as_owner() -> PatchParams {
    PatchParams::apply(MANAGER)
}

/// That what is there was not written by a later controller.
pub(crate) fn not_later(meta: &kube::api::ObjectMeta, generation: u64) -> Result<(), Fault> {
    match generation_of(meta) {
        Some(highest) if highest > generation => Err(Fault::StaleGeneration { highest }),
        _ => Ok(()),
    }
}

impl Cluster {
    /// Raises the namespace's generation to ours, or finds that a later controller was here.
    ///
    /// Everything that is written asks here first. What a controller wrote that was held up between asking and writing
    /// carries its old generation, and the later one sees it.
    ///
    /// # Errors
    /// [`Fault::StaleGeneration`], or why it is unknown.
    pub async fn fence(&self, generation: u64) -> Result<(), Fault> {
        let maps: Api<ConfigMap> = self.api();
        let what = format!("ConfigMap {FENCE}");
        racing!({
            let Some(mut map) = find(&what, maps.get(FENCE)).await? else {
                let map: ConfigMap = from_json(json!({
                    "metadata": { "name": FENCE, "labels": { MANAGED_BY: MANAGER } },
                    "data": { "generation": generation.to_string() },
                }))?;
                return call(&what, maps.create(&by_manager(), &map)).await.map(drop);
            };
            let text = map.data.as_ref().and_then(|data| data.get("generation"));
            let highest: u64 = text
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| Fault::Foreign { what: what.as_str().into(), why: "it holds no generation".into() })?;
            if highest > generation {
                return Err(Fault::StaleGeneration { highest });
            }
            if highest < generation {
                map.data = Some(BTreeMap::from([("generation".to_owned(), generation.to_string())]));
                // with the resourceVersion read: who comes between wins, and is looked at again
                call(&what, maps.replace(FENCE, &by_manager(), &map)).await?;
            }
            Ok(())
        })
    }

    /// The highest generation that was seen in the namespace; 0: none yet.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn highest(&self) -> Result<u64, Fault> {
        let what = format!("ConfigMap {FENCE}");
        find(&what, self.api::<ConfigMap>().get(FENCE)).await?.map_or(Ok(0), |map| generation_in(&map))
    }

    /// Starts a replica. One that is there already stays as it is, whatever the order says.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn start(&self, generation: u64, order: &ReplicaOrder) -> Result<(), Fault> {
        order.check()?;
        self.fence(generation).await?;
        if let Some(found) = self.object(order.is_group(), &order.object_name()).await? {
            let object = found?;
            return if object.generation > generation {
                Err(Fault::StaleGeneration { highest: object.generation })
            } else {
                Ok(())
            };
        }
        let body = render(order, self.namespace(), generation, Wanted::Up, &Marks::default())?;
        self.apply(order.is_group(), &order.object_name(), &body).await
    }

    /// Ends a replica: its object wants none any more, and its Pods have `patience` until the last signal. What was
    /// recorded of it stays. One that is not there is fine.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn stop(
        &self,
        generation: u64,
        instance: &str,
        patience: Duration,
        cause: Option<&str>,
    ) -> Result<(), Fault> {
        self.fence(generation).await?;
        racing!({
            let Some(object) = self.replica(instance).await? else { return Ok(()) };
            if object.wanted == Wanted::Down {
                return Ok(());
            }
            let mut marks = object.marks.clone();
            if marks.ended.is_none() {
                marks.ended = cause.map(str::to_owned);
            }
            self.rewrite(generation, &object, Wanted::Down, &marks).await
        })?;
        self.end_pods(instance, patience).await
    }

    /// Records which Pods an instance was started with: others that take their place are not it.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn record_pods(&self, generation: u64, instance: &str, uids: &[&str]) -> Result<(), Fault> {
        self.fence(generation).await?;
        racing!({
            let Some(object) = self.replica(instance).await? else { return Ok(()) };
            if object.wanted == Wanted::Down || object.marks.pods.is_some() {
                return Ok(());
            }
            let marks = Marks { pods: Some(uids.join(",")), ..object.marks.clone() };
            self.rewrite(generation, &object, Wanted::Up, &marks).await
        })
    }

    /// Takes an ended replica's record away. One that is not there is fine.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::Order`] while it is wanted or a Pod of it is there.
    pub async fn forget(&self, generation: u64, instance: &str) -> Result<(), Fault> {
        self.fence(generation).await?;
        let Some(object) = self.replica(instance).await? else { return Ok(()) };
        if object.generation > generation {
            return Err(Fault::StaleGeneration { highest: object.generation });
        }
        if object.wanted == Wanted::Up || !self.pods_of(instance).await?.is_empty() {
            return Err(Fault::Order(
                format!("instance {instance} is not forgotten while it may run: stop it first").into(),
            ));
        }
        let exactly = Preconditions { uid: Some(object.uid), resource_version: Some(object.resource_version) };
        let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::background() };
        let (name, what) = (object_name(instance), format!("object of {instance}"));
        if object.order.is_group() {
            find(&what, self.groups().delete(&name, &params)).await.map(drop)
        } else {
            find(&what, self.api::<Deployment>().delete(&name, &params)).await.map(drop)
        }
    }

    /// Puts the Pod that answers for a replica into a pool, or takes it out (`None`). A Pod that is gone is in none.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::NotFound`] when there is no such Pod to be put in.
    pub async fn expose(&self, generation: u64, instance: &str, pod: &str, pool: Option<&str>) -> Result<(), Fault> {
        self.fence(generation).await?;
        let pods: Api<Pod> = self.api();
        let what = format!("Pod {pod}");
        racing!({
            let Some(found) = find(&what, pods.get(pod)).await? else {
                return if pool.is_none() { Ok(()) } else { Err(Fault::NotFound { what: what.as_str().into() }) };
            };
            not_later(&found.metadata, generation)?;
            if label(&found.metadata, INSTANCE) != Some(&label_value(instance)) {
                return Err(Fault::Foreign {
                    what: what.as_str().into(),
                    why: format!("it is not of {instance}").into(),
                });
            }
            if label(&found.metadata, MODEL) == pool {
                return Ok(());
            }
            let labels = pool.map_or_else(|| json!({}), |pool| json!({ MODEL: pool }));
            let body = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": pod, "uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version,
                    "labels": labels, "annotations": { GENERATION: generation.to_string() },
                },
            });
            call(&what, pods.patch(pod, &as_owner(), &Patch::Apply(&body))).await.map(drop)
        })
    }

    /// What is in the way of a Pod that does not start, by its latest event.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn events_of(&self, uid: &str) -> Result<Option<Trouble>, Fault> {
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(EVENTS_MAX);
        let mut events = call("events", self.api::<Event>().list(&params)).await?.items;
        let at = |event: &Event| {
            event.last_timestamp.as_ref().map(|time| time.0).or_else(|| event.event_time.as_ref().map(|time| time.0))
        };
        events.sort_by_key(|event| std::cmp::Reverse(at(event)));
        Ok(events.iter().find_map(|event| {
            trouble::of_event(event.reason.as_deref().unwrap_or_default(), event.message.as_deref().unwrap_or_default())
        }))
    }

    fn groups(&self) -> Api<DynamicObject> {
        self.dynamic(self.namespace(), &group_resource())
    }

    /// The object of an instance, of whichever kind.
    async fn replica(&self, instance: &str) -> Result<Option<Object>, Fault> {
        let name = object_name(instance);
        for is_group in [false, true] {
            if let Some(found) = self.object(is_group, &name).await? {
                return found.map(Some);
            }
        }
        Ok(None)
    }

    /// `None`: not there. The inner error: there, and not ours.
    async fn object(&self, is_group: bool, name: &str) -> Result<Option<Result<Object, Fault>>, Fault> {
        if !is_group {
            let found = find(&format!("Deployment {name}"), self.api::<Deployment>().get(name)).await?;
            return Ok(found.map(|found| Object::of_deployment(&found)));
        }
        match find(&format!("{GROUP_KIND} {name}"), self.groups().get(name)).await {
            Ok(found) => Ok(found.map(|found| Object::of_group(&found))),
            Err(Fault::NotInstalled { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn rewrite(&self, generation: u64, object: &Object, wanted: Wanted, marks: &Marks) -> Result<(), Fault> {
        if object.generation > generation {
            return Err(Fault::StaleGeneration { highest: object.generation });
        }
        let mut body = render(&object.order, self.namespace(), generation, wanted, marks)?;
        body["metadata"]["resourceVersion"] = json!(object.resource_version);
        body["metadata"]["uid"] = json!(object.uid);
        self.apply(object.order.is_group(), &object.order.object_name(), &body).await
    }

    async fn apply(&self, is_group: bool, name: &str, body: &Value) -> Result<(), Fault> {
        if is_group {
            let what = format!("{GROUP_KIND} {name}");
            call(&what, self.groups().patch(name, &as_owner(), &Patch::Apply(body))).await.map(drop)
        } else {
            let what = format!("Deployment {name}");
            call(&what, self.api::<Deployment>().patch(name, &as_owner(), &Patch::Apply(body))).await.map(drop)
        }
    }

    async fn pods_of(&self, instance: &str) -> Result<Vec<Pod>, Fault> {
        let params = ListParams::default().labels(&format!("{INSTANCE}={}", label_value(instance)));
        Ok(call("Pods", self.api::<Pod>().list(&params)).await?.items)
    }

    /// What is left of an ended instance, or may still be made of it; `None`: nothing, for good. Asks the server, which
    /// no view can answer for.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn left_of(&self, instance: &str) -> Result<Option<String>, Fault> {
        // in this order: who could make a Pod has let go before the Pods are looked at
        if self.replica(instance).await?.is_some_and(|object| object.wanted == Wanted::Up) {
            return Ok(Some("it is wanted: stop it first".to_owned()));
        }
        if let Some(maker) = self.maker_of(instance).await? {
            return Ok(Some(maker));
        }
        let pods = self.pods_of(instance).await?;
        Ok(pods.first().map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
            format!("its Pod {} is still there, on {node}", pod.name_any())
        }))
    }

    /// Whoever makes Pods of an instance and does not know yet that none is wanted any more.
    async fn maker_of(&self, instance: &str) -> Result<Option<String>, Fault> {
        let params = ListParams::default().labels(&format!("{INSTANCE}={}", label_value(instance)));
        let sets = call("ReplicaSets", self.api::<ReplicaSet>().list(&params)).await?.items;
        let busy = sets.iter().find(|set| {
            let wants = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) > 0;
            wants || set.status.as_ref().and_then(|status| status.observed_generation) < set.metadata.generation
        });
        if let Some(set) = busy {
            return Ok(Some(format!("its ReplicaSet {} has not let go of it", set.name_any())));
        }
        let params = ListParams::default().labels(&format!("{GROUP_NAME}={}", object_name(instance)));
        let sets = call("StatefulSets", self.api::<StatefulSet>().list(&params)).await?.items;
        let busy = sets.iter().find(|set| set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) > 0);
        Ok(busy.map(|set| format!("its StatefulSet {} has not let go of it", set.name_any())))
    }

    /// Ends Pods in our time: their owner gives them its own, and does not end those that have failed. It is waited for
    /// a little first, since it would replace a Pod that it still wants.
    async fn end_pods(&self, instance: &str, patience: Duration) -> Result<(), Fault> {
        let deadline = Instant::now() + SETTLE_WITHIN;
        while self.maker_of(instance).await?.is_some() && Instant::now() < deadline {
            sleep(SETTLE_LOOK).await;
        }
        // Never zero: that takes the Pod out of the API server before anything has ended it on its node.
        let seconds = u32::try_from(patience.as_secs()).unwrap_or(u32::MAX).max(1);
        for pod in self.pods_of(instance).await? {
            let left = pod.metadata.deletion_grace_period_seconds;
            if left.is_some_and(|left| left <= i64::from(seconds)) {
                continue;
            }
            let exactly = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams {
                grace_period_seconds: Some(seconds),
                preconditions: Some(exactly),
                ..DeleteParams::default()
            };
            let name = pod.name_any();
            match find(&format!("Pod {name}"), self.api::<Pod>().delete(&name, &params)).await {
                // another Pod of that name, or none: this one is gone
                Ok(_) | Err(Fault::Changed { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }
}

fn generation_in(map: &ConfigMap) -> Result<u64, Fault> {
    let text = map.data.as_ref().and_then(|data| data.get("generation"));
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Fault::Foreign {
        what: format!("ConfigMap {FENCE}").into(),
        why: "it holds no generation".into(),
    })
}

fn by_manager() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn from_json<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_json::from_value(value).map_err(|error| Fault::Order(error.to_string().into()))
}
