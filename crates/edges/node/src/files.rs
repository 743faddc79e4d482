//! Small files that are whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

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
