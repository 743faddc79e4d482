//! Civil time to an instant, where the clocks jump.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// The first instant at which a clock in the zone shows `civil` or a later time, coming from an earlier one.
///
/// * shown once: that instant;
/// * shown twice (clocks go back): the first time;
/// * never shown (clocks go forward, a skipped day): the jump itself. (jiff's own choice there shifts by the length of
///   the gap, so that 02:30 becomes 03:30 and not 03:00.)
///
/// `None` outside the instants that can be represented.
#[must_use]
pub fn first_instant(zone: &TimeZone, civil: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
        AmbiguousOffset::Fold { before, after: _ } => before.to_timestamp(civil).ok(),
        AmbiguousOffset::Gap { before, after } => {
            // Read with the later offset it lies before the jump, read with the earlier one after it.
            let from = after.to_timestamp(civil).ok()?;
            let until = before.to_timestamp(civil).ok()?;
            jump(zone, civil, from, until)
        }
    }
}

/// The first second in `from..=until` at which the clock shows more than `civil`; it does at `until`, and between the
/// two it jumps once.
fn jump(zone: &TimeZone, civil: DateTime, from: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let (mut low, mut high) = (from.as_second(), until.as_second());
    while low < high {
        let middle = low + (high - low) / 2;
        let instant = Timestamp::from_second(middle).ok()?;
        if zone.to_datetime(instant) >= civil {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Timestamp::from_second(high).ok()
}
