//! Limits: five levels, five dimensions, and how a refusal names one of each.

use std::fmt;
use std::time::Duration;

/// What a limit is attached to. Order is the order in which ties between refusals are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Everybody's calls to one alias together.
    Alias,
    /// All calls of one team together.
    Team,
    /// One team's calls to one alias.
    #[serde(rename = "team+alias")]
    TeamAlias,
    /// One caller (issuer and subject) of a team.
    Caller,
    /// One API key.
    Key,
}

impl Level {
    /// All levels, in tie-breaking order.
    pub const ALL: [Self; 5] = [Self::Alias, Self::Team, Self::TeamAlias, Self::Caller, Self::Key];

    /// The level as messages, metrics and the ledger show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alias => "alias",
            Self::Team => "team",
            Self::TeamAlias => "team+alias",
            Self::Caller => "caller",
            Self::Key => "key",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a limit counts. Order is the order in which ties between refusals are broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Requests in any window of 60 s.
    Requests,
    /// Tokens (estimate, later corrected) in any window of 60 s.
    Tokens,
    /// Requests in flight at one instant.
    Concurrency,
    /// Tokens in one civil day of the policy's time zone.
    DailyTokens,
    /// Tokens in one civil month of the policy's time zone.
    MonthlyTokens,
}

impl Dimension {
    /// All dimensions, in tie-breaking order.
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::Tokens, Self::Concurrency, Self::DailyTokens, Self::MonthlyTokens];

    /// The dimension as messages, metrics and the ledger show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrency => "concurrency",
            Self::DailyTokens => "daily_tokens",
            Self::MonthlyTokens => "monthly_tokens",
        }
    }

    /// Whether the limit is a quota of a civil period rather than a rate or a count in flight.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(self, Self::DailyTokens | Self::MonthlyTokens)
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The limits set at one level; `None` means no limit in that dimension, 0 means that nothing passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// Requests in any 60 s window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpm: Option<u64>,
    /// Tokens in any 60 s window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpm: Option<u64>,
    /// Requests in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u64>,
    /// Tokens in a civil day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily_tokens: Option<u64>,
    /// Tokens in a civil month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monthly_tokens: Option<u64>,
}

impl Limits {
    /// The limit in one dimension.
    #[must_use]
    pub const fn get(&self, dimension: Dimension) -> Option<u64> {
        match dimension {
            Dimension::Requests => self.rpm,
            Dimension::Tokens => self.tpm,
            Dimension::Concurrency => self.concurrency,
            Dimension::DailyTokens => self.daily_tokens,
            Dimension::MonthlyTokens => self.monthly_tokens,
        }
    }

    /// Whether no dimension is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

/// What one request takes from the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Estimated tokens: prompt plus clamped output.
    pub tokens: u64,
}

/// Why an admission was refused. A refusal has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which subject's limit.
    pub level: Level,
    /// Which limit.
    pub dimension: Dimension,
    /// The limit's value.
    pub limit: u64,
    /// How long to wait before the same request could pass if nobody else came first; `None` when waiting never
    /// helps (the request alone is larger than the limit) or no time can be said (concurrency).
    pub retry_after: Option<Duration>,
    /// The request alone is larger than the whole limit.
    pub too_large: bool,
}
