//! What travels between a controller and an agent: HTTP/2 and JSON under `/v1`, and the bounds that both keep.
//!
//! | request | body | answer |
//! | --- | --- | --- |
//! | `GET /v1/facts` | | [`crate::Facts`] |
//! | `GET /v1/instances` | | list of [`crate::InstanceReport`] |
//! | `PUT /v1/instances/ID` | [`Start`] | [`crate::InstanceReport`] |
//! | `POST /v1/instances/ID/stop` | [`Stop`] | null |
//! | `POST /v1/instances/ID/prove` | [`Told`] | [`crate::Proof`] |
//! | `POST /v1/instances/ID/forget` | [`Told`] | null |
//! | `GET /v1/instances/ID/log?from=N&max=N` | | [`crate::LogPart`] |
//! | `GET /v1/models` | | list of [`crate::ModelReport`] |
//! | `POST /v1/models/have` | [`Have`] | [`crate::ModelReport`] |
//! | `PUT /v1/models/kept` | [`Kept`] | null |
//! | `POST /v1/gpus/N/release` | [`Release`] | null |
//! | `GET /v1/events?after=N` | | [`crate::Event`]s, one a line, for as long as one reads; an empty line every 25 s |
//!
//! A refusal is a [`NodeError`] under the status of [`status`].

use serde::{Deserialize, Serialize};

use crate::fault::NodeError;
use crate::order::{Keep, ModelOrder, StartOrder};

/// Most bytes of a request's body. An order with every list at its bound is longer; none that makes sense is.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes of an answer's body.
pub const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most bytes of a request's or answer's headers, as HTTP/2 counts them.
pub const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Most bytes of one event.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;
/// Most models of a list that is to be kept.
pub const KEPT_MAX: usize = 4_096;
/// Most bytes of the reason for a release.
pub const REASON_BYTES_MAX: usize = 4_096;

/// Start an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The controller's.
    pub generation: u64,
    /// What to start.
    pub order: StartOrder,
}

/// End an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// The controller's.
    pub generation: u64,
    /// How long it has after SIGTERM, in milliseconds.
    pub patience_ms: u64,
}

/// A command that says nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The controller's.
    pub generation: u64,
}

/// Have a model here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Have {
    /// The controller's.
    pub generation: u64,
    /// Which.
    pub order: ModelOrder,
}

/// Models that are not to be evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The controller's.
    pub generation: u64,
    /// All of them.
    pub kept: Vec<Keep>,
}

/// A person says that a GPU is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The controller's.
    pub generation: u64,
    /// Why, for people.
    pub reason: String,
}

/// The HTTP status of a refusal.
#[must_use]
pub const fn status(fault: &NodeError) -> u16 {
    match fault {
        NodeError::BadRequest { .. } => 400,
        NodeError::Refused { .. } => 403,
        NodeError::UnknownInstance { .. } | NodeError::UnknownModel { .. } => 404,
        NodeError::StaleGeneration { .. }
        | NodeError::NoPort { .. }
        | NodeError::PortTaken { .. }
        | NodeError::GpuTaken { .. } => 409,
        NodeError::Launch { .. } => 422,
        NodeError::Io { .. } => 500,
        NodeError::Away { .. } => 503,
    }
}
