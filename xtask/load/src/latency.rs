//! Times in microseconds and their percentiles.

use std::time::Duration;

/// A set of measured times.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Microseconds, in the order measured.
    micros: Vec<f32>,
}

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        // 24 bits of mantissa: 0.1 us at a second, more than any of these figures needs
        self.micros.push(time.as_secs_f32() * 1e6);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.micros.append(&mut other.micros);
    }

    /// The time below which `share` (0 to 1) of them lie: nearest rank; `None` without a measurement.
    pub(crate) fn percentile(&mut self, share: f64) -> Option<f32> {
        let last = self.micros.len().checked_sub(1)?;
        let rank = (self.micros.len() as f64 * share).ceil() as usize;
        let index = rank.saturating_sub(1).min(last);
        let (_, value, _) = self.micros.select_nth_unstable_by(index, f32::total_cmp);
        Some(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut times = Times::default();
        assert_eq!(times.percentile(0.5), None);
        for micros in (1..=100).rev() {
            times.push(Duration::from_micros(micros));
        }
        let mut at = |share| times.percentile(share).unwrap().round();
        assert_eq!((at(0.0), at(0.5), at(0.99), at(1.0)), (1.0, 50.0, 99.0, 100.0));
    }
}
