//! The records in the store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_core::{AliasName, DeploymentName, Unix};
use tidegate_planner::Plan;
use tidegate_planner::plan::Phases;
use tidegate_planner::switch::{Mode, Outcome};
use tidegate_store::store::{
    By, MeasuredRow, OverrideRow, RouteRow as StoredRoute, RouteTarget as StoredTarget, SwitchMode, SwitchOutcome,
    SwitchRow as StoredSwitch, Verb,
};
use tidegate_store::{Store, StoreError};

use super::{Note, RecordError, Records, Said, SwitchRow};
use crate::route::{RouteRow, RouteTarget};

/// The records in the store.
#[derive(Clone, Debug)]
pub struct StoreRecords {
    store: Store,
}

impl StoreRecords {
    /// In this store.
    #[must_use]
    pub const fn new(store: Store) -> Self {
        Self { store }
    }
}

impl From<StoreError> for RecordError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale { highest } => Self::Stale { highest },
            other => Self::Store(other.to_string().into()),
        }
    }
}

fn unix(at: Timestamp) -> Unix {
    Unix::from_ms(at.as_millisecond())
}

fn unreadable(what: &str, error: &serde_json::Error) -> RecordError {
    RecordError::Store(format!("{what} cannot be read: {error}").into())
}

/// What is in a switch's record beside the plan.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    notes: Vec<Note>,
}

fn to_stored(row: &SwitchRow) -> Result<StoredSwitch, RecordError> {
    Ok(StoredSwitch {
        number: row.number,
        generation: row.generation,
        from: row.plan.from.clone(),
        to: row.plan.to.clone(),
        at: unix(row.plan.at),
        why: row.why.to_string(),
        mode: match row.mode {
            Mode::Runs => SwitchMode::Runs,
            Mode::Paused => SwitchMode::Paused,
            Mode::Aborts => SwitchMode::Aborts,
        },
        failed: row.failed.clone(),
        outcome: row.outcome.map(|outcome| match outcome {
            Outcome::Complete => SwitchOutcome::Complete,
            Outcome::Partly => SwitchOutcome::Partly,
            Outcome::Aborted => SwitchOutcome::Aborted,
        }),
        started: unix(row.started),
        ended: row.ended.map(unix),
        plan: serde_json::to_value(&row.plan).map_err(|error| unreadable("a plan", &error))?,
        record: json!({"notes": row.notes}),
    })
}

fn from_stored(row: StoredSwitch) -> Result<SwitchRow, RecordError> {
    let plan: Plan = serde_json::from_value(row.plan).map_err(|error| unreadable("the plan of a switch", &error))?;
    let record: Record = serde_json::from_value(row.record).unwrap_or_default();
    Ok(SwitchRow {
        number: row.number,
        generation: row.generation,
        plan,
        mode: match row.mode {
            SwitchMode::Runs => Mode::Runs,
            SwitchMode::Paused => Mode::Paused,
            SwitchMode::Aborts => Mode::Aborts,
        },
        failed: row.failed,
        started: row.started.to_timestamp(),
        ended: row.ended.map(Unix::to_timestamp),
        outcome: row.outcome.map(|outcome| match outcome {
            SwitchOutcome::Complete => Outcome::Complete,
            SwitchOutcome::Partly => Outcome::Partly,
            SwitchOutcome::Aborted => Outcome::Aborted,
        }),
        why: row.why.into(),
        notes: record.notes,
    })
}

/// A row that an older version wrote and this one cannot read is as good as none: what is there is looked at anyway.
fn readable(row: Option<StoredSwitch>) -> Option<SwitchRow> {
    let read = from_stored(row?);
    read.inspect_err(|error| tracing::warn!(%error, "the last switch is not taken into account")).ok()
}

fn verb(name: &str) -> Verb {
    match name {
        "hold" => Verb::Hold,
        "rollback" => Verb::Rollback,
        "abort" => Verb::Abort,
        _ => Verb::Switch,
    }
}

#[async_trait]
impl Records for StoreRecords {
    async fn next_generation(&self) -> Result<u64, RecordError> {
        Ok(self.store.next_generation().await?)
    }

    async fn save_switch(&self, row: &SwitchRow) -> Result<(), RecordError> {
        Ok(self.store.save_switch(&to_stored(row)?).await?)
    }

    async fn last_switch(&self) -> Result<Option<SwitchRow>, RecordError> {
        Ok(readable(self.store.last_switch().await?))
    }

    async fn last_completed(&self) -> Result<Option<SwitchRow>, RecordError> {
        Ok(readable(self.store.last_completed_switch().await?))
    }

    async fn step(&self, generation: u64, number: u64, what: &str, at: Timestamp) -> Result<(), RecordError> {
        let effect = serde_json::from_str(what).map_err(|error| unreadable("a step", &error))?;
        self.store.note_step(generation, number, &effect, unix(at)).await?;
        Ok(())
    }

    async fn set_route(&self, row: &RouteRow) -> Result<(), RecordError> {
        let target = |target: &RouteTarget| StoredTarget {
            deployment: target.deployment.clone(),
            weight: target.weight,
            revision: target.revision,
        };
        let stored = StoredRoute {
            alias: row.alias.clone(),
            targets: row.targets.iter().map(target).collect(),
            shift: row.shift.clone(),
            until: row.until.map(unix),
            generation: row.generation,
            at: unix(Timestamp::now()),
        };
        Ok(self.store.set_route(&stored).await?)
    }

    async fn routes(&self) -> Result<BTreeMap<AliasName, RouteRow>, RecordError> {
        let target = |target: StoredTarget| RouteTarget {
            deployment: target.deployment,
            weight: target.weight,
            revision: target.revision,
        };
        let row = |row: StoredRoute| {
            let read = RouteRow {
                alias: row.alias.clone(),
                targets: row.targets.into_iter().map(target).collect(),
                shift: row.shift,
                until: row.until.map(Unix::to_timestamp),
                generation: row.generation,
            };
            (row.alias, read)
        };
        Ok(self.store.routes().await?.routes.into_iter().map(row).collect())
    }

    async fn said(&self) -> Result<Option<Said>, RecordError> {
        let said = self.store.override_in_force().await?;
        Ok(said.map(|said| Said {
            shift: said.shift,
            made: said.made.to_timestamp(),
            until: said.until.map(Unix::to_timestamp),
            who: said.who.into(),
            verb: said.verb.as_str().into(),
        }))
    }

    async fn say(&self, generation: u64, said: Option<&Said>) -> Result<(), RecordError> {
        let Some(said) = said else { return Ok(self.store.clear_override(generation).await?) };
        let row = OverrideRow {
            shift: said.shift.clone(),
            made: unix(said.made),
            until: said.until.map(unix),
            who: said.who.to_string(),
            verb: verb(&said.verb),
        };
        Ok(self.store.set_override(generation, &row).await?)
    }

    async fn is_paused(&self) -> Result<bool, RecordError> {
        Ok(self.store.pause().await?.is_some())
    }

    async fn pause(&self, generation: u64, who: Option<&str>, at: Timestamp) -> Result<(), RecordError> {
        match who {
            Some(who) => self.store.set_pause(generation, By { who, at: unix(at) }).await?,
            None => self.store.clear_pause(generation).await?,
        }
        Ok(())
    }

    async fn measured(&self) -> Result<BTreeMap<(DeploymentName, u64), Phases>, RecordError> {
        let rows = self.store.measured().await?;
        let read = |row: MeasuredRow| Some(((row.deployment, row.revision), serde_json::from_value(row.phases).ok()?));
        Ok(rows.into_iter().filter_map(read).collect())
    }

    async fn measure(&self, name: &DeploymentName, revision: u64, phases: &Phases) -> Result<(), RecordError> {
        let phases = serde_json::to_value(phases).map_err(|error| unreadable("phases", &error))?;
        let row = MeasuredRow { deployment: name.clone(), revision, phases, at: unix(Timestamp::now()) };
        let generation = self.store.generation().await?;
        Ok(self.store.measure(generation, &row).await?)
    }
}
