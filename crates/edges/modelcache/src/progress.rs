//! What a fetch tells while it runs: the events, their pace, and a queue that never makes the fetch wait.
//!
//! ```text
//! fetch ── Meter (<= 10 events per second and file) ── sink ── Feed ──┬─ Listener (bounded) ── terminal, --json
//!                                                                     ├─ Listener (bounded) ── owner.sock
//!                                                                     └─ who joins late first hears where things stand
//! ```
//!
//! A listener that reads too slowly loses progress reports, never the end: its queue keeps the newest report of each
//! file and drops the oldest of the rest, counted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::fault::CacheFault;

/// The shortest time between two progress reports of one file.
pub const REPORT_EVERY: Duration = Duration::from_millis(100);
/// The window over which the rate is measured.
pub const RATE_WINDOW: Duration = Duration::from_secs(5);
/// How many events wait for one listener.
pub const QUEUE_MAX: usize = 1024;
/// How many listeners one fetch has.
pub const LISTENERS_MAX: usize = 256;

/// Where a chunk was found to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The store sent it.
    Store,
    /// It lay on the local disk.
    Disk,
}

/// One thing that a fetch, a verification or a push tells. As JSON: one object with the name in `event`.
///
/// Text that comes from outside is bounded where it enters: file paths by the manifest, messages by the fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The manifest was read: what the version is and how much of it is here already.
    Resolved {
        /// `<family>/<version>`.
        model: String,
        /// The digest of the manifest, 64 hexadecimal digits.
        digest: String,
        /// Files in the model.
        files: u64,
        /// Bytes in the model.
        bytes: u64,
        /// Bytes of them that are on the disk.
        cached_bytes: u64,
    },
    /// A push reads a file to learn its digests, or a verification to compare them; at most ten in a second for each
    /// file.
    Hashing {
        /// The path in the model.
        file: String,
        /// Bytes of this file that are hashed.
        bytes: u64,
        /// Its length.
        total: u64,
    },
    /// The first byte of a file is asked for.
    FileStarted {
        /// The path in the model.
        file: String,
        /// Its length.
        bytes: u64,
        /// Bytes that an earlier try left on the disk.
        resumed_bytes: u64,
    },
    /// Bytes have come; at most ten in a second for each file.
    Progress {
        /// The path in the model.
        file: String,
        /// Bytes of this file that are here.
        bytes: u64,
        /// Its length.
        total: u64,
        /// Bytes of the model that are here.
        fetched_total: u64,
        /// Bytes in the model.
        model_total: u64,
        /// Bytes per second of the whole model over the last seconds.
        rate_bytes_per_s: u64,
        /// Milliseconds until the end at this rate; absent while the rate is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_ms: Option<u64>,
    },
    /// A chunk's bytes are not those of the manifest.
    ChunkBad {
        /// The path in the model.
        file: String,
        /// The chunk, counted from 0.
        chunk: u64,
        /// Who had the wrong bytes.
        #[serde(rename = "where")]
        place: Place,
    },
    /// A request failed and is tried again.
    Retry {
        /// The path in the model; absent for the manifest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        /// The code of the fault.
        fault: String,
        /// How many tries there have been.
        attempt: u32,
        /// Milliseconds until the next.
        after_ms: u64,
    },
    /// A file is on the disk, durable and verified.
    FileDone {
        /// The path in the model.
        file: String,
        /// Its length.
        bytes: u64,
    },
    /// The model can be loaded.
    Published {
        /// The digest of the manifest.
        digest: String,
        /// The folder that an engine loads.
        path: String,
    },
    /// It ended with a fault; what was fetched is kept for the next try.
    Failed {
        /// The code of the fault.
        code: String,
        /// What happened.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// The listener was too slow: so many events before this one are missing.
    Missed {
        /// How many.
        events: u64,
    },
}

impl Event {
    /// Whether nothing comes after it.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Published { .. } | Self::Failed { .. })
    }
}

/// Where events go. It is called from the fetch itself: it returns at once.
pub type Sink<'a> = &'a (dyn Fn(Event) + Send + Sync);

/// Turns bytes into progress reports: at most one for each file in [`REPORT_EVERY`], and one at the file's end.
///
/// Time is given with every call, so that nothing here reads a clock.
#[derive(Debug)]
pub struct Meter {
    model_total: u64,
    state: Mutex<MeterState>,
}

#[derive(Debug)]
struct MeterState {
    fetched_total: u64,
    files: HashMap<String, FileMeter>,
    /// When how many bytes had come from the store, over the last [`RATE_WINDOW`].
    window: VecDeque<(Instant, u64)>,
    /// Bytes from the store; unlike `fetched_total` without what lay on the disk, and never less.
    received: u64,
}

#[derive(Debug)]
struct FileMeter {
    bytes: u64,
    total: u64,
    reported: Option<Instant>,
}

impl Meter {
    /// A meter for a model of `model_total` bytes of which `cached_bytes` are on the disk in whole files.
    #[must_use]
    pub fn new(model_total: u64, cached_bytes: u64, now: Instant) -> Self {
        let state = MeterState {
            fetched_total: cached_bytes.min(model_total),
            files: HashMap::new(),
            window: VecDeque::from([(now, 0)]),
            received: 0,
        };
        Self { model_total, state: Mutex::new(state) }
    }

    /// A file of `total` bytes begins, `resumed_bytes` of which an earlier try left.
    pub fn start(&self, file: &str, total: u64, resumed_bytes: u64) -> Event {
        let resumed_bytes = resumed_bytes.min(total);
        let mut state = self.state.lock();
        let known = state.files.insert(file.to_owned(), FileMeter { bytes: resumed_bytes, total, reported: None });
        // A file that begins anew, after bad bytes, is not counted twice.
        let before = known.map_or(0, |file| file.bytes);
        state.fetched_total = (state.fetched_total.saturating_sub(before) + resumed_bytes).min(self.model_total);
        drop(state);
        Event::FileStarted { file: file.to_owned(), bytes: total, resumed_bytes }
    }

    /// `bytes` of a file have come and are right; returns the report that is due, if any.
    pub fn add(&self, file: &str, bytes: u64, now: Instant) -> Option<Event> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let meter = state.files.get_mut(file)?;
        let added = bytes.min(meter.total - meter.bytes);
        meter.bytes += added;
        state.fetched_total = (state.fetched_total + added).min(self.model_total);
        state.received += bytes;
        let is_due = meter.reported.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_EVERY);
        if !is_due && meter.bytes < meter.total {
            return None;
        }
        meter.reported = Some(now);
        let (bytes, total, fetched_total) = (meter.bytes, meter.total, state.fetched_total);
        let rate = state.rate(now);
        let left_ms = (self.model_total - fetched_total).saturating_mul(1000).checked_div(rate);
        Some(Event::Progress {
            file: file.to_owned(),
            bytes,
            total,
            fetched_total,
            model_total: self.model_total,
            rate_bytes_per_s: rate,
            left_ms,
        })
    }

    /// A file is done: forgets it and returns the event.
    pub fn done(&self, file: &str) -> Option<Event> {
        let meter = self.state.lock().files.remove(file)?;
        Some(Event::FileDone { file: file.to_owned(), bytes: meter.total })
    }

    /// Bytes of the model that are here, and bytes that came from the store.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.fetched_total, state.received)
    }
}

impl MeterState {
    /// Bytes per second over the window that ends now.
    fn rate(&mut self, now: Instant) -> u64 {
        // The newest point that is older than the window stays: the rate is taken from there.
        while self.window.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= RATE_WINDOW) {
            self.window.pop_front();
        }
        let spaced = self.window.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= REPORT_EVERY);
        let (since, bytes) = self.window.front().copied().unwrap_or((now, self.received));
        if spaced {
            self.window.push_back((now, self.received));
        }
        let elapsed_ms = u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX);
        (self.received - bytes).saturating_mul(1000).checked_div(elapsed_ms).unwrap_or(0)
    }
}

/// One fetch's events for any number of listeners. Cheap to clone; all clones are the same feed.
#[derive(Clone, Debug, Default)]
pub struct Feed {
    shared: Arc<Mutex<FeedState>>,
}

#[derive(Debug, Default)]
struct FeedState {
    listeners: Vec<Weak<Queue>>,
    /// What a late listener has to hear first.
    resolved: Option<Event>,
    files: BTreeMap<String, Event>,
    last: Option<Event>,
    fault: Option<CacheFault>,
    closed: bool,
}

impl Event {
    /// The last event of what ended with a fault.
    #[must_use]
    pub fn failed(fault: &CacheFault) -> Self {
        Self::Failed { code: fault.code().to_owned(), message: fault.to_string(), hint: fault.hint().to_owned() }
    }
}

impl Feed {
    /// A feed without listeners.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives an event to every listener. Never waits; after the last event there are no more.
    pub fn send(&self, event: Event) {
        let mut state = self.shared.lock();
        if state.last.is_some() || state.closed {
            return;
        }
        match &event {
            Event::Resolved { .. } => state.resolved = Some(event.clone()),
            Event::FileStarted { file, .. } | Event::Progress { file, .. } => {
                state.files.insert(file.clone(), event.clone());
            }
            Event::FileDone { file, .. } => {
                state.files.remove(file);
            }
            Event::Published { .. } | Event::Failed { .. } => state.last = Some(event.clone()),
            Event::Hashing { .. } | Event::ChunkBad { .. } | Event::Retry { .. } | Event::Missed { .. } => {}
        }
        state.listeners.retain(|listener| {
            listener.upgrade().is_some_and(|queue| {
                queue.push(event.clone());
                true
            })
        });
    }

    /// Sends the last event of what ended with `fault`, and keeps the fault itself for the listeners.
    pub fn fail(&self, fault: &CacheFault) {
        {
            let mut state = self.shared.lock();
            if state.last.is_some() || state.closed {
                return;
            }
            for queue in state.listeners.iter().filter_map(Weak::upgrade) {
                queue.state.lock().fault = Some(fault.clone());
            }
            state.fault = Some(fault.clone());
        }
        self.send(Event::failed(fault));
    }

    /// No more events come, whether there was a last one or not: a fetch that was cancelled has none.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        for queue in state.listeners.drain(..).filter_map(|listener| listener.upgrade()) {
            queue.close();
        }
    }

    /// Begins to listen: first comes where things stand, then what happens. `None` beyond [`LISTENERS_MAX`].
    #[must_use]
    pub fn listen(&self) -> Option<Listener> {
        let mut state = self.shared.lock();
        state.listeners.retain(|listener| listener.strong_count() > 0);
        if state.listeners.len() >= LISTENERS_MAX {
            return None;
        }
        let queue = Arc::new(Queue::default());
        queue.state.lock().fault.clone_from(&state.fault);
        state
            .resolved
            .iter()
            .chain(state.files.values())
            .chain(&state.last)
            .for_each(|event| queue.push(event.clone()));
        if state.closed {
            queue.close();
        } else {
            state.listeners.push(Arc::downgrade(&queue));
        }
        Some(Listener { queue })
    }
}

/// The waiting events of one listener.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<Event>,
    missed: u64,
    fault: Option<CacheFault>,
    closed: bool,
}

impl Queue {
    fn push(&self, event: Event) {
        let mut state = self.state.lock();
        // A newer report of the same file takes the place of the one that waits.
        if let Event::Progress { file, .. } = &event
            && let Some(waiting) = state
                .events
                .iter_mut()
                .rev()
                .take(QUEUE_MAX / 16)
                .find(|waiting| matches!(waiting, Event::Progress { file: waiting, .. } if waiting == file))
        {
            *waiting = event;
        } else {
            if state.events.len() >= QUEUE_MAX {
                state.drop_one();
            }
            state.events.push_back(event);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }
}

impl QueueState {
    /// Makes place: the oldest progress report goes, or else the oldest event that is not the last.
    fn drop_one(&mut self) {
        let report = self.events.iter().position(|event| matches!(event, Event::Progress { .. }));
        let dropped = report.or_else(|| self.events.iter().position(|event| !event.is_last()));
        if let Some(at) = dropped {
            self.events.remove(at);
            self.missed += 1;
        }
    }
}

/// The receiving end of a [`Feed`].
#[derive(Debug)]
pub struct Listener {
    queue: Arc<Queue>,
}

impl Listener {
    /// The fault that ended it, once [`Event::Failed`] has come.
    #[must_use]
    pub fn fault(&self) -> Option<CacheFault> {
        self.queue.state.lock().fault.clone()
    }

    /// The next event; `None` when there are no more. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let changed = self.queue.changed.notified();
            {
                let mut state = self.queue.state.lock();
                if state.missed > 0 {
                    return Some(Event::Missed { events: std::mem::take(&mut state.missed) });
                }
                if let Some(event) = state.events.pop_front() {
                    return Some(event);
                }
                if state.closed {
                    return None;
                }
            }
            changed.await;
        }
    }
}
