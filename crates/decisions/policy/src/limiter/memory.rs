//! Counters in memory, shared by all cores of one process.
//!
//! Locks, always taken in this order: the shard of live requests, the life of one request, subjects by ascending id.
//! All are held for a few hundred nanoseconds and never across an await.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{Monotonic, RequestId, Unix};

use super::spill::{Spill, Sums};
use super::subject::{Ranked, Rules, SUBJECTS_PER_REQUEST, State, Subject, SubjectKey, Subjects, Want};
use super::view::RateView;
use super::window::Slot;
use super::{AdmitError, Counters, Demand};
use crate::period::Period;

/// Subjects held at once. A quiet one takes about 1 KB, at most; a busy one adds up to 9.3 KB for a minute. Of further
/// ones that are quiet the sums are kept ([`super::SPILLED_MAX`]).
pub const SUBJECTS_MAX: usize = 65_536;
/// Requests in flight at once.
pub const LIVE_MAX: usize = 262_144;

/// How long a reservation may be held by nobody before its slot is freed; its estimate stays.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// When no more subjects fit, idle ones are looked for at most this often: a look takes milliseconds.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

const SHARDS: usize = 64;

type LiveShard = ahash::HashMap<RequestId, Arc<Live>>;

/// The proof of an admission. Settle it and release it: what is dropped instead keeps estimate and slot until
/// [`MemoryCounters::sweep`] frees the slot.
#[must_use = "an admission holds tokens and a slot until it is settled and released"]
#[derive(Debug)]
pub struct Admitted {
    live: Arc<Live>,
    view: RateView,
}

impl Admitted {
    /// The request.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.live.id
    }

    /// Tokens reserved.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.live.tokens
    }

    /// Whose limits hold it.
    #[must_use]
    pub fn subjects(&self) -> &Arc<Subjects> {
        &self.live.subjects
    }

    /// The rate limits right after this admission.
    #[must_use]
    pub fn view(&self) -> &RateView {
        &self.view
    }
}

/// One reservation.
#[derive(Debug)]
struct Live {
    id: RequestId,
    subjects: Arc<Subjects>,
    /// Where it stands in each subject's window, in lock order.
    slots: [Slot; SUBJECTS_PER_REQUEST],
    tokens: u64,
    made: Monotonic,
    wall: Unix,
    life: Mutex<Life>,
}

/// What of a reservation is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    settled: bool,
    released: bool,
}

impl Life {
    const fn is_over(self) -> bool {
        self.settled && self.released
    }
}

/// All subjects.
#[derive(Default)]
struct Interned {
    by_key: ahash::HashMap<SubjectKey, Arc<Subject>>,
    /// Sums of quiet ones that made room.
    spill: Spill,
    /// When idle ones were looked for in vain.
    full_at: Option<Monotonic>,
}

impl Interned {
    /// Whether one more fits, if need be after idle ones were forgotten.
    fn has_room(&mut self, now: Monotonic, wall: Unix) -> bool {
        if self.by_key.len() < SUBJECTS_MAX {
            return true;
        }
        if self.full_at.is_some_and(|full_at| now.since(full_at) < LOOK_AGAIN_AFTER) {
            return false;
        }
        let has_room = self.forget_idle(now, wall) > 0;
        self.full_at = (!has_room).then_some(now);
        has_room
    }

    /// Forgets what can be forgotten without losing a count; if all are still there, quiet ones are reduced to their sums
    /// and, where no more of those fit, the ones whose sums no quota looks at are forgotten.
    fn forget_idle(&mut self, now: Monotonic, wall: Unix) -> usize {
        let Self { by_key, spill, .. } = self;
        let before = by_key.len();
        spill.forget_ended(wall);
        let is_held = |subject: &Arc<Subject>| Arc::strong_count(subject) > 1;
        by_key.retain(|_, subject| {
            let mut state = subject.lock();
            let is_idle = state.is_quiet(now) && state.sums(wall) == Some(Sums::default());
            !is_idle || is_held(subject)
        });
        if by_key.len() >= SUBJECTS_MAX {
            by_key.retain(|key, subject| {
                let mut state = subject.lock();
                is_held(subject)
                    || !state.is_quiet(now)
                    || !(state.sums(wall).is_some_and(|sums| spill.keep(key, sums)) || state.is_without_quota())
            });
        }
        before - by_key.len()
    }
}

/// What [`MemoryCounters::sweep`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Subjects forgotten, or reduced to their sums.
    pub subjects: usize,
    /// Slots freed whose owner had vanished. Each is a bug in the caller of these counters.
    pub abandoned: usize,
}

/// Counters in memory.
pub struct MemoryCounters {
    subjects: Mutex<Interned>,
    next_subject: AtomicU64,
    live: [Mutex<LiveShard>; SHARDS],
    live_count: AtomicUsize,
}

impl Default for MemoryCounters {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCounters {
    /// Nothing is counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            subjects: Mutex::default(),
            next_subject: AtomicU64::new(0),
            live: std::array::from_fn(|_| Mutex::default()),
            live_count: AtomicUsize::new(0),
        }
    }

    /// The subject of a key, made if it is new, with `rules` put in force.
    ///
    /// # Errors
    /// [`AdmitError::Full`] at [`SUBJECTS_MAX`] when none can be forgotten without losing a count.
    pub fn subject(
        &self,
        key: &SubjectKey,
        rules: &Rules,
        now: Monotonic,
        wall: Unix,
    ) -> Result<Arc<Subject>, AdmitError> {
        let mut subjects = self.subjects.lock();
        if let Some(subject) = subjects.by_key.get(key) {
            let subject = Arc::clone(subject);
            drop(subjects);
            subject.set_rules(rules);
            return Ok(subject);
        }
        if !subjects.has_room(now, wall) {
            return Err(AdmitError::Full);
        }
        let id = self.next_subject.fetch_add(1, Ordering::Relaxed);
        let sums = subjects.spill.take(key);
        let subject = Arc::new(Subject::new(id, key.clone(), rules.clone(), sums));
        subjects.by_key.insert(key.clone(), Arc::clone(&subject));
        Ok(subject)
    }

    /// [`Counters::subjects`], at once.
    ///
    /// # Errors
    /// As there.
    pub fn subjects_now(
        &self,
        wanted: &[(SubjectKey, Rules)],
        now: Monotonic,
        wall: Unix,
    ) -> Result<Arc<Subjects>, AdmitError> {
        let subjects: Result<Vec<_>, _> =
            wanted.iter().map(|(key, rules)| self.subject(key, rules, now, wall)).collect();
        Ok(Arc::new(Subjects::new(subjects?)))
    }

    /// [`Counters::admit`], at once.
    ///
    /// # Errors
    /// As there.
    pub fn admit_now(&self, id: RequestId, demand: Demand<'_, Subjects>) -> Result<Admitted, AdmitError> {
        let mut shard = self.shard(id);
        if let Some(live) = shard.get(&id) {
            let live = Arc::clone(live);
            drop(shard);
            let view = view_of(&live.subjects, demand.now);
            return Ok(Admitted { live, view });
        }
        if self.live_count.load(Ordering::Relaxed) >= LIVE_MAX {
            return Err(AdmitError::Full);
        }
        let want = Want::fresh(demand.tokens);
        let mut states = lock_all(demand.subjects);
        let mut worst: Option<Ranked> = None;
        for (state, subject) in states.iter_mut().flatten().zip(demand.subjects.iter()) {
            if let Some(ranked) = state.check(subject.level(), &want, demand.now, demand.wall) {
                worst = Some(ranked.worse(worst));
            }
        }
        if let Some(worst) = worst {
            return Err(worst.refusal.into());
        }
        let mut slots = [Slot::default(); SUBJECTS_PER_REQUEST];
        let mut view = RateView::default();
        for (state, slot) in states.iter_mut().flatten().zip(&mut slots) {
            *slot = state.take(&want, demand.wall);
            view.note(state);
        }
        drop(states);
        let live = Arc::new(Live::new(id, &demand, slots));
        shard.insert(id, Arc::clone(&live));
        self.live_count.fetch_add(1, Ordering::Relaxed);
        Ok(Admitted { live, view })
    }

    /// [`Counters::transfer`], at once.
    ///
    /// # Errors
    /// As there.
    pub fn transfer_now(&self, old: &Admitted, demand: Demand<'_, Subjects>) -> Result<Admitted, AdmitError> {
        let old = &*old.live;
        let mut shard = self.shard(old.id);
        let mut life = old.life.lock();
        if life.settled || life.released {
            return Err(AdmitError::Ended);
        }
        let mut merged = merge(&old.subjects, demand.subjects);
        let mut states: Vec<_> = merged.iter().map(|part| part.subject.lock()).collect();
        let mut worst: Option<Ranked> = None;
        for (state, part) in states.iter_mut().zip(&mut merged) {
            if part.new.is_none() {
                continue;
            }
            part.want = Want::fresh(demand.tokens);
            if let Some(at) = part.old {
                state.window.advance(demand.now);
                let held = state.held(old.slots[at], old.tokens, old.wall, demand.wall);
                // The request was counted and has its slot already.
                part.want = Want { requests: 0, concurrency: 0, tokens: demand.tokens, held };
            }
            if let Some(ranked) = state.check(part.subject.level(), &part.want, demand.now, demand.wall) {
                worst = Some(ranked.worse(worst));
            }
        }
        if let Some(worst) = worst {
            return Err(worst.refusal.into());
        }
        let mut slots = [Slot::default(); SUBJECTS_PER_REQUEST];
        let mut view = RateView::default();
        for (state, part) in states.iter_mut().zip(&merged) {
            if let Some(at) = part.old {
                state.settle(old.slots[at], old.wall, old.tokens, 0);
            }
            match part.new {
                Some(at) => {
                    slots[at] = state.take(&part.want, demand.wall);
                    view.note(state);
                }
                None => state.release(),
            }
        }
        drop(states);
        *life = Life { settled: true, released: true };
        drop(life);
        let live = Arc::new(Live::new(old.id, &demand, slots));
        shard.insert(old.id, Arc::clone(&live));
        Ok(Admitted { live, view })
    }

    /// [`Counters::settle`], at once.
    pub fn settle_now(&self, admitted: &Admitted, tokens: u64) {
        let live = &*admitted.live;
        let mut life = live.life.lock();
        if life.settled {
            return;
        }
        life.settled = true;
        for (subject, slot) in live.subjects.iter().zip(live.slots) {
            subject.lock().settle(slot, live.wall, live.tokens, tokens);
        }
        let over = life.is_over();
        drop(life);
        if over {
            self.forget(live.id);
        }
    }

    /// [`Counters::release`], at once.
    pub fn release_now(&self, admitted: &Admitted) {
        self.release_live(&admitted.live);
    }

    fn release_live(&self, live: &Live) {
        let mut life = live.life.lock();
        if life.released {
            return;
        }
        life.released = true;
        for subject in live.subjects.iter() {
            subject.lock().release();
        }
        let over = life.is_over();
        drop(life);
        if over {
            self.forget(live.id);
        }
    }

    /// [`Counters::view`], at once.
    #[must_use]
    pub fn view_now(&self, subjects: &Subjects, now: Monotonic) -> RateView {
        view_of(subjects, now)
    }

    /// [`Counters::token_allowance`], at once.
    #[must_use]
    pub fn token_allowance_now(&self, subjects: &Subjects, now: Monotonic, wall: Unix) -> Option<u64> {
        subjects.iter().filter_map(|subject| subject.lock().token_allowance(now, wall)).min()
    }

    /// Counts what was admitted before a restart, without asking any limit: one admission of the last 60 s at each of
    /// `subjects`. Records of another boot are given with `at` = now, so that they count in full. To be called in
    /// ascending order of `at`, before the first admission.
    pub fn restore_window(&self, subjects: &Subjects, at: Monotonic, tokens: u64) {
        for subject in subjects.iter() {
            subject.lock().window.restore(at, 1, tokens);
        }
    }

    /// Sets what the period of `wall` holds, from the ledger: charges, and the estimates of orphans.
    pub fn restore_quota(&self, subject: &Subject, period: Period, wall: Unix, tokens: u64) {
        let mut state = subject.lock();
        let State { rules, day, month, .. } = &mut *state;
        match period {
            Period::Day => day.restore(wall, &rules.zone, tokens),
            Period::Month => month.restore(wall, &rules.zone, tokens),
        }
    }

    /// Forgets subjects that nobody holds and whose counts have all run out, gives idle memory back, and frees the
    /// slots of reservations that nobody holds any more (their estimates stay). For a task that runs every few seconds.
    pub fn sweep(&self, now: Monotonic, wall: Unix) -> Swept {
        let mut abandoned = Vec::new();
        for shard in &self.live {
            let shard = shard.lock();
            let vanished = |live: &&Arc<Live>| Arc::strong_count(live) == 1 && now.since(live.made) >= ABANDONED_AFTER;
            abandoned.extend(shard.values().filter(vanished).cloned());
        }
        for live in &abandoned {
            live.life.lock().settled = true;
            self.release_live(live);
            self.forget(live.id);
        }
        let subjects = self.subjects.lock().forget_idle(now, wall);
        Swept { subjects, abandoned: abandoned.len() }
    }

    /// Requests admitted and not yet both settled and released.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live_count.load(Ordering::Relaxed)
    }

    /// Subjects held.
    #[must_use]
    pub fn known_subjects(&self) -> usize {
        self.subjects.lock().by_key.len()
    }

    /// Subjects of which only the sums are kept.
    #[must_use]
    pub fn spilled_subjects(&self) -> usize {
        self.subjects.lock().spill.len()
    }

    fn shard(&self, id: RequestId) -> MutexGuard<'_, LiveShard> {
        // The low bits of an id are random.
        self.live[id.to_bits() as usize % SHARDS].lock()
    }

    fn forget(&self, id: RequestId) {
        if self.shard(id).remove(&id).is_some() {
            self.live_count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for MemoryCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCounters").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl Live {
    fn new(id: RequestId, demand: &Demand<'_, Subjects>, slots: [Slot; SUBJECTS_PER_REQUEST]) -> Self {
        Self {
            id,
            subjects: Arc::clone(demand.subjects),
            slots,
            tokens: demand.tokens,
            made: demand.now,
            wall: demand.wall,
            life: Mutex::default(),
        }
    }
}

/// Locks all subjects of a request, in their order.
fn lock_all(subjects: &Subjects) -> [Option<MutexGuard<'_, State>>; SUBJECTS_PER_REQUEST] {
    debug_assert!(subjects.iter().is_sorted_by_key(|subject| subject.id()), "another order can deadlock");
    let mut states = [const { None }; SUBJECTS_PER_REQUEST];
    for (state, subject) in states.iter_mut().zip(subjects.iter()) {
        *state = Some(subject.lock());
    }
    states
}

fn view_of(subjects: &Subjects, now: Monotonic) -> RateView {
    let mut view = RateView::default();
    for subject in subjects.iter() {
        let mut state = subject.lock();
        state.window.advance(now);
        view.note(&state);
    }
    view
}

/// A subject of an old or a new reservation or both, with its place in each.
struct Part<'a> {
    subject: &'a Subject,
    old: Option<usize>,
    new: Option<usize>,
    want: Want,
}

/// The union of two sets, in lock order.
fn merge<'a>(old: &'a Subjects, new: &'a Subjects) -> Vec<Part<'a>> {
    let nothing = Want { requests: 0, concurrency: 0, tokens: 0, held: Default::default() };
    let mut parts: Vec<Part<'a>> =
        old.iter().enumerate().map(|(at, subject)| Part { subject, old: Some(at), new: None, want: nothing }).collect();
    for (at, subject) in new.iter().enumerate() {
        match parts.iter_mut().find(|part| part.subject.id() == subject.id()) {
            Some(part) => part.new = Some(at),
            None => parts.push(Part { subject, old: None, new: Some(at), want: nothing }),
        }
    }
    parts.sort_by_key(|part| part.subject.id());
    parts
}

/// Counters in memory have done their work when the future is made; it only hands the answer over.
impl Counters for MemoryCounters {
    type Subjects = Subjects;
    type Admitted = Admitted;

    fn subjects(
        &self,
        wanted: &[(SubjectKey, Rules)],
        now: Monotonic,
        wall: Unix,
    ) -> impl Future<Output = Result<Arc<Subjects>, AdmitError>> + Send {
        ready(self.subjects_now(wanted, now, wall))
    }

    fn admit(
        &self,
        id: RequestId,
        demand: Demand<'_, Subjects>,
    ) -> impl Future<Output = Result<Admitted, AdmitError>> + Send {
        ready(self.admit_now(id, demand))
    }

    fn transfer(
        &self,
        old: &Admitted,
        demand: Demand<'_, Subjects>,
    ) -> impl Future<Output = Result<Admitted, AdmitError>> + Send {
        ready(self.transfer_now(old, demand))
    }

    fn settle(&self, admitted: &Admitted, tokens: u64) -> impl Future<Output = ()> + Send {
        self.settle_now(admitted, tokens);
        ready(())
    }

    fn release(&self, admitted: &Admitted) -> impl Future<Output = ()> + Send {
        self.release_now(admitted);
        ready(())
    }

    fn view(&self, subjects: &Subjects, now: Monotonic) -> impl Future<Output = RateView> + Send {
        ready(self.view_now(subjects, now))
    }

    fn token_allowance(
        &self,
        subjects: &Subjects,
        now: Monotonic,
        wall: Unix,
    ) -> impl Future<Output = Option<u64>> + Send {
        ready(self.token_allowance_now(subjects, now, wall))
    }
}
