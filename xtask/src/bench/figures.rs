//! A figure: what was measured here and at the peers, what was wanted, and whether it was met.

use std::collections::BTreeMap;

use super::stand::Target;

/// Something that is measured: a column of a table, in the order of its columns.
pub(super) trait Column: Copy + Ord + std::fmt::Debug + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// Tidegate itself.
    const OWN: Self;
    /// The peer with a column for the ratio to it.
    const BESIDE: Self;
    /// Name of the bench.
    const BENCH: &'static str;

    /// The column's head.
    fn name(self) -> &'static str;
}

/// What a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal<C = Target> {
    /// At least this, in the figure's unit.
    AtLeast(f64),
    /// At most this, in the figure's unit.
    AtMost(f64),
    /// Exactly this many.
    Exactly(f64),
    /// At most so many times a peer's.
    TimesAtMost(C, f64),
    /// At least so many times a peer's.
    TimesAtLeast(C, f64),
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Figure<C = Target> {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) values: BTreeMap<C, f64>,
    pub(super) goals: Vec<Goal<C>>,
}

impl<C: Column> Figure<C> {
    pub(super) fn new(name: impl Into<String>, unit: &'static str, values: BTreeMap<C, f64>) -> Self {
        Self { name: name.into(), unit, values, goals: Vec::new() }
    }

    /// A figure that only Tidegate has.
    pub(super) fn own(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self::new(name, unit, BTreeMap::from([(C::OWN, value)]))
    }

    pub(super) fn wants(mut self, goal: Goal<C>) -> Self {
        self.goals.push(goal);
        self
    }

    /// Tidegate's value as a multiple of a peer's.
    pub(super) fn ratio(&self, peer: C) -> Option<f64> {
        let value = self.values.get(&C::OWN)?;
        let other = self.values.get(&peer).filter(|other| **other > 0.0)?;
        Some(value / other)
    }

    /// Whether a goal is met; `None` when what it needs was not measured.
    pub(super) fn meets(&self, goal: Goal<C>) -> Option<bool> {
        let value = *self.values.get(&C::OWN)?;
        match goal {
            Goal::AtLeast(bound) => Some(value >= bound),
            Goal::AtMost(bound) => Some(value <= bound),
            Goal::Exactly(wanted) => Some((value - wanted).abs() < 0.5),
            Goal::TimesAtMost(peer, bound) => Some(self.ratio(peer)? <= bound),
            Goal::TimesAtLeast(peer, bound) => Some(self.ratio(peer)? >= bound),
        }
    }
}

/// The middle of some values; the mean of the two middle ones when their number is even. `None` without values.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_goal_is_met_or_missed_or_was_not_measured() {
        let figure = Figure::new("x", "us", BTreeMap::from([(Target::Tidegate, 30.0), (Target::Nginx, 20.0)]));
        assert_eq!(figure.ratio(Target::Nginx), Some(1.5));
        assert_eq!(figure.meets(Goal::TimesAtMost(Target::Nginx, 1.5)), Some(true));
        assert_eq!(figure.meets(Goal::TimesAtMost(Target::Nginx, 1.4)), Some(false));
        assert_eq!(figure.meets(Goal::TimesAtLeast(Target::Nginx, 1.6)), Some(false));
        assert_eq!(figure.meets(Goal::TimesAtMost(Target::SglangRouter, 1.0)), None);
        assert_eq!(figure.meets(Goal::AtMost(29.0)), Some(false));
        assert_eq!(figure.meets(Goal::Exactly(30.0)), Some(true));
    }
}
