//! What is wrong with a Pod, by name: read from its conditions, its containers and its reasons.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

use crate::fault::bounded;

/// What is wrong. Closed: each has a stable name and says what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TroubleCode {
    /// No node takes it.
    Unschedulable,
    /// Its image cannot be had.
    ImagePull,
    /// Its container cannot be made.
    ContainerConfig,
    /// A volume cannot be mounted.
    Mount,
    /// The kernel's memory killer ended it.
    OomKilled,
    /// It ended, and was started again in place.
    CrashLoop,
    /// It ended.
    Exited,
    /// The kubelet could not align its resources with the node's topology.
    TopologyRefused,
    /// The kubelet, a webhook or a policy refused it.
    AdmissionRefused,
    /// A quota of the namespace is used up.
    QuotaRefused,
    /// The node was short of something and ended it.
    Evicted,
    /// A Pod of higher priority took its place.
    Preempted,
    /// Its node does not answer.
    NodeLost,
    /// Its node was shut down.
    NodeShutdown,
    /// Somebody deleted it.
    Deleted,
    /// Its Pod was replaced by another one, which is not it.
    Replaced,
    /// It failed for a reason that is not known here.
    Failed,
}

impl TroubleCode {
    /// Every code.
    pub const ALL: [Self; 17] = [
        Self::Unschedulable,
        Self::ImagePull,
        Self::ContainerConfig,
        Self::Mount,
        Self::OomKilled,
        Self::CrashLoop,
        Self::Exited,
        Self::TopologyRefused,
        Self::AdmissionRefused,
        Self::QuotaRefused,
        Self::Evicted,
        Self::Preempted,
        Self::NodeLost,
        Self::NodeShutdown,
        Self::Deleted,
        Self::Replaced,
        Self::Failed,
    ];

    /// Its stable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unschedulable => "unschedulable",
            Self::ImagePull => "image_pull",
            Self::ContainerConfig => "container_config",
            Self::Mount => "mount",
            Self::OomKilled => "oom_killed",
            Self::CrashLoop => "crash_loop",
            Self::Exited => "exited",
            Self::TopologyRefused => "topology_refused",
            Self::AdmissionRefused => "admission_refused",
            Self::QuotaRefused => "quota_refused",
            Self::Evicted => "evicted",
            Self::Preempted => "preempted",
            Self::NodeLost => "node_lost",
            Self::NodeShutdown => "node_shutdown",
            Self::Deleted => "deleted",
            Self::Replaced => "replaced",
            Self::Failed => "failed",
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Unschedulable => "compare the node's free GPUs, CPUs, memory and taints with what the Pod asks for",
            Self::ImagePull => "look whether the image is in the mirror and the node may pull it",
            Self::ContainerConfig => "compare the engine's command and the runtime class with the node's",
            Self::Mount => "look whether the model cache is at that path on the node",
            Self::OomKilled => "raise hostMemory of the deployment, or lower what its engine keeps in host memory",
            Self::CrashLoop | Self::Exited => "read the container's log: its first error says why",
            Self::TopologyRefused => {
                "ask for GPUs and CPUs that fit one NUMA node or the whole machine, or relax the Topology Manager's policy"
            }
            Self::AdmissionRefused => "allow the Pod in the policy that the message names",
            Self::QuotaRefused => "raise the ResourceQuota of the namespace or take something away",
            Self::Evicted => "find out what filled the node's memory or disk",
            Self::Preempted => "give the engines' namespace a higher PriorityClass, or the other Pod another node",
            Self::NodeLost => "look at the node: its GPUs are not used until its agent proves them free",
            Self::NodeShutdown => "drain a node before it is shut down",
            Self::Deleted => "find out in the audit log who deletes the Pods of Tidegate",
            Self::Replaced => "nothing, it is ended and started anew",
            Self::Failed => "read the Pod's status",
        }
    }

    /// Whether the Pod will not get well by itself: it is ended, and what it was on is proven free.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Unschedulable
            | Self::ImagePull
            | Self::ContainerConfig
            | Self::Mount
            | Self::AdmissionRefused
            | Self::QuotaRefused => false,
            Self::OomKilled
            | Self::CrashLoop
            | Self::Exited
            | Self::TopologyRefused
            | Self::Evicted
            | Self::Preempted
            | Self::NodeLost
            | Self::NodeShutdown
            | Self::Deleted
            | Self::Replaced
            | Self::Failed => true,
        }
    }
}

/// What is wrong with a Pod, or with an object that cannot make its Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub code: TroubleCode,
    /// What was said about it.
    pub said: Arc<str>,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.said)
    }
}

impl Trouble {
    pub(crate) fn new(code: TroubleCode, said: &str) -> Self {
        Self { code, said: bounded(said) }
    }
}

/// What is wrong with a Pod; `None`: nothing, as far as its status says.
pub(crate) fn of_pod(pod: &Pod) -> Option<Trouble> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(of_deletion(pod));
    }
    let status = pod.status.as_ref()?;
    let (reason, message) =
        (status.reason.as_deref().unwrap_or_default(), status.message.as_deref().unwrap_or_default());
    let is_failed = status.phase.as_deref() == Some("Failed");
    let by_reason = match reason {
        "TopologyAffinityError" => Some(TroubleCode::TopologyRefused),
        // since 1.22 the kubelet gives its managers' errors this reason, and their name in the message
        "UnexpectedAdmissionError" if names_topology(message) => Some(TroubleCode::TopologyRefused),
        "Evicted" => Some(TroubleCode::Evicted),
        "Preempting" | "Preempted" => Some(TroubleCode::Preempted),
        "NodeLost" => Some(TroubleCode::NodeLost),
        "NodeShutdown" | "Shutdown" | "Terminated" => Some(TroubleCode::NodeShutdown),
        "NodeAffinity" | "OutOfcpu" | "OutOfmemory" | "UnexpectedAdmissionError" => Some(TroubleCode::AdmissionRefused),
        _ if reason.starts_with("OutOf") => Some(TroubleCode::AdmissionRefused),
        _ => None,
    };
    let by_reason = by_reason.map(|code| Trouble::new(code, if message.is_empty() { reason } else { message }));
    let containers = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    // what is final comes first, whoever says it
    let all = by_reason.into_iter().chain(containers.filter_map(of_container));
    if let Some(trouble) = all.min_by_key(|trouble| !trouble.code.is_final()) {
        return Some(trouble);
    }
    if is_failed {
        return Some(Trouble::new(TroubleCode::Failed, if message.is_empty() { reason } else { message }));
    }
    of_conditions(pod)
}

fn names_topology(message: &str) -> bool {
    ["Topology Affinity", "TopologyAffinity", "Topology Manager", "Resources cannot be allocated"]
        .iter()
        .any(|sign| message.contains(sign))
}

fn of_deletion(pod: &Pod) -> Trouble {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let disruption =
        conditions.filter(|condition| condition.type_ == "DisruptionTarget").find(|one| one.status == "True");
    let reason = disruption.and_then(|condition| condition.reason.as_deref());
    let said = disruption.and_then(|condition| condition.message.as_deref()).unwrap_or("its Pod is being deleted");
    let code = match reason {
        Some("DeletionByTaintManager" | "DeletionByPodGC") => TroubleCode::NodeLost,
        Some("PreemptionByScheduler") => TroubleCode::Preempted,
        Some("EvictionByEvictionAPI" | "TerminationByKubelet") => TroubleCode::Evicted,
        _ => TroubleCode::Deleted,
    };
    Trouble::new(code, said)
}

fn of_container(status: &ContainerStatus) -> Option<Trouble> {
    let state = status.state.as_ref();
    let ended = |state: &Option<ContainerState>| state.as_ref().and_then(|state| state.terminated.clone());
    // one that ran and ended, whether or not it was started again: what runs now has proven nothing
    let terminated =
        ended(&status.state).or_else(|| if status.restart_count > 0 { ended(&status.last_state) } else { None });
    if let Some(terminated) = terminated {
        let reason = terminated.reason.as_deref().unwrap_or_default();
        let message = terminated.message.as_deref().map(str::trim).unwrap_or_default();
        let how =
            terminated.signal.map_or_else(|| format!("exit code {}", terminated.exit_code), |n| format!("signal {n}"));
        let said = [reason, &how, message].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let code = match reason {
            "OOMKilled" => TroubleCode::OomKilled,
            _ if status.restart_count > 0 => TroubleCode::CrashLoop,
            _ => TroubleCode::Exited,
        };
        return Some(Trouble::new(code, &said));
    }
    if status.restart_count > 0 {
        return Some(Trouble::new(TroubleCode::CrashLoop, "its container was started again"));
    }
    let waiting = state?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let code = match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => TroubleCode::ImagePull,
        "CrashLoopBackOff" => TroubleCode::CrashLoop,
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "PostStartHookError" => {
            TroubleCode::ContainerConfig
        }
        _ => return None,
    };
    let message = waiting.message.as_deref().unwrap_or_default();
    Some(Trouble::new(code, &if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }))
}

fn of_conditions(pod: &Pod) -> Option<Trouble> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    let reason = scheduled.reason.as_deref().unwrap_or_default();
    let said = scheduled.message.as_deref().unwrap_or(reason);
    (reason == "Unschedulable").then(|| Trouble::new(TroubleCode::Unschedulable, said))
}

/// Why a Deployment cannot make its Pod; `None`: it says nothing against it.
pub(crate) fn of_deployment(deployment: &Deployment) -> Option<Trouble> {
    let mut conditions = deployment.status.as_ref()?.conditions.iter().flatten();
    let failing = conditions.find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")?;
    Some(of_refusal(failing.message.as_deref().unwrap_or_default()))
}

/// What a refused creation of a Pod means.
pub(crate) fn of_refusal(said: &str) -> Trouble {
    let code = if said.contains("exceeded quota") || said.contains("failed quota") {
        TroubleCode::QuotaRefused
    } else {
        TroubleCode::AdmissionRefused
    };
    Trouble::new(code, said)
}

/// What an event about a Pod that does not get on says; `None`: nothing that its status would not say better.
pub(crate) fn of_event(reason: &str, message: &str) -> Option<Trouble> {
    let code = match reason {
        "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => TroubleCode::Mount,
        "FailedScheduling" => TroubleCode::Unschedulable,
        "FailedCreatePodSandBox" => TroubleCode::ContainerConfig,
        "FailedCreate" => return Some(of_refusal(message)),
        _ => return None,
    };
    Some(Trouble::new(code, message))
}
