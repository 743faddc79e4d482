//! What is loaded where and when: the only one who decides it, and nobody on the way of a request.
//!
//! ```text
//! controller: one task, one turn after the other                                     controller.rs
//!   cycle: what should be loaded, what is, and the plan between them                  cycle.rs, planner
//!   run: a switch under way, its effects carried out, what is seen fed back           run.rs
//!     replica: one replica driven by its machine                                     replica.rs
//!       launcher: processes through nodes, or Kubernetes      sight: what it sees    launcher/, sight.rs
//!       care: engines over HTTP: load, gate, watchdog, sleep                          care.rs, engines.rs, gate/
//!     route: where aliases go, told to every kind of gate                            route/
//!   records: what the next controller has to know                                    records/
//! externals: engines that somebody else runs are proven and watched, never started   externals.rs
//! ```

mod attempts;
pub mod care;
pub mod controller;
mod cycle;
pub mod engines;
pub mod externals;
pub mod gate;
pub mod launcher;
pub mod leader;
mod measuring;
pub mod phases;
pub mod records;
pub mod replica;
pub mod route;
mod run;
pub mod sight;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod status;
mod takeover;
pub mod verbs;
