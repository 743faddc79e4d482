//! Brings replicas up, proves them, watches them, stops them.
//!
//! ```text
//! Site --members()--> wanted --Fleet::apply()--> one supervisor per replica (task)
//!                                                  │  model here (if ours) -> start -> probe until a token came -> Serving
//!                                                  │  scrape every 5 s; the process ended or is silent -> Failing
//!                                                  └─ stop: Draining -> bookings gone -> process ended -> Stopped
//! ```
//!
//! A replica that both the old and the new documents want, in the same way, stays as it is over a reload. The timetable
//! and GPU placement will decide what is wanted; supervision stays what it is.

mod attempts;
pub mod care;
mod compiled;
pub mod controller;
mod cycle;
pub mod engines;
pub mod externals;
mod fleet;
mod folders;
pub mod gate;
pub mod launcher;
pub mod leader;
mod measuring;
mod member;
pub mod phases;
pub mod records;
pub mod replica;
pub mod route;
mod run;
pub mod sight;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod status;
mod supervise;
pub mod verbs;

pub use fleet::{Backends, Fleet, FleetSettings, ReadSecret, ReplicaStatus};
pub use folders::{CompiledFor, ModelFolder, ModelFolders};
pub use member::MemberError;
