//! One controller at a time where several processes could be it: it works for as long as it holds the Lease.
//!
//! On one machine the state folder's lock does that. The Lease keeps two from working at once; that what an earlier one
//! had begun does no harm is what generations are for, and they are counted on from the highest that the cluster has
//! seen ([`tidegate_kubernetes::Cluster::highest`]).

use tidegate_kubernetes::{Leadership, Term};

/// Works whenever we lead. Work is dropped at once when the Lease is lost, which leaves engines as they are, and begun
/// again with the next term. Returns what the work comes to when it ends by itself.
pub async fn while_leading<T, W>(leadership: &Leadership, mut work: impl FnMut(Term) -> W) -> T
where
    W: Future<Output = T>,
{
    loop {
        let term = leadership.held().await;
        tokio::select! {
            biased;
            () = leadership.lost(term) => tracing::error!(term = term.0, "the lease is lost: another may lead"),
            done = work(term) => return done,
        }
    }
}
