//! What can go wrong with the store, by name.

use std::path::PathBuf;

/// Why the store did not do what was asked. Nothing was changed, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// This kind of store is not built in.
    #[error("a {0} store is not supported yet, use sqlite")]
    NotSupported(&'static str),
    /// No space is left on the disk.
    #[error("no space is left for the store")]
    DiskFull,
    /// The database or its file system is read-only.
    #[error("the store is read-only")]
    ReadOnly,
    /// Another process held the database for longer than the busy timeout.
    #[error("the store is busy")]
    Busy,
    /// The file is no database, or a damaged one.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The file cannot be opened.
    #[error("cannot open the store at {}: {message}", path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// What the system says.
        message: String,
    },
    /// The schema is not one that this version makes.
    #[error("the store's schema is not usable: {0}")]
    Schema(String),
    /// There is already one of this name.
    #[error("{0} already exists")]
    Exists(String),
    /// There is none of this name.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Somebody else has changed it since it was read.
    #[error("{0} was changed meanwhile")]
    Conflict(String),
    /// A later controller has taken over.
    #[error("a later controller is at work (generation {highest})")]
    Stale {
        /// The highest generation that was given out.
        highest: u64,
    },
    /// It cannot be done to this one, and the text says why.
    #[error("{0}")]
    Refused(String),
    /// A query asks for more than its bound.
    #[error("the query spans {found} {what}, at most {max} are answered")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// Any other failure of reading or writing.
    #[error("the store failed: {0}")]
    Io(String),
}

impl StoreError {
    /// Whether the same call may succeed later without anybody changing it.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::DiskFull | Self::ReadOnly | Self::Busy | Self::CannotOpen { .. } | Self::Io(_))
    }
}

// SQLite's primary result codes (sqlite.org/rescode.html): the low byte of the extended code.
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const READONLY: u32 = 8;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const NOTADB: u32 = 26;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().and_then(|code| code.parse::<u32>().ok());
                let message = database.message().to_owned();
                match code.map(|code| code & 0xFF) {
                    Some(FULL) => Self::DiskFull,
                    Some(READONLY) => Self::ReadOnly,
                    Some(BUSY | LOCKED) => Self::Busy,
                    Some(CORRUPT | NOTADB) => Self::Corrupt(message),
                    Some(_) | None => Self::Io(message),
                }
            }
            sqlx::Error::PoolTimedOut => Self::Busy,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Corrupt(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::DiskFull,
            Some(Errno::ROFS) => Self::ReadOnly,
            Some(_) | None => Self::Io(error.to_string()),
        }
    }
}
