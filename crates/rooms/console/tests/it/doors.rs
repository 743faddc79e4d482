//! Who gets in, and what a connection may cost.

use std::net::SocketAddr;

use axum::serve::Listener;
use tidegate_console::{CONNECTIONS_MAX, HEAD_MAX, HEAD_TIMEOUT, Trust, serve};
use tidegate_identity::throttle::FAILURES_BURST;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::desk::{Desk, exchange, read_answer};

/// A listener in memory, so that the clock can be paused.
struct Memory(mpsc::Receiver<(DuplexStream, SocketAddr)>);

impl Listener for Memory {
    type Io = DuplexStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (DuplexStream, SocketAddr) {
        match self.0.recv().await {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(SocketAddr::from(([0, 0, 0, 0], 0)))
    }
}

struct Port {
    connections: mpsc::Sender<(DuplexStream, SocketAddr)>,
    _server: JoinSet<std::io::Result<()>>,
}

impl Port {
    fn open(desk: &Desk, trust: Trust) -> Self {
        let (connections, listener) = mpsc::channel(2 * CONNECTIONS_MAX);
        let mut server = JoinSet::new();
        server.spawn(serve(Memory(listener), desk.console.clone().router(trust)));
        Self { connections, _server: server }
    }

    async fn connect(&self, peer: u8) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(128 * 1024);
        self.connections.send((theirs, SocketAddr::from(([10, 0, 0, peer], 1)))).await.unwrap();
        ours
    }
}

async fn admin_key(desk: &Desk) -> String {
    let made = desk.ask("POST", "/admin/v1/keys", r#"{"admin":true}"#).await.json();
    made["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn unknown_paths_of_the_admin_port_need_a_key_too() {
    let desk = Desk::new().await;
    let key = admin_key(&desk).await;
    let port = Port::open(&desk, Trust::AdminKey);
    for (peer, path) in (1..).zip(["/admin/v1/nothing", "/nothing", "/", "/admin/v1/keys/aaaaaaaa/nothing"]) {
        let without = exchange(port.connect(peer).await, "GET", path, None, "").await;
        assert_eq!(without.status, 401, "{path}");
        let with = exchange(port.connect(peer).await, "GET", path, Some(&key), "").await;
        assert_eq!(with.status, 404, "{path}");
    }
    let without = exchange(port.connect(9).await, "DELETE", "/admin/v1/keys", None, "").await;
    let with = exchange(port.connect(9).await, "DELETE", "/admin/v1/keys", Some(&key), "").await;
    assert_eq!((without.status, with.status), (401, 405));
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(exchange(port.connect(9).await, "GET", path, None, "").await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_peer_that_guesses_admin_keys_is_answered_429_and_others_are_not() {
    let desk = Desk::new().await;
    let key = admin_key(&desk).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, desk.console.clone().router(Trust::AdminKey)));
    let ask = async |key: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        exchange(stream, "GET", "/admin/v1/status", Some(key), "").await.status
    };
    assert_eq!(ask("guess").await, 401);
    // Failures are forgiven as time passes: on a slow machine it takes some more than a burst.
    let mut failures = 1;
    while ask("guess").await == 401 {
        failures += 1;
    }
    assert!(failures >= FAILURES_BURST, "{failures}");
    assert_eq!(ask(&key).await, 200, "a good key from the same address passes");
    let port = Port::open(&desk, Trust::AdminKey);
    let other = exchange(port.connect(1).await, "GET", "/admin/v1/status", Some("guess"), "").await;
    assert_eq!(other.status, 401);
}

#[tokio::test]
async fn failures_of_one_peer_are_not_another_peers() {
    let desk = Desk::new().await;
    let port = Port::open(&desk, Trust::AdminKey);
    let ask = async |peer| exchange(port.connect(peer).await, "GET", "/admin/v1/status", None, "").await.status;
    while ask(1).await == 401 {}
    assert_eq!(ask(1).await, 429);
    assert_eq!(ask(2).await, 401);
}

#[tokio::test]
async fn the_owners_socket_needs_no_key() {
    let desk = Desk::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let mut server = JoinSet::new();
    server.spawn(serve(UnixListener::bind(&path).unwrap(), desk.console.clone().router(Trust::Owner)));
    let stream = UnixStream::connect(&path).await.unwrap();
    assert_eq!(exchange(stream, "GET", "/admin/v1/status", None, "").await.status, 200);
}

#[tokio::test]
async fn a_connection_that_sends_no_whole_head_is_closed_in_time() {
    let desk = Desk::new().await;
    tokio::time::pause();
    for sent in ["", "GET /livez HTTP/1.1\r\nhost: ad", "GET /livez HTTP/1.1\r\nhost: admin\r\n\r\n"] {
        let port = Port::open(&desk, Trust::AdminKey);
        let mut stream = port.connect(1).await;
        let since = Instant::now();
        stream.write_all(sent.as_bytes()).await.unwrap();
        // An answer, if the head was whole; then the connection waits idle, and ends by itself.
        let _ = read_answer(stream).await;
        assert_eq!(since.elapsed().as_secs(), HEAD_TIMEOUT.as_secs(), "{sent:?}");
    }
}

#[tokio::test]
async fn a_head_longer_than_its_bound_is_refused() {
    let desk = Desk::new().await;
    let port = Port::open(&desk, Trust::AdminKey);
    let head = |bytes: usize| {
        let head = "GET /livez HTTP/1.1\r\nhost: admin\r\nconnection: close\r\nx: \r\n\r\n";
        head.replace("x: ", &format!("x: {}", "a".repeat(bytes - head.len())))
    };
    for (bytes, status) in [(HEAD_MAX - 1, 200), (2 * HEAD_MAX, 431)] {
        let mut stream = port.connect(1).await;
        stream.write_all(head(bytes).as_bytes()).await.unwrap();
        assert_eq!(read_answer(stream).await.status, status, "{bytes}");
    }
}

#[tokio::test]
async fn one_connection_more_than_the_bound_waits_until_another_ends() {
    let desk = Desk::new().await;
    let port = Port::open(&desk, Trust::AdminKey);
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = port.connect(1).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: admin\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        held.push(stream);
    }
    let waiting = port.connect(1).await;
    tokio::task::yield_now().await;
    assert_eq!(port.connections.max_capacity() - port.connections.capacity(), 1, "one is not accepted");
    drop(held.pop());
    let answer = exchange(waiting, "GET", "/livez", None, "").await;
    assert_eq!(answer.status, 200);
}
