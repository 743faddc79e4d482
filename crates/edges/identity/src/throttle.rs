//! Failed authentications per peer address: a peer that guesses is answered 429 instead of 401.
//!
//! Only failures are counted and only failures are answered so; a valid key from the same address passes, because many
//! honest callers may sit behind one address. Each peer has a leaky bucket, kept as one instant (the generic cell rate
//! algorithm of ITU-T I.371): here a burst is exactly what is wanted, unlike in the limits of callers.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Case, Fault, FaultKind, Monotonic};

/// Failures that a peer may make at once.
pub const FAILURES_BURST: u32 = 20;
/// One failure is forgiven in this time.
pub const FAILURE_FORGIVEN: Duration = Duration::from_secs(1);
/// Peers remembered. When a shard is full, the peer nearest to being forgiven is forgotten.
pub const PEERS_MAX: usize = 8_192;

const SHARDS: usize = 16;
const PEERS_PER_SHARD: usize = PEERS_MAX / SHARDS;

/// Failed authentications of all peers; shared by all cores.
#[derive(Debug)]
pub struct PeerThrottle {
    shards: [Mutex<ahash::HashMap<u64, u64>>; SHARDS],
    hasher: ahash::RandomState,
}

impl Default for PeerThrottle {
    fn default() -> Self {
        Self::new()
    }
}

impl PeerThrottle {
    /// Nobody has failed yet.
    #[must_use]
    pub fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: ahash::RandomState::new() }
    }

    /// What to answer to a failed authentication: `fault` itself, or 429 with the time until the peer's next failure
    /// would be answered again. Faults that are not the peer's doing pass unchanged and are not counted.
    #[must_use]
    pub fn answer(&self, peer: IpAddr, fault: Fault, now: Monotonic) -> Fault {
        if fault.kind() != FaultKind::InvalidKey {
            return fault;
        }
        match self.count(peer, now) {
            None => fault,
            Some(wait) => {
                let throttled = Fault::new(Case::AuthThrottled).retry_after(wait);
                Fault { internal: fault.internal, ..throttled }
            }
        }
    }

    /// Counts one failure; `Some` is the time until the next one fits again.
    fn count(&self, peer: IpAddr, now: Monotonic) -> Option<Duration> {
        let hash = self.hasher.hash_one(group(peer));
        let forgiven = FAILURE_FORGIVEN.as_nanos() as u64;
        let mut shard = self.shards[hash as usize % SHARDS].lock();
        if !shard.contains_key(&hash) && shard.len() >= PEERS_PER_SHARD {
            make_room(&mut shard, now);
        }
        // The instant at which every failure so far is forgiven.
        let clear = shard.entry(hash).or_insert(now.ns);
        let from = (*clear).max(now.ns);
        let room_from = from.saturating_sub(forgiven * (u64::from(FAILURES_BURST) - 1));
        if room_from > now.ns {
            return Some(Duration::from_nanos(room_from - now.ns));
        }
        *clear = from.saturating_add(forgiven);
        None
    }

    /// Peers remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no peer is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One holder of an IPv6 network has 2^64 addresses in it: they count as one. A mapped IPv4 address is that address.
fn group(peer: IpAddr) -> Ipv6Addr {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)),
    }
}

fn make_room(shard: &mut ahash::HashMap<u64, u64>, now: Monotonic) {
    shard.retain(|_, clear| *clear > now.ns);
    if shard.len() < PEERS_PER_SHARD {
        return;
    }
    if let Some(nearest) = shard.iter().min_by_key(|(_, clear)| **clear).map(|(peer, _)| *peer) {
        shard.remove(&nearest);
    }
}
