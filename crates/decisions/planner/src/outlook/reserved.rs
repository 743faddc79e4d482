//! Parts of shifts in which GPUs are somebody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tidegate_config::Site;
use tidegate_config::site::GpuReservation;
use tidegate_core::ShiftName;

use super::Outlook;
use crate::desired::{desired, set_of};
use crate::hardware::GpuId;
use crate::placement::{Placement, ReplicaKey, Request, Seat, Situation, place};
use crate::timetable::{Timetable, first_instant};

/// How far ahead reservations are looked at.
const HORIZON: SignedDuration = SignedDuration::from_hours(400 * 24);

/// A part of a shift with the same reservations all along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The shift.
    pub shift: ShiftName,
    /// The reservations in force.
    pub reservations: BTreeSet<Arc<str>>,
    /// Where it first begins.
    pub from: Timestamp,
}

impl Outlook<'_> {
    /// Every combination of shift and reservations from `now` on, once each; those without a reservation left out.
    #[must_use]
    pub fn segments(&self, now: Timestamp) -> Vec<Segment> {
        let spans = spans(self.site, now);
        let mut bounds: BTreeSet<Timestamp> = spans.values().flat_map(|(from, until)| [*from, *until]).collect();
        let (Some(first), Some(last)) = (bounds.first().copied(), bounds.last().copied()) else { return Vec::new() };
        let starts = Timetable::new(&self.site.schedules).between(first, last);
        bounds.extend(starts.iter().map(|start| start.at));
        let mut seen: BTreeSet<(ShiftName, BTreeSet<Arc<str>>)> = BTreeSet::new();
        let mut segments = Vec::new();
        for from in bounds {
            let active = spans.iter().filter(|(_, (begin, end))| *begin <= from && from < *end);
            let reservations: BTreeSet<Arc<str>> = active.map(|(name, _)| Arc::clone(name)).collect();
            let shift = desired(self.site, None, from).shift;
            if !reservations.is_empty() && seen.insert((shift.clone(), reservations.clone())) {
                segments.push(Segment { shift, reservations, from });
            }
        }
        segments
    }

    /// Places a segment: whoever is on no reserved GPU stays where the shift has it.
    #[must_use]
    pub fn place_segment(&self, segment: &Segment) -> Placement {
        let situation = self.situation(segment);
        let seats = self.seats(&segment.shift).cloned().unwrap_or_default();
        let keeps = |seat: &Seat| seat.gpus().iter().all(|gpu| !situation.blocked.contains_key(gpu));
        let pinned: BTreeMap<ReplicaKey, Seat> = seats.into_iter().filter(|(_, seat)| keeps(seat)).collect();
        let situations = [situation];
        place(Request { hardware: &self.hardware, needs: &self.needs, situations: &situations, pinned: &pinned })
    }

    pub(super) fn situation(&self, segment: &Segment) -> Situation {
        let mut blocked = BTreeMap::new();
        for reservation in segment.reservations.iter().filter_map(|name| self.site.reservations.get(name)) {
            for index in &reservation.gpus {
                let gpu = GpuId { node: Arc::clone(&reservation.node), index: *index };
                blocked.insert(gpu, Arc::clone(&reservation.owner));
            }
        }
        let names: Vec<&str> = segment.reservations.iter().map(|name| &**name).collect();
        Situation {
            label: Arc::from(format!("{} during {}", segment.shift, names.join(", "))),
            set: set_of(self.site, &segment.shift),
            blocked,
        }
    }
}

/// Reservations that are not over, from `now` at the earliest, as far as the horizon.
fn spans(site: &Site, now: Timestamp) -> BTreeMap<Arc<str>, (Timestamp, Timestamp)> {
    let horizon = now.checked_add(HORIZON).unwrap_or(Timestamp::MAX);
    let span = |reservation: &GpuReservation| {
        let from = first_instant(&site.time_zone, reservation.from)?.max(now);
        let until = first_instant(&site.time_zone, reservation.until)?.min(horizon);
        (from < until).then_some((from, until))
    };
    site.reservations.iter().filter_map(|(name, reservation)| Some((Arc::clone(name), span(reservation)?))).collect()
}
