//! What is seen of a replica: its object, its Pods and their nodes, taken together. Pure.
//!
//! | the object wants it | its Pods | phase |
//! | --- | --- | --- |
//! | up | none, or not all run | `Pending`, with what is in the way |
//! | up | all run, the leader has an address | `Running` |
//! | up | one ended, was started again, is being deleted, or was replaced | `Broken` |
//! | down | some are there, or its controller does not know yet | `Stopping` |
//! | down | none | `Ended` |

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;

use crate::order::ReplicaOrder;
use crate::pods::{Object, PodFacts};
use crate::render::Wanted;
use crate::trouble::{Trouble, TroubleCode};

/// A replica, as the API server tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaSeen {
    /// What it was made from.
    pub order: ReplicaOrder,
    /// The generation that wrote its object last.
    pub generation: u64,
    /// What it does.
    pub phase: Phase,
    /// What else is wrong, while it runs all the same.
    pub notice: Option<Trouble>,
    /// Its Pods.
    pub pods: Vec<PodSeen>,
    /// Whether it is recorded which Pods are its own.
    pub has_own_pods: bool,
    /// When its object was made.
    pub created_at: Option<Timestamp>,
    /// When its Pods had a node: the pull of the image begins.
    pub scheduled_at: Option<Timestamp>,
    /// When its containers ran: the load begins.
    pub started_at: Option<Timestamp>,
}

/// A Pod of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// Whether it answers for the replica.
    pub is_leader: bool,
    /// Whether its readiness probe succeeds.
    pub is_ready: bool,
    /// The pool that it is in.
    pub pool: Option<String>,
}

/// What a replica does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its processes do not run yet.
    Pending {
        /// What is in the way; `None`: nothing that anybody told.
        trouble: Option<Trouble>,
    },
    /// Its processes run.
    Running {
        /// Where the leader listens.
        address: SocketAddr,
    },
    /// It is wanted, and what was started is not there any more: it has to be stopped.
    Broken {
        /// What happened.
        trouble: Trouble,
    },
    /// It is on its way out.
    Stopping,
    /// Nothing of it is left but its record.
    Ended {
        /// Why, if that was recorded.
        cause: Option<Arc<str>>,
    },
}

pub(crate) fn judge(object: &Object, pods: &[&PodFacts], lost: &BTreeSet<String>) -> ReplicaSeen {
    let notice = pods.iter().find_map(|pod| on_lost_node(pod, lost));
    ReplicaSeen {
        order: object.order.clone(),
        generation: object.generation,
        phase: phase(object, pods, notice.as_ref()),
        notice,
        pods: pods.iter().map(|pod| seen(pod)).collect(),
        has_own_pods: object.marks.pods.is_some(),
        created_at: object.created_at,
        scheduled_at: latest(object, pods, |pod| pod.scheduled_at),
        started_at: latest(object, pods, |pod| pod.started_at),
    }
}

/// When the last of its Pods reached something, once all have.
fn latest(object: &Object, pods: &[&PodFacts], at: fn(&PodFacts) -> Option<Timestamp>) -> Option<Timestamp> {
    if pods.len() < object.order.pods() {
        return None;
    }
    pods.iter().map(|pod| at(pod)).collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn seen(pod: &PodFacts) -> PodSeen {
    PodSeen {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        node: pod.node.clone(),
        is_leader: pod.is_leader,
        is_ready: pod.is_ready,
        pool: pod.pool.clone(),
    }
}

fn on_lost_node(pod: &PodFacts, lost: &BTreeSet<String>) -> Option<Trouble> {
    let node = pod.node.as_ref().filter(|node| lost.contains(*node))?;
    Some(Trouble::new(TroubleCode::NodeLost, &format!("node {node} does not answer")))
}

fn phase(object: &Object, pods: &[&PodFacts], notice: Option<&Trouble>) -> Phase {
    if object.wanted == Wanted::Down {
        let cause = || object.marks.ended.as_deref().map(Arc::from);
        return if pods.is_empty() && object.is_settled { Phase::Ended { cause: cause() } } else { Phase::Stopping };
    }
    if let Some(trouble) = broken(object, pods) {
        return Phase::Broken { trouble };
    }
    let leader = pods.iter().find(|pod| pod.is_leader);
    let address = leader.and_then(|pod| pod.ip.as_ref()?.parse::<IpAddr>().ok());
    match address {
        Some(ip) if pods.len() == object.order.pods() && pods.iter().all(|pod| pod.is_running) => {
            Phase::Running { address: SocketAddr::new(ip, object.order.port) }
        }
        _ => {
            let of_pods = pods.iter().find_map(|pod| pod.trouble.as_ref());
            Phase::Pending { trouble: of_pods.or(object.trouble.as_ref()).or(notice).cloned() }
        }
    }
}

fn broken(object: &Object, pods: &[&PodFacts]) -> Option<Trouble> {
    let ended = |pod: &&&PodFacts| pod.is_over || pod.trouble.as_ref().is_some_and(|trouble| trouble.code.is_final());
    if let Some(pod) = pods.iter().find(ended) {
        let other = || Trouble::new(TroubleCode::Exited, "its container ended");
        return Some(pod.trouble.clone().unwrap_or_else(other));
    }
    let own: BTreeSet<&str> = object.marks.pods.as_ref()?.split(',').collect();
    let there: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    let text = "a Pod that it was started with is gone, and another took its place";
    (!own.is_subset(&there)).then(|| Trouble::new(TroubleCode::Replaced, text))
}
