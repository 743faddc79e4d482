//! What is sent to an engine, and how its answer is to be read.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_core::{Case, Fault};
use tidegate_engine::dialect::Serves;
use tidegate_wire::endpoint::Endpoint;
use tidegate_wire::messages::{self, Told};
use tidegate_wire::request::{self, Upstream, UsageAsked};

use crate::account::Tail;
use crate::admit::Ticket;
use crate::authorise::{JsonBody, RequestBody};
use crate::catalogue::DeploymentView;
use crate::multipart::Passage;

/// How the answer is to be read.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// The engine speaks what the caller speaks.
    Native { endpoint: Endpoint, alias: Arc<str>, asked: UsageAsked },
    /// The engine speaks chat completions, the caller Anthropic's messages.
    Translated { told: Told },
}

/// A request for an engine.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) path: &'static str,
    pub(crate) content_type: Box<str>,
    pub(crate) payload: Payload,
    pub(crate) shape: Shape,
}

/// Its body.
#[derive(Debug)]
pub(crate) enum Payload {
    /// At hand, so that it can be sent again.
    Json(Bytes),
    /// Streaming through, once.
    Upload { body: Box<Passage>, length: Option<u64> },
}

/// Makes the request for a deployment's engine.
///
/// # Errors
/// A body that cannot be translated; an upload that was already sent.
pub(crate) fn outgoing(ticket: &mut Ticket, deployment: &DeploymentView, tail: &Tail) -> Result<Outgoing, Fault> {
    let endpoint = ticket.grant.endpoint;
    let alias: Arc<str> = tail.alias.as_ref().map_or("", |alias| alias.as_str()).into();
    match &mut ticket.grant.request {
        RequestBody::Json(json) => {
            let upstream = Upstream {
                model: &deployment.served_name,
                max_tokens: ticket.cost.max_tokens,
                usage: true,
                continuous_usage: deployment.dialect.has_continuous_usage(),
                priority: None,
                cache_salt: None,
            };
            json_request(endpoint, json, &upstream, deployment, alias)
        }
        RequestBody::Upload(upload) => {
            let (body, length) = upload.take(&deployment.served_name, ticket.cost.max_tokens).ok_or_else(|| {
                Fault::new(Case::UpstreamUnreachable).internal("an upload cannot be sent a second time")
            })?;
            Ok(Outgoing {
                path: endpoint.path(),
                content_type: upload.content_type().into(),
                payload: Payload::Upload { body: Box::new(body), length },
                shape: native(endpoint, alias, UsageAsked::No),
            })
        }
    }
}

fn json_request(
    endpoint: Endpoint,
    json: &JsonBody,
    upstream: &Upstream<'_>,
    deployment: &DeploymentView,
    alias: Arc<str>,
) -> Result<Outgoing, Fault> {
    let object = json.document.object();
    let (path, body, shape) = match deployment.serves(endpoint) {
        Serves::Native(path) => {
            let body = request::rewrite(endpoint, &object, &json.facts, upstream);
            (path, body, native(endpoint, alias, json.facts.usage))
        }
        Serves::AsChat(path) => {
            let told = Told { alias, thinking: messages::asks_thinking(&object) };
            (path, messages::to_chat(&object, &json.facts, upstream)?, Shape::Translated { told })
        }
        // The route passes over deployments that do not speak the endpoint.
        Serves::AtTheGate | Serves::No => return Err(Fault::new(Case::InvalidValue).param("model")),
    };
    Ok(Outgoing { path, content_type: "application/json".into(), payload: Payload::Json(body.into()), shape })
}

fn native(endpoint: Endpoint, alias: Arc<str>, asked: UsageAsked) -> Shape {
    Shape::Native { endpoint, alias, asked }
}
