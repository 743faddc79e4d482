//! The life of one replica.
//!
//! ```text
//! Absent ─▶ Fetching ─▶ Verified ─▶ Loading ─▶ Warming ─▶ Serving ─▶ Draining ─┬─▶ (Drained) ─▶ Stopping ─▶ Proving ─▶ Stopped
//!    ▲         │                       │          ▲ │        │                 └─▶ (Drained) ─▶ Asleep ─▶ (wake) Warming
//!    │         │                       └──────────┼─┴────────┴─ fault ─▶ Stopping ─▶ Proving ─▶ Failed
//!    └─────────┴─────────── retry, at most 3 ◀────┘                                     └─▶ Quarantined
//! ```
//!
//! Its GPUs are booked from Loading on and free again only after a memory proof (or a person's word): see
//! [`State::has_gpus`]. Every state that waits has a clock, and `step` answers a [`Event::Tick`] when it runs out.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::generation::{Generation, Stamped};

/// Waits before the second, third and further attempts of a start.
pub const RETRY_AFTER: [Duration; 3] = [Duration::from_mins(1), Duration::from_mins(5), Duration::from_mins(15)];
/// Wait before an engine that was proven and broke is started again: the first attempt of those that follow.
pub const RESTART_AFTER: Duration = Duration::from_secs(1);
/// One that served for so long after its proof is forgiven what broke it before.
pub const FORGIVEN_AFTER: Duration = Duration::from_mins(10);
/// Attempts of a start in all; then none until somebody changes something.
pub const ATTEMPTS_MAX: u32 = 3;
/// From the polite signal to the other one.
pub const TERM_GRACE: Duration = Duration::from_secs(30);
/// How long memory may take to be proven free.
pub const PROOF_WITHIN: Duration = Duration::from_secs(60);

/// Clocks of one deployment's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Clocks {
    /// Longest load, from the start of the engine.
    pub load: Duration,
    /// Longest warm-up and gate.
    pub gate: Duration,
    /// Longest drain.
    pub drain: Duration,
}

/// Where a replica is in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// Nothing is there.
    #[default]
    Absent,
    /// Its model is fetched and verified on all its nodes.
    Fetching {
        /// From 1.
        attempt: u32,
    },
    /// The model is there; the engine is not started.
    Verified {
        /// From 1.
        attempt: u32,
    },
    /// The engine starts and loads.
    Loading {
        /// From 1.
        attempt: u32,
        /// When that takes too long.
        deadline: Timestamp,
    },
    /// It answers, and is being proven.
    Warming {
        /// From 1.
        attempt: u32,
        /// When that takes too long.
        deadline: Timestamp,
    },
    /// It is proven.
    Serving,
    /// It gets nothing new.
    Draining {
        /// When its last streams are ended.
        deadline: Timestamp,
        /// What comes then.
        then: Then,
    },
    /// Nothing is in flight on it; it stays warm until somebody says what comes.
    Drained,
    /// It goes to sleep.
    FallingAsleep {
        /// 1 or 2.
        level: u8,
        /// When that takes too long.
        deadline: Timestamp,
    },
    /// It sleeps; a residue of its memory is left.
    Asleep {
        /// 1 or 2.
        level: u8,
    },
    /// Its processes end.
    Stopping {
        /// When they are killed.
        kill_at: Timestamp,
        /// Why.
        end: End,
    },
    /// Its memory is being proven free.
    Proving {
        /// Until when it has to be.
        deadline: Timestamp,
        /// Why it was stopped.
        end: End,
    },
    /// It is gone, and its GPUs are free.
    Stopped,
    /// Its memory was not proven free: its GPUs are nobody's.
    Quarantined {
        /// Why it was stopped.
        end: End,
    },
    /// A start failed, or it broke; its GPUs are free.
    Failed {
        /// When.
        at: Timestamp,
        /// Why.
        fault: Arc<str>,
        /// Which attempt.
        attempt: u32,
        /// When the next one begins; `None`: not by itself.
        retry_at: Option<Timestamp>,
    },
}

/// What follows a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Then {
    /// It stays warm: its successor is still being watched.
    Wait,
    /// It is stopped.
    Stop,
    /// It sleeps.
    Sleep {
        /// 1 or 2.
        level: u8,
    },
}

/// Why a replica ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum End {
    /// It is not wanted any more.
    Unwanted,
    /// It broke.
    Fault {
        /// How.
        fault: Arc<str>,
        /// In which attempt.
        attempt: u32,
    },
}

/// What happens to a replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Event {
    /// Fetch its model, no more yet.
    Prefetch,
    /// Start it (and fetch first when that is to be done).
    Want,
    /// The model is verified on all its nodes.
    Verified,
    /// The engine answers.
    Loaded,
    /// The gate is passed.
    Proven,
    /// Something went wrong.
    Fault(Arc<str>),
    /// Take it out of service.
    Drain(Then),
    /// Keep it after all.
    Keep,
    /// No request is in flight.
    Drained,
    /// It sleeps.
    Slept,
    /// Wake it.
    Wake,
    /// No process of it is left.
    Ended,
    /// Its memory is free on every GPU.
    MemoryFree,
    /// A person says that its GPUs are free.
    Release,
    /// Documents changed, a shift started or somebody said `resume`: failures are forgotten.
    Forget,
    /// It is not wanted.
    Unwant,
    /// The clock.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// Fetch and verify the model on all nodes.
    Fetch,
    /// Start the engine on its GPUs.
    Launch,
    /// Prove that it is healthy.
    RunGate,
    /// Send it nothing new.
    Drain,
    /// Send it requests again.
    Undrain,
    /// End its streams with a proper event.
    EndStreams,
    /// Put it to sleep.
    Sleep {
        /// 1 or 2.
        level: u8,
    },
    /// Wake it; the gate comes after it.
    Wake {
        /// 1 or 2.
        level: u8,
    },
    /// Ask its processes to end.
    Terminate,
    /// End them all.
    Kill,
    /// Prove that the memory is free.
    ProveMemory,
    /// Its GPUs are free.
    FreeGpus,
    /// Its GPUs are nobody's until proven free.
    Quarantine,
    /// Tell somebody.
    Alarm(Arc<str>),
}

/// One replica with its plan's number and clocks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The plan it belongs to.
    pub generation: Generation,
    /// Its clocks.
    pub clocks: Clocks,
    /// Where it is.
    pub state: State,
    /// Whether it is to be started as soon as its model is there.
    pub is_wanted: bool,
    /// When it was proven last, as far as that was seen.
    pub proven_at: Option<Timestamp>,
    /// How often in a row it broke soon after a proof.
    pub breaks: u32,
}

impl State {
    /// Whether its GPUs are booked: no other may be given them.
    #[must_use]
    pub const fn has_gpus(&self) -> bool {
        match self {
            Self::Absent | Self::Fetching { .. } | Self::Verified { .. } | Self::Stopped | Self::Failed { .. } => false,
            Self::Loading { .. }
            | Self::Warming { .. }
            | Self::Serving
            | Self::Draining { .. }
            | Self::Drained
            | Self::FallingAsleep { .. }
            | Self::Asleep { .. }
            | Self::Stopping { .. }
            | Self::Proving { .. }
            | Self::Quarantined { .. } => true,
        }
    }
}

fn after(now: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| now.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

impl Instance {
    /// A replica of which nothing is there yet.
    #[must_use]
    pub const fn new(generation: Generation, clocks: Clocks) -> Self {
        Self { generation, clocks, state: State::Absent, is_wanted: false, proven_at: None, breaks: 0 }
    }

    /// What an event makes of it, and what is to be done. An event of another generation changes nothing.
    #[must_use]
    pub fn step(mut self, event: Stamped<Event>, now: Timestamp) -> (Self, Vec<Stamped<Effect>>) {
        if event.generation != self.generation {
            return (self, Vec::new());
        }
        let mut effects = Vec::new();
        self.apply(event.what, now, &mut effects);
        let generation = self.generation;
        (self, effects.into_iter().map(|what| Stamped { generation, what }).collect())
    }

    fn apply(&mut self, event: Event, now: Timestamp, out: &mut Vec<Effect>) {
        match event {
            Event::Want | Event::Prefetch => self.want(event == Event::Want, now, out),
            Event::Verified => self.verified(now, out),
            Event::Loaded => self.loaded(now, out),
            Event::Proven => {
                if matches!(self.state, State::Warming { .. }) {
                    self.state = State::Serving;
                    self.proven_at = Some(now);
                }
            }
            Event::Fault(fault) => self.fault(fault, now, out),
            Event::Drain(then) => self.drain(then, now, out),
            Event::Keep => {
                self.is_wanted = true;
                if matches!(self.state, State::Draining { .. } | State::Drained) {
                    self.state = State::Serving;
                    out.push(Effect::Undrain);
                }
            }
            Event::Drained => self.drained(now, out),
            Event::Slept => {
                if let State::FallingAsleep { level, deadline: _ } = self.state {
                    self.state = State::Asleep { level };
                }
            }
            Event::Wake => self.wake(now, out),
            Event::Ended => self.ended(now, out),
            Event::MemoryFree | Event::Release => self.memory_free(now, out, event == Event::Release),
            Event::Forget => self.forget(now, out),
            Event::Unwant => self.unwant(now, out),
            Event::Tick => self.tick(now, out),
        }
    }

    fn want(&mut self, is_wanted: bool, now: Timestamp, out: &mut Vec<Effect>) {
        self.is_wanted |= is_wanted;
        match self.state {
            State::Absent | State::Stopped | State::Failed { attempt: 0, retry_at: None, .. } => {
                self.state = State::Fetching { attempt: 1 };
                out.push(Effect::Fetch);
            }
            State::Verified { attempt } if is_wanted => self.launch(attempt, now, out),
            _ => {}
        }
    }

    fn launch(&mut self, attempt: u32, now: Timestamp, out: &mut Vec<Effect>) {
        self.state = State::Loading { attempt, deadline: after(now, self.clocks.load) };
        out.push(Effect::Launch);
    }

    fn verified(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let State::Fetching { attempt } = self.state else { return };
        if self.is_wanted {
            self.launch(attempt, now, out);
        } else {
            self.state = State::Verified { attempt };
        }
    }

    fn loaded(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let State::Loading { attempt, deadline: _ } = self.state else { return };
        self.state = State::Warming { attempt, deadline: after(now, self.clocks.gate) };
        out.push(Effect::RunGate);
    }

    /// From here on it is on its way out: should it break, nothing starts it again by itself, since its GPUs may be another's
    /// by then.
    fn drain(&mut self, then: Then, now: Timestamp, out: &mut Vec<Effect>) {
        self.is_wanted = false;
        match self.state {
            State::Serving => {
                self.state = State::Draining { deadline: after(now, self.clocks.drain), then };
                out.push(Effect::Drain);
            }
            State::Draining { deadline, then: _ } => self.state = State::Draining { deadline, then },
            State::Drained => self.end_drain(then, now, out),
            _ => {}
        }
    }

    fn drained(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if let State::Draining { deadline: _, then } = self.state {
            self.end_drain(then, now, out);
        }
    }

    fn end_drain(&mut self, then: Then, now: Timestamp, out: &mut Vec<Effect>) {
        match then {
            Then::Wait => self.state = State::Drained,
            Then::Stop => self.stop(End::Unwanted, now, out),
            Then::Sleep { level } => {
                self.state = State::FallingAsleep { level, deadline: after(now, PROOF_WITHIN) };
                out.push(Effect::Sleep { level });
            }
        }
    }

    fn wake(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let State::Asleep { level } = self.state else { return };
        self.is_wanted = true;
        self.state = State::Warming { attempt: 1, deadline: after(now, self.clocks.load + self.clocks.gate) };
        // whatever it says after a wake, only the gate's answers count
        out.extend([Effect::Wake { level }, Effect::RunGate]);
    }

    fn stop(&mut self, end: End, now: Timestamp, out: &mut Vec<Effect>) {
        self.state = State::Stopping { kill_at: after(now, TERM_GRACE), end };
        out.push(Effect::Terminate);
    }

    /// A process that broke is ended like any other: what is left of it may hold the memory.
    fn fault(&mut self, fault: Arc<str>, now: Timestamp, out: &mut Vec<Effect>) {
        let attempt = match &self.state {
            State::Fetching { attempt } => {
                let attempt = *attempt;
                return self.fail(fault, attempt, now, out);
            }
            State::Loading { attempt, .. } | State::Warming { attempt, .. } => *attempt,
            State::Serving
            | State::Draining { .. }
            | State::Drained
            | State::FallingAsleep { .. }
            | State::Asleep { .. } => self.broken(now),
            State::Absent
            | State::Verified { .. }
            | State::Stopping { .. }
            | State::Proving { .. }
            | State::Stopped
            | State::Quarantined { .. }
            | State::Failed { .. } => return,
        };
        if matches!(self.state, State::Draining { .. }) {
            out.push(Effect::EndStreams);
        }
        self.stop(End::Fault { fault, attempt }, now, out);
    }

    /// The attempt that a break after a proof counts as: the first is followed by a start at once, those that come soon
    /// after it by the waits of a start that fails, so that no engine is started and proven without end.
    fn broken(&mut self, now: Timestamp) -> u32 {
        // on its way out it is not started again, however often it broke
        if !self.is_wanted {
            return 0;
        }
        let forgiven = self.proven_at.is_none_or(|proven| now >= after(proven, FORGIVEN_AFTER));
        let before = if forgiven { 0 } else { self.breaks };
        self.breaks = before + 1;
        before
    }

    fn fail(&mut self, fault: Arc<str>, attempt: u32, now: Timestamp, out: &mut Vec<Effect>) {
        out.push(Effect::Alarm(Arc::clone(&fault)));
        let waits = [RESTART_AFTER].into_iter().chain(RETRY_AFTER);
        let wait = waits.take(ATTEMPTS_MAX as usize).nth(attempt as usize);
        // on its way out: nobody waits for it
        let is_over = attempt == 0 && !self.is_wanted;
        let retry_at = wait.filter(|_| !is_over).map(|wait| after(now, wait));
        self.state = State::Failed { at: now, fault, attempt, retry_at };
    }

    fn ended(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        match std::mem::take(&mut self.state) {
            State::Stopping { kill_at: _, end } => self.prove(end, now, out),
            // nobody asked it to
            state @ (State::Loading { .. }
            | State::Warming { .. }
            | State::Serving
            | State::Draining { .. }
            | State::Drained
            | State::FallingAsleep { .. }
            | State::Asleep { .. }) => {
                let attempt = match &state {
                    State::Loading { attempt, .. } | State::Warming { attempt, .. } => *attempt,
                    _ => self.broken(now),
                };
                self.prove(End::Fault { fault: Arc::from("exited"), attempt }, now, out);
            }
            state => self.state = state,
        }
    }

    fn prove(&mut self, end: End, now: Timestamp, out: &mut Vec<Effect>) {
        self.state = State::Proving { deadline: after(now, PROOF_WITHIN), end };
        out.push(Effect::ProveMemory);
    }

    /// A person's word counts where the proof failed, and nowhere else.
    fn memory_free(&mut self, now: Timestamp, out: &mut Vec<Effect>, is_word: bool) {
        let end = match &self.state {
            State::Proving { deadline: _, end } if !is_word => end.clone(),
            State::Quarantined { end } => end.clone(),
            _ => return,
        };
        out.push(Effect::FreeGpus);
        match end {
            End::Unwanted => self.state = State::Stopped,
            End::Fault { fault, attempt } => self.fail(fault, attempt, now, out),
        }
    }

    fn forget(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.breaks = 0;
        if matches!(self.state, State::Failed { .. }) {
            self.state = State::Absent;
            if self.is_wanted {
                self.want(true, now, out);
            }
        }
    }

    fn unwant(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        self.is_wanted = false;
        match &self.state {
            State::Serving => self.drain(Then::Stop, now, out),
            State::Loading { .. }
            | State::Warming { .. }
            | State::Drained
            | State::FallingAsleep { .. }
            | State::Asleep { .. } => {
                self.stop(End::Unwanted, now, out);
            }
            State::Draining { deadline, then: _ } => {
                self.state = State::Draining { deadline: *deadline, then: Then::Stop };
            }
            State::Fetching { .. } | State::Verified { .. } | State::Failed { .. } => self.state = State::Absent,
            State::Stopping { kill_at, end: _ } => {
                self.state = State::Stopping { kill_at: *kill_at, end: End::Unwanted };
            }
            State::Proving { deadline, end: _ } => {
                self.state = State::Proving { deadline: *deadline, end: End::Unwanted };
            }
            State::Quarantined { end: _ } => self.state = State::Quarantined { end: End::Unwanted },
            State::Absent | State::Stopped => {}
        }
    }

    fn tick(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        match &self.state {
            State::Loading { deadline, .. } if now >= *deadline => self.fault(Arc::from("load_timeout"), now, out),
            State::Warming { deadline, .. } if now >= *deadline => self.fault(Arc::from("gate_timeout"), now, out),
            State::FallingAsleep { deadline, .. } if now >= *deadline => {
                self.fault(Arc::from("sleep_timeout"), now, out);
            }
            State::Draining { deadline, .. } if now >= *deadline => {
                out.push(Effect::EndStreams);
                self.drained(now, out);
            }
            State::Stopping { kill_at, end } if now >= *kill_at => {
                out.push(Effect::Kill);
                self.state = State::Stopping { kill_at: after(now, TERM_GRACE), end: end.clone() };
            }
            State::Proving { deadline, end } if now >= *deadline => {
                self.state = State::Quarantined { end: end.clone() };
                out.extend([Effect::Quarantine, Effect::Alarm(Arc::from("memory_not_free"))]);
            }
            State::Failed { retry_at: Some(retry_at), attempt, .. } if now >= *retry_at && self.is_wanted => {
                self.state = State::Fetching { attempt: attempt + 1 };
                out.push(Effect::Fetch);
            }
            _ => {}
        }
    }
}
