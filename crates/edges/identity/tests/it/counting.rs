//! A keyring that counts what is asked of it.

use std::cell::Cell;
use std::sync::Arc;

use tidegate_core::{CallerName, Limits, Sha256Digest, TeamName, Unix};
use tidegate_identity::{ApiKey, KeyKind, KeyRecord, Keyring, Keys, LastUsed, Pepper, StoreState};

pub(crate) struct CountingKeys {
    keyring: Keyring,
    pub(crate) lookups: Cell<u32>,
    pub(crate) macs: Cell<u32>,
}

impl CountingKeys {
    pub(crate) fn new(keyring: Keyring) -> Self {
        Self { keyring, lookups: Cell::new(0), macs: Cell::new(0) }
    }
}

impl Keys for CountingKeys {
    fn pepper(&self) -> &Pepper {
        self.macs.set(self.macs.get() + 1);
        self.keyring.pepper()
    }

    fn by_id(&self, id: &str) -> Option<Arc<KeyRecord>> {
        self.lookups.set(self.lookups.get() + 1);
        self.keyring.by_id(id)
    }

    fn by_sha256(&self, digest: &Sha256Digest) -> Option<Arc<KeyRecord>> {
        self.lookups.set(self.lookups.get() + 1);
        self.keyring.by_sha256(digest)
    }

    fn has_imported(&self) -> bool {
        self.keyring.has_imported()
    }

    fn store_state(&self) -> StoreState {
        self.keyring.store_state()
    }
}

pub(crate) fn pepper() -> Arc<Pepper> {
    Arc::new(Pepper::new(&[7; 32]).unwrap())
}

pub(crate) fn new_key() -> ApiKey {
    ApiKey::generate(KeyKind::Test).unwrap()
}

/// A record for a key, in force for ever.
pub(crate) fn record(pepper: &Pepper, key: &ApiKey) -> KeyRecord {
    KeyRecord {
        id: key.key_id(),
        mac: Some(pepper.mac(key)),
        previous: None,
        sha256: None,
        team: TeamName::from("team"),
        caller: CallerName::from("caller"),
        aliases: None,
        limits: Limits::default(),
        admin: false,
        created: Unix::from_ms(0),
        expires: None,
        revoked: None,
        last4: key.last4().into(),
        last_used: LastUsed::default(),
    }
}

/// A record for an imported key's text.
pub(crate) fn imported(text: &str) -> KeyRecord {
    let stand_in = new_key();
    KeyRecord {
        mac: None,
        sha256: Some(tidegate_identity::authenticate::sha256(text.as_bytes())),
        last4: text[text.len() - 4..].into(),
        ..record(&pepper(), &stand_in)
    }
}

pub(crate) fn keyring(records: impl IntoIterator<Item = KeyRecord>) -> Keyring {
    Keyring::new(pepper(), records.into_iter().map(Arc::new))
}
