//! Civil days and months as intervals of instants.
//!
//! A period is computed when a request is admitted, in the IANA zone of the policy, and kept as `[start, end)`. Days of
//! 23 and 25 hours, skipped days, ends of months and 29 February follow from the zone's rules; nothing here knows a
//! number of seconds per day. Periods are a partition: every instant lies in exactly one, also where clocks are set
//! back across midnight and one date's hours come in two pieces (St John's until 2011): a day ends where the next one
//! first begins.

use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use tidegate_core::Unix;

/// A half-open interval of instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// First instant.
    pub start: Unix,
    /// First instant after it.
    pub end: Unix,
}

impl Interval {
    /// Whether the instant lies in it.
    #[must_use]
    pub fn contains(&self, at: Unix) -> bool {
        self.start <= at && at < self.end
    }
}

/// Which civil period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// A civil day.
    Day,
    /// A civil month.
    Month,
}

impl Period {
    /// The period of this kind that contains `at`.
    #[must_use]
    pub fn of(self, at: Unix, zone: &TimeZone) -> Interval {
        let date = at.to_timestamp().to_zoned(zone.clone()).date();
        let mut first = match self {
            Self::Day => date,
            Self::Month => date.first_of_month(),
        };
        // A date never begins after its own instants; but where clocks are set back over midnight, the next one has
        // begun already while the old date comes again.
        let mut start = first_instant(first, zone);
        loop {
            let Some(next) = self.next(first) else {
                return Interval { start, end: Unix::from_ms(i64::MAX) };
            };
            let end = first_instant(next, zone);
            if at < end {
                return Interval { start, end };
            }
            (first, start) = (next, end);
        }
    }

    /// The first date of the period after the one that begins with `first`; `None` at the end of the calendar.
    fn next(self, first: Date) -> Option<Date> {
        match self {
            Self::Day => first.tomorrow().ok(),
            Self::Month => first.checked_add(1.month()).ok(),
        }
    }
}

/// The first instant of a date. At the ends of the calendar, where a zone offset leaves it, the instant is clamped.
fn first_instant(date: Date, zone: &TimeZone) -> Unix {
    match date.to_zoned(zone.clone()) {
        Ok(zoned) => Unix::from_ms(zoned.timestamp().as_millisecond()),
        Err(_) if date.year() < 1970 => Unix::from_ms(i64::MIN),
        Err(_) => Unix::from_ms(i64::MAX),
    }
}
