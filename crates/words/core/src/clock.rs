//! Two kinds of time that must not be mixed: a monotonic one for deadlines and windows, the wall clock for records.

use std::time::Duration;

/// Nanoseconds on a monotonic clock with an arbitrary start. Compare and subtract only within one boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic {
    /// Nanoseconds since the clock's start.
    pub ns: u64,
}

impl Monotonic {
    /// A point `ns` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// A point `ms` milliseconds after the clock's start.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self { ns: ms * 1_000_000 }
    }

    /// Time since an earlier point; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }

    /// The point `by` later.
    #[must_use]
    pub const fn after(self, by: Duration) -> Self {
        Self { ns: self.ns.saturating_add(by.as_nanos() as u64) }
    }
}

/// Wall-clock milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Unix {
    /// Milliseconds since the epoch; negative before it.
    pub ms: i64,
}

impl Unix {
    /// An instant `ms` milliseconds after the epoch.
    #[must_use]
    pub const fn from_ms(ms: i64) -> Self {
        Self { ms }
    }

    /// The same instant for calendar arithmetic; clamped to what the calendar can represent.
    #[must_use]
    pub fn to_timestamp(self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.ms).unwrap_or(if self.ms < 0 {
            jiff::Timestamp::MIN
        } else {
            jiff::Timestamp::MAX
        })
    }

    /// Time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(if self.ms > earlier.ms { (self.ms - earlier.ms) as u64 } else { 0 })
    }
}
