//! What is wrong with a site's shifts, nodes and gaps, and what would mend it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_config::Site;
use tidegate_core::DeploymentName;

use super::Outlook;
use crate::desired::set_of;
use crate::hardware::{GpuId, Hardware};
use crate::memory::{self, Band};
use crate::placement::{Misfit, Request, Seats, Situation, remedies};
use crate::plan::{Known, Plan, Rules};
use crate::span;

/// How far ahead switches are looked at: every yearly date is among them.
const HORIZON: SignedDuration = SignedDuration::from_hours(400 * 24);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// It cannot work: the documents are refused.
    Refused,
    /// It may not work.
    Warning,
    /// It works; people should know.
    Notice,
}

/// One thing to say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// `<kind> <name>` of the document.
    pub document: String,
    /// The place in it.
    pub path: String,
    /// What is wrong; lower case, no full stop.
    pub message: String,
    /// What would mend it, cheapest first.
    pub hints: Vec<String>,
}

/// Looks at a site from `now` on, with what its documents say of the nodes.
#[must_use]
pub fn check(site: &Site, now: Timestamp) -> Vec<Finding> {
    let outlook = Outlook::new(site, Hardware::of(site), Known::default(), &BTreeMap::new());
    outlook.findings(now)
}

impl Outlook<'_> {
    /// Everything there is to say, the worst first.
    #[must_use]
    pub fn findings(&self, now: Timestamp) -> Vec<Finding> {
        if self.hardware.nodes.is_empty() {
            return self.unknown().into_iter().collect();
        }
        let mut findings = self.misfits();
        findings.extend(self.bands());
        findings.extend(self.gaps(now));
        findings.extend(self.reserved(now));
        findings.sort();
        findings.dedup();
        findings
    }

    /// Nobody knows what GPUs there are.
    fn unknown(&self) -> Option<Finding> {
        let on_gpus: Vec<&str> =
            self.needs.values().filter(|need| need.tp > 0).map(|need| need.name.as_str()).collect();
        (!on_gpus.is_empty()).then(|| Finding {
            weight: Weight::Warning,
            document: format!("Site {}", self.site.name),
            path: String::new(),
            message: format!("feasibility unknown: no Node says which GPUs there are for {}", on_gpus.join(", ")),
            hints: vec!["write a Node document, or run tidegate on the GPU node".to_owned()],
        })
    }

    fn misfits(&self) -> Vec<Finding> {
        let situations: Vec<Situation> = self
            .shifts
            .iter()
            .map(|shift| {
                let set = set_of(self.site, shift);
                Situation { label: Arc::from(shift.as_str()), set, blocked: BTreeMap::new() }
            })
            .collect();
        let mut said = BTreeSet::new();
        let new =
            self.placement.misfits.iter().filter(|misfit| said.insert((misfit.situation, &misfit.replica.deployment)));
        let mut helped: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        new.map(|misfit| {
            let hints =
                helped.entry(misfit.situation).or_insert_with(|| self.hints(&situations, misfit.situation)).clone();
            let document = self.schedule_of(&misfit.label);
            finding(document, "spec.shifts", misfit, hints)
        })
        .collect()
    }

    fn hints(&self, situations: &[Situation], index: usize) -> Vec<String> {
        let pinned = BTreeMap::new();
        let request = Request { hardware: &self.hardware, needs: &self.needs, situations, pinned: &pinned };
        remedies(request, index).iter().map(ToString::to_string).collect()
    }

    fn schedule_of(&self, shift: &str) -> String {
        let has =
            |schedule: &tidegate_config::site::Schedule| schedule.shifts.iter().any(|own| own.name.as_str() == shift);
        let named = self.site.schedules.iter().find(|(_, schedule)| has(schedule));
        named.map_or_else(|| format!("Site {}", self.site.name), |(name, _)| format!("Schedule {name}"))
    }

    /// GPUs that are fuller than people should plan for.
    fn bands(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (shift, seats) in self.shifts.iter().zip(&self.placement.seats) {
            for (gpu, (booked, names)) in self.residents(seats) {
                let Some(all) = self.hardware.gpu(&gpu).and_then(|gpu| gpu.memory) else { continue };
                let (weight, most) = match memory::band(booked, all) {
                    Band::Unused | Band::Fine | Band::Refused => continue,
                    Band::Notice => (Weight::Notice, memory::FINE_TO),
                    Band::Warning => (Weight::Warning, memory::NOTICE_TO),
                };
                // an engine without a budget takes its flag: nothing to plan with
                let budgeted = names.iter().filter_map(|name| self.needs.get(name)).all(crate::need::Need::has_budget);
                if budgeted {
                    let names: Vec<&str> = names.iter().map(DeploymentName::as_str).collect();
                    let who = names.join(", ");
                    findings.push(Finding {
                        weight,
                        document: self.schedule_of(shift.as_str()),
                        path: "spec.shifts".to_owned(),
                        message: format!("shift `{shift}` books {} of GPU {gpu}: {who}", memory::percent(booked, all)),
                        hints: vec![format!("budgets up to {most} % leave room for what was not foreseen")],
                    });
                }
            }
        }
        findings
    }

    fn residents(&self, seats: &Seats) -> BTreeMap<GpuId, (u64, BTreeSet<DeploymentName>)> {
        let mut residents: BTreeMap<GpuId, (u64, BTreeSet<DeploymentName>)> = BTreeMap::new();
        for (key, seat) in seats {
            let Some(need) = self.needs.get(&key.deployment) else { continue };
            for gpu in seat.gpus() {
                let memory = self.hardware.gpu(&gpu).and_then(|gpu| gpu.memory).unwrap_or(0);
                let (booked, names) = residents.entry(gpu).or_default();
                *booked = booked.saturating_add(memory::booked(&need.footprint, need.gpus_per_replica(), memory));
                names.insert(key.deployment.clone());
            }
        }
        residents
    }

    /// Switches whose gaps are longer than their Schedule allows, and those that announce one.
    fn gaps(&self, now: Timestamp) -> Vec<Finding> {
        let until = now.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
        let plans = self.changes(now, until).into_iter().filter_map(|(from, to, at)| {
            let rules = self.rules(&to, at);
            Some((self.schedule_of(to.as_str()), self.switch(&from, &to, at, rules)?))
        });
        plans.filter_map(|(document, plan)| self.gap(document, &plan)).collect()
    }

    fn gap(&self, document: String, plan: &Plan) -> Option<Finding> {
        let longest = plan.routes.iter().filter(|route| route.gap > Duration::ZERO).max_by_key(|route| route.gap)?;
        let Rules { gap_allowed, .. } = plan.rules;
        let switch = format!("{} -> {}", plan.from, plan.to);
        let served = longest
            .served_by
            .as_ref()
            .map_or_else(|| "nobody serves meanwhile".to_owned(), |by| format!("{by} serves meanwhile"));
        if longest.gap <= gap_allowed {
            let message = format!("{switch}: alias `{}` has a gap of {}, {served}", longest.alias, span(longest.gap));
            return Some(Finding {
                weight: Weight::Notice,
                document,
                path: "spec.gap.allowed".to_owned(),
                message,
                hints: Vec::new(),
            });
        }
        let message = format!(
            "{switch}: alias `{}` would have a gap of {}, {} is allowed",
            longest.alias,
            span(longest.gap),
            span(gap_allowed)
        );
        let mut hints = vec![format!("gap: {{allowed: {}}}, and {served}", span(longest.gap))];
        hints.extend(self.without_gap(plan));
        Some(Finding { weight: Weight::Refused, document, path: "spec.gap.allowed".to_owned(), message, hints })
    }

    /// Budgets with which the worst change would overlap.
    fn without_gap(&self, plan: &Plan) -> Option<String> {
        let (gpu, booked, all) = plan
            .changes
            .iter()
            .filter(|change| change.strategy.has_gap())
            .find_map(|change| change.beside_old.clone())?;
        let limit = u64::try_from(u128::from(all) * u128::from(memory::REFUSED_ABOVE) / 100).unwrap_or(u64::MAX);
        Some(format!(
            "memory budgets of at most {} per GPU for old and new together on {gpu} (they take {} now)",
            memory::gigabytes(limit),
            memory::gigabytes(booked)
        ))
    }

    fn reserved(&self, now: Timestamp) -> Vec<Finding> {
        let mut findings = Vec::new();
        for segment in self.segments(now) {
            let names: Vec<&str> = segment.reservations.iter().map(|name| &**name).collect();
            let document = format!("Reservation {}", names.join(", "));
            let placement = self.place_segment(&segment);
            if let Some(misfit) = placement.misfits.first() {
                let hints = self.hints(&[self.situation(&segment)], 0);
                findings.push(finding(document, "spec", misfit, hints));
                continue;
            }
            let (Some(seats), Some(reserved)) = (self.seats(&segment.shift), placement.seats.first()) else { continue };
            let rules = self.rules(&segment.shift, segment.from);
            let shift = &segment.shift;
            let plan = self.between((shift, seats), (shift, reserved), segment.from, rules);
            findings.extend(self.gap(document, &plan));
        }
        findings
    }
}

fn finding(document: String, path: &str, misfit: &Misfit, hints: Vec<String>) -> Finding {
    let message = format!(
        "shift `{}` does not fit: {} finds no place: {}",
        misfit.label, misfit.replica.deployment, misfit.reason
    );
    Finding { weight: Weight::Refused, document, path: path.to_owned(), message, hints }
}
