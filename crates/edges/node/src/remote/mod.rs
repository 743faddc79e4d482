//! A node on another machine, through its agent: one HTTP/2 connection, kept alive, and dialled again when it is gone.

mod witness;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use self::witness::{Seen, Witness, tls_error};
use crate::facts::Facts;
use crate::fault::NodeError;
use crate::id::InstanceId;
use crate::order::{Keep, ModelOrder, StartOrder};
use crate::report::{Event, InstanceReport, LogPart, ModelReport, Proof};
use crate::seam::{EVENTS_WAIT, LOG_PART_MAX, Node};
use crate::tasks::{Owned, Tasks};
use crate::tls::{ClientTls, Stamp};
use crate::wire::{ANSWER_BYTES_MAX, EVENT_BYTES_MAX, HEADER_BYTES_MAX, Have, Kept, Release, Start, Stop, Told};

/// How long connecting may take, with the handshake.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// How long the answer to a start may take: its model is looked at, and its GPUs.
pub const START_WITHIN: Duration = Duration::from_secs(60);
/// How much longer than [`EVENTS_WAIT`] events may take.
const EVENTS_GRACE: Duration = Duration::from_secs(10);
/// How often an idle connection is tried, and how long the answer to that may take.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The certificates it was made with.
    stamp: Stamp,
    /// Why TLS ended it.
    seen: Seen,
}

/// A node on another machine, through its agent.
///
/// Whatever keeps an answer from coming is [`NodeError::Away`], after which a command may have been done or not; a
/// certificate that is not what it should be, on either side, is [`NodeError::Refused`].
pub struct RemoteNode {
    name: Arc<str>,
    address: Arc<str>,
    tls: ClientTls,
    connection: tokio::sync::Mutex<Option<Connection>>,
    tasks: Owned,
}

impl fmt::Debug for RemoteNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteNode").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

impl RemoteNode {
    /// The node whose agent is at `HOST:PORT`. Nothing is dialled yet.
    #[must_use]
    pub fn new(name: &str, address: &str, tls: ClientTls) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            tls,
            connection: tokio::sync::Mutex::default(),
            tasks: Arc::default(),
        }
    }

    fn away(&self, why: impl fmt::Display) -> NodeError {
        NodeError::Away { why: format!("agent of {} at {}: {why}", self.name, self.address) }
    }

    fn refused(&self, why: &rustls::Error) -> NodeError {
        NodeError::Refused { why: format!("agent of {} at {}: {why}", self.name, self.address) }
    }

    /// What went wrong, in the words of the first cause.
    fn fault(&self, error: &(dyn StdError + 'static)) -> NodeError {
        let mut first = error;
        while let Some(cause) = first.source() {
            first = cause;
        }
        self.away(first)
    }

    fn handshake_fault(&self, error: &io::Error) -> NodeError {
        let is_of_certificates = |tls: &&rustls::Error| {
            matches!(tls, rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
        };
        tls_error(error).filter(is_of_certificates).map_or_else(|| self.fault(error), |tls| self.refused(tls))
    }

    async fn dial(&self) -> Result<Connection, NodeError> {
        let (stamp, config) = self.tls.get();
        let socket = TcpStream::connect(&*self.address).await.map_err(|error| self.fault(&error))?;
        socket.set_nodelay(true).map_err(|error| self.fault(&error))?;
        // Whom we talk to stands in the certificate's URI; a host's name plays no part.
        let host = self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| self.fault(&error))?;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        let stream = stream.map_err(|error| self.handshake_fault(&error))?;
        let seen = Seen::default();
        let stream = Witness { inner: stream, seen: Arc::clone(&seen) };
        let tasks = Tasks::of(&self.tasks);
        let (sender, driver) = http2::Builder::new(tasks.clone())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true)
            .max_header_list_size(HEADER_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.fault(&error))?;
        hyper::rt::Executor::execute(&tasks, driver);
        Ok(Connection { sender, stamp, seen })
    }

    /// A connection, and whether it was made for us.
    async fn connection(&self) -> Result<(Connection, bool), NodeError> {
        let mut kept = self.connection.lock().await;
        let is_good = |kept: &Connection| !kept.sender.is_closed() && kept.stamp == self.tls.get().0;
        if let Some(kept) = kept.as_ref().filter(|kept| is_good(kept)) {
            return Ok((kept.clone(), false));
        }
        *kept = None;
        let dialled = timeout(CONNECT_WITHIN, self.dial()).await;
        let new = dialled.map_err(|_| self.away("no connection within 5 s"))??;
        *kept = Some(new.clone());
        Ok((new, true))
    }

    async fn send(&self, method: &Method, path: &str, body: &Bytes) -> Result<Response<Incoming>, NodeError> {
        loop {
            let (mut connection, is_new) = self.connection().await?;
            let request = Request::builder()
                .method(method)
                .uri(format!("https://agent{path}"))
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(Full::new(body.clone()))
                .map_err(|error| NodeError::bad(error.to_string()))?;
            let sent = match connection.sender.ready().await {
                Ok(()) => connection.sender.send_request(request).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(response) => return Ok(response),
                // Every command may be repeated; an old connection may have ended long before it was used.
                Err(_) if !is_new => drop(self.connection.lock().await.take()),
                Err(error) => return Err(self.lost(&connection, &error)),
            }
        }
    }

    /// Why nothing came over a connection. With TLS 1.3 an agent refuses our certificate only after the handshake.
    fn lost(&self, connection: &Connection, error: &hyper::Error) -> NodeError {
        let refusal = connection.seen.get().filter(|tls| matches!(tls, rustls::Error::AlertReceived(_)));
        refusal.map_or_else(|| self.fault(error), |tls| self.refused(tls))
    }

    /// Asks, and reads the whole answer.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        within: Duration,
    ) -> Result<T, NodeError> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| NodeError::bad(error.to_string()))?,
            None => Vec::new(),
        };
        let asked = async {
            let response = self.send(&method, path, &Bytes::from(body)).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| self.fault(&*error))?.to_bytes();
            if status.is_success() {
                serde_json::from_slice(&body).map_err(|error| self.away(format!("no answer of an agent: {error}")))
            } else {
                Err(self.refusal(status, &body))
            }
        };
        let limit = || Err(self.away(format!("no answer within {} s", within.as_secs())));
        timeout(within, asked).await.unwrap_or_else(|_| limit())
    }

    fn refusal(&self, status: http::StatusCode, body: &[u8]) -> NodeError {
        serde_json::from_slice(body).unwrap_or_else(|_| self.away(format!("answered {status}")))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, NodeError> {
        self.call(Method::GET, path, None::<&()>, ANSWER_WITHIN).await
    }

    async fn first_events(&self, after: u64) -> Result<Vec<Event>, NodeError> {
        let response = self.send(&Method::GET, &format!("/v1/events?after={after}"), &Bytes::new()).await?;
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| self.fault(&*error))?.to_bytes();
            return Err(self.refusal(status, &body));
        }
        let mut body = response.into_body();
        let mut text: Vec<u8> = Vec::new();
        loop {
            let frame = body.frame().await.ok_or_else(|| self.away("the agent ends"))?;
            let Ok(data) = frame.map_err(|error| self.fault(&error))?.into_data() else { continue };
            text.extend_from_slice(&data);
            // What comes after the last whole line is asked for again by the next call.
            if let Some(end) = text.iter().rposition(|byte| *byte == b'\n') {
                let lines = text.get(..end).unwrap_or_default().split(|byte| *byte == b'\n');
                let events: Result<Vec<Event>, _> =
                    lines.filter(|line| !line.is_empty()).map(serde_json::from_slice).collect();
                return events.map_err(|error| self.away(format!("no event: {error}")));
            }
            if text.len() > EVENT_BYTES_MAX {
                return Err(self.away("an event is longer than 1 MiB"));
            }
        }
    }
}

#[async_trait]
impl Node for RemoteNode {
    async fn facts(&self) -> Result<Facts, NodeError> {
        self.get("/v1/facts").await
    }

    async fn instances(&self) -> Result<Vec<InstanceReport>, NodeError> {
        self.get("/v1/instances").await
    }

    async fn start(&self, generation: u64, order: StartOrder) -> Result<InstanceReport, NodeError> {
        let path = format!("/v1/instances/{}", order.instance);
        self.call(Method::PUT, &path, Some(&Start { generation, order }), START_WITHIN).await
    }

    async fn stop(&self, generation: u64, instance: &InstanceId, patience: Duration) -> Result<(), NodeError> {
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let path = format!("/v1/instances/{instance}/stop");
        self.call(Method::POST, &path, Some(&Stop { generation, patience_ms }), ANSWER_WITHIN).await
    }

    async fn prove(&self, generation: u64, instance: &InstanceId) -> Result<Proof, NodeError> {
        let path = format!("/v1/instances/{instance}/prove");
        self.call(Method::POST, &path, Some(&Told { generation }), ANSWER_WITHIN).await
    }

    async fn forget(&self, generation: u64, instance: &InstanceId) -> Result<(), NodeError> {
        let path = format!("/v1/instances/{instance}/forget");
        self.call(Method::POST, &path, Some(&Told { generation }), ANSWER_WITHIN).await
    }

    async fn log(&self, instance: &InstanceId, from: u64, bytes_max: u32) -> Result<LogPart, NodeError> {
        let max = bytes_max.min(LOG_PART_MAX);
        self.get(&format!("/v1/instances/{instance}/log?from={from}&max={max}")).await
    }

    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        self.get("/v1/models").await
    }

    async fn have(&self, generation: u64, order: ModelOrder) -> Result<ModelReport, NodeError> {
        self.call(Method::POST, "/v1/models/have", Some(&Have { generation, order }), ANSWER_WITHIN).await
    }

    async fn keep(&self, generation: u64, kept: Vec<Keep>) -> Result<(), NodeError> {
        self.call(Method::PUT, "/v1/models/kept", Some(&Kept { generation, kept }), ANSWER_WITHIN).await
    }

    async fn release(&self, generation: u64, gpu: u32, reason: &str) -> Result<(), NodeError> {
        let body = Release { generation, reason: reason.to_owned() };
        self.call(Method::POST, &format!("/v1/gpus/{gpu}/release"), Some(&body), ANSWER_WITHIN).await
    }

    async fn events(&self, after: u64) -> Result<Vec<Event>, NodeError> {
        let limit = EVENTS_WAIT + EVENTS_GRACE;
        let asked = timeout(limit, self.first_events(after)).await;
        asked.unwrap_or_else(|_| Err(self.away(format!("no answer within {} s", limit.as_secs()))))
    }
}
