//! What can be pushed: a model's folder, a model in the cache of Hugging Face's tools, or a GGUF file.
//!
//! Each is laid out as the store wants it (see [`crate::layout`]): `config.json` at the top, the tokenizer's files under
//! `tokenizer/`, everything else under `weights/`. Since only those two folders are stripped again, an engine finds in
//! the flat folder exactly the names that were pushed. A folder that is laid out like the store already (it has
//! `weights/`) is taken as it is.
//!
//! ```text
//! models--org--name/                     the cache of Hugging Face's tools
//!   refs/main                            a revision
//!   blobs/<hash>                         the bytes
//!   snapshots/<revision>/config.json  -> ../../blobs/<hash>
//! ```
//!
//! Links are followed, but never out of the folder that was named, or out of the repository for a snapshot: what is
//! pushed is read by others.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fault::CacheFault;
use crate::layout::{TOKENIZER, WEIGHTS};
use crate::manifest::{FILES_MAX, check_path};

/// Folders within folders.
pub const DEPTH_MAX: usize = 32;
/// Largest index of weights that is read, in bytes.
pub const INDEX_BYTES_MAX: u64 = 64 << 20;
/// What a GGUF file begins with.
const GGUF_MAGIC: [u8; 4] = *b"GGUF";

/// Files of a tokenizer, by their whole names.
const TOKENIZER_FILES: [&str; 14] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// What kind of source it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    Folder,
    /// A revision in the cache of Hugging Face's tools.
    HuggingFace {
        revision: String,
    },
    Gguf,
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Of a file as it is now.
    #[must_use]
    pub fn of(stat: &Metadata) -> Self {
        Self {
            device: stat.dev(),
            inode: stat.ino(),
            size: stat.size(),
            modified: (stat.mtime(), stat.mtime_nsec()),
            changed: (stat.ctime(), stat.ctime_nsec()),
        }
    }
}

/// One file to push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path in the manifest.
    pub path: String,
    /// Where its bytes are, links resolved.
    pub from: PathBuf,
    /// In bytes.
    pub size: u64,
    /// As it was when it was found.
    pub stamp: Stamp,
}

/// A model on the disk, laid out for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    kind: SourceKind,
    files: Vec<SourceFile>,
}

impl Source {
    /// Looks at a file or folder and lists what is to be pushed. No content is read but an index of weights.
    ///
    /// # Errors
    /// [`CacheFault::BadSource`] says why it cannot be pushed and what would be; [`CacheFault::Io`].
    pub fn open(path: &Path) -> Result<Self, CacheFault> {
        let stat = fs::metadata(path).map_err(|error| CacheFault::disk("look at", path, &error))?;
        if stat.is_file() {
            return gguf(path);
        }
        if !stat.is_dir() {
            return Err(bad(path, "neither a file nor a folder"));
        }
        if path.join("snapshots").is_dir() && path.join("blobs").is_dir() {
            let revision = revision(path)?;
            return snapshot(path, &path.join("snapshots").join(&revision), revision);
        }
        if let Some((repository, revision)) = repository_of(path) {
            return snapshot(&repository, path, revision);
        }
        Self::checked(path, SourceKind::Folder, walk(path, path)?)
    }

    fn checked(root: &Path, kind: SourceKind, found: Vec<SourceFile>) -> Result<Self, CacheFault> {
        let is_laid_out = found.iter().any(|file| file.path.starts_with(WEIGHTS)) && kind == SourceKind::Folder;
        let mut files: Vec<_> = found
            .into_iter()
            .map(|file| SourceFile { path: if is_laid_out { file.path } else { store_path(&file.path) }, ..file })
            .collect();
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let has_config = files.iter().any(|file| file.path == "config.json");
        let has_gguf = files.iter().any(|file| is_gguf_name(&file.path));
        if !has_config && !has_gguf {
            return Err(bad(root, "no config.json and no .gguf file in it: not a model's folder"));
        }
        check_indexes(root, &files)?;
        Ok(Self { kind, files })
    }

    #[must_use]
    pub const fn kind(&self) -> &SourceKind {
        &self.kind
    }

    /// Sorted by path; at least one.
    #[must_use]
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Sum of the files' sizes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

fn bad(path: &Path, reason: impl Into<String>) -> CacheFault {
    CacheFault::BadSource { path: path.to_path_buf(), reason: reason.into() }
}

/// Where a file of a model's folder lies in the store.
fn store_path(name: &str) -> String {
    if name == "config.json" {
        return name.to_owned();
    }
    let is_tokenizer = TOKENIZER_FILES.contains(&name) || (name.ends_with(".tiktoken") && !name.contains('/'));
    format!("{}{name}", if is_tokenizer { TOKENIZER } else { WEIGHTS })
}

fn is_gguf_name(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The revision that `refs/main` names, or the only one there is.
fn revision(repository: &Path) -> Result<String, CacheFault> {
    let snapshots = repository.join("snapshots");
    let list = || -> std::io::Result<Vec<String>> {
        let names = fs::read_dir(&snapshots)?.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
        Ok(names.collect::<std::io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    let mut there = list().map_err(|error| CacheFault::disk("list", &snapshots, &error))?;
    there.sort();
    let main = fs::read_to_string(repository.join("refs/main")).ok();
    if let Some(main) = main.as_deref().map(str::trim).filter(|main| there.iter().any(|name| name == main)) {
        return Ok(main.to_owned());
    }
    match there.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(bad(repository, "no snapshot in it: download the model first")),
        several => {
            Err(bad(repository, format!("several snapshots and no refs/main: name one of {}", several.join(", "))))
        }
    }
}

/// For `models--org--name/snapshots/<revision>`: the repository and the revision.
fn repository_of(path: &Path) -> Option<(PathBuf, String)> {
    let path = fs::canonicalize(path).ok()?;
    let revision = path.file_name()?.to_str()?.to_owned();
    let snapshots = path.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))?;
    let repository = snapshots.parent().filter(|repository| repository.join("blobs").is_dir())?;
    Some((repository.to_path_buf(), revision))
}

fn snapshot(repository: &Path, folder: &Path, revision: String) -> Result<Source, CacheFault> {
    Source::checked(folder, SourceKind::HuggingFace { revision }, walk(folder, repository)?)
}

/// One GGUF file, or all parts of a split one whichever was named.
fn gguf(path: &Path) -> Result<Source, CacheFault> {
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_err() || magic != GGUF_MAGIC {
        return Err(bad(path, "a file, but no GGUF: name the model's folder"));
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| bad(path, "its name is not UTF-8"))?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut files = Vec::new();
    for part in parts(name) {
        let from = fs::canonicalize(folder.join(&part));
        let from = from.map_err(|error| bad(path, format!("part {part} of the split model is missing: {error}")))?;
        let stat = fs::metadata(&from).map_err(|error| CacheFault::disk("look at", &from, &error))?;
        if !stat.is_file() {
            return Err(bad(&from, "not a file"));
        }
        let path = format!("{WEIGHTS}{part}");
        check_path(&path).map_err(|error| bad(&from, error.to_string()))?;
        files.push(SourceFile { path, from, size: stat.size(), stamp: Stamp::of(&stat) });
    }
    Source::checked(path, SourceKind::Folder, files).map(|source| Source { kind: SourceKind::Gguf, ..source })
}

/// Names of all parts of `name-00002-of-00003.gguf`; the name itself where it is not split.
fn parts(name: &str) -> Vec<String> {
    let split = || {
        let stem = name.strip_suffix(".gguf")?;
        let (stem, of) = stem.rsplit_once("-of-")?;
        let (base, part) = stem.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let count =
            of.parse::<usize>().ok().filter(|count| digits(of) && digits(part) && (1..=FILES_MAX).contains(count))?;
        Some((1..=count).map(|part| format!("{base}-{part:05}-of-{of}.gguf")).collect())
    };
    split().unwrap_or_else(|| vec![name.to_owned()])
}

/// Every file under `root`, links resolved and kept inside `boundary`. Hidden files are not part of a model.
fn walk(root: &Path, boundary: &Path) -> Result<Vec<SourceFile>, CacheFault> {
    let boundary = fs::canonicalize(boundary).map_err(|error| CacheFault::disk("look at", boundary, &error))?;
    let mut files = Vec::new();
    let mut open = vec![(root.to_path_buf(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = open.pop() {
        let entries = fs::read_dir(&folder).map_err(|error| CacheFault::disk("list", &folder, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| CacheFault::disk("list", &folder, &error))?;
            let path = entry.path();
            let name = entry.file_name().into_string().map_err(|_| bad(&path, "its name is not UTF-8"))?;
            let kind = entry.file_type().map_err(|error| CacheFault::disk("look at", &path, &error))?;
            if name.starts_with('.') {
                refuse_unfinished(&path)?;
            } else if kind.is_dir() {
                if depth == DEPTH_MAX {
                    return Err(bad(&path, format!("more than {DEPTH_MAX} folders deep")));
                }
                open.push((path, format!("{prefix}{name}/"), depth + 1));
            } else {
                files.push(file(&path, format!("{prefix}{name}"), &boundary)?);
            }
            if files.len() > FILES_MAX {
                return Err(bad(root, format!("more than {FILES_MAX} files")));
            }
        }
    }
    Ok(files)
}

fn file(path: &Path, name: String, boundary: &Path) -> Result<SourceFile, CacheFault> {
    if name.ends_with(".incomplete") {
        return Err(bad(path, "a download that is not complete"));
    }
    check_path(&format!("{WEIGHTS}{name}")).map_err(|error| bad(path, error.to_string()))?;
    let from = fs::canonicalize(path).map_err(|error| bad(path, format!("a link to nothing: {error}")))?;
    if !from.starts_with(boundary) {
        return Err(bad(path, format!("a link out of {}", boundary.display())));
    }
    let stat = fs::metadata(&from).map_err(|error| CacheFault::disk("look at", &from, &error))?;
    if !stat.is_file() {
        return Err(bad(path, "neither a file nor a folder, or a link to a folder"));
    }
    Ok(SourceFile { path: name, from, size: stat.size(), stamp: Stamp::of(&stat) })
}

/// Hugging Face's tools keep what they have not finished in `.cache/huggingface/download/*.incomplete` of a local folder.
fn refuse_unfinished(hidden: &Path) -> Result<(), CacheFault> {
    let download = hidden.join("huggingface/download");
    let Ok(entries) = fs::read_dir(&download) else { return Ok(()) };
    let unfinished = |name: &std::ffi::OsStr| Path::new(name).extension().is_some_and(|end| end == "incomplete");
    match entries.flatten().find(|entry| unfinished(&entry.file_name())) {
        Some(entry) => Err(bad(&entry.path(), "a download that is not complete")),
        None => Ok(()),
    }
}

/// `*.index.json` beside weights in several files.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    weight_map: BTreeMap<String, String>,
}

/// Every file that an index of weights names must be there: a folder that was copied half is found here, not by an engine.
fn check_indexes(root: &Path, files: &[SourceFile]) -> Result<(), CacheFault> {
    for index in files.iter().filter(|file| file.path.ends_with(".safetensors.index.json")) {
        if index.size > INDEX_BYTES_MAX {
            return Err(bad(&index.from, format!("an index of more than {INDEX_BYTES_MAX} bytes")));
        }
        let text = fs::read(&index.from).map_err(|error| CacheFault::disk("read", &index.from, &error))?;
        let read: Index = serde_json::from_slice(&text).map_err(|error| bad(&index.from, error.to_string()))?;
        let folder = index.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for name in read.weight_map.values() {
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if files.binary_search_by(|file| file.path.as_str().cmp(&path)).is_err() {
                return Err(bad(root, format!("{name} is missing, which {} names", index.path)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_their_place_in_the_store() {
        assert_eq!(store_path("config.json"), "config.json");
        assert_eq!(store_path("tokenizer.json"), "tokenizer/tokenizer.json");
        assert_eq!(store_path("qwen.tiktoken"), "tokenizer/qwen.tiktoken");
        assert_eq!(store_path("generation_config.json"), "weights/generation_config.json");
        assert_eq!(store_path("tokenizer/vocab.json"), "weights/tokenizer/vocab.json");
        assert_eq!(store_path("unet/config.json"), "weights/unet/config.json");
    }

    #[test]
    fn a_split_gguf_is_all_its_parts() {
        assert_eq!(parts("m-00002-of-00003.gguf").len(), 3);
        assert_eq!(parts("m-00002-of-00003.gguf")[0], "m-00001-of-00003.gguf");
        for whole in ["m.gguf", "m-1-of-3.gguf", "m-00001-of-00000.gguf", "one-of-00003.gguf"] {
            assert_eq!(parts(whole), [whole]);
        }
    }
}
