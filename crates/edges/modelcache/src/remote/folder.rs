//! A plain folder as a store. Objects appear by rename or link, after their bytes are on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;

use super::{LISTED_MAX, Listed, ObjectHead, Put, RangeBody, Written};
use crate::fault::CacheFault;
use crate::manifest::check_path;

/// What a range is read in, in bytes.
const BLOCK_BYTES: u64 = 1 << 20;
/// Begins the names of files that are not objects yet.
const UNFINISHED: &str = ".unfinished-";
/// Folders within folders that a listing goes into.
const DEPTH_MAX: usize = 64;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A folder whose files are objects.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
}

/// A file that is not an object yet; removed when dropped before it is.
#[derive(Debug)]
pub(super) struct Writing {
    file: File,
    from: PathBuf,
    to: PathBuf,
}

impl Folder {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn path(&self, object: &str) -> Result<PathBuf, CacheFault> {
        // the manifest's own name is no file of a model, but it is an object
        let object_part =
            object.strip_suffix(crate::layout::MANIFEST).map_or(object, |folder| folder.trim_end_matches('/'));
        check_path(object_part)
            .map_err(|error| CacheFault::BadAnswer { object: object.to_owned(), reason: error.to_string() })?;
        Ok(self.root.join(object))
    }

    fn open(&self, object: &str) -> Result<(File, ObjectHead), CacheFault> {
        let path = self.path(object)?;
        let open = || {
            let file = File::open(&path)?;
            let stat = file.metadata()?;
            Ok((file, stat))
        };
        let (file, stat) = open().map_err(|error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                CacheFault::VanishedObject { object: object.to_owned() }
            }
            io::ErrorKind::PermissionDenied => {
                CacheFault::Refused { object: object.to_owned(), status: 403, reason: error.to_string() }
            }
            _ => CacheFault::disk("open", &path, &error),
        })?;
        if !stat.is_file() {
            return Err(CacheFault::VanishedObject { object: object.to_owned() });
        }
        let etag = format!("\"{:x}-{:x}-{:x}-{:x}\"", stat.ino(), stat.mtime(), stat.mtime_nsec(), stat.len());
        Ok((file, ObjectHead { size: stat.len(), etag: Some(etag), sha256: None }))
    }

    pub(super) fn head(&self, object: &str) -> Result<ObjectHead, CacheFault> {
        self.open(object).map(|(_, head)| head)
    }

    pub(super) fn get_range(
        &self,
        object: &str,
        range: Range<u64>,
        size: u64,
        if_match: Option<&str>,
    ) -> Result<RangeBody, CacheFault> {
        let (file, head) = self.open(object)?;
        if if_match.is_some() && if_match != head.etag.as_deref() {
            return Err(CacheFault::ChangedObject { object: object.to_owned() });
        }
        if head.size != size {
            return Err(CacheFault::WrongLength { object: object.to_owned(), expected: size, found: head.size });
        }
        let path = self.path(object)?;
        let object = object.to_owned();
        let state = (Some(file), range.start);
        let stream = futures_util::stream::unfold(state, move |(file, at)| {
            let (path, object) = (path.clone(), object.clone());
            async move {
                let file = file.filter(|_| at < range.end)?;
                let length = BLOCK_BYTES.min(range.end - at);
                match tokio::task::spawn_blocking(move || read_block(file, at, length)).await {
                    Ok(Ok((file, block))) => Some((Ok(block), (Some(file), at + length))),
                    Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Some((Err(CacheFault::ChangedObject { object }), (None, at)))
                    }
                    Ok(Err(error)) => Some((Err(CacheFault::disk("read", &path, &error)), (None, at))),
                    Err(_) => Some((Err(CacheFault::Cancelled), (None, at))),
                }
            }
        });
        Ok(RangeBody { stream: stream.boxed(), etag: head.etag })
    }

    pub(super) fn get_small(&self, object: &str, max: usize) -> Result<(Bytes, ObjectHead), CacheFault> {
        let (file, head) = self.open(object)?;
        let mut bytes = Vec::new();
        let read = file.take(max as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| CacheFault::disk("read", &self.root.join(object), &error))?;
        if bytes.len() > max {
            return Err(CacheFault::BadAnswer { object: object.to_owned(), reason: format!("more than {max} bytes") });
        }
        Ok((bytes.into(), head))
    }

    pub(super) fn put(&self, object: &str, bytes: &[u8], put: Put) -> Result<Written, CacheFault> {
        let super::upload::Begun::Folder(mut writing) = self.begin(object)? else {
            return Err(CacheFault::Cancelled);
        };
        writing.file.write_all(bytes).map_err(|error| CacheFault::disk("write", &writing.from, &error))?;
        match put {
            Put::Replace => writing.publish().map(|()| Written::New),
            Put::IfAbsent => writing.publish_if_absent(),
        }
    }

    pub(super) fn begin(&self, object: &str) -> Result<super::upload::Begun, CacheFault> {
        let to = self.path(object)?;
        let folder = to.parent().unwrap_or(&self.root).to_path_buf();
        fs::create_dir_all(&folder).map_err(|error| CacheFault::disk("make the folder", &folder, &error))?;
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let from = folder.join(format!("{UNFINISHED}{}-{number}", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&from);
        let file = file.map_err(|error| CacheFault::disk("create", &from, &error))?;
        Ok(super::upload::Begun::Folder(Writing { file, from, to }))
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<Listed>, CacheFault> {
        let mut listed = Vec::new();
        let mut open = vec![(self.path(folder)?, folder.to_owned(), 0)];
        while let Some((path, name, depth)) = open.pop() {
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(CacheFault::disk("list", &path, &error)),
            };
            for entry in entries {
                let entry = entry.map_err(|error| CacheFault::disk("list", &path, &error))?;
                let Ok(own) = entry.file_name().into_string() else { continue };
                let stat = entry.metadata().map_err(|error| CacheFault::disk("look at", &entry.path(), &error))?;
                let object = format!("{name}/{own}");
                if stat.is_dir() && depth < DEPTH_MAX {
                    open.push((entry.path(), object, depth + 1));
                } else if stat.is_file() && !own.starts_with(UNFINISHED) {
                    listed.push(Listed { object, size: stat.len() });
                }
                if listed.len() > LISTED_MAX {
                    let reason = format!("more than {LISTED_MAX} objects");
                    return Err(CacheFault::BadAnswer { object: folder.to_owned(), reason });
                }
            }
        }
        listed.sort_by(|one, other| one.object.cmp(&other.object));
        Ok(listed)
    }
}

fn read_block(file: File, at: u64, length: u64) -> io::Result<(File, Bytes)> {
    let mut block = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut block, at)?;
    Ok((file, block.into()))
}

impl Writing {
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CacheFault> {
        self.file.write_all_at(bytes, offset).map_err(|error| CacheFault::disk("write", &self.from, &error))
    }

    /// Replaces what is there.
    pub(super) fn publish(&self) -> Result<(), CacheFault> {
        self.sync()?;
        fs::rename(&self.from, &self.to).map_err(|error| CacheFault::disk("rename", &self.to, &error))?;
        sync_folder(&self.to)
    }

    fn publish_if_absent(&self) -> Result<Written, CacheFault> {
        self.sync()?;
        match fs::hard_link(&self.from, &self.to) {
            Ok(()) => sync_folder(&self.to).map(|()| Written::New),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Written::WasThere),
            Err(error) => Err(CacheFault::disk("link", &self.to, &error)),
        }
    }

    fn sync(&self) -> Result<(), CacheFault> {
        self.file.sync_all().map_err(|error| CacheFault::disk("sync", &self.from, &error))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // gone already where it was renamed
        drop(fs::remove_file(&self.from));
    }
}

fn sync_folder(path: &Path) -> Result<(), CacheFault> {
    let folder = path.parent().unwrap_or(path);
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| CacheFault::disk("sync", folder, &error))
}
