//! Transactions that never leave a connection in doubt.
//!
//! Not sqlx's own: SQLite rolls back by itself when the disk is full or fails, sqlx then still counts a transaction as
//! open, and every later one on the connection is refused. Here a connection whose transaction was not ended in order,
//! by an error or because nobody waits any more, is closed, which rolls back whatever is left.

use std::ops::{Deref, DerefMut};

use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::StoreError;

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Holds the write lock from its beginning, so that it never fails half-way for another's.
    Write,
    /// Sees one state of the store.
    Read,
}

/// An open transaction. Dropped without [`Transaction::commit`], it has changed nothing.
#[derive(Debug)]
pub(super) struct Transaction {
    connection: PoolConnection<Sqlite>,
    is_open: bool,
}

impl Transaction {
    pub(super) async fn begin(pool: &SqlitePool, purpose: Purpose) -> Result<Self, StoreError> {
        let connection = pool.acquire().await?;
        // Open from here on: `BEGIN` may have been done when nobody waits for it any more.
        let mut transaction = Self { connection, is_open: true };
        let begin = match purpose {
            Purpose::Write => "BEGIN IMMEDIATE",
            Purpose::Read => "BEGIN",
        };
        sqlx::raw_sql(begin).execute(&mut *transaction.connection).await?;
        Ok(transaction)
    }

    pub(super) async fn commit(self) -> Result<(), StoreError> {
        self.end("COMMIT").await
    }

    pub(super) async fn rollback(self) -> Result<(), StoreError> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &'static str) -> Result<(), StoreError> {
        sqlx::raw_sql(how).execute(&mut *self.connection).await?;
        self.is_open = false;
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_open {
            self.connection.close_on_drop();
        }
    }
}

impl Deref for Transaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}
