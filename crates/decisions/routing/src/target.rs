//! Alias to deployment, by weight.

/// Chooses an index among `weights` in proportion to them; targets with weight 0 are never chosen. `random` is any
/// uniformly distributed number. `None` when all weights are 0.
#[must_use]
pub fn choose(weights: impl Iterator<Item = u32> + Clone, random: u64) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    if total == 0 {
        return None;
    }
    let mut rest = random % total;
    for (index, weight) in weights.enumerate() {
        let weight = u64::from(weight);
        if rest < weight {
            return Some(index);
        }
        rest -= weight;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_follow_the_weights_exactly_over_one_period() {
        let weights = [90_u32, 0, 10];
        let mut hits = [0_u32; 3];
        for random in 0..100 {
            hits[choose(weights.iter().copied(), random).unwrap()] += 1;
        }
        assert_eq!(hits, weights);
    }

    #[test]
    fn no_weight_means_no_target() {
        assert_eq!(choose([0, 0].into_iter(), 7), None);
        assert_eq!(choose(std::iter::empty(), 7), None);
    }

    proptest! {
        #[test]
        fn a_chosen_target_always_has_weight(weights in prop::collection::vec(0_u32..5, 0..8), random: u64) {
            if let Some(index) = choose(weights.iter().copied(), random) {
                prop_assert!(weights[index] > 0);
            } else {
                prop_assert!(weights.iter().all(|&weight| weight == 0));
            }
        }
    }
}
