//! Steps, written down before they are done, and how long what they did took.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::{DeploymentName, Unix};

use super::{Store, StoreError, fence, json};

/// Steps of one generation are numbered below this.
pub const STEPS_MAX: u64 = 100_000;
/// Most bytes of a step's effect, and of its outcome.
pub const STEP_TEXT_MAX: usize = 64 << 10;
/// Most bytes of a deployment's measured phases.
pub const PHASES_JSON_MAX: usize = 64 << 10;
/// Revisions of a deployment whose measurements are kept: the ones measured last.
pub const REVISIONS_KEPT: usize = 8;
/// A step of a switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// The generation in whose name it was done.
    pub generation: u64,
    /// Its number in that generation. Both together name it once and for all.
    pub number: u64,
    /// What was to be done.
    pub effect: Value,
    /// When it was written down, before it was done.
    pub at: Unix,
    /// What came of it; `None`: nobody knows.
    pub outcome: Option<String>,
    /// When that was known.
    pub answered: Option<Unix>,
}

/// What writing a step down found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is new.
    New,
    /// The same step was written down before; its outcome, if it has one.
    Known(Option<String>),
}

/// Phases of a start and a stop, as they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRow {
    /// What was started.
    pub deployment: DeploymentName,
    /// Its revision.
    pub revision: u64,
    /// The phases.
    pub phases: Value,
    /// When they were measured.
    pub at: Unix,
}

const INSERT_STEP: &str = "
    INSERT INTO steps (generation, number, effect, at_ms) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
const SELECT_STEP: &str = "SELECT * FROM steps WHERE generation = ?1 AND number = ?2";
const SELECT_STEPS: &str = "SELECT * FROM steps WHERE generation = ?1 ORDER BY number";
const ANSWER_STEP: &str = "
    UPDATE steps SET outcome = ?3, answered_ms = ?4 WHERE generation = ?1 AND number = ?2 AND outcome IS NULL";

/// Steps.
impl Store {
    /// Writes a step down before it is done. The same step twice is one.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when a later generation was given out, and then it must not be done;
    /// [`StoreError::Conflict`] when its number was given to another effect; [`StoreError::Refused`] beyond
    /// [`STEPS_MAX`] or [`STEP_TEXT_MAX`]; otherwise when the store fails.
    pub async fn note_step(&self, generation: u64, number: u64, effect: &Value, at: Unix) -> Result<Noted, StoreError> {
        if number >= STEPS_MAX {
            return Err(StoreError::Refused(format!("a generation has at most {STEPS_MAX} steps: take the next one")));
        }
        let text = json::bounded("the step's effect", effect, STEP_TEXT_MAX)?;
        let mut transaction = self.fenced(generation).await?;
        let inserted = sqlx::query(INSERT_STEP)
            .bind(fence::column(generation))
            .bind(fence::column(number))
            .bind(&text)
            .bind(at.ms)
            .execute(&mut *transaction)
            .await?;
        if inserted.rows_affected() > 0 {
            transaction.commit().await?;
            return Ok(Noted::New);
        }
        let known = find_step(&mut transaction, generation, number).await?;
        transaction.rollback().await?;
        match known {
            Some(known) if known.effect == *effect => Ok(Noted::Known(known.outcome)),
            _ => Err(StoreError::Conflict(format!("step {number} of generation {generation}"))),
        }
    }

    /// Writes down what came of a step. The first answer stands.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; [`StoreError::NotFound`]; [`StoreError::Conflict`] when it was answered otherwise;
    /// [`StoreError::Refused`] beyond [`STEP_TEXT_MAX`]; otherwise when the store fails.
    pub async fn answer_step(&self, generation: u64, number: u64, outcome: &str, at: Unix) -> Result<(), StoreError> {
        if outcome.len() > STEP_TEXT_MAX {
            return Err(StoreError::Refused(format!("the step's outcome is longer than {STEP_TEXT_MAX} bytes")));
        }
        let mut transaction = self.fenced(generation).await?;
        let answered = sqlx::query(ANSWER_STEP)
            .bind(fence::column(generation))
            .bind(fence::column(number))
            .bind(outcome)
            .bind(at.ms)
            .execute(&mut *transaction)
            .await?;
        if answered.rows_affected() > 0 {
            return transaction.commit().await;
        }
        let known = find_step(&mut transaction, generation, number).await?;
        transaction.rollback().await?;
        let name = || format!("step {number} of generation {generation}");
        match known {
            Some(known) if known.outcome.as_deref() == Some(outcome) => Ok(()),
            Some(_) => Err(StoreError::Conflict(name())),
            None => Err(StoreError::NotFound(name())),
        }
    }

    /// The steps of a generation, in order.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn steps(&self, generation: u64) -> Result<Vec<StepRow>, StoreError> {
        let rows = sqlx::query(SELECT_STEPS).bind(fence::column(generation)).fetch_all(&self.reader).await?;
        rows.iter().map(read_step).collect()
    }
}

const UPSERT_MEASURED: &str = "
    INSERT INTO measured (deployment, revision, phases, at_ms) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (deployment, revision) DO UPDATE SET phases = excluded.phases, at_ms = excluded.at_ms";
const FORGET_MEASURED: &str = "
    DELETE FROM measured WHERE deployment = ?1 AND revision NOT IN
        (SELECT revision FROM measured WHERE deployment = ?1 ORDER BY at_ms DESC, revision LIMIT ?2)";

/// Measurements.
impl Store {
    /// Writes measured phases. Of a deployment the last [`REVISIONS_KEPT`] revisions are kept.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; [`StoreError::Refused`] beyond [`PHASES_JSON_MAX`]; otherwise when the store fails.
    pub async fn measure(&self, generation: u64, row: &MeasuredRow) -> Result<(), StoreError> {
        let phases = json::bounded("the phases", &row.phases, PHASES_JSON_MAX)?;
        let mut transaction = self.fenced(generation).await?;
        sqlx::query(UPSERT_MEASURED)
            .bind(row.deployment.as_str())
            .bind(row.revision.to_string())
            .bind(phases)
            .bind(row.at.ms)
            .execute(&mut *transaction)
            .await?;
        sqlx::query(FORGET_MEASURED)
            .bind(row.deployment.as_str())
            .bind(REVISIONS_KEPT as i64)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    }

    /// All measured phases, by deployment and revision.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn measured(&self) -> Result<Vec<MeasuredRow>, StoreError> {
        let rows = sqlx::query("SELECT * FROM measured").fetch_all(&self.reader).await?;
        let mut measured = rows.iter().map(read_measured).collect::<Result<Vec<_>, _>>()?;
        measured.sort_unstable_by(|a, b| (&a.deployment, a.revision).cmp(&(&b.deployment, b.revision)));
        Ok(measured)
    }
}

async fn find_step(
    connection: &mut SqliteConnection,
    generation: u64,
    number: u64,
) -> Result<Option<StepRow>, StoreError> {
    let query = sqlx::query(SELECT_STEP).bind(fence::column(generation)).bind(fence::column(number));
    query.fetch_optional(connection).await?.as_ref().map(read_step).transpose()
}

fn read_step(row: &SqliteRow) -> Result<StepRow, StoreError> {
    Ok(StepRow {
        generation: row.try_get::<i64, _>("generation")?.unsigned_abs(),
        number: row.try_get::<i64, _>("number")?.unsigned_abs(),
        effect: json::parse("steps.effect", row.try_get("effect")?)?,
        at: Unix::from_ms(row.try_get("at_ms")?),
        outcome: row.try_get("outcome")?,
        answered: row.try_get::<Option<i64>, _>("answered_ms")?.map(Unix::from_ms),
    })
}

fn read_measured(row: &SqliteRow) -> Result<MeasuredRow, StoreError> {
    let revision: &str = row.try_get("revision")?;
    let revision = revision.parse().map_err(|_| StoreError::Corrupt(format!("measured.revision is {revision:?}")))?;
    Ok(MeasuredRow {
        deployment: row.try_get::<&str, _>("deployment")?.into(),
        revision,
        phases: json::parse("measured.phases", row.try_get("phases")?)?,
        at: Unix::from_ms(row.try_get("at_ms")?),
    })
}
