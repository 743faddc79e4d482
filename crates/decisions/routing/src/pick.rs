//! Deployment to replica.

use tidegate_core::Monotonic;

use crate::book::Replica;

/// Index of the pickable replica with the fewest bookings per unit of capacity, among those that `tried` does not
/// hold; ties are broken by `random`, so that equal replicas share the load from the first request on.
///
/// `None` when no replica is left.
#[must_use]
pub fn least_loaded<'a>(
    replicas: impl ExactSizeIterator<Item = &'a Replica>,
    tried: &[usize],
    now: Monotonic,
    random: u64,
) -> Option<usize> {
    let len = replicas.len().max(1) as u64;
    let start = random % len;
    replicas
        .enumerate()
        .filter(|(index, replica)| !tried.contains(index) && replica.is_pickable(now))
        .min_by_key(|(index, replica)| (replica.booked(), (*index as u64 + len - start) % len))
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::book::ReplicaState;
    use crate::breaker::Report;

    const NOW: Monotonic = Monotonic::from_ms(1);

    fn serving(count: usize) -> Vec<Arc<Replica>> {
        (0..count)
            .map(|index| {
                let replica = Arc::new(Replica::new(format!("d/{index}").into()));
                replica.set_state(ReplicaState::Serving);
                replica
            })
            .collect()
    }

    fn pick(replicas: &[Arc<Replica>], tried: &[usize], random: u64) -> Option<usize> {
        least_loaded(replicas.iter().map(|replica| &**replica), tried, NOW, random)
    }

    #[test]
    fn the_replica_with_fewest_requests_of_ours_is_picked() {
        let replicas = serving(3);
        let first = replicas[0].book(NOW).unwrap();
        let second = replicas[1].book(NOW).unwrap();
        assert_eq!(pick(&replicas, &[], 0), Some(2));
        assert_eq!(pick(&replicas, &[2], 0), Some(0));
        first.release(Report::Good, NOW);
        second.release(Report::Good, NOW);
    }

    #[test]
    fn equal_replicas_share_the_load() {
        let replicas = serving(3);
        let picked: Vec<_> = (0..3).map(|random| pick(&replicas, &[], random)).collect();
        assert_eq!(picked, [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_replica_that_does_not_serve_is_never_picked() {
        let replicas = serving(2);
        replicas[0].set_state(ReplicaState::Starting);
        assert_eq!(pick(&replicas, &[], 0), Some(1));
        replicas[1].set_state(ReplicaState::Draining);
        assert_eq!(pick(&replicas, &[], 0), None);
    }
}
