//! Sixth room: deployment to replica, booked.

use std::sync::Arc;

use tidegate_core::{Case, Fault};
use tidegate_routing::Lease;
use tidegate_routing::pick::least_loaded;

use crate::account::Tail;
use crate::catalogue::DeploymentView;
use crate::route::Route;
use tidegate_engine::backend::Backend;

/// A booked replica.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) deployment: Arc<DeploymentView>,
    pub(crate) backend: Arc<Backend>,
    pub(crate) lease: Lease,
}

/// Picks and books a replica that was not tried yet.
///
/// # Errors
/// 503 when none is left.
pub(crate) fn pick(deployment: Arc<DeploymentView>, route: &mut Route, tail: &Tail) -> Result<Picked, Fault> {
    let now = tail.core.now();
    loop {
        let tried = route.tried(&deployment);
        let replicas = deployment.backends.iter().map(|backend| &**backend.replica());
        let Some(index) = least_loaded(replicas, tried, now, tail.core.random()) else {
            route.exhausted(&deployment);
            return Err(Fault::new(Case::ModelUnavailable).param("model"));
        };
        route.try_replica(&deployment, index);
        let backend = &deployment.backends[index];
        // It may have gone out of the pick in between: then another one is tried.
        if let Some(lease) = backend.replica().book(now) {
            route.spend();
            return Ok(Picked { backend: Arc::clone(backend), lease, deployment });
        }
    }
}
