//! The manifest: what a model is.
//!
//! `manifest.json` lists every file with its size, its SHA-256 and the SHA-256 of each chunk. The list is the only truth
//! about completeness: no directory listing, size or entity tag proves anything. Its bytes are canonical (one text for one
//! content), so the SHA-256 of `manifest.json` as it lies in the store is the model's digest and the cache's key.
//!
//! ```json
//! {"manifestVersion":1,"chunkSize":33554432,"files":[{"path":"config.json","size":2,"sha256":"…","chunks":["…"]}]}
//! ```
//!
//! Canonical means: members in this order, no white space but one line feed at the end, files sorted by the bytes of
//! their path, digests in lower case. [`Manifest::parse`] refuses everything else, and whatever breaks a bound below:
//! a manifest comes from a store that others write to.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use crate::layout;

/// The version that this program writes and reads.
pub const MANIFEST_VERSION: u32 = 1;
/// Largest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: usize = 64 << 20;
/// Most files of one model.
pub const FILES_MAX: usize = 100_000;
/// Smallest and largest chunk, in bytes; a chunk size is a power of two.
pub const CHUNK_BYTES_MIN: u32 = 64 << 10;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_MAX: u32 = 256 << 20;
/// What a push takes when nothing is said.
pub const CHUNK_BYTES_DEFAULT: u32 = 32 << 20;
/// Longest path of a file, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;
/// Longest part of a path, in bytes: what file systems allow.
pub const COMPONENT_BYTES_MAX: usize = 255;
/// Most bytes of one model: 2^60, so that sums of several never overflow.
pub const MODEL_BYTES_MAX: u64 = 1 << 60;

/// Why something is no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("{size} bytes, at most {MANIFEST_BYTES_MAX} allowed")]
    TooLarge { size: usize },
    #[error("not a manifest: {0}")]
    Syntax(String),
    #[error("manifest version {0}, this program reads {MANIFEST_VERSION}")]
    Version(u32),
    #[error("chunk size {0} is no power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}")]
    ChunkSize(u64),
    #[error("{0} files, 1 to {FILES_MAX} allowed")]
    FileCount(usize),
    #[error("path {path:?}: {reason}")]
    Path { path: String, reason: &'static str },
    #[error("{0:?} is listed twice")]
    Twice(String),
    #[error("{file:?} is a file, and a folder of {other:?}")]
    FileAndFolder { file: String, other: String },
    #[error("{first:?} and {second:?} have the same name in the flat folder")]
    Collision { first: String, second: String },
    #[error("{path:?} has {found} chunks, its size makes {expected}")]
    ChunkCount { path: String, expected: u64, found: u64 },
    #[error("the files have more than {MODEL_BYTES_MAX} bytes in all")]
    TooManyBytes,
    #[error(
        "not in canonical form: files sorted by path, no white space, lower-case digests, one line feed at the end"
    )]
    NotCanonical,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Where it is under the version's folder in the store, parts separated by `/`: `weights/model.gguf`.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of the whole file.
    pub sha256: Sha256Digest,
    /// Of each chunk in order; all but the last are `chunkSize` long. None for an empty file.
    pub chunks: Vec<Sha256Digest>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    manifest_version: u32,
    chunk_size: u64,
    files: Vec<FileEntry>,
}

/// A manifest that keeps every rule above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    chunk_size: u32,
    files: Vec<FileEntry>,
    total_bytes: u64,
    bytes: Vec<u8>,
    digest: Sha256Digest,
}

impl Manifest {
    /// Makes one of files in any order.
    ///
    /// # Errors
    /// A rule is broken.
    pub fn new(chunk_size: u32, mut files: Vec<FileEntry>) -> Result<Self, ManifestError> {
        check_count(&files)?;
        // a digest takes 67 bytes of text: what cannot fit is not written first
        let least = files.iter().map(|file| file.chunks.len()).sum::<usize>().saturating_mul(67);
        if least > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge { size: least });
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        let document = Document { manifest_version: MANIFEST_VERSION, chunk_size: chunk_size.into(), files };
        let bytes = canonical(&document)?;
        Self::checked(document, bytes)
    }

    /// Reads `manifest.json`.
    ///
    /// # Errors
    /// It is not in canonical form, or breaks a rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge { size: bytes.len() });
        }
        let document: Document =
            serde_json::from_slice(bytes).map_err(|error| ManifestError::Syntax(error.to_string()))?;
        let manifest = Self::checked(document, bytes.to_vec())?;
        let document = Document {
            manifest_version: MANIFEST_VERSION,
            chunk_size: manifest.chunk_size.into(),
            files: manifest.files,
        };
        if canonical(&document)? != bytes {
            return Err(ManifestError::NotCanonical);
        }
        Ok(Self { files: document.files, ..manifest })
    }

    fn checked(document: Document, bytes: Vec<u8>) -> Result<Self, ManifestError> {
        let Document { manifest_version, chunk_size, files } = document;
        if manifest_version != MANIFEST_VERSION {
            return Err(ManifestError::Version(manifest_version));
        }
        let chunk_size = check_chunk_size(chunk_size)?;
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge { size: bytes.len() });
        }
        check_count(&files)?;
        if files.windows(2).any(|pair| pair[0].path > pair[1].path) {
            return Err(ManifestError::NotCanonical);
        }
        let mut total_bytes = 0_u64;
        for file in &files {
            check_path(&file.path)?;
            let expected = file.size.div_ceil(chunk_size.into());
            let found = file.chunks.len() as u64;
            if expected != found {
                return Err(ManifestError::ChunkCount { path: file.path.clone(), expected, found });
            }
            total_bytes = total_bytes.checked_add(file.size).ok_or(ManifestError::TooManyBytes)?;
        }
        if total_bytes > MODEL_BYTES_MAX {
            return Err(ManifestError::TooManyBytes);
        }
        check_tree(&files)?;
        check_flat(&files)?;
        let digest = sha256(&bytes);
        Ok(Self { chunk_size, files, total_bytes, bytes, digest })
    }

    /// Length of all chunks but a file's last, in bytes.
    #[must_use]
    pub const fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Sorted by path; at least one.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Sum of the files' sizes.
    #[must_use]
    pub const fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The canonical text, as it lies in the store.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// SHA-256 of [`Self::bytes`]: the model's digest.
    #[must_use]
    pub const fn digest(&self) -> Sha256Digest {
        self.digest
    }
}

impl FileEntry {
    /// Where chunk `index` begins and how long it is, in bytes; `None` past the last one.
    #[must_use]
    pub fn chunk_span(&self, chunk_size: u32, index: u64) -> Option<(u64, u64)> {
        let start = index.checked_mul(chunk_size.into())?;
        let left = self.size.checked_sub(start).filter(|left| *left > 0)?;
        Some((start, left.min(chunk_size.into())))
    }
}

/// SHA-256 of bytes in memory.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Sha256Digest {
    finished(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes))
}

/// The digest that a SHA-256 context of aws-lc-rs ended with.
#[must_use]
pub fn finished(digest: aws_lc_rs::digest::Digest) -> Sha256Digest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    Sha256Digest(bytes)
}

fn canonical(document: &Document) -> Result<Vec<u8>, ManifestError> {
    let mut bytes = serde_json::to_vec(document).map_err(|error| ManifestError::Syntax(error.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn check_count(files: &[FileEntry]) -> Result<(), ManifestError> {
    match files.len() {
        1..=FILES_MAX => Ok(()),
        count => Err(ManifestError::FileCount(count)),
    }
}

/// # Errors
/// It is no power of two from [`CHUNK_BYTES_MIN`] to [`CHUNK_BYTES_MAX`].
pub fn check_chunk_size(chunk_size: u64) -> Result<u32, ManifestError> {
    match u32::try_from(chunk_size) {
        Ok(size) if size.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&size) => Ok(size),
        _ => Err(ManifestError::ChunkSize(chunk_size)),
    }
}

/// # Errors
/// It is absolute, too long, or has a part that is empty, `.`, `..`, too long or holds a control character or `\`.
pub fn check_path(path: &str) -> Result<(), ManifestError> {
    let refuse = |reason| Err(ManifestError::Path { path: path.chars().take(200).collect(), reason });
    if path.is_empty() {
        return refuse("empty");
    }
    if path.len() > PATH_BYTES_MAX {
        return refuse("longer than 1024 bytes");
    }
    if path.chars().any(|letter| letter.is_control() || letter == '\\') {
        return refuse("holds a control character or a backslash");
    }
    for part in path.split('/') {
        match part {
            "" => return refuse("absolute, or an empty part"),
            "." | ".." => return refuse("a part is . or .."),
            part if part.len() > COMPONENT_BYTES_MAX => return refuse("a part is longer than 255 bytes"),
            _ => {}
        }
    }
    if path == layout::MANIFEST {
        return refuse("the manifest does not list itself");
    }
    Ok(())
}

/// No path twice, and no file that is another's folder.
fn check_tree(files: &[FileEntry]) -> Result<(), ManifestError> {
    let mut paths = HashSet::with_capacity(files.len());
    for file in files {
        if !paths.insert(file.path.as_str()) {
            return Err(ManifestError::Twice(file.path.clone()));
        }
    }
    for file in files {
        if let Some(folder) = folders(&file.path).find(|folder| paths.contains(folder)) {
            return Err(ManifestError::FileAndFolder { file: folder.to_owned(), other: file.path.clone() });
        }
    }
    Ok(())
}

/// The same in the flat folder, where `weights/` and `tokenizer/` are gone.
fn check_flat(files: &[FileEntry]) -> Result<(), ManifestError> {
    let mut names = std::collections::HashMap::with_capacity(files.len());
    let collision = |first: &str, second: &str| {
        Err(ManifestError::Collision { first: first.to_owned(), second: second.to_owned() })
    };
    for file in files {
        if let Some(first) = names.insert(layout::flat_name(&file.path), file.path.as_str()) {
            return collision(first, &file.path);
        }
    }
    for file in files {
        if let Some(first) = folders(layout::flat_name(&file.path)).find_map(|folder| names.get(folder)) {
            return collision(first, &file.path);
        }
    }
    Ok(())
}

/// `a/b/c` lies in `a` and `a/b`.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

impl From<ManifestError> for crate::CacheFault {
    fn from(error: ManifestError) -> Self {
        Self::ManifestInvalid { reason: error.to_string() }
    }
}
