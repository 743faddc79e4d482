//! The admin API: keys, usage, shift, status, metrics and health, on a port (or socket) of its own and never on the
//! user port.
//!
//! ```text
//! open              GET  /livez  /readyz  /metrics
//! admin key, or     GET  /admin/v1/status
//! the socket's      POST /admin/v1/keys          GET /admin/v1/keys
//! owner             POST /admin/v1/keys/{id}/rotate   POST /admin/v1/keys/{id}/revoke
//!                   GET  /admin/v1/usage         PUT /admin/v1/shift
//!                   GET  /admin/v1/audit
//!                   GET  /admin/v1/lifecycle     POST /admin/v1/lifecycle/{verb}
//! ```
//!
//! The command line uses the same router, also without a running process: there is one way to do each thing.

mod audit;
mod auth;
mod keys;
pub mod lifecycle;
mod panel;
mod problem;
mod serve;
mod status;
mod usage;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post, put};
use tidegate_identity::SharedKeyring;
use tidegate_store::Store;

pub use audit::{AUDIT_DEFAULT, AuditAnswer};
pub use auth::Trust;
pub use keys::{CreateKey, CreatedKey, GRACE_MAX, KeyView, LIFETIME_MAX, RotateKey, load_keyring};
pub use panel::{Panel, Readiness, Soon};
pub use serve::{CONNECTIONS_MAX, HEAD_MAX, HEAD_TIMEOUT, Peer, serve, serve_one};
pub use status::SetShift;
pub use usage::{UsageAnswer, UsageQueryText};

/// Largest body of an admin request.
pub const BODY_MAX: usize = 64 * 1024;

/// What the admin API works on.
#[derive(Clone, Debug)]
pub struct Console {
    /// Keys, ledger, shift, audit.
    pub store: Store,
    /// The keys in force in this process.
    pub keyring: Arc<SharedKeyring>,
    /// What the process says of itself.
    pub panel: Arc<dyn Panel>,
}

impl Console {
    /// The router; `trust` says who is at the other end. Failed authentications are counted per router and peer.
    pub fn router(self, trust: Trust) -> Router {
        let guarded = Router::new()
            .route("/admin/v1/status", get(status::status))
            .route("/admin/v1/shift", put(status::set_shift))
            .route("/admin/v1/keys", post(keys::create).get(keys::list))
            .route("/admin/v1/keys/{id}/rotate", post(keys::rotate))
            .route("/admin/v1/keys/{id}/revoke", post(keys::revoke))
            .route("/admin/v1/usage", get(usage::usage))
            .route("/admin/v1/audit", get(audit::audit))
            .merge(lifecycle::router())
            .fallback(problem::unknown_path)
            .method_not_allowed_fallback(problem::wrong_method)
            // Around the fallback too: who has no key learns of no path whether it exists.
            .layer(axum::middleware::from_fn_with_state(auth::Guard::new(self.clone(), trust), auth::guard));
        Router::new()
            .route("/livez", get(status::livez))
            .route("/readyz", get(status::readyz))
            .route("/metrics", get(status::metrics))
            .merge(guarded)
            .layer(DefaultBodyLimit::max(BODY_MAX))
            .with_state(self)
    }
}
