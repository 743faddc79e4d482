//! Until when something holds, as people write it.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _, civil};

/// An instant (`2026-12-01T08:00Z`), a civil time (`2026-12-01T08:00`), the next such time of the day (`08:00`), or a
/// time from now (`2h`, `30m`), in the site's zone. `None` when it is none of these.
pub(super) fn parse(text: &str, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    if let Ok(span) = text.parse::<SignedDuration>() {
        return now.checked_add(span).ok();
    }
    if text.contains(':') && !text.contains('-') {
        return next(text.parse().ok()?, zone, now);
    }
    let at: civil::DateTime = text.parse().ok()?;
    Some(zone.to_ambiguous_zoned(at).compatible().ok()?.timestamp())
}

fn next(time: civil::Time, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    let today = now.to_zoned(zone.clone()).date();
    let on = |date: civil::Date| Some(zone.to_ambiguous_zoned(date.to_datetime(time)).compatible().ok()?.timestamp());
    on(today).filter(|at| *at > now).or_else(|| on(today.checked_add(1.day()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_sites_zone() {
        let zone = TimeZone::get("Asia/Seoul").unwrap();
        // 2026-12-01 09:00 in Seoul.
        let now: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        for (text, expected) in [
            ("2026-12-01T08:00:00Z", Some("2026-12-01T08:00:00Z")),
            ("2026-12-01T08:00:00+09:00", Some("2026-11-30T23:00:00Z")),
            ("2026-12-02T08:00", Some("2026-12-01T23:00:00Z")),
            ("2026-12-02", Some("2026-12-01T15:00:00Z")),
            ("22:00", Some("2026-12-01T13:00:00Z")),
            ("09:00", Some("2026-12-02T00:00:00Z")),
            ("08:00", Some("2026-12-01T23:00:00Z")),
            ("2h", Some("2026-12-01T02:00:00Z")),
            ("90m", Some("2026-12-01T01:30:00Z")),
            ("tomorrow", None),
            ("25:00", None),
            ("", None),
            ("7", None),
        ] {
            let expected = expected.map(|at| at.parse::<Timestamp>().unwrap());
            assert_eq!(parse(text, &zone, now), expected, "{text}");
        }
    }

    #[test]
    fn a_time_that_the_clocks_skip_is_after_the_gap() {
        let zone = TimeZone::get("America/New_York").unwrap();
        let now: Timestamp = "2024-03-10T00:00:00-05:00".parse().unwrap();
        assert_eq!(parse("02:30", &zone, now), Some("2024-03-10T03:30:00-04:00".parse().unwrap()));
    }
}
