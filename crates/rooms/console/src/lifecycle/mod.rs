//! Which models are loaded when: what the controller does, and what it is told.
//!
//! ```text
//! GET  /admin/v1/lifecycle                        what is desired, in force, in progress
//! GET  /admin/v1/lifecycle/switches?before&limit  what became of switches
//! GET  /admin/v1/lifecycle/switches/{number}      one of them with its steps
//! POST /admin/v1/lifecycle/{switch|hold|pause|resume|abort|rollback|release}
//! ```
//!
//! Every verb is in the audit log before it is carried out.

mod alone;
mod ask;
mod status;
mod until;

use axum::Router;
use axum::routing::{get, post};

use crate::Console;

pub use ask::{Accepted, Ask, GpuRelease, Hold, Refused, RefusedKind, SwitchTo};
pub(crate) use ask::{carry_out, known_shift};
pub(crate) use status::now;
pub use status::{
    Away, DeploymentView, Failure, GapView, LifecycleStatus, Mark, NextShift, Note, QuarantinedGpu, ReplicaView,
    SaidView, StepView, SwitchHistory, SwitchView, SwitchWithSteps,
};

/// The routes.
pub(crate) fn router() -> Router<Console> {
    Router::new()
        .route("/admin/v1/lifecycle", get(status::show))
        .route("/admin/v1/lifecycle/switches", get(status::history))
        .route("/admin/v1/lifecycle/switches/{number}", get(status::one))
        .route("/admin/v1/lifecycle/switch", post(ask::switch))
        .route("/admin/v1/lifecycle/hold", post(ask::hold))
        .route("/admin/v1/lifecycle/pause", post(ask::pause))
        .route("/admin/v1/lifecycle/resume", post(ask::resume))
        .route("/admin/v1/lifecycle/abort", post(ask::abort))
        .route("/admin/v1/lifecycle/rollback", post(ask::rollback))
        .route("/admin/v1/lifecycle/release", post(ask::release))
}
