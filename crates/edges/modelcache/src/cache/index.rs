//! A model's files in few bytes, beside its manifest.
//!
//! Listing a cache needs paths, sizes and digests, not the chunk lists, which are most of a manifest: the index spares
//! reading and checking them. It follows from the manifest and is made anew from it when it is missing or damaged.
//!
//! ```text
//! "TGINDEX1"  count: u32   count x { sha256: 32 bytes  size: u64  length: u16  path }   crc32: u32      little-endian
//! ```

use tidegate_core::Sha256Digest;

use super::small;
use crate::fault::CacheFault;
use crate::layout::{Layout, flat_name};
use crate::manifest::{FILES_MAX, MANIFEST_BYTES_MAX, Manifest, PATH_BYTES_MAX};

const MAGIC: &[u8; 8] = b"TGINDEX1";
const FIXED_BYTES: usize = 32 + 8 + 2;
const INDEX_BYTES_MAX: u64 = (16 + FILES_MAX * (FIXED_BYTES + PATH_BYTES_MAX)) as u64;

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexed {
    /// Its path in the model.
    pub path: String,
    /// Its length.
    pub size: u64,
    /// Its content.
    pub sha256: Sha256Digest,
}

impl Indexed {
    /// Its name in the published folder.
    #[must_use]
    pub fn flat_name(&self) -> &str {
        flat_name(&self.path)
    }
}

pub(crate) fn path(layout: &Layout, digest: Sha256Digest) -> std::path::PathBuf {
    layout.manifests().join(format!("{digest}.index"))
}

pub(crate) fn encode(manifest: &Manifest) -> Vec<u8> {
    let files = manifest.files();
    let mut bytes = Vec::with_capacity(16 + files.len() * (FIXED_BYTES + 48));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&u32::try_from(files.len()).unwrap_or(u32::MAX).to_le_bytes());
    for file in files {
        bytes.extend_from_slice(&file.sha256.0);
        bytes.extend_from_slice(&file.size.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(file.path.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(file.path.as_bytes());
    }
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// `None` for anything that [`encode`] did not write.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Indexed>> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (count, mut rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
    if count > FILES_MAX {
        return None;
    }
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        let (sha256, after) = rest.split_first_chunk::<32>()?;
        let (size, after) = after.split_first_chunk::<8>()?;
        let (length, after) = after.split_first_chunk::<2>()?;
        let (path, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let path = std::str::from_utf8(path).ok()?;
        files.push(Indexed { path: path.to_owned(), size: u64::from_le_bytes(*size), sha256: Sha256Digest(*sha256) });
        rest = after;
    }
    rest.is_empty().then_some(files)
}

/// A recorded model's files: from the index, or from the manifest where there is none that holds.
///
/// # Errors
///
/// `damaged` when the manifest is not the one that its name says; else what the disk says.
pub(crate) fn files(layout: &Layout, digest: Sha256Digest) -> Result<Vec<Indexed>, CacheFault> {
    if let Ok(Some(bytes)) = small::read(&path(layout, digest), INDEX_BYTES_MAX)
        && let Some(files) = decode(&bytes)
    {
        return Ok(files);
    }
    let manifest = manifest(layout, digest)?;
    Ok(manifest.files().iter().map(indexed).collect())
}

fn indexed(file: &crate::manifest::FileEntry) -> Indexed {
    Indexed { path: file.path.clone(), size: file.size, sha256: file.sha256 }
}

/// A recorded manifest.
pub(crate) fn manifest(layout: &Layout, digest: Sha256Digest) -> Result<Manifest, CacheFault> {
    let path = layout.manifest(digest);
    let bytes = small::read(&path, MANIFEST_BYTES_MAX as u64)?.ok_or_else(|| small::damaged(&path, "it is missing"))?;
    let manifest = Manifest::parse(&bytes).map_err(|error| small::damaged(&path, &error.to_string()))?;
    if manifest.digest() != digest {
        return Err(small::damaged(&path, "it has another digest than its name says"));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::FileEntry;

    fn manifest() -> Manifest {
        let file = |path: &str, size: u64| {
            let chunks = (0..size.div_ceil(1 << 16)).map(|at| Sha256Digest([at as u8; 32])).collect();
            FileEntry { path: path.to_owned(), size, sha256: Sha256Digest([path.len() as u8; 32]), chunks }
        };
        Manifest::new(1 << 16, vec![file("weights/a", 1 << 20), file("config.json", 7), file("empty", 0)]).unwrap()
    }

    #[test]
    fn the_index_says_what_the_manifest_says() {
        let manifest = manifest();
        let files = decode(&encode(&manifest)).unwrap();
        assert_eq!(files, manifest.files().iter().map(indexed).collect::<Vec<_>>());
        assert_eq!(files[2].flat_name(), "a");
    }

    #[test]
    fn a_missing_or_damaged_index_is_replaced_by_the_manifest_and_a_damaged_manifest_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        let manifest = manifest();
        let digest = manifest.digest();
        std::fs::create_dir_all(layout.manifests()).unwrap();
        std::fs::write(layout.manifest(digest), manifest.bytes()).unwrap();
        let expected: Vec<_> = manifest.files().iter().map(indexed).collect();
        assert_eq!(files(&layout, digest).unwrap(), expected);
        std::fs::write(path(&layout, digest), b"TGINDEX1 damaged").unwrap();
        assert_eq!(files(&layout, digest).unwrap(), expected);
        std::fs::write(layout.manifest(digest), &manifest.bytes()[1..]).unwrap();
        assert_eq!(files(&layout, digest).unwrap_err().code(), "damaged");
        std::fs::remove_file(layout.manifest(digest)).unwrap();
        assert_eq!(files(&layout, digest).unwrap_err().code(), "damaged");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_no_flipped_bit_is_taken(at in 0_usize..1000, bit in 0_u8..8, cut in 0_usize..1000) {
            let mut bytes = encode(&manifest());
            prop_assert_eq!(decode(&bytes[..cut % bytes.len()]), None);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode(&bytes), None);
        }

        #[test]
        fn a_right_sum_over_nonsense_is_no_index(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), count in any::<u32>()) {
            let mut text = MAGIC.to_vec();
            text.extend_from_slice(&count.to_le_bytes());
            text.append(&mut bytes);
            let sum = crc32fast::hash(&text);
            text.extend_from_slice(&sum.to_le_bytes());
            drop(decode(&text));
        }
    }
}
