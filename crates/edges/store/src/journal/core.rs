//! One core's journal: the part of the ledger that stands on the request path.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Entry, Reservation, UsageSource};
use tokio::sync::watch;

use super::record;
use super::segment::{HEADER, SETTLE_ROOM, Segment, Synced};
use super::{Durability, JournalError, Shared};
use crate::clock::{self, Now};
use crate::failpoint;

/// Bytes of settled entries kept in memory while the disk fails. Beyond it, entries without a charge and without a
/// reservation (refusals) are given up and counted; those with one are as many as requests are in flight.
pub const PENDING_MAX: usize = 8 << 20;
/// Capacity that a buffer keeps after a burst.
const BUFFER_KEPT: usize = 1 << 20;
/// How far below its limit [`Journal::flush`] already begins the next file, so that no reservation has to.
const ROTATE_AHEAD: u64 = 64 << 10;
/// Bits of `Shared::failing_flags`. Apart, because preallocated files can still be written when no new one can be made.
const FAILED_TO_WRITE: u8 = 1;
const FAILED_TO_CREATE: u8 = 2;

/// One core's journal. Not shared: the core that admits a request also settles it.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<Shared>,
    core: u16,
    segment: Arc<Segment>,
    /// Where the next record goes.
    end: u64,
    /// Records not written yet: settled entries, and a reservation while it is being written.
    buffer: Vec<u8>,
    /// A write failed and could not be taken back: nothing more may go into this file.
    spoiled: bool,
    /// Why the next file could not be begun: tried again by `flush` only, not by every request.
    stuck: Option<i32>,
}

/// A reservation that the operating system has. At [`Durability::Power`] the request may go upstream only after
/// [`Commit::wait`].
#[derive(Debug)]
#[must_use = "the request may go upstream only when the reservation is as durable as was asked for"]
pub struct Commit {
    synced: Option<(watch::Receiver<Synced>, u64)>,
}

impl Commit {
    /// Waits until the reservation is as durable as the journal's level says; at [`Durability::Process`] it already
    /// is.
    ///
    /// # Errors
    /// [`JournalError::NotSynced`] when the disk refused it. The reservation stays and has to be settled.
    pub async fn wait(self) -> Result<(), JournalError> {
        let Some((mut synced, bytes)) = self.synced else { return Ok(()) };
        let reached = synced.wait_for(|synced| synced.failed || synced.bytes >= bytes).await;
        match reached {
            Ok(synced) if !synced.failed => Ok(()),
            Ok(_) | Err(_) => Err(JournalError::NotSynced),
        }
    }
}

impl Journal {
    pub(super) fn open(shared: Arc<Shared>, core: u16) -> Result<Self, JournalError> {
        let segment = shared.create_segment(core)?;
        Ok(Self { shared, core, segment, end: HEADER, buffer: Vec::with_capacity(4096), spoiled: false, stuck: None })
    }

    /// Writes a reservation, and with it every entry settled since the last write. One system call.
    ///
    /// # Errors
    /// When it is not written. Then it has not happened, and nothing of it will be found after a restart.
    pub fn reserve(&mut self, reservation: &Reservation) -> Result<Commit, JournalError> {
        let waiting_bytes = self.shared.waiting_bytes.load(Ordering::Relaxed);
        let spool_bytes = self.shared.options.spool_bytes;
        if waiting_bytes >= spool_bytes {
            return Err(JournalError::SpoolFull { waiting_bytes, spool_bytes });
        }
        self.make_room()?;
        let settled = self.buffer.len();
        record::put_reservation(&mut self.buffer, reservation, clock::boottime_ns())
            .map_err(|record::TooLong(field)| JournalError::TooLong { field })?;
        let written = self.write("journal.reserve.before_write", "journal.reserve.after_write");
        if let Err(error) = written {
            self.buffer.truncate(settled);
            return Err(error);
        }
        Ok(self.commit())
    }

    /// Records how a request ended. It is written with the next reservation or flush; until then a dead process
    /// leaves the reservation, which keeps its estimate.
    pub fn settle(&mut self, entry: &Entry) {
        let charged = entry.reserved_tokens > 0 || entry.source != UsageSource::None || entry.tokens() > 0;
        if self.buffer.len() >= PENDING_MAX && !charged {
            self.shared.dropped_entries.fetch_add(1, Ordering::Relaxed);
            return;
        }
        record::put_entry(&mut self.buffer, entry);
    }

    /// Writes what is settled, and begins the next file when this one is nearly full. To be called every 10 ms or so;
    /// without anything to do it makes no system call.
    ///
    /// # Errors
    /// When it is not written; the entries stay for the next call.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        if self.spoiled || self.segment.synced.borrow().failed {
            self.rotate()?;
        }
        if !self.buffer.is_empty() {
            self.write("journal.flush.before_write", "journal.flush.after_write")?;
        }
        if self.end + ROTATE_AHEAD >= self.shared.options.segment_bytes && self.end > HEADER {
            self.rotate()?;
        }
        Ok(())
    }

    /// Whether less than a tenth of the spool is left, or writing fails: identities with a quota are to be refused.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.shared.is_pressed()
    }

    /// Bytes that wait for the next write.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Makes sure that a reservation may go into the current file.
    fn make_room(&mut self) -> Result<(), JournalError> {
        if !self.spoiled && self.end < self.shared.options.segment_bytes {
            return Ok(());
        }
        match self.stuck {
            Some(code) => {
                let source = io::Error::from_raw_os_error(code);
                Err(JournalError::from_io("begin the next file", &self.shared.folder, source))
            }
            None => self.rotate(),
        }
    }

    /// Writes the buffer behind the last record. On an error the file is as before and the buffer is kept.
    fn write(&mut self, before: &'static str, after: &'static str) -> Result<(), JournalError> {
        if self.end + self.buffer.len() as u64 > self.shared.options.segment_bytes + SETTLE_ROOM && self.end > HEADER {
            self.rotate()?;
        }
        let written = failpoint::hit(before).and_then(|()| write_all(&self.segment, &self.buffer, self.end));
        if let Err(source) = written {
            // What came of it must not be found after a restart: the next write goes to the same place, and may be
            // shorter.
            self.spoiled = self.segment.file.set_len(self.end).is_err();
            return Err(self.shared.write_failed("write", source));
        }
        self.end += self.buffer.len() as u64;
        self.shared.wrote(&self.segment, self.end, self.buffer.len() as u64);
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT);
        failpoint::passed(after);
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), JournalError> {
        let fail = |source| JournalError::from_io("begin the next file", &self.shared.folder, source);
        failpoint::hit("journal.rotate.before").map_err(fail)?;
        let next = self.shared.create_segment(self.core).inspect_err(|error| self.stuck = Some(error.code()))?;
        self.stuck = None;
        self.segment.seal();
        self.segment = next;
        self.end = HEADER;
        self.spoiled = false;
        failpoint::passed("journal.rotate.after");
        Ok(())
    }

    fn commit(&self) -> Commit {
        let synced = match self.shared.options.durability {
            Durability::Process => None,
            Durability::Power => Some((self.segment.synced.subscribe(), self.end)),
        };
        Commit { synced }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            tracing::error!(%error, pending_bytes = self.buffer.len(), "settled entries not written at the end");
        }
        self.segment.seal();
    }
}

impl Shared {
    fn create_segment(&self, core: u16) -> Result<Arc<Segment>, JournalError> {
        let now = Now { boot: self.boot, boottime_ns: clock::boottime_ns(), wall: clock::wall() };
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let segment = Segment::create(&self.folder, sequence, core, &now, self.options.segment_bytes)
            .inspect_err(|error| self.note_failure(FAILED_TO_CREATE, &error.to_string()))?;
        self.note_success(FAILED_TO_CREATE);
        let segment = Arc::new(segment);
        self.segments.lock().push(Arc::clone(&segment));
        self.folder_changed.store(true, Ordering::SeqCst);
        self.bell.ring();
        Ok(segment)
    }

    /// Publishes what was written.
    fn wrote(&self, segment: &Segment, end: u64, bytes: u64) {
        segment.last_write_ns.store(clock::boottime_ns(), Ordering::Relaxed);
        segment.set_written(end);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.note_success(FAILED_TO_WRITE);
        self.bell.ring();
    }

    fn write_failed(&self, what: &'static str, source: io::Error) -> JournalError {
        let error = JournalError::from_io(what, &self.folder, source);
        self.note_failure(FAILED_TO_WRITE, &error.to_string());
        error
    }

    fn note_failure(&self, which: u8, text: &str) {
        self.write_failures.fetch_add(1, Ordering::Relaxed);
        self.failing_flags.fetch_or(which, Ordering::Relaxed);
        let mut failing = self.failing.lock();
        if failing.as_deref() != Some(text) {
            tracing::error!(error = text, "journal not written");
            *failing = Some(text.to_owned());
        }
    }

    fn note_success(&self, which: u8) {
        if self.failing_flags.load(Ordering::Relaxed) & which == 0 {
            return;
        }
        if self.failing_flags.fetch_and(!which, Ordering::Relaxed) == which {
            *self.failing.lock() = None;
            tracing::info!("journal is written again");
        }
    }
}

#[cfg(not(feature = "failpoints"))]
fn write_all(segment: &Segment, bytes: &[u8], at: u64) -> io::Result<()> {
    segment.file.write_all_at(bytes, at)
}

/// In two halves, so that a harness can tear a write.
#[cfg(feature = "failpoints")]
fn write_all(segment: &Segment, bytes: &[u8], at: u64) -> io::Result<()> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    segment.file.write_all_at(first, at)?;
    failpoint::hit("journal.write.torn")?;
    segment.file.write_all_at(second, at + first.len() as u64)
}
