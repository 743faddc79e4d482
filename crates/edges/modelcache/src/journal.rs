//! The journal of a file on its way: which of its chunks were written.
//!
//! A record is a claim, not a proof. A chunk that is recorded is read back and hashed before it counts, so that no loss
//! of power, damage or forgery of journal or data can bring a wrong byte into a published file; the journal only says
//! what is worth reading back. Therefore nothing here is synced: a record that the disk lost costs one chunk, a record
//! whose chunk the disk lost costs one reading.
//!
//! ```text
//! chunk u32 | log2 of the chunk size u8 | zeros 3 | first 4 bytes of the file's digest | crc32 u32     little-endian
//! ```
//!
//! There is no head that could be lost, and every record says whose it is: after damage reading goes on with the next
//! byte, so that the damage costs what it touched and no more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tidegate_core::Sha256Digest;

use crate::failpoint;

/// Length of a record in bytes.
pub(crate) const RECORD: usize = 16;
/// How many records for each chunk are read at most; a longer journal is made anew.
pub(crate) const RECORDS_PER_CHUNK_MAX: u64 = 4;

/// Whose chunks a journal speaks of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) sha256: Sha256Digest,
    pub(crate) chunk_size: u32,
    pub(crate) chunks: u32,
}

impl Subject {
    fn record(self, chunk: u32) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..4].copy_from_slice(&chunk.to_le_bytes());
        record[4] = self.chunk_size.trailing_zeros() as u8;
        record[8..12].copy_from_slice(&self.sha256.0[..4]);
        let crc = crc32fast::hash(&record[..12]);
        record[12..].copy_from_slice(&crc.to_le_bytes());
        record
    }

    /// The chunk that a record of this subject claims.
    fn chunk(self, record: &[u8]) -> Option<u32> {
        let (chunk, _) = record.split_first_chunk::<4>()?;
        let chunk = u32::from_le_bytes(*chunk);
        (chunk < self.chunks && record == self.record(chunk)).then_some(chunk)
    }
}

/// What was read of a journal.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    /// For each chunk, whether it is said to be there.
    claimed: Vec<bool>,
    /// Every byte belonged to a record.
    is_whole: bool,
}

fn read(bytes: &[u8], subject: Subject) -> Reading {
    let mut claimed = vec![false; subject.chunks as usize];
    let (mut at, mut is_whole) = (0, true);
    while let Some(record) = bytes.get(at..at + RECORD) {
        if let Some(chunk) = subject.chunk(record) {
            claimed[chunk as usize] = true;
            at += RECORD;
        } else {
            is_whole = false;
            at += 1;
        }
    }
    Reading { claimed, is_whole: is_whole && at == bytes.len() }
}

/// An open journal; records are appended to it.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Mutex<File>,
    path: PathBuf,
    subject: Subject,
}

impl Journal {
    /// Opens or makes the journal at `path` and says which chunks it claims. A journal with damage is made anew of what
    /// could be read.
    pub(crate) fn open(path: &Path, subject: Subject) -> io::Result<(Self, Vec<bool>)> {
        let most = (u64::from(subject.chunks) * RECORDS_PER_CHUNK_MAX * RECORD as u64).max(RECORD as u64);
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => {
                file.take(most + 1).read_to_end(&mut bytes)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let read = read(&bytes, subject);
        if !read.is_whole || bytes.len() as u64 > most {
            rewrite(path, subject, &read.claimed)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok((Self { file: Mutex::new(file), path: path.to_path_buf(), subject }, read.claimed))
    }

    /// Says that a chunk was written.
    pub(crate) fn append(&self, chunk: u32) -> io::Result<()> {
        failpoint::hit("journal.before_append")?;
        let record = self.subject.record(chunk);
        let mut file = self.file.lock();
        if cfg!(feature = "failpoints") {
            // what a write that stops in its middle leaves behind
            let (half, rest) = record.split_at(RECORD / 2);
            file.write_all(half)?;
            failpoint::hit("journal.torn")?;
            file.write_all(rest)?;
        } else {
            file.write_all(&record)?;
        }
        drop(file);
        failpoint::hit("journal.after_append")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn rewrite(path: &Path, subject: Subject, claimed: &[bool]) -> io::Result<()> {
    let chunks = claimed.iter().zip(0_u32..).filter_map(|(is_claimed, chunk)| is_claimed.then_some(chunk));
    let bytes: Vec<u8> = chunks.flat_map(|chunk| subject.record(chunk)).collect();
    let fresh = path.with_extension("new");
    fs::write(&fresh, bytes)?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBJECT: Subject = Subject { sha256: Sha256Digest([0xab; 32]), chunk_size: 64 << 10, chunks: 40 };

    fn bytes(chunks: &[u32]) -> Vec<u8> {
        chunks.iter().flat_map(|chunk| SUBJECT.record(*chunk)).collect()
    }

    fn claims(read: &Reading) -> Vec<u32> {
        (0..).zip(&read.claimed).filter_map(|(chunk, is)| is.then_some(chunk)).collect()
    }

    #[test]
    fn records_of_another_file_chunk_size_or_length_claim_nothing() {
        let others = [
            Subject { sha256: Sha256Digest([1; 32]), ..SUBJECT },
            Subject { chunk_size: 128 << 10, ..SUBJECT },
            Subject { chunks: 3, ..SUBJECT },
        ];
        for other in others {
            let read = read(&bytes(&[3, 5]), other);
            assert_eq!(claims(&read), [0; 0]);
            assert!(!read.is_whole);
        }
    }

    #[test]
    fn a_journal_with_too_many_records_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        fs::write(&path, bytes(&[7; 1000])).unwrap();
        let (journal, claimed) = Journal::open(&path, SUBJECT).unwrap();
        assert!(claimed[7]);
        assert_eq!(fs::read(journal.path()).unwrap(), bytes(&[7]));
        let most = vec![7; 160];
        fs::write(&path, bytes(&most)).unwrap();
        Journal::open(&path, SUBJECT).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes(&most), "at the bound it stays");
    }

    #[test]
    fn what_is_appended_after_a_torn_record_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut torn = bytes(&[1, 2]);
        torn.truncate(RECORD + 5);
        fs::write(&path, torn).unwrap();
        let (journal, claimed) = Journal::open(&path, SUBJECT).unwrap();
        assert!(claimed[1] && !claimed[2]);
        journal.append(2).unwrap();
        let (_, claimed) = Journal::open(&path, SUBJECT).unwrap();
        assert!(claimed[1] && claimed[2]);
        assert_eq!(fs::read(&path).unwrap(), bytes(&[1, 2]));
    }

    /// What may happen to a journal's bytes.
    #[derive(Clone, Debug)]
    enum Damage {
        Cut(usize),
        Flip(usize, u8),
        Insert(usize, Vec<u8>),
        Remove(usize, usize),
    }

    fn damage() -> impl Strategy<Value = Damage> {
        prop_oneof![
            any::<usize>().prop_map(Damage::Cut),
            (any::<usize>(), 1..=255_u8).prop_map(|(at, mask)| Damage::Flip(at, mask)),
            (any::<usize>(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, junk)| Damage::Insert(at, junk)),
            (any::<usize>(), 1..40_usize).prop_map(|(at, len)| Damage::Remove(at, len)),
        ]
    }

    impl Damage {
        /// How many records it can touch.
        fn apply(&self, bytes: &mut Vec<u8>) -> usize {
            let len = bytes.len();
            match self {
                Self::Cut(at) => {
                    let at = at % (len + 1);
                    bytes.truncate(at);
                    (len - at).div_ceil(RECORD)
                }
                Self::Flip(at, mask) if len > 0 => {
                    bytes[at % len] ^= mask;
                    1
                }
                Self::Insert(at, junk) => {
                    let at = at % (len + 1);
                    bytes.splice(at..at, junk.iter().copied());
                    1
                }
                Self::Remove(at, count) if len > 0 => {
                    let at = at % len;
                    let end = (at + count).min(len);
                    bytes.drain(at..end);
                    (end - at).div_ceil(RECORD) + 1
                }
                Self::Flip(..) | Self::Remove(..) => 0,
            }
        }
    }

    proptest! {
        #[test]
        fn any_damage_costs_only_the_records_it_touched_and_claims_nothing_new(
            order in Just((0..40_u32).collect::<Vec<_>>()).prop_shuffle(),
            written in 0..=40_usize,
            damages in prop::collection::vec(damage(), 0..4),
        ) {
            let written = &order[..written];
            let mut journal = bytes(written);
            let mut touched = 0;
            for damage in &damages {
                touched += damage.apply(&mut journal);
            }
            let found = claims(&read(&journal, SUBJECT));
            prop_assert!(found.iter().all(|chunk| written.contains(chunk)));
            prop_assert!(found.len() + touched >= written.len(), "{} of {} after {damages:?}", found.len(), written.len());
        }

        #[test]
        fn junk_is_read_without_end_or_panic(junk in prop::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert!(claims(&read(&junk, SUBJECT)).is_empty());
        }
    }
}
