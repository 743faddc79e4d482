//! After a switch: do the new replicas do as well as the old ones did?
//!
//! The rules are pure. What is counted comes through [`Counts`]: replicas count for themselves ([`ReplicaCounts`]); what is done about a
//! regression (back to the old replicas, which are kept warm meanwhile) is the switch's business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::DeploymentName;
pub use tidegate_routing::tally::TTFT_BOUNDS_MS;
use tidegate_routing::tally::ttft_bucket;
use tokio::sync::watch;

use crate::controller::Traffic;

/// z of the interval in which the true share of faults lies in 19 of 20 cases.
const Z: f64 = 1.96;

/// Times to the first token, in buckets; counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttft([u64; TTFT_BOUNDS_MS.len() + 1]);

impl Ttft {
    /// Counts one.
    pub fn add(&mut self, time: Duration) {
        let at = ttft_bucket(time);
        self.0[at] = self.0[at].saturating_add(1);
    }

    /// One whose buckets were counted elsewhere, in this order.
    #[must_use]
    pub const fn from_buckets(buckets: [u64; TTFT_BOUNDS_MS.len() + 1]) -> Self {
        Self(buckets)
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// What was counted since an earlier state of the same counts; nothing when they began anew since.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (count, before) in since.0.iter_mut().zip(&earlier.0) {
            *count = count.saturating_sub(*before);
        }
        since
    }

    /// The time that this share of all did not exceed, interpolated inside its bucket; of those above all bounds the
    /// last bound. `None` of none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let wanted = share.clamp(0.0, 1.0) * count as f64;
        let mut below = 0_u64;
        for (index, inside) in self.0.iter().enumerate().filter(|(_, inside)| **inside > 0) {
            let has = (below + inside) as f64 >= wanted;
            if has {
                let from = index.checked_sub(1).map_or(0, |index| TTFT_BOUNDS_MS[index]);
                let to = TTFT_BOUNDS_MS.get(index).copied().unwrap_or(from);
                let part = ((wanted - below as f64) / *inside as f64).clamp(0.0, 1.0);
                return Some(Duration::from_secs_f64((from as f64 + part * (to - from) as f64) / 1_000.0));
            }
            below += inside;
        }
        None
    }
}

/// What was counted for one deployment in one revision, since its replicas began to serve; only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were sent to its replicas and have ended.
    pub requests: u64,
    /// Of these, ended by a fault whose origin is the replica.
    pub replica_faults: u64,
    /// Times to the first token.
    pub ttft: Ttft,
}

impl Counters {
    /// What was counted since an earlier state.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            replica_faults: self.replica_faults.saturating_sub(earlier.replica_faults),
            ttft: self.ttft.since(&earlier.ttft),
        }
    }

    /// Share of requests that faults ended; 0 of none.
    #[must_use]
    pub fn fault_share(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.replica_faults as f64 / self.requests as f64 }
    }

    /// The share of faults is at least this, in 39 of 40 cases (the lower end of Wilson's interval).
    #[must_use]
    pub fn fault_share_least(&self) -> f64 {
        if self.requests == 0 {
            return 0.0;
        }
        let (count, share) = (self.requests as f64, self.fault_share().min(1.0));
        let middle = share + Z * Z / (2.0 * count);
        let half = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
        ((middle - half) / (1.0 + Z * Z / count)).max(0.0)
    }
}

/// Whoever counts requests.
pub trait Counts: Send + Sync + std::fmt::Debug {
    /// What was counted for a deployment in a revision; `None`: nothing is known of it.
    fn counters(&self, deployment: &DeploymentName, revision: u64) -> Option<Counters>;
}

/// Counts that the replicas themselves keep.
#[derive(Debug)]
pub struct ReplicaCounts {
    traffic: watch::Receiver<Arc<Traffic>>,
}

impl ReplicaCounts {
    /// Of the replicas that a controller has told about last.
    #[must_use]
    pub const fn new(traffic: watch::Receiver<Arc<Traffic>>) -> Self {
        Self { traffic }
    }
}

impl Counts for ReplicaCounts {
    fn counters(&self, deployment: &DeploymentName, revision: u64) -> Option<Counters> {
        let traffic = Arc::clone(&self.traffic.borrow());
        let own =
            traffic.placed.iter().filter(|placed| placed.deployment == *deployment && placed.revision == revision);
        own.map(|placed| placed.backend.replica().tallied()).fold(None, |sum: Option<Counters>, one| {
            let sum = sum.unwrap_or_default();
            let ttft = Ttft(std::array::from_fn(|bucket| sum.ttft.0[bucket].saturating_add(one.ttft[bucket])));
            Some(Counters {
                requests: sum.requests.saturating_add(one.ended),
                replica_faults: sum.replica_faults.saturating_add(one.faults),
                ttft,
            })
        })
    }
}

/// When the new ones do worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Requests below which nothing is said.
    pub requests_min: u64,
    /// Share of faults that is never too much.
    pub fault_share_max: f64,
    /// How many times the old ones' share of faults is too much.
    pub fault_ratio_max: f64,
    /// First tokens below which nothing is said of their time.
    pub ttft_min: u64,
    /// The time to the first token that 19 of 20 may not exceed.
    pub ttft_p95_max: Duration,
    /// How many times the old ones' is too much.
    pub ttft_ratio_max: f64,
    /// A time that is never too much, whatever the old ones' was.
    pub ttft_floor: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            requests_min: 5,
            fault_share_max: 0.05,
            fault_ratio_max: 2.0,
            ttft_min: 20,
            ttft_p95_max: Duration::from_secs(30),
            ttft_ratio_max: 2.0,
            ttft_floor: Duration::from_secs(1),
        }
    }
}

/// What the counts say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little to tell.
    TooFew,
    /// As well as can be told, they do well.
    Fine,
    /// They do worse.
    Regressed {
        /// How.
        why: String,
    },
}

/// Judges what new replicas did against what the old ones did.
#[must_use]
pub fn judge(rules: &Rules, new: &Counters, old: Option<&Counters>) -> Verdict {
    if new.requests >= rules.requests_min {
        let old_share = old.map_or(0.0, Counters::fault_share);
        let bound = rules.fault_share_max.max(old_share * rules.fault_ratio_max);
        if new.fault_share_least() > bound {
            let (faults, requests) = (new.replica_faults, new.requests);
            let why = format!(
                "{faults} of {requests} requests ended by a fault of a replica ({:.1} %), allowed are {:.1} %",
                new.fault_share() * 100.0,
                bound * 100.0
            );
            return Verdict::Regressed { why };
        }
    }
    let p95 = new.ttft.quantile(0.95).filter(|_| new.ttft.count() >= rules.ttft_min);
    if let Some(p95) = p95 {
        let old = old.filter(|old| old.ttft.count() >= rules.ttft_min).and_then(|old| old.ttft.quantile(0.95));
        let relative = old.map(|old| old.mul_f64(rules.ttft_ratio_max).max(rules.ttft_floor));
        let bound = relative.map_or(rules.ttft_p95_max, |relative| relative.min(rules.ttft_p95_max));
        if p95 > bound {
            let old = old.map_or_else(String::new, |old| format!("; it was {:.2} s before", old.as_secs_f64()));
            let why = format!(
                "19 of 20 first tokens come within {:.2} s, allowed are {:.2} s{old}",
                p95.as_secs_f64(),
                bound.as_secs_f64()
            );
            return Verdict::Regressed { why };
        }
    }
    if new.requests < rules.requests_min { Verdict::TooFew } else { Verdict::Fine }
}

/// One deployment that took over.
#[derive(Clone, Debug)]
struct Watched {
    revision: u64,
    rules: Rules,
    /// What was counted when it took over.
    from: Counters,
    /// What its predecessors did.
    old: Option<Counters>,
}

/// The deployments in their watch window.
#[derive(Clone, Debug, Default)]
pub struct Window(BTreeMap<DeploymentName, Watched>);

impl Window {
    /// Watches a deployment from now on. `old` is what its predecessor did, for as long as it is known.
    pub fn begin(
        &mut self,
        (deployment, revision): (&DeploymentName, u64),
        old: Option<(&DeploymentName, u64)>,
        rules: Rules,
        counts: &dyn Counts,
    ) {
        let from = counts.counters(deployment, revision).unwrap_or_default();
        let old = old.and_then(|(old, revision)| counts.counters(old, revision));
        self.0.insert(deployment.clone(), Watched { revision, rules, from, old });
    }

    /// Watches it no more.
    pub fn end(&mut self, deployment: &DeploymentName) {
        self.0.remove(deployment);
    }

    /// Watches nothing more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Deployments that are watched.
    pub fn watched(&self) -> impl Iterator<Item = &DeploymentName> {
        self.0.keys()
    }

    /// Looks at all of them. One that does worse is told once and watched no more.
    pub fn look(&mut self, counts: &dyn Counts) -> Vec<(DeploymentName, String)> {
        let mut worse = Vec::new();
        self.0.retain(|name, watched| {
            let Some(now) = counts.counters(name, watched.revision) else { return true };
            match judge(&watched.rules, &now.since(&watched.from), watched.old.as_ref()) {
                Verdict::TooFew | Verdict::Fine => true,
                Verdict::Regressed { why } => {
                    worse.push((name.clone(), why));
                    false
                }
            }
        });
        worse
    }
}
