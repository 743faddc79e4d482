//! Everything that can go wrong with a model between the store and the disk, by name.
//!
//! The set is closed: whatever a store, a disk or another process does ends as one of these. Its [`code`](CacheFault::code)
//! is stable and goes into events, metrics and documents; its text names the object or path at fault; its
//! [`hint`](CacheFault::hint) says what the operator does next.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

/// One failure. It travels whole over the owner's socket, tagged by its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case", deny_unknown_fields)]
pub enum CacheFault {
    /// A chunk's bytes are not those that the manifest names.
    #[error("wrong bytes in chunk {chunk} of {file}")]
    WrongBytes { file: String, chunk: u64 },
    /// An object or file has another length than it must have.
    #[error("wrong length of {object}: {expected} bytes expected, {found} found")]
    WrongLength { object: String, expected: u64, found: u64 },
    /// The object was replaced while it was read: its entity tag is another one.
    #[error("{object} changed in the store while it was read")]
    ChangedObject { object: String },
    /// An object that must be there is not.
    #[error("{object} is not in the store")]
    VanishedObject { object: String },
    /// There is no manifest where the model was looked for.
    #[error("there is no model {model} in the store")]
    NoSuchModel { model: String },
    #[error("there is no bucket {bucket}")]
    NoSuchBucket { bucket: String },
    /// A request for a range was answered with status 200.
    #[error("the store ignores ranges: status 200 to a range of {object}")]
    RangeIgnored { object: String },
    /// Status 206 with a range that was not asked for.
    #[error("wrong content-range for {object}: asked for {asked}, got {found}")]
    WrongContentRange { object: String, asked: String, found: String },
    /// 429, or 503 that says slow down.
    #[error("the store throttles: status {status} {reason} for {object}")]
    Throttled {
        object: String,
        status: u16,
        reason: String,
        /// What `Retry-After` asks for, in milliseconds, not capped.
        retry_after_ms: Option<u64>,
    },
    /// 5xx that does not say slow down, or any that has not ended after all tries.
    #[error("the store is not available: status {status} {reason} for {object}")]
    StoreUnavailable { object: String, status: u16, reason: String, retry_after_ms: Option<u64> },
    /// No byte, or too few, for longer than the clock of that phase allows.
    #[error("{object} stalled: {phase} for {after_ms} ms")]
    Stalled { object: String, phase: StallPhase, after_ms: u64 },
    /// The connection ended before the answer did.
    #[error("the connection broke while reading {object}: {reason}")]
    Interrupted { object: String, reason: String },
    /// 401 or 403.
    #[error("the store refuses {object}: status {status} {reason}")]
    Refused { object: String, status: u16, reason: String },
    #[error("the credentials have expired: {reason}")]
    ExpiredCredentials { reason: String },
    /// There are none, or they cannot be read or had.
    #[error("no credentials: {reason}")]
    NoCredentials { reason: String },
    #[error("no connection to {endpoint}: {reason}")]
    Connect { endpoint: String, reason: String },
    #[error("no TLS with {endpoint}: {reason}")]
    Tls { endpoint: String, reason: String },
    /// An answer that the protocol does not allow, or that is larger than its bound.
    #[error("the store's answer for {object} makes no sense: {reason}")]
    BadAnswer { object: String, reason: String },
    /// The store's settings are wrong.
    #[error("wrong store settings: {reason}")]
    BadSettings { reason: String },
    /// The version is there with other content.
    #[error("{model} exists with other content ({digest})")]
    VersionExists { model: String, digest: Sha256Digest },
    #[error("the disk is full: {}", path.display())]
    DiskFull { path: PathBuf },
    #[error("the disk quota is used up: {}", path.display())]
    Quota { path: PathBuf },
    #[error("read-only file system: {}", path.display())]
    ReadOnly { path: PathBuf },
    /// Bytes are free, but the file system can hold no more files.
    #[error("the file system holds no more files (inodes): {}", path.display())]
    InodesFull { path: PathBuf },
    /// Refused before the first byte.
    #[error("{0}")]
    NoRoom(NoRoom),
    #[error("the manifest is invalid: {reason}")]
    ManifestInvalid { reason: String },
    /// The model in the store is not the one that the document pins.
    #[error("digest {found} found, {expected} pinned")]
    WrongDigest { expected: Sha256Digest, found: Sha256Digest },
    /// What is to be pushed is no model folder, or changed while it was read.
    #[error("{} cannot be pushed: {reason}", path.display())]
    BadSource { path: PathBuf, reason: String },
    /// What is cached is damaged or not as we left it.
    #[error("the cache is damaged at {}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("cannot {action} {}: {reason}", path.display())]
    Io { action: String, path: PathBuf, reason: String },
    /// Another process holds the cache and does not answer.
    #[error("the cache is owned by process {pid}, which does not answer: {reason}")]
    OwnerBusy { pid: u32, reason: String },
    #[error("cancelled")]
    Cancelled,
}

/// Which clock ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StallPhase {
    /// Request sent, no response head.
    FirstByte,
    /// No byte since the last one.
    Gap,
    /// Bytes come, but too few over the window.
    LowRate,
    /// Request body not taken.
    Send,
}

impl std::fmt::Display for StallPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FirstByte => "no first byte",
            Self::Gap => "no further byte",
            Self::LowRate => "below the lowest rate",
            Self::Send => "request not taken",
        })
    }
}

/// Why disk admission refused, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "no room: {need_bytes} bytes needed with {keep_free_bytes} kept free, {free_bytes} free, {evictable_bytes} could be \
     evicted{}",
    if kept.is_empty() { String::new() } else { format!("; kept: {}", kept.join(", ")) }
)]
#[serde(deny_unknown_fields)]
pub struct NoRoom {
    /// What the fetch would write.
    pub need_bytes: u64,
    pub free_bytes: u64,
    /// What must stay free.
    pub keep_free_bytes: u64,
    /// What all models that may go would free, together.
    pub evictable_bytes: u64,
    /// What would be evicted first, in order.
    pub would_evict: Vec<Sha256Digest>,
    /// Each model that must stay, with its reason: `sha256-… pinned`.
    pub kept: Vec<String>,
}

impl CacheFault {
    /// The stable name of this fault.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::WrongBytes { .. } => "wrong_bytes",
            Self::WrongLength { .. } => "wrong_length",
            Self::ChangedObject { .. } => "changed_object",
            Self::VanishedObject { .. } => "vanished_object",
            Self::NoSuchModel { .. } => "no_such_model",
            Self::NoSuchBucket { .. } => "no_such_bucket",
            Self::RangeIgnored { .. } => "range_ignored",
            Self::WrongContentRange { .. } => "wrong_content_range",
            Self::Throttled { .. } => "throttled",
            Self::StoreUnavailable { .. } => "store_unavailable",
            Self::Stalled { .. } => "stalled",
            Self::Interrupted { .. } => "interrupted",
            Self::Refused { .. } => "refused",
            Self::ExpiredCredentials { .. } => "expired_credentials",
            Self::NoCredentials { .. } => "no_credentials",
            Self::Connect { .. } => "connect",
            Self::Tls { .. } => "tls",
            Self::BadAnswer { .. } => "bad_answer",
            Self::BadSettings { .. } => "bad_settings",
            Self::VersionExists { .. } => "version_exists",
            Self::DiskFull { .. } => "disk_full",
            Self::Quota { .. } => "quota",
            Self::ReadOnly { .. } => "read_only",
            Self::InodesFull { .. } => "inodes_full",
            Self::NoRoom(_) => "no_room",
            Self::ManifestInvalid { .. } => "manifest_invalid",
            Self::WrongDigest { .. } => "wrong_digest",
            Self::BadSource { .. } => "bad_source",
            Self::Damaged { .. } => "damaged",
            Self::Io { .. } => "io",
            Self::OwnerBusy { .. } => "owner_busy",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether the same request may go well a little later. Wrong bytes are asked for again too: a cable may have
    /// flipped them. Tries are bounded by who asks.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        matches!(
            self,
            Self::WrongBytes { .. }
                | Self::WrongLength { .. }
                | Self::Throttled { .. }
                | Self::StoreUnavailable { .. }
                | Self::Stalled { .. }
                | Self::Interrupted { .. }
                | Self::Connect { .. }
        )
    }

    /// How long the store asks to wait before the next try; not capped.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { retry_after_ms, .. } | Self::StoreUnavailable { retry_after_ms, .. } => {
                retry_after_ms.map(Duration::from_millis)
            }
            _ => None,
        }
    }

    /// What the operator does next.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::WrongBytes { .. } => {
                "the copy in the store or on the disk is damaged: push the model again from a good copy"
            }
            Self::WrongLength { .. } => {
                "compare the object's size in the store with the manifest; push the model again"
            }
            Self::ChangedObject { .. } => {
                "something writes to a version that must not change: find it, then pull again"
            }
            Self::VanishedObject { .. } => {
                "the store lost a file of the model: push the model again, or check lifecycle rules"
            }
            Self::NoSuchModel { .. } => {
                "check family/version and the prefix of modelStore.url; `tidegate model push` makes it"
            }
            Self::NoSuchBucket { .. } => "create the bucket, or correct modelStore.url",
            Self::RangeIgnored { .. } | Self::WrongContentRange { .. } => {
                "the server or a proxy before it does not serve ranges rightly: go round it, or use another store"
            }
            Self::Throttled { .. } => "raise the store's request limit, or pull with fewer streams",
            Self::StoreUnavailable { .. } => {
                "look at the store's own health; a single object that stays at 503 has usually lost a part on its disks"
            }
            Self::Stalled { .. } => {
                "check the network and the load of the store, then pull again: it goes on where it was"
            }
            Self::Interrupted { .. } => {
                "check the network and the store's log, then pull again: it goes on where it was"
            }
            Self::Refused { .. } => "give the credentials s3:GetObject (and s3:PutObject for a push) on this prefix",
            Self::ExpiredCredentials { .. } => {
                "renew the credentials, or use a credentials file or web identity that renews itself"
            }
            Self::NoCredentials { .. } => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or modelStore.credentials",
            Self::Connect { .. } => "check modelStore.endpoint, name resolution and firewall",
            Self::Tls { .. } => "check the certificate's names and dates, and modelStore.caBundle",
            Self::BadAnswer { .. } => "check that modelStore.endpoint is an S3 server and not a login page or a proxy",
            Self::BadSettings { .. } => "correct modelStore in the Site document",
            Self::VersionExists { .. } => "versions do not change: push under a new version",
            Self::DiskFull { .. } => "free space, or `tidegate model gc`; the fetch goes on where it was",
            Self::Quota { .. } => "raise the quota of the cache's user, or `tidegate model gc`",
            Self::ReadOnly { .. } => {
                "mount the cache's file system read-write; look for disk errors in the kernel's log"
            }
            Self::InodesFull { .. } => "remove small files from the file system, or make it anew with more inodes",
            Self::NoRoom(_) => "unpin or stop a model, give the cache more disk, or lower modelCache.keepFree",
            Self::ManifestInvalid { .. } => "push the model again with this version of tidegate",
            Self::WrongDigest { .. } => "correct Model.source.digest, or find out who replaced the version",
            Self::BadSource { .. } => {
                "give a model folder with config.json, a cache folder of Hugging Face, or a GGUF file"
            }
            Self::Damaged { .. } => "`tidegate model verify --repair` fetches what is wrong again",
            Self::Io { .. } => "look at the path's permissions and at the kernel's log",
            Self::OwnerBusy { .. } => "wait for that process, or end it",
            Self::Cancelled => "start it again: it goes on where it was",
        }
    }

    /// Names what the disk said about `path`. A full disk is told from a full inode table by asking the file system.
    #[must_use]
    pub fn disk(action: &str, path: &Path, error: &io::Error) -> Self {
        let path = path.to_path_buf();
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC) if inodes_gone(&path) => Self::InodesFull { path },
            Some(Errno::NOSPC) => Self::DiskFull { path },
            Some(Errno::DQUOT) => Self::Quota { path },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            _ => Self::Io { action: action.to_owned(), path, reason: error.to_string() },
        }
    }
}

/// Whether the file system of `path`, or of its nearest folder that is there, has no inode left.
fn inodes_gone(path: &Path) -> bool {
    let stat = path.ancestors().find_map(|place| rustix::fs::statvfs(place).ok());
    // file systems without an inode table report 0 of 0
    stat.is_some_and(|stat| stat.f_files > 0 && stat.f_favail == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_travels_as_json_and_is_tagged_with_its_code() {
        let faults = [
            CacheFault::WrongBytes { file: "weights/a".into(), chunk: 7 },
            CacheFault::Throttled { object: "o".into(), status: 429, reason: "x".into(), retry_after_ms: Some(60_000) },
            CacheFault::Stalled { object: "o".into(), phase: StallPhase::Gap, after_ms: 30_000 },
            CacheFault::WrongDigest { expected: Sha256Digest([1; 32]), found: Sha256Digest([2; 32]) },
            CacheFault::NoRoom(NoRoom {
                need_bytes: 3,
                free_bytes: 2,
                keep_free_bytes: 1,
                evictable_bytes: 0,
                would_evict: vec![Sha256Digest([3; 32])],
                kept: vec!["sha256-00 pinned".into()],
            }),
            CacheFault::Cancelled,
        ];
        for fault in faults {
            let text = serde_json::to_string(&fault).unwrap();
            assert!(text.contains(&format!("\"code\":\"{}\"", fault.code())), "{text}");
            assert_eq!(serde_json::from_str::<CacheFault>(&text).unwrap(), fault);
            assert!(!fault.hint().is_empty());
        }
    }

    #[test]
    fn what_the_disk_says_is_named() {
        let path = Path::new("/nowhere/at/all");
        let name = |errno: Errno| CacheFault::disk("write", path, &errno.into()).code();
        assert_eq!(name(Errno::DQUOT), "quota");
        assert_eq!(name(Errno::ROFS), "read_only");
        assert_eq!(name(Errno::IO), "io");
        assert!(matches!(name(Errno::NOSPC), "disk_full" | "inodes_full"));
    }
}
