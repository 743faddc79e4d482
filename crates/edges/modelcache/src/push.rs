//! A model into the store: files first, the manifest last and only if there is none.
//!
//! ```text
//! manifest there? ── same content ── every file whole? ── yes: nothing is moved
//!        │                │                └─ no: what is not is sent again
//!        │                └─ other content: version_exists
//!        └─ no: hash, send what is not there whole, put the manifest (If-None-Match: *)
//! ```
//!
//! Until its manifest is there a version does not exist, so a push may break off anywhere. The next one finds what is
//! whole by size and by the SHA-256 noted beside each object, and sends the rest. S3 has no locks: of two pushes of
//! different content under one version, one's manifest wins. The loser looks for a manifest before it completes each
//! file, and the winner looks at all of its files once more after its manifest stands, and sends again what the loser
//! has put over it meanwhile; a reader sees what is left of the race as `wrong_bytes`, never as a model.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fault::CacheFault;
use crate::fetch::backoff::{Backoff, Tries};
use crate::hash::{Hashed, check_stamp, manifest_of};
use crate::layout::{MANIFEST, ModelPath};
use crate::manifest::{CHUNK_BYTES_DEFAULT, FileEntry, MANIFEST_BYTES_MAX, Manifest, check_chunk_size};
use crate::progress::{Event, Meter};
use crate::remote::{PART_BYTES_MIN, PARTS_MAX, PartId, Put, Remote, Upload, Written};
use crate::source::{Source, SourceFile};

/// Requests at once.
pub const STREAMS_DEFAULT: usize = 8;
/// See [`STREAMS_DEFAULT`]. Each holds one part in memory.
pub const STREAMS_MAX: usize = 64;
/// A part's usual length, in bytes; a file up to this length is sent by one request.
pub const PART_BYTES: u64 = 16 << 20;
/// Parts grow in steps of this, in bytes, when a file has too many.
const PART_STEP_BYTES: u64 = 1 << 20;
/// How often what others have put over our files is sent again.
const REPAIRS_MAX: usize = 3;

const _: () = assert!(PART_BYTES >= PART_BYTES_MIN && PART_BYTES.is_multiple_of(PART_STEP_BYTES));

/// How a push goes about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOptions {
    /// Of a new version; one that is there keeps its own. See [`check_chunk_size`].
    pub chunk_size: u32,
    /// Requests at once, 1 to [`STREAMS_MAX`].
    pub streams: usize,
    /// Files that are hashed side by side.
    pub hash_files: usize,
    /// Waits between the tries of a request.
    pub backoff: Backoff,
}

impl Default for PushOptions {
    fn default() -> Self {
        let hash_files = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { chunk_size: CHUNK_BYTES_DEFAULT, streams: STREAMS_DEFAULT, hash_files, backoff: Backoff::default() }
    }
}

/// What a push did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// What is in the store now.
    pub manifest: Manifest,
    /// Bytes of files that were sent; those of tries that failed count too.
    pub sent_bytes: u64,
    /// Whether the version was there before.
    pub was_there: bool,
}

/// Where events go; it is called from several tasks and returns at once.
pub type PushSink = Arc<dyn Fn(Event) + Send + Sync>;

/// Pushes a model. Dropping the future ends it; what is in the store by then serves the next try.
///
/// # Errors
/// [`CacheFault::VersionExists`] when other content is there; [`CacheFault::BadSource`] when a file changes meanwhile;
/// whatever the store says, after bounded tries.
pub async fn push(
    remote: &Remote,
    source: &Source,
    model: &ModelPath,
    options: &PushOptions,
    sink: PushSink,
) -> Result<Pushed, CacheFault> {
    let chunk_size = check_chunk_size(options.chunk_size.into())
        .map_err(|error| CacheFault::BadSettings { reason: error.to_string() })?;
    let work = Work::new(remote, model, options, sink);
    let there = work.manifest_there().await?;
    let chunk_size = there.as_ref().map_or(chunk_size, Manifest::chunk_size);
    let hashed = hash_events(source, &work.sink);
    let manifest = manifest_of(source, chunk_size, options.hash_files, hashed).await?;
    if let Some(there) = &there
        && there.digest() != manifest.digest()
    {
        return Err(work.exists(there));
    }
    let sent_bytes = work.send(source, &manifest, there.is_some()).await?;
    let path = format!("{}/{model}", remote.url().trim_end_matches('/'));
    (work.sink)(Event::Published { digest: manifest.digest().to_string(), path });
    Ok(Pushed { manifest, sent_bytes, was_there: there.is_some() })
}

/// Hashing is told as progress of the files that are hashed.
fn hash_events(source: &Source, sink: &PushSink) -> Hashed {
    let meter = Meter::new(source.total_bytes(), 0, Instant::now());
    for file in source.files() {
        meter.start(&file.path, file.size, 0);
    }
    let sink = Arc::clone(sink);
    Arc::new(move |file, bytes| {
        if let Some(Event::Progress { file, bytes, total, .. }) = meter.add(file, bytes, Instant::now()) {
            sink(Event::Hashing { file, bytes, total });
        }
    })
}

/// One push.
#[derive(Clone)]
struct Work {
    remote: Remote,
    model: ModelPath,
    streams: usize,
    backoff: Backoff,
    slots: Arc<Semaphore>,
    sink: PushSink,
}

impl Work {
    fn new(remote: &Remote, model: &ModelPath, options: &PushOptions, sink: PushSink) -> Self {
        let streams = options.streams.clamp(1, STREAMS_MAX);
        let slots = Arc::new(Semaphore::new(streams));
        Self { remote: remote.clone(), model: model.clone(), streams, backoff: options.backoff, slots, sink }
    }

    fn exists(&self, there: &Manifest) -> CacheFault {
        CacheFault::VersionExists { model: self.model.to_string(), digest: there.digest() }
    }

    async fn manifest_there(&self) -> Result<Option<Manifest>, CacheFault> {
        let object = self.model.object(MANIFEST);
        match self.tried(None, || self.remote.get_small(&object, MANIFEST_BYTES_MAX)).await {
            Ok((bytes, _)) => Ok(Some(Manifest::parse(&bytes)?)),
            Err(CacheFault::VanishedObject { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Sends what is not there, and the manifest unless it stands. Gives the bytes sent.
    async fn send(&self, source: &Source, manifest: &Manifest, stands: bool) -> Result<u64, CacheFault> {
        let mut missing = self.missing(manifest).await?;
        let missing_bytes: u64 = entries(manifest, &missing).map(|file| file.size).sum();
        let cached_bytes = manifest.total_bytes() - missing_bytes;
        (self.sink)(Event::Resolved {
            model: self.model.to_string(),
            digest: manifest.digest().to_string(),
            files: manifest.files().len() as u64,
            bytes: manifest.total_bytes(),
            cached_bytes,
        });
        let meter = Arc::new(Meter::new(manifest.total_bytes(), cached_bytes, Instant::now()));
        self.send_files(source, manifest, &missing, stands, &meter).await?;
        if !stands {
            self.put_manifest(manifest).await?;
        }
        for _ in 0..REPAIRS_MAX {
            if missing.is_empty() {
                break;
            }
            missing = self.missing(manifest).await?;
            self.send_files(source, manifest, &missing, true, &meter).await?;
        }
        Ok(meter.totals().1)
    }

    /// Paths of the files that are not in the store as the manifest has them.
    async fn missing(&self, manifest: &Manifest) -> Result<HashSet<String>, CacheFault> {
        let folder = self.model.as_str();
        let listed = self.tried(None, || self.remote.list(folder)).await?;
        let listed: HashMap<_, _> = listed.into_iter().map(|listed| (listed.object, listed.size)).collect();
        let mut missing = HashSet::new();
        let mut asked = JoinSet::new();
        for file in manifest.files() {
            if listed.get(&self.model.object(&file.path)) != Some(&file.size) {
                missing.insert(file.path.clone());
                continue;
            }
            if asked.len() == self.streams {
                missing.extend(absent(asked.join_next().await)?);
            }
            let (work, file) = (self.clone(), file.clone());
            asked.spawn(async move { work.is_whole(&file).await.map(|whole| (!whole).then_some(file.path)) });
        }
        while let Some(answer) = asked.join_next().await {
            missing.extend(absent(Some(answer))?);
        }
        Ok(missing)
    }

    /// Whether the store has the file, by its size and by the digest that a push has noted beside it; a store without
    /// notes is asked for the bytes themselves.
    async fn is_whole(&self, file: &FileEntry) -> Result<bool, CacheFault> {
        let object = self.model.object(&file.path);
        match self.tried(Some(&file.path), || self.remote.head(&object)).await {
            Ok(head) if head.size != file.size => Ok(false),
            Ok(head) if head.sha256.is_some() => Ok(head.sha256 == Some(file.sha256)),
            Ok(head) if self.remote.is_local() => self.reads_right(file, head.etag.as_deref()).await,
            Ok(_) => Ok(false),
            Err(CacheFault::VanishedObject { .. }) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    async fn reads_right(&self, file: &FileEntry, etag: Option<&str>) -> Result<bool, CacheFault> {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        if file.size > 0 {
            let object = self.model.object(&file.path);
            let mut body = self.remote.get_range(&object, 0..file.size, file.size, etag).await?;
            while let Some(part) = body.next().await {
                context.update(&part?);
            }
        }
        Ok(crate::manifest::finished(context.finish()) == file.sha256)
    }

    async fn send_files(
        &self,
        source: &Source,
        manifest: &Manifest,
        missing: &HashSet<String>,
        stands: bool,
        meter: &Arc<Meter>,
    ) -> Result<(), CacheFault> {
        let mut running: JoinSet<Result<(), CacheFault>> = JoinSet::new();
        for (file, entry) in source.files().iter().zip(manifest.files()) {
            if !missing.contains(&entry.path) {
                continue;
            }
            if running.len() == self.streams {
                ended(running.join_next().await)?;
            }
            let sending = Sending {
                work: self.clone(),
                file: file.clone(),
                entry: entry.clone(),
                digest: manifest.digest(),
                stands,
                meter: Arc::clone(meter),
            };
            running.spawn(async move { sending.run().await });
        }
        while let Some(end) = running.join_next().await {
            ended(Some(end))?;
        }
        Ok(())
    }

    async fn put_manifest(&self, manifest: &Manifest) -> Result<(), CacheFault> {
        let object = self.model.object(MANIFEST);
        let bytes = Bytes::copy_from_slice(manifest.bytes());
        let put = || self.remote.put_small(&object, bytes.clone(), manifest.digest(), Put::IfAbsent);
        if self.tried(None, put).await? == Written::New {
            return Ok(());
        }
        // another push was first, or our own put was, whose answer was lost
        match self.manifest_there().await? {
            Some(there) if there.digest() == manifest.digest() => Ok(()),
            Some(there) => Err(self.exists(&there)),
            None => Err(CacheFault::VanishedObject { object }),
        }
    }

    /// Asks until it goes well, with waits between, or until a failure stays.
    async fn tried<T, F>(&self, file: Option<&str>, ask: impl Fn() -> F) -> Result<T, CacheFault>
    where
        F: Future<Output = Result<T, CacheFault>>,
    {
        let mut tries = Tries::new(self.backoff);
        loop {
            let fault = match ask().await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            let Some(after) = tries.after(&fault, crate::fetch::random()) else { return Err(fault) };
            (self.sink)(Event::Retry {
                file: file.map(str::to_owned),
                fault: fault.code().to_owned(),
                attempt: tries.failed(),
                after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            });
            tokio::time::sleep(after).await;
        }
    }
}

fn entries<'a>(manifest: &'a Manifest, paths: &HashSet<String>) -> impl Iterator<Item = &'a FileEntry> {
    manifest.files().iter().filter(|file| paths.contains(&file.path))
}

type Joined<T> = Option<Result<Result<T, CacheFault>, tokio::task::JoinError>>;

fn absent(joined: Joined<Option<String>>) -> Result<Option<String>, CacheFault> {
    joined.map_or(Ok(None), |joined| joined.map_err(|_| CacheFault::Cancelled)?)
}

fn ended(joined: Joined<()>) -> Result<(), CacheFault> {
    joined.map_or(Ok(()), |joined| joined.map_err(|_| CacheFault::Cancelled)?)
}

/// One file on its way.
struct Sending {
    work: Work,
    file: SourceFile,
    entry: FileEntry,
    digest: tidegate_core::Sha256Digest,
    /// Whether our own manifest is in the store already.
    stands: bool,
    meter: Arc<Meter>,
}

impl Sending {
    async fn run(self) -> Result<(), CacheFault> {
        let sending = Arc::new(self);
        let Self { work, entry, meter, .. } = &*sending;
        (work.sink)(meter.start(&entry.path, entry.size, 0));
        if entry.size <= PART_BYTES {
            sending.send_whole().await?;
        } else {
            sending.send_parts().await?;
        }
        if let Some(done) = meter.done(&entry.path) {
            (work.sink)(done);
        }
        Ok(())
    }

    fn object(&self) -> String {
        self.work.model.object(&self.entry.path)
    }

    async fn send_whole(self: &Arc<Self>) -> Result<(), CacheFault> {
        let _slot = self.work.slots.acquire().await.map_err(|_| CacheFault::Cancelled)?;
        let bytes = self.read(0, self.entry.size).await?;
        self.check_unclaimed().await?;
        let object = self.object();
        let put = || self.work.remote.put_small(&object, bytes.clone(), self.entry.sha256, Put::Replace);
        self.work.tried(Some(&self.entry.path), put).await?;
        self.sent(self.entry.size);
        Ok(())
    }

    async fn send_parts(self: &Arc<Self>) -> Result<(), CacheFault> {
        let object = self.object();
        let begin = || self.work.remote.put_multipart(&object, self.entry.sha256);
        let upload = Arc::new(self.work.tried(Some(&self.entry.path), begin).await?);
        let sent = match self.all_parts(&upload).await {
            Ok(parts) => match self.check_unclaimed().await {
                Ok(()) => self.work.tried(Some(&self.entry.path), || upload.complete(parts.clone())).await,
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        };
        if sent.is_err() {
            // parts that nobody will ask for take room; the push's own fault is the one to tell
            drop(upload.abort().await);
        }
        sent
    }

    async fn all_parts(self: &Arc<Self>, upload: &Arc<Upload>) -> Result<Vec<PartId>, CacheFault> {
        let length = part_bytes(self.entry.size);
        let mut running = JoinSet::new();
        let mut parts: Vec<Option<PartId>> = vec![None; usize::try_from(self.entry.size.div_ceil(length)).unwrap_or(0)];
        for index in 0..parts.len() {
            let slot = Arc::clone(&self.work.slots).acquire_owned().await.map_err(|_| CacheFault::Cancelled)?;
            while let Some(done) = running.try_join_next() {
                keep(&mut parts, done)?;
            }
            let (sending, upload) = (Arc::clone(self), Arc::clone(upload));
            running.spawn(async move {
                let _slot = slot;
                sending.send_part(&upload, index, length).await.map(|part| (index, part))
            });
        }
        while let Some(done) = running.join_next().await {
            keep(&mut parts, done)?;
        }
        Ok(parts.into_iter().flatten().collect())
    }

    async fn send_part(&self, upload: &Upload, index: usize, length: u64) -> Result<PartId, CacheFault> {
        let offset = index as u64 * length;
        let length = length.min(self.entry.size - offset);
        let bytes = self.read(offset, length).await?;
        let part = || upload.put_part(index, offset, bytes.clone());
        let part = self.work.tried(Some(&self.entry.path), part).await?;
        self.sent(length);
        Ok(part)
    }

    fn sent(&self, bytes: u64) {
        if let Some(event) = self.meter.add(&self.entry.path, bytes, Instant::now()) {
            (self.work.sink)(event);
        }
    }

    /// Reads from a file that must be the one that was hashed.
    async fn read(&self, offset: u64, length: u64) -> Result<Bytes, CacheFault> {
        let file = self.file.clone();
        let read = move || {
            let open = File::open(&file.from).map_err(|error| CacheFault::disk("open", &file.from, &error))?;
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            open.read_exact_at(&mut bytes, offset).map_err(|error| CacheFault::disk("read", &file.from, &error))?;
            check_stamp(&file, &open)?;
            Ok(Bytes::from(bytes))
        };
        tokio::task::spawn_blocking(read).await.map_err(|_| CacheFault::Cancelled)?
    }

    /// Nobody has published other content under this version since we looked: its files must not be touched.
    async fn check_unclaimed(&self) -> Result<(), CacheFault> {
        if self.stands {
            return Ok(());
        }
        match self.work.manifest_there().await? {
            Some(there) if there.digest() != self.digest => Err(self.work.exists(&there)),
            _ => Ok(()),
        }
    }
}

type Part = Result<Result<(usize, PartId), CacheFault>, tokio::task::JoinError>;

fn keep(parts: &mut [Option<PartId>], done: Part) -> Result<(), CacheFault> {
    let (index, part) = done.map_err(|_| CacheFault::Cancelled)??;
    parts[index] = Some(part);
    Ok(())
}

/// Length of a file's parts: the usual one, or as much more as keeps them within S3's count.
fn part_bytes(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).next_multiple_of(PART_STEP_BYTES).max(PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_file_and_never_exceed_their_count() {
        assert_eq!(part_bytes(PART_BYTES + 1), PART_BYTES);
        assert_eq!(part_bytes(PART_BYTES * PARTS_MAX), PART_BYTES);
        for size in [PART_BYTES * PARTS_MAX + 1, 5 << 40] {
            let length = part_bytes(size);
            assert!(length > PART_BYTES && size.div_ceil(length) <= PARTS_MAX, "{size}");
        }
    }
}
