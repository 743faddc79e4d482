//! Rebuilding counts after a restart, before the listener opens: otherwise kill and start would admit twice the limit
//! in a minute, and a quota a second time in a day.
//!
//! Windows come from the journals' admissions of the last minute, periods from the ledger's sums. Which sums: see
//! [`Rebuild::spans`]; teams may live in zones where a day began at another instant.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate_config::site::Site;
use tidegate_core::{AliasName, KeyId, Level, Monotonic, Reservation, TeamName, Unix};

use super::{AdmitError, MemoryCounters, Rules, SubjectKey, Subjects};
use crate::period::Period;

/// A sum that the ledger has to be asked for: every subject of one level, since an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Subjects of this level.
    pub level: Level,
    /// Day or month.
    pub period: Period,
    /// Start of the period, inclusive.
    pub since: Unix,
}

/// The names in one of the ledger's sums; those that do not belong to the level are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// Team; of a key too, because its periods are in the team's zone.
    pub team: Option<&'a str>,
    /// Alias that was charged.
    pub alias: Option<&'a str>,
    /// Issuer.
    pub issuer: Option<&'a str>,
    /// Caller inside its issuer.
    pub caller: Option<&'a str>,
    /// API key.
    pub key: Option<&'a str>,
}

impl Names<'_> {
    /// The subject; `None` when a name that its level needs is missing.
    #[must_use]
    pub fn subject(&self, level: Level) -> Option<SubjectKey> {
        let alias = || self.alias.map(AliasName::from);
        let team = || self.team.map(TeamName::from);
        Some(match level {
            Level::Alias => SubjectKey::alias(&alias()?),
            Level::Team => SubjectKey::team(&team()?),
            Level::TeamAlias => SubjectKey::team_alias(&team()?, &alias()?),
            Level::Caller => SubjectKey::caller_parts(self.issuer?, self.caller?, &team()?),
            Level::Key => SubjectKey::key(&self.key.map(KeyId::from)?),
        })
    }
}

/// One rebuild, at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Rebuild<'a> {
    /// What is rebuilt: counters that have admitted nothing yet.
    pub counters: &'a MemoryCounters,
    /// For the zones of periods.
    pub site: &'a Site,
    /// Now.
    pub now: Monotonic,
    /// Now.
    pub wall: Unix,
}

impl Rebuild<'_> {
    /// The zone of a subject's periods: the team's, and the site's for an alias. A team that the documents no longer
    /// have is in UTC.
    fn zone(&self, level: Level, team: Option<&str>) -> TimeZone {
        match level {
            Level::Alias => self.site.time_zone.clone(),
            Level::Team | Level::TeamAlias | Level::Caller | Level::Key => {
                team.and_then(|team| self.site.teams.get(team)).map_or(TimeZone::UTC, |team| team.time_zone.clone())
            }
        }
    }

    /// Limits follow with the first request; until then only the zone matters.
    fn rules(&self, level: Level, team: Option<&str>) -> Rules {
        Rules { zone: self.zone(level, team), ..Rules::default() }
    }

    /// Counts one admission of the last minute, `age` ago; oldest first. Zero is the age of one of another boot, whose
    /// age nobody knows: it counts in full.
    ///
    /// # Errors
    /// [`AdmitError::Full`] when no more subjects can be held.
    pub fn admission(&self, reservation: &Reservation, tokens: u64, age: Duration) -> Result<(), AdmitError> {
        let Reservation { issuer, caller, team, key, alias, .. } = reservation;
        let mut keys = vec![
            SubjectKey::alias(alias),
            SubjectKey::team(team),
            SubjectKey::team_alias(team, alias),
            SubjectKey::caller_parts(issuer, caller.as_str(), team),
        ];
        keys.extend(key.as_ref().map(SubjectKey::key));
        let wanted: Vec<_> = keys
            .into_iter()
            .map(|key| {
                let rules = self.rules(key.level(), Some(team.as_str()));
                (key, rules)
            })
            .collect();
        let subjects: &Subjects = &*self.counters.subjects_now(&wanted, self.now, self.wall)?;
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        self.counters.restore_window(subjects, Monotonic::from_ns(self.now.ns.saturating_sub(age_ns)), tokens);
        Ok(())
    }

    /// The sums to ask the ledger for.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let teams = self.site.teams.values().map(|team| team.time_zone.clone());
        let zones: Vec<_> = teams.chain([TimeZone::UTC]).collect();
        let mut spans = BTreeSet::new();
        for level in Level::ALL {
            for period in [Period::Day, Period::Month] {
                let of_level = if level == Level::Alias { std::slice::from_ref(&self.site.time_zone) } else { &zones };
                let since = of_level.iter().map(|zone| period.of(self.wall, zone).start);
                spans.extend(since.map(|since| Span { level, period, since }));
            }
        }
        spans.into_iter().collect()
    }

    /// Takes one sum of a span over. It is not counted, and `false`, where the subject's own period began at another
    /// instant: that span has its sum.
    ///
    /// # Errors
    /// [`AdmitError::Full`] when no more subjects can be held.
    pub fn sum(&self, span: Span, names: &Names<'_>, tokens: u64) -> Result<bool, AdmitError> {
        let Some(key) = names.subject(span.level) else { return Ok(false) };
        let rules = self.rules(span.level, names.team);
        if span.period.of(self.wall, &rules.zone).start != span.since {
            return Ok(false);
        }
        let subject = self.counters.subject(&key, &rules, self.now, self.wall)?;
        self.counters.restore_quota(&subject, span.period, self.wall, tokens);
        Ok(true)
    }
}
