//! Small records on the disk: read with a bound, written so that a crash leaves the old one or the new one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};

use crate::fault::CacheFault;
use crate::layout::Layout;

/// A name in `tmp` that no other call of this process gets; other processes have no business there.
pub(crate) fn tmp_name(layout: &Layout, kind: &str) -> std::path::PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    layout.tmp().join(format!("{kind}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Reads a regular file of at most `max` bytes; `None` when there is none. Links are not followed.
///
/// # Errors
///
/// `damaged` when it is longer or no regular file; else what the disk says.
pub(crate) fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, CacheFault> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(damaged(path, "it is a link")),
        Err(error) => return Err(CacheFault::disk("open", path, &error.into())),
    };
    let named = |error: io::Error| CacheFault::disk("read", path, &error);
    let length = file.metadata().map_err(named)?;
    if !length.is_file() {
        return Err(damaged(path, "it is no regular file"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length.len().min(max)).unwrap_or(0));
    file.take(max + 1).read_to_end(&mut bytes).map_err(named)?;
    if bytes.len() as u64 > max {
        return Err(damaged(path, "it is longer than such a record can be"));
    }
    Ok(Some(bytes))
}

/// Writes a record: made ready in `tmp`, durable, then renamed.
///
/// # Errors
///
/// What the disk says; the record is then as it was.
pub(crate) fn write(layout: &Layout, path: &Path, bytes: &[u8]) -> Result<(), CacheFault> {
    let tmp = tmp_name(layout, "record");
    let written = write_new(&tmp, bytes)
        .and_then(|()| std::fs::rename(&tmp, path).map_err(|error| CacheFault::disk("write", path, &error)))
        .and_then(|()| path.parent().map_or(Ok(()), sync_folder));
    if written.is_err() {
        drop(std::fs::remove_file(&tmp));
    }
    written
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), CacheFault> {
    let mut file = File::create_new(path).map_err(|error| CacheFault::disk("make", path, &error))?;
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(|error| CacheFault::disk("write", path, &error))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), CacheFault> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| CacheFault::disk("sync", folder, &error))
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<(), CacheFault> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CacheFault::disk("remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a folder with all that is in it, read-only folders too; links are removed, not followed.
pub(crate) fn remove_tree(path: &Path) -> Result<(), CacheFault> {
    make_writable(path, 0);
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CacheFault::disk("remove", path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes whatever is there.
pub(crate) fn remove_tree_or_file(path: &Path) -> Result<(), CacheFault> {
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_folder { remove_tree(path) } else { remove_file(path) }
}

/// How deep folders are nested at most: a manifest's path has 1024 bytes.
const DEPTH_MAX: usize = 520;

fn make_writable(path: &Path, depth: usize) {
    use std::os::unix::fs::PermissionsExt as _;
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    if !is_folder || depth > DEPTH_MAX || rustix::process::geteuid().is_root() {
        return;
    }
    drop(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)));
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path(), depth + 1);
        }
    }
}

/// The names in a folder, at most `max`; none when there is no such folder.
pub(crate) fn names(folder: &Path, max: usize) -> Result<Vec<Name>, CacheFault> {
    let named = |error: &io::Error| CacheFault::disk("list", folder, error);
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(named(&error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        use std::os::unix::fs::DirEntryExt as _;
        let entry = entry.map_err(|error| named(&error))?;
        if names.len() >= max {
            return Err(damaged(folder, "there are more names in it than there can be"));
        }
        let kind = entry.file_type().map_err(|error| named(&error))?;
        names.push(Name { name: entry.file_name(), inode: entry.ino(), kind });
    }
    Ok(names)
}

/// A name in a folder with what the folder itself says of it: nothing was looked up for it.
pub(crate) struct Name {
    pub(crate) name: std::ffi::OsString,
    pub(crate) inode: u64,
    pub(crate) kind: std::fs::FileType,
}

impl Name {
    /// The name as text; `None` when it is none.
    pub(crate) fn text(&self) -> Option<&str> {
        self.name.to_str()
    }
}

pub(crate) fn damaged(path: &Path, reason: &str) -> CacheFault {
    CacheFault::Damaged { path: path.to_path_buf(), reason: reason.to_owned() }
}
