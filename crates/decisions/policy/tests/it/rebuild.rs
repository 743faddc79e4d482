//! Counts after a restart are those before it.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate_config::site::{Class, Site};
use tidegate_core::{
    AliasName, Caller, CallerName, Issuer, KeyId, Level, Limits, Monotonic, RequestId, Reservation, TeamName, Unix,
};
use tidegate_policy::limiter::{
    AdmitError, Demand, MemoryCounters, Names, Rebuild, Rules, SUBJECTS_MAX, Span, SubjectKey, Subjects,
};
use tidegate_policy::period::Period;

use crate::site::{site, team};

/// 2026-06-15T18:00:00Z: already the 16th in Seoul.
const WALL: Unix = Unix::from_ms(1_781_546_400_000);
const NOW: Monotonic = Monotonic::from_ms(900_000);

fn house() -> Site {
    let mut site = site(&[("glm", Class::General)]);
    for (name, zone) in [("seoul", "Asia/Seoul"), ("utc", "UTC")] {
        team(&mut site, name, Limits::default(), vec![], &[]);
        site.teams.get_mut(name).unwrap().time_zone = TimeZone::get(zone).unwrap();
    }
    site
}

/// The subjects of a request, as a gate would name them.
fn subjects(counters: &MemoryCounters, site: &Site, team: &str, limits: Limits) -> Arc<Subjects> {
    let (team, alias, key) = (TeamName::from(team), AliasName::from("glm"), KeyId::from("abcdefgh"));
    let zone = &site.teams[&team].time_zone;
    let caller = Caller {
        issuer: Issuer::Keyring,
        subject: CallerName::from("app"),
        team: team.clone(),
        key: Some(key.clone()),
    };
    let rules = |zone: &TimeZone| Rules { generation: 1, limits, zone: zone.clone() };
    let wanted = [
        (SubjectKey::alias(&alias), rules(&site.time_zone)),
        (SubjectKey::team(&team), rules(zone)),
        (SubjectKey::team_alias(&team, &alias), rules(zone)),
        (SubjectKey::caller(&caller), rules(zone)),
        (SubjectKey::key(&key), rules(zone)),
    ];
    counters.subjects_now(&wanted, NOW, WALL).unwrap()
}

fn reservation(team: &str) -> Reservation {
    Reservation {
        id: RequestId::new(WALL.ms as u64, 1),
        at: WALL,
        issuer: Issuer::Keyring.as_str().into(),
        caller: CallerName::from("app"),
        team: TeamName::from(team),
        key: Some(KeyId::from("abcdefgh")),
        alias: AliasName::from("glm"),
        prompt_tokens: 10,
        output_tokens: 20,
    }
}

#[test]
fn admissions_of_the_last_minute_count_at_all_five_levels() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: NOW, wall: WALL };
    for age in [59, 40, 0] {
        rebuild.admission(&reservation("seoul"), 30, Duration::from_secs(age)).unwrap();
    }
    let limits = Limits { rpm: Some(3), ..Limits::default() };
    let subjects = subjects(&counters, &site, "seoul", limits);
    for level in Level::ALL {
        let counts = subjects.at(level).unwrap().counts(NOW, WALL);
        assert_eq!((counts.requests, counts.tokens, counts.in_flight), (3, 90, 0), "{level}");
    }
    let demand = Demand { subjects: &subjects, tokens: 1, now: NOW, wall: WALL };
    let Err(AdmitError::Limit(refusal)) = counters.admit_now(RequestId::new(0, 9), demand) else {
        panic!("kill and start admitted more than the limit")
    };
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
}

#[test]
fn an_age_beyond_the_clocks_start_is_the_clocks_start() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: Monotonic::from_ms(5), wall: WALL };
    rebuild.admission(&reservation("utc"), 30, Duration::MAX).unwrap();
    assert_eq!(counters.known_subjects(), 5);
}

/// A ledger of one charge each at several instants: sums as a store would give them.
fn sums(span: Span, charges: &[(Unix, &'static str, u64)]) -> Vec<(Names<'static>, u64)> {
    ["seoul", "utc"]
        .into_iter()
        .filter_map(|team| {
            let of_team = charges.iter().filter(|(at, name, _)| *name == team && *at >= span.since);
            let tokens: u64 = of_team.map(|(_, _, tokens)| tokens).sum();
            let names = match span.level {
                Level::Team => Names { team: Some(team), ..Names::default() },
                Level::TeamAlias => Names { team: Some(team), alias: Some("glm"), ..Names::default() },
                Level::Caller => {
                    Names { team: Some(team), issuer: Some("keyring"), caller: Some("app"), ..Names::default() }
                }
                Level::Alias | Level::Key => return None,
            };
            (tokens > 0).then_some((names, tokens))
        })
        .collect()
}

#[test]
fn each_team_gets_the_sums_of_its_own_day_and_month() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: NOW, wall: WALL };
    let hours = |hours: i64| Unix::from_ms(WALL.ms - hours * 3_600_000);
    // Seoul's day began 3 hours ago, UTC's 18 hours ago; both months are the same June but for nine hours.
    let charges = [
        (hours(1), "seoul", 1),
        (hours(10), "seoul", 20),
        (hours(24 * 10), "seoul", 300),
        (hours(1), "utc", 4_000),
        (hours(10), "utc", 50_000),
        (hours(24 * 10), "utc", 600_000),
    ];
    let mut asked = 0;
    for span in rebuild.spans() {
        asked += 1;
        for (names, tokens) in sums(span, &charges) {
            rebuild.sum(span, &names, tokens).unwrap();
        }
    }
    assert_eq!(asked, 2 + 4 * 4, "alias in the site's zone; four levels in two zones, by day and month");
    for (team, daily, monthly) in [("seoul", 1, 321), ("utc", 54_000, 654_000)] {
        let subjects = subjects(&counters, &site, team, Limits::default());
        for level in [Level::Team, Level::TeamAlias, Level::Caller] {
            let counts = subjects.at(level).unwrap().counts(NOW, WALL);
            assert_eq!((counts.daily_tokens, counts.monthly_tokens), (daily, monthly), "{team} {level}");
        }
    }
}

#[test]
fn a_sum_without_the_names_of_its_level_is_nobodys() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: NOW, wall: WALL };
    for level in Level::ALL {
        let since = Period::Day.of(WALL, &TimeZone::UTC).start;
        let span = Span { level, period: Period::Day, since };
        assert!(!rebuild.sum(span, &Names::default(), 5).unwrap(), "{level}");
    }
    assert_eq!(counters.known_subjects(), 0);
}

#[test]
fn a_keys_sum_goes_to_the_day_of_its_team() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: NOW, wall: WALL };
    let names = Names { key: Some("abcdefgh"), team: Some("seoul"), ..Names::default() };
    let taken: Vec<_> = rebuild
        .spans()
        .into_iter()
        .filter(|span| span.level == Level::Key && rebuild.sum(*span, &names, 7).unwrap())
        .map(|span| span.period)
        .collect();
    assert_eq!(taken, [Period::Day, Period::Month]);
    let counts = subjects(&counters, &site, "seoul", Limits::default()).at(Level::Key).unwrap().counts(NOW, WALL);
    assert_eq!((counts.daily_tokens, counts.monthly_tokens), (7, 7));
}

#[test]
fn quota_sums_of_more_subjects_than_are_held_survive_a_restart() {
    let (site, counters) = (house(), MemoryCounters::new());
    let rebuild = Rebuild { counters: &counters, site: &site, now: NOW, wall: WALL };
    let keys: Vec<String> = (0..SUBJECTS_MAX + 5_000).map(|n| format!("{n:08}")).collect();
    // The ledger is asked for one span after the other: every subject comes twice.
    for span in rebuild.spans().into_iter().filter(|span| span.level == Level::Key) {
        for key in &keys {
            let names = Names { key: Some(key), team: Some("seoul"), ..Names::default() };
            let tokens = if span.period == Period::Day { 7 } else { 70 };
            rebuild.sum(span, &names, tokens).unwrap();
        }
    }
    // The first requests put the rules of the documents in force.
    let rules = Rules { generation: 1, limits: Limits::default(), zone: site.teams["seoul"].time_zone.clone() };
    for key in &keys {
        let subject = counters.subject(&SubjectKey::key(&KeyId::from(key.as_str())), &rules, NOW, WALL).unwrap();
        let counts = subject.counts(NOW, WALL);
        assert_eq!((counts.daily_tokens, counts.monthly_tokens), (7, 70), "{key}");
    }
}
