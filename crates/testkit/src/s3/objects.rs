//! What the double holds: buckets, objects, uploads in parts.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::{Bytes, BytesMut};

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) content: Bytes,
    /// With its quotation marks.
    pub(super) etag: String,
}

impl Object {
    pub(super) fn new(content: Bytes) -> Self {
        let etag = format!("\"{}\"", tag(&content));
        Self { content, etag }
    }

    /// As S3 makes it from parts: the entity tag says how many there were and is no hash of the content.
    fn of_parts(parts: &BTreeMap<u32, Bytes>) -> Self {
        let mut content = BytesMut::new();
        for part in parts.values() {
            content.extend_from_slice(part);
        }
        let etag = format!("\"{}-{}\"", tag(&content), parts.len());
        Self { content: content.freeze(), etag }
    }
}

/// As long as an MD5 in hexadecimal, the same for the same content, and no hash that anybody else computes.
fn tag(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:016x}{:016x}", hasher.finish(), content.len())
}

/// Why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotStored {
    NoSuchBucket,
    NoSuchUpload,
    /// `If-None-Match: *` and the key is there.
    Exists,
    /// A part of the list was never uploaded.
    InvalidPart,
}

#[derive(Clone, Debug)]
struct Upload {
    key: String,
    parts: BTreeMap<u32, Bytes>,
}

/// All buckets.
#[derive(Debug, Default)]
pub(super) struct Objects {
    buckets: BTreeMap<String, BTreeMap<String, Object>>,
    uploads: BTreeMap<String, Upload>,
    uploads_ever: u64,
}

impl Objects {
    pub(super) fn make_bucket(&mut self, bucket: &str) {
        self.buckets.entry(bucket.to_owned()).or_default();
    }

    pub(super) fn bucket(&self, bucket: &str) -> Option<&BTreeMap<String, Object>> {
        self.buckets.get(bucket)
    }

    pub(super) fn get(&self, bucket: &str, key: &str) -> Option<&Object> {
        self.buckets.get(bucket)?.get(key)
    }

    pub(super) fn put(
        &mut self,
        bucket: &str,
        key: &str,
        object: Object,
        if_none_match: bool,
    ) -> Result<String, NotStored> {
        let objects = self.buckets.get_mut(bucket).ok_or(NotStored::NoSuchBucket)?;
        if if_none_match && objects.contains_key(key) {
            return Err(NotStored::Exists);
        }
        let etag = object.etag.clone();
        objects.insert(key.to_owned(), object);
        Ok(etag)
    }

    pub(super) fn remove(&mut self, bucket: &str, key: &str) {
        if let Some(objects) = self.buckets.get_mut(bucket) {
            objects.remove(key);
        }
    }

    pub(super) fn begin_upload(&mut self, key: &str) -> String {
        self.uploads_ever += 1;
        let id = format!("upload-{}", self.uploads_ever);
        self.uploads.insert(id.clone(), Upload { key: key.to_owned(), parts: BTreeMap::new() });
        id
    }

    pub(super) fn put_part(&mut self, id: &str, number: u32, content: Bytes) -> Result<String, NotStored> {
        let upload = self.uploads.get_mut(id).ok_or(NotStored::NoSuchUpload)?;
        let etag = format!("\"{}\"", tag(&content));
        upload.parts.insert(number, content);
        Ok(etag)
    }

    /// Makes the object from the listed parts.
    pub(super) fn complete(
        &mut self,
        bucket: &str,
        id: &str,
        listed: &[u32],
        if_none_match: bool,
    ) -> Result<String, NotStored> {
        let mut upload = self.uploads.get(id).cloned().ok_or(NotStored::NoSuchUpload)?;
        if listed.is_empty() || listed.iter().any(|number| !upload.parts.contains_key(number)) {
            return Err(NotStored::InvalidPart);
        }
        upload.parts.retain(|number, _| listed.contains(number));
        let etag = self.put(bucket, &upload.key, Object::of_parts(&upload.parts), if_none_match)?;
        self.uploads.remove(id);
        Ok(etag)
    }

    pub(super) fn abort(&mut self, id: &str) -> bool {
        self.uploads.remove(id).is_some()
    }

    /// Uploads that were neither completed nor aborted: what a store bills for and nobody sees.
    pub(super) fn uploads_open(&self) -> usize {
        self.uploads.len()
    }
}
