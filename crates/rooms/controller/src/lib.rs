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

mod compiled;
mod fleet;
mod folders;
mod member;
mod supervise;

pub use fleet::{Backends, Fleet, FleetSettings, ReadSecret, ReplicaStatus};
pub use folders::{CompiledFor, ModelFolder, ModelFolders};
pub use member::MemberError;
