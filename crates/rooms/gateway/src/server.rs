//! Sockets: one listener, one single-threaded runtime and one set of connections per core.
//!
//! A connection stays on the core that accepted it, so nothing it does wakes another core. HTTP/2 is spoken by ALPN
//! under TLS and by prior knowledge in the clear; there is no upgrade.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::caller_body::CallerBody;
use crate::core::Core;
use crate::{http1, path};

/// From accept to the last byte of the first request head, and for every later head on the same connection.
pub const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of one request head over HTTP/1.1.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Streams of one HTTP/2 connection.
pub const H2_STREAMS_MAX: u32 = 128;
/// Streams of one HTTP/2 connection that were reset before we came to them; one more ends it.
pub const H2_RESETS_MAX: usize = 20;
/// Header list of one HTTP/2 request, decompressed, as RFC 9113 counts it.
pub const H2_HEADER_LIST_MAX: u32 = 16 * 1024;
/// A silent HTTP/2 peer is asked after this time whether it is there, and has as long to answer.
pub const H2_PING: Duration = Duration::from_secs(20);
/// Connections of one core; more wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 16 * 1024;

/// What a connection knows about its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// When its connection was accepted.
    pub(crate) since: Instant,
}

impl Peer {
    /// A peer whose connection was accepted now.
    pub(crate) fn now(address: SocketAddr) -> Self {
        Self { address, since: Instant::now() }
    }
}

/// Binds one listener per core to the same address.
///
/// # Errors
/// The address is in use or not ours.
pub fn bind(listen: SocketAddr, cores: usize) -> io::Result<Vec<StdListener>> {
    refuse_shared(listen)?;
    let first = bind_one(listen)?;
    let listen = first.local_addr()?;
    let rest = (1..cores).map(|_| bind_one(listen));
    std::iter::once(Ok(first)).chain(rest).collect()
}

/// A port that is shared among our cores would be shared with another process of ours too, and each would answer some
/// of the other's callers. A socket that does not share finds out.
fn refuse_shared(listen: SocketAddr) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(listen), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&listen.into())
}

fn bind_one(listen: SocketAddr) -> io::Result<StdListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(listen), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    socket.listen(4_096)?;
    Ok(socket.into())
}

/// Accepts connections until `drain` says so, then lets what runs finish within `drain_timeout`.
pub(crate) async fn serve(
    core: Rc<Core>,
    listener: StdListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    mut drain: watch::Receiver<bool>,
    drain_timeout: Duration,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let tls = tls.map(TlsAcceptor::from);
    let mut connections = JoinSet::new();
    while !*drain.borrow() {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, address)) => {
                    let (core, tls, drain) = (Rc::clone(&core), tls.clone(), drain.clone());
                    connections.spawn_local(connection(core, stream, Peer::now(address), tls, drain));
                }
                Err(error) => refused_accept(&error).await,
            },
            Some(_) = connections.join_next() => {}
            _ = drain.changed() => {}
        }
    }
    drop(listener);
    let all_done = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain_timeout, all_done).await.is_err() {
        tracing::warn!(open = connections.len(), "drain timeout passed, closing what is left");
        connections.shutdown().await;
    }
    Ok(())
}

/// Out of file descriptors and the like: accepting again at once would spin.
async fn refused_accept(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn connection(
    core: Rc<Core>,
    stream: TcpStream,
    peer: Peer,
    tls: Option<TlsAcceptor>,
    drain: watch::Receiver<bool>,
) {
    // Failure to set an option leaves a slower connection, not a broken one.
    let _ = stream.set_nodelay(true);
    match tls {
        None => {
            let Ok(Some(h2)) = tokio::time::timeout(HEADER_DEADLINE, starts_with_h2_preface(&stream)).await else {
                return;
            };
            speak(core, stream, peer, h2, drain).await;
        }
        Some(tls) => {
            let Ok(Ok(stream)) = tokio::time::timeout(HEADER_DEADLINE, tls.accept(stream)).await else {
                return;
            };
            let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            speak(core, stream, peer, h2, drain).await;
        }
    }
}

/// Looks at the first bytes without taking them. HTTP/2's preface starts with `PRI `; no HTTP/1 method does. `None`
/// when the peer left before it sent anything.
async fn starts_with_h2_preface(stream: &TcpStream) -> Option<bool> {
    let mut start = [0; 4];
    match stream.peek(&mut start).await {
        Ok(0) | Err(_) => None,
        Ok(len) => Some(len >= 2 && b"PRI ".starts_with(&start[..len])),
    }
}

pub(crate) async fn speak<I>(core: Rc<Core>, io: I, peer: Peer, h2: bool, drain: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let _open = Open::new(&core);
    if h2 {
        // On the heap: few connections need it, and each would hold room for it.
        Box::pin(speak_http2(core, io, peer, drain)).await;
    } else {
        http1::serve(core, io, peer, drain).await;
    }
}

async fn speak_http2<I>(core: Rc<Core>, io: I, peer: Peer, drain: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let begun = Rc::new(Cell::new(false));
    let first = first_request(peer.since, Rc::clone(&begun));
    let service = service_fn(move |request: Request<Incoming>| {
        begun.set(true);
        // On the heap: hyper moves the future about, and a request's whole path is several kilobytes.
        let running = Box::pin(path::serve(&core, peer, request.map(CallerBody::Incoming)));
        async move { Ok::<_, Infallible>(running.await) }
    });
    let connection = http2_builder().serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = first => return,
        () = drained(drain) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Ends when the first request head of an HTTP/2 connection is overdue: hyper has no timer for it.
async fn first_request(since: Instant, begun: Rc<Cell<bool>>) {
    tokio::time::sleep_until(since + HEADER_DEADLINE).await;
    if begun.get() {
        std::future::pending::<()>().await;
    }
}

/// A connection, as the gauge counts it.
struct Open(Rc<Core>);

impl Open {
    fn new(core: &Rc<Core>) -> Self {
        core.shared.metrics.connections.inc();
        Self(Rc::clone(core))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shared.metrics.connections.dec();
    }
}

async fn drained(mut drain: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a drain too.
    let _ = drain.wait_for(|draining| *draining).await;
}

fn http2_builder() -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_pending_accept_reset_streams(H2_RESETS_MAX)
        .max_header_list_size(H2_HEADER_LIST_MAX)
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PING);
    builder
}

/// Runs a connection's streams on the connection's own core.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F> Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        // Owned by the connection: hyper ends its streams when the connection ends.
        tokio::task::spawn_local(future);
    }
}
