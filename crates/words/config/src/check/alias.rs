//! Aliases: what each is in every shift, and where it falls back to.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{AliasName, DeploymentName, Limits, ShiftName};

use super::schedule::Shifts;
use super::url::host_port;
use super::{Documents, distinct, site, within};
use crate::at::{At, Name, Report};
use crate::bounds::WEIGHT_MAX;
use crate::raw::alias as raw;
use crate::raw::{Class as RawClass, Limits as RawLimits};
use crate::site::{Alias, Deployment, DeploymentKind, ShiftTargets, Target, Timeouts};

const WEIGHT_DEFAULT: u32 = 100;

type Deployments = BTreeMap<DeploymentName, Deployment>;

/// What the checks of one alias look at.
struct Context<'c> {
    documents: &'c Documents,
    shifts: &'c Shifts,
    deployments: &'c Deployments,
    timeouts: Timeouts,
}

/// Checks all Aliases.
pub(super) fn check(
    documents: &Documents,
    shifts: &Shifts,
    deployments: &Deployments,
    timeouts: Timeouts,
    report: &mut Report,
) -> BTreeMap<AliasName, Alias> {
    let context = Context { documents, shifts, deployments, timeouts };
    let mut aliases = BTreeMap::new();
    for (doc, spec) in documents.aliases.readable() {
        let root = At::root(&doc.origin);
        let alias = context.alias(&root.key("spec"), spec, report);
        aliases.insert(AliasName::from(&*doc.name), alias);
    }
    context.substitutes(&aliases, report);
    context.fallbacks(&aliases, report);
    context.without_alias(&aliases, report);
    aliases
}

impl Context<'_> {
    fn alias(&self, at: &At<'_>, spec: &raw::Alias, report: &mut Report) -> Alias {
        let raw::Alias { targets, shifts, class, limits, fallback, timeouts, media_hosts } = spec;
        let shifts = match (targets, shifts) {
            (Some(targets), None) => self.in_every_shift(&at.key("targets"), targets, report),
            (None, Some(shifts)) => self.by_shift(&at.key("shifts"), shifts, report),
            (Some(_), Some(_)) => {
                report.error(&at.key("targets"), "`targets` and `shifts` at once");
                BTreeMap::new()
            }
            (None, None) => {
                let hint = "write targets: [{deployment: NAME}], or shifts".to_owned();
                report.error_hint(&at.key("targets"), "neither `targets` nor `shifts`", hint);
                BTreeMap::new()
            }
        };
        let (limits, shift_limits) = self.limits(limits.as_ref(), &shifts);
        Alias {
            shifts,
            class: class.map(RawClass::checked).unwrap_or_default(),
            limits,
            shift_limits,
            fallback: fallback.iter().map(|name| AliasName::from(name.as_str())).collect(),
            timeouts: site::timeouts(&at.key("timeouts"), timeouts.as_ref(), self.timeouts, report),
            media_hosts: self::media_hosts(&at.key("mediaHosts"), media_hosts, report),
        }
    }

    fn in_every_shift(
        &self,
        at: &At<'_>,
        raw: &[raw::Target],
        report: &mut Report,
    ) -> BTreeMap<ShiftName, ShiftTargets> {
        let targets = self.targets(at, raw, report);
        let mut shifts = BTreeMap::new();
        for shift in self.shifts.sets.keys() {
            self.in_set(at, shift, &targets, report);
            shifts.insert(ShiftName::from(&**shift), ShiftTargets::Targets(targets.clone()));
        }
        shifts
    }

    fn by_shift(
        &self,
        at: &At<'_>,
        raw: &BTreeMap<String, raw::Shift>,
        report: &mut Report,
    ) -> BTreeMap<ShiftName, ShiftTargets> {
        let known = self.shifts.sets.keys().map(|name| &**name);
        // What stands at its own place is checked once, however many others are the same as it.
        let mut own: BTreeMap<&str, ShiftTargets> = BTreeMap::new();
        for (name, shift) in raw {
            let at = at.key(name);
            if !self.shifts.may_have(name, self.documents) {
                report.unknown(&at, "shift", name, known.clone());
            }
            own.extend(self.own(&at, shift, report).map(|targets| (name.as_str(), targets)));
            same_as(&at, name, raw, report);
        }
        let mut shifts = BTreeMap::new();
        for shift in known {
            let at_shift = at.key(shift);
            if !raw.contains_key(shift) {
                let hint = "write targets, sameAs: SHIFT or absent: {}".to_owned();
                report.error_hint(&at_shift, format!("nothing is said about shift `{shift}`"), hint);
                continue;
            }
            let Some(source) = resolve(shift, raw) else { continue };
            let Some(targets) = own.get(source) else { continue };
            if let ShiftTargets::Targets(targets) = targets {
                let place = if source == shift { at_shift.key("targets") } else { at_shift.key("sameAs") };
                self.in_set(&place, shift, targets, report);
            }
            shifts.insert(ShiftName::from(shift), targets.clone());
        }
        shifts
    }

    /// What a shift says itself; `None` when it says `sameAs`, or nothing usable.
    fn own(&self, at: &At<'_>, raw: &raw::Shift, report: &mut Report) -> Option<ShiftTargets> {
        let raw::Shift { targets, same_as, absent } = raw;
        match (targets, same_as, absent) {
            (Some(targets), None, None) => {
                Some(ShiftTargets::Targets(self.targets(&at.key("targets"), targets, report)))
            }
            (None, Some(_), None) => None,
            (None, None, Some(raw::Absent { substitute })) => {
                Some(ShiftTargets::Absent { substitute: substitute.as_deref().map(AliasName::from) })
            }
            _ => {
                report.error(at, "expected exactly one of `targets`, `sameAs` and `absent`");
                None
            }
        }
    }

    fn targets(&self, at: &At<'_>, raw: &[raw::Target], report: &mut Report) -> Vec<Target> {
        let mut targets: Vec<Target> = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, raw::Target { deployment, weight }) in raw.iter().enumerate() {
            let at = at.index(index);
            let weight = weight.and_then(|weight| within(&at.key("weight"), weight, 0, WEIGHT_MAX, report));
            let Some(name) = report.required(&at, "deployment", deployment.as_ref()) else { continue };
            let at = at.key("deployment");
            if !self.documents.deployments.contains(name) && !self.documents.may_have(name) {
                report.unknown(&at, "Deployment", name, self.documents.deployments.names());
            }
            if !seen.insert(name) {
                report.error(&at, format!("Deployment `{name}` stands twice"));
            }
            let deployment = DeploymentName::from(name.as_str());
            targets.push(Target { deployment, weight: weight.unwrap_or(WEIGHT_DEFAULT) });
        }
        if raw.is_empty() {
            report.error_hint(at, "no targets", "write absent: {} when it is not served".to_owned());
        } else if targets.iter().all(|target| target.weight == 0) && !targets.is_empty() {
            report.error(at, "all weights are 0");
        }
        let mut kinds = targets.iter().filter_map(|target| self.kind(target));
        if let Some(first) = kinds.next()
            && kinds.any(|kind| !is_compatible(first, kind))
        {
            report.error(at, "deployments of different kinds cannot serve one alias");
        }
        targets
    }

    fn kind(&self, target: &Target) -> Option<DeploymentKind> {
        self.deployments.get(&target.deployment).map(|deployment| deployment.kind)
    }

    /// Every target is loaded in the shift.
    fn in_set(&self, at: &At<'_>, shift: &str, targets: &[Target], report: &mut Report) {
        let Some(Some(set)) = self.shifts.sets.get(shift) else { return };
        for target in targets {
            let name = target.deployment.as_str();
            if !set.contains(name) && self.documents.deployments.contains(name) {
                let message = format!("Deployment `{name}` is not loaded in shift `{shift}`");
                let hint = "add it to the shift's deployments in the Schedule, or say what the alias is in that shift";
                report.error_hint(at, message, hint.to_owned());
            }
        }
    }

    /// The document's limits; where it says nothing, the smallest over the profiles of the targets that get traffic.
    fn limits(
        &self,
        raw: Option<&RawLimits>,
        shifts: &BTreeMap<ShiftName, ShiftTargets>,
    ) -> (Limits, BTreeMap<ShiftName, Limits>) {
        let document = raw.copied().unwrap_or_default().checked();
        let over = |targets: &mut dyn Iterator<Item = &Target>| {
            targets.filter(|target| target.weight > 0).fold(document, |limits, target| {
                let profile = self.deployments.get(&target.deployment).map(|deployment| &deployment.profile);
                let least = |own: Option<u64>, so_far: Option<u64>, figure: Option<u64>| match own {
                    Some(own) => Some(own),
                    None => so_far.into_iter().chain(figure).min(),
                };
                Limits {
                    concurrency: least(
                        document.concurrency,
                        limits.concurrency,
                        profile.and_then(|profile| profile.concurrency),
                    ),
                    rpm: least(document.rpm, limits.rpm, profile.and_then(|profile| profile.rpm)),
                    tpm: least(document.tpm, limits.tpm, profile.and_then(|profile| profile.tpm)),
                    daily_tokens: document.daily_tokens,
                    monthly_tokens: document.monthly_tokens,
                }
            })
        };
        let of_shift = |shift: &ShiftTargets| match shift {
            ShiftTargets::Targets(targets) => Some(over(&mut targets.iter())),
            ShiftTargets::Absent { substitute: _ } => None,
        };
        let by_shift = shifts.iter().filter_map(|(name, shift)| Some((name.clone(), of_shift(shift)?))).collect();
        let mut all = shifts.values().flat_map(|shift| match shift {
            ShiftTargets::Targets(targets) => targets.as_slice(),
            ShiftTargets::Absent { substitute: _ } => &[],
        });
        (over(&mut all), by_shift)
    }

    /// A substitute is another alias that is served in the shift.
    fn substitutes(&self, aliases: &BTreeMap<AliasName, Alias>, report: &mut Report) {
        for (doc, spec) in self.documents.aliases.readable() {
            let root = At::root(&doc.origin);
            let at = root.key("spec");
            let at = at.key("shifts");
            for (shift, raw) in spec.shifts.iter().flatten() {
                let Some(name) = raw.absent.as_ref().and_then(|absent| absent.substitute.as_ref()) else { continue };
                let at = at.key(shift);
                let at = at.key("absent");
                let at = at.key("substitute");
                if *name == *doc.name {
                    report.error(&at, "an alias cannot stand in for itself");
                } else if !self.documents.aliases.contains(name) {
                    self.unknown_alias(&at, name, report);
                } else if let Some(ShiftTargets::Absent { substitute: _ }) =
                    aliases.get(name.as_str()).and_then(|alias| alias.shifts.get(shift.as_str()))
                {
                    report.error(&at, format!("alias `{name}` is absent in shift `{shift}` itself"));
                }
            }
        }
    }

    fn unknown_alias(&self, at: &At<'_>, name: &str, report: &mut Report) {
        if !self.documents.may_have(name) {
            report.unknown(at, "Alias", name, self.documents.aliases.names());
        }
    }

    /// A fallback is another alias of the same kind, and no chain of them comes back.
    fn fallbacks(&self, aliases: &BTreeMap<AliasName, Alias>, report: &mut Report) {
        let circles = circles(aliases);
        for (doc, spec) in self.documents.aliases.readable() {
            let root = At::root(&doc.origin);
            let at = root.key("spec");
            let at = at.key("fallback");
            for (index, name) in distinct(&at, &spec.fallback, report) {
                let at = at.index(index);
                if name == &*doc.name {
                    report.error(&at, "an alias cannot fall back to itself");
                } else if !self.documents.aliases.contains(name) {
                    self.unknown_alias(&at, name, report);
                } else if let Some(circle) = circles.get(&(&*doc.name, name)) {
                    report.error(&at, format!("falls back in a circle: {}", way(circle)));
                } else if let (Some(own), Some(other)) =
                    (self.alias_kind(&doc.name, aliases), self.alias_kind(name, aliases))
                    && !is_compatible(own, other)
                {
                    report.error(&at, format!("alias `{name}` is served by deployments of another kind"));
                }
            }
        }
    }

    fn alias_kind(&self, name: &str, aliases: &BTreeMap<AliasName, Alias>) -> Option<DeploymentKind> {
        aliases.get(name)?.shifts.values().find_map(|shift| match shift {
            ShiftTargets::Targets(targets) => targets.first().and_then(|target| self.kind(target)),
            ShiftTargets::Absent { substitute: _ } => None,
        })
    }

    /// A language model that is loaded in a shift and that no alias reaches there is probably forgotten.
    fn without_alias(&self, aliases: &BTreeMap<AliasName, Alias>, report: &mut Report) {
        if !self.documents.is_complete() || !self.documents.aliases.is_sound("spec") {
            return;
        }
        let mut reached: BTreeSet<(&str, &str)> = BTreeSet::new();
        for (shift, targets) in aliases.values().flat_map(|alias| &alias.shifts) {
            if let ShiftTargets::Targets(targets) = targets {
                reached.extend(targets.iter().map(|target| (shift.as_str(), target.deployment.as_str())));
            }
        }
        for (doc, spec) in self.documents.schedules.readable() {
            let root = At::root(&doc.origin);
            let at = root.key("spec");
            let at = at.key("shifts");
            for (index, shift) in spec.shifts.iter().flatten().enumerate() {
                let at = at.index(index);
                let at = at.key("deployments");
                let Some(name) = &shift.name else { continue };
                for (index, deployment) in shift.deployments.iter().flatten().enumerate() {
                    let kind = self.deployments.get(deployment.as_str()).map(|deployment| deployment.kind);
                    if kind == Some(DeploymentKind::Llm) && !reached.contains(&(name.as_str(), deployment.as_str())) {
                        let message = format!("no alias reaches Deployment `{deployment}` in shift `{name}`");
                        report.warning(&at.index(index), message, None);
                    }
                }
            }
        }
    }
}

/// Language models may also see; everything else answers requests of its own.
fn is_compatible(a: DeploymentKind, b: DeploymentKind) -> bool {
    let is_chat = |kind| matches!(kind, DeploymentKind::Llm | DeploymentKind::Vlm);
    a == b || (is_chat(a) && is_chat(b))
}

/// Follows `sameAs` to the shift that speaks for itself; `None` when it leads nowhere.
fn resolve<'r>(shift: &'r str, raw: &'r BTreeMap<String, raw::Shift>) -> Option<&'r str> {
    let mut current = shift;
    // A way longer than there are shifts goes in a circle.
    for _ in 0..=raw.len() {
        match raw.get(current)?.same_as.as_deref() {
            None => return Some(current),
            Some(next) => current = next,
        }
    }
    None
}

/// Reports a `sameAs` that leads nowhere, once for each circle.
fn same_as(at: &At<'_>, shift: &str, raw: &BTreeMap<String, raw::Shift>, report: &mut Report) {
    let at = at.key("sameAs");
    let mut way = vec![shift];
    while let Some(next) = way.last().and_then(|last| raw.get(*last)).and_then(|shift| shift.same_as.as_deref()) {
        if next == shift {
            if way.iter().min() == Some(&shift) {
                report.error(&at, format!("`sameAs` goes in a circle: {} → {shift}", self::way(&way)));
            }
            return;
        }
        if way.contains(&next) {
            return;
        }
        if way.len() == 1 && !raw.contains_key(next) {
            report.unknown(&at, "shift of this alias", next, raw.keys().map(String::as_str));
        }
        way.push(next);
    }
}

/// A way for people: a long one without its middle.
fn way(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    match names {
        [first @ .., last] if names.len() > SHOWN => {
            let shown = first.get(..SHOWN - 2).unwrap_or(first);
            format!("{} → … → {last} ({} steps)", shown.join(" → "), names.len() - 1)
        }
        names => names.join(" → "),
    }
}

/// Circles of fallbacks, each once, by the step from its first alias to its second. One depth-first walk over all
/// aliases in the order of their names: linear, however long the chains are.
fn circles(aliases: &BTreeMap<AliasName, Alias>) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut circles = BTreeMap::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for start in aliases.keys() {
        // The way from the start, and for each alias on it how many of its fallbacks were followed.
        let mut way: Vec<(&str, usize)> = vec![(start.as_str(), 0)];
        let mut on_way: BTreeSet<&str> = BTreeSet::from([start.as_str()]);
        while let Some((name, followed)) = way.last_mut() {
            let next = aliases.get(*name).and_then(|alias| alias.fallback.get(*followed));
            let Some(next) = next.filter(|_| !done.contains(*name)) else {
                on_way.remove(*name);
                done.insert(*name);
                way.pop();
                continue;
            };
            let (from, next) = (*name, next.as_str());
            *followed += 1;
            if on_way.contains(next) {
                let circle = way.iter().map(|(name, _)| *name).skip_while(|name| *name != next).chain([next]);
                let circle: Vec<&str> = circle.collect();
                let second = circle.get(1).copied().unwrap_or(next);
                if next != from {
                    circles.insert((next, second), circle);
                }
            } else if !done.contains(next) && aliases.contains_key(next) {
                on_way.insert(next);
                way.push((next, 0));
            }
        }
    }
    circles
}

fn media_hosts(at: &At<'_>, raw: &[String], report: &mut Report) -> BTreeSet<Name> {
    let mut hosts = BTreeSet::new();
    for (index, host) in distinct(at, raw, report) {
        let lower = host.to_ascii_lowercase();
        if lower != host || host_port(host).is_none_or(|(_, port)| port.is_some()) {
            report.error_hint(
                &at.index(index),
                "not a host",
                "write images.example, without scheme and port".to_owned(),
            );
        }
        hosts.insert(Name::from(lower.as_str()));
    }
    hosts
}
