//! The clocks that journal records carry.
//!
//! `CLOCK_BOOTTIME` counts through suspend and is never set, but means nothing after a reboot; the wall clock means
//! something always, but may be set. The boot id says which of the two may be trusted.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tidegate_core::Unix;

/// Which boot of the machine a record was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// A boot that cannot be told from another; never the same as any, itself included.
    pub const UNKNOWN: Self = Self([0; 16]);

    /// A boot id of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether both are known to be one boot, so that their boot times can be compared.
    #[must_use]
    pub fn is_same_boot(self, other: Self) -> bool {
        self != Self::UNKNOWN && self == other
    }

    /// This boot's id, from the kernel; unknown where the kernel has none.
    #[must_use]
    pub fn current() -> Self {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::parse(text.trim()).unwrap_or(Self::UNKNOWN)
    }

    /// Reads the kernel's form, a UUID.
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut digits = text.chars().filter(|c| *c != '-');
        for byte in &mut bytes {
            let high = digits.next()?.to_digit(16)?;
            let low = digits.next()?.to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        digits.next().is_none().then_some(Self(bytes))
    }
}

/// One instant on all three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Which boot.
    pub boot: BootId,
    /// Nanoseconds since that boot, suspend included.
    pub boottime_ns: u64,
    /// The wall clock.
    pub wall: Unix,
}

impl Now {
    /// Reads all three clocks.
    #[must_use]
    pub fn read() -> Self {
        Self { boot: BootId::current(), boottime_ns: boottime_ns(), wall: wall() }
    }

    /// How long ago a record was written, from the clocks it carries. Within one boot the boot time decides. Of
    /// another boot only the wall clock is left, and it may have been set meanwhile: an age under `window` (and a
    /// record from the future) then counts as zero, so that what was admitted before counts in full.
    #[must_use]
    pub fn age_of(&self, written: &Self, window: Duration) -> Duration {
        if self.boot.is_same_boot(written.boot) {
            return Duration::from_nanos(self.boottime_ns.saturating_sub(written.boottime_ns));
        }
        let age = self.wall.since(written.wall);
        if age < window { Duration::ZERO } else { age }
    }
}

/// Nanoseconds since boot, suspend included.
#[must_use]
pub fn boottime_ns() -> u64 {
    #[cfg(target_os = "linux")]
    let id = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = ClockId::Monotonic;
    let Timespec { tv_sec, tv_nsec } = clock_gettime(id);
    (tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(tv_nsec as u64)
}

/// The wall clock.
#[must_use]
pub fn wall() -> Unix {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
    Unix::from_ms(tv_sec.saturating_mul(1_000).saturating_add(tv_nsec / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(boot: u8, boottime_s: u64, wall_s: i64) -> Now {
        Now {
            boot: BootId::from_bytes([boot; 16]),
            boottime_ns: boottime_s * 1_000_000_000,
            wall: Unix::from_ms(wall_s * 1_000),
        }
    }

    #[test]
    fn within_one_boot_a_set_wall_clock_changes_no_age() {
        let written = at(1, 100, 5_000);
        for wall_s in [0, 5_000, 9_999] {
            assert_eq!(at(1, 130, wall_s).age_of(&written, MINUTE), Duration::from_secs(30));
        }
    }

    #[test]
    fn after_a_reboot_the_last_minute_counts_in_full() {
        let written = at(1, 100, 5_000);
        assert_eq!(at(2, 3, 5_059).age_of(&written, MINUTE), Duration::ZERO);
        assert_eq!(at(2, 3, 5_060).age_of(&written, MINUTE), MINUTE);
        assert_eq!(at(2, 3, 4_000).age_of(&written, MINUTE), Duration::ZERO, "a record from the future");
    }

    #[test]
    fn an_unknown_boot_is_never_the_same() {
        assert!(!BootId::UNKNOWN.is_same_boot(BootId::UNKNOWN));
        assert_eq!(BootId::parse("not a uuid"), None);
        assert!(BootId::parse("01234567-89ab-cdef-0123-456789abcdef").is_some());
    }
}
