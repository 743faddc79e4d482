//! The agent: a node's own [`tidegate_node::Node`] for controllers on other machines.
//!
//! ```text
//! controller ── RemoteNode ──TLS 1.3, HTTP/2, JSON──> serve ── routes ── Node (LocalNode: engines, proof, model cache)
//! ```
//!
//! It adds nothing of its own to what the node does: who may ask is decided by certificates, which generation by the
//! node, and everything that is asked and answered is bounded.

mod routes;
mod serve;

pub use serve::{
    Agent, BODY_WITHIN, CONNECTION_AGE_MAX, CONNECTIONS_MAX, DRAIN_WITHIN, HANDSHAKE_WITHIN, LINGER_BYTES_MAX,
    LINGER_WITHIN, STREAMS_MAX,
};
