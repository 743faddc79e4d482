//! The Kubernetes API, as far as Tidegate uses it: replicas as Deployments and LeaderWorkerSets, what became of their
//! Pods, pools, HTTPRoutes, and the Lease of the leader.
//!
//! ```text
//! ReplicaOrder ──render──> apply (fenced) ──> Deployment | LeaderWorkerSet ──> Pods
//!                                                                               │ watch, listed anew now and then
//!      ReplicaSeen  <── judge (pure) <────────────── View <─────────────────────┘
//! ```
//!
//! Everything that is written is fenced twice: by the generation kept in the namespace ([`Cluster::fence`]), which a
//! late controller finds higher than its own, and by the `resourceVersion` read just before, which loses a race.
//! No type of the client library leaves this crate.

/// Does something again that lost a race, a few times. A macro, because what an async closure borrows cannot be said to
/// be `Send`.
macro_rules! racing {
    ($attempt:block) => {{
        let mut tries = 1_u32;
        loop {
            let done: Result<_, $crate::fault::Fault> = async { $attempt }.await;
            match done {
                Err(fault) if fault.is_race() && tries < $crate::write::RACES_MAX => {
                    tracing::debug!(%fault, "lost a race");
                    tries += 1;
                }
                done => break done,
            }
        }
    }};
}

mod access;
mod fault;
#[cfg(test)]
mod hostile;
mod lease;
mod names;
mod order;
mod pods;
mod pool;
mod render;
mod route;
mod seen;
mod trouble;
mod view;
mod write;

pub use access::{Access, Cluster, ClusterOptions};
pub use fault::Fault;
pub use lease::{Leadership, LeaseClocks, LeaseRecord, LeaseStore, Term, campaign};
pub use names::*;
pub use order::*;
pub use pool::{Pool, PoolOrder};
pub use route::{Backend, BackendOrder, RouteSeen};
pub use seen::{Phase, PodSeen, ReplicaSeen};
pub use trouble::{Trouble, TroubleCode};
pub use view::{RESYNC, View};
