//! The store: keys, ledger, shift, routes, switches and audit in a SQLite file that several processes may share.
//!
//! WAL with `synchronous=FULL`: what a call has answered survives a power loss. One connection writes, so that writers
//! queue in the pool and not on the file's lock; a few read. PostgreSQL will be a second kind of [`Store`] behind the
//! same functions; the module `conformance` says what both have to do.

mod audit;
mod changes;
mod error;
mod fence;
mod json;
mod keys;
mod ledger;
mod lifecycle;
mod routes;
mod row;
mod schema;
mod shift;
mod steps;
mod switches;
mod transaction;
mod usage;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::clock;
pub use audit::{AuditRow, By};
pub use changes::{ChangeWatcher, Changes, POLL_INTERVAL};
pub use error::StoreError;
pub use keys::{KeySnapshot, Rotation, StoredKey};
pub use ledger::{Appended, EntryQuery, TOKENS_MAX};
pub use lifecycle::{OverrideRow, PauseRow, Verb};
pub use routes::{ROUTE_TARGETS_MAX, ROUTES_MAX, RouteRow, RouteSnapshot, RouteTarget};
pub use shift::Shift;
pub use steps::{MeasuredRow, Noted, PHASES_JSON_MAX, REVISIONS_KEPT, STEP_TEXT_MAX, STEPS_MAX, StepRow};
pub use switches::{SWITCH_JSON_MAX, SWITCHES_KEPT, SwitchMode, SwitchOutcome, SwitchRow};
use transaction::{Purpose, Transaction};
pub use usage::{Bucket, GroupBy, PERIODS_MAX, PeriodSum, ROWS_MAX, UsageFilter, UsageQuery, UsageRow, UsageSums};

/// Connections that read.
const READERS: u32 = 4;
/// How long a call waits for another process's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys, ledger, shift, routes, switches and audit. Cheap to clone; all clones are one store.
#[derive(Clone, Debug)]
pub struct Store {
    writer: SqlitePool,
    reader: SqlitePool,
    subjects: Arc<Mutex<ledger::Subjects>>,
}

impl Store {
    /// Opens the store that the documents name, makes it when it is absent (0600) and brings its schema to this
    /// version. A relative path is resolved in `state`.
    ///
    /// # Errors
    /// When it cannot be opened, is damaged, or has a schema that this version does not make.
    pub async fn open(config: &tidegate_config::site::Store, state: &Path) -> Result<Self, StoreError> {
        match config {
            tidegate_config::site::Store::Sqlite(path) => Self::open_sqlite(&state.join(path)).await,
            tidegate_config::site::Store::Postgres(_) => Err(StoreError::NotSupported("postgres")),
        }
    }

    /// Opens a SQLite file.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_sqlite(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteConnectOptions::new()).await
    }

    /// Opens a SQLite file that is full at this many pages, to try a full disk out.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[cfg(feature = "failpoints")]
    pub async fn open_sqlite_limited(path: &Path, pages: u32) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteConnectOptions::new().pragma("max_page_count", pages.to_string())).await
    }

    async fn open_with(path: &Path, options: SqliteConnectOptions) -> Result<Self, StoreError> {
        make_file(path)?;
        let options = options
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(false)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("trusted_schema", "OFF")
            .thread_name(|number| format!("store-{number}"));
        let cannot_open = |error: sqlx::Error| match StoreError::from(error) {
            StoreError::Io(message) => StoreError::CannotOpen { path: path.to_owned(), message },
            other => other,
        };
        let pool = |size| SqlitePoolOptions::new().max_connections(size).min_connections(0).idle_timeout(None);
        let writer = pool(1).max_lifetime(None).connect_with(options.clone()).await.map_err(cannot_open)?;
        let mut connection = writer.acquire().await.map_err(cannot_open)?;
        schema::migrate(&mut connection, clock::wall()).await?;
        drop(connection);
        let reader = pool(READERS).connect_lazy_with(options.pragma("query_only", "ON"));
        Ok(Self { writer, reader, subjects: Arc::default() })
    }

    /// Waits for the calls in progress and closes the file.
    pub async fn close(&self) {
        self.reader.close().await;
        self.writer.close().await;
    }

    async fn begin(&self) -> Result<Transaction, StoreError> {
        Transaction::begin(&self.writer, Purpose::Write).await
    }
}

/// Notes that other processes have to read a topic anew.
async fn raise(connection: &mut SqliteConnection, topic: &'static str) -> Result<(), StoreError> {
    sqlx::query("UPDATE generation SET generation = generation + 1 WHERE topic = ?1")
        .bind(topic)
        .execute(connection)
        .await?;
    Ok(())
}

/// Makes the file before SQLite does, so that nobody else can ever read it.
fn make_file(path: &Path) -> Result<(), StoreError> {
    let made = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) => match StoreError::from(error) {
            StoreError::Io(message) => Err(StoreError::CannotOpen { path: PathBuf::from(path), message }),
            other => Err(other),
        },
    }
}
