//! The state folder: store, journal, pepper, admin socket, lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The state folder of one process; the lock is held for as long as this lives.
#[derive(Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Makes the folder if it is absent (0700) and takes its lock.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("cannot make the state folder {}", path.display()))?;
        let path = path.canonicalize()?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&lock).take(64).read_to_string(&mut holder);
                bail!(
                    "{} is in use by process {}; stop it, or give another folder with --state",
                    path.display(),
                    holder.trim()
                );
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the state folder"),
        }
        lock.set_len(0)?;
        lock.rewind()?;
        write!(lock, "{}", std::process::id())?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(&self.path)
    }
}

/// Where the admin socket of a state folder is.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join("admin.sock")
}
