//! Daily and monthly sums of one subject.
//!
//! A new period is a new row; there is no reset. A few rows are kept, so that a wall clock that steps forward and back
//! finds the sums it left.

use jiff::tz::TimeZone;
use tidegate_core::Unix;

use crate::period::{Interval, Period};

/// Rows kept of each kind: the current period and those that a stepping clock may return to. The one that began first
/// is let go.
pub const PERIODS_KEPT: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    interval: Interval,
    used: u64,
}

/// The rows of one kind of period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    period: Period,
    rows: Vec<Row>,
    /// Rows of the zone that was in force before: a row of the new zone begins with the sum of the one it continues.
    carried: Vec<Row>,
    /// Index of the row that was asked for last: almost always the one that is asked for next.
    current: usize,
}

impl Quota {
    pub(crate) fn new(period: Period) -> Self {
        Self { period, rows: Vec::new(), carried: Vec::new(), current: 0 }
    }

    fn find(&self, at: Unix) -> Option<usize> {
        if self.rows.get(self.current).is_some_and(|row| row.interval.contains(at)) {
            return Some(self.current);
        }
        self.rows.iter().position(|row| row.interval.contains(at))
    }

    /// The row of an instant, made if it is the first use in its period.
    fn row(&mut self, at: Unix, zone: &TimeZone) -> Option<&mut Row> {
        let index = match self.find(at) {
            Some(index) => index,
            None => {
                let used = self.carried.iter().find(|row| row.interval.contains(at)).map_or(0, |row| row.used);
                self.begin(Row { interval: self.period.of(at, zone), used })
            }
        };
        self.current = index;
        self.rows.get_mut(index)
    }

    fn begin(&mut self, row: Row) -> usize {
        if self.rows.len() >= PERIODS_KEPT
            && let Some(oldest) = (0..self.rows.len()).min_by_key(|&index| self.rows[index].interval.start)
        {
            self.rows[oldest] = row;
            return oldest;
        }
        self.rows.push(row);
        self.rows.len() - 1
    }

    /// The period of `at` and what is used of it. Writes nothing that counts.
    pub(crate) fn used(&mut self, at: Unix, zone: &TimeZone) -> (Interval, u64) {
        let unknown = (Interval { start: at, end: at }, 0);
        self.row(at, zone).map_or(unknown, |row| (row.interval, row.used))
    }

    pub(crate) fn add(&mut self, at: Unix, zone: &TimeZone, tokens: u64) {
        if let Some(row) = self.row(at, zone) {
            row.used = row.used.saturating_add(tokens);
        }
    }

    /// Replaces what was reserved at `at` by what was used, in the period of `at`, whenever the request ends.
    pub(crate) fn settle(&mut self, at: Unix, reserved: u64, used: u64) {
        let row = match self.find(at) {
            Some(index) => self.rows.get_mut(index),
            None => self.carried.iter_mut().find(|row| row.interval.contains(at)),
        };
        if let Some(row) = row {
            row.used = row.used.saturating_sub(reserved).saturating_add(used);
        }
    }

    /// Sets the sum of the period of `at`, from the ledger.
    pub(crate) fn restore(&mut self, at: Unix, zone: &TimeZone, used: u64) {
        if let Some(row) = self.row(at, zone) {
            row.used = used;
        }
    }

    /// The policy's zone changed: periods get new bounds, and the one in force keeps its sum.
    pub(crate) fn rezone(&mut self) {
        if !self.rows.is_empty() {
            self.carried = std::mem::take(&mut self.rows);
        }
        self.current = 0;
    }

    /// Whether some period that has not ended holds a sum.
    pub(crate) fn in_use(&self, now: Unix) -> bool {
        self.rows.iter().chain(&self.carried).any(|row| row.used > 0 && row.interval.end > now)
    }
}
