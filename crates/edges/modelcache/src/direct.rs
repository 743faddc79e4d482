//! Files read and written past the page cache where the file system can do that.
//!
//! Writing many gigabytes through the page cache costs a copy, makes writers of one file wait for each other, and leaves
//! everything for the sync at the end; direct I/O does none of it, and a scrub that reads directly pushes nobody's pages
//! out. A file system that refuses direct I/O, when the file is opened or at the first transfer, gets ordinary I/O.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tidegate_core::Sha256Digest;

use crate::buffer::{ALIGNMENT, Buffer};
use crate::fault::CacheFault;
use crate::manifest;

/// How bytes go between memory and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DiskIo {
    /// Past the page cache, where the file system allows it.
    #[default]
    Direct,
    /// Through the page cache.
    Buffered,
}

/// A file open twice: directly, unless refused, and through the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    plain: File,
    direct: Option<File>,
    is_refused: AtomicBool,
    path: PathBuf,
}

fn flags(more: OFlags) -> i32 {
    // never through a link that somebody put into the cache
    (OFlags::NOFOLLOW | more).bits() as i32
}

impl DirectFile {
    /// Opens a file to read it.
    pub(crate) fn open(path: &Path, disk_io: DiskIo) -> io::Result<Self> {
        let open = |more| OpenOptions::new().read(true).custom_flags(flags(more)).open(path);
        let plain = open(OFlags::empty())?;
        Self::with_direct(plain, path, disk_io, || open(OFlags::DIRECT))
    }

    /// Opens a file to read and write it, and makes it if need be, readable by its owner only.
    pub(crate) fn create(path: &Path, disk_io: DiskIo) -> io::Result<Self> {
        let open = |more, is_new| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(is_new).mode(0o600).custom_flags(flags(more)).open(path)
        };
        let plain = match open(OFlags::empty(), true) {
            // it was sealed, and the process died before it was renamed
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_file(path)? => {
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
                open(OFlags::empty(), false)?
            }
            other => other?,
        };
        Self::with_direct(plain, path, disk_io, || open(OFlags::DIRECT, false))
    }

    fn with_direct(
        plain: File,
        path: &Path,
        disk_io: DiskIo,
        open: impl FnOnce() -> io::Result<File>,
    ) -> io::Result<Self> {
        let direct = match disk_io {
            DiskIo::Buffered => None,
            DiskIo::Direct => match open() {
                Ok(file) => Some(file),
                Err(error) if is_unfit(&error) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(Self { plain, direct, is_refused: AtomicBool::new(false), path: path.to_path_buf() })
    }

    pub(crate) const fn plain(&self) -> &File {
        &self.plain
    }

    fn direct(&self) -> Option<&File> {
        self.direct.as_ref().filter(|_| !self.is_refused.load(Ordering::Relaxed))
    }

    /// Writes what is filled of `buffer` at `offset`, which is aligned. The last block of a file is padded with zeros: the
    /// file has to be cut to its length when it is complete.
    pub(crate) fn write(&self, buffer: &mut Buffer, offset: u64) -> io::Result<()> {
        if let Some(direct) = self.direct() {
            match direct.write_all_at(buffer.padded(), offset) {
                Err(error) if is_unfit(&error) => self.is_refused.store(true, Ordering::Relaxed),
                done => return done,
            }
        }
        self.plain.write_all_at(buffer.filled(), offset)
    }

    /// Fills `buffer` with up to `len` bytes from `offset`, which is aligned; fewer only at the end of the file.
    pub(crate) fn read(&self, buffer: &mut Buffer, offset: u64, len: usize) -> io::Result<()> {
        buffer.clear();
        let len = len.min(buffer.capacity());
        if let Some(direct) = self.direct() {
            match read_to_end(direct, buffer.space(len), offset) {
                Ok(read) => {
                    buffer.set_filled(read.min(len));
                    return Ok(());
                }
                Err(error) if is_unfit(&error) => self.is_refused.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let read = read_to_end(&self.plain, &mut buffer.space(len)[..len], offset)?;
        buffer.set_filled(read);
        Ok(())
    }

    /// SHA-256 of `len` bytes from `offset`, which also go into `whole`; `None` when the file ends before.
    pub(crate) fn hash(
        &self,
        buffer: &mut Buffer,
        offset: u64,
        len: u64,
        mut whole: Option<&mut Context>,
    ) -> io::Result<Option<Sha256Digest>> {
        let mut context = Context::new(&SHA256);
        let mut done = 0;
        while done < len {
            let wanted = usize::try_from(len - done).unwrap_or(usize::MAX).min(buffer.capacity());
            self.read(buffer, offset + done, wanted)?;
            if buffer.filled().len() < wanted {
                return Ok(None);
            }
            context.update(buffer.filled());
            whole.iter_mut().for_each(|whole| whole.update(buffer.filled()));
            done += wanted as u64;
        }
        Ok(Some(manifest::finished(context.finish())))
    }

    /// Whether `len` bytes from `offset` are those of `expected`. A place that the disk cannot read is not right.
    pub(crate) fn is_right(
        &self,
        buffer: &mut Buffer,
        offset: u64,
        len: u64,
        expected: Sha256Digest,
        whole: Option<&mut Context>,
    ) -> Result<bool, CacheFault> {
        match self.hash(buffer, offset, len, whole) {
            Ok(found) => Ok(found == Some(expected)),
            Err(error) if is_unreadable(&error) => Ok(false),
            Err(error) => Err(self.fault("read")(error)),
        }
    }

    /// A fault that names this file.
    pub(crate) fn fault(&self, action: &str) -> impl Fn(io::Error) -> CacheFault {
        let (action, path) = (action.to_owned(), self.path.clone());
        move |error| CacheFault::disk(&action, &path, &error)
    }
}

fn is_file(path: &Path) -> io::Result<bool> {
    fs::symlink_metadata(path).map(|meta| meta.is_file())
}

/// Reads until `space` is full or the file ends.
fn read_to_end(file: &File, space: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < space.len() {
        match file.read_at(&mut space[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => {
                read += more;
                // a direct read ends unaligned only where the file does
                if !read.is_multiple_of(ALIGNMENT) && read < space.len() {
                    let tail = file.metadata()?.len().saturating_sub(offset + read as u64);
                    if tail == 0 {
                        break;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// The disk has an error at this place.
fn is_unreadable(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::IO))
}

/// What file systems say that have no direct I/O, or none with these blocks.
fn is_unfit(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(disk_io: DiskIo, bytes: &[u8]) -> (tempfile::TempDir, DirectFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = DirectFile::create(&folder.path().join("data"), disk_io).unwrap();
        let mut buffer = Buffer::new(64 << 10);
        for (piece, at) in bytes.chunks(64 << 10).zip(0_u64..) {
            buffer.clear();
            buffer.fill(piece);
            file.write(&mut buffer, at * (64 << 10)).unwrap();
        }
        (folder, file)
    }

    #[test]
    fn what_is_written_either_way_is_read_either_way() {
        let bytes: Vec<u8> = (0..200_001_u32).map(|at| (at % 251) as u8).collect();
        for disk_io in [DiskIo::Direct, DiskIo::Buffered] {
            let (_folder, file) = written(disk_io, &bytes);
            file.plain().set_len(bytes.len() as u64).unwrap();
            for other in [DiskIo::Direct, DiskIo::Buffered] {
                let file = DirectFile::open(&file.path, other).unwrap();
                let mut buffer = Buffer::new(64 << 10);
                assert_eq!(
                    file.hash(&mut buffer, 0, bytes.len() as u64, None).unwrap(),
                    Some(manifest::sha256(&bytes))
                );
                assert_eq!(file.hash(&mut buffer, 0, bytes.len() as u64 + 1, None).unwrap(), None, "it ends before");
                let tail = manifest::sha256(&bytes[65_536..]);
                assert_eq!(file.hash(&mut buffer, 65_536, bytes.len() as u64 - 65_536, None).unwrap(), Some(tail));
            }
        }
    }

    #[test]
    fn a_transfer_that_the_file_system_refuses_goes_through_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let file = DirectFile::create(&folder.path().join("data"), DiskIo::Direct).unwrap();
        let mut buffer = Buffer::new(4096);
        buffer.fill(b"odd");
        // an offset that no direct write can have stands for a file system that refuses all of them
        file.write(&mut buffer, 1).unwrap();
        assert_eq!(fs::read(&file.path).unwrap(), b"\0odd");
        assert!(file.is_refused.load(Ordering::Relaxed) || file.direct.is_none());
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, b"mine").unwrap();
        let path = folder.path().join("data");
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(DirectFile::create(&path, DiskIo::Direct).is_err());
        assert!(DirectFile::open(&path, DiskIo::Buffered).is_err());
    }
}
