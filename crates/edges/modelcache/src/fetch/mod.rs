//! Fetching: a model's files from the store to the disk, proven, and published when all are there.
//!
//! ```text
//! fetch ── manifest ── one run for each digest ── room ── obtain ── publish ── note the name
//!                                                          │
//!              plan (pure) ── work ──> tasks: prepare, check, fetch, seal ── done ──> plan
//! ```
//!
//! Nothing counts that this run has not hashed itself, on its way from the store or read back from the disk: a journal,
//! a file of an earlier life and a content file that another model put there are only claims.
//!
//! Dropping the future ends the fetch. Writes that are on their way end by themselves and hold their file until then; the
//! next fetch goes on where this one was.

pub mod backoff;
pub mod clock;
pub(crate) mod obtain;
pub(crate) mod partial;
pub(crate) mod plan;
#[cfg(test)]
mod proof;
pub(crate) mod range;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Sha256Digest;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use self::backoff::Backoff;
pub use self::clock::Clocks;
use self::obtain::Order;
use self::range::Note;
use crate::buffer::{BUFFER_BYTES_MAX, Pool};
use crate::cache::Cache;
use crate::counters::Counters;
use crate::direct::DiskIo;
use crate::fault::CacheFault;
use crate::flight::{Followed, Join, Lead, follow};
use crate::layout::{MANIFEST, ModelPath};
use crate::manifest::{FileEntry, MANIFEST_BYTES_MAX, Manifest};
use crate::progress::{Event, Meter, Sink};
use crate::publish;
use crate::remote::Remote;
use crate::room::Disk;

/// Requests at once when nothing is said.
pub const STREAMS_DEFAULT: usize = 16;
/// Most requests at once: more gain nothing on one host and cost memory.
pub const STREAMS_MAX: usize = 32;
/// Length of one request when nothing is said, in bytes; a chunk that is longer is one request.
pub const RANGE_BYTES_DEFAULT: u64 = 16 << 20;
/// Longest request of several chunks, in bytes.
pub const RANGE_BYTES_MAX: u64 = 64 << 20;
/// Most memory for buffers, in bytes.
const POOL_BYTES_MAX: usize = 40 * BUFFER_BYTES_MAX;

/// How a fetch goes about it.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// The digest that the model must have.
    pub pin: Option<Sha256Digest>,
    /// Requests at once, 1 to [`STREAMS_MAX`].
    pub streams: usize,
    /// Length of one request in bytes, at most [`RANGE_BYTES_MAX`]; it is made of whole chunks, at least one.
    pub range_bytes: u64,
    pub clocks: Clocks,
    pub backoff: Backoff,
    pub disk_io: DiskIo,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            pin: None,
            streams: STREAMS_DEFAULT,
            range_bytes: RANGE_BYTES_DEFAULT,
            clocks: Clocks::default(),
            backoff: Backoff::default(),
            disk_io: DiskIo::default(),
        }
    }
}

impl FetchOptions {
    fn streams(&self) -> usize {
        self.streams.clamp(1, STREAMS_MAX)
    }

    fn range_chunks(&self, chunk_size: u32) -> u32 {
        let chunks = self.range_bytes.min(RANGE_BYTES_MAX) / u64::from(chunk_size);
        u32::try_from(chunks).unwrap_or(u32::MAX).max(1)
    }
}

/// A model that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub digest: Sha256Digest,
    /// The flat folder.
    pub path: PathBuf,
    /// Bytes that came from the store for it.
    pub fetched_bytes: u64,
}

/// Makes a model loadable from the local disk, and fetches what of it is not there.
///
/// One run for each digest, whoever asks: who comes later follows the first and hears its events. On a runtime with
/// several threads, streams are hashed on all of them.
///
/// # Errors
/// The fault that ended it, which is also the last event. What was fetched stays for the next try.
pub async fn fetch(
    cache: &Arc<Cache>,
    remote: &Remote,
    model: &ModelPath,
    options: &FetchOptions,
    sink: Sink<'_>,
) -> Result<Published, CacheFault> {
    let result = resolve_and_fetch(cache, remote, model, options, sink).await;
    match &result {
        Ok(published) => {
            sink(Event::Published { digest: published.digest.to_string(), path: published.path.display().to_string() });
        }
        Err(fault) => {
            cache.counters().failures.one();
            sink(failed(fault));
        }
    }
    result
}

fn failed(fault: &CacheFault) -> Event {
    Event::Failed { code: fault.code().to_owned(), message: fault.to_string(), hint: fault.hint().to_owned() }
}

async fn resolve_and_fetch(
    cache: &Arc<Cache>,
    remote: &Remote,
    model: &ModelPath,
    options: &FetchOptions,
    sink: Sink<'_>,
) -> Result<Published, CacheFault> {
    let manifest = match options.pin.and_then(|pin| recorded(cache, pin)) {
        Some(manifest) => manifest,
        None => resolve(cache, remote, model, options, sink).await?,
    };
    loop {
        match cache.models().join(manifest.digest())? {
            Join::Follow(listener) => match follow(listener, sink).await? {
                Followed::Done => return Ok(published(cache, &manifest, 0)),
                Followed::Abandoned => {}
            },
            Join::Lead(lead) => {
                let lead = Arc::new(lead);
                let result = lead_fetch(cache, remote, model, &manifest, options, &Tell { sink, lead: &lead }).await;
                match &result {
                    Ok(published) => lead.tell(Event::Published {
                        digest: published.digest.to_string(),
                        path: published.path.display().to_string(),
                    }),
                    Err(fault) => lead.fail(fault),
                }
                return result;
            }
        }
    }
}

/// Tells the caller and everybody who follows.
pub(crate) struct Tell<'a> {
    sink: Sink<'a>,
    lead: &'a Arc<Lead>,
}

impl Tell<'_> {
    fn event(&self, event: Event) {
        self.lead.tell(event.clone());
        (self.sink)(event);
    }
}

fn published(cache: &Cache, manifest: &Manifest, fetched_bytes: u64) -> Published {
    Published { digest: manifest.digest(), path: cache.layout().published(manifest.digest()), fetched_bytes }
}

/// The manifest of a pinned digest that is published whole: nothing is asked of the store for it.
fn recorded(cache: &Cache, pin: Sha256Digest) -> Option<Manifest> {
    let manifest = cache.manifest(pin).ok()?;
    publish::missing(cache.layout(), &manifest).is_empty().then_some(manifest)
}

/// Reads the version's manifest in the store.
async fn resolve(
    cache: &Cache,
    remote: &Remote,
    model: &ModelPath,
    options: &FetchOptions,
    sink: Sink<'_>,
) -> Result<Manifest, CacheFault> {
    let object = model.object(MANIFEST);
    let mut tries = backoff::Tries::new(options.backoff);
    let bytes = loop {
        match remote.get_small(&object, MANIFEST_BYTES_MAX).await {
            Ok((bytes, _)) => break bytes,
            Err(CacheFault::VanishedObject { .. }) => {
                return Err(CacheFault::NoSuchModel { model: model.to_string() });
            }
            Err(fault) => {
                let Some(after) = tries.after(&fault, random()) else {
                    return Err(backoff::given_up(fault, tries.failed()));
                };
                cache.counters().retries.one();
                sink(retry(None, fault.code(), tries.failed(), after));
                tokio::time::sleep(after).await;
            }
        }
    };
    let manifest =
        Manifest::parse(&bytes).map_err(|error| CacheFault::ManifestInvalid { reason: error.to_string() })?;
    match options.pin {
        Some(expected) if expected != manifest.digest() => {
            Err(CacheFault::WrongDigest { expected, found: manifest.digest() })
        }
        Some(_) | None => Ok(manifest),
    }
}

fn retry(file: Option<&str>, fault: &str, attempt: u32, after: Duration) -> Event {
    Event::Retry {
        file: file.map(str::to_owned),
        fault: fault.to_owned(),
        attempt,
        after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
    }
}

async fn lead_fetch(
    cache: &Arc<Cache>,
    remote: &Remote,
    model: &ModelPath,
    manifest: &Manifest,
    options: &FetchOptions,
    tell: &Tell<'_>,
) -> Result<Published, CacheFault> {
    let shared = Arc::new(manifest.clone());
    // a fetch that is dropped leads until what blocks on the disk for it has ended: the next one begins after it
    let held = || Some(Arc::clone(tell.lead));
    let lacking = blocking(cache, &shared, held(), |cache, manifest| {
        let lacking: Vec<FileEntry> = publish::missing(cache.layout(), manifest).into_iter().cloned().collect();
        if !lacking.is_empty() {
            cache.declare(manifest)?;
        }
        Ok(lacking)
    })
    .await?;
    let (cached_bytes, room) = survey(cache, manifest, &lacking)?;
    tell.event(Event::Resolved {
        model: model.to_string(),
        digest: manifest.digest().to_string(),
        files: manifest.files().len() as u64,
        bytes: manifest.total_bytes(),
        cached_bytes,
    });
    let mut fetched_bytes = 0;
    if lacking.is_empty() {
        cache.counters().hits.one();
    } else {
        cache.counters().misses.one();
        let _clock = Running::new(cache.counters());
        let grant = blocking(cache, &shared, held(), move |cache, _| cache.make_room(room)).await?;
        let order = Order {
            layout: cache.layout(),
            remote,
            model,
            chunk_size: manifest.chunk_size(),
            entries: lacking,
            options,
            booking: Some(&grant.booking),
            counters: cache.counters(),
        };
        let meter = Meter::new(manifest.total_bytes(), cached_bytes, std::time::Instant::now());
        order.obtain(&meter, &|event| tell.event(event)).await?;
        fetched_bytes = meter.totals().1;
        blocking(cache, &shared, held(), |cache, manifest| publish::publish(cache.layout(), manifest).map(drop))
            .await?;
    }
    let name = model.clone();
    blocking(cache, &shared, held(), move |cache, manifest| {
        publish::put_reference(cache.layout(), &name, manifest.digest())?;
        // whoever asks for a model wants it more than one that nobody asked for
        cache.used(manifest.digest())
    })
    .await?;
    Ok(published(cache, manifest, fetched_bytes))
}

/// Counts the time of a fetch, however it ends.
struct Running<'a> {
    counters: &'a Counters,
    since: Instant,
}

impl<'a> Running<'a> {
    fn new(counters: &'a Counters) -> Self {
        Self { counters, since: Instant::now() }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let ms = self.since.elapsed().as_millis();
        self.counters.fetch_ms.add(u64::try_from(ms).unwrap_or(u64::MAX));
    }
}

/// Does something that blocks on the disk, holding `held` until it has ended, whether or not anybody waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    cache: &Arc<Cache>,
    manifest: &Arc<Manifest>,
    held: Option<Arc<Lead>>,
    work: impl FnOnce(&Cache, &Manifest) -> Result<T, CacheFault> + Send + 'static,
) -> Result<T, CacheFault> {
    let (cache, manifest) = (Arc::clone(cache), Arc::clone(manifest));
    let done = tokio::task::spawn_blocking(move || {
        let done = work(&cache, &manifest);
        drop(held);
        done
    })
    .await;
    done.unwrap_or(Err(CacheFault::Cancelled))
}

/// How many of the model's bytes are on the disk in whole files, and the room that the others take.
fn survey(cache: &Cache, manifest: &Manifest, lacking: &[FileEntry]) -> Result<(u64, crate::evict::Room), CacheFault> {
    let layout = cache.layout();
    let mut seen = std::collections::HashSet::new();
    let (mut cached, mut new) = (manifest.total_bytes(), Vec::new());
    for entry in lacking {
        if publish::has_entry(&layout.file(entry.sha256), entry) {
            continue;
        }
        cached = cached.saturating_sub(entry.size);
        if seen.insert(entry.sha256) {
            let data = std::fs::symlink_metadata(layout.partial_data(entry.sha256));
            let there = data.map_or(0, |meta| std::os::unix::fs::MetadataExt::blocks(&meta) * 512);
            new.push(entry.size.saturating_sub(there));
        }
    }
    Ok((cached, Disk::of(layout.root())?.room_of(new)))
}

/// What all streams of a fetch have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    remote: Remote,
    pool: Arc<Pool>,
    brake: Brake,
    clocks: Clocks,
    backoff: Backoff,
    notes: mpsc::Sender<Note>,
}

impl Shared {
    async fn note(&self, note: Note) {
        // nobody listens only when the fetch is over
        drop(self.notes.send(note).await);
    }
}

/// Holds all requests back while the store asks for it.
#[derive(Debug, Default)]
struct Brake(Mutex<Option<Instant>>);

impl Brake {
    /// No request begins for so long.
    fn hold(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut held = self.0.lock();
        *held = Some(held.map_or(until, |before| before.max(until)));
    }

    async fn passed(&self) {
        loop {
            let until = *self.0.lock();
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                Some(_) | None => return,
            }
        }
    }
}

/// Even in 0..1; for jitter only.
pub(crate) fn random() -> f64 {
    let bits = RandomState::new().hash_one(0_u8);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_chunks_of_16_to_64_mib_where_chunks_are_smaller() {
        let range =
            |range_bytes, chunk_size| FetchOptions { range_bytes, ..FetchOptions::default() }.range_chunks(chunk_size);
        assert_eq!(range(RANGE_BYTES_DEFAULT, 32 << 20), 1);
        assert_eq!(range(RANGE_BYTES_DEFAULT, 256 << 20), 1);
        assert_eq!(range(RANGE_BYTES_DEFAULT, 1 << 20), 16);
        assert_eq!(range(u64::MAX, 1 << 20), 64);
        assert_eq!(range(0, 1 << 20), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_store_asks_for_patience_no_request_begins() {
        let brake = Brake::default();
        let start = Instant::now();
        brake.passed().await;
        brake.hold(Duration::from_secs(60));
        brake.hold(Duration::from_secs(10));
        brake.passed().await;
        assert_eq!(start.elapsed(), Duration::from_secs(60));
    }
}
