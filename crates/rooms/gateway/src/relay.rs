//! Seventh room: bytes to the engine and back.
//!
//! An attempt ends in one of three ways: answered, failed so that another replica may be tried, failed for good. The
//! first complete event of a stream travels with the response head: whatever fails before it can still be retried, or
//! answered with a status that says what happened.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use tidegate_core::{Case, Fault, Monotonic, Origin, RequestId};
use tidegate_engine::attempt::{self, AttemptEnd};
use tidegate_engine::client::{
    CallOptions, ClientError, Head, Method, Response as Upstream, ResponseBody, ResponseHead,
};
use tidegate_routing::breaker::Report;
use tidegate_store::failpoint;
use tidegate_wire::sse::Usage;
use tidegate_wire::{Endpoint, messages};

use crate::account::{Running, Tail};
use crate::admit::Ticket;
use crate::body::Body;
use crate::catalogue::DeploymentView;
use crate::collect::{ANSWER_BYTES_MAX, ERROR_BYTES_MAX, collect};
use crate::deadline::{Deadline, Elapsed};
use crate::multipart::Verdict;
use crate::outgoing::{Outgoing, Payload, Shape, outgoing};
use crate::pick::Picked;
use crate::route::Route;
use crate::streamed::Streamed;
use tidegate_engine::backend::Backend;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// With an answer, or the beginning of one.
    Answered(Response<Body>),
    /// For good.
    Final(Fault),
    /// Another replica may do better.
    Retry(Fault),
}

/// Why an attempt has no answer, and what the breaker hears of it.
struct Failed {
    end: AttemptEnd,
    report: Report,
    /// We gave up waiting: the engine notices late that nobody listens any more.
    still_runs: bool,
}

impl From<AttemptEnd> for Failed {
    fn from(end: AttemptEnd) -> Self {
        let report = match &end {
            _ if end.trips_breaker() => Report::Bad,
            // It answered: with a refusal of this request.
            AttemptEnd::Final(fault) if fault.kind().origin() == Origin::Caller => Report::Good,
            AttemptEnd::Final(_) | AttemptEnd::Retryable { .. } => Report::Unknown,
        };
        Self { end, report, still_runs: false }
    }
}

impl Failed {
    /// We waited as long as one may: not repeated, and the engine may still be at work.
    fn waiting(end: AttemptEnd) -> Self {
        Self { still_runs: true, ..AttemptEnd::Final(end.into_fault()).into() }
    }
}

/// One attempt while it runs.
struct Exchange {
    deployment: Arc<DeploymentView>,
    backend: Arc<Backend>,
    shape: Shape,
    deadline: Deadline,
    whole: Monotonic,
    gap: Duration,
    connect: Duration,
}

/// Sends the request to the picked replica.
pub(crate) async fn relay(ticket: &mut Ticket, picked: Picked, route: &Route, tail: &mut Tail) -> Attempt {
    let outgoing = match outgoing(ticket, &picked.deployment, tail) {
        Ok(outgoing) => outgoing,
        Err(fault) => return Attempt::Final(fault),
    };
    let exchange = begin(picked, route, outgoing.shape.clone(), tail);
    match exchange.run(outgoing, tail).await {
        Ok(response) => Attempt::Answered(response),
        Err(Failed { end, report, still_runs }) => {
            match &tail.running {
                Some(running) if still_runs => running.lease.report(report, tail.core.now()),
                _ => tail.end_attempt(report),
            }
            match end {
                AttemptEnd::Retryable { fault, .. } => {
                    tail.core.shared.metrics.retries.inc();
                    Attempt::Retry(fault)
                }
                AttemptEnd::Final(fault) => Attempt::Final(fault),
            }
        }
    }
}

/// From here on the replica is asked: the tail knows whom, since when, and what it holds.
fn begin(picked: Picked, route: &Route, shape: Shape, tail: &mut Tail) -> Exchange {
    let Picked { deployment, backend, lease } = picked;
    let now = tail.core.now();
    tail.deployment = Some(Arc::clone(&deployment));
    tail.replica = Some(backend.replica().id().clone());
    let abort = deployment.dialect.abort_bound(tail.streamed);
    tail.begin_attempt(Running { lease, backend: Arc::clone(&backend), abort }, now);
    let timeouts = route.alias().timeouts;
    // All attempts together have this long.
    let first = tail.called.unwrap_or(now);
    let is_stream = tail.streamed || tail.upload_streams;
    let whole = first.after(if is_stream { timeouts.whole_streamed } else { timeouts.whole });
    // An upload takes its time before its engine can say anything: it has that of an answer that comes at once.
    let until = if tail.streamed { now.after(timeouts.first_byte) } else { first.after(timeouts.whole) }.min(whole);
    let deadline = tail.core.deadlines.at(until);
    deadline.follow(backend.replica());
    Exchange { deployment, backend, shape, deadline, whole, gap: timeouts.gap, connect: timeouts.connect }
}

impl Exchange {
    async fn run(self, outgoing: Outgoing, tail: &mut Tail) -> Result<Response<Body>, Failed> {
        let response = self.send(outgoing, tail).await?;
        failpoint::passed("relay.after_head");
        let status = response.head.status;
        if !(200..300).contains(&status) {
            return Err(Box::pin(self.refused(response)).await.into());
        }
        self.check_success(&response.head, tail)?;
        if response.head.is_event_stream() {
            self.stream(response.body, tail).await
        } else {
            self.whole(response, tail).await
        }
    }

    /// Whether a good answer is of the kind that was asked for. Of an upload the gate does not know what was asked:
    /// transcriptions come as JSON, as events or as text.
    fn check_success(&self, head: &ResponseHead, tail: &Tail) -> Result<(), AttemptEnd> {
        let is_upload = tail.endpoint == Endpoint::Transcriptions.path();
        if is_upload && TRANSCRIPTS.iter().any(|kind| has_type(head, kind)) {
            return Ok(());
        }
        attempt::check_success(head, tail.streamed)
    }

    async fn send(&self, outgoing: Outgoing, tail: &mut Tail) -> Result<Upstream, Failed> {
        let pool = self.backend.pool(tail.core.index);
        let attempt = attempt_id(tail);
        let head = Head {
            method: Method::Post,
            path: outgoing.path,
            content_type: Some(&outgoing.content_type),
            request_id: Some(&attempt),
            headers: &[],
        };
        let options = CallOptions { connect: self.connect, sent: || failpoint::passed("relay.after_send") };
        // As an engine that refuses the connection.
        failpoint::hit("relay.before_send").map_err(|error| broken(&ClientError::Connect(error)))?;
        let (sent, upload) = match outgoing.payload {
            Payload::Json(body) => (self.deadline.bound(pool.send_with(head, body, options)).await, None),
            Payload::Upload { body, length } => {
                let verdict = body.verdict();
                tail.upload = Some(verdict.clone());
                let sending = Box::pin(pool.send_stream_with(head, length, body, options));
                (self.deadline.bound(sending).await, Some(verdict))
            }
        };
        match (sent, upload) {
            (Err(Elapsed), _) => Err(self.timed_out(tail)),
            (Ok(Ok(response)), _) => Ok(response),
            (Ok(Err(error)), None) => Err(broken(&error)),
            (Ok(Err(error)), Some(verdict)) => Err(broken_upload(&error, &verdict)),
        }
    }

    /// Not repeated: the caller has waited for as long as one may wait.
    fn timed_out(&self, tail: &Tail) -> Failed {
        if self.deadline.is_cut() {
            let end = attempt::taken_out();
            // An upload streams through once.
            return if tail.upload.is_some() { AttemptEnd::Final(end.into_fault()) } else { end }.into();
        }
        let end = if tail.streamed { attempt::first_byte_timeout() } else { attempt::whole_timeout() };
        Failed::waiting(end)
    }

    /// The engine's own refusal: mapped to ours, its text goes to the log.
    async fn refused(&self, response: Upstream) -> AttemptEnd {
        let status = response.head.status;
        let body = match self.deadline.bound(collect(response.body, ERROR_BYTES_MAX)).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) | Err(Elapsed) => Bytes::new(),
        };
        attempt::refused(self.deployment.dialect, status, &body)
    }

    /// An answer that is sent at once: read in full, since only then is it known to be one.
    async fn whole(&self, response: Upstream, tail: &mut Tail) -> Result<Response<Body>, Failed> {
        let content_type = response.head.content_type.clone();
        let status = response.head.status;
        let body = match self.deadline.bound(collect(response.body, ANSWER_BYTES_MAX)).await {
            Err(Elapsed) => return Err(self.timed_out(tail)),
            Ok(Err(error)) => return Err(broken(&error)),
            Ok(Ok(body)) => body,
        };
        tail.note_byte(tail.core.now());
        tail.delivered = body.len() as u64;
        let body = self.read_whole(body, content_type.as_ref(), tail)?;
        let mut answer = Response::new(Body::full(body));
        *answer.status_mut() = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::OK);
        let content_type = content_type.unwrap_or(HeaderValue::from_static("application/json"));
        answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
        Ok(answer)
    }

    fn read_whole(&self, body: Bytes, content_type: Option<&HeaderValue>, tail: &mut Tail) -> Result<Bytes, Failed> {
        let is_json = content_type.is_none_or(|value| value.as_bytes().starts_with(b"application/json"));
        if !is_json {
            return Ok(body);
        }
        let read = match &self.shape {
            Shape::Native { endpoint, alias, .. } => tail.core.answers.borrow_mut().rewrite(*endpoint, body, alias),
            Shape::Translated { told } => messages::answer_from_chat(&body, told),
        };
        tail.engine_id = read.engine_id;
        if read.aborted {
            return Err(attempt::aborted().into());
        }
        if read.malformed {
            return Err(attempt::malformed_answer().into());
        }
        // What counting reports is its answer, not its cost.
        let is_count = tail.endpoint == Endpoint::CountTokens.path();
        tail.usage = if is_count { Some(Usage::default()) } else { read.usage };
        Ok(read.body)
    }

    /// The beginning of a stream, up to its first complete event.
    async fn stream(self, upstream: ResponseBody, tail: &mut Tail) -> Result<Response<Body>, Failed> {
        let mut streamed = Box::new(Streamed::new(
            upstream,
            &self.shape,
            self.deployment.dialect,
            self.deadline,
            (self.gap, self.whole),
        ));
        if let Err(end) = streamed.first_event(tail).await {
            let waited = matches!(&end, AttemptEnd::Final(fault) if fault.case == Case::UpstreamTimeout);
            return Err(if waited { Failed::waiting(end) } else { end.into() });
        }
        failpoint::passed("relay.after_first_event");
        tail.streamed = true;
        let mut answer = Response::new(Body::Streamed(streamed));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies of the nginx family buffer streams unless told not to.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        Ok(answer)
    }
}

/// What a transcription may come as, besides JSON.
const TRANSCRIPTS: [&str; 4] = ["text/event-stream", "text/plain", "text/vtt", "application/x-subrip"];

fn has_type(head: &ResponseHead, kind: &str) -> bool {
    let value = head.content_type.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
}

/// Ours, and unique for each attempt: engines key their requests by it.
fn attempt_id(tail: &Tail) -> String {
    let mut id = String::with_capacity(RequestId::TEXT_LEN + 4);
    tail.id.push_to(&mut id);
    id.push('-');
    id.push_str(itoa::Buffer::new().format(tail.attempts));
    id
}

fn broken(error: &ClientError) -> Failed {
    let end = attempt::broken(error);
    let report = match error {
        // Out at once: whatever else it is, it does not listen.
        ClientError::Connect(_) | ClientError::ConnectTimeout(_) => Report::Refused,
        _ if error.is_own() => Report::Unknown,
        _ => return end.into(),
    };
    Failed { end, report, still_runs: false }
}

/// An upload streams through once, so that nothing of it can be repeated.
fn broken_upload(error: &ClientError, verdict: &Verdict) -> Failed {
    let failed = broken(error);
    let fault = verdict.fault().unwrap_or_else(|| failed.end.into_fault());
    Failed { end: AttemptEnd::Final(fault), ..failed }
}
