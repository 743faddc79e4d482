//! `/v1/messages/count_tokens` for engines that cannot count: the gate does it, with the model's own tokenizer where
//! its folder has one, else by the byte bound.

use http::{HeaderValue, Response, header};
use tidegate_core::{Case, Fault};

use crate::account::Tail;
use crate::admit::{self, Ticket};
use crate::authorise::RequestBody;
use crate::body::Body;
use crate::catalogue::AliasView;

/// Counts for `alias`, which serves.
///
/// # Errors
/// 400 for a body whose text cannot be found.
pub(crate) async fn at_the_gate(ticket: &Ticket, alias: &AliasView, tail: &mut Tail) -> Result<Response<Body>, Fault> {
    let grant = &ticket.grant;
    let RequestBody::Json(json) = &grant.request else { return Err(Fault::new(Case::InvalidValue).param("model")) };
    let media = json.facts.images.saturating_mul(alias.image_tokens());
    let bound = json.facts.prompt_bytes.saturating_add(media);
    let tokens = admit::counted(grant, alias, json, media).await?.unwrap_or(bound);
    tail.counted_at_the_gate();
    let mut response = Response::new(Body::full(format!("{{\"input_tokens\":{tokens}}}")));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
