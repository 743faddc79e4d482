//! Connections to one engine, kept by one core; and one exchange over one of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use parking_lot::Mutex;
use tidegate_routing::Replica;
use tokio::time::Instant;

use super::body::ResponseBody;
use super::endpoint::Endpoint;
use super::error::ClientError;
use super::exchange::{self, BodySource, NoSource, Reading, Sending, Source};
use super::head::{BodyLength, Head, KeepAlive, Method, ResponseHead, write_request};
use super::io::Stream;

/// How a pool behaves.
#[derive(Clone, Copy, Debug)]
pub struct PoolSettings {
    /// Deadline for a connected socket, TLS handshake included (default 2 s).
    pub connect: Duration,
    /// Idle connections kept (default 256); the oldest goes first.
    pub idle_max: usize,
    /// How long a connection may stay idle when the engine does not say (default 4 s; uvicorn closes after 5).
    pub idle: Duration,
}

/// What one call may set for itself.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Deadline for a connected socket, TLS handshake included.
    pub connect: Duration,
    /// Called when the request has been written in full; again, if it had to be sent again.
    pub sent: fn(),
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), idle_max: 256, idle: Duration::from_secs(4) }
    }
}

/// The connections of one core to one engine.
///
/// `Send` and `Sync`, so that probes can use it from another runtime; a connection is only ever polled by the runtime
/// that opened it, hence one pool per core. The lock is never contended there.
pub struct Pool {
    endpoint: Endpoint,
    settings: PoolSettings,
    /// Oldest first.
    idle: Mutex<Vec<Idle>>,
    /// The replica that is watched over these connections.
    watched: Option<Arc<Replica>>,
}

struct Idle {
    connection: Connection,
    until: Instant,
}

/// One open connection and the buffer that its request heads are written into.
pub(super) struct Connection {
    pub(super) stream: Stream,
    head: Vec<u8>,
}

/// A response: its head, and its body to be read.
#[derive(Debug)]
pub struct Response {
    /// What the gateway needs of the head.
    pub head: ResponseHead,
    /// The body.
    pub body: ResponseBody,
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(endpoint: Endpoint, settings: PoolSettings) -> Arc<Self> {
        Arc::new(Self { endpoint, settings, idle: Mutex::new(Vec::new()), watched: None })
    }

    /// A pool over which a replica is watched: what a scrape reads can be compared with what is booked there.
    pub(crate) fn watching(endpoint: Endpoint, settings: PoolSettings, replica: Arc<Replica>) -> Arc<Self> {
        Arc::new(Self { endpoint, settings, idle: Mutex::new(Vec::new()), watched: Some(replica) })
    }

    /// The replica that is watched over this pool.
    pub(crate) const fn watched(&self) -> Option<&Arc<Replica>> {
        self.watched.as_ref()
    }

    /// The engine.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Idle connections held now.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        self.idle.lock().len()
    }

    /// Closes connections that were idle for too long or were closed by the engine. Call it now and then for engines
    /// that are asked rarely; pools in use tidy up by themselves.
    pub fn prune(&self) {
        let now = Instant::now();
        self.idle.lock().retain(|idle| idle.until > now && !idle.connection.stream.is_stale());
    }

    /// Closes all idle connections, as before an engine is stopped.
    pub fn clear(&self) {
        self.idle.lock().clear();
    }

    /// Sends a request whose body is at hand (empty: none) and returns when the response head has come.
    ///
    /// A connection from the pool may have been closed by the engine in the instant of its use. If it breaks before a
    /// single byte of a response, the request is sent once more, on a new connection; nothing else is ever repeated
    /// here. There is no deadline but that of the connect: the caller holds the others.
    ///
    /// # Errors
    /// [`ClientError`], by the moment it happened.
    pub async fn send(self: &Arc<Self>, head: Head<'_>, body: Bytes) -> Result<Response, ClientError> {
        self.send_with(head, body, self.defaults()).await
    }

    /// [`Pool::send`] with options of its own.
    ///
    /// # Errors
    /// As there.
    pub async fn send_with(
        self: &Arc<Self>,
        head: Head<'_>,
        body: Bytes,
        options: CallOptions,
    ) -> Result<Response, ClientError> {
        let length = match (head.method, body.len()) {
            (Method::Get | Method::Head, 0) => BodyLength::None,
            (_, bytes) => BodyLength::Known(bytes as u64),
        };
        if let Some(connection) = self.take_idle() {
            match self.exchange(connection, head, length, (body.clone(), NoSource), options).await {
                Err(error) if error.before_response() && !error.is_own() => {}
                other => return other,
            }
        }
        let connection = Box::pin(self.dial(options.connect)).await?;
        self.exchange(connection, head, length, (body, NoSource), options).await
    }

    /// Sends a request whose body is still arriving; `length` is its length if that is known. Always on a new
    /// connection, since such a request cannot be sent twice.
    ///
    /// When the engine answers before the body is sent, the rest is not sent, and the connection is not used again.
    ///
    /// # Errors
    /// [`ClientError`], by the moment it happened.
    pub async fn send_stream<S>(
        self: &Arc<Self>,
        head: Head<'_>,
        length: Option<u64>,
        body: S,
    ) -> Result<Response, ClientError>
    where
        S: Body<Data = Bytes> + Unpin,
        S::Error: fmt::Display,
    {
        self.send_stream_with(head, length, body, self.defaults()).await
    }

    /// [`Pool::send_stream`] with options of its own.
    ///
    /// # Errors
    /// As there.
    pub async fn send_stream_with<S>(
        self: &Arc<Self>,
        head: Head<'_>,
        length: Option<u64>,
        body: S,
        options: CallOptions,
    ) -> Result<Response, ClientError>
    where
        S: Body<Data = Bytes> + Unpin,
        S::Error: fmt::Display,
    {
        let connection = Box::pin(self.dial(options.connect)).await?;
        let kind = length.map_or(BodyLength::Chunked, BodyLength::Known);
        self.exchange(connection, head, kind, (Bytes::new(), BodySource::new(body, length)), options).await
    }

    fn defaults(&self) -> CallOptions {
        CallOptions { connect: self.settings.connect, sent: || {} }
    }

    async fn dial(&self, within: Duration) -> Result<Connection, ClientError> {
        let opened = tokio::time::timeout(within, self.endpoint.dial.open()).await;
        let stream = opened.map_err(|_| ClientError::ConnectTimeout(within))?.map_err(ClientError::Connect)?;
        Ok(Connection { stream, head: Vec::new() })
    }

    /// The connection that was used last, if it is still good: the others then have a chance to grow old.
    fn take_idle(&self) -> Option<Connection> {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        while let Some(last) = idle.pop() {
            if last.until > now && !last.connection.stream.is_stale() {
                return Some(last.connection);
            }
        }
        None
    }

    pub(super) fn put_back(&self, connection: Connection, keep_alive: KeepAlive) {
        let for_long = match keep_alive {
            KeepAlive::Close => return,
            KeepAlive::Yes => self.settings.idle,
            // A second less than the engine says: it counts from its own last byte.
            KeepAlive::For(engine) => engine.saturating_sub(Duration::from_secs(1)).min(self.settings.idle),
        };
        let now = Instant::now();
        let mut idle = self.idle.lock();
        let old = idle.iter().take_while(|idle| idle.until <= now).count();
        let over = (idle.len() + 1).saturating_sub(self.settings.idle_max);
        let gone = old.max(over).min(idle.len());
        idle.drain(..gone);
        if self.settings.idle_max > 0 && !for_long.is_zero() {
            idle.push(Idle { connection, until: now + for_long });
        }
    }

    async fn exchange<S: Source>(
        self: &Arc<Self>,
        mut connection: Connection,
        head: Head<'_>,
        length: BodyLength,
        (body, source): (Bytes, S),
        options: CallOptions,
    ) -> Result<Response, ClientError> {
        let mut lead = std::mem::take(&mut connection.head);
        write_request(&mut lead, &head, &self.endpoint.fixed, length)?;
        let mut sending = Sending::new(lead, body, source);
        let mut reading = Reading::new(head.method);
        let mut has_told = false;
        let found = std::future::poll_fn(|cx| {
            let polled = exchange::poll(&mut connection.stream, &mut sending, &mut reading, cx);
            if !has_told && sending.is_done() {
                has_told = true;
                (options.sent)();
            }
            polled
        })
        .await?;
        let keep_alive = if sending.is_done() { found.head.keep_alive } else { KeepAlive::Close };
        connection.head = sending.into_lead();
        let body = ResponseBody::new(connection, Arc::clone(self), &found, keep_alive);
        Ok(Response { head: found.head, body })
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("endpoint", &self.endpoint).field("idle", &self.idle_count()).finish()
    }
}
