//! The memory proof: whether nothing of an ended instance is left on its GPUs. Pure: what was seen is an argument.
//!
//! | what is seen | what has to hold on every GPU, in each of three samples |
//! | --- | --- |
//! | figures of each process | none of its processes is listed, and used − Σ other living listed processes ≤ idle baseline + 512 MiB |
//! | totals, and nobody else lives on the GPU | used ≤ idle baseline + 512 MiB, none of its processes listed |
//! | totals, and somebody else does | the total fell by ≥ 90 % of what the instance was measured to use, none of its processes listed |
//! | nothing | no process of it is alive, which all of the others ask first |
//!
//! A process that is listed and not alive explains nothing: what it holds is what did not come back.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::nvml::GpuLook;
use crate::report::ProvenBy;

/// How much may be in use above the idle baseline.
pub(crate) const SLACK_BYTES: u64 = 512 * 1024 * 1024;
/// Share of the measured use that has to have come back, in percent.
const FALLEN_PERCENT: u128 = 90;

/// What was measured on one GPU of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// In use when it was started, by everybody.
    pub(crate) before_bytes: Option<u64>,
    /// The most that its own processes had, where the driver says so.
    pub(crate) own_peak_bytes: Option<u64>,
    /// In use when it was last seen alive, by everybody.
    pub(crate) last_bytes: Option<u64>,
}

impl Measured {
    /// What the instance used, as far as it was measured.
    fn use_bytes(&self) -> Option<u64> {
        let rise = || Some(self.last_bytes?.saturating_sub(self.before_bytes?));
        self.own_peak_bytes.filter(|bytes| *bytes > 0).or_else(rise)
    }
}

/// What is known of one GPU besides the look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Process ids that were the instance's.
    pub(crate) own: BTreeSet<u32>,
    /// Listed processes of others that are alive.
    pub(crate) others: BTreeSet<u32>,
    /// Whether another instance of ours lives on it.
    pub(crate) is_shared: bool,
    /// The least that was ever in use with nobody on it.
    pub(crate) baseline_bytes: u64,
    /// What was measured while the instance lived.
    pub(crate) measured: Measured,
}

/// One sample of one GPU: how it is known to be free, or why it is not.
pub(crate) fn sample(look: &GpuLook, known: &Known) -> Result<ProvenBy, String> {
    let gpu = look.index;
    if let Some(why) = &look.failed {
        return Err(format!("gpu {gpu}: {why}"));
    }
    let listed = look.processes.as_deref().unwrap_or_default();
    if let Some((pid, _)) = listed.iter().find(|(pid, _)| known.own.contains(pid)) {
        return Err(format!("gpu {gpu}: its process {pid} is still listed"));
    }
    let used = look.used_bytes.ok_or_else(|| format!("gpu {gpu}: the driver does not say what is in use"))?;
    let others = listed.iter().filter(|(pid, _)| known.others.contains(pid));
    let figures: Option<Vec<u64>> = others.clone().map(|(_, bytes)| *bytes).collect();
    let bound = known.baseline_bytes.saturating_add(SLACK_BYTES);
    match (look.processes.is_some(), figures) {
        (true, Some(figures)) => {
            let theirs = figures.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let rest = used.saturating_sub(theirs);
            if rest <= bound { Ok(ProvenBy::Nvml) } else { Err(above(gpu, rest, bound)) }
        }
        (_, _) if !known.is_shared && others.count() == 0 => {
            if used <= bound {
                Ok(ProvenBy::Total)
            } else {
                Err(above(gpu, used, bound))
            }
        }
        (_, _) => fallen(gpu, used, &known.measured),
    }
}

fn fallen(gpu: u32, used: u64, measured: &Measured) -> Result<ProvenBy, String> {
    let (Some(last), Some(own)) = (measured.last_bytes, measured.use_bytes()) else {
        return Err(format!("gpu {gpu}: others are on it, and its own use was never measured"));
    };
    let fell = last.saturating_sub(used);
    if u128::from(fell) * 100 >= u128::from(own) * FALLEN_PERCENT {
        Ok(ProvenBy::Total)
    } else {
        Err(format!("gpu {gpu}: the total fell by {}, its use was {}", mib(fell), mib(own)))
    }
}

fn above(gpu: u32, rest: u64, bound: u64) -> String {
    format!("gpu {gpu}: {} are in use that nobody has, at most {} may be", mib(rest), mib(bound))
}

/// Bytes for people.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1024 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn look(used: u64, processes: Option<Vec<(u32, Option<u64>)>>) -> GpuLook {
        GpuLook { index: 0, used_bytes: Some(used), processes, failed: None }
    }

    fn known() -> Known {
        Known { own: BTreeSet::from([7]), others: BTreeSet::from([8]), baseline_bytes: GIB, ..Known::default() }
    }

    #[test]
    fn with_figures_what_others_have_does_not_count() {
        let free = |used, processes: &[(u32, Option<u64>)]| sample(&look(used, Some(processes.to_vec())), &known());
        assert_eq!(free(GIB + SLACK_BYTES, &[]), Ok(ProvenBy::Nvml), "at the bound");
        assert!(free(GIB + SLACK_BYTES + 1, &[]).unwrap_err().contains("in use that nobody has"));
        assert_eq!(free(41 * GIB, &[(8, Some(40 * GIB))]), Ok(ProvenBy::Nvml));
        assert!(free(50 * GIB, &[(8, Some(40 * GIB))]).is_err());
        assert!(free(GIB, &[(7, Some(0))]).unwrap_err().contains("process 7 is still listed"));
        // Listed and dead: not among the others.
        assert!(free(41 * GIB, &[(9, Some(40 * GIB))]).is_err());
    }

    #[test]
    fn without_figures_the_total_has_to_fall_by_nine_tenths_of_its_use() {
        let mut known = known();
        let who = |used| look(used, Some(vec![(8, None)]));
        assert!(sample(&who(41 * GIB), &known).unwrap_err().contains("never measured"));
        known.measured = Measured { before_bytes: Some(40 * GIB), own_peak_bytes: None, last_bytes: Some(50 * GIB) };
        assert_eq!(sample(&who(41 * GIB), &known), Ok(ProvenBy::Total), "9 of 10 GiB, at the bound");
        assert!(sample(&who(41 * GIB + 1), &known).is_err());
        known.measured.own_peak_bytes = Some(20 * GIB);
        assert!(sample(&who(41 * GIB), &known).is_err(), "its own figure, from a time when there was one, wins");
    }

    #[test]
    fn without_a_list_of_processes_only_our_own_neighbours_are_known() {
        let mut known = known();
        assert_eq!(sample(&look(GIB, None), &known), Ok(ProvenBy::Total));
        assert!(sample(&look(3 * GIB, None), &known).is_err());
        known.is_shared = true;
        assert!(sample(&look(GIB, None), &known).is_err(), "a neighbour may have left at the same time");
        known.measured = Measured { before_bytes: Some(GIB), own_peak_bytes: None, last_bytes: Some(11 * GIB) };
        assert_eq!(sample(&look(2 * GIB, None), &known), Ok(ProvenBy::Total));
    }

    #[test]
    fn what_cannot_be_seen_is_not_free() {
        let unseen = GpuLook { index: 0, ..GpuLook::default() };
        assert!(sample(&unseen, &Known::default()).is_err());
        let broken = GpuLook { failed: Some("lost".to_owned()), ..look(0, Some(Vec::new())) };
        assert_eq!(sample(&broken, &Known::default()), Err("gpu 0: lost".to_owned()));
    }

    proptest! {
        /// More in use never makes a GPU free, and nothing of its own is ever overlooked.
        #[test]
        fn more_in_use_is_never_freer(used in 0..1_u64 << 40, more in 0..1_u64 << 40, theirs in 0..1_u64 << 38, shared: bool) {
            let known = Known { is_shared: shared, ..known() };
            let listed = Some(vec![(8, Some(theirs))]);
            if sample(&look(used, listed.clone()), &known).is_err() {
                prop_assert!(sample(&look(used.saturating_add(more), listed), &known).is_err());
            }
            prop_assert!(sample(&look(used, Some(vec![(7, None)])), &known).is_err());
        }
    }
}
