//! A plan by GPU: what is on it when.

use jiff::Timestamp;
use tidegate_core::DeploymentName;

use super::{End, Phase, Plan};
use crate::hardware::GpuId;
use crate::placement::{ReplicaKey, Seat};

/// One GPU over the time of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The GPU.
    pub gpu: GpuId,
    /// What is on it, by deployment and time.
    pub bars: Vec<Bar>,
}

/// A deployment on a GPU for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The deployment.
    pub deployment: DeploymentName,
    /// What it does there.
    pub kind: BarKind,
    /// From.
    pub from: Timestamp,
    /// Until.
    pub until: Timestamp,
}

/// What a deployment does on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BarKind {
    /// It starts and loads.
    Loads,
    /// It warms up and is proven.
    Warms,
    /// It is proven and waits for its alias.
    Waits,
    /// It serves.
    Serves,
    /// Its last streams end.
    Drains,
    /// It stops, and its memory is proven free.
    Stops,
    /// It sleeps.
    Sleeps,
}

impl BarKind {
    /// As people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loads => "loads",
            Self::Warms => "warms",
            Self::Waits => "waits",
            Self::Serves => "serves",
            Self::Drains => "drains",
            Self::Stops => "stops",
            Self::Sleeps => "sleeps",
        }
    }
}

/// The lanes of all GPUs of a plan, between two instants.
#[must_use]
pub fn lanes(plan: &Plan, from: Timestamp, until: Timestamp) -> Vec<Lane> {
    let lane = |gpu: GpuId| {
        let mut bars: Vec<Bar> = Vec::new();
        let here = |seats: &[(ReplicaKey, Seat)]| seats.iter().any(|(_, seat)| seat.gpus().contains(&gpu));
        for (key, _) in plan.stays.iter().filter(|(_, seat)| seat.gpus().contains(&gpu)) {
            bars.push(Bar { deployment: key.deployment.clone(), kind: BarKind::Serves, from, until });
        }
        for old in plan.departures.iter().filter(|old| here(&old.seats)) {
            let end = match old.end {
                End::Stop => (BarKind::Stops, old.drained_by, old.gone_by),
                End::Sleep { level: _ } => (BarKind::Sleeps, old.gone_by, until),
            };
            let parts = [(BarKind::Serves, from, old.drains_at), (BarKind::Drains, old.drains_at, old.drained_by), end];
            bars.extend(parts.map(|(kind, from, until)| Bar { deployment: old.deployment.clone(), kind, from, until }));
        }
        for new in plan.changes.iter().filter(|new| here(&new.seats)) {
            let start = |phase| new.steps.iter().find(|step| step.phase == phase).map(|step| step.from);
            let loads_at = start(Phase::Deploy).or_else(|| start(Phase::Load)).unwrap_or(new.ready_at);
            let warms_at = start(Phase::Warm).unwrap_or(new.ready_at);
            let serves_at = new.ready_at.max(plan.at);
            let parts = [
                (BarKind::Loads, loads_at, warms_at),
                (BarKind::Warms, warms_at, new.ready_at),
                (BarKind::Waits, new.ready_at, serves_at),
                (BarKind::Serves, serves_at, until),
            ];
            bars.extend(parts.map(|(kind, from, until)| Bar { deployment: new.deployment.clone(), kind, from, until }));
        }
        let clip = |bar: Bar| Bar { from: bar.from.max(from), until: bar.until.min(until), ..bar };
        let bars = bars.into_iter().map(clip).filter(|bar| bar.from < bar.until).collect();
        Lane { gpu, bars }
    };
    plan.gpus().into_iter().map(lane).collect()
}
