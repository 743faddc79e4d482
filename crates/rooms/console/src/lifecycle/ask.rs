//! What the controller is told.

use std::fmt;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Json, State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{Case, Fault, ShiftName};
use tidegate_store::store::{By, Verb};

use super::{alone, until};
use crate::Console;
use crate::auth::{Actor, now};
use crate::problem::{self, Problem};

/// Longest reason that a person gives for releasing a GPU, in bytes.
pub(super) const REASON_MAX: usize = 1_000;
/// Longest name of a node, in bytes (a DNS name).
pub(super) const NODE_MAX: usize = 253;

/// What is asked of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Switch to a shift now; it stays until the next start, or `until`.
    Switch {
        /// The shift.
        to: ShiftName,
        /// Until when.
        until: Option<Timestamp>,
    },
    /// Stay with what is loaded, until the next start, or `until`.
    Hold {
        /// Until when.
        until: Option<Timestamp>,
    },
    /// No new step; alarms go on.
    Pause,
    /// Go on: after a pause, an override, or failures.
    Resume,
    /// Back to the old set of the switch in progress.
    Abort,
    /// Back to the set before the last completed switch.
    Rollback,
    /// A person's word that a GPU is free.
    Release {
        /// The node.
        node: String,
        /// The GPU's index.
        gpu: u32,
        /// Why that is so.
        reason: String,
    },
}

impl Ask {
    /// As the audit log names it.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        match self {
            Self::Switch { .. } => Verb::Switch,
            Self::Hold { .. } => Verb::Hold,
            Self::Pause => Verb::Pause,
            Self::Resume => Verb::Resume,
            Self::Abort => Verb::Abort,
            Self::Rollback => Verb::Rollback,
            Self::Release { .. } => Verb::Release,
        }
    }

    fn subject(&self) -> String {
        match self {
            Self::Switch { to, .. } => to.to_string(),
            Self::Release { node, gpu, .. } => format!("{node}/{gpu}"),
            Self::Hold { .. } | Self::Pause | Self::Resume | Self::Abort | Self::Rollback => String::new(),
        }
    }

    fn detail(&self) -> serde_json::Value {
        match self {
            Self::Switch { until, .. } | Self::Hold { until } => json!({"until": until}),
            Self::Release { reason, .. } => json!({"reason": reason}),
            Self::Pause | Self::Resume | Self::Abort | Self::Rollback => json!({}),
        }
    }
}

/// What an ask has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Whether there is anything to do now.
    pub changes: bool,
    /// The shift that is desired now; `None`: the next controller's timetable decides.
    pub desired: Option<ShiftName>,
    /// The highest generation when it was said: what comes of it has a higher one, or is the switch in progress.
    pub generation: u64,
    /// Whether it was only written down, for the next controller.
    #[serde(default)]
    pub later: bool,
}

/// Why an ask was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What kind of reason.
    pub kind: RefusedKind,
    /// Why, for people.
    pub text: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedKind {
    /// What was asked makes no sense: there is no such shift, the time is over.
    Invalid,
    /// It cannot be done in this state: nothing is in progress, nothing to go back to, another process leads.
    Conflict,
    /// No controller runs.
    NoController,
    /// A node or the store failed.
    Failed,
}

impl Refused {
    /// A refusal.
    #[must_use]
    pub fn new(kind: RefusedKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// What a process without a controller says.
    #[must_use]
    pub fn no_controller() -> Self {
        Self::new(RefusedKind::NoController, "no controller runs here: start one with `tidegate up DIR`")
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let fault = match refused.kind {
            RefusedKind::Invalid => Fault::new(Case::InvalidValue),
            RefusedKind::Conflict | RefusedKind::NoController => Fault::new(Case::InvalidValue).status(409),
            RefusedKind::Failed => Fault::new(Case::Internal),
        };
        Self(fault.saying(refused.text))
    }
}

/// Body of `switch`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTo {
    /// The shift.
    pub to: String,
    /// Until when: an instant, a civil time in the site's zone, `HH:MM`, or a time from now (`2h`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Body of `hold`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// As of [`SwitchTo`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Body of `release`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRelease {
    /// The node.
    pub node: String,
    /// The GPU's index.
    pub gpu: u32,
    /// Why it is free: kept in the audit log.
    pub reason: String,
}

type Answer = Result<Json<Accepted>, Problem>;

pub(super) async fn switch(
    State(console): State<Console>,
    Extension(actor): Extension<Actor>,
    body: Result<Json<SwitchTo>, JsonRejection>,
) -> Answer {
    let Json(body) = body.map_err(|rejection| problem::body(&rejection))?;
    let to = known_shift(&console, "to", body.to)?;
    let until = read_until(&console, body.until.as_deref())?;
    carry_out(&console, &actor, Ask::Switch { to, until }).await
}

pub(super) async fn hold(
    State(console): State<Console>,
    Extension(actor): Extension<Actor>,
    body: Result<Json<Hold>, JsonRejection>,
) -> Answer {
    let Json(body) = body.map_err(|rejection| problem::body(&rejection))?;
    let until = read_until(&console, body.until.as_deref())?;
    carry_out(&console, &actor, Ask::Hold { until }).await
}

pub(super) async fn pause(State(console): State<Console>, Extension(actor): Extension<Actor>) -> Answer {
    carry_out(&console, &actor, Ask::Pause).await
}

pub(super) async fn resume(State(console): State<Console>, Extension(actor): Extension<Actor>) -> Answer {
    carry_out(&console, &actor, Ask::Resume).await
}

pub(super) async fn abort(State(console): State<Console>, Extension(actor): Extension<Actor>) -> Answer {
    carry_out(&console, &actor, Ask::Abort).await
}

pub(super) async fn rollback(State(console): State<Console>, Extension(actor): Extension<Actor>) -> Answer {
    carry_out(&console, &actor, Ask::Rollback).await
}

pub(super) async fn release(
    State(console): State<Console>,
    Extension(actor): Extension<Actor>,
    body: Result<Json<GpuRelease>, JsonRejection>,
) -> Answer {
    let Json(GpuRelease { node, gpu, reason }) = body.map_err(|rejection| problem::body(&rejection))?;
    if node.is_empty() || node.len() > NODE_MAX {
        return Err(problem::invalid("node", "a node has a name of at most 253 bytes"));
    }
    if reason.trim().is_empty() || reason.len() > REASON_MAX {
        return Err(problem::invalid("reason", "say in at most 1000 bytes how you know that the GPU is free"));
    }
    carry_out(&console, &actor, Ask::Release { node, gpu, reason }).await
}

/// Notes who asks, then asks. Whoever runs alone on the store writes what can be said without a controller.
pub(crate) async fn carry_out(console: &Console, Actor(who): &Actor, ask: Ask) -> Answer {
    let by = By { who, at: now() };
    console.store.note_verb(by, ask.verb(), &ask.subject(), &ask.detail()).await?;
    let done = if console.panel.is_alone() {
        alone::ask(&console.store, &console.panel.shifts(), ask, by).await?
    } else {
        console.panel.ask(ask, who).await
    };
    Ok(Json(done?))
}

/// A shift that the documents know.
pub(crate) fn known_shift(console: &Console, param: &'static str, name: String) -> Result<ShiftName, Problem> {
    let (shifts, name) = (console.panel.shifts(), ShiftName::from(name));
    if shifts.contains(&name) {
        return Ok(name);
    }
    let known: Vec<_> = shifts.iter().map(ShiftName::as_str).collect();
    Err(problem::invalid(param, format!("there is no shift {name:?}; there are: {}", known.join(", "))))
}

fn read_until(console: &Console, text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let now = now().to_timestamp();
    let at = until::parse(text, &console.panel.time_zone(), now).ok_or_else(|| {
        let forms = "2026-12-31T08:00, 08:00, 2h nor an instant";
        problem::invalid("until", format!("{text:?} is neither {forms}"))
    })?;
    if at <= now {
        return Err(problem::invalid("until", format!("{at} is over already")));
    }
    Ok(Some(at))
}
