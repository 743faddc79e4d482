//! The cache's folder and its one owner.
//!
//! ```text
//! open ── flock(owner.lock) ── another has it ──> owner_busy: ask it (see `owner`)
//!                           └─ ours ─> declare ─> make_room ─> … fetch and publish … ─> used, pin, gc
//! ```
//!
//! The lock is the kernel's: it ends with its process, however that ends, so there is no stale lock to clean up.
//!
//! Everything here blocks on the disk: call it from a thread that may.

pub mod gc;
pub mod index;
pub mod records;
pub mod shelf;
pub(crate) mod small;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

pub use self::records::Pin;
pub use self::shelf::{Listed, ListedState};
use crate::counters::Counters;
use crate::evict::{Held, Hold, Room};
use crate::fault::{CacheFault, NoRoom};
use crate::flight::Flights;
use crate::layout::{Layout, ModelPath};
use crate::manifest::Manifest;
use crate::publish;
use crate::room::{Booking, Bookings, Disk, INODES_BESIDE, KeepFree, admit};

/// How often room is made again when a removal freed less than it should have: a reader may have the files open.
const ROOM_TRIES: u32 = 3;

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// How much of the disk stays free.
    pub keep_free: KeepFree,
    /// The time in seconds since 1970; of the system, except in tests.
    pub now_s: fn() -> u64,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { keep_free: KeepFree::default(), now_s }
    }
}

/// The owner's hold on a cache folder. There is at most one in all processes of a machine.
#[derive(Debug)]
pub struct Cache {
    layout: Layout,
    options: CacheOptions,
    /// Held open: the lock lives as long as it does.
    _lock: File,
    models: Flights,
    files: Flights,
    bookings: Bookings,
    next_use: Mutex<HashMap<Sha256Digest, u64>>,
    /// Whoever adds or removes a record that decides what stays, or removes what has none.
    records: Mutex<()>,
    counters: Counters,
}

/// Room for a fetch.
#[derive(Debug)]
pub struct Grant {
    /// Keeps the room from others until it is taken.
    pub booking: Booking,
    /// What was removed for it.
    pub evicted: Vec<Evicted>,
}

/// A model that was removed to make room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// The digest of its manifest.
    pub digest: String,
    /// The names under which it was seen.
    pub models: Vec<String>,
    /// The bytes of its files that no other model has.
    pub bytes: u64,
}

/// How the disk is used, as `du` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Every model, as `ls` shows it.
    pub models: Vec<Listed>,
    /// Bytes of all models, each content once.
    pub model_bytes: u64,
    /// Bytes that sharing saves.
    pub shared_bytes: u64,
    /// Bytes of files on their way.
    pub partial_bytes: u64,
    /// Bytes of compile caches.
    pub artifact_bytes: u64,
    /// Size of the file system.
    pub total_bytes: u64,
    /// What is free of it.
    pub free_bytes: u64,
    /// What stays free of it.
    pub keep_free_bytes: u64,
}

impl Cache {
    /// Opens the cache at `root`, making it when it is not there, and becomes its owner.
    ///
    /// # Errors
    ///
    /// `owner_busy` when another process is its owner; else what the disk says.
    pub fn open(root: &Path, options: CacheOptions) -> Result<Self, CacheFault> {
        let layout = Layout::new(root);
        let folders = [
            layout.files(),
            layout.partials(),
            layout.manifests(),
            layout.refs(),
            layout.pins(),
            layout.uses(),
            layout.artifacts(),
        ];
        for folder in [layout.root().to_path_buf(), layout.tmp()].iter().chain(&folders) {
            std::fs::create_dir_all(folder).map_err(|error| CacheFault::disk("make", folder, &error))?;
        }
        let lock = lock(&layout)?;
        // What a dead owner made ready is of no use: it was never seen.
        for name in small::names(&layout.tmp(), shelf::CONTENT_MAX)? {
            let path = layout.tmp().join(&name.name);
            if name.kind.is_dir() { small::remove_tree(&path)? } else { small::remove_file(&path)? }
        }
        Ok(Self {
            layout,
            options,
            _lock: lock,
            models: Flights::default(),
            files: Flights::default(),
            bookings: Bookings::default(),
            next_use: Mutex::default(),
            records: Mutex::new(()),
            counters: Counters::default(),
        })
    }

    /// Where its things are.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What it counts.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Models that are worked on, by the digest of the manifest: one run for each, whoever asks.
    #[must_use]
    pub const fn models(&self) -> &Flights {
        &self.models
    }

    /// Content files that are fetched, by their digest: two models that share a file fetch it once.
    #[must_use]
    pub const fn files(&self) -> &Flights {
        &self.files
    }

    /// The time, in seconds since 1970.
    #[must_use]
    pub fn now_s(&self) -> u64 {
        (self.options.now_s)()
    }

    /// Records a model that is about to be fetched. From here on its content files are not removed, whoever else had
    /// them: look for them afterwards, not before.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn declare(&self, manifest: &Manifest) -> Result<(), CacheFault> {
        let _records = self.records.lock();
        publish::put_manifest(&self.layout, manifest)?;
        let index = index::path(&self.layout, manifest.digest());
        if index.exists() { Ok(()) } else { small::write(&self.layout, &index, &index::encode(manifest)) }
    }

    /// The recorded manifest of a model.
    ///
    /// # Errors
    ///
    /// `damaged` when there is none that holds; else what the disk says.
    pub fn manifest(&self, digest: Sha256Digest) -> Result<Manifest, CacheFault> {
        index::manifest(&self.layout, digest)
    }

    /// The digest last seen under a name.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn reference(&self, model: &ModelPath) -> Result<Option<Sha256Digest>, CacheFault> {
        records::reference(&self.layout, model)
    }

    /// Grants room for `need` beside what is booked and what stays free; removes spare models when there is too little.
    /// The caller leads the flights of the models that must not go for it.
    ///
    /// # Errors
    ///
    /// `no_room`, `inodes_full` or `read_only` before anything is written; else what the disk says.
    pub fn make_room(&self, need: Room) -> Result<Grant, CacheFault> {
        let _records = self.records.lock();
        let mut evicted = Vec::new();
        for _ in 0..ROOM_TRIES {
            let disk = Disk::of(self.layout.root())?;
            let beside = Room { bytes: 0, inodes: INODES_BESIDE };
            let total = if need == Room::NONE { Room::NONE } else { need.plus(beside).plus(self.bookings.total()) };
            let fits = disk.missing(total, self.options.keep_free.bytes(disk.total_bytes)) == Room::NONE;
            let models = if fits { Vec::new() } else { shelf::models(&self.layout)? };
            let held = if fits { Vec::new() } else { self.held(&models)? };
            let plan = admit(self.layout.root(), &disk, self.options.keep_free, total, &held)?;
            if plan.evict.is_empty() {
                return Ok(Grant { booking: self.bookings.book(need), evicted });
            }
            evicted.extend(self.evict(&models, &plan.evict)?);
        }
        let disk = Disk::of(self.layout.root())?;
        Err(CacheFault::NoRoom(NoRoom {
            need_bytes: need.plus(self.bookings.total()).bytes,
            free_bytes: disk.free_bytes,
            keep_free_bytes: self.options.keep_free.bytes(disk.total_bytes),
            evictable_bytes: 0,
            would_evict: Vec::new(),
            kept: vec!["files of removed models that a process still has open".to_owned()],
        }))
    }

    fn held(&self, models: &[shelf::Model]) -> Result<Vec<Held>, CacheFault> {
        shelf::held(&self.layout, models, |digest| self.models.is_running(digest), &self.next_use.lock())
    }

    /// Removes models for good: each disappears by one rename, then the files that no recorded model has go.
    fn evict(&self, models: &[shelf::Model], gone: &[Sha256Digest]) -> Result<Vec<Evicted>, CacheFault> {
        let gone: HashSet<_> = gone.iter().copied().collect();
        let is_gone = |model: &&shelf::Model| gone.contains(&model.digest);
        let mut stays: HashSet<Sha256Digest> = models
            .iter()
            .filter(|model| !is_gone(model))
            .flat_map(|model| model.files.iter().flatten())
            .map(|file| file.sha256)
            .collect();
        let mut evicted = Vec::new();
        for model in models.iter().filter(is_gone) {
            // From the rename on nobody can begin to load it; a crash after it leaves only files without a record.
            let aside = small::tmp_name(&self.layout, "evicted");
            let folder = self.layout.published(model.digest);
            match std::fs::rename(&folder, &aside) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(CacheFault::disk("remove", &folder, &error));
                }
                Ok(()) | Err(_) => small::sync_folder(self.layout.root())?,
            }
            self.forget(model.digest)?;
            let mut bytes = 0;
            for file in model.files.iter().flatten().filter(|file| stays.insert(file.sha256)) {
                small::remove_file(&self.layout.file(file.sha256))?;
                small::remove_tree(&self.layout.partial(file.sha256))?;
                bytes += file.size;
            }
            small::remove_tree(&aside)?;
            self.counters.evictions.one();
            self.counters.evicted_bytes.add(bytes);
            tracing::info!(digest = %model.digest, models = ?model.names, bytes, "model evicted");
            evicted.push(Evicted { digest: model.digest.to_string(), models: model.names.clone(), bytes });
        }
        Ok(evicted)
    }

    /// Removes the records of a model that is no longer on the disk.
    fn forget(&self, digest: Sha256Digest) -> Result<(), CacheFault> {
        let layout = &self.layout;
        for record in [layout.manifest(digest), index::path(layout, digest), layout.last_use(digest)] {
            small::remove_file(&record)?;
        }
        for (model, seen) in records::references(layout)? {
            if seen == digest {
                small::remove_file(&layout.reference(&model))?;
            }
        }
        small::sync_folder(&layout.manifests())
    }

    /// Notes that a model was used now: the order of evictions follows from it.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn used(&self, digest: Sha256Digest) -> Result<(), CacheFault> {
        records::set_last_use(&self.layout, digest, self.now_s())
    }

    /// Says when the timetable needs each model next, in seconds since 1970; takes the place of what was said before.
    pub fn set_next_use(&self, next_use: impl IntoIterator<Item = (Sha256Digest, u64)>) {
        *self.next_use.lock() = next_use.into_iter().collect();
    }

    /// Gives a model a reason to stay. It need not be here: a pin may come before its model.
    ///
    /// # Errors
    ///
    /// `bad_settings` when a text is too long or there are too many; else what the disk says.
    pub fn pin(&self, digest: Sha256Digest, hold: Hold, by: &str, note: &str) -> Result<(), CacheFault> {
        let _records = self.records.lock();
        let mut pins = records::pins(&self.layout, digest)?;
        let since_s =
            pins.iter().find(|pin| (pin.hold, &*pin.by) == (hold, by)).map_or_else(|| self.now_s(), |pin| pin.since_s);
        pins.retain(|pin| (pin.hold, &*pin.by) != (hold, by));
        pins.push(Pin { hold, by: by.to_owned(), note: note.to_owned(), since_s });
        records::set_pins(&self.layout, digest, pins)
    }

    /// Takes a reason back; whether there was one.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn unpin(&self, digest: Sha256Digest, hold: Hold, by: &str) -> Result<bool, CacheFault> {
        let _records = self.records.lock();
        let mut pins = records::pins(&self.layout, digest)?;
        let before = pins.len();
        pins.retain(|pin| (pin.hold, &*pin.by) != (hold, by));
        if pins.len() == before {
            return Ok(false);
        }
        records::set_pins(&self.layout, digest, pins).map(|()| true)
    }

    /// Makes the reasons that `by` gives exactly these, over all models: what it no longer says is taken back. This is
    /// how a controller says its whole mind, however often, and whatever it said before a crash.
    ///
    /// # Errors
    ///
    /// As of [`Self::pin`]; reasons are added before any is taken back, so a failure keeps too much, never too little.
    pub fn set_holds(&self, by: &str, wanted: &[(Sha256Digest, Hold, String)]) -> Result<(), CacheFault> {
        for (digest, hold, note) in wanted {
            self.pin(*digest, *hold, by, note)?;
        }
        let wanted: HashSet<_> = wanted.iter().map(|(digest, hold, _)| (*digest, *hold)).collect();
        for digest in records::recorded(&self.layout.pins())? {
            for pin in self.pins(digest)? {
                if pin.by == by && !wanted.contains(&(digest, pin.hold)) {
                    self.unpin(digest, pin.hold, by)?;
                }
            }
        }
        Ok(())
    }

    /// The reasons why a model stays.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn pins(&self, digest: Sha256Digest) -> Result<Vec<Pin>, CacheFault> {
        records::pins(&self.layout, digest)
    }
}

/// What is in a cache, whoever owns it: reads records only.
///
/// # Errors
///
/// What the disk says.
pub fn ls(layout: &Layout) -> Result<Vec<Listed>, CacheFault> {
    shelf::models(layout).map(|models| shelf::listed(&models))
}

/// How the disk is used, whoever owns the cache.
///
/// # Errors
///
/// What the disk says.
pub fn du(layout: &Layout, keep_free: KeepFree) -> Result<DiskUse, CacheFault> {
    let models = shelf::models(layout)?;
    let listed = shelf::listed(&models);
    let mut contents: BTreeMap<Sha256Digest, u64> = BTreeMap::new();
    let published = models.iter().filter(|model| model.published).flat_map(|model| model.files.iter().flatten());
    let mut linked_bytes = 0_u64;
    for file in published {
        linked_bytes = linked_bytes.saturating_add(file.size);
        contents.insert(file.sha256, file.size);
    }
    let model_bytes = contents.values().sum();
    let disk = Disk::of(layout.root())?;
    Ok(DiskUse {
        models: listed,
        model_bytes,
        shared_bytes: linked_bytes.saturating_sub(model_bytes),
        partial_bytes: shelf::partials(layout)?.values().sum(),
        artifact_bytes: tree_bytes(&layout.artifacts(), 0),
        total_bytes: disk.total_bytes,
        free_bytes: disk.free_bytes,
        keep_free_bytes: keep_free.bytes(disk.total_bytes),
    })
}

/// Bytes that a small tree takes.
fn tree_bytes(folder: &Path, depth: usize) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() && depth < 64 => tree_bytes(&entry.path(), depth + 1),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// Takes `owner.lock`, and writes into it whose it is.
fn lock(layout: &Layout) -> Result<File, CacheFault> {
    let path = layout.owner_lock();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::openat(CWD, &path, flags, Mode::from_raw_mode(0o644));
    let mut lock = File::from(lock.map_err(|error| CacheFault::disk("open", &path, &error.into()))?);
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let reason = "it holds owner.lock".to_owned();
            return Err(CacheFault::OwnerBusy { pid: owner_pid(layout), reason });
        }
        Err(error) => return Err(CacheFault::disk("lock", &path, &error.into())),
    }
    let write = |lock: &mut File| {
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())
    };
    write(&mut lock).map_err(|error| CacheFault::disk("write", &path, &error))?;
    Ok(lock)
}

/// The process that wrote itself into `owner.lock`; 0 when none can be read.
#[must_use]
pub fn owner_pid(layout: &Layout) -> u32 {
    let bytes = small::read(&layout.owner_lock(), 32).ok().flatten();
    bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok()).unwrap_or(0)
}
