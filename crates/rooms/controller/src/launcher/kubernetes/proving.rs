//! The proof that nothing is left of an instance, on its nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_node::{InstanceId, Proof, ProvenBy};
use tidegate_planner::placement::Part;

use super::order::Note;
use super::{Known, Kubernetes, of_node, proof};
use crate::launcher::LaunchFault;
use crate::launcher::processes::Member;

impl Kubernetes {
    /// Whether a person said so of all its GPUs.
    pub(super) fn is_released(&self, known: &Known) -> bool {
        let released = self.released.lock();
        let gpus = known.seat.gpus();
        !gpus.is_empty() && gpus.iter().all(|gpu| released.contains(&(Arc::clone(&gpu.node), gpu.index)))
    }

    /// The second half of the proof: no Pod is left, and now the agents say what is left on their nodes.
    pub(super) async fn prove_on_nodes(
        &self,
        generation: u64,
        instance: &InstanceId,
        known: Option<Known>,
    ) -> Result<Proof, LaunchFault> {
        let members = self.members.lock().clone();
        let nodes: Vec<(Arc<str>, Member)> = match &known {
            Some(known) => {
                let of_part = |part: &Part| Ok((Arc::clone(&part.node), self.member(&part.node)?));
                known.seat.parts.iter().map(of_part).collect::<Result<_, LaunchFault>>()?
            }
            // nobody knows where it was: it may have been anywhere
            None => members.into_iter().collect(),
        };
        let known = known.unwrap_or_else(|| Known::new(Note::default(), false));
        let mut by = ProvenBy::Processes;
        for (name, member) in nodes {
            let gpus: BTreeSet<u32> =
                known.seat.parts.iter().filter(|part| part.node == name).flat_map(Part::gpus).collect();
            let baseline = known.note.baseline.get(&name).cloned().unwrap_or_default();
            match proof::prove(&*member.node, generation, instance, &gpus, &baseline).await {
                Ok(Proof::Free { by: how }) => by = proof::weaker(by, how),
                Ok(Proof::NotFree { why, since }) => {
                    return Ok(Proof::NotFree { why: format!("node {name}: {why}"), since });
                }
                Err(error) => return Err(of_node(&name, &error)),
            }
        }
        Ok(Proof::Free { by })
    }
}
