//! The clocks of a transfer. A stall is measured in bytes, not by an open connection: a drip is a stall too.

use std::time::Duration;

use crate::fault::StallPhase;

/// Longest wait for a connection.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest wait from the request to the head of its answer.
pub const FIRST_BYTE_MAX: Duration = Duration::from_secs(30);
/// Longest wait between bytes.
pub const GAP_MAX: Duration = Duration::from_secs(30);
/// Lowest rate of one stream over [`RATE_WINDOW`], in bytes per second.
pub const LOWEST_RATE: u64 = 32 << 10;
/// Over how much waiting the lowest rate is measured.
pub const RATE_WINDOW: Duration = Duration::from_secs(60);

/// The clocks of one fetch; what is not set is the constant of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    pub first_byte: Duration,
    pub gap: Duration,
    /// Bytes per second.
    pub lowest_rate: u64,
    pub rate_window: Duration,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { first_byte: FIRST_BYTE_MAX, gap: GAP_MAX, lowest_rate: LOWEST_RATE, rate_window: RATE_WINDOW }
    }
}

/// Watches the rate of one stream. Only waiting for the store counts, not the time that our own disk took.
#[derive(Debug, Default)]
pub(crate) struct RateWatch {
    waited: Duration,
    bytes: u64,
}

impl RateWatch {
    /// After waiting so long so many bytes came.
    ///
    /// # Errors
    /// The window is full and the rate over it was too low.
    pub(crate) fn came(&mut self, waited: Duration, bytes: u64, clocks: &Clocks) -> Result<(), StallPhase> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < clocks.rate_window {
            return Ok(());
        }
        let enough = u128::from(clocks.lowest_rate) * self.waited.as_millis() / 1000;
        let is_enough = u128::from(self.bytes) >= enough;
        *self = Self::default();
        if is_enough { Ok(()) } else { Err(StallPhase::LowRate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_is_a_stall_at_the_end_of_the_window_and_the_lowest_rate_is_none() {
        let clocks = Clocks::default();
        let second = Duration::from_secs(1);
        for (rate, is_stall) in [(LOWEST_RATE, false), (LOWEST_RATE - 1, true), (0, true)] {
            let mut watch = RateWatch::default();
            let ends: Vec<_> = (0..60).map(|_| watch.came(second, rate, &clocks)).collect();
            assert!(ends[..59].iter().all(Result::is_ok), "not before the window is full");
            assert_eq!(ends[59].is_err(), is_stall, "{rate}");
        }
    }
}
