//! Generations: two controllers never write at once.
//!
//! A controller takes a generation before it begins something, and every write names the one it belongs to. Whoever
//! takes a later one shuts all earlier ones out: their writes are refused with [`StoreError::Stale`] and change nothing.
//! The algorithm is the fencing token of Kleppmann, "How to do distributed locking" (2016), with the store as the
//! resource that checks it.

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{Store, StoreError, Transaction};

impl Store {
    /// A generation higher than all before it, the first is 1. From now on every lower one is stale.
    ///
    /// # Errors
    /// When the store fails; then none was given out.
    pub async fn next_generation(&self) -> Result<u64, StoreError> {
        self.next_generation_above(0).await
    }

    /// As [`Store::next_generation`], and higher than `known`: the highest that a node or the Kubernetes API has seen,
    /// when the store is older than they are because it was restored.
    ///
    /// # Errors
    /// As [`Store::next_generation`].
    pub async fn next_generation_above(&self, known: u64) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let next = highest(&mut transaction).await?.max(known).saturating_add(1);
        let next = i64::try_from(next).map_err(|_| StoreError::Refused("no generation is left".to_owned()))?;
        sqlx::query("UPDATE fence SET highest = ?1").bind(next).execute(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(next.unsigned_abs())
    }

    /// The highest generation that was given out; 0: none.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn generation(&self) -> Result<u64, StoreError> {
        let mut connection = self.reader.acquire().await?;
        highest(&mut connection).await
    }

    /// A transaction that writes in the name of a generation.
    pub(super) async fn fenced(&self, generation: u64) -> Result<Transaction, StoreError> {
        let mut transaction = self.begin().await?;
        let highest = highest(&mut transaction).await?;
        let refused = match generation.cmp(&highest) {
            std::cmp::Ordering::Less => StoreError::Stale { highest },
            std::cmp::Ordering::Equal => return Ok(transaction),
            std::cmp::Ordering::Greater => StoreError::Refused(format!(
                "generation {generation} was never given out (the highest is {highest}): take the next one first"
            )),
        };
        transaction.rollback().await?;
        Err(refused)
    }
}

async fn highest(connection: &mut SqliteConnection) -> Result<u64, StoreError> {
    let row = sqlx::query("SELECT highest FROM fence").fetch_one(connection).await?;
    Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
}

/// A generation as the database keeps it. All that were given out fit.
pub(super) fn column(generation: u64) -> i64 {
    i64::try_from(generation).unwrap_or(i64::MAX)
}
