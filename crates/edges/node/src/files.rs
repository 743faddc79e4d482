//! Small files that are whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of such a file. What is longer was not written by us.
pub(crate) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Makes a folder that only its owner may enter.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file under another name, syncs it and renames it; then syncs the folder.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}", std::process::id()));
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    File::open(folder)?.sync_all()
}

/// Reads one; `None`: it is not there.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "file is too long"));
    }
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Removes one; that it is not there is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A file that is locked for us. Giving it up unlocks it, also for a child that was being started meanwhile and has the
/// file open until it executes its program.
#[derive(Debug)]
pub(crate) struct Lock(Option<File>);

impl Lock {
    /// Locks a file, which is made if it is not there; `None`: somebody else has it locked.
    pub(crate) fn try_new(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(Some(file)))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The file, locked for whoever has it open.
    pub(crate) fn hand_over(mut self) -> Option<File> {
        self.0.take()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _: Result<(), Errno> = flock(file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_up_though_a_child_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = Lock::try_new(&path).unwrap().unwrap();
        let child_s = lock.0.as_ref().unwrap().try_clone().unwrap();
        assert!(Lock::try_new(&path).unwrap().is_none());
        drop(lock);
        let lock = Lock::try_new(&path).unwrap().unwrap();
        drop(child_s);
        let file = lock.hand_over();
        assert!(Lock::try_new(&path).unwrap().is_none(), "it is the other's now");
        drop(file);
        assert!(Lock::try_new(&path).unwrap().is_some());
    }

    #[test]
    fn a_file_is_read_as_it_was_written_up_to_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        assert_eq!(read::<String>(&path).unwrap(), None);
        let longest = "x".repeat(FILE_BYTES_MAX as usize - 2);
        write(&path, &longest).unwrap();
        assert_eq!(read::<String>(&path).unwrap(), Some(longest.clone()));
        write(&path, &format!("{longest}x")).unwrap();
        assert!(read::<String>(&path).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
