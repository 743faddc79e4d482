//! What one core holds, and what all cores share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ahash::AHashMap;
use arc_swap::ArcSwap;
use tidegate_core::{AliasName, Case, Entry, Fault, KeyId, Monotonic, RequestId, Reservation, Unix};
use tidegate_identity::{KeyRecord, PeerThrottle, SharedKeyring};
use tidegate_policy::limiter::MemoryCounters;
use tidegate_store::Journal;
use tidegate_wire::answer;

use crate::authorise::Standing;
use crate::catalogue::Catalogue;
use crate::deadline::{Clock, Deadlines};
use crate::hold::Holds;
use crate::metrics::Metrics;

/// What `Retry-After` says while the journal cannot be written.
const JOURNAL_RETRY: Duration = Duration::from_secs(5);
/// How a made request id begins.
const MADE_PREFIX: &str = "req_";
/// Standings (key and alias resolved to limits) that one core remembers.
const STANDINGS_MAX: usize = 16 * 1024;

/// What all cores share: snapshots, counters, metrics. No lock here is held across an await.
#[derive(Debug)]
pub struct Shared {
    /// The documents in force.
    pub catalogue: ArcSwap<Catalogue>,
    /// The keys in force.
    pub keyring: Arc<SharedKeyring>,
    /// Rates, leases, periods.
    pub counters: Arc<MemoryCounters>,
    /// What the gate counts.
    pub metrics: Arc<Metrics>,
    /// Failed authentications by peer.
    pub throttle: PeerThrottle,
    /// The process's clocks, monotonic and on the wall.
    pub clock: Clock,
    /// Set when the gate drains.
    pub draining: AtomicBool,
    /// Sees every ledger entry as it is made; must return at once.
    pub observer: Option<Observer>,
}

/// Sees every ledger entry as it is made.
pub struct Observer(pub Box<dyn Fn(&Entry) + Send + Sync>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// What one core holds. Never leaves its thread.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) holds: Holds,
    /// Reads whole answers of engines.
    pub(crate) answers: RefCell<answer::Reader>,
    journal: RefCell<Journal>,
    standings: RefCell<Standings>,
    random: Cell<u64>,
}

#[derive(Debug, Default)]
struct Standings {
    generation: u64,
    map: AHashMap<(KeyId, AliasName), Rc<Standing>>,
}

impl Core {
    pub(crate) fn new(index: usize, shared: Arc<Shared>, journal: Journal) -> Rc<Self> {
        Rc::new(Self {
            index,
            shared,
            deadlines: Rc::default(),
            holds: Holds::default(),
            answers: RefCell::default(),
            journal: RefCell::new(journal),
            standings: RefCell::default(),
            random: Cell::new(seed()),
        })
    }

    /// Now, on the clock of limits and deadlines.
    pub(crate) fn now(&self) -> Monotonic {
        self.shared.clock.now()
    }

    /// Now, on the wall.
    pub(crate) fn wall(&self) -> Unix {
        self.shared.clock.wall()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Relaxed)
    }

    /// A number that callers cannot foresee well enough to steer a pick; not for secrets.
    pub(crate) fn random(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A new ledger id.
    pub(crate) fn new_id(&self, at: Unix) -> RequestId {
        let random = (u128::from(self.random()) << 64) | u128::from(self.random());
        RequestId::new(at.ms.max(0) as u64, random)
    }

    /// A request id for a caller that sent none.
    pub(crate) fn made_request_id(&self) -> Box<str> {
        let mut id = String::with_capacity(MADE_PREFIX.len() + RequestId::TEXT_LEN);
        id.push_str(MADE_PREFIX);
        self.new_id(self.wall()).push_to(&mut id);
        id.into_boxed_str()
    }

    /// Writes a reservation: when this returns it is as durable as the journal's level says.
    ///
    /// # Errors
    /// 503 when it cannot be written: nothing may go upstream that the ledger would not know of.
    pub(crate) async fn reserve(&self, reservation: &Reservation) -> Result<(), Fault> {
        let unwritten = |error: &dyn std::fmt::Display| {
            Fault::new(Case::Overloaded).retry_after(JOURNAL_RETRY).internal(format!("journal: {error}"))
        };
        let commit = self.journal.borrow_mut().reserve(reservation).map_err(|error| unwritten(&error))?;
        commit.wait().await.map_err(|error| unwritten(&error))
    }

    /// Takes the one final entry of a request.
    pub(crate) fn finish(&self, entry: &Entry) {
        if let Some(observer) = &self.shared.observer {
            (observer.0)(entry);
        }
        self.journal.borrow_mut().settle(entry);
    }

    /// Whether the journal is nearly full or cannot be written: identities with a quota are refused before anything is
    /// lost.
    pub(crate) fn is_journal_pressed(&self) -> bool {
        self.journal.borrow().is_pressed()
    }

    /// The coarse tick: deadlines, slots held for engines that have not let go, the journal.
    pub(crate) fn tick(&self) {
        let now = self.now();
        self.deadlines.tick(now);
        self.holds.tick(&self.shared.counters, now);
        self.flush();
    }

    /// What is settled goes to the journal's file.
    pub(crate) fn flush(&self) {
        // The journal has logged a failure once and keeps what it could not write; here it would be logged every tick.
        drop(self.journal.borrow_mut().flush());
    }

    /// The remembered standing of a key on an alias, made anew when the documents or the key have changed.
    pub(crate) fn standing<E>(
        &self,
        generation: u64,
        key: &Arc<KeyRecord>,
        alias: &AliasName,
        make: impl FnOnce() -> Result<Standing, E>,
    ) -> Result<Rc<Standing>, E> {
        let mut standings = self.standings.borrow_mut();
        if standings.generation != generation || standings.map.len() >= STANDINGS_MAX {
            standings.map.clear();
            standings.generation = generation;
        }
        let name = (key.id.clone(), alias.clone());
        if let Some(known) = standings.map.get(&name).filter(|known| Arc::ptr_eq(&known.key, key)) {
            return Ok(Rc::clone(known));
        }
        let made = Rc::new(make()?);
        standings.map.insert(name, Rc::clone(&made));
        Ok(made)
    }
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // A failing system generator leaves a seed that is unlike others by time only, which suffices for picks and ids.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        bytes = (std::process::id() as u64 ^ tidegate_store::clock::boottime_ns()).to_le_bytes();
    }
    u64::from_le_bytes(bytes)
}
