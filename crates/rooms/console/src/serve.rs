//! Serving the router on connections whose cost is bounded: their number, the time a request's head may take (and an
//! idle connection may wait for its next), and the bytes that are held of it.

use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// Connections of one listener at once; more wait in the kernel's backlog until one of these ends.
pub const CONNECTIONS_MAX: usize = 256;
/// Longest time from the end of the answer before (or the connection's beginning) to the end of a request's head; then
/// the connection is closed.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes buffered of a connection: a request whose head is longer is refused.
pub const HEAD_MAX: usize = 32 * 1024;

/// The address at the other end of a connection.
pub trait Peer {
    /// Its IP address, if it has one.
    fn ip(&self) -> Option<IpAddr>;
}

impl Peer for std::net::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        Some(Self::ip(self))
    }
}

impl Peer for tokio::net::unix::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        None
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerIp(pub(crate) IpAddr);

/// Serves a router on a listener until the future is dropped, which ends its connections too.
///
/// # Errors
/// None today: a listener waits and tries again by itself.
pub async fn serve<L>(mut listener: L, router: Router) -> std::io::Result<()>
where
    L: Listener,
    L::Addr: Peer,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, peer) = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                connections.spawn(serve_peer(stream, peer.ip(), router.clone()));
            }
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "an admin connection ended in a panic");
                }
            }
        }
    }
}

/// Serves one connection from this process.
pub async fn serve_one<S>(stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    serve_peer(stream, None, router).await;
}

async fn serve_peer<S>(stream: S, peer: Option<IpAddr>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(PeerIp(peer));
        }
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .half_close(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "an admin connection broke off");
    }
}
