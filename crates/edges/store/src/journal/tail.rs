//! Reading behind the cores: what they have written and the store has not.
//!
//! Everything here is bounded by what is in flight. A batch that the store refuses is kept and offered again; nothing
//! is read past it meanwhile.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::AHashMap;
use tidegate_core::{Entry, RequestId};

use super::record::{self, Noted, Unread};
use super::segment::{HEADER, Segment};
use super::{Shared, recovery};
use crate::clock;
use crate::entry_ref::EntryRef;
use crate::failpoint;

/// Most entries in a batch: one transaction.
pub(crate) const BATCH_ENTRIES_MAX: usize = 4096;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Entries for one transaction, and how far it brings the store.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    entries: Bodies,
    /// Per file, by sequence: committed up to here.
    advances: Vec<(u64, u64)>,
    /// Whether the cores had written more than this when it was read.
    pub(crate) more: bool,
}

impl Batch {
    /// Entries that stand in no file.
    pub(crate) fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut batch = Self::default();
        for entry in entries {
            batch.entries.push(entry.id, &record::entry_body(entry));
        }
        batch
    }

    /// The entries, their texts in the batch's own bytes.
    pub(crate) fn entries(&self) -> Vec<EntryRef<'_>> {
        // Each could be read when it was put in.
        self.entries.bodies().filter_map(record::entry).collect()
    }

    pub(crate) fn has_entries(&self) -> bool {
        !self.entries.ids.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_entries() && self.advances.is_empty()
    }
}

/// Bodies of entries, as they stand in the journals, behind each other.
#[derive(Debug, Default)]
struct Bodies {
    bytes: Vec<u8>,
    ids: Vec<RequestId>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Bodies {
    fn push(&mut self, id: RequestId, body: &[u8]) {
        self.bytes.extend_from_slice(body);
        self.ids.push(id);
        self.ends.push(self.bytes.len());
    }

    fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ids.clear();
        self.ends.clear();
    }
}

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Something of it is not in the store, or it has been seen to.
    Keep,
    /// It is old, and only a few reservations that are still open keep it.
    Carry,
    /// The store has everything, the limits' windows may need it.
    Settle,
    /// Nobody needs it.
    Delete,
}

/// How far a file is.
#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) read: u64,
    pub(super) committed: u64,
    /// Reservations in this file whose entry is not in the store.
    pub(super) open: u64,
    /// Bytes were found that no core wrote.
    pub(super) corrupt: bool,
}

/// The reader behind all journals of the process.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(super) shared: Arc<Shared>,
    /// By sequence.
    pub(super) places: AHashMap<u64, Place>,
    /// Reservations whose entry is not in the store, and the file that keeps them.
    pub(super) open: AHashMap<RequestId, u64>,
    chunk: Vec<u8>,
    /// The last batch's memory: it would be given back and faulted in again for every batch.
    spare: Bodies,
}

impl Tail {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, places: AHashMap::new(), open: AHashMap::new(), chunk: Vec::new(), spare: Bodies::default() }
    }

    /// Reads the next entries; empty when there are none. Blocks on the disk.
    pub(crate) fn next_batch(&mut self) -> io::Result<Batch> {
        let mut batch = Batch { entries: std::mem::take(&mut self.spare), ..Batch::default() };
        for segment in self.shared.snapshot() {
            loop {
                if batch.entries.ids.len() >= BATCH_ENTRIES_MAX {
                    batch.more = true;
                    break;
                }
                match self.read(&segment, &mut batch) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // What was read counts as read: it must reach the store. The error comes again.
                    Err(_) if !batch.is_empty() => return Ok(Batch { more: true, ..batch }),
                    Err(error) => return Err(error),
                }
            }
        }
        self.publish_waiting();
        Ok(batch)
    }

    /// Notes that the store has a batch.
    pub(crate) fn committed(&mut self, batch: Batch) {
        let Batch { mut entries, advances, more: _ } = batch;
        for id in &entries.ids {
            self.close(*id);
        }
        entries.clear();
        self.spare = entries;
        for (sequence, committed) in advances {
            self.places.entry(sequence).or_default().committed = committed;
        }
        self.publish_waiting();
    }

    /// Says how many bytes wait for the store.
    pub(crate) fn publish_waiting(&self) {
        let mut waiting = 0;
        for segment in self.shared.snapshot() {
            let committed = self.places.get(&segment.sequence).map_or(0, |place| place.committed);
            if !segment.is_settled() {
                waiting += segment.written().saturating_sub(committed.max(HEADER));
            }
        }
        self.shared.set_waiting(waiting);
    }

    /// Deletes the files that nobody needs any more, and marks those that only the limits' windows need. Blocks on the
    /// disk.
    pub(crate) fn collect(&mut self) {
        let now_ns = clock::boottime_ns();
        let mut segments = self.shared.snapshot();
        segments.retain(|segment| self.fate(segment, now_ns) == Fate::Carry);
        if let Err(error) = self.carry(&segments) {
            tracing::warn!(%error, "old journal files are kept");
        }
        for segment in self.shared.snapshot() {
            let done = match self.fate(&segment, now_ns) {
                Fate::Keep | Fate::Carry => Ok(()),
                Fate::Settle => settle(&segment),
                Fate::Delete => self.delete(&segment),
            };
            if let Err(error) = done {
                tracing::warn!(%error, path = %segment.place().display(), "journal file not put away");
            }
        }
    }

    fn fate(&self, segment: &Segment, now_ns: u64) -> Fate {
        let written = segment.written();
        let (committed, open, corrupt) = match self.places.get(&segment.sequence) {
            _ if segment.is_settled() => (true, 0, segment.corrupt),
            Some(place) => (place.committed >= written, place.open, segment.corrupt || place.corrupt),
            None => (false, 0, segment.corrupt),
        };
        if !segment.is_sealed() || !committed {
            return Fate::Keep;
        }
        let last_write_ns = segment.last_write_ns.load(Ordering::Relaxed);
        let age = Duration::from_nanos(now_ns.saturating_sub(last_write_ns));
        let is_old = age >= self.shared.options.retention || last_write_ns == 0 || written <= HEADER;
        match (is_old, open > 0) {
            (true, true) if !corrupt => Fate::Carry,
            (true, false) => Fate::Delete,
            (false, false) if !corrupt && !segment.is_settled() => Fate::Settle,
            (_, _) => Fate::Keep,
        }
    }

    fn delete(&mut self, segment: &Segment) -> io::Result<()> {
        failpoint::hit("ledger.before_delete")?;
        let corrupt = self.places.get(&segment.sequence).is_some_and(|place| place.corrupt);
        if segment.corrupt || corrupt {
            recovery::set_aside(&segment.place());
        } else {
            fs::remove_file(segment.place())?;
        }
        failpoint::passed("ledger.after_delete");
        self.places.remove(&segment.sequence);
        self.shared.segments.lock().retain(|other| other.sequence != segment.sequence);
        Ok(())
    }

    /// Reads one chunk of a file into the batch; whether there may be more.
    fn read(&mut self, segment: &Segment, batch: &mut Batch) -> io::Result<bool> {
        if segment.is_settled() {
            return Ok(false);
        }
        let place = self.places.entry(segment.sequence).or_insert_with(|| Place { read: HEADER, ..Place::default() });
        // Sealed first: a core publishes its last bytes before it seals.
        let sealed = segment.is_sealed();
        let written = segment.written();
        if place.read >= written {
            if sealed && place.committed < written {
                batch.advances.push((segment.sequence, written));
            }
            return Ok(false);
        }
        let len = usize::try_from(written - place.read).unwrap_or(CHUNK).min(CHUNK);
        self.chunk.resize(len, 0);
        segment.file.read_exact_at(&mut self.chunk, place.read)?;
        let from = place.read;
        let chunk = std::mem::take(&mut self.chunk);
        let used = self.take(segment, &chunk, from + len as u64 == written, batch);
        self.chunk = chunk;
        let place = self.places.entry(segment.sequence).or_default();
        place.read = if place.corrupt { written } else { from + used as u64 };
        let read = place.read;
        batch.advances.push((segment.sequence, read));
        Ok(used > 0 && read < written)
    }

    /// Takes the whole records of a chunk; how many bytes they are.
    fn take(&mut self, segment: &Segment, chunk: &[u8], is_last: bool, batch: &mut Batch) -> usize {
        let mut at = 0;
        while at < chunk.len() && batch.entries.ids.len() < BATCH_ENTRIES_MAX {
            match record::note(&chunk[at..]) {
                Ok((Noted::Entry(id, body), len)) => {
                    batch.entries.push(id, body);
                    at += len;
                }
                Ok((Noted::Reservation(id), len)) => {
                    self.open(id, segment.sequence);
                    at += len;
                }
                // The rest of the record is in the next chunk.
                Err(Unread::Torn) if !is_last && at > 0 => break,
                Err(unread) => {
                    let path = segment.place();
                    let path = path.display();
                    tracing::error!(?unread, %path, offset = at, "journal file changed under us: the rest is not read");
                    self.places.entry(segment.sequence).or_default().corrupt = true;
                    return chunk.len();
                }
            }
        }
        at
    }

    fn open(&mut self, id: RequestId, sequence: u64) {
        // A second reservation of one id is a fallback's: it replaces the first.
        self.close(id);
        self.open.insert(id, sequence);
        self.places.entry(sequence).or_default().open += 1;
    }

    fn close(&mut self, id: RequestId) {
        if let Some(sequence) = self.open.remove(&id)
            && let Some(place) = self.places.get_mut(&sequence)
        {
            place.open = place.open.saturating_sub(1);
        }
    }
}

/// Before the rename a next start would read the file again and the store would refuse what it has.
fn settle(segment: &Segment) -> io::Result<()> {
    failpoint::hit("ledger.before_settled")?;
    segment.settle()?;
    failpoint::passed("ledger.after_settled");
    Ok(())
}
