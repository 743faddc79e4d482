//! What the lifecycle is at, and what became of it.

use std::collections::BTreeMap;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Json, Path, Query, State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_store::StoreError;
use tidegate_store::store::{StepRow, SwitchMode, SwitchOutcome, SwitchRow};

use crate::Console;
use crate::problem::{self, Problem};

/// What the lifecycle is at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LifecycleStatus {
    /// Whether a controller is at work here; if not, the rest is what the store says of the last one.
    pub controller: bool,
    /// The site's zone: in which people read times.
    pub time_zone: String,
    /// The highest generation that it has.
    pub generation: u64,
    /// The shift that is loaded; `None`: not known yet.
    pub shift: Option<ShiftName>,
    /// The shift that should be loaded now.
    pub desired: Option<ShiftName>,
    /// What somebody said, while it holds.
    pub said: Option<SaidView>,
    /// Whether no new step is taken.
    pub paused: bool,
    /// The next shift of the Schedules.
    pub next: Option<NextShift>,
    /// The switch in progress.
    pub switch: Option<SwitchView>,
    /// The last one that is over.
    pub last: Option<SwitchView>,
    /// Deployments that are or should be loaded.
    pub deployments: Vec<DeploymentView>,
    /// Their replicas.
    pub replicas: Vec<ReplicaView>,
    /// Deployments that failed, and when they are tried again.
    pub failures: Vec<Failure>,
    /// Aliases that have no deployment of their own now and should.
    pub gaps: Vec<GapView>,
    /// GPUs that nobody gets, because their memory was not proven free.
    pub quarantined: Vec<QuarantinedGpu>,
    /// Nodes that do not answer.
    pub away: Vec<Away>,
    /// What happened outside of a switch, oldest first.
    pub notes: Vec<Note>,
}

/// What somebody wants instead of the timetable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaidView {
    /// The shift.
    pub shift: ShiftName,
    /// With which verb.
    pub verb: String,
    /// Who said it.
    pub who: String,
    /// When.
    pub made: Timestamp,
    /// Until when; `None`: until the first start after it was said.
    pub until: Option<Timestamp>,
}

/// The next shift of the Schedules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextShift {
    /// Its name.
    pub shift: ShiftName,
    /// When it starts.
    pub at: Timestamp,
    /// When its first step begins, if it is planned already.
    pub begins: Option<Timestamp>,
}

/// A switch, in progress or over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwitchView {
    /// Its name for good: the generation in which it began.
    pub number: u64,
    /// The generation that carries it.
    pub generation: u64,
    /// The shift that ends.
    pub from: ShiftName,
    /// The shift that begins.
    pub to: ShiftName,
    /// The hour.
    pub at: Timestamp,
    /// When its first step was made.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How it goes on.
    pub mode: SwitchMode,
    /// How it ended; `None` of one that has ended: another took its place.
    pub outcome: Option<SwitchOutcome>,
    /// Why it was made.
    pub why: String,
    /// New deployments and what they do.
    #[serde(default)]
    pub new: BTreeMap<DeploymentName, String>,
    /// Old deployments and what they do.
    #[serde(default)]
    pub old: BTreeMap<DeploymentName, String>,
    /// Aliases that change, and where they go now; nowhere: an empty list.
    #[serde(default)]
    pub aliases: BTreeMap<AliasName, Vec<DeploymentName>>,
    /// Its steps, in the order of the plan.
    #[serde(default)]
    pub steps: Vec<StepView>,
    /// Seconds that an alias has been served by its old deployments past its hour.
    #[serde(default)]
    pub overrun: BTreeMap<AliasName, u64>,
    /// What happened, oldest first.
    #[serde(default)]
    pub notes: Vec<Note>,
}

impl SwitchView {
    /// Seconds from the hour to its end, or until `now` while it goes on; 0 before the hour.
    #[must_use]
    pub fn lateness_seconds(&self, now: Timestamp) -> f64 {
        self.ended.unwrap_or(now).duration_since(self.at).as_secs_f64().max(0.0)
    }

    /// What the store has of it.
    #[must_use]
    pub fn of(row: &SwitchRow) -> Self {
        let notes = serde_json::from_value(row.record["notes"].clone());
        Self {
            number: row.number,
            generation: row.generation,
            from: row.from.clone(),
            to: row.to.clone(),
            at: row.at.to_timestamp(),
            started: row.started.to_timestamp(),
            ended: row.ended.map(tidegate_core::Unix::to_timestamp),
            mode: row.mode,
            outcome: row.outcome,
            why: row.why.clone(),
            new: row.failed.iter().map(|name| (name.clone(), "failed".to_owned())).collect(),
            old: BTreeMap::new(),
            aliases: BTreeMap::new(),
            steps: Vec::new(),
            overrun: BTreeMap::new(),
            // A record of another version may lack them.
            notes: notes.unwrap_or_default(),
        }
    }
}

/// A step of a switch as planned, and how it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    /// The deployment.
    pub deployment: DeploymentName,
    /// What is done: `prefetch`, `verify`, `deploy`, `load`, `warm`, `drain`, `stop`, …
    pub phase: String,
    /// Its latest start, as planned.
    pub from: Timestamp,
    /// Its end, as planned.
    pub until: Timestamp,
    /// When it began.
    #[serde(default)]
    pub began: Option<Timestamp>,
    /// When it ended.
    #[serde(default)]
    pub ended: Option<Timestamp>,
    /// How far it is, or what is in the way.
    #[serde(default)]
    pub text: Option<String>,
}

/// A deployment that is or should be loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeploymentView {
    /// Its name.
    pub deployment: DeploymentName,
    /// The revision of its documents.
    pub revision: u64,
    /// Replicas that should be.
    pub desired: u32,
    /// Replicas that serve.
    pub ready: u32,
    /// Replicas that are kept although nothing asks for them: warm or asleep for a way back.
    pub pinned: u32,
    /// How long each phase of its last start took, in seconds; `unexplained` is the rest up to the wall time.
    #[serde(default)]
    pub phases: BTreeMap<String, f64>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaView {
    /// `deployment/number`.
    pub replica: String,
    /// Its deployment.
    pub deployment: DeploymentName,
    /// What it was started from.
    pub revision: u64,
    /// Its instance.
    pub instance: String,
    /// Where it is.
    pub seat: String,
    /// Its state.
    pub state: String,
    /// What is in the way, or how far it is.
    #[serde(default)]
    pub problem: Option<String>,
    /// When its states began, in this attempt.
    #[serde(default)]
    pub marks: Vec<Mark>,
}

/// When something began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// What.
    pub what: String,
    /// When.
    pub at: Timestamp,
}

/// A deployment that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The deployment.
    pub deployment: DeploymentName,
    /// How often in a row.
    pub failed: u32,
    /// Why, the last time.
    pub fault: String,
    /// When it is tried again; `None`: not by itself.
    pub next_at: Option<Timestamp>,
}

/// An alias without a deployment of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GapView {
    /// The alias.
    pub alias: AliasName,
    /// Since when.
    pub since: Timestamp,
    /// When it is expected to end.
    pub until: Option<Timestamp>,
    /// Who serves its callers meanwhile, if they hold a grant for it.
    #[serde(default)]
    pub served_by: Option<AliasName>,
}

/// A GPU that nobody gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedGpu {
    /// Its node.
    pub node: String,
    /// Its index.
    pub gpu: u32,
    /// The replica that was on it last.
    pub replica: String,
    /// What is known about it.
    #[serde(default)]
    pub why: Option<String>,
}

/// A node that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// The node.
    pub node: String,
    /// Why.
    pub why: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// Its stable name.
    pub code: String,
    /// The deployment or alias that it is about.
    pub about: String,
    /// For people.
    pub text: String,
}

/// A page of switches, latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchHistory {
    /// The switches.
    pub switches: Vec<SwitchView>,
}

/// A switch with everything that is kept of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchWithSteps {
    /// The row.
    #[serde(flatten)]
    pub row: SwitchRow,
    /// Its journal, in order.
    pub journal: Vec<StepRow>,
}

/// Which switches are asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    before: Option<u64>,
    #[serde(default = "page_default")]
    limit: u32,
}

const fn page_default() -> u32 {
    20
}

pub(super) async fn show(State(console): State<Console>) -> Result<Json<LifecycleStatus>, Problem> {
    Ok(Json(now(&console).await?))
}

/// The controller's own word, else what the store says of the last one.
pub(crate) async fn now(console: &Console) -> Result<LifecycleStatus, StoreError> {
    let status = match console.panel.lifecycle() {
        Some(status) => status,
        None => super::alone::status(&console.store, &console.panel.shifts()).await?,
    };
    let time_zone = console.panel.time_zone().iana_name().unwrap_or("UTC").to_owned();
    Ok(LifecycleStatus { time_zone, ..status })
}

pub(super) async fn history(
    State(console): State<Console>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<SwitchHistory>, Problem> {
    let Query(page) = page.map_err(|rejection| problem::invalid("query", rejection.body_text()))?;
    let rows = console.store.switches(page.before, page.limit).await?;
    Ok(Json(SwitchHistory { switches: rows.iter().map(SwitchView::of).collect() }))
}

pub(super) async fn one(
    State(console): State<Console>,
    number: Result<Path<u64>, PathRejection>,
) -> Result<Json<SwitchWithSteps>, Problem> {
    let Path(number) = number.map_err(|rejection| problem::invalid("number", rejection.body_text()))?;
    let rows = console.store.switches(Some(number.saturating_add(1)), 1).await?;
    let row = rows.into_iter().find(|row| row.number == number);
    let row = row.ok_or_else(|| StoreError::NotFound(format!("switch {number}")))?;
    let mut journal = console.store.steps(row.number).await?;
    if row.generation != row.number {
        journal.extend(console.store.steps(row.generation).await?);
    }
    Ok(Json(SwitchWithSteps { row, journal }))
}
