//! One subject of limits (an alias, a team, a caller, …) with its rules and counts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{AliasName, Caller, Dimension, KeyId, Level, Limits, Monotonic, Refusal, TeamName, Unix};

use super::quota::Quota;
use super::spill::Sums;
use super::window::{Slot, Sum, Window};
use crate::period::Period;

/// Which subject: its level and its name in that level. The same constructors serve requests and the rebuild from the
/// ledger, so that both mean the same subject.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SubjectKey {
    level: Level,
    /// Parts are joined by NUL, which no name contains.
    text: Box<str>,
}

impl SubjectKey {
    /// Everybody's calls to one alias.
    #[must_use]
    pub fn alias(alias: &AliasName) -> Self {
        Self { level: Level::Alias, text: alias.as_str().into() }
    }

    /// All calls of one team.
    #[must_use]
    pub fn team(team: &TeamName) -> Self {
        Self { level: Level::Team, text: team.as_str().into() }
    }

    /// One team's calls to one alias.
    #[must_use]
    pub fn team_alias(team: &TeamName, alias: &AliasName) -> Self {
        Self { level: Level::TeamAlias, text: format!("{team}\0{alias}").into() }
    }

    /// One caller of a team: issuer and subject, never a display name.
    #[must_use]
    pub fn caller(caller: &Caller) -> Self {
        Self::caller_parts(caller.issuer.as_str(), caller.subject.as_str(), &caller.team)
    }

    /// The same from a ledger record.
    #[must_use]
    pub fn caller_parts(issuer: &str, subject: &str, team: &TeamName) -> Self {
        Self { level: Level::Caller, text: format!("{team}\0{issuer}\0{subject}").into() }
    }

    /// One API key.
    #[must_use]
    pub fn key(key: &KeyId) -> Self {
        Self { level: Level::Key, text: key.as_str().into() }
    }

    /// Its level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Its name, parts joined by NUL.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for SubjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.level, self.text)
    }
}

/// What a subject is held to.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Generation of the documents that say so. Rules of an older generation than those in force are ignored, so that a
    /// core that has not seen a reload yet cannot undo it.
    pub generation: u64,
    /// Its limits.
    pub limits: Limits,
    /// Zone of its daily and monthly periods.
    pub zone: TimeZone,
}

impl Default for Rules {
    /// No limits, periods in UTC.
    fn default() -> Self {
        Self { generation: 0, limits: Limits::default(), zone: TimeZone::UTC }
    }
}

/// One subject. Made by [`super::MemoryCounters::subject`] only, once per key.
pub struct Subject {
    /// Order in which subjects are locked.
    id: u64,
    key: SubjectKey,
    state: Mutex<State>,
}

impl Subject {
    pub(super) fn new(id: u64, key: SubjectKey, rules: Rules, sums: Sums) -> Self {
        let state = State {
            rules,
            window: Window::default(),
            in_flight: 0,
            day: Quota::new(Period::Day, sums.day),
            month: Quota::new(Period::Month, sums.month),
        };
        Self { id, key, state: Mutex::new(state) }
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Which one it is.
    #[must_use]
    pub const fn key(&self) -> &SubjectKey {
        &self.key
    }

    /// Its level.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.key.level
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Puts other rules in force. Counts stay; rules older than those in force are ignored.
    pub fn set_rules(&self, rules: &Rules) {
        let mut state = self.lock();
        if rules.generation < state.rules.generation {
            return;
        }
        if rules.zone != state.rules.zone {
            state.day.rezone();
            state.month.rezone();
        }
        state.rules.clone_from(rules);
    }

    /// What is counted now.
    #[must_use]
    pub fn counts(&self, now: Monotonic, wall: Unix) -> Counts {
        let mut state = self.lock();
        state.window.advance(now);
        let State { rules, window, in_flight, day, month } = &mut *state;
        Counts {
            requests: window.sum(Sum::Requests),
            tokens: window.sum(Sum::Tokens),
            in_flight: *in_flight,
            daily_tokens: day.used(wall, &rules.zone).1,
            monthly_tokens: month.used(wall, &rules.zone).1,
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("id", &self.id).field("key", &self.key).finish_non_exhaustive()
    }
}

/// What one subject counts at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests in the last 60 s.
    pub requests: u64,
    /// Tokens in the last 60 s.
    pub tokens: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Tokens of the current day.
    pub daily_tokens: u64,
    /// Tokens of the current month.
    pub monthly_tokens: u64,
}

/// The subjects of one kind of request: at most one per level, kept in the order in which they are locked. Made once
/// per caller and alias and shared by all its requests.
#[derive(Debug, Default)]
pub struct Subjects {
    in_lock_order: Vec<Arc<Subject>>,
}

/// Most subjects of one request: one per level.
pub const SUBJECTS_PER_REQUEST: usize = Level::ALL.len();

impl Subjects {
    /// Of several subjects of one level the last counts.
    #[must_use]
    pub fn new(subjects: impl IntoIterator<Item = Arc<Subject>>) -> Self {
        let mut by_level: [Option<Arc<Subject>>; SUBJECTS_PER_REQUEST] = Default::default();
        for subject in subjects {
            let level = subject.level() as usize;
            by_level[level] = Some(subject);
        }
        let mut in_lock_order: Vec<_> = by_level.into_iter().flatten().collect();
        in_lock_order.sort_by_key(|subject| subject.id);
        Self { in_lock_order }
    }

    /// The subjects, in the order in which they are locked.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Subject>> {
        self.in_lock_order.iter()
    }

    /// The subject of one level.
    #[must_use]
    pub fn at(&self, level: Level) -> Option<&Arc<Subject>> {
        self.iter().find(|subject| subject.level() == level)
    }
}

/// Rules and counts of one subject; all of it under one lock.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) rules: Rules,
    pub(super) window: Window,
    pub(super) in_flight: u64,
    pub(super) day: Quota,
    pub(super) month: Quota,
}

/// What an admission wants of one subject. What it already holds there is not counted against it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) requests: u64,
    pub(super) concurrency: u64,
    pub(super) tokens: u64,
    pub(super) held: Held,
}

/// Tokens of an earlier reservation that the new one replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) window: u64,
    pub(super) day: u64,
    pub(super) month: u64,
}

impl Want {
    pub(super) const fn fresh(tokens: u64) -> Self {
        Self { requests: 1, concurrency: 1, tokens, held: Held { window: 0, day: 0, month: 0 } }
    }
}

/// A refusal with the rank by which one of several is chosen: the longest wait, then level, then dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) refusal: Refusal,
    wait: Duration,
}

impl Ranked {
    pub(super) fn worse(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if other.outranks(&self) => other,
            Some(_) | None => self,
        }
    }

    fn outranks(&self, other: &Self) -> bool {
        let place = |ranked: &Self| (ranked.refusal.level, ranked.refusal.dimension);
        self.wait > other.wait || (self.wait == other.wait && place(self) < place(other))
    }
}

impl State {
    /// The worst reason for which `want` does not fit. Reads only: time passes, but nothing is taken.
    pub(super) fn check(&mut self, level: Level, want: &Want, now: Monotonic, wall: Unix) -> Option<Ranked> {
        self.window.advance(now);
        let mut worst = None;
        let limits = self.rules.limits;
        let mut note = |dimension, limit, alone: u64, wait: Option<Duration>| {
            let too_large = alone > limit;
            let refusal = Refusal { level, dimension, limit, retry_after: wait.filter(|_| !too_large), too_large };
            // No time can be said for concurrency: it counts as the shortest wait.
            let wait = if too_large { Duration::MAX } else { wait.unwrap_or(Duration::ZERO) };
            worst = Some(Ranked { refusal, wait }.worse(worst));
        };
        if let Some(limit) = limits.rpm
            && over(self.window.sum(Sum::Requests), want.requests, limit)
        {
            let wait = self.window.wait_until(Sum::Requests, limit.saturating_sub(want.requests));
            note(Dimension::Requests, limit, want.requests, Some(wait));
        }
        if let Some(limit) = limits.tpm
            && over(self.window.sum(Sum::Tokens).saturating_sub(want.held.window), want.tokens, limit)
        {
            let wait = self.window.wait_until(Sum::Tokens, limit.saturating_sub(want.tokens));
            note(Dimension::Tokens, limit, want.tokens, Some(wait));
        }
        if let Some(limit) = limits.concurrency
            && over(self.in_flight, want.concurrency, limit)
        {
            note(Dimension::Concurrency, limit, want.concurrency, None);
        }
        let quotas = [
            (limits.daily_tokens, &mut self.day, want.held.day, Dimension::DailyTokens),
            (limits.monthly_tokens, &mut self.month, want.held.month, Dimension::MonthlyTokens),
        ];
        for (limit, quota, held, dimension) in quotas {
            let Some(limit) = limit else { continue };
            let (interval, used) = quota.used(wall, &self.rules.zone);
            if over(used.saturating_sub(held), want.tokens, limit) {
                note(dimension, limit, want.tokens, Some(interval.end.since(wall)));
            }
        }
        worst
    }

    /// Takes what [`State::check`] found to fit.
    pub(super) fn take(&mut self, want: &Want, wall: Unix) -> Slot {
        let State { rules, window, in_flight, day, month } = self;
        *in_flight += want.concurrency;
        day.add(wall, &rules.zone, want.tokens);
        month.add(wall, &rules.zone, want.tokens);
        window.take(want.requests, want.tokens)
    }

    pub(super) fn settle(&mut self, slot: Slot, wall: Unix, reserved: u64, used: u64) {
        self.window.settle(slot, reserved, used);
        self.day.settle(wall, reserved, used);
        self.month.settle(wall, reserved, used);
    }

    pub(super) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// What a reservation made at `wall` still holds here.
    pub(super) fn held(&mut self, slot: Slot, tokens: u64, made: Unix, wall: Unix) -> Held {
        let zone = &self.rules.zone;
        let same = |quota: &mut Quota| if quota.used(wall, zone).0.contains(made) { tokens } else { 0 };
        Held {
            window: if self.window.holds(slot) { tokens } else { 0 },
            day: same(&mut self.day),
            month: same(&mut self.month),
        }
    }

    /// Tokens that could be admitted now; `None` when nothing limits them.
    pub(super) fn token_allowance(&mut self, now: Monotonic, wall: Unix) -> Option<u64> {
        self.window.advance(now);
        let State { rules, window, day, month, .. } = self;
        let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
        let rate = left(rules.limits.tpm, window.sum(Sum::Tokens));
        let daily =
            rules.limits.daily_tokens.and_then(|_| left(rules.limits.daily_tokens, day.used(wall, &rules.zone).1));
        let monthly = rules
            .limits
            .monthly_tokens
            .and_then(|_| left(rules.limits.monthly_tokens, month.used(wall, &rules.zone).1));
        [rate, daily, monthly].into_iter().flatten().min()
    }

    /// Whether nothing runs and nothing counts in the window: what is left are the sums.
    pub(super) fn is_quiet(&mut self, now: Monotonic) -> bool {
        self.in_flight == 0 && self.window.rest(now)
    }

    /// The sums of periods that have not ended; `None` when there are several of one kind, after a step of the clock or
    /// a change of the zone.
    pub(super) fn sums(&self, wall: Unix) -> Option<Sums> {
        let sole = |quota: &Quota| {
            let mut counting = quota.counting(wall);
            let sum = counting.next();
            counting.next().is_none().then_some(sum)
        };
        Some(Sums { day: sole(&self.day)?, month: sole(&self.month)? })
    }

    /// Whether the documents are known to look at no sum of it.
    pub(super) const fn is_without_quota(&self) -> bool {
        let limits = &self.rules.limits;
        self.rules.generation > 0 && limits.daily_tokens.is_none() && limits.monthly_tokens.is_none()
    }
}

fn over(used: u64, want: u64, limit: u64) -> bool {
    used.saturating_add(want) > limit
}
