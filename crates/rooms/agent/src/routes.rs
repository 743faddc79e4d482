//! Requests to calls of the node, and back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_node::wire::{
    Have, KEPT_MAX, Kept, REASON_BYTES_MAX, REQUEST_BYTES_MAX, Release, Start, Stop, Told, status,
};
use tidegate_node::{Event, InstanceId, LOG_PART_MAX, Node, NodeError};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::serve::BODY_WITHIN;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A refusal that is not the node's.
enum Refusal {
    Node(NodeError),
    /// With this status, as a bad request.
    Http(StatusCode, String),
}

impl From<NodeError> for Refusal {
    fn from(fault: NodeError) -> Self {
        Self::Node(fault)
    }
}

fn bad(why: impl Into<String>) -> Refusal {
    Refusal::Http(StatusCode::BAD_REQUEST, why.into())
}

/// Answers one request.
pub(crate) async fn answer(
    node: Arc<dyn Node>,
    request: Request<Incoming>,
    ending: watch::Receiver<bool>,
) -> Response<Body> {
    match routed(node, request, ending).await {
        Ok(response) => response,
        Err(Refusal::Node(fault)) => refused(StatusCode::from_u16(status(&fault)).unwrap_or_default(), &fault),
        Err(Refusal::Http(status, why)) => refused(status, &NodeError::BadRequest { why }),
    }
}

fn refused(status: StatusCode, fault: &NodeError) -> Response<Body> {
    whole(status, serde_json::to_vec(fault).unwrap_or_default())
}

fn whole(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn done<T: Serialize>(value: &T) -> Result<Response<Body>, Refusal> {
    let body = serde_json::to_vec(value)
        .map_err(|error| NodeError::Io { what: "cannot write the answer".to_owned(), why: error.to_string() })?;
    Ok(whole(StatusCode::OK, body))
}

async fn routed(
    node: Arc<dyn Node>,
    request: Request<Incoming>,
    ending: watch::Receiver<bool>,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let query = head.uri.query().unwrap_or_default();
    let rest = path.strip_prefix("/v1/").ok_or_else(unknown)?;
    let steps: Vec<&str> = rest.split('/').collect();
    match (&head.method, steps.as_slice()) {
        (&Method::GET, ["facts"]) => done(&node.facts().await?),
        (&Method::GET, ["instances"]) => done(&node.instances().await?),
        (&Method::GET, ["models"]) => done(&node.models().await?),
        (&Method::GET, ["events"]) => Ok(events(node, number(query, "after")?.unwrap_or(0), ending)),
        (&Method::GET, ["instances", id, "log"]) => {
            let max = number(query, "max")?.map_or(LOG_PART_MAX, |max| u32::try_from(max).unwrap_or(LOG_PART_MAX));
            done(&node.log(&named(id)?, number(query, "from")?.unwrap_or(0), max.min(LOG_PART_MAX)).await?)
        }
        (&Method::PUT, ["instances", id]) => {
            let Start { generation, order } = read(body).await?;
            if order.instance != named(id)? {
                return Err(bad("the order is for another instance than the address"));
            }
            done(&node.start(generation, order).await?)
        }
        (&Method::POST, ["instances", id, verb]) => instance(&*node, &named(id)?, verb, body).await,
        (&Method::POST, ["models", "have"]) => {
            let Have { generation, order } = read(body).await?;
            done(&node.have(generation, order).await?)
        }
        (&Method::PUT, ["models", "kept"]) => {
            let Kept { generation, kept } = read(body).await?;
            if kept.len() > KEPT_MAX {
                return Err(bad(format!("more than {KEPT_MAX} models are to be kept")));
            }
            done(&node.keep(generation, kept).await?)
        }
        (&Method::POST, ["gpus", gpu, "release"]) => {
            let gpu = gpu.parse().map_err(|_| bad("a GPU is named by its index"))?;
            let Release { generation, reason } = read(body).await?;
            if reason.len() > REASON_BYTES_MAX {
                return Err(bad(format!("a reason has at most {REASON_BYTES_MAX} bytes")));
            }
            done(&node.release(generation, gpu, &reason).await?)
        }
        _ => Err(unknown()),
    }
}

async fn instance(node: &dyn Node, id: &InstanceId, verb: &str, body: Incoming) -> Result<Response<Body>, Refusal> {
    match verb {
        "stop" => {
            let Stop { generation, patience_ms } = read(body).await?;
            done(&node.stop(generation, id, Duration::from_millis(patience_ms)).await?)
        }
        "prove" => {
            let Told { generation } = read(body).await?;
            done(&node.prove(generation, id).await?)
        }
        "forget" => {
            let Told { generation } = read(body).await?;
            done(&node.forget(generation, id).await?)
        }
        _ => Err(unknown()),
    }
}

fn unknown() -> Refusal {
    Refusal::Http(StatusCode::NOT_FOUND, "an agent has no such path, or not with this method".to_owned())
}

fn named(id: &str) -> Result<InstanceId, Refusal> {
    InstanceId::new(id).map_err(|error| bad(error.to_string()))
}

/// A number of a query; `None`: it is not there.
fn number(query: &str, name: &str) -> Result<Option<u64>, Refusal> {
    let found = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
    let read = |(_, value): (&str, &str)| value.parse().map_err(|_| bad(format!("{name} is no number")));
    found.map(read).transpose()
}

async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let read = timeout(BODY_WITHIN, Limited::new(body, REQUEST_BYTES_MAX).collect()).await;
    let read =
        read.map_err(|_| Refusal::Http(StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned()))?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let why = format!("a body has at most {REQUEST_BYTES_MAX} bytes");
            return Refusal::Http(StatusCode::PAYLOAD_TOO_LARGE, why);
        }
        bad(error.to_string())
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| bad(error.to_string()))
}

/// Events from a number on, a line each, for as long as somebody reads. An empty line says that nothing happened.
fn events(node: Arc<dyn Node>, after: u64, ending: watch::Receiver<bool>) -> Response<Body> {
    let told = stream::unfold((node, after, ending), async |(node, after, mut ending)| {
        let events = tokio::select! {
            events = node.events(after) => events.ok()?,
            _ = ending.wait_for(|ending| *ending) => return None,
        };
        let after = events.last().map_or(after, |event| event.number);
        Some((Ok(Frame::data(lines(&events))), (node, after, ending)))
    });
    let mut response = Response::new(StreamBody::new(told).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/x-ndjson"));
    response
}

fn lines(events: &[Event]) -> Bytes {
    let mut text = Vec::new();
    for event in events {
        if serde_json::to_writer(&mut text, event).is_ok() {
            text.push(b'\n');
        }
    }
    if text.is_empty() {
        text.push(b'\n');
    }
    Bytes::from(text)
}
