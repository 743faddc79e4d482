//! Second room: one function turns a request into an identity or a refusal, for every route.

use std::rc::Rc;

use tidegate_core::Fault;
use tidegate_identity::Authenticated;

use crate::accept::Inbound;
use crate::account::Tail;
use crate::core::Core;
use crate::server::Peer;

/// An accepted request: somebody is behind it, and from here on it ends with one ledger entry.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) inbound: Inbound,
    pub(crate) authenticated: Authenticated,
    pub(crate) tail: Tail,
}

/// Finds out who sent the request.
///
/// # Errors
/// 401 for whatever is wrong with the credential; 429 when the peer's failures are too many; 503 when the key store is
/// away and the key is unknown.
pub(crate) fn authenticate(core: &Rc<Core>, peer: Peer, inbound: Inbound, request_id: &str) -> Result<Accepted, Fault> {
    let at = core.wall();
    let headers = inbound.parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let keyring = core.shared.keyring.load();
    let outcome = tidegate_identity::authenticate(headers, inbound.parts.uri.query(), &**keyring, at);
    let authenticated = outcome.map_err(|fault| core.shared.throttle.answer(peer.address.ip(), fault, core.now()))?;
    let tail = Tail::open(core, at, authenticated.caller.clone(), request_id);
    Ok(Accepted { inbound, authenticated, tail })
}
