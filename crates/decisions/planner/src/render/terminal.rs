//! A plan as text.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tidegate_core::DeploymentName;

use super::{clock, frame};
use crate::memory;
use crate::plan::{Bar, BarKind, Change, Departure, End, Lane, Plan, Route, held, lanes};
use crate::span;

/// Narrowest picture, in characters.
const WIDTH_MIN: usize = 24;

/// The plan in at most `width` columns, times in `zone`.
#[must_use]
pub fn terminal(plan: &Plan, zone: &TimeZone, width: usize) -> String {
    let mut out = String::new();
    let when = plan.at.to_zoned(zone.clone()).strftime("%a %Y-%m-%d %H:%M %Z").to_string();
    let _ = writeln!(out, "{} -> {}   {when}", plan.from, plan.to);
    if plan.is_empty() {
        let _ = writeln!(out, "\nnothing changes: every deployment stays");
        return out;
    }
    comes(plan, zone, &mut out);
    goes(plan, zone, &mut out);
    aliases(plan, zone, &mut out);
    fetches(plan, &mut out);
    timeline(plan, zone, width, &mut out);
    failures(plan, &mut out);
    out
}

fn comes(plan: &Plan, zone: &TimeZone, out: &mut String) {
    for change in &plan.changes {
        let seats: Vec<String> = change.seats.iter().map(|(_, seat)| seat.to_string()).collect();
        let _ = writeln!(out, "\n{}  {}  on {}", change.deployment, change.strategy, seats.join(", "));
        let _ = writeln!(out, "  why    {}", why(change));
        let steps = change.steps.iter().map(|step| format!("{} {}", clock(step.from, zone), step.phase.as_str()));
        let steps: Vec<String> = steps.collect();
        let _ = writeln!(out, "  steps  {}, {} ready", steps.join(", "), clock(change.ready_at, zone));
    }
}

/// Why a change has its strategy.
fn why(change: &Change) -> String {
    let full = change.beside_old.as_ref().map(|(gpu, booked, all)| {
        let (booked_gb, all_gb) = (memory::gigabytes(*booked), memory::gigabytes(*all));
        format!("old and new take {booked_gb} of {all_gb} on GPU {gpu} ({})", memory::percent(*booked, *all))
    });
    let full = full.unwrap_or_else(|| "the memory of its GPUs is not known".to_owned());
    let names: Vec<&str> = change.displaces.iter().map(DeploymentName::as_str).collect();
    let after = change.after.as_ref().map_or_else(String::new, |first| format!("; after {first} is proven"));
    match change.strategy {
        crate::strategy::Strategy::Spare => "shares no GPU with an old one".to_owned(),
        crate::strategy::Strategy::Overlap => full,
        crate::strategy::Strategy::Sleep => format!("{full}: {} sleeps first{after}", names.join(", ")),
        crate::strategy::Strategy::Replace => format!("{full}: {} is stopped first{after}", names.join(", ")),
    }
}

fn goes(plan: &Plan, zone: &TimeZone, out: &mut String) {
    if !plan.departures.is_empty() {
        out.push('\n');
    }
    for Departure { deployment, drains_at, drained_by, gone_by, end, .. } in &plan.departures {
        let end = match end {
            End::Stop => "unloaded".to_owned(),
            End::Sleep { level } => format!("asleep, level {level},"),
        };
        let (from, by, gone) = (clock(*drains_at, zone), clock(*drained_by, zone), clock(*gone_by, zone));
        let _ = writeln!(out, "{deployment}  drains at {from}, drained by {by}, then {end} (from {gone} on)");
    }
}

fn aliases(plan: &Plan, zone: &TimeZone, out: &mut String) {
    if !plan.routes.is_empty() {
        out.push('\n');
    }
    for route in &plan.routes {
        let Route { alias, kind, at, gap, gap_from, served_by, .. } = route;
        let names = |targets: &[tidegate_config::site::Target]| {
            let names: Vec<&str> = targets.iter().map(|target| target.deployment.as_str()).collect();
            if names.is_empty() { "absent".to_owned() } else { names.join("+") }
        };
        let way = format!("{} -> {}", names(&route.from), names(&route.to));
        let _ = write!(out, "alias {alias}  {} at {}  {way}", kind.as_str(), clock(*at, zone));
        if *gap > Duration::ZERO {
            let who = served_by.as_ref().map_or_else(|| "nobody serves".to_owned(), |by| format!("{by} serves"));
            let is_over = if *gap > plan.rules.gap_allowed { ", more than is allowed" } else { "" };
            let _ = write!(out, "  gap {} from {}{is_over}: {who}", span(*gap), clock(*gap_from, zone));
        }
        out.push('\n');
    }
}

fn fetches(plan: &Plan, out: &mut String) {
    if plan.fetches.is_empty() {
        return;
    }
    match plan.bytes_to_fetch() {
        Some(0) => out.push_str("\nfetch: nothing, all models are cached\n"),
        Some(bytes) => {
            let _ = writeln!(out, "\nfetch: {}", memory::gigabytes(bytes));
        }
        None => out.push_str("\nfetch: not known before the agents have reported\n"),
    }
    for fetch in plan.fetches.iter().filter(|fetch| fetch.bytes.is_some_and(|bytes| bytes > 0)) {
        let _ = writeln!(out, "  {} on {}  {}", fetch.model, fetch.node, memory::gigabytes(fetch.bytes.unwrap_or(0)));
    }
}

/// One line per bar, grouped by GPUs with the same bars.
fn timeline(plan: &Plan, zone: &TimeZone, width: usize, out: &mut String) {
    let (from, until) = frame(plan);
    let mut groups: Vec<(Vec<Lane>, Vec<Bar>)> = Vec::new();
    for lane in lanes(plan, from, until) {
        let same = groups.last_mut().filter(|(lanes, bars)| {
            *bars == lane.bars && lanes.first().is_some_and(|first| first.gpu.node == lane.gpu.node)
        });
        match same {
            Some((lanes, _)) => lanes.push(lane),
            None => groups.push((vec![lane.clone()], lane.bars)),
        }
    }
    if groups.is_empty() {
        return;
    }
    let label = |lanes: &[Lane]| {
        let indices: Vec<u32> = lanes.iter().map(|lane| lane.gpu.index).collect();
        let node = lanes.first().map_or("", |lane| &*lane.gpu.node);
        format!("{node} {}", crate::placement::ranges(&indices))
    };
    let names = groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.deployment.as_str().chars().count());
    let margin = groups.iter().map(|(lanes, _)| label(lanes).chars().count()).max().unwrap_or(0);
    let margin = margin + names.max().unwrap_or(0) + 4;
    let columns = width.saturating_sub(margin).max(WIDTH_MIN);
    let scale = Scale { from, until, columns };
    let hour = scale.column(plan.at);
    let _ = writeln!(out, "\n{:margin$}{:hour$}v {}", "", "", clock(plan.at, zone));
    for (lanes, bars) in &groups {
        let mut label = label(lanes);
        let mut rest = bars.as_slice();
        while let Some(first) = rest.first() {
            let count = rest.iter().take_while(|bar| bar.deployment == first.deployment).count();
            let (own, others) = rest.split_at(count);
            let head = format!("{label}  {}", first.deployment);
            let indent = margin.saturating_sub(first.deployment.as_str().chars().count() + 2);
            let head = if label.is_empty() { format!("{:indent$}{}", "", first.deployment) } else { head };
            let _ = writeln!(out, "{head:margin$}{}", scale.line(own));
            label.clear();
            rest = others;
        }
    }
    out.push_str("  = serves  > loads  ^ warms  . ready  ~ drains  x stops  z sleeps\n");
}

struct Scale {
    from: Timestamp,
    until: Timestamp,
    columns: usize,
}

impl Scale {
    fn column(&self, at: Timestamp) -> usize {
        let whole = self.until.duration_since(self.from).as_secs().max(1);
        let part = at.duration_since(self.from).as_secs().clamp(0, whole);
        usize::try_from(part * self.columns as i64 / whole).unwrap_or(0)
    }

    fn line(&self, bars: &[Bar]) -> String {
        let mut line = vec![' '; self.columns];
        for bar in bars {
            let (first, last) = (self.column(bar.from), self.column(bar.until));
            // a bar that is there is seen, however short it is
            let last = last.max(first + 1).min(self.columns);
            line.iter_mut().take(last).skip(first).for_each(|cell| *cell = sign(bar.kind));
        }
        line.into_iter().collect::<String>().trim_end().to_owned()
    }
}

const fn sign(kind: BarKind) -> char {
    match kind {
        BarKind::Serves => '=',
        BarKind::Loads => '>',
        BarKind::Warms => '^',
        BarKind::Waits => '.',
        BarKind::Drains => '~',
        BarKind::Stops => 'x',
        BarKind::Sleeps => 'z',
    }
}

fn failures(plan: &Plan, out: &mut String) {
    out.push('\n');
    for change in &plan.changes {
        let outcome = held(plan, &[change.deployment.clone()].into());
        let list = |names: &mut dyn Iterator<Item = &DeploymentName>| {
            names.map(DeploymentName::as_str).collect::<Vec<_>>().join(", ")
        };
        let old = list(&mut outcome.old.iter());
        let new = list(&mut outcome.new.iter().filter(|name| **name != change.deployment));
        let keeps = if old.is_empty() { "no old one has to stay".to_owned() } else { format!("{old} stays") };
        let waits = if new.is_empty() { String::new() } else { format!(", {new} does not come") };
        let _ = writeln!(out, "if {} fails: {keeps}{waits}", change.deployment);
    }
}
