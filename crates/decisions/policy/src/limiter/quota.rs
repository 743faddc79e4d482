//! Daily and monthly sums of one subject.
//!
//! A new period is a new row; there is no reset. A few rows are kept, so that a wall clock that steps forward and back
//! finds the sums it left.

use jiff::tz::TimeZone;
use tidegate_core::Unix;

use crate::period::{Interval, Period};

/// Rows kept of each kind: the current period and those that a stepping clock may return to. Of more, the one that was
/// not used for longest is let go.
pub const PERIODS_KEPT: usize = 8;

/// The sum of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) interval: Interval,
    pub(super) used: u64,
}

impl Row {
    /// Whether it holds something and has not ended.
    pub(super) fn counts(&self, now: Unix) -> bool {
        self.used > 0 && self.interval.end > now
    }
}

/// The rows of one kind of period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    period: Period,
    /// The last one was used last: almost always the one that is asked for next.
    rows: Vec<Row>,
    /// Rows of the zone that was in force before: a row of the new zone begins with the sum of the one it continues.
    carried: Vec<Row>,
}

impl Quota {
    /// Begins with the sum of a subject that was away. It is carried, because the zone may have changed meanwhile.
    pub(super) fn new(period: Period, sum: Option<Row>) -> Self {
        Self { period, rows: Vec::new(), carried: sum.into_iter().collect() }
    }

    /// The row of an instant, made if it is the first use in its period; it becomes the current one.
    fn row(&mut self, at: Unix, zone: &TimeZone) -> Option<&mut Row> {
        if !self.rows.last().is_some_and(|row| row.interval.contains(at)) {
            let row = match self.rows.iter().position(|row| row.interval.contains(at)) {
                Some(index) => self.rows.remove(index),
                None => self.begin(at, zone),
            };
            self.rows.push(row);
        }
        self.rows.last_mut()
    }

    fn begin(&mut self, at: Unix, zone: &TimeZone) -> Row {
        if self.rows.len() >= PERIODS_KEPT {
            self.rows.remove(0);
        }
        // Continued once: a row of the old zone may overlap two of the new one.
        let continued = self.carried.iter().position(|row| row.interval.contains(at));
        let used = continued.map_or(0, |index| self.carried.remove(index).used);
        Row { interval: self.period.of(at, zone), used }
    }

    /// The period of `at` and what is used of it. Changes no sum.
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
        let rows = self.rows.iter_mut().rev().chain(&mut self.carried);
        for row in rows.filter(|row| row.interval.contains(at)).take(1) {
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
    }

    /// The sums of periods that have not ended.
    pub(super) fn counting(&self, now: Unix) -> impl Iterator<Item = Row> {
        self.rows.iter().chain(&self.carried).copied().filter(move |row| row.counts(now))
    }
}
