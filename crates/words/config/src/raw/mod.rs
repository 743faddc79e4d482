//! Documents as they are written, before anything is checked.
//!
//! Each key of each type may be absent (`Option`, empty list, empty map): what is required is checked later, so that
//! one missing key does not hide the other errors. The comments of the fields are the reference page and the
//! descriptions in the JSON Schema, so they speak to operators.

pub(crate) mod alias;
pub(crate) mod deployment;
pub(crate) mod model;
pub(crate) mod node;
pub(crate) mod profile;
pub(crate) mod reservation;
pub(crate) mod schedule;
pub(crate) mod site;
pub(crate) mod team;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::quantity::{Count, Span};

/// What the document is called.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct Metadata {
    /// Name of the thing: lower-case letters, digits, `-` and `.`, at most 63 characters, unique within its kind.
    #[schemars(with = "String", extend("pattern" = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "maxLength" = 63))]
    pub(crate) name: Option<String>,
}

/// Where a secret comes from. The secret itself never stands in a document. Exactly one of the two keys.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename = "SecretRef", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "SecretRef")]
pub(crate) struct SecretRef {
    /// Name of an environment variable of the process.
    pub(crate) from_env: Option<String>,
    /// Path of a file, relative to the folder of the document.
    pub(crate) from_file: Option<String>,
}

/// Limits. All that are set must hold; what is left out is not limited at this level.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Limits {
    /// Requests in any 60 seconds.
    pub(crate) rpm: Option<Count>,
    /// Tokens in any 60 seconds: prompt and output together.
    pub(crate) tpm: Option<Count>,
    /// Requests in flight at one time.
    pub(crate) concurrency: Option<Count>,
    /// Tokens in one day of the team's time zone.
    pub(crate) daily_tokens: Option<Count>,
    /// Tokens in one month of the team's time zone.
    pub(crate) monthly_tokens: Option<Count>,
}

impl Limits {
    pub(crate) fn checked(self) -> tidegate_core::Limits {
        let Self { rpm, tpm, concurrency, daily_tokens, monthly_tokens } = self;
        let plain = |count: Option<Count>| count.map(|count| count.0);
        tidegate_core::Limits {
            rpm: plain(rpm),
            tpm: plain(tpm),
            concurrency: plain(concurrency),
            daily_tokens: plain(daily_tokens),
            monthly_tokens: plain(monthly_tokens),
        }
    }
}

/// Deadlines of one request through the gate.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Timeouts {
    /// Until the engine's socket is connected. Default 2s.
    pub(crate) connect: Option<Span>,
    /// Until the first byte of a streamed answer. Default 120s.
    pub(crate) first_byte: Option<Span>,
    /// Between two bytes of a streamed answer. Default 60s.
    pub(crate) gap: Option<Span>,
    /// A whole request without streaming. Default 600s.
    pub(crate) whole: Option<Span>,
    /// A whole streamed request. Default 1h.
    pub(crate) whole_streamed: Option<Span>,
    /// Attempts in all, over replicas and fallbacks, from 1 to 10. Default 3.
    #[schemars(range(min = 1, max = 10))]
    pub(crate) attempts: Option<u32>,
}

/// Service class: who waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Class {
    /// People wait for it.
    Interactive,
    /// The default.
    General,
    /// Nobody waits for it.
    Batch,
}

impl Class {
    pub(crate) fn checked(self) -> crate::site::Class {
        match self {
            Self::Interactive => crate::site::Class::Interactive,
            Self::General => crate::site::Class::General,
            Self::Batch => crate::site::Class::Batch,
        }
    }
}
