//! One journal file: its header, its name, and what is known about how far it is written, synced and committed.
//!
//! A file belongs to one core of one process for its whole life, so that its header can say once which boot its
//! records' boot times are of. Names sort by age: `<sequence>-<core>.journal`, later `.settled`; `.corrupt` is a damaged
//! file that is kept for the operator.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use tidegate_core::Unix;
use tokio::sync::watch;

use super::JournalError;
use crate::clock::{BootId, Now};
use crate::failpoint;

/// Bytes in front of the first record.
pub(crate) const HEADER: u64 = 64;
/// Bytes preallocated beyond a file's size limit: room to settle what is in flight when the disk is full.
pub(crate) const SETTLE_ROOM: u64 = 1 << 20;
const MAGIC: &[u8; 6] = b"TGJRNL";
const VERSION: u16 = 1;
/// Of a file that holds something the store does not have, or may.
pub(crate) const EXTENSION: &str = "journal";
/// Of a file of which the store has everything: kept for the limits' windows only.
pub(crate) const SETTLED: &str = "settled";

/// How far a file is known to be on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) bytes: u64,
    pub(crate) failed: bool,
}

/// One journal file.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Where it was made.
    path: PathBuf,
    pub(crate) file: File,
    pub(crate) sequence: u64,
    /// Bytes of whole records, header included: everything below is there to be read.
    written: AtomicU64,
    /// Nothing will be written any more.
    sealed: AtomicBool,
    /// The store has every entry in it and the entry of every reservation in it; its name says so.
    settled: AtomicBool,
    pub(crate) synced: watch::Sender<Synced>,
    /// When it was last written, on this boot's clock; 0 when that is so long ago that nobody needs it.
    pub(crate) last_write_ns: AtomicU64,
    /// Behind the valid part lies something that no write cut short explains: kept for the operator.
    pub(crate) corrupt: bool,
}

impl Segment {
    /// Makes a new file with its header, 0600, and preallocates it.
    pub(crate) fn create(folder: &Path, sequence: u64, core: u16, now: &Now, bytes: u64) -> Result<Self, JournalError> {
        let path = folder.join(format!("{sequence:012}-{core:04}.{EXTENSION}"));
        let fail = |what| move |source| JournalError::from_io(what, folder, source);
        failpoint::hit("journal.create.before").map_err(fail("make a file"))?;
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = made.map_err(fail("make a file"))?;
        let begun =
            allocate(&file, bytes + SETTLE_ROOM).and_then(|()| file.write_all_at(&header(sequence, core, now), 0));
        if let Err(source) = begun {
            // Without its header the file is nothing: recovery ignores it, should it stay.
            let _ = fs::remove_file(&path);
            return Err(fail("begin a file")(source));
        }
        failpoint::passed("journal.create.after");
        Ok(Self {
            path,
            file,
            sequence,
            written: AtomicU64::new(HEADER),
            sealed: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            synced: watch::Sender::default(),
            last_write_ns: AtomicU64::new(now.boottime_ns),
            corrupt: false,
        })
    }

    /// A file that an earlier process left, with what is valid of it.
    pub(crate) fn left(path: PathBuf, file: File, head: &Head, left: &Left) -> Self {
        Self {
            path,
            file,
            sequence: head.sequence,
            written: AtomicU64::new(left.valid),
            sealed: AtomicBool::new(true),
            settled: AtomicBool::new(left.settled),
            synced: watch::Sender::new(Synced { bytes: left.valid, failed: false }),
            last_write_ns: AtomicU64::new(left.last_write_ns),
            corrupt: left.corrupt,
        }
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    pub(crate) fn set_written(&self, bytes: u64) {
        // Sequentially consistent: see `Bell`.
        self.written.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Notes in the file's name that the store has everything of it.
    pub(crate) fn settle(&self) -> io::Result<()> {
        fs::rename(&self.path, self.path.with_extension(SETTLED))?;
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Where the file is now.
    pub(crate) fn place(&self) -> PathBuf {
        self.path.with_extension(if self.is_settled() { SETTLED } else { EXTENSION })
    }

    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }
}

/// What of a file of an earlier process can be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Bytes of header and whole records.
    pub(crate) valid: u64,
    /// As [`Segment::last_write_ns`].
    pub(crate) last_write_ns: u64,
    /// As [`Segment::corrupt`].
    pub(crate) corrupt: bool,
    /// As [`Segment::is_settled`].
    pub(crate) settled: bool,
}

/// What a file's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) sequence: u64,
    pub(crate) core: u16,
    pub(crate) written_by: Now,
}

/// Magic, version, core, sequence, boot, boot time, wall time, padding, CRC of all before it.
fn header(sequence: u64, core: u16, now: &Now) -> [u8; HEADER as usize] {
    let mut bytes = [0; HEADER as usize];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(MAGIC);
    put(&VERSION.to_le_bytes());
    put(&core.to_le_bytes());
    put(&sequence.to_le_bytes());
    put(&now.boot.bytes());
    put(&now.boottime_ns.to_le_bytes());
    put(&now.wall.ms.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Why a file's start is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHead {
    /// Nothing was ever written: the process died while it made the file.
    Empty,
    /// Of a later version.
    Version(u16),
    /// Damaged.
    Corrupt,
}

/// Reads a header.
pub(crate) fn read_header(bytes: &[u8]) -> Result<Head, NoHead> {
    if bytes.iter().take(HEADER as usize).all(|byte| *byte == 0) {
        return Err(NoHead::Empty);
    }
    let Some((bytes, _)) = bytes.split_first_chunk::<{ HEADER as usize }>() else { return Err(NoHead::Corrupt) };
    let crc = u32::from_le_bytes([bytes[60], bytes[61], bytes[62], bytes[63]]);
    if bytes[..6] != *MAGIC || crc32fast::hash(&bytes[..60]) != crc {
        return Err(NoHead::Corrupt);
    }
    let version = u16::from_le_bytes([bytes[6], bytes[7]]);
    if version != VERSION {
        return Err(NoHead::Version(version));
    }
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        word
    };
    let mut boot = [0; 16];
    boot.copy_from_slice(&bytes[18..34]);
    Ok(Head {
        core: u16::from_le_bytes([bytes[8], bytes[9]]),
        sequence: u64::from_le_bytes(word(10)),
        written_by: Now {
            boot: BootId::from_bytes(boot),
            boottime_ns: u64::from_le_bytes(word(34)),
            wall: Unix::from_ms(i64::from_le_bytes(word(42))),
        },
    })
}

/// Makes the journal's folder, 0700, when it is absent.
pub(crate) fn make_folder(folder: &Path) -> Result<(), JournalError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| JournalError::from_io("make the folder", folder, source))
}

/// Takes disk space for a file without making it longer. A file system that cannot do so is no error: a full disk is
/// then found at the write.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    use rustix::io::Errno;
    #[cfg(target_os = "linux")]
    let flags = FallocateFlags::KEEP_SIZE;
    #[cfg(not(target_os = "linux"))]
    return Ok(());
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, flags, 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
