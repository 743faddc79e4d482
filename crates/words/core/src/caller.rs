//! Who sent a request.

use std::sync::Arc;

use crate::id::{CallerName, KeyId, TeamName};

/// Who vouches for a caller. Quota and ownership are keyed by issuer and subject, never by a display name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Issuer {
    /// An API key of this site's own keyring.
    Keyring,
    /// A configured OIDC or Kubernetes issuer, by its name in the documents.
    Named(Arc<str>),
}

impl Issuer {
    /// The issuer's name as ledger and logs show it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Keyring => "keyring",
            Self::Named(name) => name,
        }
    }
}

/// The proof that a request was authenticated: issuer, subject, team and, for API keys, the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Who vouches for `subject`.
    pub issuer: Issuer,
    /// The caller inside its issuer.
    pub subject: CallerName,
    /// The team whose policy applies.
    pub team: TeamName,
    /// The API key that was used, if one was.
    pub key: Option<KeyId>,
}
