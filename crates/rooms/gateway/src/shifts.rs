//! When an absent alias is back. The clock switches nothing here: it only answers "when".

use std::time::Duration;

use jiff::{Timestamp, Zoned};
use tidegate_config::Site;
use tidegate_config::site::ShiftTargets;
use tidegate_core::{AliasName, ShiftName};
use tidegate_planner::Timetable;

/// The next start of a shift in which `alias` has targets, after `now`; `None` when no Schedule has one.
#[must_use]
pub fn next_presence(site: &Site, alias: &AliasName, now: Timestamp) -> Option<(Duration, Zoned)> {
    let shifts = &site.aliases.get(alias)?.shifts;
    let present = |name: &ShiftName| matches!(shifts.get(name), Some(ShiftTargets::Targets(_)));
    let start = Timetable::new(&site.schedules).next_where(now, &present)?;
    let zone = &site.schedules.get(&start.slot.schedule)?.time_zone;
    let wait = start.at.duration_since(now);
    Some((Duration::try_from(wait).unwrap_or_default(), start.at.to_zoned(zone.clone())))
}
