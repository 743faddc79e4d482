//! Sites with one node of eight GPUs, and the request to place all their shifts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_config::Site;
use tidegate_core::{DeploymentName, ShiftName};
use tidegate_planner::desired::set_of;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Placement, Request, Seat, Situation, place};

use crate::site_of::site;

/// A node of eight GPUs of 288 GB in two NUMA nodes, with more of its spec.
pub(crate) fn node(more: &str) -> String {
    format!(
        "kind: Node\nmetadata: {{name: n}}\nspec: {{gpus: {{count: 8, product: B300, memory: 288GB}}, hostMemory: 2TB, numa: [{{node: 0, gpus: 0-3, cpus: 0-63}}, {{node: 1, gpus: 4-7, cpus: 64-127}}]{more}}}\n"
    )
}

/// A deployment with a model of its own: `tp` GPUs and more of its spec.
pub(crate) fn deployment(name: &str, tp: u32, more: &str) -> String {
    format!(
        "---\nkind: Model\nmetadata: {{name: m-{name}}}\nspec: {{engine: vllm, source: {{path: m/{name}}}}}\n---\nkind: Deployment\nmetadata: {{name: {name}}}\nspec: {{model: m-{name}, parallel: {{tp: {tp}}}, gpus: {{required: {tp}}}{more}}}\n"
    )
}

/// An alias of the deployment's name, present in the shifts named and absent in the others.
pub(crate) fn alias(name: &str, deployment: &str, present: &[&str], absent: &[&str]) -> String {
    let mut shifts: Vec<String> =
        present.iter().map(|shift| format!("{shift}: {{targets: [{{deployment: {deployment}}}]}}")).collect();
    shifts.extend(absent.iter().map(|shift| format!("{shift}: {{absent: {{}}}}")));
    format!("---\nkind: Alias\nmetadata: {{name: {name}}}\nspec: {{shifts: {{{}}}}}\n", shifts.join(", "))
}

/// A daily Schedule with more of its spec: `day` from 08:00, `night` from 22:00.
pub(crate) fn schedule(day: &[&str], night: &[&str], more: &str) -> String {
    format!(
        "---\nkind: Schedule\nmetadata: {{name: daily}}\nspec: {{shifts: [{{name: day, start: '08:00', deployments: [{}]}}, {{name: night, start: '22:00', deployments: [{}]}}]{more}}}\n",
        day.join(", "),
        night.join(", ")
    )
}

/// The model store that deployments with weights need.
pub(crate) fn fleet(documents: &str) -> Site {
    site(documents)
}

/// Everything of a site that is placed.
pub(crate) struct Board {
    pub(crate) hardware: Hardware,
    pub(crate) needs: BTreeMap<DeploymentName, Need>,
    pub(crate) situations: Vec<Situation>,
}

impl Board {
    /// All shifts of the site, by name.
    pub(crate) fn of(site: &Site) -> Self {
        let situation = |shift: &ShiftName| Situation {
            label: Arc::from(shift.as_str()),
            set: set_of(site, shift),
            blocked: BTreeMap::new(),
        };
        let situations = site.shifts().iter().map(situation).collect();
        Self { hardware: Hardware::of(site), needs: Need::all(site), situations }
    }

    /// One set on eight GPUs.
    pub(crate) fn one(names: &[(&str, u32)], more: &str) -> Self {
        let deployments: String = names.iter().map(|(name, tp)| deployment(name, *tp, "")).collect();
        let site = fleet(&format!("{}{deployments}", node(more)));
        let set: BTreeSet<DeploymentName> = names.iter().map(|(name, _)| DeploymentName::from(*name)).collect();
        let situation = Situation { label: Arc::from("set"), set, blocked: BTreeMap::new() };
        Self { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        static NONE: BTreeMap<tidegate_planner::placement::ReplicaKey, Seat> = BTreeMap::new();
        Request { hardware: &self.hardware, needs: &self.needs, situations: &self.situations, pinned: &NONE }
    }

    pub(crate) fn place(&self) -> Placement {
        place(self.request())
    }
}

/// `name indices` of every replica of a situation, in order.
pub(crate) fn seats(placement: &Placement, situation: usize) -> Vec<String> {
    let seats = placement.seats[situation].iter();
    seats.map(|(key, seat)| format!("{} {}", key.deployment, seat.to_string().trim_start_matches("n "))).collect()
}
