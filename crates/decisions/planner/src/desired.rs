//! What should be loaded at an instant: an override, else the Schedules.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tidegate_config::Site;
use tidegate_config::site::ShiftTargets;
use tidegate_core::{DeploymentName, ShiftName};

use crate::timetable::{Slot, Timetable};

/// What a verb (`switch now`, `rollback`, `abort`, `hold`) put in the place of the Schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The shift that is wanted instead.
    pub shift: ShiftName,
    /// When it was said.
    pub made: Timestamp,
    /// When it ends; `None`: at the first start after it was said.
    pub until: Option<Timestamp>,
}

/// Why a shift is the desired one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Somebody said so.
    Override,
    /// An exceptional date.
    Exception(Slot),
    /// The Schedule of the date.
    Schedule(Slot),
    /// The Schedules' first start is still to come: their first shift.
    BeforeFirstStart,
    /// There is no Schedule.
    Always,
}

/// What should be loaded, since when and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The shift.
    pub shift: ShiftName,
    /// Why.
    pub why: Why,
    /// Since when; `None`: it has always been so.
    pub since: Option<Timestamp>,
    /// When something else is desired, or the same anew; `None`: it stays so.
    pub until: Option<Timestamp>,
}

/// The desired shift at `now`: override, else exception, else Schedule.
#[must_use]
pub fn desired(site: &Site, over: Option<&Override>, now: Timestamp) -> Desired {
    let timetable = Timetable::new(&site.schedules);
    if let Some(over) = over
        && let Some(desired) = overridden(timetable, over, now)
    {
        return desired;
    }
    let until = timetable.next(now).map(|start| start.at);
    match timetable.in_force(now) {
        Some(start) => Desired {
            shift: start.slot.shift.clone(),
            why: if start.is_exception { Why::Exception(start.slot) } else { Why::Schedule(start.slot) },
            since: Some(start.at),
            until,
        },
        None => Desired {
            shift: site.default_shift(),
            why: if site.schedules.is_empty() { Why::Always } else { Why::BeforeFirstStart },
            since: None,
            until,
        },
    }
}

fn overridden(timetable: Timetable<'_>, over: &Override, now: Timestamp) -> Option<Desired> {
    let until = over.until.or_else(|| timetable.next(over.made).map(|start| start.at));
    let is_in_force = over.made <= now && until.is_none_or(|until| now < until);
    is_in_force.then(|| Desired { shift: over.shift.clone(), why: Why::Override, since: Some(over.made), until })
}

/// The whole set that is loaded in a shift: the Schedules' list; without Schedules every target of every alias.
#[must_use]
pub fn set_of(site: &Site, shift: &ShiftName) -> BTreeSet<DeploymentName> {
    let mut shifts = site.schedules.values().flat_map(|schedule| &schedule.shifts);
    if let Some(start) = shifts.find(|start| start.name == *shift) {
        return start.deployments.clone();
    }
    if !site.schedules.is_empty() {
        return BTreeSet::new();
    }
    let targets = site.aliases.values().flat_map(|alias| alias.shifts.values());
    let targets = targets.flat_map(|shift| match shift {
        ShiftTargets::Targets(targets) => targets.as_slice(),
        ShiftTargets::Absent { substitute: _ } => &[],
    });
    targets.map(|target| target.deployment.clone()).collect()
}
