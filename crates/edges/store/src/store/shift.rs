//! The shift that is in force by hand: one row, absent until somebody sets it.

use sqlx::Row;
use tidegate_core::{ShiftName, Unix};

use super::audit::{self, By};
use super::{Store, StoreError, raise};

/// The shift in force, as set by hand.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shift {
    /// Its name.
    pub name: ShiftName,
    /// Counts the changes from 1: a change is never mistaken for the state before it.
    pub generation: u64,
    /// Who set it.
    pub who: String,
    /// When.
    pub at: Unix,
}

impl Store {
    /// The shift that was set last; `None` when none ever was.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn shift(&self) -> Result<Option<Shift>, StoreError> {
        let row = sqlx::query("SELECT name, generation, who, at_ms FROM shift").fetch_optional(&self.reader).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Shift {
            name: row.try_get::<&str, _>(0)?.into(),
            generation: row.try_get::<i64, _>(1)?.unsigned_abs(),
            who: row.try_get(2)?,
            at: Unix::from_ms(row.try_get(3)?),
        }))
    }

    /// Sets the shift. With `expected`, only when its generation is still that one (0: when none was ever set).
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when somebody else has set it meanwhile; otherwise when the store fails.
    pub async fn set_shift(&self, name: &ShiftName, expected: Option<u64>, by: By<'_>) -> Result<Shift, StoreError> {
        let mut transaction = self.begin().await?;
        let row = sqlx::query("SELECT generation FROM shift").fetch_optional(&mut *transaction).await?;
        let now = row.map_or(Ok(0), |row| row.try_get::<i64, _>(0))?;
        if expected.is_some_and(|expected| expected != now.unsigned_abs()) {
            return Err(StoreError::Conflict("the shift".to_owned()));
        }
        let sql = "INSERT INTO shift (one, name, generation, who, at_ms) VALUES (1, ?1, ?2, ?3, ?4) \
                   ON CONFLICT (one) DO UPDATE SET name = excluded.name, generation = excluded.generation, \
                   who = excluded.who, at_ms = excluded.at_ms";
        sqlx::query(sql)
            .bind(name.as_str())
            .bind(now + 1)
            .bind(by.who)
            .bind(by.at.ms)
            .execute(&mut *transaction)
            .await?;
        audit::note(&mut transaction, by, "shift.set", name.as_str(), &serde_json::json!({"generation": now + 1}))
            .await?;
        raise(&mut transaction, "shift").await?;
        transaction.commit().await?;
        Ok(Shift { name: name.clone(), generation: (now + 1).unsigned_abs(), who: by.who.to_owned(), at: by.at })
    }
}
