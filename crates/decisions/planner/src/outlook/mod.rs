//! A whole site looked at ahead of time: every shift placed, every switch planned, and what `tidegate check` has to say
//! about it before 22:00 and not at 22:00.

mod findings;
mod reserved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_config::Site;
use tidegate_core::{DeploymentName, ShiftName};

use crate::desired::{Override, desired, set_of};
use crate::hardware::Hardware;
use crate::need::Need;
use crate::placement::{Part, Placement, ReplicaKey, Request, Seat, Seats, Situation, place};
use crate::plan::{Ask, Known, Plan, Rules, Side};
use crate::timetable::Timetable;

pub use findings::{Finding, Weight, check};
pub use reserved::Segment;

/// A site with all its shifts placed.
#[derive(Clone, Debug)]
pub struct Outlook<'s> {
    site: &'s Site,
    hardware: Hardware,
    known: Known,
    needs: BTreeMap<DeploymentName, Need>,
    shifts: Vec<ShiftName>,
    placement: Placement,
    revisions: BTreeMap<DeploymentName, u64>,
}

impl<'s> Outlook<'s> {
    /// Places every shift of the site, all of them together. `pinned` is where replicas are now; empty when nothing
    /// runs.
    #[must_use]
    pub fn new(site: &'s Site, hardware: Hardware, known: Known, pinned: &BTreeMap<ReplicaKey, Seat>) -> Self {
        let needs = Need::all(site);
        let shifts: Vec<ShiftName> = site.shifts().into_iter().collect();
        let situation = |shift: &ShiftName| Situation {
            label: Arc::from(shift.as_str()),
            set: set_of(site, shift),
            blocked: BTreeMap::new(),
        };
        let situations: Vec<Situation> = shifts.iter().map(situation).collect();
        let placement = place(Request { hardware: &hardware, needs: &needs, situations: &situations, pinned });
        let revisions = needs.iter().map(|(name, need)| (name.clone(), need.revision)).collect();
        Self { site, hardware, known, needs, shifts, placement, revisions }
    }

    /// The site.
    #[must_use]
    pub const fn site(&self) -> &'s Site {
        self.site
    }

    /// The nodes.
    #[must_use]
    pub const fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Gives everybody a seat on the first node where no GPU is known at all, neither from documents nor from a driver:
    /// engines are started there as the documents say, and nothing is booked.
    pub fn seat_where_nothing_is_known(&mut self) {
        if self.hardware.gpus().next().is_some() {
            return;
        }
        let Some(node) = self.hardware.nodes.keys().next() else { return };
        let part = Part { node: Arc::clone(node), groups: Vec::new(), numa: None, mig: None };
        let seat = Seat { parts: vec![part] };
        for (shift, seats) in self.shifts.iter().zip(&mut self.placement.seats) {
            for need in set_of(self.site, shift).iter().filter_map(|name| self.needs.get(name)) {
                let keys = (0..need.replicas).map(|index| ReplicaKey { deployment: need.name.clone(), index });
                for key in keys {
                    seats.entry(key).or_insert_with(|| seat.clone());
                }
            }
        }
        self.placement.misfits.clear();
    }

    /// Who is where in a shift.
    #[must_use]
    pub fn seats(&self, shift: &ShiftName) -> Option<&Seats> {
        let index = self.shifts.iter().position(|own| own == shift)?;
        self.placement.seats.get(index)
    }

    /// What each deployment needs.
    #[must_use]
    pub const fn needs(&self) -> &BTreeMap<DeploymentName, Need> {
        &self.needs
    }

    /// The plan from what is observed to a shift; `None` when the site has not got it.
    #[must_use]
    pub fn from_observed(&self, from: Side<'_>, to: &ShiftName, at: Timestamp, rules: Rules) -> Option<Plan> {
        let seats = self.seats(to)?;
        let to = Side { shift: to, seats, revisions: &self.revisions, routes: None };
        Some(self.plan(from, to, at, rules))
    }

    /// The plan of a switch between two shifts at an instant; `None` when the site has not got one of them.
    #[must_use]
    pub fn switch(&self, from: &ShiftName, to: &ShiftName, at: Timestamp, rules: Rules) -> Option<Plan> {
        let (old, new) = (self.seats(from)?, self.seats(to)?);
        Some(self.between((from, old), (to, new), at, rules))
    }

    fn between(&self, from: (&ShiftName, &Seats), to: (&ShiftName, &Seats), at: Timestamp, rules: Rules) -> Plan {
        let side = |(shift, seats)| Side { shift, seats, revisions: &self.revisions, routes: None };
        self.plan(side(from), side(to), at, rules)
    }

    fn plan(&self, from: Side<'_>, to: Side<'_>, at: Timestamp, rules: Rules) -> Plan {
        Plan::new(Ask {
            site: self.site,
            hardware: &self.hardware,
            needs: &self.needs,
            from,
            to,
            at,
            rules,
            known: &self.known,
        })
    }

    /// The plan of the next switch after `now`; `None` when the shift in force is there to stay.
    #[must_use]
    pub fn next(&self, over: Option<&Override>, now: Timestamp) -> Option<Plan> {
        let current = desired(self.site, over, now);
        let timetable = Timetable::new(&self.site.schedules);
        let mut at = now;
        // an override may end in the very shift that it asked for: then nothing happens at its end
        loop {
            let until = if at == now { current.until } else { timetable.next(at).map(|start| start.at) }?;
            let next = desired(self.site, over, until);
            if next.shift != current.shift {
                return self.switch(&current.shift, &next.shift, until, self.rules(&next.shift, until));
            }
            timetable.next_where(until, &|shift| *shift != current.shift)?;
            at = until;
        }
    }

    /// The rules by which a shift starts at an instant: those of the Schedule whose start it is, else of the first that
    /// has the shift, else the defaults.
    #[must_use]
    pub fn rules(&self, shift: &ShiftName, at: Timestamp) -> Rules {
        let start = Timetable::new(&self.site.schedules).in_force(at).map(|start| start.slot.schedule);
        let named = start.and_then(|name| self.site.schedules.get(&name));
        let has = |schedule: &&tidegate_config::site::Schedule| schedule.shifts.iter().any(|own| own.name == *shift);
        let schedule = named.or_else(|| self.site.schedules.values().find(has));
        schedule.map_or_else(Rules::default, Rules::of)
    }

    /// Every pair of shifts of which one follows the other between two instants, with the first time that it does.
    #[must_use]
    pub fn changes(&self, from: Timestamp, until: Timestamp) -> Vec<(ShiftName, ShiftName, Timestamp)> {
        let timetable = Timetable::new(&self.site.schedules);
        let mut current = desired(self.site, None, from).shift;
        let mut seen: BTreeSet<(ShiftName, ShiftName)> = BTreeSet::new();
        let mut changes = Vec::new();
        for start in timetable.between(from, until).into_iter().filter(|start| start.at > from) {
            let next = start.slot.shift;
            if next != current && seen.insert((current.clone(), next.clone())) {
                changes.push((current.clone(), next.clone(), start.at));
            }
            current = next;
        }
        changes
    }
}
