//! The object store, every answer checked.
//!
//! ```text
//! Remote ── bucket ── object_store (signatures, listings, parts) ── transport (connections, clocks, checks) ── S3
//!        └─ folder ── a plain folder as a store: for one machine, for moving models by disk, for tests
//! ```
//!
//! Nothing here tries anything again: each method asks once and names what happened; who calls decides. An object is
//! named relative to the store's prefix, as [`ModelPath::object`](crate::ModelPath::object) gives it. object_store's own
//! HTTP client is not built in, and with it neither its two clocks, its retries nor the environment's proxies.

mod bucket;
mod connect;
mod credentials;
mod folder;
mod options;
mod range;
mod site;
mod tls;
mod transport;
mod trouble;
mod upload;
mod web_identity;
mod xml;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tidegate_core::Sha256Digest;

use crate::fault::CacheFault;
use crate::manifest::FILES_MAX;
use trouble::Trouble;

pub use connect::CONNECT_MAX;
pub use credentials::{CREDENTIALS_BYTES_MAX, Credentials, Keys};
pub use options::{Addressing, PlainHttp, REGION_DEFAULT, RemoteOptions};
pub use transport::{ANSWER_BYTES_MAX, FIRST_BYTE_MAX, GAP_MAX, SEND_RATE_MIN};
pub use upload::{PART_BYTES_MIN, PARTS_MAX, PartId, Upload};
pub use web_identity::{RENEW_BEFORE, TOKEN_BYTES_MAX, WebIdentity};

/// Most objects that a listing of one model may have: its files, its manifest, and what a broken push left.
pub const LISTED_MAX: usize = 2 * FILES_MAX;

/// A store that is open. Cheap to clone; clones share connections and credentials.
#[derive(Clone, Debug)]
pub struct Remote {
    backend: Arc<Backend>,
    url: String,
}

#[derive(Debug)]
enum Backend {
    Bucket(bucket::Bucket),
    Folder(folder::Folder),
}

/// What is known of an object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHead {
    /// In bytes.
    pub size: u64,
    /// To be given back as `If-Match`. It proves nothing about content.
    pub etag: Option<String>,
    /// What a push noted beside the object; `None` from other writers and in a folder.
    pub sha256: Option<Sha256Digest>,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Relative to the store's prefix.
    pub object: String,
    pub size: u64,
}

/// Whether a put may replace what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Replace,
    /// `If-None-Match: *`: one of any number of writers wins.
    IfAbsent,
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    New,
    /// [`Put::IfAbsent`] found one; nothing was changed.
    WasThere,
}

impl Remote {
    /// Opens a store. Nothing is asked of it yet, but files of credentials and certificates are read.
    ///
    /// # Errors
    /// [`CacheFault::BadSettings`], [`CacheFault::NoCredentials`].
    pub fn open(options: &RemoteOptions) -> Result<Self, CacheFault> {
        let backend = match options::open(options)? {
            options::Opened::Folder(root) => Backend::Folder(folder::Folder::new(root)),
            options::Opened::Bucket(opened) => Backend::Bucket(bucket::Bucket::open(opened, options)?),
        };
        Ok(Self { backend: Arc::new(backend), url: options.url.clone() })
    }

    /// As the operator wrote it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether it is a folder of this machine: reading costs nothing there, and nothing is noted beside objects.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(&*self.backend, Backend::Folder(_))
    }

    /// Size and entity tag of an object.
    ///
    /// # Errors
    /// [`CacheFault::VanishedObject`] where there is none, and whatever the store says. A HEAD has no body, so a missing
    /// bucket cannot be told from a missing object.
    pub async fn head(&self, object: &str) -> Result<ObjectHead, CacheFault> {
        match &*self.backend {
            Backend::Bucket(bucket) => bucket.head(object).await,
            Backend::Folder(folder) => folder.head(object),
        }
    }

    /// Bytes `range` of an object that must be `size` bytes long, still with that entity tag where one is given.
    ///
    /// The answer's head has been checked when this returns: status 206 and exactly that range of an object of exactly
    /// that size. Its length is checked while it is read.
    ///
    /// # Errors
    /// [`CacheFault::ChangedObject`], [`CacheFault::WrongLength`], [`CacheFault::RangeIgnored`],
    /// [`CacheFault::WrongContentRange`], and whatever the store says.
    pub async fn get_range(
        &self,
        object: &str,
        range: Range<u64>,
        size: u64,
        if_match: Option<&str>,
    ) -> Result<RangeBody, CacheFault> {
        if range.is_empty() || range.end > size {
            let reason = format!("range {}-{} of {size} bytes cannot be asked for", range.start, range.end);
            return Err(CacheFault::BadAnswer { object: object.to_owned(), reason });
        }
        match &*self.backend {
            Backend::Bucket(bucket) => bucket.get_range(object, range, size, if_match).await,
            Backend::Folder(folder) => folder.get_range(object, range, size, if_match),
        }
    }

    /// A whole object of at most `max` bytes, in memory.
    ///
    /// # Errors
    /// [`CacheFault::BadAnswer`] when it is larger, and whatever the store says.
    pub async fn get_small(&self, object: &str, max: usize) -> Result<(Bytes, ObjectHead), CacheFault> {
        match &*self.backend {
            Backend::Bucket(bucket) => bucket.get_small(object, max).await,
            Backend::Folder(folder) => folder.get_small(object, max),
        }
    }

    /// Writes a whole object from memory, noting its digest beside it.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn put_small(
        &self,
        object: &str,
        bytes: Bytes,
        sha256: Sha256Digest,
        put: Put,
    ) -> Result<Written, CacheFault> {
        match &*self.backend {
            Backend::Bucket(bucket) => bucket.put(object, bytes, sha256, put).await,
            Backend::Folder(folder) => folder.put(object, &bytes, put),
        }
    }

    /// Begins an object that is written in parts, noting its digest beside it. It is there when
    /// [`Upload::complete`] has returned, and not before.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn put_multipart(&self, object: &str, sha256: Sha256Digest) -> Result<Upload, CacheFault> {
        let begun = match &*self.backend {
            Backend::Bucket(bucket) => bucket.begin(object, sha256).await?,
            Backend::Folder(folder) => folder.begin(object)?,
        };
        Ok(Upload::new(self.clone(), object, begun))
    }

    /// Every object under a folder, such as `glm/5.3-flash`.
    ///
    /// # Errors
    /// [`CacheFault::BadAnswer`] when there are more than [`LISTED_MAX`], and whatever the store says.
    pub async fn list(&self, folder: &str) -> Result<Vec<Listed>, CacheFault> {
        match &*self.backend {
            Backend::Bucket(bucket) => bucket.list(folder).await,
            Backend::Folder(root) => root.list(folder),
        }
    }
}

/// The bytes of a range, as they come.
pub struct RangeBody {
    stream: BoxStream<'static, Result<Bytes, CacheFault>>,
    etag: Option<String>,
}

impl RangeBody {
    /// The next bytes, never empty; `None` after exactly the range's last byte.
    ///
    /// # Errors
    /// [`CacheFault::Stalled`] after [`GAP_MAX`] without a byte, [`CacheFault::Interrupted`],
    /// [`CacheFault::WrongLength`]. Nothing comes after an error.
    pub async fn next(&mut self) -> Option<Result<Bytes, CacheFault>> {
        loop {
            match self.stream.next().await {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                other => return other,
            }
        }
    }

    /// The entity tag that came with it.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }
}

impl std::fmt::Debug for RangeBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeBody").field("etag", &self.etag).finish_non_exhaustive()
    }
}

/// A whole body of at most `max` bytes.
async fn collect(
    mut stream: BoxStream<'static, Result<Bytes, object_store::client::HttpError>>,
    max: usize,
) -> Result<Bytes, Trouble> {
    let mut all = Vec::new();
    while let Some(part) = stream.next().await {
        let part =
            part.map_err(|error| trouble::found(&error).unwrap_or_else(|| Trouble::Interrupted(error.to_string())))?;
        if all.len() + part.len() > max {
            return Err(Trouble::BadAnswer(format!("more than {max} bytes")));
        }
        all.extend_from_slice(&part);
    }
    Ok(all.into())
}
