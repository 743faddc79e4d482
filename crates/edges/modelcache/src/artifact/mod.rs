//! Compile caches (torch.compile, Triton) as a second kind of content: saved after a first load, laid out before the next.
//!
//! ```text
//! before a load   lay_out ── on this disk? ── in the store? ──> hit: a fresh folder, every byte proven
//!                                                           └─> miss: the engine compiles
//! after it        keep ── folder ── one pack, one record ──> artifacts/<model>/<key>/ ──> store, for the other nodes
//! ```
//!
//! What an engine compiles depends on the model, on the engine, the driver, the GPU, the tensor parallelism and the
//! flags: all of these are the key, so that nothing is ever laid out for something else. The files are many and small, so
//! they travel as one pack. They may hold code that is run: they come from our own store only, and each is proven against
//! the record before an engine can see it. An engine writes into its cache, so what it gets are copies, never links.

mod pack;
mod share;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use crate::cache::{Cache, small};
use crate::fault::CacheFault;
use crate::flight::{Followed, Join, follow};
use crate::layout::Layout;
use crate::manifest::{check_path, sha256};
use crate::progress::Event;
use crate::remote::Remote;

/// How many files one compile cache has.
pub const ARTIFACT_FILES_MAX: usize = 20_000;
/// How many bytes.
pub const ARTIFACT_BYTES_MAX: u64 = 8 << 30;
/// How long its record is, in bytes.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// How long one text of a key is, in bytes.
pub const KEY_TEXT_MAX: usize = 256;
/// How many flags a key has.
pub const KEY_FLAGS_MAX: usize = 256;
/// The folder in the store. No family of models has a name that begins like this.
pub const STORE_FOLDER: &str = "_artifacts";

/// What a compile cache is for. Two keys are the same when all of it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArtifactKey {
    /// The digest of the model's manifest.
    pub model: Sha256Digest,
    /// The engine's name.
    pub engine: String,
    /// The engine's version, as exact as it is known.
    pub engine_version: String,
    /// The GPU driver's version.
    pub driver: String,
    /// The GPU's architecture, such as `sm_103`.
    pub gpu: String,
    /// GPUs of one replica.
    pub tensor_parallel: u32,
    /// The engine's flags that matter for what is compiled, in their order.
    pub flags: Vec<String>,
}

impl ArtifactKey {
    /// The name that follows from all of it.
    ///
    /// # Errors
    ///
    /// `bad_settings` when a text is too long or there are too many flags.
    pub fn digest(&self) -> Result<Sha256Digest, CacheFault> {
        let texts = [&self.engine, &self.engine_version, &self.driver, &self.gpu];
        let fits = texts.into_iter().chain(&self.flags).all(|text| text.len() <= KEY_TEXT_MAX);
        let refuse = |reason: String| CacheFault::BadSettings { reason };
        if !fits || self.flags.len() > KEY_FLAGS_MAX {
            return Err(refuse(format!(
                "the key of a compile cache has at most {KEY_FLAGS_MAX} flags, and {KEY_TEXT_MAX} bytes in each text"
            )));
        }
        // The texts lie between quotes, so that no two keys have the same bytes.
        serde_json::to_vec(self).map(|bytes| sha256(&bytes)).map_err(|error| refuse(error.to_string()))
    }
}

/// One file of a compile cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Packed {
    path: String,
    size: u64,
    sha256: Sha256Digest,
    executable: bool,
}

/// What a pack holds. The pack is the files one after the other, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    artifact_version: u32,
    key: ArtifactKey,
    pack_bytes: u64,
    pack_sha256: Sha256Digest,
    files: Vec<Packed>,
}

impl Record {
    /// Reads a record, which has to be that of `key`; why not, in words.
    fn parse(bytes: &[u8], key: &ArtifactKey) -> Result<Self, String> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err("it is longer than a record can be".to_owned());
        }
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if record.artifact_version != 1 {
            return Err(format!("version {}, this program knows 1", record.artifact_version));
        }
        if record.key != *key {
            return Err("it is of another compile cache".to_owned());
        }
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), String> {
        if self.files.len() > ARTIFACT_FILES_MAX || self.pack_bytes > ARTIFACT_BYTES_MAX {
            return Err("more files or bytes than a compile cache can have".to_owned());
        }
        let mut bytes = 0_u64;
        for file in &self.files {
            check_path(&file.path).map_err(|error| error.to_string())?;
            bytes = bytes.saturating_add(file.size);
        }
        if bytes != self.pack_bytes {
            return Err("its files are not as long as its pack".to_owned());
        }
        // Sorted as paths of folders are: `a` comes right before `a/b`, so one look at each neighbour finds everything.
        let parts = |file: &Packed| file.path.split('/').map(str::to_owned).collect::<Vec<_>>();
        for pair in self.files.windows(2) {
            let (first, second) = (parts(&pair[0]), parts(&pair[1]));
            if first >= second || second.starts_with(&first) {
                return Err("its files are out of order, there twice, or a file is another's folder".to_owned());
            }
        }
        Ok(())
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err("its record is longer than it can be".to_owned());
        }
        Ok(bytes)
    }
}

/// Where one compile cache is on the disk.
#[derive(Clone, Debug)]
struct Place {
    folder: PathBuf,
}

impl Place {
    /// By model, so that a collection sees whose it is without reading it.
    fn of(layout: &Layout, key: &ArtifactKey) -> Result<Self, CacheFault> {
        let digest = key.digest()?;
        Ok(Self { folder: layout.artifacts().join(key.model.to_string()).join(digest.to_string()) })
    }

    fn record(&self) -> PathBuf {
        self.folder.join("record.json")
    }

    fn pack(&self) -> PathBuf {
        self.folder.join("pack")
    }

    /// The record; `None` when there is no such compile cache.
    fn read(&self, key: &ArtifactKey) -> Result<Option<Record>, CacheFault> {
        let path = self.record();
        let Some(bytes) = small::read(&path, RECORD_BYTES_MAX as u64)? else { return Ok(None) };
        Record::parse(&bytes, key).map(Some).map_err(|reason| small::damaged(&path, &reason))
    }
}

/// Where a compile cache came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This node's disk.
    Disk,
    /// The store: another node has compiled it.
    Store,
}

/// What was found before a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "artifact", rename_all = "snake_case")]
pub enum LaidOut {
    /// The folder is filled.
    Hit {
        /// Where it came from.
        from: Origin,
        /// Files in it.
        files: u64,
        /// Bytes in it.
        bytes: u64,
    },
    /// There is none: the engine compiles.
    Miss,
}

/// What was saved after a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The digest of the key.
    pub digest: String,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Links, sockets and the like that were left out.
    pub left_out: u64,
    /// Whether this call saved it; else an earlier one had.
    pub is_new: bool,
}

/// Fills `target`, a folder that is not there or empty, with the compile cache of `key`, from the disk or else the store.
///
/// A copy on the disk that is damaged is removed, counted, and fetched again.
///
/// # Errors
///
/// `bad_source` when `target` is not empty; what disk and store say. The folder is then as it was. A caller goes on
/// without a compile cache.
pub async fn lay_out(
    cache: &Arc<Cache>,
    remote: Option<&Remote>,
    key: &ArtifactKey,
    target: &Path,
) -> Result<LaidOut, CacheFault> {
    let found = find(cache, remote, key, target).await?;
    match found {
        LaidOut::Hit { .. } => cache.counters().artifact_hits.one(),
        LaidOut::Miss => cache.counters().artifact_misses.one(),
    }
    Ok(found)
}

async fn find(
    cache: &Arc<Cache>,
    remote: Option<&Remote>,
    key: &ArtifactKey,
    target: &Path,
) -> Result<LaidOut, CacheFault> {
    let digest = key.digest()?;
    if let Some((files, bytes)) = from_disk(cache, key, target).await? {
        return Ok(LaidOut::Hit { from: Origin::Disk, files, bytes });
    }
    let Some(remote) = remote else { return Ok(LaidOut::Miss) };
    loop {
        match cache.files().join(digest)? {
            Join::Lead(lead) => {
                let is_there = share::pull(cache, remote, key).await.inspect_err(|fault| lead.fail(fault))?;
                lead.tell(Event::Published { digest: digest.to_string(), path: String::new() });
                if !is_there {
                    return Ok(LaidOut::Miss);
                }
                break;
            }
            Join::Follow(listener) => {
                if follow(listener, &|_| ()).await? == Followed::Done {
                    break;
                }
            }
        }
    }
    let laid_out = from_disk(cache, key, target).await?;
    Ok(laid_out.map_or(LaidOut::Miss, |(files, bytes)| LaidOut::Hit { from: Origin::Store, files, bytes }))
}

/// Lays out what is on the disk; `None` when there is nothing, or nothing that is right.
async fn from_disk(cache: &Arc<Cache>, key: &ArtifactKey, target: &Path) -> Result<Option<(u64, u64)>, CacheFault> {
    let (key, target) = (key.clone(), target.to_path_buf());
    blocking(cache, move |cache| {
        let place = Place::of(cache.layout(), &key)?;
        match pack::lay_out(&place, &key, &target) {
            Err(CacheFault::Damaged { path, reason }) => {
                tracing::warn!(path = %path.display(), reason, "damaged compile cache removed");
                cache.counters().checksum_failures_disk.one();
                small::remove_tree(&place.folder)?;
                Ok(None)
            }
            done => done,
        }
    })
    .await
}

/// Saves what an engine compiled in `folder`, on the disk and, where there is a store, for the other nodes. A compile
/// cache that is there already stays as it is: the first load has decided.
///
/// # Errors
///
/// `bad_source` when a file changes while it is read, or there is more than a compile cache can have; what disk and
/// store say.
pub async fn keep(
    cache: &Arc<Cache>,
    remote: Option<&Remote>,
    key: &ArtifactKey,
    folder: &Path,
) -> Result<Kept, CacheFault> {
    let (own, source) = (key.clone(), folder.to_path_buf());
    let kept = blocking(cache, move |cache| pack::keep(cache, &own, &source)).await?;
    if let Some(remote) = remote {
        share::push(cache, remote, key).await?;
    }
    Ok(kept)
}

/// Does something that blocks on the disk.
async fn blocking<T: Send + 'static>(
    cache: &Arc<Cache>,
    work: impl FnOnce(&Cache) -> Result<T, CacheFault> + Send + 'static,
) -> Result<T, CacheFault> {
    let cache = Arc::clone(cache);
    tokio::task::spawn_blocking(move || work(&cache)).await.unwrap_or(Err(CacheFault::Cancelled))
}
