//! `/v1/messages/count_tokens` for engines that cannot count: the gate does it, with the model's own tokenizer where
//! its folder has one, else by the byte bound.

use http::{HeaderValue, Response, header};
use tidegate_core::Fault;
use tidegate_engine::dialect::Serves;
use tidegate_wire::Endpoint;
use tidegate_wire::sse::Usage;

use crate::account::Tail;
use crate::admit::{self, Ticket};
use crate::authorise::RequestBody;
use crate::body::Body;

/// Answers if it is the gate's to answer.
pub(crate) async fn at_the_gate(ticket: &Ticket, tail: &mut Tail) -> Result<Option<Response<Body>>, Fault> {
    let grant = &ticket.grant;
    let RequestBody::Json(json) = &grant.request else { return Ok(None) };
    let by_engine = |serves| matches!(serves, Serves::Native(_));
    let counted_by_engine =
        grant.alias.targets.iter().any(|target| by_engine(target.deployment.serves(grant.endpoint)));
    if grant.endpoint != Endpoint::CountTokens || counted_by_engine {
        return Ok(None);
    }
    let media = json.facts.images.saturating_mul(grant.alias.image_tokens());
    let bound = json.facts.prompt_bytes.saturating_add(media);
    let tokens = admit::counted(grant, &grant.alias, json, media).await?.unwrap_or(bound);
    tail.usage = Some(Usage::default());
    let mut response = Response::new(Body::full(format!("{{\"input_tokens\":{tokens}}}")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Some(response))
}
