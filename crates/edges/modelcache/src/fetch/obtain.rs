//! Brings files into the cache: does what the plan says and tells it what came of it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::partial::{Opened, Partial, Wanted, buffer_bytes};
use super::plan::{Found, Limits, Plan, Span, Work};
use super::range::{self, Note, Target};
use super::{Brake, FetchOptions, POOL_BYTES_MAX, Shared, retry};
use crate::buffer::Pool;
use crate::counters::Counters;
use crate::evict::Room;
use crate::fault::CacheFault;
use crate::layout::{Layout, ModelPath};
use crate::manifest::FileEntry;
use crate::progress::{Event, Meter, Place};
use crate::remote::Remote;
use crate::room::Booking;

/// How often it is looked whether another fetch has let go of a file.
const BUSY_POLL: Duration = Duration::from_millis(200);
/// Notes of streams that wait to be read.
const NOTES_MAX: usize = 256;

/// What is to be in the cache.
pub(crate) struct Order<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) remote: &'a Remote,
    pub(crate) model: &'a ModelPath,
    pub(crate) chunk_size: u32,
    pub(crate) entries: Vec<FileEntry>,
    pub(crate) options: &'a FetchOptions,
    pub(crate) booking: Option<&'a Booking>,
    pub(crate) counters: &'a Counters,
}

/// Where events go.
pub(crate) type Teller<'a> = &'a (dyn Fn(Event) + Send + Sync);

/// A piece of work that is done.
enum Done {
    Prepared(usize, Opened, Found),
    Checked(usize, Span, Vec<u32>),
    Fetched(usize, Span, Vec<u32>),
    Sealed(usize),
    Cleaned,
}

/// How a file is opened; `None` while another fetch writes it.
type Opening = fn(&Wanted) -> Result<Option<(Opened, Found)>, CacheFault>;

/// A file of the fetch.
struct File {
    wanted: Wanted,
    opened: Option<Opened>,
    target: Option<Arc<Target>>,
    /// Bytes of chunks that are proven.
    proven: u64,
    /// It begins as a copy of a content file that was checked and is wrong.
    is_replaced: bool,
}

struct Run<'a> {
    plan: Plan,
    files: Vec<File>,
    shared: Arc<Shared>,
    tasks: JoinSet<Result<Done, CacheFault>>,
    order: &'a Order<'a>,
    meter: &'a Meter,
    tell: Teller<'a>,
}

impl Order<'_> {
    /// Brings all of it into the cache, each content once.
    pub(crate) async fn obtain(&self, meter: &Meter, tell: Teller<'_>) -> Result<(), CacheFault> {
        let files = self.files()?;
        let streams = self.options.streams();
        let checkers = std::thread::available_parallelism().map_or(1, usize::from);
        let range_chunks = self.options.range_chunks(self.chunk_size);
        let buffer_bytes = buffer_bytes(self.chunk_size);
        let buffers = (2 * streams).min(POOL_BYTES_MAX / buffer_bytes).max(streams + 1);
        let (notes, mut heard) = mpsc::channel(NOTES_MAX);
        let shared = Arc::new(Shared {
            remote: self.remote.clone(),
            pool: Pool::new(buffers, buffer_bytes),
            brake: Brake::default(),
            clocks: self.options.clocks,
            backoff: self.options.backoff,
            notes,
        });
        let limits = Limits { streams, checkers: checkers.min(streams), range_chunks };
        let plan = Plan::new(files.iter().map(|file| file.wanted.chunks()), limits);
        let mut run = Run { plan, files, shared, tasks: JoinSet::new(), order: self, meter, tell };
        run.go(&mut heard).await
    }

    /// The files, each content once, the largest first: what is left at the end is small.
    fn files(&self) -> Result<Vec<File>, CacheFault> {
        let mut distinct: HashMap<_, &FileEntry> = HashMap::new();
        for entry in &self.entries {
            let same = distinct.entry(entry.sha256).or_insert(entry);
            if same.size != entry.size || same.chunks != entry.chunks {
                let reason = format!("{} and {} have one digest and differ in their chunks", same.path, entry.path);
                return Err(CacheFault::ManifestInvalid { reason });
            }
        }
        let mut entries: Vec<_> = distinct.into_values().collect();
        entries.sort_by(|one, other| other.size.cmp(&one.size).then_with(|| one.path.cmp(&other.path)));
        let file = |entry: &FileEntry| File {
            wanted: Wanted {
                layout: self.layout.clone(),
                entry: Arc::new(entry.clone()),
                chunk_size: self.chunk_size,
                disk_io: self.options.disk_io,
            },
            opened: None,
            target: None,
            proven: 0,
            is_replaced: false,
        };
        Ok(entries.into_iter().map(file).collect())
    }
}

impl Run<'_> {
    async fn go(&mut self, heard: &mut mpsc::Receiver<Note>) -> Result<(), CacheFault> {
        loop {
            while let Some(work) = self.plan.next() {
                self.begin(work)?;
            }
            if self.plan.is_finished() && self.tasks.is_empty() {
                return Ok(());
            }
            tokio::select! {
                biased;
                note = heard.recv() => note.into_iter().for_each(|note| self.note(&note)),
                done = self.tasks.join_next() => match done {
                    Some(Ok(done)) => self.done(done?)?,
                    Some(Err(_)) | None => return Err(CacheFault::Cancelled),
                },
            }
        }
    }

    fn begin(&mut self, work: Work) -> Result<(), CacheFault> {
        match work {
            Work::Prepare(file) => self.prepare(file, Wanted::prepare),
            Work::Replace(file) => {
                self.files[file].is_replaced = true;
                self.prepare(file, Wanted::replace);
            }
            Work::Check(file, span) => self.check(file, span)?,
            Work::Fetch(file, span) => self.fetch(file, span)?,
            Work::Seal(file) => self.seal(file)?,
        }
        Ok(())
    }

    fn prepare(&mut self, file: usize, how: Opening) {
        let wanted = self.files[file].wanted.clone();
        self.tasks.spawn(async move {
            loop {
                let wanted = wanted.clone();
                if let Some((opened, found)) = blocking(move || how(&wanted)).await? {
                    return Ok(Done::Prepared(file, opened, found));
                }
                tokio::time::sleep(BUSY_POLL).await;
            }
        });
    }

    fn check(&mut self, file: usize, span: Span) -> Result<(), CacheFault> {
        let opened = self.files[file].opened.clone().ok_or(CacheFault::Cancelled)?;
        let (wanted, pool) = (self.files[file].wanted.clone(), Arc::clone(&self.shared.pool));
        self.tasks.spawn(async move {
            let mut lease = pool.take().await.ok_or(CacheFault::Cancelled)?;
            let wrong = blocking(move || opened.check(&wanted, span, lease.get())).await?;
            Ok(Done::Checked(file, span, wrong))
        });
        Ok(())
    }

    fn fetch(&mut self, file: usize, span: Span) -> Result<(), CacheFault> {
        let target = self.files[file].target.clone().ok_or(CacheFault::Cancelled)?;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let wrong = range::fetch(&shared, &target, span).await?;
            Ok(Done::Fetched(file, span, wrong))
        });
        Ok(())
    }

    fn seal(&mut self, file: usize) -> Result<(), CacheFault> {
        let partial = self.partial(file).ok_or(CacheFault::Cancelled)?;
        self.tasks.spawn(async move {
            blocking(move || partial.seal()).await?;
            Ok(Done::Sealed(file))
        });
        Ok(())
    }

    fn partial(&self, file: usize) -> Option<Arc<Partial>> {
        match &self.files[file].opened {
            Some(Opened::Partial(partial)) => Some(Arc::clone(partial)),
            Some(Opened::Content(_)) | None => None,
        }
    }

    fn done(&mut self, done: Done) -> Result<(), CacheFault> {
        match done {
            Done::Prepared(file, opened, found) => self.prepared(file, opened, &found),
            Done::Checked(file, span, wrong) => self.checked(file, span, &wrong),
            Done::Fetched(file, span, wrong) => self.fetched(file, span, &wrong)?,
            Done::Cleaned => {}
            Done::Sealed(file) => {
                self.plan.sealed();
                self.close(file);
                let done = self.meter.done(&self.files[file].wanted.entry.path);
                done.into_iter().for_each(self.tell);
            }
        }
        Ok(())
    }

    fn prepared(&mut self, file: usize, opened: Opened, found: &Found) {
        let state = &mut self.files[file];
        state.proven = 0;
        if let Opened::Partial(partial) = &opened {
            let entry = &state.wanted.entry;
            let room = Room { bytes: entry.size, inodes: 1 };
            self.order.booking.into_iter().for_each(|booking| booking.taken(room));
            let object = self.order.model.object(&entry.path);
            let partial = Arc::clone(partial);
            state.target = Some(Arc::new(Target { file, partial, object, etag: OnceLock::new() }));
            (self.tell)(self.meter.start(&entry.path, entry.size, 0));
        }
        state.opened = Some(opened);
        self.plan.prepared(file, found);
        self.adopt(file);
    }

    fn checked(&mut self, file: usize, span: Span, wrong: &[u32]) {
        // the copy of a content file that is wrong is wrong in the same places, and that was said
        if !self.files[file].is_replaced {
            self.order.counters.checksum_failures_disk.add(wrong.len() as u64);
            self.bad(file, wrong, Place::Disk);
        }
        self.prove(file, span, wrong);
        // what another life has left counts as there, not as come
        if self.files[file].target.is_some() {
            self.recount(file);
        }
        self.plan.checked(file, span, wrong);
        self.adopt(file);
    }

    /// Lets go of a content file of the cache that is proven to be right as it is.
    fn adopt(&mut self, file: usize) {
        let state = &self.files[file];
        if state.target.is_some() || state.proven < state.wanted.entry.size {
            return;
        }
        self.close(file);
        let wanted = self.files[file].wanted.clone();
        // a fetch that died between the rename and the end of its cleaning has left a folder
        self.tasks.spawn(async move { blocking(move || wanted.clean()).await.map(|()| Done::Cleaned) });
    }

    fn fetched(&mut self, file: usize, span: Span, wrong: &[u32]) -> Result<(), CacheFault> {
        self.order.counters.checksum_failures_store.add(wrong.len() as u64);
        self.bad(file, wrong, Place::Store);
        self.prove(file, span, wrong);
        if !wrong.is_empty() {
            self.recount(file);
        }
        self.plan.fetched(file, span, wrong).map_err(|given_up| CacheFault::WrongBytes {
            file: self.files[given_up.file].wanted.entry.path.clone(),
            chunk: given_up.chunk.into(),
        })
    }

    fn bad(&self, file: usize, wrong: &[u32], place: Place) {
        for chunk in wrong {
            let file = self.files[file].wanted.entry.path.clone();
            (self.tell)(Event::ChunkBad { file, chunk: (*chunk).into(), place });
        }
    }

    fn prove(&mut self, file: usize, span: Span, wrong: &[u32]) {
        let state = &mut self.files[file];
        let chunks = (span.first..span.end()).filter(|chunk| !wrong.contains(chunk));
        let bytes: u64 = chunks.filter_map(|chunk| state.wanted.chunk(chunk)).map(|(_, len, _)| len).sum();
        state.proven += bytes;
    }

    /// Sets the file's progress to what is proven.
    fn recount(&self, file: usize) {
        let state = &self.files[file];
        drop(self.meter.start(&state.wanted.entry.path, state.wanted.entry.size, state.proven));
    }

    fn close(&mut self, file: usize) {
        self.files[file].opened = None;
        self.files[file].target = None;
    }

    fn note(&self, note: &Note) {
        match note {
            Note::Bytes(file, bytes) => {
                self.order.counters.fetch_bytes.add(*bytes);
                let path = &self.files[*file].wanted.entry.path;
                self.meter.add(path, *bytes, std::time::Instant::now()).into_iter().for_each(self.tell);
            }
            Note::Retry { file, fault, attempt, after } => {
                self.order.counters.retries.one();
                (self.tell)(retry(Some(&self.files[*file].wanted.entry.path), fault, *attempt, *after));
            }
        }
    }
}

/// Does something that blocks on the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CacheFault> + Send + 'static,
) -> Result<T, CacheFault> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(CacheFault::Cancelled))
}
