//! The health of a serving replica, for as long as it lives.
//!
//! One rule: **no [`NO_EVIDENCE_MAX`] without evidence of a token**. Evidence is a counter of the engine that grew while
//! it was looked at, or a token that we asked for ourselves. So an engine whose requests run and go nowhere is noticed
//! by its counters, one that is idle is asked now and then, and no health page is believed in either direction.
//!
//! ```text
//! Fine ── no evidence for so long; scrapes missed; requests found it broken ──▶ a token is asked for
//!   ▲                                                                             │ came, or a counter moved meanwhile
//!   └─────────────────────────────────────────────────────────────────────────────┤
//!                                                                                 ▼ neither
//!                          Failing (out of the pick) ── none for DEAD_AFTER ──▶ Hung or Silent: it is started anew
//! ```
//!
//! A long queue is no fault: a probe that waits behind others while counters move says nothing. That a process has
//! ended is noticed by whoever started it, and not here.

use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::backend::Backend;
use tidegate_engine::probe::Probe;
use tidegate_engine::scrape::{self, ScrapeError, Signals, scrape};
use tidegate_routing::ReplicaState;
use tokio::time::{Instant, sleep};

use super::fault::GateFault;

/// Longest time without evidence of a token; then one is asked for.
pub const NO_EVIDENCE_MAX: Duration = Duration::from_secs(30);
/// Deadline of a token that is asked for.
pub const TOKEN_WITHIN: Duration = Duration::from_secs(20);
/// Scrapes in a row that may fail before a token is asked for.
pub const SCRAPES_MISSED_MAX: u32 = 2;
/// Time between tokens that are asked for, while none comes.
pub const AGAIN: Duration = Duration::from_secs(2);
/// How long no token comes before the engine is given up.
pub const DEAD_AFTER: Duration = Duration::from_secs(60);

/// What one look at the engine showed.
#[derive(Clone, Debug, PartialEq)]
pub enum Look {
    /// Its signals.
    Signals(Signals),
    /// It answers, and has no signals for us.
    NoPage,
    /// It did not answer.
    Missed(String),
}

/// Why a token is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing runs, and nothing has come out of it for a while.
    Idle,
    /// Requests run, and nothing comes out.
    Stalled {
        /// How many run.
        running: u64,
    },
    /// It does not answer.
    Silent(String),
    /// Requests found it broken.
    Broken,
}

impl Doubt {
    /// Whether it takes no requests until a token has come.
    #[must_use]
    pub const fn is_grave(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::Broken)
    }

    fn fault(&self, silent_for: Duration) -> GateFault {
        let seconds = silent_for.as_secs();
        match self {
            Self::Idle => GateFault::Hung(format!("no token for {seconds} s, though nothing runs")),
            Self::Stalled { running } => {
                GateFault::Hung(format!("no token for {seconds} s while {running} requests run"))
            }
            Self::Silent(why) => GateFault::Silent(format!("no answer for {seconds} s: {why}")),
            Self::Broken => GateFault::Hung(format!("requests found it broken, and no token came for {seconds} s")),
        }
    }
}

/// What is known of a replica's health. Pure: the time is an argument.
#[derive(Clone, Debug)]
pub struct Vitals {
    /// When a token was last seen to come out.
    evidence_at: Instant,
    /// The last count of its work.
    progress: Option<f64>,
    running: u64,
    missed: u32,
}

impl Vitals {
    /// Of a replica that has just made a token.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { evidence_at: now, progress: None, running: 0, missed: 0 }
    }

    /// Since when nothing has come out of it.
    #[must_use]
    pub const fn evidence_at(&self) -> Instant {
        self.evidence_at
    }

    /// A token has come.
    pub const fn token(&mut self, now: Instant) {
        self.evidence_at = now;
        self.missed = 0;
    }

    /// Takes a look into account. `booked` are requests that we have there; `is_broken`: they find it broken.
    pub fn look(&mut self, look: &Look, booked: u32, is_broken: bool, now: Instant) -> Option<Doubt> {
        match look {
            Look::Missed(why) => {
                self.missed += 1;
                if self.missed >= SCRAPES_MISSED_MAX {
                    return Some(Doubt::Silent(why.clone()));
                }
            }
            Look::NoPage => {
                self.missed = 0;
                self.running = u64::from(booked);
                // What runs there cannot be seen: a probe behind it would say nothing. Its requests have deadlines.
                if booked > 0 {
                    self.evidence_at = now;
                }
            }
            Look::Signals(signals) => self.signals(signals, booked, now),
        }
        if is_broken {
            return Some(Doubt::Broken);
        }
        let is_old = now.saturating_duration_since(self.evidence_at) >= NO_EVIDENCE_MAX;
        let doubt = if self.running > 0 { Doubt::Stalled { running: self.running } } else { Doubt::Idle };
        is_old.then_some(doubt)
    }

    fn signals(&mut self, signals: &Signals, booked: u32, now: Instant) {
        self.missed = 0;
        self.running = signals.running.map_or_else(|| u64::from(booked), |running| running as u64);
        match (signals.progress, self.progress) {
            // a count that fell is another engine's, and proves as much
            (Some(new), Some(old)) if new != old => self.evidence_at = now,
            (None, _) if self.running > 0 => self.evidence_at = now,
            _ => {}
        }
        self.progress = signals.progress.or(self.progress);
    }
}

/// One look; what it says is noted at the backend.
pub async fn look(backend: &Backend, probe: &Probe) -> Look {
    match scrape(backend.watch_pool(), probe.dialect).await {
        Ok(sample) => {
            backend.set_sample(Some(sample));
            Look::Signals(sample.signals)
        }
        // It answers; it just has no such page, or not for us.
        Err(ScrapeError::Status(401 | 403 | 404 | 405 | 501)) => Look::NoPage,
        Err(error) => Look::Missed(error.to_string()),
    }
}

/// Watches a serving replica, and returns when it has to be started anew. `tell` hears what is in the way.
///
/// A replica that is in doubt for a grave reason, or gave no token when it was asked, takes no requests until one has
/// come.
pub async fn watch(backend: &Backend, probe: &Probe, tell: &(dyn Fn(Option<String>) + Send + Sync)) -> GateFault {
    let mut vitals = Vitals::new(Instant::now());
    loop {
        if let Some(doubt) = doubt(&mut vitals, backend, probe).await
            && let Err(fault) = examine(&mut vitals, &doubt, backend, probe, tell).await
        {
            return fault;
        }
        sleep(scrape::EVERY).await;
    }
}

async fn doubt(vitals: &mut Vitals, backend: &Backend, probe: &Probe) -> Option<Doubt> {
    let look = look(backend, probe).await;
    let replica = backend.replica();
    vitals.look(&look, replica.booked(), replica.open_until().is_some(), Instant::now())
}

/// Asks for a token until one came, or none has for too long.
async fn examine(
    vitals: &mut Vitals,
    doubt: &Doubt,
    backend: &Backend,
    probe: &Probe,
    tell: &(dyn Fn(Option<String>) + Send + Sync),
) -> Result<(), GateFault> {
    let replica = Arc::clone(backend.replica());
    let begun = Instant::now();
    let mut is_out = false;
    let mut take_out = |why: &GateFault| {
        if !std::mem::replace(&mut is_out, true) {
            replica.set_state(ReplicaState::Failing);
            backend.set_sample(None);
        }
        tell(Some(why.to_string()));
    };
    if doubt.is_grave() {
        take_out(&doubt.fault(begun.saturating_duration_since(vitals.evidence_at())));
    }
    loop {
        let asked = probe.run_within(backend.watch_pool(), TOKEN_WITHIN).await;
        let now = Instant::now();
        let counted_at = vitals.evidence_at();
        if asked.is_ok() {
            vitals.token(now);
        } else if let Look::Signals(signals) = look(backend, probe).await {
            // It is busy with others: the probe had to wait behind them.
            vitals.look(&Look::Signals(signals), replica.booked(), false, now);
        }
        if vitals.evidence_at() > counted_at {
            tell(None);
            replica.set_state(ReplicaState::Serving);
            return Ok(());
        }
        let fault = doubt.fault(now.saturating_duration_since(vitals.evidence_at()));
        take_out(&fault);
        if now.saturating_duration_since(begun) >= DEAD_AFTER {
            return Err(fault);
        }
        sleep(AGAIN).await;
    }
}
