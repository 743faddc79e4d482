//! What can go wrong with a journal, by name: a full disk is refused differently from a broken one.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a journal could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// No space is left on the disk, or the quota of it is used up.
    #[error("no space is left for the journal in {}", folder.display())]
    DiskFull {
        /// The journal's folder.
        folder: PathBuf,
    },
    /// The file system is read-only.
    #[error("the journal's file system is read-only: {}", folder.display())]
    ReadOnly {
        /// The journal's folder.
        folder: PathBuf,
    },
    /// The store has been away for so long that the spool's bound is reached.
    #[error("{waiting_bytes} bytes wait for the store, the spool holds {spool_bytes}")]
    SpoolFull {
        /// Bytes that wait.
        waiting_bytes: u64,
        /// Bytes that may.
        spool_bytes: u64,
    },
    /// A name in a reservation is longer than [`super::TEXT_MAX`].
    #[error("{field} is longer than {} bytes", super::TEXT_MAX)]
    TooLong {
        /// Which one.
        field: &'static str,
    },
    /// A file was written by a later version of the program.
    #[error("{} was written by a later version (format {found})", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The format it says it has.
        found: u16,
    },
    /// An `fdatasync` failed: what was written may not survive a power loss.
    #[error("the journal could not be brought to the disk")]
    NotSynced,
    /// Anything else the operating system says.
    #[error("cannot {what} in {}: {source}", folder.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The journal's folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl JournalError {
    /// The operating system's number for what is nearest to this.
    pub(crate) fn code(&self) -> i32 {
        let errno = match self {
            Self::DiskFull { .. } | Self::SpoolFull { .. } => Errno::NOSPC,
            Self::ReadOnly { .. } => Errno::ROFS,
            Self::TooLong { .. } => Errno::NAMETOOLONG,
            Self::Version { .. } | Self::NotSynced => Errno::IO,
            Self::Io { source, .. } => return source.raw_os_error().unwrap_or_else(|| Errno::IO.raw_os_error()),
        };
        errno.raw_os_error()
    }

    /// Names an error of the operating system.
    pub(crate) fn from_io(what: &'static str, folder: &Path, source: io::Error) -> Self {
        let folder = folder.to_owned();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull { folder },
            Some(Errno::ROFS) => Self::ReadOnly { folder },
            Some(_) | None => Self::Io { what, folder, source },
        }
    }
}
