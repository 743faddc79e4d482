//! Quantities for people.

use std::time::Duration;

/// `812 MB`, `5.3 GB`: powers of 1,000, as disks and networks are sold.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    // 999.5 would be shown as 1000
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    if unit == 0 || value >= 99.95 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `9 s`, `3 min 20 s`, `2 h 5 min`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600.. => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// `43.1 %`; never 100 % before all is there.
pub(crate) fn percent(done: u64, total: u64) -> String {
    let thousandths = (u128::from(done) * 1_000).checked_div(u128::from(total)).unwrap_or(1_000).min(1_000);
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// A plural that is not wrong for one.
pub(crate) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_short_and_true() {
        let shown: Vec<_> =
            [0, 999, 1_000, 94_231_552, 999_499_999, 999_500_000, u64::MAX].into_iter().map(bytes).collect();
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "94.2 MB", "999 MB", "1.0 GB", "18447 PB"]);
        assert_eq!(time(Duration::from_millis(59_999)), "59 s");
        assert_eq!(time(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(time(Duration::from_secs(7_500)), "2 h 5 min");
        assert_eq!((percent(999_999, 1_000_000).as_str(), percent(0, 0).as_str()), ("99.9 %", "100.0 %"));
        assert_eq!((count(1, "file"), count(2, "file")), ("1 file".to_owned(), "2 files".to_owned()));
    }
}
