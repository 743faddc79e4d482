//! Who changed what, when. Rows are added in the transaction of the change and never changed or deleted: the
//! database itself refuses.

use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::Unix;

use super::ledger::to_json;
use super::{Store, StoreError};

/// Who makes a change, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By<'a> {
    /// An admin key's caller, or the local user of the command line.
    pub who: &'a str,
    /// When.
    pub at: Unix,
}

/// One audit row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Its number: without gaps, oldest first.
    pub seq: u64,
    /// When.
    pub at: Unix,
    /// Who.
    pub who: String,
    /// `key.create`, `key.rotate`, `key.revoke`, `shift.set`, `lifecycle.…` by verb, `gpu.release`.
    pub action: String,
    /// What it was done to.
    pub subject: String,
    /// What else there is to say, as JSON; never a secret.
    pub detail: String,
}

/// Most rows that one page gives.
const PAGE_MAX: u32 = 1_000;

pub(super) async fn note<T: Serialize + Sync>(
    connection: &mut SqliteConnection,
    by: By<'_>,
    action: &'static str,
    subject: &str,
    detail: &T,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO audit (at_ms, who, action, subject, detail) VALUES (?1, ?2, ?3, ?4, ?5)")
        .bind(by.at.ms)
        .bind(by.who)
        .bind(action)
        .bind(subject)
        .bind(to_json(detail)?)
        .execute(connection)
        .await?;
    Ok(())
}

impl Store {
    /// Audit rows behind number `after`, oldest first, at most `limit` (1,000 at most).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn audit(&self, after: u64, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let sql = "SELECT seq, at_ms, who, action, subject, detail FROM audit WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        let rows = sqlx::query(sql)
            .bind(i64::try_from(after).unwrap_or(i64::MAX))
            .bind(limit.min(PAGE_MAX))
            .fetch_all(&self.reader)
            .await?;
        rows.iter().map(read).collect()
    }

    /// The last audit rows, oldest first, at most `limit` (1,000 at most).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn audit_last(&self, limit: u32) -> Result<Vec<AuditRow>, StoreError> {
        let sql = "SELECT seq, at_ms, who, action, subject, detail FROM audit ORDER BY seq DESC LIMIT ?1";
        let rows = sqlx::query(sql).bind(limit.min(PAGE_MAX)).fetch_all(&self.reader).await?;
        rows.iter().rev().map(read).collect()
    }
}

fn read(row: &SqliteRow) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        seq: row.try_get::<i64, _>(0)?.unsigned_abs(),
        at: Unix::from_ms(row.try_get(1)?),
        who: row.try_get(2)?,
        action: row.try_get(3)?,
        subject: row.try_get(4)?,
        detail: row.try_get(5)?,
    })
}
