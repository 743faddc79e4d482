//! The Team document.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Class, Limits};
use crate::quantity::Count;
use crate::scalar::Zone;

/// A set of callers with one policy: what they may use, and how much of it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Team")]
pub(crate) struct Team {
    /// Who belongs to it, besides the API keys made for it.
    #[serde(default)]
    pub(crate) members: Vec<Member>,
    /// Limits over all aliases of the team together.
    pub(crate) limits: Option<Limits>,
    /// What it may use.
    #[serde(default)]
    pub(crate) models: Vec<Grant>,
    /// Limits of each caller of the team.
    pub(crate) per_caller: Option<Limits>,
    /// Aliases it may never use, whatever a grant says.
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    /// Ceiling of its priority; no request raises it. Default normal.
    pub(crate) priority: Option<Priority>,
    /// Zone of its daily and monthly limits. Default the Site's.
    pub(crate) time_zone: Option<Zone>,
}

/// Who belongs to a team. Exactly one of `oidcGroup` and `serviceAccount`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Member {
    /// Everybody in this OpenID Connect group, compared as a whole.
    pub(crate) oidc_group: Option<String>,
    /// The group's issuer, by its name in the Site; needed when there are several.
    pub(crate) issuer: Option<String>,
    /// A Kubernetes ServiceAccount.
    pub(crate) service_account: Option<ServiceAccount>,
}

/// A Kubernetes ServiceAccount.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ServiceAccount {
    /// The cluster, by its name in `Site.spec.identity.kubernetes`.
    #[schemars(with = "String")]
    pub(crate) issuer: Option<String>,
    /// Its namespace.
    #[schemars(with = "String")]
    pub(crate) namespace: Option<String>,
    /// Its name.
    #[schemars(with = "String")]
    pub(crate) name: Option<String>,
}

/// What a team may use: exactly one of `alias`, `class` and `all`, with limits inside the team's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Grant {
    /// One alias.
    pub(crate) alias: Option<String>,
    /// Every alias of a class, those added later too.
    pub(crate) class: Option<Class>,
    /// `true`: every alias.
    pub(crate) all: Option<bool>,
    /// Requests in any 60 seconds, on each alias.
    pub(crate) rpm: Option<Count>,
    /// Tokens in any 60 seconds, on each alias.
    pub(crate) tpm: Option<Count>,
    /// Requests in flight at one time, on each alias. With `alias`, the team's share: the shares of all teams together
    /// are at most the alias's own limit.
    pub(crate) concurrency: Option<Count>,
    /// Tokens in one day of the team's time zone, on each alias.
    pub(crate) daily_tokens: Option<Count>,
    /// Tokens in one month of the team's time zone, on each alias.
    pub(crate) monthly_tokens: Option<Count>,
    /// Largest prompt in tokens.
    pub(crate) max_input_tokens: Option<Count>,
    /// Largest output in tokens.
    pub(crate) max_output_tokens: Option<Count>,
}

/// Ceiling of priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Priority {
    /// Last.
    Low,
    /// The default.
    Normal,
    /// First.
    High,
}
