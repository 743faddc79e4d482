//! Reading what a dead process left.
//!
//! Each file is read up to its first byte that is not a whole record: what stands before is exactly what was written,
//! what stands behind is never guessed at. Memory is bounded by what was in flight and by the last minute, however
//! long the store was away: entries are only counted here, and read again by the writer behind the journals.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tidegate_core::{RequestId, Reservation};

use super::JournalError;
use super::record::{self, Record, Unread};
use super::segment::{self, HEADER, Head, Left, NoHead, Segment};
use crate::clock::Now;

/// How far back admissions are given: the length of the limits' window.
pub const WINDOW: Duration = Duration::from_secs(60);

/// What a dead process left.
#[derive(Debug, Default)]
pub struct Recovery {
    /// Reservations of which no entry was found: they keep their estimate. [`crate::LedgerWriter::start`] brings them
    /// into the ledger, unless it knows their entry already.
    pub orphans: Vec<Reservation>,
    /// What was admitted in the last [`WINDOW`], oldest first: for the limits' windows.
    pub admissions: Vec<Admission>,
    /// Entries found.
    pub entries: u64,
    /// Bytes that could not be used.
    pub damage: Vec<Damage>,
    pub(super) next_sequence: u64,
}

/// An admission of the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What was reserved.
    pub reservation: Reservation,
    /// How long ago it was written; zero when no clock can say so.
    pub age: Duration,
    /// Tokens charged, when its entry was found.
    pub settled_tokens: Option<u64>,
}

impl Admission {
    /// What counts in a window: the charge when it is known, else the estimate.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let reservation = &self.reservation;
        self.settled_tokens.unwrap_or_else(|| reservation.prompt_tokens.saturating_add(reservation.output_tokens))
    }
}

/// A part of a file that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where the unusable part begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// A write that was cut short explains it: expected after a crash. Otherwise the file is kept for the operator.
    pub torn: bool,
}

/// Reads all files of the folder, oldest first.
pub(super) fn recover(folder: &Path, now: &Now) -> Result<(Recovery, Vec<Arc<Segment>>), JournalError> {
    let mut state = State::default();
    let mut segments = Vec::new();
    for path in list(folder)? {
        let fail = |what| move |source| JournalError::from_io(what, folder, source);
        let bytes = fs::read(&path).map_err(fail("read a file"))?;
        let head = match segment::read_header(&bytes) {
            Ok(head) => head,
            Err(NoHead::Empty) => {
                fs::remove_file(&path).map_err(fail("remove an empty file"))?;
                continue;
            }
            Err(NoHead::Version(found)) => return Err(JournalError::Version { path, found }),
            Err(NoHead::Corrupt) => {
                set_aside(&path);
                state.damage(&path, 0, bytes.len() as u64, Unread::Corrupt);
                continue;
            }
        };
        state.recovery.next_sequence = state.recovery.next_sequence.max(head.sequence + 1);
        let settled = path.extension().is_some_and(|extension| extension == segment::SETTLED);
        let left = state.read(&path, &bytes, &head, settled, now);
        let file = File::open(&path).map_err(fail("open a file"))?;
        segments.push(Arc::new(Segment::left(path, file, &head, &left)));
    }
    Ok((state.finish(), segments))
}

/// The folder's journal files, oldest first: their names sort by age.
fn list(folder: &Path) -> Result<Vec<PathBuf>, JournalError> {
    let fail = |source| JournalError::from_io("list the files", folder, source);
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let is = |name: &str| path.extension().is_some_and(|extension| extension == name);
        if is(segment::EXTENSION) || is(segment::SETTLED) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Renames a file that must neither be read again nor be lost.
pub(super) fn set_aside(path: &Path) {
    if let Err(error) = fs::rename(path, path.with_extension("corrupt")) {
        tracing::error!(%error, path = %path.display(), "damaged journal file not set aside");
    }
}

#[derive(Default)]
struct State {
    recovery: Recovery,
    open: AHashMap<RequestId, Reservation>,
    recent: AHashMap<RequestId, Admission>,
}

impl State {
    fn read(&mut self, path: &Path, bytes: &[u8], head: &Head, settled: bool, now: &Now) -> Left {
        let mut at = HEADER as usize;
        let mut recent = false;
        let mut corrupt = false;
        while at < bytes.len() {
            match record::read(&bytes[at..]) {
                Ok((record, len)) => {
                    recent |= self.take(record, head, settled, now);
                    at += len;
                }
                Err(unread) => {
                    corrupt = unread == Unread::Corrupt;
                    self.damage(path, at as u64, (bytes.len() - at) as u64, unread);
                    break;
                }
            }
        }
        Left { valid: at as u64, last_write_ns: if recent { now.boottime_ns } else { 0 }, corrupt, settled }
    }

    /// Takes one record; whether the limits' windows need its file. In a settled file no reservation is an orphan: its
    /// entry may have been in a file that is gone.
    fn take(&mut self, record: Record, head: &Head, settled: bool, now: &Now) -> bool {
        match record {
            Record::Reservation { reservation, boottime_ns } => {
                // The wall clock of the admission, the boot of the file.
                let written = Now { boot: head.written_by.boot, boottime_ns, wall: reservation.at };
                let age = now.age_of(&written, WINDOW);
                let id = reservation.id;
                // A second reservation of one id is a fallback's: it replaces the first, which was released.
                if age < WINDOW {
                    let reservation = reservation.clone();
                    self.recent.insert(id, Admission { reservation, age, settled_tokens: None });
                }
                if !settled {
                    self.open.insert(id, reservation);
                }
                age < WINDOW
            }
            Record::Entry(entry) => {
                self.recovery.entries += 1;
                self.open.remove(&entry.id);
                if let Some(admission) = self.recent.get_mut(&entry.id) {
                    admission.settled_tokens = Some(entry.tokens());
                    return true;
                }
                false
            }
        }
    }

    fn damage(&mut self, path: &Path, offset: u64, bytes: u64, unread: Unread) {
        let torn = unread == Unread::Torn;
        if torn {
            tracing::info!(path = %path.display(), offset, bytes, "journal file ends in a write that was cut short");
        } else {
            tracing::error!(path = %path.display(), offset, bytes, "journal file is damaged");
        }
        self.recovery.damage.push(Damage { path: path.to_owned(), offset, bytes, torn });
    }

    fn finish(mut self) -> Recovery {
        self.recovery.orphans = self.open.into_values().collect();
        self.recovery.orphans.sort_unstable_by_key(|reservation| reservation.id);
        self.recovery.admissions = self.recent.into_values().collect();
        self.recovery
            .admissions
            .sort_unstable_by_key(|admission| (std::cmp::Reverse(admission.age), admission.reservation.id));
        self.recovery
    }
}
