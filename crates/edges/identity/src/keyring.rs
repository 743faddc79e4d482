//! All keys, as an immutable snapshot in memory.
//!
//! A snapshot rather than a query: a look-up costs two hash probes and touches no store, so junk cannot load the
//! database, and a revocation is one pointer swap that every core sees on its next request.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{KeyId, Sha256Digest};

use crate::pepper::Pepper;
use crate::record::KeyRecord;

/// Whether the snapshot follows the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreState {
    /// It does: a key that is not here does not exist.
    #[default]
    Connected,
    /// The store is away: a key that is not here may be new, so that it is refused with "cannot be checked now".
    Away,
}

/// Where authentication looks keys up. A trait so that tests can count the look-ups.
pub trait Keys {
    /// The pepper of the MACs.
    fn pepper(&self) -> &Pepper;
    /// The record of a key id.
    fn by_id(&self, id: &str) -> Option<Arc<KeyRecord>>;
    /// The record of an imported key.
    fn by_sha256(&self, digest: &Sha256Digest) -> Option<Arc<KeyRecord>>;
    /// Whether any key was imported; if none was, nothing needs to be hashed.
    fn has_imported(&self) -> bool;
    /// Whether a miss is final.
    fn store_state(&self) -> StoreState;
}

#[derive(Default)]
struct Index {
    by_id: ahash::HashMap<KeyId, Arc<KeyRecord>>,
    by_sha256: ahash::HashMap<[u8; 32], Arc<KeyRecord>>,
}

/// One snapshot of all keys.
#[derive(Clone)]
pub struct Keyring {
    pepper: Arc<Pepper>,
    index: Arc<Index>,
    state: StoreState,
    generation: u64,
}

impl Keyring {
    /// A snapshot of these records. Of two with one id (the store's key forbids it) the last counts.
    #[must_use]
    pub fn new(pepper: Arc<Pepper>, records: impl IntoIterator<Item = Arc<KeyRecord>>) -> Self {
        let mut index = Index::default();
        for record in records {
            if let Some(digest) = record.sha256 {
                index.by_sha256.insert(digest.0, Arc::clone(&record));
            }
            index.by_id.insert(record.id.clone(), record);
        }
        Self { pepper, index: Arc::new(index), state: StoreState::Connected, generation: 0 }
    }

    /// The same keys, as of this generation of the store's keys: it orders snapshots of one store.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// The generation of the store's keys that this is a snapshot of; 0 when none was named.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The same keys in another state of the store.
    #[must_use]
    pub fn with_state(&self, state: StoreState) -> Self {
        Self { state, ..self.clone() }
    }

    /// The pepper, for the snapshot after this one.
    #[must_use]
    pub const fn shared_pepper(&self) -> &Arc<Pepper> {
        &self.pepper
    }

    /// All records, in no order.
    pub fn records(&self) -> impl Iterator<Item = &Arc<KeyRecord>> {
        self.index.by_id.values()
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.by_id.len()
    }

    /// Whether there is no key at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.by_id.is_empty()
    }
}

impl Keys for Keyring {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn by_id(&self, id: &str) -> Option<Arc<KeyRecord>> {
        self.index.by_id.get(id).cloned()
    }

    fn by_sha256(&self, digest: &Sha256Digest) -> Option<Arc<KeyRecord>> {
        self.index.by_sha256.get(&digest.0).cloned()
    }

    fn has_imported(&self) -> bool {
        !self.index.by_sha256.is_empty()
    }

    fn store_state(&self) -> StoreState {
        self.state
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("keys", &self.len())
            .field("generation", &self.generation)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// The snapshot in force, shared by all cores.
#[derive(Debug)]
pub struct SharedKeyring(ArcSwap<Keyring>);

impl SharedKeyring {
    /// Starts with a snapshot.
    #[must_use]
    pub fn new(keyring: Keyring) -> Self {
        Self(ArcSwap::from_pointee(keyring))
    }

    /// The snapshot in force now; hold it for one request at most.
    pub fn load(&self) -> Guard<Arc<Keyring>> {
        self.0.load()
    }

    /// Puts another snapshot in force: felt by every request that starts after this returns. One of an older generation
    /// than the one in force is dropped: whoever was slow to read the store must not bring a revoked key back.
    pub fn replace(&self, keyring: Keyring) {
        let newer = Arc::new(keyring);
        self.0.rcu(|known| Arc::clone(if newer.generation < known.generation { known } else { &newer }));
    }

    /// Notes whether the store can be reached. Keys do not change.
    pub fn note_store(&self, state: StoreState) {
        self.0.rcu(|keyring| keyring.with_state(state));
    }
}
