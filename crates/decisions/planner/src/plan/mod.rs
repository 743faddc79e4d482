//! The plan of one switch: what happens when, why, and what it costs the callers. It leaves no choice to who carries it
//! out.
//!
//! ```text
//! old seats, new seats ─ units ─▶ who stays, goes, comes; which aliases move
//!                         problem ─▶ strategy::best ─▶ strategy, order, gaps
//!                         times ─▶ every step with its start, computed back from the hour
//!                         hold ─▶ what a failure holds back        lanes ─▶ the same by GPU
//! ```

mod hold;
mod lanes;
mod pairs;
mod problem;
mod times;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_config::Site;
use tidegate_config::site::{Atomicity, Lead, Schedule, Target};
use tidegate_core::{AliasName, DeploymentName, ModelName, ShiftName};

use crate::hardware::{GpuId, Hardware};
use crate::need::Need;
use crate::placement::{ReplicaKey, Seat, Seats};
use crate::strategy::Strategy;

pub use hold::{Held, held};
pub use lanes::{Bar, BarKind, Lane, lanes};
pub use times::{Phase, Phases, Step};

/// One side of a switch.
#[derive(Clone, Copy, Debug)]
pub struct Side<'s> {
    /// The shift.
    pub shift: &'s ShiftName,
    /// Where its replicas are.
    pub seats: &'s Seats,
    /// The revision of each deployment.
    pub revisions: &'s BTreeMap<DeploymentName, u64>,
    /// Where aliases go, as it is observed (one that is not listed is absent); `None`: as the documents say of the shift.
    pub routes: Option<&'s BTreeMap<AliasName, Vec<Target>>>,
}

/// The rules of the Schedule whose shift starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Latest starts before the hour, until phases are measured.
    pub lead: Lead,
    /// How long a drain waits.
    pub drain_timeout: Duration,
    /// Alias by alias, or all or none.
    pub atomicity: Atomicity,
    /// Longest gap.
    pub gap_allowed: Duration,
}

/// What a Schedule says that says nothing.
impl Default for Rules {
    fn default() -> Self {
        let minutes = Duration::from_mins;
        let lead = Lead {
            prefetch: minutes(30),
            verify: minutes(20),
            deploy: minutes(15),
            load: minutes(10),
            ready: minutes(5),
        };
        Self { lead, drain_timeout: minutes(5), atomicity: Atomicity::PerAlias, gap_allowed: Duration::ZERO }
    }
}

impl Rules {
    /// The rules of a Schedule.
    #[must_use]
    pub const fn of(schedule: &Schedule) -> Self {
        Self {
            lead: schedule.lead,
            drain_timeout: schedule.drain_timeout,
            atomicity: schedule.atomicity,
            gap_allowed: schedule.gap_allowed,
        }
    }
}

/// What has been measured and observed, as far as it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Expected phases of a start and a stop: long enough that a plan made of them is not late.
    pub phases: BTreeMap<DeploymentName, Phases>,
    /// Bytes of each GPU that a sleeping engine of the deployment keeps.
    pub residue: BTreeMap<DeploymentName, u64>,
    /// Bytes of a model that a node's cache lacks; no entry: not known.
    pub missing: BTreeMap<(Arc<str>, ModelName), u64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The documents.
    pub site: &'a Site,
    /// The nodes.
    pub hardware: &'a Hardware,
    /// What each deployment needs.
    pub needs: &'a BTreeMap<DeploymentName, Need>,
    /// What is loaded.
    pub from: Side<'a>,
    /// What shall be loaded.
    pub to: Side<'a>,
    /// The hour.
    pub at: Timestamp,
    /// The rules.
    pub rules: Rules,
    /// Measurements.
    pub known: &'a Known,
}

/// What happens at a switch, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The shift that ends.
    pub from: ShiftName,
    /// The shift that begins.
    pub to: ShiftName,
    /// The hour.
    pub at: Timestamp,
    /// The rules it was made by.
    pub rules: Rules,
    /// Deployments that come, in the order in which they are started.
    pub changes: Vec<Change>,
    /// Deployments that go.
    pub departures: Vec<Departure>,
    /// Deployments that stay, with their seats: nothing happens to them.
    #[serde(with = "pairs")]
    pub stays: Seats,
    /// Aliases whose deployments change.
    pub routes: Vec<Route>,
    /// What is fetched, by node.
    pub fetches: Vec<Fetch>,
}

/// A deployment that comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its revision.
    pub revision: u64,
    /// Its new seats.
    pub seats: Vec<(ReplicaKey, Seat)>,
    /// How it takes over.
    pub strategy: Strategy,
    /// The fullest of its GPUs if it loaded beside all who go, when memory is known: bytes booked and there.
    pub beside_old: Option<(GpuId, u64, u64)>,
    /// Deployments that have to be gone before it loads.
    pub displaces: Vec<DeploymentName>,
    /// The deployment whose proof it waits for.
    pub after: Option<DeploymentName>,
    /// Its steps, in order.
    pub steps: Vec<Step>,
    /// When it is proven.
    pub ready_at: Timestamp,
}

/// A deployment that goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its revision.
    pub revision: u64,
    /// Its seats.
    pub seats: Vec<(ReplicaKey, Seat)>,
    /// When it gets no more requests.
    pub drains_at: Timestamp,
    /// When its last stream ends at the latest.
    pub drained_by: Timestamp,
    /// When its memory is proven free, or it sleeps.
    pub gone_by: Timestamp,
    /// What becomes of it.
    pub end: End,
}

/// What becomes of an old deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is stopped, and its memory proven free.
    Stop,
    /// It sleeps: level 1 keeps its weights in host memory, level 2 does not.
    Sleep {
        /// 1 or 2.
        level: u8,
    },
}

/// An alias whose deployments change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The alias.
    pub alias: AliasName,
    /// What happens to it.
    pub kind: RouteKind,
    /// Its deployments before.
    pub from: Vec<Target>,
    /// Its deployments afterwards.
    pub to: Vec<Target>,
    /// When it moves.
    pub at: Timestamp,
    /// The time without a deployment of its own; zero for none.
    pub gap: Duration,
    /// When that begins.
    pub gap_from: Timestamp,
    /// Who serves its callers meanwhile, if they hold a grant for it.
    pub served_by: Option<AliasName>,
}

/// What happens to an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouteKind {
    /// It was absent.
    Appears,
    /// It is present before and after.
    Moves,
    /// It becomes absent.
    Vanishes,
}

impl RouteKind {
    /// As people read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Appears => "appears",
            Self::Moves => "moves",
            Self::Vanishes => "vanishes",
        }
    }
}

/// A model that a node needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fetch {
    /// The node.
    pub node: Arc<str>,
    /// The model.
    pub model: ModelName,
    /// Bytes that its cache lacks; `None`: not known.
    pub bytes: Option<u64>,
}

impl Plan {
    /// Plans a switch. Both sides have their seats already.
    #[must_use]
    pub fn new(ask: Ask<'_>) -> Self {
        let units = units::Units::of(ask);
        let problem = problem::problem(ask, &units);
        // everything at the hour always can be: both sides were placed
        let outcome = crate::strategy::best(&problem.problem);
        times::write(ask, &units, &problem, outcome)
    }

    /// The same plan for a switch that begins at an instant, when some of its steps should have begun before: they begin
    /// then, and end as much later.
    #[must_use]
    pub fn beginning_at(mut self, now: Timestamp) -> Self {
        for change in &mut self.changes {
            let engine = change.steps.iter().filter(|step| step.phase >= Phase::Deploy).map(|step| step.from).min();
            let Some(late) = engine.map(|from| now.duration_since(from)).filter(|late| late.is_positive()) else {
                continue;
            };
            let moved = |at: Timestamp| at.checked_add(late).unwrap_or(Timestamp::MAX);
            for step in &mut change.steps {
                (step.from, step.until) = (moved(step.from), moved(step.until));
            }
            change.ready_at = moved(change.ready_at);
        }
        let ready: BTreeMap<DeploymentName, Timestamp> =
            self.changes.iter().map(|change| (change.deployment.clone(), change.ready_at)).collect();
        for route in self.routes.iter_mut().filter(|route| route.gap == Duration::ZERO) {
            let last = route.to.iter().filter_map(|target| ready.get(&target.deployment)).max();
            route.at = last.copied().unwrap_or(route.at).max(route.at);
        }
        self
    }

    /// The longest gap of an alias.
    #[must_use]
    pub fn longest_gap(&self) -> Duration {
        self.routes.iter().map(|route| route.gap).max().unwrap_or_default()
    }

    /// Whether no gap is longer than the Schedule allows.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.longest_gap() <= self.rules.gap_allowed
    }

    /// When its first step begins; the hour, when there is none before.
    #[must_use]
    pub fn begins(&self) -> Timestamp {
        let starts = self.changes.iter().flat_map(|change| &change.steps).map(|step| step.from);
        starts.chain([self.at]).min().unwrap_or(self.at)
    }

    /// When its last step ends.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        let gone = self.departures.iter().map(|departure| departure.gone_by);
        let ready = self.changes.iter().map(|change| change.ready_at);
        gone.chain(ready).chain([self.at]).max().unwrap_or(self.at)
    }

    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.departures.is_empty() && self.routes.is_empty()
    }

    /// GPUs that it touches or that stayers have.
    #[must_use]
    pub fn gpus(&self) -> BTreeSet<GpuId> {
        let old = self.departures.iter().flat_map(|departure| &departure.seats);
        let new = self.changes.iter().flat_map(|change| &change.seats);
        let moving = old.chain(new).flat_map(|(_, seat)| seat.gpus());
        moving.chain(self.stays.values().flat_map(Seat::gpus)).collect()
    }

    /// Bytes that are fetched; `None` when they are not known of every node.
    #[must_use]
    pub fn bytes_to_fetch(&self) -> Option<u64> {
        self.fetches.iter().map(|fetch| fetch.bytes).sum()
    }
}
