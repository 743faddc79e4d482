//! The admission queue: bounded, fair between teams, with deadlines.
//!
//! ```text
//! band High    team a ▮▮▮▮   team b ▮        ─┐ deficit round robin over the teams of a band,
//! band Normal  team a ▮      team c ▮▮▮▮▮▮▮   ├─ cost in tokens, by weight (Shreedhar and Varghese, 1996)
//! band Low     team d ▮▮                     ─┘
//! ```
//!
//! The highest band that is not empty goes first; but while a lower band's oldest entry has waited longer than
//! `ageing`, every [`AGED_EVERY`]th place goes to the lower band with the oldest entry. So no priority starves, and a
//! large backlog of low priority never holds the high one up by more than one place in [`AGED_EVERY`].
//!
//! A pure data structure: who waits for the popped items, and how, is the gateway's business.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tidegate_config::site::Priority;
use tidegate_core::{Monotonic, TeamName};

/// While lower priorities are overdue, one place in this many is theirs.
pub const AGED_EVERY: u32 = 4;

const BANDS: usize = 3;

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// Entries in all.
    pub entries_max: usize,
    /// Entries of one team, over all priorities.
    pub team_entries_max: usize,
    /// Tokens that a team of weight 1 may send per round.
    pub quantum_tokens: u64,
    /// Wait after which a lower priority gets its places.
    pub ageing: Duration,
}

impl Default for QueueBounds {
    fn default() -> Self {
        Self { entries_max: 1_024, team_entries_max: 256, quantum_tokens: 4_096, ageing: Duration::from_secs(5) }
    }
}

/// Which bound refuses an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFull {
    /// The queue's.
    #[error("the admission queue is full")]
    Queue,
    /// The team's.
    #[error("the team's part of the admission queue is full")]
    Team,
}

/// One entry to queue.
#[derive(Clone, Debug)]
pub struct Waiting<T> {
    /// Whose it is.
    pub team: TeamName,
    /// The team's weight; 0 counts as 1. The latest one given is in force for the team.
    pub weight: u32,
    /// Its priority.
    pub priority: Priority,
    /// Its cost in tokens; 0 counts as 1.
    pub cost: u64,
    /// First instant at which it no longer waits.
    pub deadline: Monotonic,
    /// What waits.
    pub item: T,
}

/// Names an entry, for its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

/// An entry that left the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left<T> {
    /// What waited.
    pub item: T,
    /// How long it waited.
    pub waited: Duration,
}

#[derive(Debug)]
struct Entry<T> {
    place: Place,
    cost: u64,
    since: Monotonic,
    item: T,
}

/// One team in one band.
#[derive(Debug)]
struct Lane<T> {
    entries: VecDeque<Entry<T>>,
    deficit: u64,
    weight: u64,
}

#[derive(Debug)]
struct Band<T> {
    lanes: BTreeMap<TeamName, Lane<T>>,
    /// Teams with entries; the front one has its turn.
    ring: VecDeque<TeamName>,
    /// The front team has not had its quantum in this turn.
    turn_begins: bool,
}

/// Where an entry stands and until when.
#[derive(Clone, Debug)]
struct Whereabouts {
    priority: Priority,
    team: TeamName,
    deadline: Monotonic,
}

/// The queue.
#[derive(Debug)]
pub struct FairQueue<T> {
    bounds: QueueBounds,
    bands: [Band<T>; BANDS],
    places: BTreeMap<Place, Whereabouts>,
    deadlines: BTreeMap<(Monotonic, Place), ()>,
    team_entries: BTreeMap<TeamName, usize>,
    next_place: u64,
    /// Places given to the highest band since an overdue lower one had its.
    since_aged: u32,
}

impl<T> FairQueue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(bounds: QueueBounds) -> Self {
        let bounds = QueueBounds { quantum_tokens: bounds.quantum_tokens.max(1), ..bounds };
        Self {
            bounds,
            bands: std::array::from_fn(|_| Band::default()),
            places: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            team_entries: BTreeMap::new(),
            next_place: 0,
            since_aged: 0,
        }
    }

    /// Entries that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether one more entry of a team fits.
    ///
    /// # Errors
    /// Names the bound that it would exceed.
    pub fn room_for(&self, team: &TeamName) -> Result<(), QueueFull> {
        if self.len() >= self.bounds.entries_max {
            return Err(QueueFull::Queue);
        }
        if self.team_entries.get(team).is_some_and(|entries| *entries >= self.bounds.team_entries_max) {
            return Err(QueueFull::Team);
        }
        Ok(())
    }

    /// Puts an entry at the end of its team's lane.
    ///
    /// # Errors
    /// Names the bound that it would exceed; the queue is as it was.
    pub fn push(&mut self, waiting: Waiting<T>, now: Monotonic) -> Result<Place, QueueFull> {
        self.room_for(&waiting.team)?;
        let Waiting { team, weight, priority, cost, deadline, item } = waiting;
        let place = Place(self.next_place);
        self.next_place += 1;
        *self.team_entries.entry(team.clone()).or_default() += 1;
        self.deadlines.insert((deadline, place), ());
        self.places.insert(place, Whereabouts { priority, team: team.clone(), deadline });
        let entry = Entry { place, cost: cost.max(1), since: now, item };
        self.bands[priority as usize].push(team, u64::from(weight.max(1)), entry);
        Ok(place)
    }

    /// Takes the entry whose turn it is. Entries past their deadline are for [`FairQueue::expire`], which is to be
    /// called first.
    pub fn pop(&mut self, now: Monotonic) -> Option<Left<T>> {
        let band = self.choose_band(now)?;
        let entry = self.bands[band].pop(self.bounds.quantum_tokens)?;
        self.forget(entry.place);
        Some(entry.leave(now))
    }

    /// Takes an entry out of turn: its caller left.
    pub fn remove(&mut self, place: Place, now: Monotonic) -> Option<Left<T>> {
        let Whereabouts { priority, team, .. } = self.forget(place)?;
        self.bands[priority as usize].remove(&team, place).map(|entry| entry.leave(now))
    }

    /// Takes all entries whose deadline has come, earliest deadline first.
    pub fn expire(&mut self, now: Monotonic) -> Vec<Left<T>> {
        let mut expired = Vec::new();
        while let Some((deadline, place)) = self.deadlines.first_key_value().map(|(key, ())| *key) {
            if deadline > now {
                break;
            }
            match self.remove(place, now) {
                Some(left) => expired.push(left),
                None => {
                    self.deadlines.remove(&(deadline, place));
                }
            }
        }
        expired
    }

    /// When the next entry expires: for one timer.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.deadlines.first_key_value().map(|((deadline, _), ())| *deadline)
    }

    fn forget(&mut self, place: Place) -> Option<Whereabouts> {
        let whereabouts = self.places.remove(&place)?;
        self.deadlines.remove(&(whereabouts.deadline, place));
        if let Some(entries) = self.team_entries.get_mut(&whereabouts.team) {
            *entries -= 1;
            if *entries == 0 {
                self.team_entries.remove(&whereabouts.team);
            }
        }
        Some(whereabouts)
    }

    fn choose_band(&mut self, now: Monotonic) -> Option<usize> {
        let top = (0..BANDS).rev().find(|&band| !self.bands[band].ring.is_empty())?;
        let oldest_below = (0..top)
            .filter_map(|band| self.bands[band].oldest().map(|since| (since, band)))
            .min()
            .filter(|(since, _)| now.since(*since) >= self.bounds.ageing);
        match oldest_below {
            Some((_, band)) if self.since_aged + 1 >= AGED_EVERY => {
                self.since_aged = 0;
                Some(band)
            }
            Some(_) => {
                self.since_aged += 1;
                Some(top)
            }
            None => Some(top),
        }
    }
}

impl<T> Default for Band<T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), ring: VecDeque::new(), turn_begins: true }
    }
}

impl<T> Entry<T> {
    fn leave(self, now: Monotonic) -> Left<T> {
        Left { item: self.item, waited: now.since(self.since) }
    }
}

impl<T> Lane<T> {
    /// Rounds after which the head can be paid for.
    fn rounds_needed(&self, quantum: u64) -> u64 {
        let cost = self.entries.front().map_or(0, |entry| entry.cost);
        cost.saturating_sub(self.deficit).div_ceil(quantum.saturating_mul(self.weight))
    }
}

impl<T> Band<T> {
    fn push(&mut self, team: TeamName, weight: u64, entry: Entry<T>) {
        let lane = self.lanes.entry(team.clone()).or_insert_with(|| {
            self.ring.push_back(team);
            Lane { entries: VecDeque::new(), deficit: 0, weight }
        });
        lane.weight = weight;
        lane.entries.push_back(entry);
    }

    /// Deficit round robin, one entry at a time.
    fn pop(&mut self, quantum: u64) -> Option<Entry<T>> {
        let mut passed_over = 0;
        loop {
            if passed_over >= self.ring.len() {
                self.skip_rounds(quantum);
                passed_over = 0;
            }
            let team = self.ring.front()?.clone();
            let lane = self.lanes.get_mut(&team)?;
            if std::mem::take(&mut self.turn_begins) {
                lane.deficit = lane.deficit.saturating_add(quantum.saturating_mul(lane.weight));
            }
            if lane.entries.front().is_some_and(|entry| entry.cost <= lane.deficit) {
                let entry = lane.entries.pop_front()?;
                lane.deficit -= entry.cost;
                if lane.entries.is_empty() {
                    self.retire(&team);
                }
                return Some(entry);
            }
            self.ring.rotate_left(1);
            self.turn_begins = true;
            passed_over += 1;
        }
    }

    /// A round in which nobody could pay is followed by more of the same: all but the last are added at once, so that a
    /// request of a million tokens costs no loop of its own.
    fn skip_rounds(&mut self, quantum: u64) {
        let rounds = self.lanes.values().map(|lane| lane.rounds_needed(quantum)).min().unwrap_or(0);
        for lane in self.lanes.values_mut() {
            let grant = quantum.saturating_mul(lane.weight).saturating_mul(rounds.saturating_sub(1));
            lane.deficit = lane.deficit.saturating_add(grant);
        }
    }

    fn remove(&mut self, team: &TeamName, place: Place) -> Option<Entry<T>> {
        let lane = self.lanes.get_mut(team)?;
        let index = lane.entries.binary_search_by_key(&place, |entry| entry.place).ok()?;
        let entry = lane.entries.remove(index);
        if lane.entries.is_empty() {
            self.retire(team);
        }
        entry
    }

    /// A team without entries keeps no deficit: credit is not saved up.
    fn retire(&mut self, team: &TeamName) {
        self.lanes.remove(team);
        if self.ring.front() == Some(team) {
            self.turn_begins = true;
        }
        self.ring.retain(|other| other != team);
    }

    fn oldest(&self) -> Option<Monotonic> {
        self.lanes.values().filter_map(|lane| lane.entries.front()).map(|entry| entry.since).min()
    }
}
