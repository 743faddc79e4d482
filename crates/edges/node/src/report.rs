//! What a node answers.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::InstanceId;

/// One instance, as of now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReport {
    /// Its id.
    pub instance: InstanceId,
    /// The generation that started it.
    pub generation: u64,
    /// The deployment it serves.
    pub deployment: String,
    /// Which replica of it.
    pub replica: u32,
    /// Fingerprint of what it was started from.
    pub revision: u64,
    /// Its GPUs by index.
    pub gpus: Vec<u32>,
    /// Whether it runs.
    pub state: InstanceState,
    /// Where it was told to listen; `None`: it has no port (yet).
    pub port: Option<u16>,
    /// When its first process was started.
    pub started_at: Timestamp,
    /// How long its log is. What is older than the bound of a log is not kept, but counts.
    pub log_bytes: u64,
    /// Phases of its boot that its log has shown, in the order in which they were first seen.
    pub boot: Vec<BootMark>,
    /// What its last memory proof said; `None`: there was none yet.
    pub proof: Option<Proof>,
}

/// Whether an instance runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InstanceState {
    /// Its first process runs.
    Running {
        /// That process.
        pid: u32,
        /// When it was started, in clock ticks since boot: with the pid, an identity.
        start_time: u64,
    },
    /// Its processes are being ended.
    Stopping,
    /// No process of it is left.
    Ended {
        /// How its first process ended; `None`: nobody saw it.
        exit: Option<Exit>,
        /// Why, as far as it is known: the kernel's memory killer, or the first exception of its log.
        cause: Option<String>,
        /// When the last process was gone.
        at: Timestamp,
    },
}

impl InstanceState {
    /// Whether no process is left.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }
}

/// How an engine's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A phase of a boot that a log has shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootMark {
    /// The phase, as the order named it.
    pub phase: String,
    /// When it was first seen: at most half a second after it was written while the node's process runs.
    pub at: Timestamp,
}

/// What one look at the memory of an instance's GPUs said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "snake_case")]
pub enum Proof {
    /// Nothing of it is left, on any of its GPUs.
    Free {
        /// How that is known.
        by: ProvenBy,
    },
    /// Something is left, or cannot be excluded.
    NotFree {
        /// What, on which GPU.
        why: String,
        /// Since when that has been so.
        since: Timestamp,
    },
}

/// How it is known that memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenBy {
    /// By figures of each process.
    Nvml,
    /// By totals: the driver does not say who has what.
    Total,
    /// No process of it is left: memory cannot be seen here, or it had no GPU.
    Processes,
    /// A person said so.
    Person,
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// Where the part begins: what was asked for, or later where that is no longer kept.
    pub from: u64,
    /// The text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Where the next part begins.
    pub next: u64,
    /// How long the log is.
    pub log_bytes: u64,
}

/// One model on its way or here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// `<family>/<version>` in the model store.
    pub path: String,
    /// The manifest's digest, as soon as it is known.
    pub digest: Option<String>,
    /// How far it is.
    pub state: ModelState,
}

/// How far a model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// It is being fetched.
    Fetching {
        /// Bytes that are here and right.
        bytes: u64,
        /// Bytes in all; `None`: not known yet.
        total: Option<u64>,
        /// Bytes in a second, lately.
        rate: Option<u64>,
        /// Seconds until it is here, at that rate.
        eta_seconds: Option<u64>,
    },
    /// It is here and being hashed again.
    Verifying {
        /// Bytes that were hashed.
        bytes: u64,
        /// Bytes in all.
        total: Option<u64>,
    },
    /// It is here and right.
    Verified {
        /// Its bytes.
        bytes: u64,
    },
    /// It could not be had.
    Failed {
        /// The fault's short name.
        code: String,
        /// What happened.
        message: String,
        /// What would help.
        hint: Option<String>,
        /// Whether asking again may help.
        is_retryable: bool,
    },
}

/// Something that happened on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Grows with every event, over restarts of the node's process too.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Happened,
}

/// What happened on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Happened {
    /// An instance was started.
    Started {
        /// Which.
        instance: InstanceId,
    },
    /// An instance's log showed a phase.
    Booted {
        /// Which.
        instance: InstanceId,
        /// What was reached.
        phase: String,
    },
    /// No process of an instance is left.
    Ended {
        /// Which.
        instance: InstanceId,
        /// Why, as far as it is known.
        cause: Option<String>,
    },
    /// The memory of an instance was looked at.
    Proven {
        /// Which.
        instance: InstanceId,
        /// What was found.
        proof: Proof,
    },
    /// An instance was forgotten.
    Forgotten {
        /// Which.
        instance: InstanceId,
    },
    /// A person said that a GPU is free.
    Released {
        /// Its index.
        gpu: u32,
        /// Why.
        reason: String,
    },
    /// A model's state changed from fetching to verified or failed, or back.
    Model {
        /// Which, and how far it is.
        report: ModelReport,
    },
    /// Events were lost: look at everything anew.
    Lost,
}
