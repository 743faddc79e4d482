//! Carrying what is still open out of old files, so that a few long answers do not keep hours of files on the disk.
//!
//! A file cannot go before every reservation in it has its entry in the store. When many old files wait for a few
//! reservations each, those are written together into one new file, and the old ones go. Ids make it safe at any
//! instant: a reservation that is found twice is one, and one whose entry is found before it is settled already when it
//! is offered as an orphan.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::RequestId;

use super::JournalError;
use super::record::{self, Record};
use super::segment::{HEADER, Segment};
use super::tail::{Place, Tail};
use crate::clock::{self, Now};
use crate::failpoint;

/// Old files with something open that are let be.
pub(super) const PINNED_MAX: usize = 8;
/// Most files that are carried together.
const CARRIED_MAX: usize = 64;
/// The "core" of a file that none writes.
const NO_CORE: u16 = u16::MAX;

impl Tail {
    /// Moves what is open in old files into a new one, when there are many. On an error everything stays as it is.
    pub(super) fn carry(&mut self, pinned: &[Arc<Segment>]) -> Result<(), JournalError> {
        if pinned.len() <= PINNED_MAX {
            return Ok(());
        }
        let pinned = &pinned[..pinned.len().min(CARRIED_MAX)];
        let fail = |source| JournalError::from_io("carry open reservations", &self.shared.folder, source);
        failpoint::hit("ledger.before_carry").map_err(fail)?;
        let mut records = Vec::new();
        let mut carried = Vec::new();
        for segment in pinned {
            self.open_records(segment, &mut records, &mut carried).map_err(fail)?;
        }
        let segment = self.begin_carried(records.len() as u64)?;
        let written = segment.file.write_all_at(&records, HEADER).and_then(|()| segment.file.sync_data());
        let written = written.and_then(|()| File::open(&self.shared.folder)?.sync_all());
        if let Err(source) = written {
            // Should it stay, it is found to hold nothing new.
            let _ = std::fs::remove_file(segment.place());
            return Err(fail(source));
        }
        failpoint::passed("ledger.after_carry");
        self.replace(pinned, segment, HEADER + records.len() as u64, &carried);
        Ok(())
    }

    fn begin_carried(&self, bytes: u64) -> Result<Segment, JournalError> {
        let now = Now { boot: self.shared.boot, boottime_ns: clock::boottime_ns(), wall: clock::wall() };
        let sequence = self.shared.next_sequence.fetch_add(1, Ordering::Relaxed);
        Segment::create(&self.shared.folder, sequence, NO_CORE, &now, HEADER + bytes)
    }

    /// Copies the records of the reservations that are open in a file.
    fn open_records(&self, segment: &Segment, out: &mut Vec<u8>, carried: &mut Vec<RequestId>) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(segment.written() - HEADER).unwrap_or(0)];
        segment.file.read_exact_at(&mut bytes, HEADER)?;
        let mut at = 0;
        while at < bytes.len() {
            let Ok((record, len)) = record::read(&bytes[at..]) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a record changed under us"));
            };
            if let Record::Reservation { reservation, .. } = record
                && self.open.get(&reservation.id) == Some(&segment.sequence)
            {
                out.extend_from_slice(&bytes[at..at + len]);
                carried.push(reservation.id);
            }
            at += len;
        }
        Ok(())
    }

    fn replace(&mut self, old: &[Arc<Segment>], new: Segment, written: u64, carried: &[RequestId]) {
        new.set_written(written);
        new.seal();
        for segment in old {
            self.places.entry(segment.sequence).or_default().open = 0;
        }
        let mut open = 0;
        for id in carried {
            // A reservation that was written twice into one file is open once.
            open += u64::from(self.open.insert(*id, new.sequence) != Some(new.sequence));
        }
        self.places.insert(new.sequence, Place { read: written, committed: written, open, corrupt: false });
        self.shared.segments.lock().push(Arc::new(new));
        self.shared.bell.ring();
    }
}
