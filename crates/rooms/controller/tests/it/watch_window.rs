//! The watch window after a switch.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use proptest::prelude::*;
use tidegate_controller::gate::watch::{Counters, Counts, Rules, TTFT_BOUNDS_MS, Ttft, Verdict, Window, judge};
use tidegate_core::DeploymentName;

fn counters(requests: u64, replica_faults: u64, ttft_ms: &[(u64, u64)]) -> Counters {
    let mut ttft = Ttft::default();
    for &(time, count) in ttft_ms {
        for _ in 0..count {
            ttft.add(Duration::from_millis(time));
        }
    }
    Counters { requests, replica_faults, ttft }
}

fn verdict(new: &Counters, old: Option<&Counters>) -> Verdict {
    judge(&Rules::default(), new, old)
}

fn is_worse(new: &Counters, old: Option<&Counters>) -> bool {
    matches!(verdict(new, old), Verdict::Regressed { .. })
}

#[test]
fn faults_count_when_they_are_too_many_to_be_chance() {
    assert_eq!(verdict(&counters(4, 4, &[]), None), Verdict::TooFew, "below the least number");
    assert!(is_worse(&counters(5, 5, &[]), None));
    assert!(!is_worse(&counters(20, 1, &[]), None), "one of twenty is chance");
    assert!(!is_worse(&counters(100, 5, &[]), None), "what is allowed");
    assert!(is_worse(&counters(100, 15, &[]), None));
    assert_eq!(verdict(&counters(1_000, 0, &[]), None), Verdict::Fine);
    let old = counters(1_000, 200, &[]);
    assert!(!is_worse(&counters(100, 25, &[]), Some(&old)), "the old ones were as bad");
    assert!(is_worse(&counters(100, 60, &[]), Some(&old)));
    let Verdict::Regressed { why } = verdict(&counters(100, 15, &[]), None) else { panic!() };
    assert_eq!(why, "15 of 100 requests ended by a fault of a replica (15.0 %), allowed are 5.0 %");
}

#[test]
fn first_tokens_are_compared_with_the_old_ones_and_with_a_bound() {
    let old = counters(100, 0, &[(900, 100)]);
    assert!(!is_worse(&counters(100, 0, &[(1_400, 100)]), Some(&old)), "not twice as long");
    assert!(is_worse(&counters(100, 0, &[(4_000, 100)]), Some(&old)));
    assert!(!is_worse(&counters(100, 0, &[(4_000, 19)]), Some(&old)), "too few");
    assert!(!is_worse(&counters(100, 0, &[(4_000, 100)]), None), "with nothing to compare the bound counts");
    assert!(is_worse(&counters(100, 0, &[(70_000, 100)]), None));
    let fast = counters(100, 0, &[(20, 100)]);
    assert!(!is_worse(&counters(100, 0, &[(400, 100)]), Some(&fast)), "what nobody notices is no regression");
    let few = counters(5, 0, &[(20, 5)]);
    assert!(!is_worse(&counters(100, 0, &[(4_000, 100)]), Some(&few)), "the old ones have too few to compare with");
}

#[test]
fn quantiles_lie_in_the_bucket_of_their_rank() {
    let ttft = counters(0, 0, &[(30, 95), (3_000, 5)]).ttft;
    assert_eq!(ttft.count(), 100);
    assert_eq!(ttft.quantile(0.95), Some(Duration::from_millis(50)));
    let p96 = ttft.quantile(0.96).unwrap();
    assert!(p96 > Duration::from_millis(2_500) && p96 <= Duration::from_secs(5), "{p96:?}");
    assert_eq!(Ttft::default().quantile(0.5), None);
    let beyond = counters(0, 0, &[(1_000_000, 3)]).ttft;
    assert_eq!(beyond.quantile(0.5), Some(Duration::from_millis(TTFT_BOUNDS_MS[17])));
}

#[derive(Debug, Default)]
struct Gate(Mutex<BTreeMap<(DeploymentName, u64), Counters>>);

impl Counts for Gate {
    fn counters(&self, deployment: &DeploymentName, revision: u64) -> Option<Counters> {
        self.0.lock().get(&(deployment.clone(), revision)).copied()
    }
}

#[test]
fn only_what_happened_since_the_switch_counts_and_a_regression_is_told_once() {
    let gate = Gate::default();
    let (new, old) = (DeploymentName::from("new"), DeploymentName::from("old"));
    let set = |name: &DeploymentName, revision, counters| {
        gate.0.lock().insert((name.clone(), revision), counters);
    };
    set(&old, 1, counters(1_000, 0, &[]));
    // what it did to its own gate, and in an earlier life
    set(&new, 2, counters(10, 10, &[]));
    set(&new, 1, counters(500, 500, &[]));
    let mut window = Window::default();
    window.begin((&new, 2), Some((&old, 1)), Rules::default(), &gate);
    window.begin((&old, 1), None, Rules::default(), &gate);
    assert_eq!(window.watched().count(), 2);
    assert!(window.look(&gate).is_empty());
    set(&new, 2, counters(40, 10, &[]));
    assert!(window.look(&gate).is_empty(), "thirty more, none of them bad");
    set(&new, 2, counters(80, 50, &[]));
    let worse = window.look(&gate);
    assert_eq!(worse.len(), 1);
    assert_eq!(worse[0].0, new);
    assert!(worse[0].1.starts_with("40 of 70 requests"), "{}", worse[0].1);
    assert!(window.look(&gate).is_empty());
    window.end(&old);
    assert_eq!(window.watched().count(), 0);
}

proptest! {
    #[test]
    fn more_faults_never_make_a_verdict_better(requests in 0_u64..2_000, faults in 0_u64..2_000, more in 0_u64..100) {
        let faults = faults.min(requests);
        let worse = (faults + more).min(requests);
        if is_worse(&counters(requests, faults, &[]), None) {
            prop_assert!(is_worse(&counters(requests, worse, &[]), None));
        }
        let least = counters(requests, faults, &[]).fault_share_least();
        prop_assert!((0.0..=1.0).contains(&least));
        prop_assert!(least <= counters(requests, faults, &[]).fault_share() + 1e-9);
    }

    #[test]
    fn quantiles_grow_with_their_share_and_stay_inside_the_bounds(times in prop::collection::vec(0_u64..200_000, 1..200)) {
        let all: Vec<_> = times.iter().map(|time| (*time, 1)).collect();
        let ttft = counters(0, 0, &all).ttft;
        let mut last = Duration::ZERO;
        for step in 0..=20_u32 {
            let now = ttft.quantile(f64::from(step) / 20.0).unwrap();
            prop_assert!(now >= last);
            prop_assert!(now <= Duration::from_millis(160_000));
            last = now;
        }
        prop_assert_eq!(ttft.since(&ttft).count(), 0);
    }
}
