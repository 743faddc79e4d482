//! What is asked is bounded.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_agent::{CONNECTIONS_MAX, HANDSHAKE_WITHIN, STREAMS_MAX};
use tidegate_node::wire::{HEADER_BYTES_MAX, KEPT_MAX, REASON_BYTES_MAX, REQUEST_BYTES_MAX};
use tidegate_node::{Node, NodeError};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::house::{House, Running};

/// A controller that sends what it likes.
struct Raw {
    sender: SendRequest<Full<Bytes>>,
    _tasks: JoinSet<()>,
}

impl Raw {
    async fn connect(house: &House, running: &Running) -> Self {
        let socket = TcpStream::connect(running.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("agent").unwrap();
        let stream = TlsConnector::from(house.client_tls().config()).connect(name, socket).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, driver) = handshake.await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async { drop(driver.await) });
        Self { sender, _tasks: tasks }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> (StatusCode, Bytes) {
        let mut sender = self.sender.clone();
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        (response.status(), response.into_body().collect().await.unwrap().to_bytes())
    }

    async fn ask(&self, method: &str, path: &str, body: impl Into<Bytes>) -> (StatusCode, Option<NodeError>) {
        let request = Request::builder().method(method).uri(format!("https://agent{path}"));
        let (status, body) = self.send(request.body(Full::new(body.into())).unwrap()).await;
        (status, serde_json::from_slice(&body).ok())
    }
}

#[tokio::test]
async fn a_body_is_read_up_to_its_bound_and_not_beyond() {
    let house = House::new();
    let running = house.run().await;
    let raw = Raw::connect(&house, &running).await;
    let mut body = br#"{"generation":1}"#.to_vec();
    body.resize(REQUEST_BYTES_MAX, b' ');
    let (status, _) = raw.ask("POST", "/v1/instances/a/forget", body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    body.push(b' ');
    let (status, fault) = raw.ask("POST", "/v1/instances/a/forget", body).await;
    assert_eq!((status, fault.unwrap().code()), (StatusCode::PAYLOAD_TOO_LARGE, "bad_request"));
    running.end_all().await;
}

#[tokio::test]
async fn headers_are_read_up_to_their_bound_and_not_beyond() {
    let house = House::new();
    let running = house.run().await;
    let raw = Raw::connect(&house, &running).await;
    // As HTTP/2 counts: each name, each value, and 32 for each field; those that every request has are of this length.
    let field = |name: &str, value: &str| name.len() + value.len() + 32;
    let others = field(":method", "GET") + field(":scheme", "https") + field(":authority", "agent");
    let others = others + field(":path", "/v1/facts") + field("x", "");
    let room = usize::try_from(HEADER_BYTES_MAX).unwrap() - others;
    let request = |bytes: usize| {
        let request = Request::builder().uri("https://agent/v1/facts").header("x", "a".repeat(bytes));
        request.body(Full::new(Bytes::new())).unwrap()
    };
    // Whether an empty body adds a length is the client's business.
    let slack = field("content-length", "0");
    assert_eq!(raw.send(request(room - slack)).await.0, StatusCode::OK);
    let mut sender = raw.sender.clone();
    sender.ready().await.unwrap();
    let refused = sender.send_request(request(room + 1)).await;
    assert!(
        refused.as_ref().map_or(true, |response| response.status() == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
        "{refused:?}"
    );
    running.end_all().await;
}

#[tokio::test]
async fn one_connection_has_so_many_requests_at_once_and_the_next_one_waits() {
    let house = House::new();
    let running = house.run().await;
    let raw = Raw::connect(&house, &running).await;
    // Streams of events: each stays until it is dropped.
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        let mut sender = raw.sender.clone();
        sender.ready().await.unwrap();
        let request = Request::builder().uri("https://agent/v1/events?after=18446744073709551615");
        streams.push(sender.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap());
    }
    let mut next = std::pin::pin!(raw.ask("GET", "/v1/facts", Bytes::new()));
    // Others are served meanwhile: it is this connection's own bound.
    let other = running.remote(&house);
    tokio::select! {
        biased;
        _ = &mut next => panic!("a request beyond the bound was served"),
        facts = other.facts() => drop(facts.unwrap()),
    }
    drop(streams.pop());
    assert_eq!(next.await.0, StatusCode::OK);
    running.end_all().await;
}

#[tokio::test]
async fn so_many_connections_are_served_and_the_next_one_waits() {
    let house = House::new();
    let running = house.run().await;
    let mut all = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        all.push(Raw::connect(&house, &running).await);
    }
    assert_eq!(all[0].ask("GET", "/v1/facts", Bytes::new()).await.0, StatusCode::OK);
    let mut next = Box::pin(Raw::connect(&house, &running));
    tokio::select! {
        biased;
        _ = &mut next => panic!("a connection beyond the bound was accepted"),
        answer = all[1].ask("GET", "/v1/facts", Bytes::new()) => assert_eq!(answer.0, StatusCode::OK),
    }
    drop(all.pop());
    assert_eq!(next.await.ask("GET", "/v1/facts", Bytes::new()).await.0, StatusCode::OK);
    running.end_all().await;
}

#[tokio::test]
async fn lists_and_reasons_are_bounded() {
    let house = House::new();
    let running = house.run().await;
    let raw = Raw::connect(&house, &running).await;
    let kept = |count: usize| {
        let keep = serde_json::json!({"path": "a/1", "why": "x"});
        serde_json::json!({"generation": 1, "kept": vec![keep; count]}).to_string()
    };
    assert_eq!(raw.ask("PUT", "/v1/models/kept", kept(KEPT_MAX)).await.0, StatusCode::OK);
    assert_eq!(raw.ask("PUT", "/v1/models/kept", kept(KEPT_MAX + 1)).await.0, StatusCode::BAD_REQUEST);
    let reason = |bytes: usize| serde_json::json!({"generation": 1, "reason": "x".repeat(bytes)}).to_string();
    assert_eq!(raw.ask("POST", "/v1/gpus/0/release", reason(REASON_BYTES_MAX)).await.0, StatusCode::OK);
    assert_eq!(raw.ask("POST", "/v1/gpus/0/release", reason(REASON_BYTES_MAX + 1)).await.0, StatusCode::BAD_REQUEST);
    running.end_all().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_reason() {
    let house = House::new();
    let running = house.run().await;
    let raw = Raw::connect(&house, &running).await;
    for (method, path, body, expected) in [
        ("GET", "/", "", 404),
        ("GET", "/v1/nothing", "", 404),
        ("DELETE", "/v1/facts", "", 404),
        ("GET", "/v1/events?after=x", "", 400),
        ("GET", "/v1/instances/A/log", "", 400),
        ("POST", "/v1/instances/a/eat", "{}", 404),
        ("POST", "/v1/instances/a/stop", "{", 400),
        ("POST", "/v1/instances/a/stop", r#"{"generation":-1,"patience_ms":0}"#, 400),
        ("POST", "/v1/instances/a/stop", r#"{"generation":1,"patience_ms":0,"more":1}"#, 400),
        ("POST", "/v1/instances/a/stop", r#"{"generation":1,"patience_ms":0}"#, 404),
        ("POST", "/v1/gpus/x/release", "{}", 400),
        ("PUT", "/v1/instances/a", "[[[[", 400),
    ] {
        let (status, fault) = raw.ask(method, path, body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path} {body}");
        assert!(fault.is_some(), "{method} {path} {body}");
    }
    running.end_all().await;
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_hung_up_on() {
    let house = House::new();
    let running = house.run().await;
    let mut socket = TcpStream::connect(running.address).await.unwrap();
    // Once the agent has it: the next one was accepted after it.
    running.remote(&house).facts().await.unwrap();
    tokio::time::pause();
    tokio::time::advance(HANDSHAKE_WITHIN).await;
    tokio::time::resume();
    assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0);
    running.end_all().await;
}
