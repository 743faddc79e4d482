//! The database's shape, and how one of an earlier version becomes one of this.
//!
//! All steps that a file lacks run in one transaction, so that a file is never between two versions. A file of a later
//! version, one whose steps are not exactly ours, and one that is not ours at all are refused: guessing would lose
//! what the ledger is for.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};
use tidegate_core::Unix;

use super::StoreError;

/// One step. Never changed once released: a change is a new step.
struct Step {
    name: &'static str,
    sql: &'static str,
}

const STEPS: &[Step] = &[
    Step { name: "ledger, keys, audit, shift", sql: include_str!("schema/0001.sql") },
    Step { name: "kind and lifetime of a key", sql: include_str!("schema/0002.sql") },
    Step { name: "routes and the lifecycle", sql: include_str!("schema/0003.sql") },
];

/// Brings the database to this version.
pub(super) async fn migrate(connection: &mut SqliteConnection, now: Unix) -> Result<(), StoreError> {
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *connection).await?;
    let done = migrate_within(connection, now).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    done?;
    ended?;
    Ok(())
}

async fn migrate_within(connection: &mut SqliteConnection, now: Unix) -> Result<(), StoreError> {
    let applied = applied(connection).await?;
    if applied.len() > STEPS.len() {
        return Err(StoreError::Schema(format!(
            "it is at version {}, this program knows {}: use the later version of the program",
            applied.len(),
            STEPS.len()
        )));
    }
    for (at, (row, step)) in applied.iter().zip(STEPS).enumerate() {
        if row.version != at as i64 + 1 || row.checksum != checksum(step) {
            return Err(StoreError::Schema(format!(
                "step {} (`{}`) is not the one this program makes",
                at + 1,
                row.name
            )));
        }
    }
    for (at, step) in STEPS.iter().enumerate().skip(applied.len()) {
        sqlx::raw_sql(AssertSqlSafe(step.sql)).execute(&mut *connection).await?;
        sqlx::query("INSERT INTO tidegate_schema (version, name, checksum, applied_ms) VALUES (?1, ?2, ?3, ?4)")
            .bind(at as i64 + 1)
            .bind(step.name)
            .bind(checksum(step))
            .bind(now.ms)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

struct Applied {
    version: i64,
    name: String,
    checksum: i64,
}

/// The steps that a database has; makes the table of steps in an empty database and refuses one of somebody else's.
async fn applied(connection: &mut SqliteConnection) -> Result<Vec<Applied>, StoreError> {
    let tables: Vec<String> =
        sqlx::query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            .fetch_all(&mut *connection)
            .await?
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?;
    if !tables.iter().any(|table| table == "tidegate_schema") {
        if let Some(table) = tables.first() {
            return Err(StoreError::Schema(format!("it is not a store of this program: it has a table `{table}`")));
        }
        let sql = "CREATE TABLE tidegate_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL, \
                   checksum INTEGER NOT NULL, applied_ms INTEGER NOT NULL) STRICT";
        sqlx::raw_sql(sql).execute(&mut *connection).await?;
    }
    let rows = sqlx::query("SELECT version, name, checksum FROM tidegate_schema ORDER BY version")
        .fetch_all(&mut *connection)
        .await?;
    let read = |row: &sqlx::sqlite::SqliteRow| {
        Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, checksum: row.try_get(2)? })
    };
    rows.iter().map(read).collect()
}

fn checksum(step: &Step) -> i64 {
    i64::from(crc32fast::hash(step.sql.as_bytes()))
}
