//! How a model becomes visible: a folder of links, made ready aside and put in place by one rename.
//!
//! ```text
//! content file   partial/<sha256>/data ── cut, 0444, fsync ── rename ──> files/<aa>/<sha256> ── fsync of its folder
//! model          tmp/<name>/… ── one hard link for each file ── fsync of every folder ── rename ──> sha256-<digest>/
//! small files    tmp/<name> ── write, fsync ── rename ──> manifests/<digest>.json, refs/<family>/<version>
//! ```
//!
//! A kill between any two steps leaves the model whole or absent. Nothing here writes into a file that a reader may have
//! open: a content file that is replaced keeps living under its old links until each of them is renamed over.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Sha256Digest;

use crate::failpoint;
use crate::fault::CacheFault;
use crate::layout::{Layout, ModelPath, flat_name};
use crate::manifest::{FileEntry, Manifest};

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A name under `tmp/` that nobody has.
fn aside(layout: &Layout) -> PathBuf {
    layout.tmp().join(format!("{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed)))
}

fn at(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CacheFault {
    move |error| CacheFault::disk(action, path, &error)
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), CacheFault> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(at("sync", path))
}

/// Makes a folder and those above it, durable.
pub(crate) fn make_folder(path: &Path) -> Result<(), CacheFault> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at("make", path)(error)),
            Ok(()) | Err(_) => sync_folder(parent)?,
        }
    }
    Ok(())
}

/// Steps of a small file's way that a harness can stop at.
struct Points {
    before: &'static str,
    after: &'static str,
}

fn put(layout: &Layout, path: &Path, bytes: &[u8], points: &Points) -> Result<(), CacheFault> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or_else(|| layout.root());
    make_folder(parent)?;
    make_folder(&layout.tmp())?;
    let fresh = aside(layout);
    let write = || {
        let mut file = File::create_new(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(at("write", &fresh))?;
    failpoint::hit(points.before).map_err(at("rename", path))?;
    fs::rename(&fresh, path).map_err(at("rename", path))?;
    failpoint::hit(points.after).map_err(at("rename", path))?;
    sync_folder(parent)
}

/// Keeps a manifest, so that what is on its way and what is published can be read without the store.
///
/// # Errors
/// The disk's.
pub fn put_manifest(layout: &Layout, manifest: &Manifest) -> Result<(), CacheFault> {
    let points = Points { before: "manifest.before_rename", after: "manifest.after_rename" };
    put(layout, &layout.manifest(manifest.digest()), manifest.bytes(), &points)
}

/// Notes which digest a name stood for when it was last seen.
///
/// # Errors
/// The disk's.
pub fn put_reference(layout: &Layout, model: &ModelPath, digest: Sha256Digest) -> Result<(), CacheFault> {
    let points = Points { before: "reference.before_rename", after: "reference.after_rename" };
    put(layout, &layout.reference(model), format!("{digest}\n").as_bytes(), &points)
}

/// Where a file of a published model lies.
#[must_use]
pub fn published_file(layout: &Layout, digest: Sha256Digest, entry: &FileEntry) -> PathBuf {
    layout.published(digest).join(flat_name(&entry.path))
}

/// Whether an entry is there as a plain file of the right length.
pub(crate) fn has_entry(path: &Path, entry: &FileEntry) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == entry.size)
}

/// The files that a model's folder lacks, or has with a wrong length; none when it is published whole.
#[must_use]
pub fn missing<'a>(layout: &Layout, manifest: &'a Manifest) -> Vec<&'a FileEntry> {
    let is_missing = |entry: &&FileEntry| !has_entry(&published_file(layout, manifest.digest(), entry), entry);
    manifest.files().iter().filter(is_missing).collect()
}

/// Publishes a model whose content files are all there and proven. An existing folder is completed in place.
///
/// # Errors
/// A content file is missing, or the disk's.
pub fn publish(layout: &Layout, manifest: &Manifest) -> Result<PathBuf, CacheFault> {
    let folder = layout.published(manifest.digest());
    if folder.is_dir() {
        relink(layout, manifest, manifest.files())?;
        return Ok(folder);
    }
    make_folder(&layout.tmp())?;
    let fresh = aside(layout);
    fs::create_dir(&fresh).map_err(at("make", &fresh))?;
    let mut folders = BTreeSet::from([fresh.clone()]);
    for entry in manifest.files() {
        failpoint::hit("publish.before_link").map_err(at("link", &fresh))?;
        let path = fresh.join(flat_name(&entry.path));
        let above = path.ancestors().skip(1).take_while(|above| *above != fresh).map(Path::to_path_buf);
        folders.extend(above);
        link(layout, entry, &path)?;
    }
    failpoint::hit("publish.before_sync").map_err(at("sync", &fresh))?;
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    failpoint::hit("publish.before_rename").map_err(at("rename", &folder))?;
    match fs::rename(&fresh, &folder) {
        // somebody else was faster
        Err(_) if folder.is_dir() => {
            fs::remove_dir_all(&fresh).map_err(at("remove", &fresh))?;
            return relink(layout, manifest, manifest.files()).map(|()| folder);
        }
        renamed => renamed.map_err(at("rename", &folder))?,
    }
    failpoint::hit("publish.after_rename").map_err(at("rename", &folder))?;
    sync_folder(layout.root())?;
    Ok(folder)
}

/// Links an entry's content file to `path`, with the folders above it.
fn link(layout: &Layout, entry: &FileEntry, path: &Path) -> Result<(), CacheFault> {
    let content = layout.file(entry.sha256);
    if !has_entry(&content, entry) {
        let reason = format!("the content of {} is missing or has a wrong length", entry.path);
        return Err(CacheFault::Damaged { path: content, reason });
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at("make", parent))?;
    }
    fs::hard_link(&content, path).map_err(at("link", path))
}

/// Makes entries of a published folder name the content files of today, each by one rename. Entries that do already stay.
///
/// # Errors
/// A content file is missing, or the disk's.
pub fn relink<'a>(
    layout: &Layout,
    manifest: &Manifest,
    entries: impl IntoIterator<Item = &'a FileEntry>,
) -> Result<(), CacheFault> {
    make_folder(&layout.tmp())?;
    let mut folders = BTreeSet::new();
    for entry in entries {
        let path = published_file(layout, manifest.digest(), entry);
        let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let content = inode(&layout.file(entry.sha256));
        if content.is_some() && content == inode(&path) && has_entry(&path, entry) {
            continue;
        }
        let fresh = aside(layout);
        link(layout, entry, &fresh)?;
        if let Some(parent) = path.parent() {
            make_folder(parent)?;
            folders.insert(parent.to_path_buf());
        }
        fs::rename(&fresh, &path).map_err(at("rename", &path))?;
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))
}

/// Removes what does not belong into a model's folder, and says what that was.
///
/// # Errors
/// The disk's.
pub fn remove_strangers(layout: &Layout, manifest: &Manifest) -> Result<Vec<PathBuf>, CacheFault> {
    let strangers = strangers(layout, manifest)?;
    for path in &strangers {
        let is_folder = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
        let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.map_err(at("remove", path))?;
    }
    Ok(strangers)
}

/// What lies in a model's folder and is not in its manifest.
///
/// # Errors
/// The disk's.
pub fn strangers(layout: &Layout, manifest: &Manifest) -> Result<Vec<PathBuf>, CacheFault> {
    let folder = layout.published(manifest.digest());
    let files: BTreeSet<PathBuf> = manifest.files().iter().map(|entry| folder.join(flat_name(&entry.path))).collect();
    let folders: BTreeSet<&Path> =
        files.iter().flat_map(|file| file.ancestors().skip(1).take_while(|above| *above != folder)).collect();
    let (mut found, mut open) = (Vec::new(), vec![folder.clone()]);
    while let Some(place) = open.pop() {
        let read = fs::read_dir(&place).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in read.map_err(at("read", &place))? {
            let path = entry.path();
            let is_folder = entry.file_type().map_err(at("read", &path))?.is_dir();
            match is_folder {
                true if folders.contains(path.as_path()) => open.push(path),
                false if files.contains(&path) => {}
                true | false => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::sha256;

    fn model(layout: &Layout, files: &[(&str, &[u8])]) -> Manifest {
        let entries = files.iter().map(|(path, bytes)| {
            let content = layout.file(sha256(bytes));
            fs::create_dir_all(content.parent().unwrap()).unwrap();
            fs::write(content, bytes).unwrap();
            let chunks = if bytes.is_empty() { Vec::new() } else { vec![sha256(bytes)] };
            FileEntry { path: (*path).to_owned(), size: bytes.len() as u64, sha256: sha256(bytes), chunks }
        });
        Manifest::new(64 << 10, entries.collect()).unwrap()
    }

    #[test]
    fn a_model_is_the_flat_folder_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let files: [(&str, &[u8]); 4] =
            [("config.json", b"{}"), ("weights/a/b.bin", b"bb"), ("tokenizer/t.json", b"{}"), ("weights/e", b"")];
        let manifest = model(&layout, &files);
        assert_eq!(missing(&layout, &manifest).len(), 4);
        let published = publish(&layout, &manifest).unwrap();
        assert!(missing(&layout, &manifest).is_empty());
        assert_eq!(fs::read(published.join("a/b.bin")).unwrap(), b"bb");
        let inode = |name: &str| fs::metadata(published.join(name)).unwrap().ino();
        assert_eq!(inode("config.json"), inode("t.json"), "the same content is there once");
        assert!(strangers(&layout, &manifest).unwrap().is_empty());
        assert_eq!(fs::read_dir(layout.tmp()).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_content_file_publishes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let manifest = model(&layout, &[("config.json", b"{}"), ("weights/b", b"bb")]);
        fs::write(layout.file(sha256(b"bb")), b"longer").unwrap();
        assert_eq!(publish(&layout, &manifest).unwrap_err().code(), "damaged");
        assert!(!layout.published(manifest.digest()).exists());
    }

    #[test]
    fn a_folder_that_somebody_changed_is_completed_without_touching_what_readers_hold() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let manifest = model(&layout, &[("config.json", b"{}"), ("weights/b", b"bb")]);
        let published = publish(&layout, &manifest).unwrap();
        let held = File::open(published.join("b")).unwrap();
        fs::remove_file(published.join("config.json")).unwrap();
        fs::remove_file(layout.file(sha256(b"bb"))).unwrap();
        fs::write(layout.file(sha256(b"bb")), b"bb").unwrap();
        fs::write(published.join("stranger"), b"?").unwrap();
        fs::create_dir(published.join("odd")).unwrap();
        publish(&layout, &manifest).unwrap();
        assert!(missing(&layout, &manifest).is_empty());
        assert_ne!(held.metadata().unwrap().ino(), fs::metadata(published.join("b")).unwrap().ino());
        assert_eq!(io::read_to_string(held).unwrap(), "bb");
        let found = remove_strangers(&layout, &manifest).unwrap();
        assert_eq!(found, [published.join("odd"), published.join("stranger")]);
        assert!(strangers(&layout, &manifest).unwrap().is_empty());
    }

    #[test]
    fn two_that_publish_one_model_at_once_both_find_it_whole() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let layout = Layout::new(folder.path());
            let manifest = model(&layout, &[("config.json", b"{}"), ("weights/b", b"bb"), ("weights/c/d", b"d")]);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        publish(&layout, &manifest).unwrap();
                        assert!(missing(&layout, &manifest).is_empty());
                    });
                }
            });
            assert!(strangers(&layout, &manifest).unwrap().is_empty());
            assert_eq!(fs::read_dir(layout.tmp()).unwrap().count(), 0);
        }
    }
}
