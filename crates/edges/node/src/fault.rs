//! Why a node did not do what it was told.

use serde::{Deserialize, Serialize};

/// Why a node did not do what it was told. It travels as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum NodeError {
    /// A newer controller was here.
    #[error("generation {generation} is stale: the node has seen {highest}")]
    StaleGeneration {
        /// The command's.
        generation: u64,
        /// The highest the node has seen.
        highest: u64,
    },
    /// There is no such instance.
    #[error("no instance {instance} on this node")]
    UnknownInstance {
        /// Its id.
        instance: String,
    },
    /// There is no such model in the store, or it is not in the cache.
    #[error("model {model} is not here: {why}")]
    UnknownModel {
        /// Its path.
        model: String,
        /// What is known.
        why: String,
    },
    /// No port of the range is free.
    #[error("no port from {first} to {last} is free at {host}")]
    NoPort {
        /// First of the range.
        first: u16,
        /// Last of the range.
        last: u16,
        /// Where.
        host: String,
    },
    /// The engine found its port taken, and so the next ones.
    #[error("port {port} was taken by somebody else")]
    PortTaken {
        /// The last one tried.
        port: u16,
    },
    /// Somebody else has the GPU, or its memory is not proven free.
    #[error("gpu {gpu} is taken by {by}")]
    GpuTaken {
        /// Its index.
        gpu: u32,
        /// Who has it.
        by: String,
    },
    /// The processes could not be started.
    #[error("cannot be started: {why}")]
    Launch {
        /// Why.
        why: String,
    },
    /// The node does not answer.
    #[error("node is away: {why}")]
    Away {
        /// What was seen.
        why: String,
    },
    /// The node or its certificate was refused, or ours was.
    #[error("refused: {why}")]
    Refused {
        /// Why.
        why: String,
    },
    /// The command makes no sense here.
    #[error("bad request: {why}")]
    BadRequest {
        /// Why.
        why: String,
    },
    /// The node's disk or kernel refused something.
    #[error("{what}: {why}")]
    Io {
        /// What was tried.
        what: String,
        /// What was answered.
        why: String,
    },
}

impl NodeError {
    /// The fault's short name, as it stands on the wire, in metrics and in logs.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::StaleGeneration { .. } => "stale_generation",
            Self::UnknownInstance { .. } => "unknown_instance",
            Self::UnknownModel { .. } => "unknown_model",
            Self::NoPort { .. } => "no_port",
            Self::PortTaken { .. } => "port_taken",
            Self::GpuTaken { .. } => "gpu_taken",
            Self::Launch { .. } => "launch",
            Self::Away { .. } => "away",
            Self::Refused { .. } => "refused",
            Self::BadRequest { .. } => "bad_request",
            Self::Io { .. } => "io",
        }
    }

    /// Whether nothing is known of what the node did: it may have done it.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    pub(crate) fn io(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Io { what: what.into(), why: why.to_string() }
    }

    pub(crate) fn bad(why: impl Into<String>) -> Self {
        Self::BadRequest { why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_travels_under_its_code() {
        let fault = NodeError::StaleGeneration { generation: 3, highest: 4 };
        let wire = serde_json::to_value(&fault).unwrap();
        assert_eq!(wire, serde_json::json!({"code": "stale_generation", "generation": 3, "highest": 4}));
        assert_eq!(serde_json::from_value::<NodeError>(wire).unwrap(), fault);
        let io = NodeError::io("a", "b");
        assert_eq!(serde_json::to_value(&io).unwrap()["code"], io.code());
    }
}
