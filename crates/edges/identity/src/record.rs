//! What the store keeps of a key.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::{AliasName, Caller, CallerName, Issuer, KeyId, Limits, Sha256Digest, TeamName, Unix};

use crate::pepper::Mac;

/// One API key of the keyring. Never holds the key itself.
#[derive(Clone, Debug)]
pub struct KeyRecord {
    /// The public part: primary key of store and keyring.
    pub id: KeyId,
    /// MAC of the current secret; `None` for an imported key, which is known by `sha256` alone.
    pub mac: Option<Mac>,
    /// The secret before the last rotation, for as long as it is still accepted.
    pub previous: Option<PreviousMac>,
    /// SHA-256 of the text of an imported key (`sk-…`).
    pub sha256: Option<Sha256Digest>,
    /// The team whose policy applies.
    pub team: TeamName,
    /// The caller that usage and limits are booked on; the key id when none was named.
    pub caller: CallerName,
    /// The only aliases it may use, inside the team's grants; `None` means all of these.
    pub aliases: Option<BTreeSet<AliasName>>,
    /// Limits of this key alone.
    pub limits: Limits,
    /// Serves the admin port only; the gate refuses it.
    pub admin: bool,
    /// When it was made.
    pub created: Unix,
    /// First instant at which it is no longer accepted; `None` means never.
    pub expires: Option<Unix>,
    /// When it was revoked. A revoked key is refused whatever the clock says.
    pub revoked: Option<Unix>,
    /// Last four characters, for display.
    pub last4: Box<str>,
    /// When it was last accepted.
    pub last_used: LastUsed,
}

/// The secret before a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousMac {
    /// Its MAC.
    pub mac: Mac,
    /// First instant at which it is no longer accepted.
    pub until: Unix,
}

/// Why a record that was found does not let its holder in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotValid {
    /// It was revoked.
    Revoked,
    /// It expired.
    Expired,
}

impl KeyRecord {
    /// Whether the key is in force at `now`.
    ///
    /// # Errors
    /// Says why it is not.
    pub fn in_force(&self, now: Unix) -> Result<(), NotValid> {
        if self.revoked.is_some() {
            return Err(NotValid::Revoked);
        }
        match self.expires {
            Some(expires) if now >= expires => Err(NotValid::Expired),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the key's own scope covers an alias. The team's grants decide besides.
    #[must_use]
    pub fn covers(&self, alias: &AliasName) -> bool {
        self.aliases.as_ref().is_none_or(|aliases| aliases.contains(alias))
    }

    /// Who a request with this key comes from.
    #[must_use]
    pub fn caller(&self) -> Caller {
        Caller {
            issuer: Issuer::Keyring,
            subject: self.caller.clone(),
            team: self.team.clone(),
            key: Some(self.id.clone()),
        }
    }
}

/// When a key was last accepted: noted in memory by the data path, read by whoever writes it to the store.
#[derive(Debug, Default)]
pub struct LastUsed(AtomicI64);

impl LastUsed {
    /// Uses closer together than this are one: so busy cores do not fight over the cache line.
    pub const RESOLUTION_MS: i64 = 1_000;

    /// From the store; `None` means never.
    #[must_use]
    pub fn new(at: Option<Unix>) -> Self {
        Self(AtomicI64::new(at.map_or(0, |at| at.ms)))
    }

    /// Notes a use. Never moves backwards.
    pub fn note(&self, now: Unix) {
        if now.ms.saturating_sub(self.0.load(Ordering::Relaxed)) >= Self::RESOLUTION_MS {
            self.0.fetch_max(now.ms, Ordering::Relaxed);
        }
    }

    /// The latest use noted.
    #[must_use]
    pub fn get(&self) -> Option<Unix> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(Unix::from_ms(ms)),
        }
    }
}

impl Clone for LastUsed {
    fn clone(&self) -> Self {
        Self::new(self.get())
    }
}
