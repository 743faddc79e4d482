//! Verifying what is cached, and repairing only what is wrong.
//!
//! ```text
//! verify ── every chunk of every file, several readers, direct reads, paced ──> Report: wrong chunks, missing files
//! repair ── Report ── each wrong file anew: good chunks copied and read again, wrong ones fetched ── links renamed over
//! ```
//!
//! The chunk list proves a file: whoever pushed it hashed file and chunks from the same bytes, and the model's digest
//! binds both. The digest of the whole file is checked too where that is asked for; it costs a second hash of every byte,
//! one core for each file. A reader that has a damaged file open keeps it: the repaired one is another file under the same
//! name.

pub mod scrub;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::buffer::{BUFFER_BYTES_MAX, Pool};
use crate::cache::Cache;
use crate::direct::{DirectFile, DiskIo};
use crate::fault::CacheFault;
use crate::fetch::obtain::Order;
use crate::fetch::{self, FetchOptions};
use crate::layout::{Layout, ModelPath};
use crate::manifest::{self, FileEntry, Manifest};
use crate::progress::{Event, Meter, Place, Sink};
use crate::publish;
use crate::remote::Remote;

/// Readers for each core: while one hashes, others wait for the disk, which is at its best with several reads at once.
const READERS_PER_CORE: usize = 4;
/// Most readers at once.
pub const READERS_MAX: usize = 32;

/// What is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Depth {
    /// Every chunk: proves every byte.
    #[default]
    Chunks,
    /// Every chunk, and every file as a whole: also proves that the manifest is true to itself.
    Files,
}

/// How a verification goes about it.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    pub depth: Depth,
    /// Most bytes per second, for a scrub beside other work.
    pub rate_max: Option<u64>,
    /// Readers at once, 1 to [`READERS_MAX`].
    pub readers: usize,
    pub disk_io: DiskIo,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        let readers = READERS_PER_CORE * std::thread::available_parallelism().map_or(1, usize::from);
        let readers = readers.min(READERS_MAX);
        Self { depth: Depth::default(), rate_max: None, readers, disk_io: DiskIo::default() }
    }
}

/// A chunk that is not right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrongChunk {
    /// Path in the manifest.
    pub file: String,
    pub chunk: u64,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files read to their end.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    pub wrong: Vec<WrongChunk>,
    /// Paths in the manifest of files that are not there, or have another length.
    pub missing: Vec<String>,
    /// Paths in the manifest of files whose chunks are right and whose digest is not: the manifest contradicts itself.
    pub contradicted: Vec<String>,
    /// What lies in the folder and does not belong there.
    pub strangers: Vec<PathBuf>,
}

impl Report {
    /// Whether the folder is exactly what the manifest says.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let Self { files: _, bytes: _, wrong, missing, contradicted, strangers } = self;
        wrong.is_empty() && missing.is_empty() && contradicted.is_empty() && strangers.is_empty()
    }

    /// The files that have to be brought again.
    fn broken(&self) -> BTreeSet<&str> {
        self.wrong.iter().map(|wrong| wrong.file.as_str()).chain(self.missing.iter().map(String::as_str)).collect()
    }
}

/// A file under verification.
#[derive(Debug)]
struct Subject {
    entry: FileEntry,
    file: DirectFile,
    chunk_size: u32,
}

/// What one reader did.
struct Piece {
    file: String,
    bytes: u64,
    wrong: Vec<WrongChunk>,
    contradicted: Option<String>,
}

/// Reads a published model and compares every byte with its manifest.
///
/// # Errors
/// What the disk says; a chunk that cannot be read is a wrong chunk, not an error.
pub async fn verify(
    layout: &Layout,
    manifest: &Manifest,
    options: &VerifyOptions,
    sink: Sink<'_>,
) -> Result<Report, CacheFault> {
    let mut report = Report { strangers: publish::strangers(layout, manifest)?, ..Report::default() };
    let readers = options.readers.clamp(1, READERS_MAX);
    let pool = Pool::new(readers, BUFFER_BYTES_MAX.min(manifest.chunk_size() as usize));
    let pace = Arc::new(Pace::new(options.rate_max));
    let meter = Meter::new(manifest.files().iter().map(|file| file.size).sum(), 0, std::time::Instant::now());
    let mut tasks: JoinSet<Result<Piece, CacheFault>> = JoinSet::new();
    for entry in manifest.files() {
        let Some(subject) = open(layout, manifest, entry, options.disk_io)? else {
            report.missing.push(entry.path.clone());
            continue;
        };
        report.files += 1;
        meter.start(&entry.path, entry.size, 0);
        let subject = Arc::new(subject);
        for chunks in pieces(entry, options.depth) {
            while tasks.len() >= readers {
                report.take(tasks.join_next().await, &meter, sink)?;
            }
            let (subject, pool, pace, depth) =
                (Arc::clone(&subject), Arc::clone(&pool), Arc::clone(&pace), options.depth);
            tasks.spawn(async move { subject.read(chunks, depth, &pool, &pace).await });
        }
    }
    while !tasks.is_empty() {
        report.take(tasks.join_next().await, &meter, sink)?;
    }
    report.wrong.sort();
    Ok(report)
}

/// Each chunk apart, or a whole file where it is hashed as one.
fn pieces(entry: &FileEntry, depth: Depth) -> impl Iterator<Item = std::ops::Range<u64>> {
    let chunks = entry.chunks.len() as u64;
    let step = match depth {
        Depth::Chunks => 1,
        Depth::Files => chunks.max(1),
    };
    (0..chunks).step_by(usize::try_from(step).unwrap_or(usize::MAX)).map(move |first| first..first + step)
}

fn open(
    layout: &Layout,
    manifest: &Manifest,
    entry: &FileEntry,
    disk_io: DiskIo,
) -> Result<Option<Subject>, CacheFault> {
    let path = publish::published_file(layout, manifest.digest(), entry);
    if !publish::has_entry(&path, entry) {
        return Ok(None);
    }
    match DirectFile::open(&path, disk_io) {
        Ok(file) => Ok(Some(Subject { entry: entry.clone(), file, chunk_size: manifest.chunk_size() })),
        // it went between the two looks
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CacheFault::disk("open", &path, &error)),
    }
}

impl Report {
    fn take(
        &mut self,
        done: Option<Result<Result<Piece, CacheFault>, tokio::task::JoinError>>,
        meter: &Meter,
        sink: Sink<'_>,
    ) -> Result<(), CacheFault> {
        let Some(done) = done else { return Ok(()) };
        let piece = done.unwrap_or(Err(CacheFault::Cancelled))?;
        self.bytes += piece.bytes;
        let read = meter.add(&piece.file, piece.bytes, std::time::Instant::now());
        if let Some(Event::Progress { file, bytes, total, .. }) = read {
            sink(Event::Hashing { file, bytes, total });
        }
        self.contradicted.extend(piece.contradicted);
        for wrong in piece.wrong {
            sink(Event::ChunkBad { file: wrong.file.clone(), chunk: wrong.chunk, place: Place::Disk });
            self.wrong.push(wrong);
        }
        Ok(())
    }
}

impl Subject {
    async fn read(
        self: Arc<Self>,
        chunks: std::ops::Range<u64>,
        depth: Depth,
        pool: &Arc<Pool>,
        pace: &Pace,
    ) -> Result<Piece, CacheFault> {
        let mut whole = (depth == Depth::Files).then(|| Context::new(&SHA256));
        let mut piece = Piece { file: self.entry.path.clone(), bytes: 0, wrong: Vec::new(), contradicted: None };
        for chunk in chunks {
            let span = self.entry.chunk_span(self.chunk_size, chunk);
            let expected = usize::try_from(chunk).ok().and_then(|chunk| self.entry.chunks.get(chunk)).copied();
            let (Some((start, len)), Some(expected)) = (span, expected) else { break };
            pace.pass(len).await;
            let mut lease = pool.take().await.ok_or(CacheFault::Cancelled)?;
            let subject = Arc::clone(&self);
            let read = tokio::task::spawn_blocking(move || {
                let is_right = subject.file.is_right(lease.get(), start, len, expected, whole.as_mut());
                (whole, is_right)
            });
            let (hashed, is_right) = read.await.map_err(|_| CacheFault::Cancelled)?;
            whole = hashed;
            piece.bytes += len;
            if !is_right? {
                piece.wrong.push(WrongChunk { file: self.entry.path.clone(), chunk });
            }
        }
        let is_contradicted = whole.is_some_and(|whole| manifest::finished(whole.finish()) != self.entry.sha256);
        if is_contradicted && piece.wrong.is_empty() {
            piece.contradicted = Some(self.entry.path.clone());
        }
        Ok(piece)
    }
}

/// Spaces reads so that their rate stays below a bound.
#[derive(Debug)]
struct Pace {
    rate_max: Option<u64>,
    /// When the bytes that were let through have been paid for.
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    fn new(rate_max: Option<u64>) -> Self {
        Self { rate_max: rate_max.filter(|rate| *rate > 0), free_at: Mutex::default() }
    }

    async fn pass(&self, bytes: u64) {
        let Some(rate) = self.rate_max else { return };
        let begin = {
            let now = Instant::now();
            let mut free_at = self.free_at.lock();
            let begin = free_at.map_or(now, |free_at| free_at.max(now));
            *free_at = Some(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
            begin
        };
        tokio::time::sleep_until(begin).await;
    }
}

/// Fetches what a verification found wrong, and only that, and puts it in place for every published model that has it.
/// Says how many bytes came from the store.
///
/// # Errors
/// The fault that ended it; what was repaired before stays repaired.
pub async fn repair(
    cache: &Arc<Cache>,
    remote: &Remote,
    model: &ModelPath,
    manifest: &Manifest,
    report: &Report,
    options: &FetchOptions,
    sink: Sink<'_>,
) -> Result<u64, CacheFault> {
    let layout = cache.layout();
    let broken = report.broken();
    let entries: Vec<FileEntry> =
        manifest.files().iter().filter(|entry| broken.contains(entry.path.as_str())).cloned().collect();
    let total: u64 = entries.iter().map(|entry| entry.size).sum();
    let damaged: Vec<_> = entries.iter().map(|entry| (entry.clone(), inode(layout, manifest, entry))).collect();
    let shared = Arc::new(manifest.clone());
    let lengths: Vec<_> = entries.iter().map(|entry| entry.size).collect();
    let grant = fetch::blocking(cache, &shared, None, move |cache, _| {
        cache.make_room(crate::room::Disk::of(cache.layout().root())?.room_of(lengths))
    })
    .await?;
    let meter = Meter::new(total, 0, std::time::Instant::now());
    let order = Order {
        layout,
        remote,
        model,
        chunk_size: manifest.chunk_size(),
        entries,
        options,
        booking: Some(&grant.booking),
        counters: cache.counters(),
    };
    order.obtain(&meter, sink).await?;
    fetch::blocking(cache, &shared, None, move |cache, manifest| {
        publish::relink(cache.layout(), manifest, damaged.iter().map(|(entry, _)| entry))?;
        publish::remove_strangers(cache.layout(), manifest)?;
        relink_others(cache, manifest, &damaged)
    })
    .await?;
    Ok(meter.totals().1)
}

type Inode = Option<(u64, u64)>;

fn inode(layout: &Layout, manifest: &Manifest, entry: &FileEntry) -> Inode {
    let path = publish::published_file(layout, manifest.digest(), entry);
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Other published models that have the very file that was damaged get the new one too, where their chunks agree.
fn relink_others(cache: &Cache, repaired: &Manifest, damaged: &[(FileEntry, Inode)]) -> Result<(), CacheFault> {
    let layout = cache.layout();
    for digest in crate::cache::shelf::published(layout)? {
        // a manifest that cannot be read is found when that model is verified
        let Some(other) = cache.manifest(digest).ok().filter(|other| other.digest() != repaired.digest()) else {
            continue;
        };
        let is_same = |entry: &&FileEntry| {
            let held = inode(layout, &other, entry);
            held.is_some()
                && other.chunk_size() == repaired.chunk_size()
                && damaged.iter().any(|(wrong, inode)| *inode == held && wrong.chunks == entry.chunks)
        };
        publish::relink(layout, &other, other.files().iter().filter(is_same))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_scrub_reads_no_faster_than_it_may() {
        let pace = Pace::new(Some(1000));
        let start = Instant::now();
        for _ in 0..5 {
            pace.pass(2000).await;
        }
        assert_eq!(start.elapsed(), Duration::from_secs(8), "the fifth read begins when four are paid for");
        let free = Pace::new(None);
        let start = Instant::now();
        free.pass(u64::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
