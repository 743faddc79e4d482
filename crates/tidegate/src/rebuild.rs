//! Limits after a restart: what the journals and the ledger know is counted before the first request comes, or a kill
//! and a start would admit everything twice.

use jiff::tz::TimeZone;
use tidegate_config::Site;
use tidegate_core::{Level, Monotonic, Reservation, Unix};
use tidegate_policy::limiter::{AdmitError, MemoryCounters, Rules, SubjectKey, Subjects};
use tidegate_policy::period::Period;
use tidegate_store::store::PeriodSum;
use tidegate_store::{Recovery, Store};

/// Counts the last minute's admissions and the current days' and months' charges.
pub(crate) async fn rebuild(
    counters: &MemoryCounters,
    site: &Site,
    store: &Store,
    recovery: &Recovery,
    (now, wall): (Monotonic, Unix),
) -> anyhow::Result<()> {
    for admission in &recovery.admissions {
        let at = Monotonic::from_ns(now.ns.saturating_sub(admission.age.as_nanos() as u64));
        let subjects = subjects_of(counters, site, &admission.reservation, now, wall).map_err(|error| full(&error))?;
        counters.restore_window(&subjects, at, admission.tokens());
    }
    for level in Level::ALL {
        for zone in zones(site, level) {
            quotas(counters, site, store, level, &zone, (now, wall)).await?;
        }
    }
    Ok(())
}

/// The zones in which subjects of a level have their days.
fn zones(site: &Site, level: Level) -> Vec<TimeZone> {
    let mut zones = Vec::new();
    let all = match level {
        Level::Alias => vec![site.time_zone.clone()],
        Level::Team | Level::TeamAlias | Level::Caller | Level::Key => {
            site.teams.values().map(|team| team.time_zone.clone()).collect()
        }
    };
    for zone in all {
        if !zones.contains(&zone) {
            zones.push(zone);
        }
    }
    zones
}

async fn quotas(
    counters: &MemoryCounters,
    site: &Site,
    store: &Store,
    level: Level,
    zone: &TimeZone,
    (now, wall): (Monotonic, Unix),
) -> anyhow::Result<()> {
    for period in [Period::Day, Period::Month] {
        for sum in store.period_sums(level, period.of(wall, zone).start).await? {
            let Some((key, own_zone)) = subject_of(site, level, &sum).filter(|(_, own)| own == zone) else { continue };
            let rules = Rules { zone: own_zone, ..Rules::default() };
            let subject = counters.subject(&key, &rules, now, wall).map_err(|error| full(&error))?;
            counters.restore_quota(&subject, period, wall, sum.tokens);
        }
    }
    Ok(())
}

fn full(error: &AdmitError) -> anyhow::Error {
    anyhow::anyhow!("the limits cannot be rebuilt: {error:?}")
}

/// The subject that a sum is of, and its zone; `None` when the documents do not know it any more.
fn subject_of(site: &Site, level: Level, sum: &PeriodSum) -> Option<(SubjectKey, TimeZone)> {
    if level == Level::Alias {
        return Some((SubjectKey::alias(sum.alias.as_ref()?), site.time_zone.clone()));
    }
    let team = sum.team.as_ref()?;
    let zone = site.teams.get(team)?.time_zone.clone();
    let key = match level {
        Level::Alias => return None,
        Level::Team => SubjectKey::team(team),
        Level::TeamAlias => SubjectKey::team_alias(team, sum.alias.as_ref()?),
        Level::Caller => SubjectKey::caller_parts(sum.issuer.as_deref()?, sum.caller.as_ref()?.as_str(), team),
        Level::Key => SubjectKey::key(sum.key.as_ref()?),
    };
    Some((key, zone))
}

fn subjects_of(
    counters: &MemoryCounters,
    site: &Site,
    reservation: &Reservation,
    now: Monotonic,
    wall: Unix,
) -> Result<Subjects, AdmitError> {
    let team = &reservation.team;
    let zone = site.teams.get(team).map_or_else(|| site.time_zone.clone(), |team| team.time_zone.clone());
    let mut keys = vec![
        (SubjectKey::alias(&reservation.alias), site.time_zone.clone()),
        (SubjectKey::team(team), zone.clone()),
        (SubjectKey::team_alias(team, &reservation.alias), zone.clone()),
        (SubjectKey::caller_parts(&reservation.issuer, reservation.caller.as_str(), team), zone.clone()),
    ];
    keys.extend(reservation.key.as_ref().map(|key| (SubjectKey::key(key), zone)));
    let subjects: Result<Vec<_>, _> = keys
        .into_iter()
        .map(|(key, zone)| counters.subject(&key, &Rules { zone, ..Rules::default() }, now, wall))
        .collect();
    Ok(Subjects::new(subjects?))
}
