//! The data of a file on its way: locked by one writer, allocated whole, sealed when complete.
//!
//! ```text
//! open: create, flock, allocate ── write … ── seal: cut to length, read-only, sync, rename to its content's name
//! ```
//!
//! The lock belongs to the open file and ends with it: every write that is still on its way holds the file, so that a
//! fetch that was dropped cannot write behind the back of the next one, and a process that was killed leaves no lock.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::buffer::{ALIGNMENT, Buffer};
use crate::direct::{DirectFile, DiskIo};
use crate::failpoint;

/// Mode of a content file: nobody writes to it.
pub(crate) const CONTENT_MODE: u32 = 0o444;

/// A data file that this process alone writes.
#[derive(Debug)]
pub(crate) struct DataFile {
    file: DirectFile,
    size: u64,
}

impl DataFile {
    /// Opens or makes the file and allocates `size` bytes; `None` while another holds it.
    pub(crate) fn open(path: &Path, size: u64, disk_io: DiskIo) -> io::Result<Option<Self>> {
        loop {
            let file = DirectFile::create(path, disk_io)?;
            match rustix::fs::flock(file.plain(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // between opening and locking, the last holder may have renamed or removed it
            if is_at(file.plain(), path)? {
                allocate(file.plain(), size)?;
                return Ok(Some(Self { file, size }));
            }
        }
    }

    pub(crate) const fn file(&self) -> &DirectFile {
        &self.file
    }

    /// Writes what is filled of `buffer` at `offset`.
    pub(crate) fn write(&self, buffer: &mut Buffer, offset: u64) -> io::Result<()> {
        failpoint::hit("write.before")?;
        self.file.write(buffer, offset)?;
        failpoint::hit("write.after")
    }

    /// Makes it durable and read-only at its exact length.
    pub(crate) fn seal(&self) -> io::Result<()> {
        let file = self.file.plain();
        file.set_len(self.size)?;
        file.set_permissions(Permissions::from_mode(CONTENT_MODE))?;
        failpoint::hit("seal.before_sync")?;
        file.sync_all()
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((held.dev(), held.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the room for the whole file at once: a disk that is too small says so before the first byte is fetched.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    failpoint::hit("partial.before_allocate")?;
    let whole = size.next_multiple_of(ALIGNMENT as u64);
    if file.metadata()?.len() > whole {
        file.set_len(whole)?;
    }
    if whole > 0 {
        let taken = rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, whole));
        match taken {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(whole)?,
            // 2^60 bytes are in no manifest that a file system could hold: for the operator the disk is too small
            Err(Errno::FBIG) => return Err(Errno::NOSPC.into()),
            Err(error) => return Err(error.into()),
        }
    }
    failpoint::hit("partial.after_allocate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_holds_a_file_and_the_next_finds_it_when_the_last_write_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let held = std::sync::Arc::new(DataFile::open(&path, 10, DiskIo::Direct).unwrap().unwrap());
        let in_flight = std::sync::Arc::clone(&held);
        drop(held);
        assert!(DataFile::open(&path, 10, DiskIo::Direct).unwrap().is_none());
        drop(in_flight);
        assert!(DataFile::open(&path, 10, DiskIo::Direct).unwrap().is_some());
    }

    #[test]
    fn a_sealed_file_has_its_exact_length_and_no_writer() {
        for (disk_io, size) in [(DiskIo::Direct, 5_000), (DiskIo::Buffered, 5_000), (DiskIo::Direct, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("data");
            let data = DataFile::open(&path, size, disk_io).unwrap().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), size.next_multiple_of(4096), "taken whole");
            let mut buffer = Buffer::new(8192);
            buffer.fill(&vec![9; size as usize]);
            if size > 0 {
                data.write(&mut buffer, 0).unwrap();
            }
            data.seal().unwrap();
            assert_eq!(fs::read(&path).unwrap(), vec![9; size as usize]);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
        }
    }

    #[test]
    fn a_file_that_no_disk_can_hold_is_a_full_disk_and_not_a_riddle() {
        let folder = tempfile::tempdir().unwrap();
        let error = DataFile::open(&folder.path().join("data"), 1 << 60, DiskIo::Direct).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    }

    #[test]
    fn a_longer_file_of_an_earlier_life_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, vec![1; 100_000]).unwrap();
        DataFile::open(&path, 10_000, DiskIo::Direct).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 12_288);
    }
}
