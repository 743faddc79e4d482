//! An object on its way into the store, part by part.

use bytes::Bytes;

use super::{Backend, Remote};
use crate::fault::CacheFault;

/// Smallest part but for the last, in bytes: S3's rule.
pub const PART_BYTES_MIN: u64 = 5 << 20;
/// Most parts of one object: S3's rule.
pub const PARTS_MAX: u64 = 10_000;

/// What the store answered to the beginning.
#[derive(Debug)]
pub(super) enum Begun {
    /// The upload's id.
    Bucket(String),
    Folder(super::folder::Writing),
}

/// A part that the store has.
#[derive(Clone, Debug)]
pub struct PartId(Option<object_store::multipart::PartId>);

/// An upload that has begun. Parts may be sent at the same time and in any order, and again after a failure. One that is
/// neither completed nor aborted leaves parts behind, which take room in the store until its lifecycle rules remove them.
#[derive(Debug)]
pub struct Upload {
    remote: Remote,
    object: String,
    begun: Begun,
}

impl Upload {
    pub(super) fn new(remote: Remote, object: &str, begun: Begun) -> Self {
        Self { remote, object: object.to_owned(), begun }
    }

    /// Sends part `index` (from 0), whose first byte is byte `offset` of the object.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn put_part(&self, index: usize, offset: u64, bytes: Bytes) -> Result<PartId, CacheFault> {
        match (&*self.remote.backend, &self.begun) {
            (Backend::Bucket(bucket), Begun::Bucket(id)) => {
                bucket.put_part(&self.object, id, index, bytes).await.map(|part| PartId(Some(part)))
            }
            (_, Begun::Folder(writing)) => writing.write(offset, &bytes).map(|()| PartId(None)),
            (Backend::Folder(_), Begun::Bucket(_)) => Err(self.mixed()),
        }
    }

    /// Makes the object of all its parts, in order.
    ///
    /// # Errors
    /// Whatever the store says; the object is not there then, or as it was before.
    pub async fn complete(&self, parts: Vec<PartId>) -> Result<(), CacheFault> {
        match (&*self.remote.backend, &self.begun) {
            (Backend::Bucket(bucket), Begun::Bucket(id)) => {
                bucket.complete(&self.object, id, parts.into_iter().filter_map(|part| part.0).collect()).await
            }
            (_, Begun::Folder(writing)) => writing.publish(),
            (Backend::Folder(_), Begun::Bucket(_)) => Err(self.mixed()),
        }
    }

    /// Gives up and lets the store forget the parts.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn abort(&self) -> Result<(), CacheFault> {
        match (&*self.remote.backend, &self.begun) {
            (Backend::Bucket(bucket), Begun::Bucket(id)) => bucket.abort(&self.object, id).await,
            (_, Begun::Folder(_)) => Ok(()),
            (Backend::Folder(_), Begun::Bucket(_)) => Err(self.mixed()),
        }
    }

    fn mixed(&self) -> CacheFault {
        CacheFault::BadAnswer { object: self.object.clone(), reason: "an upload of another store".to_owned() }
    }
}
