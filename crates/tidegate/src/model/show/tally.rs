//! Where a fetch, a push or a verification stands, made of its events.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_modelcache::progress::{Event, Place};

use crate::model::units;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Pulling,
    Pushing,
    Verifying,
}

impl Doing {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Pulling => "pulling",
            Self::Pushing => "pushing",
            Self::Verifying => "verifying",
        }
    }
}

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bytes: u64,
    pub(crate) total: u64,
}

/// Where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    doing: Doing,
    model: String,
    /// Bytes that are moved or read.
    pub(crate) whole: Part,
    rate: u64,
    left: Option<Duration>,
    /// How far files are read.
    read: BTreeMap<String, u64>,
    since: Option<Instant>,
}

impl Tally {
    /// Nothing yet. `bytes` are those that will be read, where that is known.
    pub(crate) fn new(doing: Doing, model: &str, bytes: u64) -> Self {
        let whole = Part { bytes: 0, total: bytes };
        Self { doing, model: model.to_owned(), whole, rate: 0, left: None, read: BTreeMap::new(), since: None }
    }

    /// Takes an event; says whether the numbers changed.
    pub(crate) fn take(&mut self, event: &Event, now: Instant) -> bool {
        match event {
            Event::Resolved { bytes, cached_bytes, .. } => {
                self.whole = Part { bytes: *cached_bytes, total: *bytes };
                (self.rate, self.left) = (0, None);
                self.read.clear();
            }
            Event::Progress { fetched_total, model_total, rate_bytes_per_s, left_ms, .. } => {
                self.whole = Part { bytes: *fetched_total, total: *model_total };
                self.rate = *rate_bytes_per_s;
                self.left = left_ms.map(Duration::from_millis);
                self.read.clear();
            }
            Event::Hashing { file, bytes, .. } => self.read(file, *bytes, now),
            Event::FileStarted { .. }
            | Event::ChunkBad { .. }
            | Event::Retry { .. }
            | Event::FileDone { .. }
            | Event::Published { .. }
            | Event::Failed { .. }
            | Event::Missed { .. } => return false,
        }
        true
    }

    fn read(&mut self, file: &str, bytes: u64, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.read.insert(file.to_owned(), bytes);
        self.whole.bytes = self.read.values().sum();
        self.whole.total = self.whole.total.max(self.whole.bytes);
        let elapsed = u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX);
        self.rate = self.whole.bytes.saturating_mul(1_000).checked_div(elapsed).unwrap_or(0);
        let left = (self.whole.total - self.whole.bytes).saturating_mul(1_000).checked_div(self.rate);
        self.left = left.map(Duration::from_millis);
    }

    /// What is done now: a push reads before it sends.
    pub(crate) fn title(&self) -> String {
        let doing = if self.doing == Doing::Pushing && !self.read.is_empty() { "reading" } else { self.doing.as_str() };
        format!("{doing} {}", self.model)
    }

    /// Rate and time left.
    pub(crate) fn speed(&self) -> String {
        match (self.rate, self.left) {
            (0, _) => String::new(),
            (rate, None) => format!("{}/s", units::bytes(rate)),
            (rate, Some(left)) => format!("{}/s, {} left", units::bytes(rate), units::time(left)),
        }
    }

    /// Bytes in a second and the time that is left, as far as they are known.
    pub(crate) fn pace(&self) -> (Option<u64>, Option<Duration>) {
        ((self.rate > 0).then_some(self.rate), self.left)
    }

    /// All of it in one line.
    pub(crate) fn line(&self) -> String {
        let Part { bytes, total } = self.whole;
        let speed = self.speed();
        let speed = if speed.is_empty() { speed } else { format!(", {speed}") };
        format!("{}: {} of {}{speed}", self.title(), units::percent(bytes, total), units::bytes(total))
    }
}

/// What is worth a line of its own.
pub(crate) fn notice(event: &Event) -> Option<String> {
    match event {
        Event::ChunkBad { file, chunk, place: Place::Store } => {
            Some(format!("wrong bytes from the store: {file}, chunk {chunk}"))
        }
        Event::ChunkBad { file, chunk, place: Place::Disk } => {
            Some(format!("wrong bytes on the disk: {file}, chunk {chunk}"))
        }
        Event::Retry { file, fault, attempt, after_ms } => {
            let file = file.as_deref().unwrap_or("the manifest");
            Some(format!("{fault}: {file} again in {:.1} s (try {attempt})", *after_ms as f64 / 1_000.0))
        }
        Event::Resolved { .. }
        | Event::Hashing { .. }
        | Event::FileStarted { .. }
        | Event::Progress { .. }
        | Event::FileDone { .. }
        | Event::Published { .. }
        | Event::Failed { .. }
        | Event::Missed { .. } => None,
    }
}
