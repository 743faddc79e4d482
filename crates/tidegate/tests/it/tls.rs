//! The gate under TLS: HTTP/1.1 and HTTP/2 by ALPN.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tidegate_testkit::fake::Script;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::gate::Gate;

const CHAT: &str = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":16}"#;

/// A gate that speaks TLS, and what its callers have to believe.
fn under_tls() -> (Gate, rustls::RootCertStore) {
    let mut gate = Gate::start(Script::vllm("tiny"));
    let made = rcgen::generate_simple_self_signed(["gate.test".to_owned()]).unwrap();
    let (cert, key) = (gate.folder.path().join("tls.crt"), gate.folder.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = format!("tls: {{cert: {{fromFile: {}}}, key: {{fromFile: {}}}}}", cert.display(), key.display());
    let text = std::fs::read_to_string(gate.documents()).unwrap();
    std::fs::write(gate.documents(), text.replace("workers: 2", &format!("{tls}, workers: 2"))).unwrap();
    assert!(gate.stop().success());
    gate.start_again();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    (gate, roots)
}

async fn connect(gate: &Gate, roots: rustls::RootCertStore, protocol: &[u8]) -> TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(gate.address).await.unwrap();
    let name = ServerName::try_from("gate.test").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
    stream
}

fn chat(uri: &str, key: &str) -> Request<Full<Bytes>> {
    let request = Request::post(uri).header("authorization", format!("Bearer {key}"));
    let request = if uri.starts_with('/') { request.header("host", "gate.test") } else { request };
    request.body(Full::new(Bytes::from_static(CHAT.as_bytes()))).unwrap()
}

#[test]
fn a_chat_is_answered_over_http_1_under_tls() {
    let (gate, roots) = under_tls();
    let key = gate.key();
    gate.wait(async {
        let stream = connect(&gate, roots, b"http/1.1").await;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let answer = sender.send_request(chat("/v1/chat/completions", &key)).await.unwrap();
        assert_eq!(answer.status(), 200);
    });
}

#[test]
fn a_chat_is_answered_over_http_2_when_the_caller_asks_for_it() {
    let (gate, roots) = under_tls();
    let key = gate.key();
    gate.wait(async {
        let stream = connect(&gate, roots, b"h2").await;
        let executor = TokioExecutor::new();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let request = chat("https://gate.test/v1/chat/completions", &key);
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("Hello from the fake engine."));
    });
}
