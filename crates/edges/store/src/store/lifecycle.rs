//! What is said by hand about the lifecycle.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row;
use tidegate_core::{ShiftName, Unix};

use super::audit::{self, By};
use super::{Store, StoreError, json, raise};

/// What somebody does with the lifecycle by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// `switch now --to X`.
    Switch,
    /// `switch hold`.
    Hold,
    /// `switch rollback`.
    Rollback,
    /// `switch abort`.
    Abort,
    /// `switch pause`.
    Pause,
    /// `switch resume`.
    Resume,
    /// `gpu release`.
    Release,
}

impl Verb {
    /// As it is written in the store and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Hold => "hold",
            Self::Rollback => "rollback",
            Self::Abort => "abort",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Release => "release",
        }
    }

    const fn action(self) -> &'static str {
        match self {
            Self::Switch => "lifecycle.switch",
            Self::Hold => "lifecycle.hold",
            Self::Rollback => "lifecycle.rollback",
            Self::Abort => "lifecycle.abort",
            Self::Pause => "lifecycle.pause",
            Self::Resume => "lifecycle.resume",
            Self::Release => "gpu.release",
        }
    }
}

/// A shift that somebody wants instead of the timetable's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRow {
    /// The shift.
    pub shift: ShiftName,
    /// When it was said.
    pub made: Unix,
    /// Until when; `None`: until the first start after it was said.
    pub until: Option<Unix>,
    /// Who said it.
    pub who: String,
    /// With which verb.
    pub verb: Verb,
}

/// Since when nothing new may be begun, and who said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRow {
    /// When.
    pub at: Unix,
    /// Who.
    pub who: String,
}

impl Store {
    /// What somebody wants instead of the timetable; whether it still is in force, its reader decides.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn override_in_force(&self) -> Result<Option<OverrideRow>, StoreError> {
        let sql = "SELECT shift, made_ms, until_ms, who, verb FROM override";
        let Some(row) = sqlx::query(sql).fetch_optional(&self.reader).await? else { return Ok(None) };
        Ok(Some(OverrideRow {
            shift: row.try_get::<&str, _>(0)?.into(),
            made: Unix::from_ms(row.try_get(1)?),
            until: row.try_get::<Option<i64>, _>(2)?.map(Unix::from_ms),
            who: row.try_get(3)?,
            verb: json::unword("override.verb", row.try_get(4)?)?,
        }))
    }

    /// Writes down what somebody wants, in the place of what was wanted before.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when a later generation was given out; otherwise when the store fails.
    pub async fn set_override(&self, generation: u64, said: &OverrideRow) -> Result<(), StoreError> {
        let mut transaction = self.fenced(generation).await?;
        let sql = "INSERT INTO override (one, shift, made_ms, until_ms, who, verb) VALUES (1, ?1, ?2, ?3, ?4, ?5) \
                   ON CONFLICT (one) DO UPDATE SET shift = excluded.shift, made_ms = excluded.made_ms, \
                   until_ms = excluded.until_ms, who = excluded.who, verb = excluded.verb";
        sqlx::query(sql)
            .bind(said.shift.as_str())
            .bind(said.made.ms)
            .bind(said.until.map(|until| until.ms))
            .bind(&said.who)
            .bind(said.verb.as_str())
            .execute(&mut *transaction)
            .await?;
        raise(&mut transaction, "lifecycle").await?;
        transaction.commit().await
    }

    /// Takes back what somebody wanted: the timetable decides again. Nothing to take back is no error.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; otherwise when the store fails.
    pub async fn clear_override(&self, generation: u64) -> Result<(), StoreError> {
        let mut transaction = self.fenced(generation).await?;
        let cleared = sqlx::query("DELETE FROM override").execute(&mut *transaction).await?;
        if cleared.rows_affected() > 0 {
            raise(&mut transaction, "lifecycle").await?;
        }
        transaction.commit().await
    }

    /// Since when nothing new may be begun; `None`: it may.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn pause(&self) -> Result<Option<PauseRow>, StoreError> {
        let row = sqlx::query("SELECT at_ms, who FROM pause").fetch_optional(&self.reader).await?;
        row.map(|row| Ok(PauseRow { at: Unix::from_ms(row.try_get(0)?), who: row.try_get(1)? })).transpose()
    }

    /// From now on nothing new may be begun. Paused already, it stays as it was.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; otherwise when the store fails.
    pub async fn set_pause(&self, generation: u64, by: By<'_>) -> Result<(), StoreError> {
        let mut transaction = self.fenced(generation).await?;
        let sql = "INSERT INTO pause (one, at_ms, who) VALUES (1, ?1, ?2) ON CONFLICT DO NOTHING";
        let paused = sqlx::query(sql).bind(by.at.ms).bind(by.who).execute(&mut *transaction).await?;
        if paused.rows_affected() > 0 {
            raise(&mut transaction, "lifecycle").await?;
        }
        transaction.commit().await
    }

    /// What is wanted may be begun again. Not paused, nothing changes.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; otherwise when the store fails.
    pub async fn clear_pause(&self, generation: u64) -> Result<(), StoreError> {
        let mut transaction = self.fenced(generation).await?;
        let cleared = sqlx::query("DELETE FROM pause").execute(&mut *transaction).await?;
        if cleared.rows_affected() > 0 {
            raise(&mut transaction, "lifecycle").await?;
        }
        transaction.commit().await
    }

    /// Adds to the audit log what somebody asks of the lifecycle, before it is done. Not fenced: who asked does not
    /// depend on who is the controller.
    ///
    /// # Errors
    /// When the store fails; then it must not be done.
    pub async fn note_verb(&self, by: By<'_>, verb: Verb, subject: &str, detail: &Value) -> Result<(), StoreError> {
        let mut transaction = self.begin().await?;
        audit::note(&mut transaction, by, verb.action(), subject, detail).await?;
        transaction.commit().await
    }
}
