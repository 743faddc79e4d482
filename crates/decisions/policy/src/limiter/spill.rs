//! What is left of subjects that had to make room: their daily and monthly sums, until the periods end.
//!
//! A subject takes about 1 KB and only so many are held; a ledger of one month can name more. A quota that forgot one of
//! them would be given out a second time, so its sums stay here, at about a tenth of the memory.

use tidegate_core::Unix;

use super::quota::Row;
use super::subject::SubjectKey;

/// Subjects of which only the sums are kept: what a table of 2^19 places holds. At names of ordinary length that are
/// about 150 bytes each and 70 MB in all.
pub const SPILLED_MAX: usize = 458_752;

/// The sums of one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) day: Option<Row>,
    pub(super) month: Option<Row>,
}

impl Sums {
    /// Whether some period has not ended.
    fn count(self, wall: Unix) -> bool {
        [self.day, self.month].into_iter().flatten().any(|row| row.counts(wall))
    }
}

/// The sums of all of them.
#[derive(Debug, Default)]
pub(super) struct Spill {
    sums: ahash::HashMap<SubjectKey, Sums>,
}

impl Spill {
    /// Keeps the sums of a subject that makes room; `false` when no more can be kept.
    pub(super) fn keep(&mut self, key: &SubjectKey, sums: Sums) -> bool {
        if self.sums.len() >= SPILLED_MAX {
            return false;
        }
        self.sums.insert(key.clone(), sums);
        true
    }

    /// The sums of a subject that is back.
    pub(super) fn take(&mut self, key: &SubjectKey) -> Sums {
        self.sums.remove(key).unwrap_or_default()
    }

    /// Forgets sums of periods that are over. Memory is given back only when most of it is not needed.
    pub(super) fn forget_ended(&mut self, wall: Unix) {
        self.sums.retain(|_, sums| sums.count(wall));
        if self.sums.len() < self.sums.capacity() / 4 {
            self.sums.shrink_to_fit();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sums.len()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::AliasName;

    use super::*;
    use crate::period::Interval;

    fn key(n: usize) -> SubjectKey {
        SubjectKey::alias(&AliasName::from(n.to_string()))
    }

    fn sums(end_ms: i64) -> Sums {
        let interval = Interval { start: Unix::from_ms(0), end: Unix::from_ms(end_ms) };
        Sums { day: None, month: Some(Row { interval, used: 7 }) }
    }

    #[test]
    fn what_is_spilled_is_bounded_and_ends_with_its_period() {
        let mut spill = Spill::default();
        assert!((0..SPILLED_MAX).all(|n| spill.keep(&key(n), sums(if n == 0 { 2_000 } else { 1_000 }))));
        assert!(!spill.keep(&key(SPILLED_MAX), sums(1_000)), "more than the bound");
        spill.forget_ended(Unix::from_ms(999));
        assert_eq!(spill.len(), SPILLED_MAX);
        spill.forget_ended(Unix::from_ms(1_000));
        assert_eq!((spill.len(), spill.take(&key(0))), (1, sums(2_000)));
        assert_eq!(spill.take(&key(0)), Sums::default(), "taken once");
    }
}
