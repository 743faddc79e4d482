//! Names and ids. Each is a type of its own, so that a team can never be passed where an alias is meant.
//!
//! Names are reference-counted: cloning one on the request path costs one atomic increment and no allocation.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as written in the documents.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name!(
    /// What users call a model by; maps to deployments, by shift.
    AliasName
);
name!(
    /// Weights and tokenizer under one content digest.
    ModelName
);
name!(
    /// A model with its serving profile.
    DeploymentName
);
name!(
    /// A set of callers with one policy.
    TeamName
);
name!(
    /// A named part of the day.
    ShiftName
);
name!(
    /// The public part of an API key, eight characters of `[0-9A-Za-z]`: safe in logs, ledger and command lines.
    KeyId
);
name!(
    /// The name of a caller inside its issuer: a key's `--caller`, an OIDC `sub`, a ServiceAccount.
    CallerName
);
name!(
    /// One running engine: `<deployment>/<index>`.
    ReplicaId
);

/// The ledger's id of one accepted request, always made by the gateway: neither a repeated caller id nor a repeated
/// engine id can merge two ledger entries.
///
/// 128 bits: 48 of wall-clock milliseconds, so that ids sort by time, then 80 random ones. Printed as 26 characters of
/// Crockford's base 32 (the layout of a ULID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u128);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl RequestId {
    /// Length of the printed form, in characters.
    pub const TEXT_LEN: usize = 26;

    /// Makes an id from the wall clock (milliseconds since 1970) and 80 random bits (higher bits are ignored).
    #[must_use]
    pub const fn new(unix_ms: u64, random: u128) -> Self {
        Self(((unix_ms as u128 & 0xFFFF_FFFF_FFFF) << 80) | (random & ((1 << 80) - 1)))
    }

    /// The id as a number, for binary journals.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        self.0
    }

    /// The inverse of [`RequestId::to_bits`].
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Wall-clock milliseconds since 1970 at which the id was made.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        (self.0 >> 80) as u64
    }

    /// The printed form, without allocating.
    #[must_use]
    pub fn to_text(self) -> [u8; Self::TEXT_LEN] {
        let mut text = [0; Self::TEXT_LEN];
        let mut rest = self.0;
        for place in text.iter_mut().rev() {
            *place = CROCKFORD[(rest & 31) as usize];
            rest >>= 5;
        }
        text
    }

    /// Appends the printed form.
    pub fn push_to(self, out: &mut String) {
        // The digits are ASCII.
        out.push_str(std::str::from_utf8(&self.to_text()).unwrap_or_default());
    }

    /// Reads the printed form; `None` when the text is not exactly that.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != Self::TEXT_LEN || text.as_bytes()[0] > b'7' {
            return None;
        }
        let mut bits: u128 = 0;
        for byte in text.bytes() {
            let digit = CROCKFORD.iter().position(|&c| c == byte)?;
            bits = (bits << 5) | digit as u128;
        }
        Some(Self(bits))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The digits are ASCII.
        f.write_str(std::str::from_utf8(&self.to_text()).unwrap_or_default())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for RequestId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for RequestId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a request id"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_sort_by_time_and_survive_printing() {
        let early = RequestId::new(1_000, u128::MAX);
        let late = RequestId::new(1_001, 0);
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        assert_eq!(RequestId::parse(&early.to_string()), Some(early));
        assert_eq!(early.unix_ms(), 1_000);
    }

    #[test]
    fn a_request_id_is_read_only_in_its_exact_form() {
        assert_eq!(RequestId::parse(""), None);
        assert_eq!(RequestId::parse("8ZZZZZZZZZZZZZZZZZZZZZZZZZ"), None, "over 128 bits");
        assert_eq!(RequestId::parse("0000000000000000000000000U"), None, "U is no digit");
        assert_eq!(RequestId::parse("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), Some(RequestId::from_bits(u128::MAX)));
    }
}
