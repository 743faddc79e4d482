//! From a request's credential to a caller, or one refusal for everything that is wrong with it.

use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq};
use tidegate_core::{Caller, Case, Fault, Sha256Digest, Unix};

use crate::credential;
use crate::key::{self, ApiKey};
use crate::keyring::{Keys, StoreState};
use crate::pepper::Mac;
use crate::record::{KeyRecord, NotValid};

/// The proof that a request's credential is good: made only by [`authenticate`].
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// Who it is.
    pub caller: Caller,
    /// The key that was used.
    pub key: Arc<KeyRecord>,
}

/// The two doors of the house.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// The user port.
    Gate,
    /// The admin port.
    Admin,
}

impl Authenticated {
    /// Whether the key opens this door: admin keys serve the admin port only, all others the gate only. Checked after
    /// the path is known, so that an unknown path is 404 for everybody.
    ///
    /// # Errors
    /// [`Case::Forbidden`].
    pub fn may_enter(&self, door: Door) -> Result<(), Fault> {
        match (door, self.key.admin) {
            (Door::Gate, false) | (Door::Admin, true) => Ok(()),
            (Door::Gate, true) | (Door::Admin, false) => Err(Fault::new(Case::Forbidden)),
        }
    }
}

/// Authenticates a request by its headers (name and value, names in any case) and raw query, at wall time `now`.
///
/// A key of ours is refused on its checksum before anything is looked up. After that an unknown id costs what a wrong
/// secret costs: one MAC and two constant-time comparisons, against a dummy where there is nothing to compare with.
/// Any other text is looked up by its SHA-256, if keys were imported at all.
///
/// # Errors
/// [`Case::InvalidKey`] with one text for whatever is wrong (the log text tells), or [`Case::AuthUnavailable`] when
/// the store is away and the key is unknown.
pub fn authenticate<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    query: Option<&str>,
    keys: &impl Keys,
    now: Unix,
) -> Result<Authenticated, Fault> {
    let text = credential::find(headers, query).map_err(|why| refused(&why.to_string()))?;
    let record = if let Some(key) = ApiKey::parse(text) {
        own_key(&key, keys, now)?
    } else if key::looks_own(text) {
        return Err(refused("key with a wrong checksum"));
    } else {
        imported_key(text, keys)?
    };
    record.in_force(now).map_err(|why| {
        let why = match why {
            NotValid::Revoked => "revoked",
            NotValid::Expired => "expired",
        };
        refused(&format!("key {} is {why}", record.id))
    })?;
    record.last_used.note(now);
    Ok(Authenticated { caller: record.caller(), key: record })
}

fn own_key(key: &ApiKey, keys: &impl Keys, now: Unix) -> Result<Arc<KeyRecord>, Fault> {
    const DUMMY: Mac = Mac::from_bytes([0x5a; 32]);
    let presented = keys.pepper().mac(key);
    let record = keys.by_id(key.id());
    let (current, previous) = match &record {
        Some(record) => (record.mac, record.previous.filter(|previous| now < previous.until).map(|p| p.mac)),
        None => (None, None),
    };
    let matches = compare(current, &presented, &DUMMY) | compare(previous, &presented, &DUMMY);
    match record {
        Some(record) if bool::from(matches) => Ok(record),
        Some(record) => Err(refused(&format!("wrong secret for key {}", record.id))),
        None => Err(unknown(keys, &format!("unknown key {}", key.id()))),
    }
}

/// The comparison runs against the dummy too, and then counts for nothing.
fn compare(stored: Option<Mac>, presented: &Mac, dummy: &Mac) -> Choice {
    let exists = Choice::from(u8::from(stored.is_some()));
    stored.unwrap_or(*dummy).matches(presented) & exists
}

fn imported_key(text: &[u8], keys: &impl Keys) -> Result<Arc<KeyRecord>, Fault> {
    if !keys.has_imported() {
        return Err(unknown(keys, "not a key"));
    }
    let digest = sha256(text);
    let record = keys.by_sha256(&digest).ok_or_else(|| unknown(keys, "unknown imported key"))?;
    let same = record.sha256.is_some_and(|known| known.0.ct_eq(&digest.0).into());
    if same { Ok(record) } else { Err(refused("imported key does not match")) }
}

/// SHA-256 of an imported key's text, as the keyring finds it.
#[must_use]
pub fn sha256(text: &[u8]) -> Sha256Digest {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
    let mut bytes = [0; 32];
    for (to, from) in bytes.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    Sha256Digest(bytes)
}

fn refused(why: &str) -> Fault {
    Fault::new(Case::InvalidKey).internal(why)
}

fn unknown(keys: &impl Keys, why: &str) -> Fault {
    match keys.store_state() {
        StoreState::Connected => refused(why),
        StoreState::Away => Fault::new(Case::AuthUnavailable).internal(why).retry_after(STORE_RETRY),
    }
}

/// What `Retry-After` says while the store is away: the poll that is the net under the push.
const STORE_RETRY: std::time::Duration = std::time::Duration::from_secs(10);
