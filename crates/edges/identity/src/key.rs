//! The API key as text: `tg_{live|test}_`, 8 characters of key id, 32 of secret, 6 of checksum; 54 in all.
//!
//! The secret holds 190 bits from the system's random generator. The checksum is the CRC-32 of zlib over everything
//! before it, written in base 62. It protects nothing: it refuses junk before any look-up, and lets a scanner of source
//! code tell a key from a look-alike without asking anybody.

use std::fmt;

use tidegate_core::KeyId;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The digits of base 62, in the order of their value.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const PREFIX_LEN: usize = 8;
const ID_LEN: usize = 8;
const CHECKSUM_LEN: usize = 6;
const CHECKED_LEN: usize = ApiKey::LEN - CHECKSUM_LEN;

/// Bytes below this map onto the alphabet without bias: 4 × 62.
const UNBIASED: u8 = 248;

/// Whether a key is meant for real work or for trying things out. Both are checked alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// `tg_live_`.
    Live,
    /// `tg_test_`.
    Test,
}

impl KeyKind {
    /// The eight characters with which such a key starts.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Live => "tg_live_",
            Self::Test => "tg_test_",
        }
    }
}

/// The system's random generator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random generator failed")]
pub struct RandomFailed;

/// A well-formed key, checksum included. Nothing is said about whether anybody knows it.
///
/// Wiped when dropped; `Debug` shows kind and key id only.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct ApiKey([u8; Self::LEN]);

impl ApiKey {
    /// Length in characters.
    pub const LEN: usize = 54;

    /// A new key with a fresh id and secret.
    ///
    /// # Errors
    /// When the system's random generator fails.
    pub fn generate(kind: KeyKind) -> Result<Self, RandomFailed> {
        let mut id = [0; ID_LEN];
        fill_random(&mut id)?;
        Self::with_id(kind, &id)
    }

    /// A new secret under an existing key id, for a rotation.
    ///
    /// # Errors
    /// When the system's random generator fails, or `id` is not eight characters of `[0-9A-Za-z]` (then nobody could
    /// ever present the key).
    pub fn rotate(kind: KeyKind, id: &KeyId) -> Result<Self, RandomFailed> {
        let id: &[u8; ID_LEN] = id.as_str().as_bytes().try_into().map_err(|_| RandomFailed)?;
        if !id.iter().all(u8::is_ascii_alphanumeric) {
            return Err(RandomFailed);
        }
        Self::with_id(kind, id)
    }

    fn with_id(kind: KeyKind, id: &[u8; ID_LEN]) -> Result<Self, RandomFailed> {
        let mut key = Self([0; Self::LEN]);
        key.0[..PREFIX_LEN].copy_from_slice(kind.prefix().as_bytes());
        key.0[PREFIX_LEN..PREFIX_LEN + ID_LEN].copy_from_slice(id);
        fill_random(&mut key.0[PREFIX_LEN + ID_LEN..CHECKED_LEN])?;
        let sum = checksum(&key.0[..CHECKED_LEN]);
        key.0[CHECKED_LEN..].copy_from_slice(&sum);
        Ok(key)
    }

    /// Reads a key. `None` for anything that is not exactly one, checksum included; any input is safe.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = text.try_into().ok()?;
        if !looks_own(bytes) || !bytes[PREFIX_LEN..].iter().all(u8::is_ascii_alphanumeric) {
            return None;
        }
        (checksum(&bytes[..CHECKED_LEN]) == bytes[CHECKED_LEN..]).then(|| Self(*bytes))
    }

    /// The whole key. The only way to its text: for the one time it is shown, and for the MAC.
    #[must_use]
    pub fn reveal(&self) -> &str {
        // Only ASCII ever gets in; the fallback keeps this total.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The public part: safe in logs, ledger and command lines.
    #[must_use]
    pub fn id(&self) -> &str {
        self.reveal().get(PREFIX_LEN..PREFIX_LEN + ID_LEN).unwrap_or_default()
    }

    /// The public part as an owned name.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        KeyId::from(self.id())
    }

    /// The last four characters: part of the checksum, kept for display.
    #[must_use]
    pub fn last4(&self) -> &str {
        self.reveal().get(Self::LEN - 4..).unwrap_or_default()
    }

    /// Live or test.
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        if self.0.starts_with(KeyKind::Test.prefix().as_bytes()) { KeyKind::Test } else { KeyKind::Live }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}{}…)", self.kind().prefix(), self.id())
    }
}

/// Whether text claims to be a key of ours, so that a failed checksum settles it.
#[must_use]
pub fn looks_own(text: &[u8]) -> bool {
    text.starts_with(KeyKind::Live.prefix().as_bytes()) || text.starts_with(KeyKind::Test.prefix().as_bytes())
}

fn checksum(text: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut rest = crc32fast::hash(text);
    let mut digits = [b'0'; CHECKSUM_LEN];
    // 62^6 > 2^32: six digits always suffice.
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    digits
}

/// Fills `text` with characters of the alphabet, each equally likely.
fn fill_random(text: &mut [u8]) -> Result<(), RandomFailed> {
    let mut pool = [0_u8; 64];
    let mut filled = 0;
    while filled < text.len() {
        aws_lc_rs::rand::fill(&mut pool).map_err(|_| RandomFailed)?;
        for byte in pool.iter().filter(|&&byte| byte < UNBIASED) {
            let Some(place) = text.get_mut(filled) else { break };
            *place = ALPHABET[usize::from(byte % 62)];
            filled += 1;
        }
    }
    pool.zeroize();
    Ok(())
}
