//! What is ahead: `tidegate plan` and `tidegate shifts`, and what `tidegate check` says of shifts that do not fit. The
//! decisions are `tidegate-planner`'s; here they get the documents and the clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tidegate_config::{Diagnostic, Severity, Site};
use tidegate_core::ShiftName;
use tidegate_planner::desired::{desired, set_of};
use tidegate_planner::hardware::Hardware;
use tidegate_planner::outlook::{Finding, Weight};
use tidegate_planner::plan::{Known, Plan};
use tidegate_planner::{Outlook, Timetable, render, timetable};

use crate::cli::{PlanArgs, ShiftsArgs};
use crate::{EXIT_DOCUMENTS, load, terminal};

/// What the planner finds in a site, as diagnostics of its documents; notices are for people only.
pub(crate) fn diagnostics(site: &Site) -> (Vec<Diagnostic>, Vec<String>) {
    let findings = tidegate_planner::outlook::check(site, Timestamp::now());
    let (notices, wrong): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| finding.weight == Weight::Notice);
    let diagnostic = |finding: Finding| {
        let Finding { weight, document, path, message, hints } = finding;
        Diagnostic {
            file: PathBuf::new(),
            line: 0,
            column: 0,
            severity: if weight == Weight::Refused { Severity::Error } else { Severity::Warning },
            document: Some(document),
            path,
            value: None,
            message,
            hint: (!hints.is_empty()).then(|| hints.join("; or ")),
        }
    };
    (wrong.into_iter().map(diagnostic).collect(), notices.into_iter().map(|notice| notice.message).collect())
}

/// The site of a folder of documents; says what is wrong when there is none.
fn site(documents: &Path) -> anyhow::Result<Option<Site>> {
    let checked = load::documents(documents)?;
    if checked.site.is_none() {
        checked.diagnostics.iter().for_each(|diagnostic| terminal::note(&diagnostic.render()));
        terminal::note("nothing is planned on wrong documents");
    }
    Ok(checked.site)
}

/// An instant, or a civil time in the site's zone; now, when nothing is said.
fn instant(site: &Site, text: Option<&str>) -> anyhow::Result<Timestamp> {
    let Some(text) = text else { return Ok(Timestamp::now()) };
    if let Ok(instant) = text.parse() {
        return Ok(instant);
    }
    let civil: DateTime = text
        .parse()
        .with_context(|| format!("`{text}` is no time: write 2026-12-01T22:00 or 2026-12-01T22:00+09:00"))?;
    timetable::first_instant(&site.time_zone, civil).with_context(|| format!("`{text}` is out of range"))
}

/// `tidegate plan`.
pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let Some(site) = site(&args.documents)? else { return Ok(ExitCode::from(EXIT_DOCUMENTS)) };
    let now = instant(&site, args.at.as_deref())?;
    let outlook = Outlook::new(&site, Hardware::of(&site), Known::default(), &BTreeMap::new());
    let Some(plan) = asked(args, &site, &outlook, now)? else {
        let shift = desired(&site, None, now).shift;
        terminal::answer(&format!("shift `{shift}` is there to stay: no Schedule has another one"));
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(path) = &args.svg {
        std::fs::write(path, render::svg(&plan, &site.time_zone))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        terminal::answer(&serde_json::to_string_pretty(&as_json(&plan))?);
    } else {
        terminal::answer(&render::terminal(&plan, &site.time_zone, args.width));
    }
    let (wrong, _) = diagnostics(&site);
    wrong.iter().for_each(|diagnostic| terminal::note(&diagnostic.render()));
    let is_refused = !plan.is_allowed() || wrong.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    Ok(if is_refused { ExitCode::from(EXIT_DOCUMENTS) } else { ExitCode::SUCCESS })
}

/// The plan that is asked for: a switch at once to a shift, or the next one of the Schedules.
fn asked(args: &PlanArgs, site: &Site, outlook: &Outlook<'_>, now: Timestamp) -> anyhow::Result<Option<Plan>> {
    let Some(to) = &args.to else { return Ok(outlook.next(None, now)) };
    let to = ShiftName::from(to.as_str());
    let shifts = site.shifts();
    if !shifts.contains(&to) {
        let names: Vec<&str> = shifts.iter().map(ShiftName::as_str).collect();
        bail!("there is no shift `{to}`: there are {}", names.join(", "));
    }
    let from = desired(site, None, now).shift;
    Ok(outlook.switch(&from, &to, now, outlook.rules(&to, now)))
}

fn as_json(plan: &Plan) -> Value {
    let seconds = |span: Duration| span.as_secs();
    let names = |targets: &[tidegate_config::site::Target]| -> Vec<String> {
        targets.iter().map(|target| target.deployment.to_string()).collect()
    };
    let changes = plan.changes.iter().map(|change| {
        let steps = change.steps.iter();
        json!({
            "deployment": change.deployment,
            "strategy": change.strategy.as_str(),
            "seats": change.seats.iter().map(|(_, seat)| seat.to_string()).collect::<Vec<_>>(),
            "displaces": change.displaces,
            "after": change.after,
            "steps": steps.map(|step| json!({"phase": step.phase.as_str(), "from": step.from.to_string(), "until": step.until.to_string()})).collect::<Vec<_>>(),
            "ready_at": change.ready_at.to_string(),
        })
    });
    let departures = plan.departures.iter().map(|old| {
        json!({
            "deployment": old.deployment,
            "drains_at": old.drains_at.to_string(),
            "drained_by": old.drained_by.to_string(),
            "gone_by": old.gone_by.to_string(),
        })
    });
    let aliases = plan.routes.iter().map(|route| {
        json!({
            "alias": route.alias,
            "kind": route.kind.as_str(),
            "at": route.at.to_string(),
            "from": names(&route.from),
            "to": names(&route.to),
            "gap_seconds": seconds(route.gap),
            "served_by": route.served_by,
        })
    });
    json!({
        "from": plan.from,
        "to": plan.to,
        "at": plan.at.to_string(),
        "allowed": plan.is_allowed(),
        "longest_gap_seconds": seconds(plan.longest_gap()),
        "bytes_to_fetch": plan.bytes_to_fetch(),
        "changes": changes.collect::<Vec<_>>(),
        "departures": departures.collect::<Vec<_>>(),
        "stays": plan.stays.iter().map(|(key, seat)| (key.to_string(), seat.to_string())).collect::<BTreeMap<_, _>>(),
        "aliases": aliases.collect::<Vec<_>>(),
    })
}

/// `tidegate shifts`.
pub(crate) fn shifts(args: &ShiftsArgs) -> anyhow::Result<ExitCode> {
    let Some(site) = site(&args.documents)? else { return Ok(ExitCode::from(EXIT_DOCUMENTS)) };
    let now = instant(&site, args.at.as_deref())?;
    let until = now.checked_add(SignedDuration::from_hours(24 * i64::from(args.days))).unwrap_or(Timestamp::MAX);
    let current = desired(&site, None, now);
    let starts = Timetable::new(&site.schedules).between(now, until);
    let set = |shift: &ShiftName| set_of(&site, shift).iter().map(ToString::to_string).collect::<Vec<_>>();
    if args.json {
        let list = starts.iter().map(|start| {
            let slot = &start.slot;
            json!({"at": start.at.to_string(), "shift": slot.shift, "schedule": &*slot.schedule, "date": slot.date.to_string()})
        });
        let sets: BTreeMap<_, _> = site.shifts().iter().map(|shift| (shift.to_string(), set(shift))).collect();
        let answer = json!({"now": current.shift, "until": current.until.map(|until| until.to_string()), "starts": list.collect::<Vec<_>>(), "sets": sets});
        terminal::answer(&serde_json::to_string_pretty(&answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    let when = |at: Timestamp| at.to_zoned(site.time_zone.clone()).strftime("%a %Y-%m-%d %H:%M").to_string();
    let mut lines = vec![format!("now                   {}  {}", current.shift, set(&current.shift).join(", "))];
    lines.extend(starts.iter().map(|start| {
        let exception = if start.is_exception { "  (exception)" } else { "" };
        let shift = &start.slot.shift;
        format!("{}  {shift}  {}{exception}", when(start.at), set(shift).join(", "))
    }));
    terminal::answer(&lines.join("\n"));
    Ok(ExitCode::SUCCESS)
}
