//! What becomes of every switch: one row each, the last ones are kept.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::{DeploymentName, ShiftName, Unix};

use super::ledger::to_json;
use super::{Store, StoreError, fence, json, raise};

/// Switches that are kept; the oldest go, with their steps.
pub const SWITCHES_KEPT: usize = 1_000;
/// Most bytes of a plan, and of a record, as JSON.
pub const SWITCH_JSON_MAX: usize = 4 << 20;
/// Most switches that one page gives.
const PAGE_MAX: u32 = 1_000;

/// How a switch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchMode {
    /// As planned.
    Runs,
    /// No new step.
    Paused,
    /// Back to the old set.
    Aborts,
}

/// How a switch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwitchOutcome {
    /// Everything as planned.
    Complete,
    /// What failed is held, the rest switched.
    Partly,
    /// The old set is back.
    Aborted,
}

/// A switch, in progress or over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SwitchRow {
    /// The generation in which it began: its name for good.
    pub number: u64,
    /// The generation that carries it now: a later controller that takes it over has a higher one.
    pub generation: u64,
    /// The shift that ends.
    pub from: ShiftName,
    /// The shift that begins.
    pub to: ShiftName,
    /// The hour.
    pub at: Unix,
    /// Why it was made: the timetable, a verb, a change of documents, a start.
    pub why: String,
    /// How it goes on.
    pub mode: SwitchMode,
    /// New deployments that will not come.
    pub failed: BTreeSet<DeploymentName>,
    /// How it ended; `None`: it is in progress.
    pub outcome: Option<SwitchOutcome>,
    /// When its first step was made.
    pub started: Unix,
    /// When it ended.
    pub ended: Option<Unix>,
    /// What was to happen.
    pub plan: Value,
    /// What happened: phases, alarms.
    pub record: Value,
}

const UPSERT_SWITCH: &str = "
    INSERT INTO switches (number, generation, from_shift, to_shift, at_ms, why, mode, failed, outcome, started_ms,
                          ended_ms, plan, record)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
    ON CONFLICT (number) DO UPDATE SET generation = excluded.generation, from_shift = excluded.from_shift,
        to_shift = excluded.to_shift, at_ms = excluded.at_ms, why = excluded.why, mode = excluded.mode,
        failed = excluded.failed, outcome = excluded.outcome, started_ms = excluded.started_ms,
        ended_ms = excluded.ended_ms, plan = excluded.plan, record = excluded.record";
/// The number of the oldest switch that is kept.
const OLDEST_KEPT: &str = "SELECT number FROM switches ORDER BY number DESC LIMIT 1 OFFSET ?1";
const SELECT_LAST: &str = "SELECT * FROM switches ORDER BY number DESC LIMIT 1";
const SELECT_COMPLETED: &str = "SELECT * FROM switches WHERE outcome = 'complete' ORDER BY number DESC LIMIT 1";
const SELECT_PAGE: &str = "SELECT * FROM switches WHERE number < ?1 ORDER BY number DESC LIMIT ?2";

impl Store {
    /// Writes a switch, new or known by its number. Of more than [`SWITCHES_KEPT`] the oldest go.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when a later generation than [`SwitchRow::generation`] was given out;
    /// [`StoreError::Refused`] when plan or record are larger than [`SWITCH_JSON_MAX`]; otherwise when the store fails.
    pub async fn save_switch(&self, row: &SwitchRow) -> Result<(), StoreError> {
        let plan = json::bounded("the plan", &row.plan, SWITCH_JSON_MAX)?;
        let record = json::bounded("the record", &row.record, SWITCH_JSON_MAX)?;
        let mut transaction = self.fenced(row.generation).await?;
        sqlx::query(UPSERT_SWITCH)
            .bind(fence::column(row.number))
            .bind(fence::column(row.generation))
            .bind(row.from.as_str())
            .bind(row.to.as_str())
            .bind(row.at.ms)
            .bind(&row.why)
            .bind(json::word(&row.mode)?)
            .bind(to_json(&row.failed)?)
            .bind(row.outcome.as_ref().map(json::word).transpose()?)
            .bind(row.started.ms)
            .bind(row.ended.map(|ended| ended.ms))
            .bind(plan)
            .bind(record)
            .execute(&mut *transaction)
            .await?;
        forget_old(&mut transaction).await?;
        raise(&mut transaction, "lifecycle").await?;
        transaction.commit().await
    }

    /// The last switch, in progress or over; `None` when there never was one.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn last_switch(&self) -> Result<Option<SwitchRow>, StoreError> {
        let row = sqlx::query(SELECT_LAST).fetch_optional(&self.reader).await?;
        row.as_ref().map(read_switch).transpose()
    }

    /// The last switch that was completed: a rollback goes to the shift that it left.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn last_completed_switch(&self) -> Result<Option<SwitchRow>, StoreError> {
        let row = sqlx::query(SELECT_COMPLETED).fetch_optional(&self.reader).await?;
        row.as_ref().map(read_switch).transpose()
    }

    /// Switches before number `before` (`None`: from the last on), latest first, at most `limit` (1,000 at most).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn switches(&self, before: Option<u64>, limit: u32) -> Result<Vec<SwitchRow>, StoreError> {
        let rows = sqlx::query(SELECT_PAGE)
            .bind(before.map_or(i64::MAX, fence::column))
            .bind(limit.min(PAGE_MAX))
            .fetch_all(&self.reader)
            .await?;
        rows.iter().map(read_switch).collect()
    }
}

async fn forget_old(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let kept = SWITCHES_KEPT as i64 - 1;
    let oldest = sqlx::query(OLDEST_KEPT).bind(kept).fetch_optional(&mut *connection).await?;
    let Some(oldest) = oldest else { return Ok(()) };
    let oldest: i64 = oldest.try_get(0)?;
    for sql in ["DELETE FROM switches WHERE number < ?1", "DELETE FROM steps WHERE generation < ?1"] {
        sqlx::query(sql).bind(oldest).execute(&mut *connection).await?;
    }
    Ok(())
}

fn read_switch(row: &SqliteRow) -> Result<SwitchRow, StoreError> {
    let at = |column: &str| row.try_get::<i64, _>(column).map(Unix::from_ms);
    Ok(SwitchRow {
        number: row.try_get::<i64, _>("number")?.unsigned_abs(),
        generation: row.try_get::<i64, _>("generation")?.unsigned_abs(),
        from: row.try_get::<&str, _>("from_shift")?.into(),
        to: row.try_get::<&str, _>("to_shift")?.into(),
        at: at("at_ms")?,
        why: row.try_get("why")?,
        mode: json::unword("switches.mode", row.try_get("mode")?)?,
        failed: json::parse("switches.failed", row.try_get("failed")?)?,
        outcome: row
            .try_get::<Option<&str>, _>("outcome")?
            .map(|text| json::unword("switches.outcome", text))
            .transpose()?,
        started: at("started_ms")?,
        ended: row.try_get::<Option<i64>, _>("ended_ms")?.map(Unix::from_ms),
        plan: json::parse("switches.plan", row.try_get("plan")?)?,
        record: json::parse("switches.record", row.try_get("record")?)?,
    })
}
