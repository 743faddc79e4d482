//! One GPU node: what it has, the engines that run on it, and the proof that nothing of them is left.
//!
//! ```text
//! controller ── Node ──┬── LocalNode ──┬── facts: NVML, sysfs, the documents
//!                      │               ├── instances: minder (own binary again) ── engine ── its children
//!                      │               ├── proof: no process, and the memory back at its baseline
//!                      │               └── ModelHands: the model cache, by whoever owns it
//!                      └── a client of the agent on another machine
//! ```
//!
//! This crate knows no engine and no model store: commands come rendered, with places for port, address and model.

mod bind;
pub mod facts;
mod fault;
mod files;
mod gather;
pub mod guard;
mod id;
mod instance_folder;
mod local;
mod log;
mod machine;
pub mod minder;
pub mod nvml;
pub mod order;
mod port;
mod process;
mod proof;
pub mod remote;
pub mod report;
mod seam;
pub mod tasks;
pub mod tls;
pub mod wire;

pub use facts::{Facts, GpuFacts, GpuState};
pub use fault::NodeError;
pub use guard::GuardChoice;
pub use id::{BadInstanceId, GpuUuid, INSTANCE_ID_MAX, InstanceId};
pub use local::{Driver, LocalNode, LocalNodeSettings, OnExit, check};
pub use log::LogBounds;
pub use machine::Machine;
pub use order::{Command, Keep, LogMark, ModelAt, ModelFile, ModelOrder, ModelUse, StartOrder};
pub use port::lowest_free;
pub use remote::RemoteNode;
pub use report::{
    BootMark, Event, Exit, Happened, InstanceReport, InstanceState, LogPart, ModelReport, ModelState, Proof, ProvenBy,
};
pub use seam::{CauseOf, EVENTS_WAIT, HeldModel, LOG_PART_MAX, ModelHands, Node};
