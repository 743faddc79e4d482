//! InferencePools: the Pods of one deployment that have proven themselves.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::access::{Cluster, call, find};
use crate::fault::Fault;
use crate::names::{DEPLOYMENT, GENERATION, MANAGED_BY, MANAGER, MODEL};
use crate::write::{as_owner, not_later, resource};

/// API group of InferencePools.
pub(crate) const POOL_GROUP: &str = "inference.networking.k8s.io";
/// Their kind.
pub(crate) const POOL_KIND: &str = "InferencePool";

pub(crate) fn pool_resource() -> ApiResource {
    resource("inference.networking.k8s.io/v1", POOL_KIND, "inferencepools")
}

/// A pool to be made: it selects the Pods of its deployment that carry the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOrder {
    /// Its name: the deployment's.
    pub name: String,
    /// The engines' port.
    pub port: u16,
    /// The picker's Service.
    pub picker: String,
    /// The picker's port.
    pub picker_port: u16,
}

/// A pool as it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// What it selects.
    pub selector: Vec<(String, String)>,
    /// Ports of its endpoints.
    pub ports: Vec<u16>,
}

impl Pool {
    /// Whether a Pod that carries our label for this pool is a member.
    #[must_use]
    pub fn selects(&self, labels: &[(&str, &str)]) -> bool {
        self.selector.iter().all(|(name, value)| labels.contains(&(name.as_str(), value.as_str())))
    }
}

impl Cluster {
    /// Makes a pool, or sets back what is ours of it.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::NotInstalled`] where the cluster has no pools.
    pub async fn apply_pool(&self, generation: u64, order: &PoolOrder) -> Result<(), Fault> {
        self.fence(generation).await?;
        let pools = self.dynamic(self.namespace(), &pool_resource());
        let what = format!("{POOL_KIND} {}", order.name);
        racing!({
            let mut metadata = json!({
                "name": order.name, "namespace": self.namespace(),
                "labels": { MANAGED_BY: MANAGER, DEPLOYMENT: order.name },
                "annotations": { GENERATION: generation.to_string() },
            });
            if let Some(found) = find(&what, pools.get(&order.name)).await? {
                not_later(&found.metadata, generation)?;
                metadata["resourceVersion"] = json!(found.metadata.resource_version);
            }
            let body = json!({
                "apiVersion": format!("{POOL_GROUP}/v1"), "kind": POOL_KIND, "metadata": metadata,
                "spec": {
                    "selector": { "matchLabels": { MODEL: order.name } },
                    "targetPorts": [{ "number": order.port }],
                    "endpointPickerRef": { "name": order.picker, "port": { "number": order.picker_port } },
                },
            });
            call(&what, pools.patch(&order.name, &as_owner(), &Patch::Apply(&body))).await.map(drop)
        })
    }

    /// A pool; `None`: there is none of that name.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn pool(&self, namespace: &str, name: &str) -> Result<Option<Pool>, Fault> {
        let pools = self.dynamic(namespace, &pool_resource());
        let Some(found) = find(&format!("{POOL_KIND} {name}"), pools.get(name)).await? else { return Ok(None) };
        let labels = found.data.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
        let selector = labels.into_iter().flatten();
        let selector = selector.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
        let ports = found.data.pointer("/spec/targetPorts").and_then(Value::as_array);
        let number = |port: &Value| u16::try_from(port.get("number")?.as_u64()?).ok();
        let ports = ports.into_iter().flatten().filter_map(number).collect();
        Ok(Some(Pool { name: name.to_owned(), selector, ports }))
    }

    /// Names of the Pods that a pool has.
    ///
    /// # Errors
    /// [`Fault`]; [`Fault::NotFound`] without such a pool.
    pub async fn pool_members(&self, name: &str) -> Result<Vec<String>, Fault> {
        let missing = || Fault::NotFound { what: format!("{POOL_KIND} {name}").into() };
        let pool = self.pool(self.namespace(), name).await?.ok_or_else(missing)?;
        let selector: Vec<String> = pool.selector.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let params = ListParams::default().labels(&selector.join(","));
        let pods = call("Pods", self.api::<Pod>().list(&params)).await?.items;
        let is_alive = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        Ok(pods.iter().filter(is_alive).map(ResourceExt::name_any).collect())
    }
}
