//! A real Kubernetes control plane, an API client that knows no types, and a node that a test plays.

mod api;
mod crds;
mod kubelet;

pub use api::KubeApi;
pub use crds::{crds, install_crds};
pub use kubelet::{Conduct, Failure, Kubelet, NodePlan};
