//! Schedules: which shifts there are, what is loaded in each, and on which days.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use tidegate_core::{DeploymentName, ShiftName};

use super::{Doc, Documents, check_name, distinct};
use crate::at::{At, Name, Report};
use crate::raw::schedule as raw;
use crate::site::{Atomicity, Lead, Schedule, ScheduleException, ShiftStart, Site, WeekdayOrd};

const MINUTE: u64 = 60;
const LEAD_DEFAULT: Lead = Lead {
    prefetch: Duration::from_secs(30 * MINUTE),
    verify: Duration::from_secs(20 * MINUTE),
    deploy: Duration::from_secs(15 * MINUTE),
    load: Duration::from_secs(10 * MINUTE),
    ready: Duration::from_secs(5 * MINUTE),
};
const DRAIN_DEFAULT: Duration = Duration::from_secs(5 * MINUTE);

/// The word that an exception uses for "no shift".
const NO_SHIFT: &str = "none";

/// Every shift that exists, with the whole set that is loaded in it.
#[derive(Debug)]
pub(super) struct Shifts {
    /// `None`: the set is not known, or every target belongs to it.
    pub(super) sets: BTreeMap<Name, Option<BTreeSet<Name>>>,
    /// Whether shifts may exist that are not here, because a document is broken.
    is_partial: bool,
}

impl Shifts {
    /// Whether a shift of this name exists, or may exist in what could not be read.
    pub(super) fn may_have(&self, name: &str, documents: &Documents) -> bool {
        self.is_partial || self.sets.contains_key(name) || documents.may_have(name)
    }
}

/// Collects the shifts of all schedules; the same name must mean the same set.
pub(super) fn shifts(documents: &Documents, report: &mut Report) -> Shifts {
    let mut sets: BTreeMap<Name, Option<BTreeSet<Name>>> = BTreeMap::new();
    let mut owners: BTreeMap<Name, Name> = BTreeMap::new();
    for (doc, spec) in documents.schedules.readable() {
        let root = At::root(&doc.origin);
        let at = root.key("spec");
        let at_list = at.key("shifts");
        for (index, shift) in spec.shifts.iter().flatten().enumerate() {
            let Some(name) = &shift.name else { continue };
            let name = Name::from(name.as_str());
            let set: Option<BTreeSet<Name>> =
                shift.deployments.as_ref().map(|list| list.iter().map(|name| Name::from(name.as_str())).collect());
            if let (Some(Some(first)), Some(set), Some(owner)) = (sets.get(&name), &set, owners.get(&name))
                && first != set
            {
                let differing: Vec<&str> = first.symmetric_difference(set).map(|name| &**name).collect();
                let message = format!("shift `{name}` has another set in Schedule `{owner}`");
                let hint = format!("same name, same set; they differ in {}", differing.join(", "));
                report.error_hint(&at_list.index(index).key("deployments"), message, hint);
            }
            sets.entry(Arc::clone(&name)).or_insert(set);
            owners.entry(name).or_insert_with(|| Arc::clone(&doc.name));
        }
    }
    if documents.schedules.iter().next().is_none() {
        sets.insert(Name::from(Site::ALWAYS), None);
    }
    // A shift may be missing here when its document or its list was broken, or when its name was.
    let is_whole = documents.schedules.iter().all(|doc| {
        let list = doc.spec.as_ref().and_then(|spec| spec.shifts.as_ref());
        list.is_some_and(|list| list.iter().all(|shift| shift.name.is_some()))
    });
    Shifts { sets, is_partial: !is_whole }
}

/// Checks all Schedules.
pub(super) fn check(
    documents: &Documents,
    shifts: &Shifts,
    zone: &TimeZone,
    report: &mut Report,
) -> BTreeMap<Name, Schedule> {
    let mut schedules: BTreeMap<Name, Schedule> = BTreeMap::new();
    let mut taken = Taken::default();
    for (doc, spec) in documents.schedules.readable() {
        let root = At::root(&doc.origin);
        let at = root.key("spec");
        let Some(schedule) = schedule(&at, spec, documents, shifts, zone, report) else { continue };
        one_schedule_per_date(&at, doc, &schedule, &mut taken, report);
        schedules.insert(Arc::clone(&doc.name), schedule);
    }
    schedules
}

/// Whose each day of the week and each date is.
#[derive(Default)]
struct Taken {
    days: BTreeMap<WeekdayOrd, Name>,
    dates: BTreeMap<Date, Name>,
}

/// A date has at most one Schedule: days of the week against days, dates against dates (dates beat days).
fn one_schedule_per_date(
    at: &At<'_>,
    doc: &Doc<raw::Schedule>,
    schedule: &Schedule,
    taken: &mut Taken,
    report: &mut Report,
) {
    for day in &schedule.days {
        let owner = taken.days.entry(*day).or_insert_with(|| Arc::clone(&doc.name));
        if *owner != doc.name {
            let message = format!("{} has two Schedules: `{owner}` and `{}`", day_name(day.0), doc.name);
            let hint = "give each its own `days`, or name `dates`, which beat days".to_owned();
            report.error_hint(&at.key("days"), message, hint);
        }
    }
    for date in &schedule.dates {
        let owner = taken.dates.entry(*date).or_insert_with(|| Arc::clone(&doc.name));
        if *owner != doc.name {
            report.error(&at.key("dates"), format!("{date} has two Schedules: `{owner}` and `{}`", doc.name));
        }
    }
}

const fn day_name(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "mon",
        Weekday::Tuesday => "tue",
        Weekday::Wednesday => "wed",
        Weekday::Thursday => "thu",
        Weekday::Friday => "fri",
        Weekday::Saturday => "sat",
        Weekday::Sunday => "sun",
    }
}

const fn weekday(day: raw::Weekday) -> Weekday {
    match day {
        raw::Weekday::Mon => Weekday::Monday,
        raw::Weekday::Tue => Weekday::Tuesday,
        raw::Weekday::Wed => Weekday::Wednesday,
        raw::Weekday::Thu => Weekday::Thursday,
        raw::Weekday::Fri => Weekday::Friday,
        raw::Weekday::Sat => Weekday::Saturday,
        raw::Weekday::Sun => Weekday::Sunday,
    }
}

fn schedule(
    at: &At<'_>,
    spec: &raw::Schedule,
    documents: &Documents,
    shifts: &Shifts,
    zone: &TimeZone,
    report: &mut Report,
) -> Option<Schedule> {
    let raw::Schedule {
        time_zone,
        days,
        dates: raw_dates,
        exceptions,
        shifts: raw_shifts,
        lead,
        drain,
        atomicity,
        gap,
    } = spec;
    let mut dates = BTreeSet::new();
    for (index, date) in raw_dates.iter().enumerate() {
        if !dates.insert(date.0) {
            report.error(&at.key("dates").index(index), format!("{date} stands twice"));
        }
    }
    let days = self::days(&at.key("days"), days.as_deref(), dates.is_empty(), report);
    let exceptions = self::exceptions(&at.key("exceptions"), exceptions, documents, shifts, report);
    let lead = self::lead(&at.key("lead"), lead.as_ref(), report);
    let list = report.required(at, "shifts", raw_shifts.as_ref())?;
    Some(Schedule {
        time_zone: time_zone.as_ref().map_or_else(|| zone.clone(), |zone| zone.0.clone()),
        days,
        dates,
        exceptions,
        shifts: starts(&at.key("shifts"), list, documents, report),
        lead,
        drain_timeout: drain.as_ref().and_then(|drain| drain.timeout).map_or(DRAIN_DEFAULT, |span| span.0),
        atomicity: match atomicity {
            None | Some(raw::Atomicity::PerAlias) => Atomicity::PerAlias,
            Some(raw::Atomicity::Set) => Atomicity::Set,
        },
        gap_allowed: gap.as_ref().and_then(|gap| gap.allowed).map_or(Duration::ZERO, |span| span.0),
    })
}

fn days(at: &At<'_>, raw: Option<&[raw::Weekday]>, is_default_all: bool, report: &mut Report) -> BTreeSet<WeekdayOrd> {
    let Some(raw) = raw else {
        let all = Weekday::Monday.cycle_forward().take(if is_default_all { 7 } else { 0 });
        return all.map(WeekdayOrd).collect();
    };
    let mut days = BTreeSet::new();
    for (index, day) in raw.iter().enumerate() {
        if !days.insert(WeekdayOrd(weekday(*day))) {
            report.error(&at.index(index), format!("{} stands twice", day_name(weekday(*day))));
        }
    }
    if raw.is_empty() {
        report.error(at, "no day at all");
    }
    days
}

fn exceptions(
    at: &At<'_>,
    raw: &[raw::Exception],
    documents: &Documents,
    shifts: &Shifts,
    report: &mut Report,
) -> BTreeMap<Date, ScheduleException> {
    let mut exceptions = BTreeMap::new();
    for (index, raw::Exception { date, shift }) in raw.iter().enumerate() {
        let at = at.index(index);
        let date = report.required(&at, "date", date.as_ref());
        let shift = report.required(&at, "use", shift.as_ref());
        let (Some(date), Some(shift)) = (date, shift) else { continue };
        if shift != NO_SHIFT && !shifts.may_have(shift, documents) {
            report.unknown(&at.key("use"), "shift", shift, shifts.sets.keys().map(|name| &**name).chain([NO_SHIFT]));
        }
        let exception = match shift.as_str() {
            NO_SHIFT => ScheduleException::None,
            shift => ScheduleException::Use(ShiftName::from(shift)),
        };
        if exceptions.insert(date.0, exception).is_some() {
            report.error(&at.key("date"), format!("{date} stands twice"));
        }
    }
    exceptions
}

fn starts(at: &At<'_>, raw: &[raw::Shift], documents: &Documents, report: &mut Report) -> Vec<ShiftStart> {
    if raw.is_empty() {
        report.error(at, "a Schedule has at least one shift");
    }
    let mut seen = BTreeMap::new();
    let mut starts = Vec::new();
    for (index, raw::Shift { name, start, deployments }) in raw.iter().enumerate() {
        let at = at.index(index);
        let name = report.required(&at, "name", name.as_ref());
        let start = report.required(&at, "start", start.as_ref());
        let deployments = report.required(&at, "deployments", deployments.as_ref());
        if let Some(name) = name {
            check_name(&at.key("name"), name, report);
            if name == NO_SHIFT {
                report.error(&at.key("name"), "`none` is what exceptions call no shift");
            }
        }
        let set = deployments.map(|list| set(&at.key("deployments"), list, documents, report));
        let (Some(name), Some(start), Some(set)) = (name, start, set) else { continue };
        if let Some(other) = seen.insert(start.0, name) {
            report.error(&at.key("start"), format!("shift `{other}` starts at that time too"));
        }
        starts.push(ShiftStart { name: ShiftName::from(name.as_str()), start: start.0, deployments: set });
    }
    starts
}

fn set(at: &At<'_>, list: &[String], documents: &Documents, report: &mut Report) -> BTreeSet<DeploymentName> {
    let mut set = BTreeSet::new();
    for (index, name) in distinct(at, list, report) {
        if !documents.deployments.contains(name) && !documents.may_have(name) {
            report.unknown(&at.index(index), "Deployment", name, documents.deployments.names());
        }
        set.insert(DeploymentName::from(name));
    }
    set
}

fn lead(at: &At<'_>, raw: Option<&raw::Lead>, report: &mut Report) -> Lead {
    let default = raw::Lead::default();
    let raw::Lead { prefetch, verify, deploy, load, ready } = raw.unwrap_or(&default);
    let span = |span: &Option<crate::quantity::Span>, default: Duration| span.map_or(default, |span| span.0);
    let lead = Lead {
        prefetch: span(prefetch, LEAD_DEFAULT.prefetch),
        verify: span(verify, LEAD_DEFAULT.verify),
        deploy: span(deploy, LEAD_DEFAULT.deploy),
        load: span(load, LEAD_DEFAULT.load),
        ready: span(ready, LEAD_DEFAULT.ready),
    };
    let steps = [
        ("prefetch", lead.prefetch),
        ("verify", lead.verify),
        ("deploy", lead.deploy),
        ("load", lead.load),
        ("ready", lead.ready),
    ];
    for pair in steps.windows(2) {
        if let [(before, earlier), (after, later)] = pair
            && earlier < later
        {
            report.error(&at.key(after), format!("`{after}` starts before `{before}`, the step before it"));
        }
    }
    lead
}
