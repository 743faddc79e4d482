//! The request path: eight rooms, in order. Each is the file of its name and consumes the proof of the one before.

use std::rc::Rc;

use http::{Request, Response};
use tidegate_core::Fault;
use tidegate_identity::Authenticated;

use crate::accept::{self, Inbound, accept};
use crate::account::Tail;
use crate::admit::admit;
use crate::answer;
use crate::authenticate::{Accepted, authenticate};
use crate::authorise::{Authorised, authorise};
use crate::body::Body;
use crate::caller_body::CallerBody;
use crate::core::Core;
use crate::count;
use crate::models;
use crate::pick::pick;
use crate::relay::{Attempt, relay};
use crate::route::{Route, Target, route};
use crate::server::Peer;

/// Answers one request, whatever happens. The first two rooms do not wait, so that the future holds no more than the
/// others need.
pub(crate) fn serve(
    core: &Rc<Core>,
    peer: Peer,
    request: Request<CallerBody>,
) -> impl Future<Output = Response<Body>> + use<> {
    let request_id = accept::request_id(request.headers()).unwrap_or_else(|| core.made_request_id());
    let api = answer::api_of(request.uri().path());
    let accepted = accept(request).and_then(|inbound| authenticate(core, peer, inbound, &request_id));
    let accepted = accepted.map_err(|fault| answer::unaccepted(core, &fault, api, &request_id));
    async move {
        let Accepted { inbound, authenticated, mut tail } = match accepted {
            Ok(accepted) => accepted,
            Err(response) => return response,
        };
        match path(inbound, authenticated, &mut tail).await {
            Ok(response) => answer::complete(response, tail),
            Err(fault) => answer::refused(tail, &fault, api),
        }
    }
}

/// From an authenticated request to an answer, or the beginning of one. `tail` becomes the one ledger entry.
async fn path(inbound: Inbound, caller: Authenticated, tail: &mut Tail) -> Result<Response<Body>, Fault> {
    let grant = match authorise(inbound, caller, tail).await? {
        Authorised::Call(grant) => grant,
        Authorised::Models(listing) => return Ok(models::answer(&listing)),
    };
    let mut ticket = admit(*grant, tail).await?;
    let mut tried = Route::new(&ticket);
    loop {
        let deployment = match route(&mut ticket, &mut tried, tail).await? {
            Target::Engine(deployment) => deployment,
            Target::Gate => return count::at_the_gate(&ticket, tried.alias(), tail).await,
        };
        let picked = match pick(deployment, &mut tried, tail) {
            Ok(picked) => picked,
            Err(fault) => {
                tried.failed(fault);
                continue;
            }
        };
        match relay(&mut ticket, picked, &tried, tail).await {
            Attempt::Answered(response) => return Ok(response),
            Attempt::Final(fault) => return Err(fault),
            Attempt::Retry(fault) => tried.failed(fault),
        }
    }
}
