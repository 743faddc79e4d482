//! When an absent alias is back. The clock switches nothing here: it only answers "when".

use std::time::Duration;

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _, Zoned};
use tidegate_config::Site;
use tidegate_config::site::{Schedule, ScheduleException, ShiftTargets, WeekdayOrd};
use tidegate_core::{AliasName, ShiftName};

/// How far ahead a start is looked for: longer than any week, so that a yearly date is found too.
const HORIZON_DAYS: i32 = 400;

/// The next start of a shift in which `alias` has targets, after `now`; `None` when no Schedule has one.
#[must_use]
pub fn next_presence(site: &Site, alias: &AliasName, now: Timestamp) -> Option<(Duration, Zoned)> {
    let shifts = &site.aliases.get(alias)?.shifts;
    let present = |name: &ShiftName| matches!(shifts.get(name), Some(ShiftTargets::Targets(_)));
    let start = site.schedules.values().filter_map(|schedule| next_start(site, schedule, now, &present)).min()?;
    let wait = start.timestamp().duration_since(now);
    Some((Duration::try_from(wait).unwrap_or_default(), start))
}

fn next_start(site: &Site, schedule: &Schedule, now: Timestamp, present: &dyn Fn(&ShiftName) -> bool) -> Option<Zoned> {
    let today = now.to_zoned(schedule.time_zone.clone()).date();
    (-1..HORIZON_DAYS)
        .filter_map(|offset| today.checked_add(offset.days()).ok())
        .filter_map(|date| first_start_on(site, schedule, date, now, present))
        .next()
}

fn first_start_on(
    site: &Site,
    schedule: &Schedule,
    date: Date,
    now: Timestamp,
    present: &dyn Fn(&ShiftName) -> bool,
) -> Option<Zoned> {
    if !applies(site, schedule, date) {
        return None;
    }
    let starts = schedule.shifts.iter().filter(|shift| match schedule.exceptions.get(&date) {
        Some(ScheduleException::None) => false,
        Some(ScheduleException::Use(only)) => shift.name == *only,
        None => true,
    });
    starts
        .filter(|shift| present(&shift.name))
        // In a gap of daylight saving time this is the first valid instant after it.
        .filter_map(|shift| schedule.time_zone.to_zoned(date.to_datetime(shift.start)).ok())
        .filter(|start| start.timestamp() > now)
        .min()
}

/// Whether the schedule is the date's: its dates beat everybody's days.
fn applies(site: &Site, schedule: &Schedule, date: Date) -> bool {
    if schedule.dates.contains(&date) {
        return true;
    }
    let claimed = site.schedules.values().any(|other| other.dates.contains(&date));
    !claimed && schedule.days.contains(&WeekdayOrd(date.weekday()))
}
