//! Routes as HTTPRoutes: a gateway in front of the pools of Kubernetes sends an alias's requests to one pool.
//!
//! One pool a rule: a rule with two breaks several gateways, so a weight cannot be split here and is refused. Which
//! replicas of a deployment serve is not said by the route but by the pool's label ([`crate::launcher::Exposure`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_kubernetes::{Backend, BackendOrder, Cluster, Fault, RouteSeen};

use super::{RouteActuator, RouteError, RouteRow, RouteTarget};

/// What is fronted by HTTPRoutes.
#[derive(Clone, Debug, Default)]
pub struct HttpRouteSettings {
    /// Aliases that have HTTPRoutes; the others are none of its business.
    pub aliases: BTreeSet<AliasName>,
    /// Namespaces of deployments that are not in the cluster's own.
    pub namespaces: BTreeMap<DeploymentName, String>,
    /// Whether the gateway takes pools of other namespaces (with a ReferenceGrant there).
    pub may_cross: bool,
}

/// Carries out changes of routes on HTTPRoutes.
#[derive(Clone, Debug)]
pub struct HttpRoutes {
    cluster: Cluster,
    settings: HttpRouteSettings,
}

impl HttpRoutes {
    /// On the routes of this cluster's namespace.
    #[must_use]
    pub const fn new(cluster: Cluster, settings: HttpRouteSettings) -> Self {
        Self { cluster, settings }
    }

    fn backend(&self, deployment: &DeploymentName) -> Backend {
        let namespace =
            self.settings.namespaces.get(deployment).map_or_else(|| self.cluster.namespace(), String::as_str);
        Backend { namespace: namespace.to_owned(), name: deployment.to_string() }
    }

    fn order(&self, row: &RouteRow) -> Result<BackendOrder, RouteError> {
        let deployments: BTreeSet<&DeploymentName> =
            row.targets.iter().filter(|target| target.weight > 0).map(|target| &target.deployment).collect();
        let mut deployments = deployments.into_iter();
        let (deployment, more) = (deployments.next(), deployments.next());
        if let (Some(one), Some(other)) = (deployment, more) {
            let text = format!(
                "alias {} goes to {one} and {other}: an HTTPRoute rule has one pool; split weights in Tidegate's own gate",
                row.alias
            );
            return Err(RouteError::Refused(text.into()));
        }
        let note = serde_json::to_string(row).map_err(|error| RouteError::Refused(error.to_string().into()))?;
        Ok(BackendOrder {
            alias: row.alias.to_string(),
            backend: deployment.map(|deployment| self.backend(deployment)),
            may_cross: self.settings.may_cross,
            note,
        })
    }

    /// The row as it was written, with the targets that are really there.
    fn row(&self, alias: &AliasName, seen: &RouteSeen) -> Option<RouteRow> {
        let kept: Option<RouteRow> = seen.note.as_deref().and_then(|note| serde_json::from_str(note).ok());
        let generation = seen.generation?;
        if let Some(kept) = &kept
            && !seen.is_mixed
            && self.order(kept).is_ok_and(|order| order.backend == seen.backend)
        {
            return Some(RouteRow { generation, ..kept.clone() });
        }
        let target = |backend: &Backend| RouteTarget {
            deployment: DeploymentName::from(backend.name.as_str()),
            weight: 100,
            revision: None,
        };
        Some(RouteRow {
            alias: alias.clone(),
            targets: seen.backend.iter().map(target).collect(),
            shift: kept.map_or_else(|| ShiftName::from(tidegate_config::Site::ALWAYS), |kept| kept.shift),
            until: None,
            generation,
        })
    }
}

fn of_cluster(fault: &Fault) -> RouteError {
    let text = || -> Arc<str> { format!("{}: {fault}; {}", fault.code(), fault.hint()).into() };
    match fault {
        Fault::StaleGeneration { highest } => RouteError::Stale { highest: *highest },
        Fault::RouteUnconfirmed { .. } => RouteError::Away(text()),
        fault if fault.is_away() || fault.is_race() => RouteError::Away(text()),
        _ => RouteError::Refused(text()),
    }
}

#[async_trait]
impl RouteActuator for HttpRoutes {
    fn name(&self) -> &str {
        "httproute"
    }

    async fn set(&self, row: &RouteRow) -> Result<(), RouteError> {
        if !self.settings.aliases.contains(&row.alias) {
            return Ok(());
        }
        let order = self.order(row)?;
        self.cluster.set_backend(row.generation, &order).await.map_err(|fault| of_cluster(&fault))?;
        // read back: between the gateway's word and now somebody else may have written
        let seen = self.cluster.backend(&order.alias).await.map_err(|fault| of_cluster(&fault))?;
        match seen {
            Some(seen) if !seen.is_mixed && seen.backend == order.backend => Ok(()),
            _ => Err(RouteError::Away(format!("somebody else writes the routes of alias {}", row.alias).into())),
        }
    }

    async fn read(&self, alias: &AliasName) -> Result<Option<RouteRow>, RouteError> {
        if !self.settings.aliases.contains(alias) {
            return Ok(None);
        }
        let seen = self.cluster.backend(alias.as_str()).await.map_err(|fault| of_cluster(&fault))?;
        Ok(seen.and_then(|seen| self.row(alias, &seen)))
    }
}
