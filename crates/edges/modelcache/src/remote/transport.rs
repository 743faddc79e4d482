//! HTTP under object_store: connections kept, clocks on every phase, answers checked before anybody reads them.
//!
//! object_store signs requests and reads listings; what it does not look at is looked at here. A range is answered with
//! 206, exactly that `Content-Range` and exactly that length, or it is a named failure. Error answers are read (bounded)
//! and named with S3's code and `Retry-After`. Nothing is tried again, but for a kept connection that the server has
//! closed meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, Uri, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use object_store::client::{HttpError, HttpRequest, HttpResponse, HttpResponseBody};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::connect::{Connector, Link, Place};
use super::range::Asked;
use super::trouble::{Trouble, chain, printable, retry_after_ms};
use crate::fault::StallPhase;

/// From the request's end to the answer's head.
pub const FIRST_BYTE_MAX: Duration = Duration::from_secs(30);
/// Between two reads of an answer's body.
pub const GAP_MAX: Duration = Duration::from_secs(30);
/// A request's body has at least this rate, in bytes per second, or it has stalled.
pub const SEND_RATE_MIN: u64 = 64 << 10;
/// Largest answer that is no range of an object, in bytes: the largest manifest, or a page of a listing.
pub const ANSWER_BYTES_MAX: u64 = crate::manifest::MANIFEST_BYTES_MAX as u64;
/// Largest error answer that is read, in bytes; the rest is not looked at.
const ERROR_BYTES_MAX: usize = 16 << 10;
/// Connections kept for one place.
const IDLE_MAX: usize = 64;
/// How long one is kept: shorter than servers keep theirs.
const IDLE_AGE_MAX: Duration = Duration::from_secs(15);

/// The HTTP client of one store.
pub(super) struct Transport {
    connector: Connector,
    idle: Arc<Idle>,
}

/// Connections without a request.
#[derive(Default)]
struct Idle(Mutex<HashMap<Place, Vec<(Instant, Link)>>>);

impl Idle {
    fn take(&self, place: &Place) -> Option<Link> {
        let mut idle = self.0.lock();
        let kept = idle.get_mut(place)?;
        kept.retain(|(since, _)| since.elapsed() < IDLE_AGE_MAX);
        kept.pop().map(|(_, link)| link)
    }

    fn give(&self, place: &Place, link: Link) {
        let mut idle = self.0.lock();
        let kept = idle.entry(place.clone()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push((Instant::now(), link));
        }
    }
}

impl Transport {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, idle: Arc::default() }
    }

    /// Sends a request and gives the checked answer. An error status is a [`Trouble`].
    pub(super) async fn exchange(&self, mut request: HttpRequest) -> Result<HttpResponse, Trouble> {
        let place = Place::of(request.uri())?;
        let asked = Asked::of(&request)?;
        let method = request.method().clone();
        prepare(&mut request, self.connector.absolute_form(&place))?;
        let (link, answer) = self.send(&place, request).await?;
        let body = AnswerBody::new(answer, link, place, Arc::clone(&self.idle));
        check(&method, asked.as_ref(), body).await
    }

    async fn send(&self, place: &Place, request: HttpRequest) -> Result<(Link, http::Response<Incoming>), Trouble> {
        if let Some(mut link) = self.idle.take(place) {
            match send_on(&mut link, request.clone()).await {
                Ok(answer) => return Ok((link, answer)),
                // The server closed it while it was idle. A POST may have had its effect and is not sent twice.
                Err(SendError::Closed(_)) if request.method() != Method::POST => {}
                Err(SendError::Closed(trouble) | SendError::Other(trouble)) => return Err(trouble),
            }
        }
        let mut link = self.connector.connect(place).await?;
        match send_on(&mut link, request).await {
            Ok(answer) => Ok((link, answer)),
            Err(SendError::Closed(trouble) | SendError::Other(trouble)) => Err(trouble),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

/// Origin form and a Host header, as a server wants them; a proxy for plain HTTP wants the whole address.
fn prepare(request: &mut HttpRequest, absolute: bool) -> Result<(), Trouble> {
    let bad = |error: &dyn fmt::Display| Trouble::BadAnswer(format!("request cannot be made: {error}"));
    if !request.headers().contains_key(header::HOST) {
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(authority).map_err(|error| bad(&error))?;
        request.headers_mut().insert(header::HOST, host);
    }
    if !absolute {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse::<Uri>().map_err(|error| bad(&error))?;
    }
    Ok(())
}

enum SendError {
    /// Before any byte of an answer.
    Closed(Trouble),
    Other(Trouble),
}

/// Sends one request and waits for the answer's head.
async fn send_on(link: &mut Link, request: HttpRequest) -> Result<http::Response<Incoming>, SendError> {
    let length = request.body().content_length() as u64;
    let limit = FIRST_BYTE_MAX + Duration::from_secs(length / SEND_RATE_MIN);
    let mut answer = std::pin::pin!(link.sender.send_request(request));
    let driver = &mut link.driver;
    let mut driven = None;
    let both = std::future::poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        if driven.is_none()
            && let Poll::Ready(end) = driver.as_mut().poll(context)
        {
            driven = Some(end);
        }
        answer.as_mut().poll(context)
    });
    let phase = if length == 0 { StallPhase::FirstByte } else { StallPhase::Send };
    match tokio::time::timeout(limit, both).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(broken(&error)),
        Err(_) => Err(SendError::Other(Trouble::stalled(phase, limit))),
    }
}

fn broken(error: &hyper::Error) -> SendError {
    let trouble = if error.is_parse() || error.is_parse_too_large() {
        Trouble::BadAnswer(printable(&chain(error)))
    } else {
        Trouble::Interrupted(printable(&chain(error)))
    };
    match error.is_canceled() || error.is_closed() || error.is_incomplete_message() || !error.is_parse() {
        true => SendError::Closed(trouble),
        false => SendError::Other(trouble),
    }
}

/// Lets an answer through, or names what is wrong with it.
async fn check(method: &Method, asked: Option<&Asked>, body: AnswerBody) -> Result<HttpResponse, Trouble> {
    let status = body.head.status;
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Err(Trouble::NotSatisfiable { size: super::range::size_after_refusal(&body.head.headers) });
    }
    if !status.is_success() {
        return Err(error_answer(method, body).await);
    }
    let limit = match asked {
        Some(asked) => asked.check(status, &body.head.headers)?,
        None => ANSWER_BYTES_MAX,
    };
    let exact = asked.is_some().then_some(limit);
    let head = body.head.clone();
    let mut answer = HttpResponse::new(HttpResponseBody::new(Counted { body, exact, left: limit }));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    Ok(answer)
}

async fn error_answer(method: &Method, mut body: AnswerBody) -> Trouble {
    let status = body.head.status.as_u16();
    let after = body.head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let after = after.and_then(|value| retry_after_ms(value, std::time::SystemTime::now()));
    let mut text = Vec::new();
    if method != Method::HEAD {
        let read = async {
            while let Some(Ok(frame)) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let data = frame.into_data().unwrap_or_default();
                text.extend_from_slice(&data[..data.len().min(ERROR_BYTES_MAX - text.len())]);
                if text.len() == ERROR_BYTES_MAX {
                    break;
                }
            }
        };
        // the status is known: a body that does not come changes nothing
        drop(tokio::time::timeout(GAP_MAX, read).await);
    }
    Trouble::of_status(status, &text, after)
}

#[derive(Clone, Debug)]
struct Head {
    status: StatusCode,
    headers: http::HeaderMap,
}

/// An answer's body that moves its own connection and gives it back when it has ended.
struct AnswerBody {
    head: Head,
    incoming: Incoming,
    /// A mutex only to be `Sync`, which object_store wants: it is never contended.
    link: Mutex<Option<Link>>,
    place: Place,
    idle: Arc<Idle>,
    gap: Pin<Box<Sleep>>,
    last: Instant,
}

impl AnswerBody {
    fn new(answer: http::Response<Incoming>, link: Link, place: Place, idle: Arc<Idle>) -> Self {
        let (parts, incoming) = answer.into_parts();
        let last = Instant::now();
        let gap = Box::pin(tokio::time::sleep_until(last + GAP_MAX));
        let head = Head { status: parts.status, headers: parts.headers };
        Self { head, incoming, link: Mutex::new(Some(link)), place, idle, gap, last }
    }

    /// Polls the body, then the connection, then the body again, which may have something by then.
    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(context) {
            return Poll::Ready(frame);
        }
        self.drive(context);
        Pin::new(&mut self.incoming).poll_frame(context)
    }

    fn drive(&mut self, context: &mut Context<'_>) {
        let slot = self.link.get_mut();
        if let Some(link) = slot
            && link.driver.as_mut().poll(context).is_ready()
        {
            *slot = None;
        }
    }

    /// The body has ended: its connection is free for the next request if the server keeps it.
    fn give_back(&mut self, context: &mut Context<'_>) {
        self.drive(context);
        if let Some(link) = self.link.get_mut().take()
            && link.sender.is_ready()
        {
            self.idle.give(&self.place, link);
        }
    }

    fn poll_gap(&mut self, context: &mut Context<'_>) -> Poll<Trouble> {
        loop {
            ready!(self.gap.as_mut().poll(context));
            // the clock is set only when it rings: bytes just note when they came
            let due = self.last + GAP_MAX;
            if due <= Instant::now() {
                return Poll::Ready(Trouble::stalled(StallPhase::Gap, GAP_MAX));
            }
            self.gap.as_mut().reset(due);
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Trouble;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Trouble>>> {
        match self.poll_incoming(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.last = Instant::now();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(Trouble::Interrupted(printable(&chain(&error)))))),
            Poll::Ready(None) => {
                self.give_back(context);
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_gap(context).map(|trouble| Some(Err(trouble))),
        }
    }
}

/// A body of at most, or exactly, that many bytes.
struct Counted {
    body: AnswerBody,
    exact: Option<u64>,
    left: u64,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(trouble)) => return Poll::Ready(Some(Err(trouble.into_http()))),
            None => {
                let short = self.exact.filter(|_| self.left > 0);
                let trouble = short.map(|expected| Trouble::Length { expected, found: expected - self.left });
                self.left = 0;
                return Poll::Ready(trouble.map(|trouble| Err(trouble.into_http())));
            }
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        let Some(left) = self.left.checked_sub(length) else {
            let trouble = match self.exact {
                Some(expected) => Trouble::Length { expected, found: expected - self.left + length },
                None => Trouble::BadAnswer(format!("more than {ANSWER_BYTES_MAX} bytes")),
            };
            return Poll::Ready(Some(Err(trouble.into_http())));
        };
        self.left = left;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        false
    }

    fn size_hint(&self) -> SizeHint {
        self.exact.map_or_else(SizeHint::default, |_| SizeHint::with_exact(self.left))
    }
}
