//! Feeling what other processes change.
//!
//! `PRAGMA data_version` of one connection moves when any other connection, of this process or another, has committed;
//! asking for it touches no disk. Only then the generations are read, because ledger commits move it too.

use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{self, MissedTickBehavior};

use super::{Store, StoreError};
use crate::failpoint;

/// How often the store is asked: well within the 2 s in which a revocation has to be felt.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Generations of what others may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Raised by every change of a key.
    pub keys: u64,
    /// Raised by every change of the shift.
    pub shift: u64,
    /// Raised when an alias goes elsewhere than before.
    pub routes: u64,
    /// Raised by what is said by hand, and by every change of a switch.
    pub lifecycle: u64,
    /// Whether the last poll reached the store. While it does not, the generations are the last ones known.
    pub reachable: bool,
}

/// The task that polls. Dropping it ends the task.
#[derive(Debug)]
pub struct ChangeWatcher {
    receiver: watch::Receiver<Changes>,
    _tasks: JoinSet<()>,
}

impl ChangeWatcher {
    /// Starts to poll, as a task of the current runtime.
    ///
    /// # Errors
    /// When the store cannot be read now.
    pub async fn start(store: &Store, interval: Duration) -> Result<Self, StoreError> {
        let mut poll = Poll { store: store.clone(), connection: None, data_version: None };
        let first = poll.once(Changes::default()).await?;
        let (sender, receiver) = watch::channel(first);
        let mut tasks = JoinSet::new();
        tasks.spawn(run(poll, sender, interval));
        Ok(Self { receiver, _tasks: tasks })
    }

    /// What is known of the generations, now and whenever they move.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Changes> {
        self.receiver.clone()
    }
}

struct Poll {
    store: Store,
    /// Of its own: one of the pool that is never given back would keep the store from closing.
    connection: Option<SqliteConnection>,
    data_version: Option<i64>,
}

async fn run(mut poll: Poll, sender: watch::Sender<Changes>, interval: Duration) {
    let mut tick = time::interval(interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !sender.is_closed() {
        tick.tick().await;
        let known = *sender.borrow();
        let now = match poll.once(known).await {
            Ok(now) => now,
            Err(error) => {
                if known.reachable {
                    tracing::error!(%error, "the store is not reachable, what is known stays in force");
                }
                poll.connection = None;
                Changes { reachable: false, ..known }
            }
        };
        sender.send_if_modified(|changes| std::mem::replace(changes, now) != now);
    }
}

impl Poll {
    async fn once(&mut self, known: Changes) -> Result<Changes, StoreError> {
        failpoint::hit("store.poll.before")?;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            // A new connection counts from anew: its first answer says nothing about what happened before.
            None => {
                self.data_version = None;
                self.connection.insert(self.store.reader.acquire().await?.detach())
            }
        };
        let data_version: i64 = sqlx::query("PRAGMA data_version").fetch_one(&mut *connection).await?.try_get(0)?;
        if self.data_version == Some(data_version) {
            return Ok(Changes { reachable: true, ..known });
        }
        let changes = generations(connection).await?;
        self.data_version = Some(data_version);
        Ok(changes)
    }
}

async fn generations(connection: &mut SqliteConnection) -> Result<Changes, StoreError> {
    let mut changes = Changes { reachable: true, ..Changes::default() };
    for row in sqlx::query("SELECT topic, generation FROM generation").fetch_all(connection).await? {
        let generation = row.try_get::<i64, _>(1)?.unsigned_abs();
        match row.try_get::<&str, _>(0)? {
            "keys" => changes.keys = generation,
            "shift" => changes.shift = generation,
            "routes" => changes.routes = generation,
            "lifecycle" => changes.lifecycle = generation,
            _ => {}
        }
    }
    Ok(changes)
}

impl Store {
    /// The generations now: a caller that has just made a change need not wait for the watcher.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn generations(&self) -> Result<Changes, StoreError> {
        let mut connection = self.reader.acquire().await?;
        generations(&mut connection).await
    }
}
