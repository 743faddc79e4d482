//! Where the time of a cold start went, what the next one is expected to take, and whether this one will be late. Pure.
//!
//! ```text
//! marks (states of the replica, its boot log, the gate) ─▶ ColdStart: eight phases that sum to the wall time
//! the last ColdStarts of a deployment in a revision ─ Measured ─▶ Phases for the planner
//! marks so far + Phases + the hour ─ forecast ─▶ "will miss 22:00", with the phase that is late
//! ```
//!
//! "Ready after 12 min" is never all that is said: what no mark explains is a phase of its own, [`Phase::Unexplained`],
//! and it counts in what the next start is expected to take.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_core::DeploymentName;
use tidegate_planner::plan::Phases;
use tidegate_planner::span;

use crate::launcher::BootMark;
use crate::replica::Mark;

/// Cold starts of one deployment in one revision that are remembered.
pub const MEASURED_MAX: usize = 16;
/// Of those, the share that was not slower than what is expected.
pub const EXPECTED_SHARE: f64 = 0.9;
/// Deployments and revisions of which cold starts are remembered; the one measured longest ago goes.
pub const KINDS_MAX: usize = 512;

/// What a plan counts on beyond what is expected of a start.
pub const SPARE: Duration = Duration::from_secs(10);

/// Seconds of each phase of the last cold start: labels `deployment`, `revision`, `phase`.
pub const PHASE_SECONDS: &str = "tidegate_cold_start_phase_seconds";
/// Seconds of the last cold start: labels `deployment`, `revision`; the sum of its phases.
pub const SECONDS: &str = "tidegate_cold_start_seconds";
/// Whether the last cold start found its compiled code: 1 or 0; no series where nobody knows.
pub const COMPILED_HIT: &str = "tidegate_cold_start_compiled_hit";
/// Seconds that a start is expected to be late, while it is: labels `deployment`, `phase`.
pub const LATE_SECONDS: &str = "tidegate_start_expected_late_seconds";

/// A part of a cold start, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The image is pulled.
    ImagePull,
    /// What the cache lacks is fetched.
    Fetch,
    /// It is verified.
    Verify,
    /// Weights are loaded.
    Load,
    /// Code is compiled, graphs are captured, caches are laid out.
    Compile,
    /// Golden prompts.
    WarmUp,
    /// It has to stay healthy.
    Stabilise,
    /// What no mark explains.
    Unexplained,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::ImagePull,
        Self::Fetch,
        Self::Verify,
        Self::Load,
        Self::Compile,
        Self::WarmUp,
        Self::Stabilise,
        Self::Unexplained,
    ];

    /// Its name in records, metrics and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ImagePull => "image_pull",
            Self::Fetch => "fetch",
            Self::Verify => "verify",
            Self::Load => "load",
            Self::Compile => "compile",
            Self::WarmUp => "warm_up",
            Self::Stabilise => "stabilise",
            Self::Unexplained => "unexplained",
        }
    }

    /// What begins with a mark of this name; `None`: it is no mark of a phase.
    #[must_use]
    pub fn of(mark: &str) -> Option<Self> {
        Some(match mark {
            "image_pull" => Self::ImagePull,
            "fetching" | "fetch" => Self::Fetch,
            "verifying" | "verify" => Self::Verify,
            "load" => Self::Load,
            "compile" => Self::Compile,
            "warming" | "warm_up" => Self::WarmUp,
            "stabilise" => Self::Stabilise,
            // a program that starts, a Pod that waits for a node, a server that opens its port
            "verified" | "loading" | "schedule" | "start" | "serve" => Self::Unexplained,
            _ => return None,
        })
    }

    const fn at(self) -> usize {
        self as usize
    }
}

/// Whether an engine found what it compiled before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompiledCode {
    /// Nobody knows, or it compiles nothing.
    #[default]
    Unknown,
    /// It was used.
    Hit,
    /// It was compiled anew.
    Miss,
}

/// The beginning of a phase; it lasts until the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Which.
    pub phase: Phase,
    /// When.
    pub at: Timestamp,
}

/// Where the time of one start went. Its phases sum to its wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdStart {
    /// When it began.
    pub begun: Timestamp,
    /// When it was proven.
    pub ready: Timestamp,
    /// By [`Phase::ALL`].
    times: [Duration; Phase::ALL.len()],
    /// Whether compiled code was found.
    pub compiled: CompiledCode,
}

impl ColdStart {
    /// Explains a start by the beginnings of its phases, in any order; those outside of it are moved to its bounds, and
    /// of several at one instant the furthest counts. What comes before the first is unexplained.
    #[must_use]
    pub fn explain(begun: Timestamp, ready: Timestamp, beginnings: &[Beginning], compiled: CompiledCode) -> Self {
        let ready = ready.max(begun);
        let mut sorted: Vec<Beginning> = beginnings
            .iter()
            .map(|beginning| Beginning { at: beginning.at.clamp(begun, ready), ..*beginning })
            .collect();
        sorted.sort_by_key(|beginning| (beginning.at, beginning.phase));
        let mut times = [Duration::ZERO; Phase::ALL.len()];
        let (mut phase, mut from) = (Phase::Unexplained, begun);
        for next in sorted {
            times[phase.at()] += between(from, next.at);
            (phase, from) = (next.phase, next.at);
        }
        times[phase.at()] += between(from, ready);
        Self { begun, ready, times, compiled }
    }

    /// Explains a replica's start by what it and its engine's log told; `None`: it is not ready, or was taken over from
    /// another controller in the midst of it.
    #[must_use]
    pub fn of(marks: &[Mark], boot: &[BootMark]) -> Option<Self> {
        // one that slept or was kept serves again: that is no cold start
        let ready = marks.iter().find(|mark| mark.what == "serving")?.at;
        let begun = marks.first().filter(|mark| matches!(mark.what, "fetching" | "loading"))?.at;
        let mut beginnings = beginnings(marks, boot);
        beginnings.retain(|beginning| beginning.at <= ready);
        Some(Self::explain(begun, ready, &beginnings, compiled(boot)))
    }

    /// Its wall time.
    #[must_use]
    pub fn wall(&self) -> Duration {
        between(self.begun, self.ready)
    }

    /// Time of one phase.
    #[must_use]
    pub const fn time(&self, phase: Phase) -> Duration {
        self.times[phase.at()]
    }

    /// All phases with their times, in order: values of [`PHASE_SECONDS`].
    pub fn phases(&self) -> impl Iterator<Item = (Phase, Duration)> {
        Phase::ALL.into_iter().map(|phase| (phase, self.time(phase)))
    }

    /// What went otherwise than it should: compiled code that was laid out and not used.
    #[must_use]
    pub fn findings(&self, was_laid_out: bool) -> Option<String> {
        let is_missed = was_laid_out && self.compiled == CompiledCode::Miss;
        is_missed.then(|| {
            let time = span(self.time(Phase::Compile));
            format!("compiled code was laid out and not used: compiling took {time}; is it of another engine version?")
        })
    }

    /// The longest phase and its share of all, for people: `load 4m 10s of 7m`.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut parts: Vec<(Phase, Duration)> = self.phases().filter(|(_, time)| time.as_secs() > 0).collect();
        parts.sort_by_key(|(phase, time)| (std::cmp::Reverse(*time), *phase));
        let said: Vec<String> =
            parts.iter().map(|(phase, time)| format!("{} {}", phase.as_str(), span(*time))).collect();
        format!("ready after {}: {}", span(self.wall()), said.join(", "))
    }
}

/// Beginnings of the phases of a start that is under way, or over, by what replica and log told.
#[must_use]
pub fn beginnings(marks: &[Mark], boot: &[BootMark]) -> Vec<Beginning> {
    let own = marks.iter().filter_map(|mark| Some(Beginning { phase: Phase::of(mark.what)?, at: mark.at }));
    let warming = marks.iter().find(|mark| mark.what == "warming").map_or(Timestamp::MAX, |mark| mark.at);
    // a log says when its server opens; by then the gate may have begun
    let log = boot.iter().filter(|mark| mark.at < warming);
    own.chain(log.filter_map(|mark| Some(Beginning { phase: Phase::of(&mark.phase)?, at: mark.at }))).collect()
}

/// What an engine's log says of its compiled code.
fn compiled(boot: &[BootMark]) -> CompiledCode {
    let has = |name: &str| boot.iter().any(|mark| &*mark.phase == name);
    match (has("compiled_found"), has("compiled_anew")) {
        // of several parts one was compiled anew: that is what took the time
        (_, true) => CompiledCode::Miss,
        (true, false) => CompiledCode::Hit,
        (false, false) => CompiledCode::Unknown,
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or(Duration::ZERO)
}

/// The last cold starts of each deployment and revision, and what the next is expected to take.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    kinds: BTreeMap<DeploymentName, BTreeMap<u64, Kind>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kind {
    starts: VecDeque<ColdStart>,
    /// What was expected by an earlier controller, of which no single starts are known.
    earlier: Option<Phases>,
    stops: VecDeque<(Duration, Duration)>,
}

impl Measured {
    /// What an earlier controller expected; its own starts replace it one by one.
    pub fn recall(&mut self, deployment: &DeploymentName, revision: u64, phases: Phases) {
        self.kind(deployment, revision).earlier = Some(phases);
    }

    /// Takes a start into account.
    pub fn started(&mut self, deployment: &DeploymentName, revision: u64, start: ColdStart) {
        push(&mut self.kind(deployment, revision).starts, start);
    }

    /// Takes a stop into account: from the signal to the last process, and the proof.
    pub fn stopped(&mut self, deployment: &DeploymentName, revision: u64, stop: Duration, proof: Duration) {
        push(&mut self.kind(deployment, revision).stops, (stop, proof));
    }

    /// The last start.
    #[must_use]
    pub fn last(&self, deployment: &DeploymentName, revision: u64) -> Option<&ColdStart> {
        self.kinds.get(deployment)?.get(&revision)?.starts.back()
    }

    /// What the next start and stop are expected to take: of each phase the time that nine of ten did not exceed.
    /// `None`: nothing was measured.
    #[must_use]
    pub fn expected(&self, deployment: &DeploymentName, revision: u64) -> Option<Phases> {
        let kind = self.kinds.get(deployment)?.get(&revision)?;
        let earlier = kind.earlier.unwrap_or_default();
        if kind.starts.is_empty() && kind.earlier.is_none() {
            return None;
        }
        let of = |phase: Phase, earlier: Duration| {
            let known = kind.earlier.is_some().then_some(earlier);
            nearest(kind.starts.iter().map(|start| start.time(phase)).chain(known).collect())
        };
        // what is in no phase takes its time too, and it is while the engine starts
        let load = kind.starts.iter().map(|start| start.time(Phase::Load) + start.time(Phase::Unexplained));
        let stop = |read: fn(&(Duration, Duration)) -> Duration, earlier: Duration| {
            let known = kind.earlier.is_some().then_some(earlier);
            nearest(kind.stops.iter().map(read).chain(known).collect())
        };
        Some(Phases {
            image_pull: of(Phase::ImagePull, earlier.image_pull),
            fetch: of(Phase::Fetch, earlier.fetch),
            verify: of(Phase::Verify, earlier.verify),
            load: nearest(load.chain(kind.earlier.is_some().then_some(earlier.load)).collect()),
            compile: of(Phase::Compile, earlier.compile),
            warm_up: of(Phase::WarmUp, earlier.warm_up),
            stabilise: of(Phase::Stabilise, earlier.stabilise),
            stop: stop(|(stop, _)| *stop, earlier.stop),
            proof: stop(|(_, proof)| *proof, earlier.proof),
        })
    }

    /// What a plan counts on: a fourth more than what is expected, and [`SPARE`]; no plan is late by a breath.
    #[must_use]
    pub fn planned(&self, deployment: &DeploymentName, revision: u64) -> Option<Phases> {
        let expected = self.expected(deployment, revision)?;
        let more = |time: Duration| time + time / 4;
        Some(Phases {
            image_pull: more(expected.image_pull),
            fetch: more(expected.fetch),
            verify: more(expected.verify),
            load: more(expected.load) + SPARE,
            compile: more(expected.compile),
            warm_up: more(expected.warm_up),
            stabilise: more(expected.stabilise),
            stop: more(expected.stop),
            proof: more(expected.proof),
        })
    }

    fn kind(&mut self, deployment: &DeploymentName, revision: u64) -> &mut Kind {
        let count: usize = self.kinds.values().map(BTreeMap::len).sum();
        let is_known = self.kinds.get(deployment).is_some_and(|kinds| kinds.contains_key(&revision));
        if !is_known && count >= KINDS_MAX {
            self.drop_oldest();
        }
        self.kinds.entry(deployment.clone()).or_default().entry(revision).or_default()
    }

    fn drop_oldest(&mut self) {
        let all = self.kinds.iter().flat_map(|(name, kinds)| kinds.iter().map(move |kind| (name, kind)));
        let oldest = all.min_by_key(|(_, (_, kind))| kind.starts.back().map(|start| start.ready));
        let Some((name, revision)) = oldest.map(|(name, (revision, _))| (name.clone(), *revision)) else { return };
        if let Some(kinds) = self.kinds.get_mut(&name) {
            kinds.remove(&revision);
            if kinds.is_empty() {
                self.kinds.remove(&name);
            }
        }
    }
}

fn push<T>(into: &mut VecDeque<T>, value: T) {
    if into.len() == MEASURED_MAX {
        into.pop_front();
    }
    into.push_back(value);
}

/// The smallest time that [`EXPECTED_SHARE`] of all do not exceed (nearest rank); zero of none.
fn nearest(mut times: Vec<Duration>) -> Duration {
    times.sort();
    let rank = (times.len() as f64 * EXPECTED_SHARE).ceil() as usize;
    rank.checked_sub(1).and_then(|rank| times.get(rank)).copied().unwrap_or(Duration::ZERO)
}

/// A start that will not be ready in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Late {
    /// When it is expected to be ready.
    pub ready_at: Timestamp,
    /// By how much that is too late: a value of [`LATE_SECONDS`].
    pub by: Duration,
    /// The phase whose fault that is.
    pub phase: Phase,
    /// How long that phase has taken so far.
    pub taken: Duration,
    /// How long it was expected to take.
    pub expected: Duration,
}

impl Late {
    /// For people: `will miss 22:00 by 4m: load has taken 9m, 5m were expected`. `hour` names the instant.
    #[must_use]
    pub fn text(&self, hour: &str) -> String {
        let (phase, taken, expected) = (self.phase.as_str(), span(self.taken), span(self.expected));
        let by = span(Duration::from_secs(self.by.as_secs().max(1)));
        if self.taken > self.expected {
            format!("will miss {hour} by {by}: {phase} has taken {taken}, {expected} were expected")
        } else {
            format!("will miss {hour} by {by}: {phase} began too late, it is expected to take {expected}")
        }
    }
}

/// Whether a start that is under way will be ready when it is due. `left` is what the phase under way is known to take
/// still, as a fetch knows.
#[must_use]
pub fn forecast(
    beginnings: &[Beginning],
    expected: &Phases,
    left: Option<Duration>,
    now: Timestamp,
    due: Timestamp,
) -> Option<Late> {
    let mut sorted: Vec<Beginning> = beginnings.iter().copied().filter(|beginning| beginning.at <= now).collect();
    sorted.sort_by_key(|beginning| (beginning.at, beginning.phase));
    let current = *sorted.last()?;
    let mut taken: BTreeMap<Phase, Duration> = BTreeMap::new();
    for (index, beginning) in sorted.iter().enumerate() {
        let until = sorted.get(index + 1).map_or(now, |next| next.at);
        *taken.entry(counted_as(beginning.phase)).or_default() += between(beginning.at, until);
    }
    let of = |phase: Phase| taken.get(&phase).copied().unwrap_or(Duration::ZERO);
    // a program that starts is on its way to load; what is unexplained was expected there
    let phase = counted_as(current.phase);
    let rest = left.unwrap_or_else(|| expectation(expected, phase).saturating_sub(of(phase)));
    let later = Phase::ALL.into_iter().filter(|later| *later > phase && *later != Phase::Unexplained);
    let later: Duration = later.map(|phase| expectation(expected, phase)).sum();
    let ready_at = now.checked_add(rest + later).unwrap_or(Timestamp::MAX);
    if ready_at <= due {
        return None;
    }
    let over = |phase: &Phase| of(*phase).saturating_sub(expectation(expected, *phase));
    let slowest = taken.keys().copied().filter(|phase| !over(phase).is_zero()).max_by_key(over);
    // a fetch that knows how long it still takes is late before it has taken too long
    let blamed = slowest.unwrap_or(phase);
    Some(Late {
        ready_at,
        by: between(due, ready_at),
        phase: blamed,
        taken: of(blamed),
        expected: expectation(expected, blamed),
    })
}

/// What is in no phase happens while the engine starts, and is expected there.
const fn counted_as(phase: Phase) -> Phase {
    match phase {
        Phase::Unexplained => Phase::Load,
        phase => phase,
    }
}

const fn expectation(expected: &Phases, phase: Phase) -> Duration {
    match phase {
        Phase::ImagePull => expected.image_pull,
        Phase::Fetch => expected.fetch,
        Phase::Verify => expected.verify,
        Phase::Load => expected.load,
        Phase::Compile => expected.compile,
        Phase::WarmUp => expected.warm_up,
        Phase::Stabilise => expected.stabilise,
        Phase::Unexplained => Duration::ZERO,
    }
}
