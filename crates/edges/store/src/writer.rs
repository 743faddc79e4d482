//! From the journals into the store: the one task that writes the ledger.
//!
//! It reads behind the cores, so its queue is the journal itself: bounded by the disk and not by memory, the same when
//! the store is slow, away, or was away before a restart, and without any work on the request path. Every entry is
//! delivered at least once and counted exactly once, because the store refuses a second final entry of an id.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Entry, Unix};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{self, Instant, MissedTickBehavior};

use crate::clock;
use crate::journal::tail::{BATCH_ENTRIES_MAX, Batch, Tail};
use crate::journal::{Journals, Recovery};
use crate::store::{Store, StoreError};

/// How the ledger is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// How often what the cores have written is brought into the store: one transaction each time. How old usage
    /// figures may be.
    pub interval: Duration,
    /// First wait after a failure; doubled up to `retry_max`.
    pub retry_min: Duration,
    /// Longest wait after a failure.
    pub retry_max: Duration,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(500),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
        }
    }
}

/// Figures of the writer, for metrics and status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterStatus {
    /// Entries brought into the store.
    pub inserted: u64,
    /// Entries that were there already.
    pub duplicates: u64,
    /// Transactions.
    pub batches: u64,
    /// Failures of the store or of reading the journals.
    pub failures: u64,
    /// What fails now; `None` when the last try succeeded.
    pub failing: Option<String>,
    /// Since when it fails.
    pub failing_since: Option<Unix>,
}

/// The task that writes the ledger. Dropping it stops the task where it is; the journals keep what is not written.
#[derive(Debug)]
pub struct LedgerWriter {
    drains: mpsc::Sender<oneshot::Sender<Result<(), String>>>,
    status: Arc<Mutex<WriterStatus>>,
    tasks: JoinSet<()>,
}

/// Drains asked for at one time.
const DRAINS_MAX: usize = 16;

impl LedgerWriter {
    /// Brings what a dead process left into the store (its entries, and its orphans at their estimate), then goes on
    /// with what the cores write, as a task of the current runtime. When this returns, the store's sums are complete.
    ///
    /// # Errors
    /// When the store fails; the journals keep everything.
    pub async fn start(
        store: Store,
        journals: &Journals,
        recovery: &Recovery,
        options: WriterOptions,
    ) -> Result<Self, StoreError> {
        let status = Arc::new(Mutex::new(WriterStatus::default()));
        let tail = Tail::new(journals.shared());
        let mut work = Work { store, tail: Some(tail), held: None, replaying: true, status: Arc::clone(&status) };
        work.catch_up().await?;
        let orphans: Vec<Entry> = recovery.orphans.iter().map(Entry::orphan).collect();
        for orphans in orphans.chunks(BATCH_ENTRIES_MAX) {
            work.held = Some(Batch::of(orphans));
            work.write_held().await?;
        }
        work.collect().await;
        work.replaying = false;
        let (drains, asked) = mpsc::channel(DRAINS_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(run(work, asked, options));
        Ok(Self { drains, status, tasks })
    }

    /// Figures for metrics and status.
    #[must_use]
    pub fn status(&self) -> WriterStatus {
        self.status.lock().clone()
    }

    /// Brings everything that the cores have written until now into the store.
    ///
    /// # Errors
    /// Says why the store does not take it. It is tried again by itself.
    pub async fn drain(&self) -> Result<(), String> {
        let (done, answer) = oneshot::channel();
        let stopped = || "the ledger writer has stopped".to_owned();
        self.drains.send(done).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Drains and stops. To be called when the cores have closed their journals.
    ///
    /// # Errors
    /// Says why the store does not take what is left; the next start does.
    pub async fn stop(self) -> Result<(), String> {
        let drained = self.drain().await;
        let Self { drains, status: _, mut tasks } = self;
        drop(drains);
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| error.to_string())?;
        }
        drained
    }
}

/// What the task works with.
struct Work {
    store: Store,
    /// Absent only while a blocking thread reads with it.
    tail: Option<Tail>,
    /// Read but not in the store.
    held: Option<Batch>,
    /// What is read was left by a dead process, which has probably brought most of it into the store.
    replaying: bool,
    status: Arc<Mutex<WriterStatus>>,
}

async fn run(mut work: Work, mut asked: mpsc::Receiver<oneshot::Sender<Result<(), String>>>, options: WriterOptions) {
    let mut tick = time::interval(options.interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut wait = options.retry_min;
    let mut not_before = Instant::now();
    loop {
        let drain = tokio::select! {
            drain = asked.recv() => match drain {
                Some(drain) => Some(drain),
                None => return,
            },
            _ = tick.tick() => None,
        };
        if drain.is_none() && Instant::now() < not_before {
            continue;
        }
        let done = work.catch_up().await.map_err(|error| error.to_string());
        if done.is_ok() {
            wait = options.retry_min;
            work.collect().await;
        } else {
            not_before = Instant::now() + wait;
            wait = (wait * 2).min(options.retry_max);
        }
        if let Some(drain) = drain {
            // Nobody waits any more: then nobody wants the answer.
            let _ = drain.send(done);
        }
    }
}

impl Work {
    /// Writes everything that the cores have written until now. What they write meanwhile waits for the next call: if
    /// it did not, a busy gate would make one small transaction after the other. On an error the batch is kept.
    async fn catch_up(&mut self) -> Result<(), StoreError> {
        self.write_held().await?;
        loop {
            self.held = self.read().await?;
            let more = self.held.as_ref().is_some_and(|batch| batch.more);
            self.write_held().await?;
            if !more {
                return Ok(());
            }
        }
    }

    /// The next batch; `None` when there is none.
    async fn read(&mut self) -> Result<Option<Batch>, StoreError> {
        let Some(mut tail) = self.tail.take() else {
            return Err(StoreError::Io("the journals' reader is gone".to_owned()));
        };
        // Reading and decoding may take a millisecond, and as long as a sick disk likes.
        let read = tokio::task::spawn_blocking(move || {
            let batch = tail.next_batch();
            (tail, batch)
        });
        let (tail, batch) = read.await.map_err(|error| StoreError::Io(error.to_string()))?;
        self.tail = Some(tail);
        match batch {
            Ok(batch) => Ok((!batch.is_empty()).then_some(batch)),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    async fn write_held(&mut self) -> Result<(), StoreError> {
        let Some(batch) = self.held.take() else { return Ok(()) };
        let entries = batch.entries();
        let appended = match self.replaying {
            true => self.store.append_again(&entries).await,
            false => self.store.append_refs(&entries).await,
        };
        match appended {
            Ok(appended) => {
                let any = batch.has_entries();
                if let Some(tail) = &mut self.tail {
                    tail.committed(batch);
                }
                let mut status = self.status.lock();
                status.inserted += appended.inserted as u64;
                status.duplicates += appended.duplicates as u64;
                status.batches += u64::from(any);
                if status.failing.take().is_some() {
                    status.failing_since = None;
                    tracing::info!("the ledger is written again");
                }
                Ok(())
            }
            Err(error) => {
                self.held = Some(batch);
                if let Some(tail) = &self.tail {
                    tail.publish_waiting();
                }
                Err(self.failed(error))
            }
        }
    }

    fn failed(&self, error: StoreError) -> StoreError {
        let text = error.to_string();
        let mut status = self.status.lock();
        status.failures += 1;
        if status.failing.as_ref() != Some(&text) {
            tracing::error!(error = text, "the ledger is not written, the journals keep it");
            status.failing_since = status.failing_since.or_else(|| Some(clock::wall()));
            status.failing = Some(text);
        }
        error
    }

    /// Puts away files that are not needed any more.
    async fn collect(&mut self) {
        let Some(mut tail) = self.tail.take() else { return };
        let collected = tokio::task::spawn_blocking(move || {
            tail.collect();
            tail
        });
        match collected.await {
            Ok(tail) => self.tail = Some(tail),
            Err(error) => tracing::error!(%error, "the journals' reader is gone"),
        }
    }
}
