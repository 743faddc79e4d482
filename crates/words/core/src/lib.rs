//! The words that every other crate speaks: ids, units, limits, callers, faults and ledger records.
//!
//! Nothing here does I/O, reads a clock or knows a protocol. A type belongs here when two crates on different sides
//! of a wall have to mean the same thing by it.

pub mod caller;
pub mod clock;
pub mod digest;
pub mod fault;
pub mod id;
pub mod ledger;
pub mod limit;

pub use caller::{Caller, Issuer};
pub use clock::{Monotonic, Unix};
pub use digest::Sha256Digest;
pub use fault::{Case, Fault, FaultKind, Origin};
pub use id::{AliasName, CallerName, DeploymentName, KeyId, ModelName, ReplicaId, RequestId, ShiftName, TeamName};
pub use ledger::{Entry, Outcome, Reservation, UsageSource};
pub use limit::{Amounts, Dimension, Level, Limits, Refusal};
