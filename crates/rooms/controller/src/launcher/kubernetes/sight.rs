//! What is seen of replicas: what the API server's objects and Pods say, and what an agent knows of GPUs that a kubelet
//! chose.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::DeploymentName;
use tidegate_kubernetes::{Phase, ReplicaSeen, Trouble, TroubleCode};
use tidegate_node::InstanceId;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};
use tokio::time::Instant;

use super::order::Note;
use super::{Known, Kubernetes, order, proof, with_hint};
use crate::launcher::{BootMark, Seen, SeenState};

/// How often events of a Pod that does not start, and GPUs that a kubelet chose, are asked for.
const ASK_EVERY: Duration = Duration::from_secs(5);

impl Kubernetes {
    fn seat_of(&self, instance: &InstanceId, seen: &ReplicaSeen) -> Seat {
        let mut known = self.known.lock();
        let known = known.entry(instance.clone()).or_insert_with(|| {
            let note: Note = serde_json::from_value(seen.order.note.clone()).unwrap_or_default();
            let is_plugin = seen.order.sharing == tidegate_kubernetes::Sharing::Plugin;
            Known::new(note, is_plugin)
        });
        known.seat.clone()
    }

    pub(super) async fn to_seen(&self, replica: &ReplicaSeen) -> Option<Seen> {
        let instance = InstanceId::new(&replica.order.instance).ok()?;
        let seat = self.seat_of(&instance, replica);
        let state = match &replica.phase {
            Phase::Pending { trouble } => {
                SeenState::Pending { why: self.pending(&instance, replica, trouble.as_ref()).await }
            }
            Phase::Running { address } => match self.misaligned(&instance, replica).await {
                Some(trouble) => SeenState::Ended { cause: with_hint(&trouble) },
                None => SeenState::Running { address: *address },
            },
            Phase::Broken { trouble } => SeenState::Ended { cause: with_hint(trouble) },
            Phase::Stopping => SeenState::Stopping,
            Phase::Ended { cause } => {
                SeenState::Ended { cause: cause.clone().unwrap_or_else(|| "ended: it was stopped".into()) }
            }
        };
        let mark = |phase: &str, at: Option<jiff::Timestamp>| at.map(|at| BootMark { phase: phase.into(), at });
        let boot = [mark("schedule", replica.created_at), mark("image_pull", replica.scheduled_at)];
        let boot = boot.into_iter().chain([mark("load", replica.started_at)]).flatten().collect();
        Some(Seen {
            key: ReplicaKey {
                deployment: DeploymentName::from(replica.order.deployment.as_str()),
                index: replica.order.index,
            },
            revision: replica.order.revision,
            generation: replica.order.generation,
            seat: self.known.lock().get(&instance).map_or(seat, |known| known.seat.clone()),
            instance,
            state,
            started_at: replica.created_at,
            boot,
        })
    }

    /// What a Pod waits for. When its status does not say, an event may.
    async fn pending(&self, instance: &InstanceId, replica: &ReplicaSeen, trouble: Option<&Trouble>) -> Arc<str> {
        if let Some(trouble) = trouble {
            return with_hint(trouble);
        }
        if self.is_due(instance)
            && let Some(pod) = replica.pods.first()
            && let Ok(event) = self.cluster.events_of(&pod.uid).await
            && let Some(known) = self.known.lock().get_mut(instance)
        {
            known.event = event;
        }
        let event = self.known.lock().get(instance).and_then(|known| known.event.clone());
        match event {
            Some(event) => with_hint(&event),
            None if replica.pods.is_empty() => "scheduling: it has no Pod yet".into(),
            None if replica.scheduled_at.is_none() => "scheduling: its Pod waits for its node".into(),
            None => "image_pull: its container is being made".into(),
        }
    }

    /// Whether it is time to ask again about an instance.
    fn is_due(&self, instance: &InstanceId) -> bool {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(instance) else { return false };
        let is_due = known.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if is_due {
            known.asked = Some(Instant::now());
        }
        is_due
    }

    /// Reads back which GPUs a kubelet chose: they are booked from then on. A set that no placement would have chosen is
    /// a fault.
    async fn misaligned(&self, instance: &InstanceId, replica: &ReplicaSeen) -> Option<Trouble> {
        let (seat, is_plugin, is_known) = {
            let known = self.known.lock();
            let known = known.get(instance)?;
            (known.seat.clone(), known.is_plugin, !known.chosen.is_empty())
        };
        if is_plugin && !is_known && self.is_due(instance) {
            for part in seat.parts.iter().filter(|part| part.gpus().next().is_some()) {
                let Ok(member) = self.member(&part.node) else { continue };
                let Ok(facts) = member.node.facts().await else { continue };
                let chosen = proof::gpus_of(instance, &facts);
                if chosen.len() == part.gpus().count() {
                    self.book(instance, part, chosen);
                }
            }
        }
        let hardware = is_plugin.then(|| Hardware::of(&self.site()))?;
        let chosen = self.known.lock().get(instance).map(|known| known.chosen.clone())?;
        let (node, bad) = chosen.into_iter().find(|(node, gpus)| !order::is_aligned(&hardware, node, gpus))?;
        let said: Vec<String> = bad.iter().map(ToString::to_string).collect();
        let text = format!("the kubelet of {node} gave {} the GPUs {}", replica.order.instance, said.join(","));
        Some(Trouble { code: TroubleCode::TopologyRefused, said: text.into() })
    }

    fn book(&self, instance: &InstanceId, part: &Part, chosen: BTreeSet<u32>) {
        let mut known = self.known.lock();
        let Some(known) = known.get_mut(instance) else { return };
        if let Some(own) = known.seat.parts.iter_mut().find(|own| own.node == part.node) {
            own.groups = order::groups(&part.groups, &chosen);
        }
        known.chosen.insert(Arc::clone(&part.node), chosen);
    }

    /// Records which Pods are its own, as soon as they run.
    pub(super) async fn record(&self, replica: &ReplicaSeen) {
        let generation = self.generation.load(Ordering::Acquire);
        let is_due = matches!(replica.phase, Phase::Running { .. }) && !replica.has_own_pods && generation > 0;
        if is_due {
            let uids: Vec<&str> = replica.pods.iter().map(|pod| pod.uid.as_str()).collect();
            if let Err(fault) = self.cluster.record_pods(generation, &replica.order.instance, &uids).await {
                tracing::warn!(instance = replica.order.instance, %fault, hint = fault.hint(), "its Pods are not recorded");
            }
        }
    }
}
