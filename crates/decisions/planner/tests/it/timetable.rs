//! Which shift is in force when.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use tidegate_core::ShiftName;
use tidegate_planner::desired::{self, Why};
use tidegate_planner::{Override, Timetable};

use crate::site_of::{at, scheduled};

const WEEKDAY: &str = "{days: [mon, tue, wed, thu, fri], shifts: [{name: day, start: '08:00', deployments: [d]}, {name: night, start: '22:00', deployments: [d]}]}";
const WEEKEND: &str = "{days: [sat, sun], shifts: [{name: quiet, start: '10:00', deployments: [d]}]}";

fn shift_at(schedules: &[&str], now: &str) -> String {
    desired::desired(&scheduled(schedules), None, at(now)).shift.to_string()
}

#[test]
fn golden_14_day_and_night_in_seoul() {
    let schedule = "{timeZone: Asia/Seoul, shifts: [{name: day, start: '08:00', deployments: [d]}, {name: night, start: '22:00', deployments: [d]}]}";
    for (now, shift) in [
        ("2026-12-02T07:59:59+09:00", "night"),
        ("2026-12-02T08:00:00+09:00", "day"),
        ("2026-12-02T21:59:59+09:00", "day"),
        ("2026-12-02T22:00:00+09:00", "night"),
    ] {
        assert_eq!(shift_at(&[schedule], now), shift, "{now}");
    }
}

#[test]
fn a_shift_lasts_over_the_weekend_until_another_schedule_starts() {
    // 2026-12-04 is a Friday.
    assert_eq!(shift_at(&[WEEKDAY], "2026-12-06T12:00:00+09:00"), "night");
    assert_eq!(shift_at(&[WEEKDAY, WEEKEND], "2026-12-05T09:59:59+09:00"), "night");
    assert_eq!(shift_at(&[WEEKDAY, WEEKEND], "2026-12-05T10:00:00+09:00"), "quiet");
    assert_eq!(shift_at(&[WEEKDAY, WEEKEND], "2026-12-07T07:59:59+09:00"), "quiet");
    assert_eq!(shift_at(&[WEEKDAY, WEEKEND], "2026-12-07T08:00:00+09:00"), "day");
}

#[test]
fn dates_beat_days_and_exceptions_beat_both() {
    let holiday = "{dates: ['2026-12-25'], shifts: [{name: feast, start: '06:00', deployments: [d]}]}";
    assert_eq!(shift_at(&[WEEKDAY, holiday], "2026-12-25T09:00:00+09:00"), "feast");
    assert_eq!(shift_at(&[WEEKDAY, holiday], "2026-12-25T23:00:00+09:00"), "feast", "the date has no other start");
    let with = |exception: &str| WEEKDAY.replace("shifts:", &format!("exceptions: [{exception}], shifts:"));
    let all_night = with("{date: '2026-12-02', use: night}");
    assert_eq!(shift_at(&[&all_night], "2026-12-02T00:00:00+09:00"), "night");
    assert_eq!(shift_at(&[&all_night], "2026-12-02T12:00:00+09:00"), "night");
    assert_eq!(shift_at(&[&all_night], "2026-12-03T08:00:00+09:00"), "day");
    let none = with("{date: '2026-12-02', use: none}");
    assert_eq!(shift_at(&[&none], "2026-12-02T12:00:00+09:00"), "night", "yesterday's night goes on");
    let on_saturday = with("{date: '2026-12-05', use: day}");
    let why = desired::desired(&scheduled(&[&on_saturday]), None, at("2026-12-05T12:00:00+09:00")).why;
    assert!(matches!(why, Why::Exception(slot) if slot.date.to_string() == "2026-12-05"));
}

#[test]
fn a_start_that_the_clocks_skip_happens_at_the_jump_and_one_that_they_repeat_happens_once() {
    let schedule = "{timeZone: America/New_York, shifts: [{name: early, start: '02:30', deployments: [d]}, {name: late, start: '12:00', deployments: [d]}]}";
    let site = scheduled(&[schedule]);
    let timetable = Timetable::new(&site.schedules);
    let spring = timetable.next(at("2024-03-10T00:00:00-05:00")).unwrap();
    assert_eq!(spring.at, at("2024-03-10T03:00:00-04:00"));
    let repeated = schedule.replace("02:30", "01:30");
    let site = scheduled(&[&repeated]);
    let timetable = Timetable::new(&site.schedules);
    let starts = timetable.between(at("2024-11-03T00:00:00-04:00"), at("2024-11-04T00:00:00-05:00"));
    assert_eq!(starts.len(), 2);
    assert_eq!(starts[0].at, at("2024-11-03T01:30:00-04:00"), "the first of the two");
}

#[test]
fn of_two_starts_at_one_instant_the_later_civil_time_wins() {
    let schedule = "{timeZone: America/New_York, shifts: [{name: a, start: '02:10', deployments: [d]}, {name: b, start: '02:40', deployments: [d]}]}";
    let site = scheduled(&[schedule]);
    let timetable = Timetable::new(&site.schedules);
    let jump = at("2024-03-10T03:00:00-04:00");
    assert_eq!(timetable.in_force(jump).unwrap().slot.shift.as_str(), "b");
    assert_eq!(timetable.next(at("2024-03-10T01:00:00-05:00")).unwrap().slot.shift.as_str(), "b");
    assert_eq!(timetable.between(jump, at("2024-03-10T04:00:00-04:00")).len(), 1);
    // Samoa had no 30 December 2011: its starts fall on the first instant of the 31st.
    let samoa = "{timeZone: Pacific/Apia, shifts: [{name: day, start: '08:00', deployments: [d]}, {name: night, start: '22:00', deployments: [d]}]}";
    let site = scheduled(&[samoa]);
    let midnight = at("2011-12-31T00:00:00+14:00");
    let start = Timetable::new(&site.schedules).in_force(midnight).unwrap();
    assert_eq!((start.at, start.slot.shift.as_str()), (midnight, "night"));
}

#[test]
fn a_yearly_date_is_found_however_far_it_is() {
    let lonely = "{dates: ['2020-01-01', '2040-01-01'], shifts: [{name: rare, start: '06:00', deployments: [d]}]}";
    let site = scheduled(&[lonely]);
    let timetable = Timetable::new(&site.schedules);
    let now = at("2030-06-01T00:00:00Z");
    assert_eq!(timetable.in_force(now).unwrap().slot.date.to_string(), "2020-01-01");
    assert_eq!(timetable.next(now).unwrap().slot.date.to_string(), "2040-01-01");
    let before = desired::desired(&site, None, at("2019-01-01T00:00:00Z"));
    assert_eq!((before.shift.as_str(), before.why), ("rare", Why::BeforeFirstStart));
}

#[test]
fn an_override_lasts_until_the_next_start_or_until_it_says() {
    let site = scheduled(&[WEEKDAY]);
    let made = at("2026-12-02T12:00:00+09:00");
    let over = |until| Override { shift: ShiftName::from("night"), made, until };
    let shift = |over: &Override, now: &str| desired::desired(&site, Some(over), at(now)).shift.to_string();
    assert_eq!(shift(&over(None), "2026-12-02T12:00:00+09:00"), "night");
    assert_eq!(shift(&over(None), "2026-12-02T11:59:59+09:00"), "day", "not before it was said");
    assert_eq!(shift(&over(None), "2026-12-03T08:00:00+09:00"), "day", "it ended at 22:00");
    let until = Some(at("2026-12-02T13:00:00+09:00"));
    assert_eq!(shift(&over(until), "2026-12-02T12:59:59+09:00"), "night");
    assert_eq!(shift(&over(until), "2026-12-02T13:00:00+09:00"), "day");
}

#[test]
fn without_a_schedule_there_is_one_shift_for_ever() {
    let site = scheduled(&[]);
    let answer = desired::desired(&site, None, at("2026-12-02T12:00:00Z"));
    assert_eq!((answer.shift.as_str(), answer.why, answer.until), ("always", Why::Always, None));
    assert_eq!(desired::set_of(&site, &answer.shift).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is asked when: the answer agrees with the list of all starts, and does not depend on earlier questions.
    #[test]
    fn the_shift_in_force_is_the_last_start_of_the_whole_line(
        seconds in 1_700_000_000_i64..1_800_000_000,
        zones in proptest::collection::vec(prop::sample::select(vec!["Asia/Seoul", "America/New_York", "Pacific/Apia", "Europe/Berlin", "Australia/Lord_Howe"]), 2),
        hours in proptest::collection::vec(0_u8..24, 4),
    ) {
        let shifts = |names: [&str; 2], hours: &[u8]| {
            let second = (hours[1] + u8::from(hours[0] == hours[1])) % 24;
            format!("shifts: [{{name: {}, start: '{:02}:30', deployments: [d]}}, {{name: {}, start: '{second:02}:30', deployments: [d]}}]", names[0], hours[0], names[1])
        };
        let a = format!("{{timeZone: {}, days: [mon, wed, fri], exceptions: [{{date: '2024-03-11', use: none}}], {}}}", zones[0], shifts(["a", "b"], &hours[..2]));
        let b = format!("{{timeZone: {}, days: [tue, sat], {}}}", zones[1], shifts(["c", "e"], &hours[2..]));
        let site = scheduled(&[&a, &b]);
        let timetable = Timetable::new(&site.schedules);
        let now = Timestamp::from_second(seconds).unwrap();
        let span = SignedDuration::from_hours(24 * 12);
        let line = timetable.between(now - span, now + span);
        let expected = line.iter().rfind(|start| start.at <= now);
        prop_assert_eq!(timetable.in_force(now), expected.cloned());
        let next = line.iter().find(|start| start.at > now);
        prop_assert_eq!(timetable.next(now), next.cloned());
        let change = line.iter().find(|start| start.at > now && Some(&start.slot.shift) != expected.map(|start| &start.slot.shift));
        prop_assert_eq!(timetable.next_change(now), change.cloned());
        prop_assert!(line.windows(2).all(|pair| pair[0].at < pair[1].at));
    }
}
