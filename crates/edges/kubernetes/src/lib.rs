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

mod access;
mod fault;
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
