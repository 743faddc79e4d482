//! Teams and their grants.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::tz::TimeZone;
use tidegate_core::{AliasName, Limits};

use super::Class;
/// A team's policy.
#[derive(Clone, Debug)]
pub struct Team {
    /// Who belongs to it, besides keys made for it.
    pub members: Vec<Member>,
    /// Over all aliases of the team together.
    pub limits: Limits,
    /// Grants, in the order of the document.
    pub grants: Vec<Grant>,
    /// For each caller of the team.
    pub per_caller: Limits,
    /// Wins over every grant.
    pub deny: BTreeSet<AliasName>,
    /// Ceiling of priority.
    pub priority: Priority,
    /// Zone of the team's daily and monthly periods.
    pub time_zone: TimeZone,
}

/// Ceiling of priority, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Last.
    Low,
    /// The default.
    #[default]
    Normal,
    /// First.
    High,
}

/// Who belongs to a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// Everybody in an OIDC group.
    OidcGroup {
        /// The issuer, when there are several.
        issuer: Option<Arc<str>>,
        /// The group, compared as a whole.
        group: Arc<str>,
    },
    /// A Kubernetes ServiceAccount.
    ServiceAccount {
        /// The cluster's name in the documents.
        issuer: Arc<str>,
        /// Namespace.
        namespace: Arc<str>,
        /// Name.
        name: Arc<str>,
    },
}

/// What a team may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which aliases.
    pub scope: GrantScope,
    /// For the team's calls to each alias of the scope.
    pub limits: Limits,
    /// Largest prompt in tokens.
    pub max_input_tokens: Option<u64>,
    /// Largest output in tokens.
    pub max_output_tokens: Option<u64>,
}

/// Which aliases a grant covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantScope {
    /// One alias.
    Alias(AliasName),
    /// Every alias of a class, those added later too.
    Class(Class),
    /// Every alias.
    All,
}
