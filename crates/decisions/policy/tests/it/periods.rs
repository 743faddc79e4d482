//! Days and months are a partition of time in every zone (I12).

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use tidegate_core::Unix;
use tidegate_policy::period::{Interval, Period};

fn unix(text: &str) -> Unix {
    Unix::from_ms(text.parse::<Timestamp>().unwrap().as_millisecond())
}

fn interval(start: &str, end: &str) -> Interval {
    Interval { start: unix(start), end: unix(end) }
}

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

#[test]
fn days_of_23_and_25_hours_are_days() {
    let berlin = zone("Europe/Berlin");
    let spring = Period::Day.of(unix("2026-03-29T12:00:00Z"), &berlin);
    assert_eq!(spring, interval("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"));
    let autumn = Period::Day.of(unix("2026-10-25T12:00:00Z"), &berlin);
    assert_eq!(autumn, interval("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"));
}

#[test]
fn months_end_where_the_calendar_says() {
    let seoul = zone("Asia/Seoul");
    let february = Period::Month.of(unix("2028-02-29T10:00:00Z"), &seoul);
    assert_eq!(february, interval("2028-01-31T15:00:00Z", "2028-02-29T15:00:00Z"));
    let december = Period::Month.of(unix("2026-12-31T14:59:59.999Z"), &seoul);
    assert_eq!(december, interval("2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z"));
    assert_eq!(Period::Month.of(unix("2026-12-31T15:00:00Z"), &seoul).start, december.end);
}

#[test]
fn a_skipped_date_has_no_day_and_no_gap() {
    // Samoa went from 29 to 31 December 2011.
    let apia = zone("Pacific/Apia");
    let last = Period::Day.of(unix("2011-12-30T09:59:59.999Z"), &apia);
    let next = Period::Day.of(unix("2011-12-30T10:00:00Z"), &apia);
    assert_eq!(last, interval("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"));
    assert_eq!(next, interval("2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"));
}

#[test]
fn clocks_set_back_over_midnight_leave_one_day_after_the_other() {
    // St John's, 1 November 2009: 00:01 became 23:01 of the day before.
    let zone = zone("America/St_Johns");
    let first_midnight = unix("2009-11-01T02:30:00Z");
    let before = Period::Day.of(Unix::from_ms(first_midnight.ms - 1), &zone);
    let after = Period::Day.of(first_midnight, &zone);
    assert_eq!(before.end, after.start);
    // The repeated 23:30 of 31 October belongs to the day that has begun.
    assert_eq!(Period::Day.of(unix("2009-11-01T03:00:00Z"), &zone), after);
}

/// Instants around every change of offset of a zone, and the first of some months.
fn probes(zone: &TimeZone) -> Vec<Unix> {
    let (from, until) = ("1970-01-02T00:00:00Z".parse().unwrap(), unix("2100-01-01T00:00:00Z"));
    let mut probes = vec![unix("1999-12-31T23:59:59.999Z"), unix("2000-02-29T12:00:00Z"), unix("2100-02-28T23:00:00Z")];
    for transition in zone.following(from) {
        let at = transition.timestamp().as_millisecond();
        if at > until.ms {
            break;
        }
        for by in [-3_600_000, -1, 0, 1_800_000, 3_660_000] {
            probes.push(Unix::from_ms(at + by));
        }
    }
    probes
}

#[test]
fn periods_are_a_partition_around_every_change_of_offset_of_every_zone() {
    let database = TimeZoneDatabase::from_env();
    let names: Vec<_> = database.available().map(|name| name.as_str().to_owned()).collect();
    assert!(names.len() > 300, "this machine has {} time zones: install tzdata", names.len());
    let mut checked = 0;
    let mut seen = BTreeSet::new();
    for name in names {
        let zone = database.get(&name).unwrap();
        let probes = probes(&zone);
        // Many names are links: one zone with the same changes to the same offsets is enough.
        if !seen.insert(probes.iter().map(|at| (*at, zone.to_offset(at.to_timestamp()))).collect::<Vec<_>>()) {
            continue;
        }
        for at in probes {
            for period in [Period::Day, Period::Month] {
                let found = period.of(at, &zone);
                assert!(found.contains(at), "{name} {period:?}: {at:?} is not in {found:?}");
                let next = period.of(found.end, &zone);
                assert_eq!(next.start, found.end, "{name} {period:?}: a gap or an overlap after {found:?}");
                assert_eq!(period.of(Unix::from_ms(found.end.ms - 1), &zone), found, "{name} {period:?}: split");
                assert_eq!(period.of(found.start, &zone), found, "{name} {period:?}: split");
                checked += 1;
            }
        }
    }
    assert!(seen.len() > 200 && checked > 100_000, "{checked}");
}

#[test]
fn instants_beyond_the_calendar_have_a_period_too() {
    for zone in [TimeZone::UTC, zone("Asia/Seoul"), zone("America/Los_Angeles")] {
        for at in [i64::MIN, -1, 0, i64::MAX - 1] {
            for period in [Period::Day, Period::Month] {
                let found = period.of(Unix::from_ms(at), &zone);
                assert!(found.start <= found.end, "{at}: {found:?}");
            }
        }
    }
}
