//! When shifts start: a pure function of the Schedules, asked with an instant.
//!
//! Nothing is remembered between two questions (no "next run"), so a controller that slept through three starts wakes
//! into the right shift and replays none. A [`Slot`] names one start for good: it happens once, also when the clocks go
//! back, and still when they go forward over it.
//!
//! ```text
//! civil date ─ whose is it? ─▶ Schedule ─ exception? ─▶ civil starts ─ zone ─▶ instants ─ the last one ≤ now
//!   dates beat days              use: all day, none: no start      clock.rs
//! ```

mod clock;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use tidegate_config::site::{Schedule, ScheduleException, WeekdayOrd};
use tidegate_core::ShiftName;

pub use clock::first_instant;

/// Days by which the dates of two zones can differ at one instant, and a start can be moved by a skipped day.
const ZONE_DAYS: i32 = 2;

/// One start, named for good.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The Schedule whose date it is.
    pub schedule: Arc<str>,
    /// The shift that starts.
    pub shift: ShiftName,
    /// The civil date in the Schedule's zone.
    pub date: Date,
}

/// When a slot's shift starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which start.
    pub slot: Slot,
    /// The civil time in the Schedule's zone; the clocks may never show it.
    pub civil: DateTime,
    /// The first instant that counts as that civil time or as later.
    pub at: Timestamp,
    /// Whether an exception put it there.
    pub is_exception: bool,
}

impl Start {
    /// Of starts at one instant the later civil time wins.
    fn rank(&self) -> (Timestamp, DateTime, &Slot) {
        (self.at, self.civil, &self.slot)
    }
}

/// All Schedules of a site as one line of starts.
#[derive(Clone, Copy, Debug)]
pub struct Timetable<'s> {
    schedules: &'s BTreeMap<Arc<str>, Schedule>,
}

/// Which way a search goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Back,
    On,
}

impl<'s> Timetable<'s> {
    /// The line of starts of these Schedules.
    #[must_use]
    pub const fn new(schedules: &'s BTreeMap<Arc<str>, Schedule>) -> Self {
        Self { schedules }
    }

    /// The start whose shift is in force at `now`: the last one that is not later. `None` before the first start of
    /// all, and without Schedules.
    #[must_use]
    pub fn in_force(&self, now: Timestamp) -> Option<Start> {
        self.search(now, Way::Back, &|start| start.at <= now)
    }

    /// The first start after `now`. Of several at one instant the one that lasts.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Start> {
        self.next_where(now, &|_| true)
    }

    /// The first start after `now` of a shift that `wanted` accepts.
    #[must_use]
    pub fn next_where(&self, now: Timestamp, wanted: &dyn Fn(&ShiftName) -> bool) -> Option<Start> {
        // A start that another one at its instant takes the place of never has an instant of its own.
        let lasts = |start: &Start| self.in_force(start.at).is_some_and(|last| last.slot == start.slot);
        self.search(now, Way::On, &|start| start.at > now && wanted(&start.slot.shift) && lasts(start))
    }

    /// The first start after `now` that changes the shift which is in force.
    #[must_use]
    pub fn next_change(&self, now: Timestamp) -> Option<Start> {
        let current = self.in_force(now).map(|start| start.slot.shift);
        self.next_where(now, &|shift| Some(shift) != current.as_ref())
    }

    /// Every start that lasts, from `from` (inclusive) to `until` (exclusive), in order.
    #[must_use]
    pub fn between(&self, from: Timestamp, until: Timestamp) -> Vec<Start> {
        let mut date = shifted(from, -ZONE_DAYS);
        let last = shifted(until, ZONE_DAYS);
        let mut starts = Vec::new();
        while date <= last {
            starts.extend(self.starts_on(date).into_iter().filter(|start| start.at >= from && start.at < until));
            let Ok(tomorrow) = date.checked_add(1.days()) else { break };
            date = tomorrow;
        }
        starts.sort_by(|a, b| a.rank().cmp(&b.rank()));
        let mut lasting: Vec<Start> = Vec::new();
        for start in starts {
            if lasting.last().is_some_and(|before| before.at == start.at) {
                lasting.pop();
            }
            lasting.push(start);
        }
        lasting
    }

    /// The starts of a civil date, in the zone of the Schedule whose date it is.
    #[must_use]
    pub fn starts_on(&self, date: Date) -> Vec<Start> {
        let Some((name, schedule)) = self.owner(date) else { return Vec::new() };
        let start = |shift: &ShiftName, time: Time, is_exception: bool| {
            let civil = date.to_datetime(time);
            let slot = Slot { schedule: Arc::clone(name), shift: shift.clone(), date };
            Some(Start { slot, civil, at: first_instant(&schedule.time_zone, civil)?, is_exception })
        };
        match schedule.exceptions.get(&date) {
            Some(ScheduleException::None) => Vec::new(),
            Some(ScheduleException::Use(shift)) => start(shift, Time::midnight(), true).into_iter().collect(),
            None => schedule.shifts.iter().filter_map(|shift| start(&shift.name, shift.start, false)).collect(),
        }
    }

    /// Whose date it is: dates beat days, and an exception claims a date that nobody else has.
    fn owner(&self, date: Date) -> Option<(&'s Arc<str>, &'s Schedule)> {
        let all = || self.schedules.iter();
        all()
            .find(|(_, schedule)| schedule.dates.contains(&date))
            .or_else(|| all().find(|(_, schedule)| schedule.days.contains(&WeekdayOrd(date.weekday()))))
            .or_else(|| all().find(|(_, schedule)| schedule.exceptions.contains_key(&date)))
    }

    /// The nearest start that `fits`, walking from `now` in one direction.
    fn search(&self, now: Timestamp, way: Way, fits: &dyn Fn(&Start) -> bool) -> Option<Start> {
        let mut found: Option<Start> = None;
        let mut left = None;
        for date in self.dates(now, way) {
            for start in self.starts_on(date).into_iter().filter(|start| fits(start)) {
                let is_nearer = found.as_ref().is_none_or(|best| match way {
                    Way::Back => start.rank() > best.rank(),
                    Way::On => start.rank() < best.rank(),
                });
                if is_nearer {
                    found = Some(start);
                }
            }
            // A neighbouring date can be nearer in another zone.
            match &mut left {
                None if found.is_some() => left = Some(ZONE_DAYS),
                None => {}
                Some(0) => break,
                Some(days) => *days -= 1,
            }
        }
        found
    }

    /// Dates that can have the nearest start: every date as far as the weekdays reach, then those that are named.
    fn dates(&self, now: Timestamp, way: Way) -> impl Iterator<Item = Date> {
        let mut named: BTreeSet<Date> = BTreeSet::new();
        for schedule in self.schedules.values() {
            named.extend(schedule.dates.iter().chain(schedule.exceptions.keys()));
        }
        // A weekday comes every seven days, and each named date can take away at most one of them.
        let days = 7 * (i32::try_from(named.len()).unwrap_or(i32::MAX / 8) + 1) + 2 * ZONE_DAYS;
        let (first, step) = match way {
            Way::Back => (shifted(now, ZONE_DAYS), -1),
            Way::On => (shifted(now, -ZONE_DAYS), 1),
        };
        let walk = (0..=days).map_while(move |day| first.checked_add((day * step).days()).ok());
        let edge = first.checked_add((days * step).days()).unwrap_or(first);
        let beyond: Vec<Date> = match way {
            Way::Back => named.range(..edge).rev().copied().collect(),
            Way::On => named.range(edge..).filter(|date| **date > edge).copied().collect(),
        };
        walk.chain(beyond)
    }
}

/// The date in UTC some days from an instant; clamped to what the calendar has.
fn shifted(instant: Timestamp, days: i32) -> Date {
    let date = instant.to_zoned(TimeZone::UTC).date();
    date.checked_add(days.days()).unwrap_or(if days < 0 { Date::MIN } else { Date::MAX })
}
