//! The journal: reservations before the upstream call, entries after it, one append-only file per core.
//!
//! It is the only queue between the request path and the store. [`crate::LedgerWriter`] reads behind what the cores
//! write and brings entries into the store; a store that is slow or away makes the files longer and nothing else.
//! (A channel of entries would be a second way for the same records, with a bound of its own at which one has to fall
//! back to the file anyway.)
//!
//! * A reservation is in the operating system when [`Journal::reserve`] returns: one `pwrite` that also carries every
//!   entry settled since. At [`Durability::Power`] its [`Commit`] also waits for an `fdatasync` shared by all that
//!   wait; at [`Durability::Process`] one `fdatasync` per 50 ms at most follows by itself.
//! * A write that fails is taken back: the file is cut to where it was, the reservation has not happened, and settled
//!   entries stay in memory for the next try.
//! * Files are preallocated beyond the size at which reservations stop, so that a full disk refuses new requests while
//!   what is in flight can still be settled.
//! * When every entry of a file is in the store, and the entry of every reservation in it, the file is renamed so that a
//!   next start does not offer it again. It is deleted a minute later, because the limits' windows are rebuilt from it.

mod carry;
mod core;
mod error;
mod record;
mod recovery;
mod segment;
mod sync;
pub(crate) mod tail;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{BootId, Now};

pub use self::core::{Commit, Journal, PENDING_MAX};
pub use error::JournalError;
pub use record::{Record, TEXT_MAX};
pub use recovery::{Admission, Damage, Recovery, WINDOW};
use segment::Segment;
use sync::Syncer;

/// When a reservation counts as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When the operating system has it: survives the death of the process. A power loss may take the last 50 ms.
    #[default]
    Process,
    /// When the disk has it: survives a power loss. Reservations that wait at one time share one `fdatasync`.
    Power,
}

/// How journals are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// When a reservation counts as written.
    pub durability: Durability,
    /// Size at which a file is closed and the next one begun.
    pub segment_bytes: u64,
    /// Most bytes that may wait for the store, over all cores. At 90 % [`Journals::is_pressed`], at 100 %
    /// reservations are refused.
    pub spool_bytes: u64,
    /// How long what is written waits for its `fdatasync` at [`Durability::Process`]: one for all of it.
    pub sync_interval: Duration,
    /// How long a file is kept after its last write, for the limits' windows: [`WINDOW`] and a second for the clocks.
    pub retention: Duration,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Process,
            segment_bytes: 16 << 20,
            spool_bytes: 4 << 30,
            sync_interval: Duration::from_millis(50),
            retention: WINDOW.saturating_add(Duration::from_secs(1)),
        }
    }
}

/// Figures of all journals of the process, for metrics and status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalStatus {
    /// Files there are.
    pub segments: u64,
    /// Bytes written by this process.
    pub written_bytes: u64,
    /// Bytes that wait for the store.
    pub waiting_bytes: u64,
    /// Writes that failed.
    pub write_failures: u64,
    /// `fdatasync` calls that failed.
    pub sync_failures: u64,
    /// Entries without a charge that were given up because the disk failed for too long.
    pub dropped_entries: u64,
    /// What the last failure was; `None` once writes succeed again.
    pub failing: Option<String>,
}

/// All journals of the process: made once at start, hands out one [`Journal`] per core. The caller holds the state
/// folder's lock: two processes must not share one journal folder.
#[derive(Debug)]
pub struct Journals {
    shared: Arc<Shared>,
    syncer: Syncer,
}

/// What the cores, the syncing thread and the reader behind them share.
#[derive(Debug)]
pub(crate) struct Shared {
    folder: PathBuf,
    options: JournalOptions,
    boot: BootId,
    next_sequence: AtomicU64,
    /// Every file, oldest first.
    segments: Mutex<Vec<Arc<Segment>>>,
    bell: sync::Bell,
    waiting_bytes: AtomicU64,
    written_bytes: AtomicU64,
    write_failures: AtomicU64,
    sync_failures: AtomicU64,
    dropped_entries: AtomicU64,
    folder_changed: AtomicBool,
    /// What fails; `failing` says how. Read on every write, unlike it.
    failing_flags: AtomicU8,
    failing: Mutex<Option<String>>,
}

impl Journals {
    /// Opens the folder, makes it when it is absent, and reads what earlier processes left in it.
    ///
    /// # Errors
    /// When the folder cannot be made or read, or holds files of a later version.
    pub fn open(folder: &Path, options: JournalOptions) -> Result<(Self, Recovery), JournalError> {
        Self::open_at(folder, options, &Now::read())
    }

    /// [`Journals::open`] as if it were `now`.
    ///
    /// # Errors
    /// As [`Journals::open`].
    pub fn open_at(folder: &Path, options: JournalOptions, now: &Now) -> Result<(Self, Recovery), JournalError> {
        segment::make_folder(folder)?;
        let (recovery, segments) = recovery::recover(folder, now)?;
        let next = segments.iter().map(|segment| segment.sequence + 1).max().unwrap_or(1);
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            options,
            boot: now.boot,
            next_sequence: AtomicU64::new(next.max(recovery.next_sequence)),
            segments: Mutex::new(segments),
            bell: sync::Bell::default(),
            waiting_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            write_failures: AtomicU64::new(0),
            sync_failures: AtomicU64::new(0),
            dropped_entries: AtomicU64::new(0),
            folder_changed: AtomicBool::new(false),
            failing_flags: AtomicU8::new(0),
            failing: Mutex::new(None),
        });
        let syncer = Syncer::start(Arc::clone(&shared))?;
        Ok((Self { shared, syncer }, recovery))
    }

    /// The journal of one core. Each core has one, and a request's entry goes to the journal of its reservation.
    ///
    /// # Errors
    /// When its first file cannot be made.
    pub fn journal(&self, core: u16) -> Result<Journal, JournalError> {
        Journal::open(Arc::clone(&self.shared), core)
    }

    /// Whether less than a tenth of the spool is left, or writing fails: identities with a quota are to be refused
    /// before anything is lost.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.shared.is_pressed()
    }

    /// Figures for metrics and status.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.shared.status()
    }

    /// Brings everything written so far to the disk and stops the syncing thread.
    pub fn close(self) {
        self.syncer.stop();
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    pub(crate) fn is_pressed(&self) -> bool {
        let limit = self.options.spool_bytes;
        self.waiting_bytes.load(Ordering::Relaxed) >= limit - limit / 10
            || self.failing_flags.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn status(&self) -> JournalStatus {
        JournalStatus {
            segments: self.segments.lock().len() as u64,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            waiting_bytes: self.waiting_bytes.load(Ordering::Relaxed),
            write_failures: self.write_failures.load(Ordering::Relaxed),
            sync_failures: self.sync_failures.load(Ordering::Relaxed),
            dropped_entries: self.dropped_entries.load(Ordering::Relaxed),
            failing: self.failing.lock().clone(),
        }
    }

    /// Every file there is, oldest first.
    pub(crate) fn snapshot(&self) -> Vec<Arc<Segment>> {
        self.segments.lock().clone()
    }

    pub(crate) fn set_waiting(&self, bytes: u64) {
        self.waiting_bytes.store(bytes, Ordering::Relaxed);
    }
}
