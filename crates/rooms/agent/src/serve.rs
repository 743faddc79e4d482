//! Connections: accepted, shown a certificate, served and ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_node::Node;
use tidegate_node::tasks::{Owned, Tasks};
use tidegate_node::tls::ServerTls;
use tidegate_node::wire::HEADER_BYTES_MAX;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::routes::answer;

/// Most connections at once; further ones wait to be accepted. A site has one controller at work, and one that waits.
pub const CONNECTIONS_MAX: usize = 64;
/// Most requests at once of one connection; the next waits.
pub const STREAMS_MAX: u32 = 128;
/// How long a handshake may take.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, a peer that is refused is listened to so that it can read why.
pub const LINGER_WITHIN: Duration = Duration::from_secs(1);
/// See [`LINGER_WITHIN`].
pub const LINGER_BYTES_MAX: u64 = 64 * 1024;
/// How long a request's body may take.
pub const BODY_WITHIN: Duration = Duration::from_secs(30);
/// How long a connection is served before it is asked to come again: its certificate may be another by then.
pub const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3_600);
/// How long what was begun has when the agent ends.
pub const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// How often an idle connection is tried, and how long the answer to that may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long nothing is accepted after accepting has failed: no file descriptor is free, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A node for controllers on other machines.
#[derive(Debug)]
pub struct Agent {
    node: Arc<dyn Node>,
    tls: ServerTls,
}

impl Agent {
    /// This node, for whom these certificates let in.
    #[must_use]
    pub fn new(node: Arc<dyn Node>, tls: ServerTls) -> Self {
        Self { node, tls }
    }

    /// Serves until `stop`; what was begun then has [`DRAIN_WITHIN`]. The node and its engines are left as they are.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (stopping, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let accept = async {
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
                while connections.try_join_next().is_some() {}
                match listener.accept().await {
                    Ok((socket, from)) => {
                        let acceptor = TlsAcceptor::from(self.tls.config());
                        let (node, stopped) = (Arc::clone(&self.node), stopped.clone());
                        connections.spawn(async move {
                            if let Err(why) = connection(socket, acceptor, node, stopped).await {
                                tracing::warn!(%from, why, "a connection to the agent failed");
                            }
                            drop(place);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = stop => {}
        }
        stopping.send_replace(true);
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        drop(timeout(DRAIN_WITHIN, all).await);
        connections.shutdown().await;
    }
}

/// Lets a peer that is refused read why: closing while it still sends would take the alert away from it.
async fn linger(mut socket: TcpStream) {
    let _ = socket.shutdown().await;
    let mut left = socket.take(LINGER_BYTES_MAX);
    drop(timeout(LINGER_WITHIN, copy(&mut left, &mut sink())).await);
}

async fn connection(
    socket: TcpStream,
    acceptor: TlsAcceptor,
    node: Arc<dyn Node>,
    stopped: watch::Receiver<bool>,
) -> Result<(), String> {
    let _ = socket.set_nodelay(true);
    let shaken = timeout(HANDSHAKE_WITHIN, acceptor.accept(socket).into_fallible()).await;
    let stream = match shaken.map_err(|_| "no handshake in time".to_owned())? {
        Ok(stream) => stream,
        Err((error, socket)) => {
            linger(socket).await;
            return Err(error.to_string());
        }
    };
    let tasks = Owned::default();
    let (ending, mut ended) = (stopped.clone(), stopped);
    let service = service_fn(move |request| {
        let (node, ending) = (Arc::clone(&node), ending.clone());
        async move { Ok::<_, Infallible>(answer(node, request, ending).await) }
    });
    let mut served = std::pin::pin!(
        http2::Builder::new(Tasks::of(&tasks))
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        outcome = &mut served => return outcome.map_err(|error| error.to_string()),
        _ = ended.wait_for(|ended| *ended) => {}
        () = sleep(CONNECTION_AGE_MAX) => {}
    }
    served.as_mut().graceful_shutdown();
    served.await.map_err(|error| error.to_string())
}
