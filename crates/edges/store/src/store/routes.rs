//! Where each alias goes: one row per alias, written by the controller only and read by every gate.

use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::{AliasName, DeploymentName, ShiftName, Unix};

use super::ledger::to_json;
use super::{Purpose, Store, StoreError, Transaction, fence, json, raise};

/// Most targets of one alias.
pub const ROUTE_TARGETS_MAX: usize = 256;
/// Most aliases that have a route.
pub const ROUTES_MAX: usize = 4_096;

/// A deployment that an alias goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTarget {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Its share of the requests, against the other targets' weights.
    pub weight: u32,
    /// Which of its replicas: those of this revision. `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

/// Where an alias goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteRow {
    /// The alias.
    pub alias: AliasName,
    /// Its targets; none: it goes nowhere, because its shift says so or because it is in a gap.
    pub targets: Vec<RouteTarget>,
    /// The shift whose limits it has, and which says whether it is absent.
    pub shift: ShiftName,
    /// The expected end of its gap, if it is in one and that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Unix>,
    /// The generation that wrote it.
    pub generation: u64,
    /// When it was written.
    pub at: Unix,
}

impl RouteRow {
    /// Whether two rows send requests to the same places under the same limits.
    #[must_use]
    pub fn is_same_way(&self, other: &Self) -> bool {
        self.targets == other.targets && self.shift == other.shift && self.until == other.until
    }
}

/// All routes as of one change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteSnapshot {
    /// Of two snapshots of one store, the higher one is the later: [`super::Changes::routes`].
    pub number: u64,
    /// Every row, by alias.
    pub routes: Vec<RouteRow>,
}

const SELECT: &str = "SELECT * FROM routes";
const SELECT_ONE: &str = "SELECT * FROM routes WHERE alias = ?1";
const UPSERT: &str = "
    INSERT INTO routes (alias, targets, shift, until_ms, generation, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (alias) DO UPDATE SET targets = excluded.targets, shift = excluded.shift, until_ms = excluded.until_ms,
        generation = excluded.generation, at_ms = excluded.at_ms";

impl Store {
    /// Writes an alias's route. Gates are told only when it leads elsewhere than before.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when a later generation was given out; [`StoreError::Refused`] beyond
    /// [`ROUTE_TARGETS_MAX`] or [`ROUTES_MAX`]; otherwise when the store fails.
    pub async fn set_route(&self, row: &RouteRow) -> Result<(), StoreError> {
        if row.targets.len() > ROUTE_TARGETS_MAX {
            return Err(StoreError::Refused(format!("an alias has at most {ROUTE_TARGETS_MAX} targets")));
        }
        let mut transaction = self.fenced(row.generation).await?;
        let before = find(&mut transaction, &row.alias).await?;
        if before.is_none() {
            let sql = "SELECT COUNT(*) FROM routes";
            let count: i64 = sqlx::query(sql).fetch_one(&mut *transaction).await?.try_get(0)?;
            if count.unsigned_abs() >= ROUTES_MAX as u64 {
                return Err(StoreError::Refused(format!("at most {ROUTES_MAX} aliases have a route")));
            }
        }
        sqlx::query(UPSERT)
            .bind(row.alias.as_str())
            .bind(to_json(&row.targets)?)
            .bind(row.shift.as_str())
            .bind(row.until.map(|until| until.ms))
            .bind(fence::column(row.generation))
            .bind(row.at.ms)
            .execute(&mut *transaction)
            .await?;
        if before.is_none_or(|before| !before.is_same_way(row)) {
            raise(&mut transaction, "routes").await?;
        }
        transaction.commit().await
    }

    /// Forgets the route of an alias that the documents do not have any more. One that has none is no error.
    ///
    /// # Errors
    /// [`StoreError::Stale`]; otherwise when the store fails.
    pub async fn remove_route(&self, alias: &AliasName, generation: u64) -> Result<(), StoreError> {
        let mut transaction = self.fenced(generation).await?;
        let removed = sqlx::query("DELETE FROM routes WHERE alias = ?1").bind(alias.as_str());
        if removed.execute(&mut *transaction).await?.rows_affected() > 0 {
            raise(&mut transaction, "routes").await?;
        }
        transaction.commit().await
    }

    /// The route of an alias; `None` when none was ever written.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn route(&self, alias: &AliasName) -> Result<Option<RouteRow>, StoreError> {
        let mut connection = self.reader.acquire().await?;
        find(&mut connection, alias).await
    }

    /// All routes, and the number of the change that they are of: read in one transaction, so that snapshots can be
    /// ordered.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn routes(&self) -> Result<RouteSnapshot, StoreError> {
        let mut transaction = Transaction::begin(&self.reader, Purpose::Read).await?;
        let sql = "SELECT generation FROM generation WHERE topic = 'routes'";
        let number = sqlx::query(sql).fetch_one(&mut *transaction).await?.try_get::<i64, _>(0)?.unsigned_abs();
        let rows = sqlx::query(SELECT).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        let mut routes = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        routes.sort_unstable_by(|a, b| a.alias.cmp(&b.alias));
        Ok(RouteSnapshot { number, routes })
    }
}

async fn find(connection: &mut SqliteConnection, alias: &AliasName) -> Result<Option<RouteRow>, StoreError> {
    sqlx::query(SELECT_ONE).bind(alias.as_str()).fetch_optional(connection).await?.as_ref().map(read).transpose()
}

fn read(row: &SqliteRow) -> Result<RouteRow, StoreError> {
    Ok(RouteRow {
        alias: row.try_get::<&str, _>("alias")?.into(),
        targets: json::parse("routes.targets", row.try_get("targets")?)?,
        shift: row.try_get::<&str, _>("shift")?.into(),
        until: row.try_get::<Option<i64>, _>("until_ms")?.map(Unix::from_ms),
        generation: row.try_get::<i64, _>("generation")?.unsigned_abs(),
        at: Unix::from_ms(row.try_get("at_ms")?),
    })
}
