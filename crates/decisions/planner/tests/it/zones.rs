//! Every transition of every zone in the embedded database.

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use tidegate_planner::timetable::first_instant;

/// Transitions of a zone that are looked at: all that are written down, and those of the rule for some years after.
const PER_ZONE: usize = 400;

/// Seconds around a jump at which the clock is asked.
const PROBES: [i64; 7] = [-3_601, -1, 0, 1, 899, 1_800, 3_599];

/// From the definition, without asking about gaps and folds: the clock shows less a second earlier, and has never shown
/// this much in the two days before, looked at where it can have: at the civil times one offset away.
fn is_first(zone: &TimeZone, civil: DateTime, instant: Timestamp) -> bool {
    let shown = zone.to_datetime(instant);
    let before = zone.to_datetime(instant - SignedDuration::from_secs(1));
    shown >= civil && before < civil
}

#[test]
fn in_every_zone_each_civil_time_around_a_jump_starts_once_and_at_the_first_valid_instant() {
    let database = TimeZoneDatabase::bundled();
    let (mut zones, mut jumps) = (0, 0);
    for name in database.available() {
        let zone = database.get(name.as_str()).unwrap();
        zones += 1;
        let from: Timestamp = "1883-01-01T00:00:00Z".parse().unwrap();
        let end: Timestamp = "2045-01-01T00:00:00Z".parse().unwrap();
        for transition in zone.following(from).take(PER_ZONE).take_while(|jump| jump.timestamp() < end) {
            jumps += 1;
            check_jump(&zone, transition.timestamp(), transition.offset().seconds());
        }
    }
    assert!(zones > 400, "{zones} zones");
    assert!(jumps > 20_000, "{jumps} jumps");
}

fn check_jump(zone: &TimeZone, jump: Timestamp, after: i32) {
    let before = zone.to_offset(jump - SignedDuration::from_secs(1)).seconds();
    let shown_before = zone.to_datetime(jump - SignedDuration::from_secs(1)).checked_add(1.second()).unwrap();
    let shown_after = zone.to_datetime(jump);
    for probe in PROBES {
        let civil = shown_after.checked_add(probe.seconds()).unwrap();
        let instant = first_instant(zone, civil).unwrap();
        assert!(is_first(zone, civil, instant), "{:?} {civil} {instant}", zone.iana_name());
    }
    if after > before {
        // the gap: from what the clock would have shown to what it shows
        for civil in [shown_before, shown_before.checked_add(i64::from((after - before) / 2).seconds()).unwrap()] {
            assert_eq!(first_instant(zone, civil), Some(jump), "{:?} {civil}", zone.iana_name());
        }
    } else if after < before {
        // shown twice: the first time, which lies before the jump
        let instant = first_instant(zone, shown_after).unwrap();
        let earlier = jump - SignedDuration::from_secs(i64::from(before - after));
        assert_eq!(instant, earlier, "{:?} {shown_after}", zone.iana_name());
    }
}
