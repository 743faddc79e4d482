//! The way to an API server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DynamicObject};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Client, Config, Resource};

use crate::fault::{Fault, bounded};

/// To a connected socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// To an answer; a watch has bounds of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the API server and our credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The Pod's own ServiceAccount.
    InCluster,
    /// A kubeconfig file.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context in it; `None`: its current one.
        context: Option<String>,
    },
}

/// What a connection is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// The namespace of replicas, pools and the Lease.
    pub namespace: String,
}

/// A cluster, as it is reached.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: Arc<str>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Reads the way there. The server is not asked yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Fault::Access`].
    pub async fn connect(access: &Access, options: &ClusterOptions) -> Result<Self, Fault> {
        let access_fault = |why: &dyn fmt::Display| Fault::Access { why: bounded(&why.to_string()) };
        let mut config = match access {
            Access::InCluster => Config::incluster().map_err(|why| access_fault(&why))?,
            Access::Kubeconfig { path, context } => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|why| access_fault(&why))?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|why| access_fault(&why))?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.write_timeout = Some(CALL_TIMEOUT);
        // retries are the controller's: it knows what is still wanted
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|why| access_fault(&why))?;
        Ok(Self { client, namespace: options.namespace.as_str().into() })
    }

    /// The namespace of replicas, pools and the Lease.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn dynamic(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, kind)
    }
}

/// Waits for an answer, but not for ever.
pub(crate) async fn call<T>(what: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Fault> {
    match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| Fault::of(what, &error)),
        Err(_) => Err(Fault::Unreachable { why: format!("no answer within {} s", CALL_TIMEOUT.as_secs()).into() }),
    }
}

/// As [`call`], and an object that is not there is `None`.
pub(crate) async fn find<T>(what: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<Option<T>, Fault> {
    match call(what, answer).await {
        Ok(found) => Ok(Some(found)),
        Err(Fault::NotFound { .. }) => Ok(None),
        Err(fault) => Err(fault),
    }
}
