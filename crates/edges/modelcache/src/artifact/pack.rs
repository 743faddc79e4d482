//! A compile cache's folder into one pack, and a pack into a folder.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use rustix::fs::OFlags;

use super::{ARTIFACT_BYTES_MAX, ARTIFACT_FILES_MAX, ArtifactKey, Kept, Packed, Place, Record};
use crate::cache::{Cache, small};
use crate::evict::Room;
use crate::fault::CacheFault;
use crate::manifest::{check_path, finished};
use crate::room::Disk;

/// How deep folders are nested.
const DEPTH_MAX: usize = 64;
const COPY_BYTES: usize = 256 << 10;

fn bad(path: &Path, reason: &str) -> CacheFault {
    CacheFault::BadSource { path: path.to_path_buf(), reason: reason.to_owned() }
}

fn at<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> CacheFault + 'a {
    move |error| CacheFault::disk(action, path, &error)
}

/// Saves a folder as the compile cache of `key`, unless there is one.
pub(super) fn keep(cache: &Cache, key: &ArtifactKey, folder: &Path) -> Result<Kept, CacheFault> {
    let digest = key.digest()?;
    let place = Place::of(cache.layout(), key)?;
    let kept = |record: &Record, left_out, is_new| Kept {
        digest: digest.to_string(),
        files: record.files.len() as u64,
        bytes: record.pack_bytes,
        left_out,
        is_new,
    };
    if let Ok(Some(record)) = place.read(key) {
        return Ok(kept(&record, 0, false));
    }
    let mut found = Found::default();
    found.walk(folder, &mut Vec::new())?;
    found.files.sort();
    let disk = Disk::of(cache.layout().root())?;
    let need = disk.room_of([found.bytes]).plus(Room { bytes: 0, inodes: 2 });
    let grant = cache.make_room(need)?;
    let aside = small::tmp_name(cache.layout(), "artifact");
    let saved = fs::create_dir(&aside).map_err(at("make", &aside)).and_then(|()| {
        let record = write_pack(folder, &found, key, &aside.join("pack"))?;
        publish(&record, &aside, &place)?;
        Ok(record)
    });
    if saved.is_err() {
        small::remove_tree(&aside)?;
    }
    drop(grant);
    saved.map(|record| kept(&record, found.left_out, true))
}

/// Puts a pack that is durable in its place, with its record.
pub(super) fn publish(record: &Record, aside: &Path, place: &Place) -> Result<(), CacheFault> {
    let path = aside.join("record.json");
    let bytes = record.bytes().map_err(|reason| bad(&path, &reason))?;
    let write = || {
        let mut file = File::create_new(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    write().map_err(at("write", &path))?;
    small::sync_folder(aside)?;
    // What lies there could not be read, or has no record: it is no compile cache.
    small::remove_tree(&place.folder)?;
    let parent = place.folder.parent().unwrap_or(aside);
    fs::create_dir_all(parent).map_err(at("make", parent))?;
    fs::rename(aside, &place.folder).map_err(at("rename", &place.folder))?;
    small::sync_folder(parent)?;
    parent.parent().map_or(Ok(()), small::sync_folder)
}

/// The regular files of a folder, each as the parts of its path.
#[derive(Default)]
struct Found {
    files: Vec<Vec<String>>,
    bytes: u64,
    left_out: u64,
}

impl Found {
    fn walk(&mut self, folder: &Path, parts: &mut Vec<String>) -> Result<(), CacheFault> {
        if parts.len() > DEPTH_MAX {
            return Err(bad(folder, "folders are nested too deeply"));
        }
        for entry in fs::read_dir(folder).map_err(at("list", folder))? {
            let entry = entry.map_err(at("list", folder))?;
            let path = entry.path();
            let name = entry.file_name().into_string().map_err(|_| bad(&path, "its name is no text"))?;
            let metadata = path.symlink_metadata().map_err(at("read", &path))?;
            parts.push(name);
            if metadata.is_dir() {
                self.walk(&path, parts)?;
            } else if metadata.is_file() {
                check_path(&parts.join("/")).map_err(|error| bad(&path, &error.to_string()))?;
                self.files.push(parts.clone());
                self.bytes = self.bytes.saturating_add(metadata.len());
            } else {
                // A link may lead out of the folder, and a socket or a pipe has no content.
                self.left_out += 1;
            }
            parts.pop();
            if self.files.len() > ARTIFACT_FILES_MAX || self.bytes > ARTIFACT_BYTES_MAX {
                return Err(bad(folder, "more files or bytes than a compile cache can have"));
            }
        }
        Ok(())
    }
}

fn write_pack(folder: &Path, found: &Found, key: &ArtifactKey, pack: &Path) -> Result<Record, CacheFault> {
    let named = at("write", pack);
    let mut out = BufWriter::with_capacity(COPY_BYTES, File::create_new(pack).map_err(&named)?);
    let mut whole = Context::new(&SHA256);
    let mut files = Vec::with_capacity(found.files.len());
    for parts in &found.files {
        let path = parts.iter().fold(folder.to_path_buf(), |path, part| path.join(part));
        let (size, sha256, executable) = pack_one(&path, |bytes| {
            whole.update(bytes);
            out.write_all(bytes).map_err(&named)
        })?;
        files.push(Packed { path: parts.join("/"), size, sha256, executable });
    }
    out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all()).map_err(&named)?;
    let pack_bytes = files.iter().map(|file| file.size).sum();
    let record =
        Record { artifact_version: 1, key: key.clone(), pack_bytes, pack_sha256: finished(whole.finish()), files };
    record.check().map_err(|reason| bad(folder, &reason))?;
    Ok(record)
}

/// Reads one file, which must stay as it is meanwhile: its length, its content's digest, whether it may be run.
fn pack_one(
    path: &Path,
    mut write: impl FnMut(&[u8]) -> Result<(), CacheFault>,
) -> Result<(u64, tidegate_core::Sha256Digest, bool), CacheFault> {
    let named = at("read", path);
    // Not through a link, and not into a pipe that took the file's place since it was listed.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags as i32).open(path).map_err(&named)?;
    let before = file.metadata().map_err(&named)?;
    let changed = || bad(path, "it changed while it was read: save the compile cache when the load has ended");
    if !before.is_file() {
        return Err(changed());
    }
    let mut context = Context::new(&SHA256);
    let mut limited = (&file).take(before.len() + 1);
    let (mut buffer, mut size) = (vec![0; COPY_BYTES], 0);
    loop {
        let count = limited.read(&mut buffer).map_err(&named)?;
        if count == 0 {
            break;
        }
        size += count as u64;
        context.update(&buffer[..count]);
        write(&buffer[..count])?;
    }
    let after = file.metadata().map_err(&named)?;
    let stamp = |of: &fs::Metadata| (of.len(), of.mtime(), of.mtime_nsec(), of.ino());
    if size != before.len() || stamp(&before) != stamp(&after) {
        return Err(changed());
    }
    Ok((size, finished(context.finish()), before.permissions().mode() & 0o100 != 0))
}

/// Fills `target` from the pack; `None` when there is no such compile cache. Files and bytes of it.
pub(super) fn lay_out(place: &Place, key: &ArtifactKey, target: &Path) -> Result<Option<(u64, u64)>, CacheFault> {
    let Some(record) = place.read(key)? else { return Ok(None) };
    let is_free = match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !is_free {
        return Err(bad(target, "a compile cache is laid out into a folder that is empty or not there"));
    }
    let aside = beside(target)?;
    let filled = fs::create_dir_all(&aside).map_err(at("make", &aside)).and_then(|()| {
        unpack(place, &record, &aside)?;
        fs::rename(&aside, target).map_err(at("rename", target))
    });
    if filled.is_err() {
        small::remove_tree(&aside)?;
    }
    filled.map(|()| Some((record.files.len() as u64, record.pack_bytes)))
}

/// A name beside the target, on its file system.
fn beside(target: &Path) -> Result<PathBuf, CacheFault> {
    let name = target.file_name().ok_or_else(|| bad(target, "it has no name"))?.to_string_lossy();
    Ok(target.with_file_name(format!(".{name}.{}.laying-out", std::process::id())))
}

/// Writes every file of the pack below `folder`, each proven while it is written.
fn unpack(place: &Place, record: &Record, folder: &Path) -> Result<(), CacheFault> {
    let pack = place.pack();
    let file = File::open(&pack).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => small::damaged(&pack, "it is missing"),
        _ => CacheFault::disk("open", &pack, &error),
    })?;
    let mut input = BufReader::with_capacity(COPY_BYTES, file);
    let mut buffer = vec![0; COPY_BYTES];
    for packed in &record.files {
        let path = folder.join(&packed.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(at("make", parent))?;
        }
        let mode = if packed.executable { 0o755 } else { 0o644 };
        let mut out =
            fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(at("make", &path))?;
        let (mut context, mut left) = (Context::new(&SHA256), packed.size);
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let count = input.read(&mut buffer[..want]).map_err(at("read", &pack))?;
            if count == 0 {
                return Err(small::damaged(&pack, "it is too short"));
            }
            context.update(&buffer[..count]);
            out.write_all(&buffer[..count]).map_err(at("write", &path))?;
            left -= count as u64;
        }
        if finished(context.finish()) != packed.sha256 {
            return Err(small::damaged(&pack, &format!("wrong bytes in {}", packed.path)));
        }
    }
    if input.read(&mut buffer[..1]).map_err(at("read", &pack))? != 0 {
        return Err(small::damaged(&pack, "it is too long"));
    }
    Ok(())
}
