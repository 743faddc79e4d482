//! Engines under TLS.

use std::sync::Arc;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_engine::client::tls::{self, TlsError};
use tidegate_engine::client::{ClientError, Endpoint, EndpointError, Head, Pool, PoolSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An authority's certificate, and a server certificate and key that it signed for this name.
fn certificates(name: &str) -> (String, String, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    (authority.pem(), server.pem(), key.serialize_pem())
}

fn acceptor(certificate: &str, key: &str) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Answers two requests on one connection; a stream in two writes for the second.
async fn serve(listener: &TcpListener, acceptor: &TlsAcceptor) -> Result<(), std::io::Error> {
    let (socket, _) = listener.accept().await?;
    let mut stream = acceptor.accept(socket).await?;
    for parts in [
        &["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"][..],
        &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n", "3\r\ntwo\r\n0\r\n\r\n"][..],
    ] {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n{\"body\":1}") {
            seen.push(stream.read_u8().await?);
        }
        for part in parts {
            stream.write_all(part.as_bytes()).await?;
            stream.flush().await?;
        }
    }
    Ok(())
}

fn pool_for(listener: &TcpListener, host: &str, authority: &str) -> Arc<Pool> {
    let config = tls::config(authority.as_bytes()).unwrap();
    let url = format!("https://{host}:{}", listener.local_addr().unwrap().port());
    Pool::new(Endpoint::parse(&url, None, Some(&config)).unwrap(), PoolSettings::default())
}

#[tokio::test]
async fn an_engine_under_tls_is_asked_over_one_connection() {
    let (authority, certificate, key) = certificates("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = pool_for(&listener, "localhost", &authority);
    let acceptor = acceptor(&certificate, &key);
    let asked = async {
        let body = Bytes::from_static(b"{\"body\":1}");
        let first = pool.send(Head::post_json("/a"), body.clone()).await.unwrap();
        assert_eq!(first.body.collect(2).await.unwrap(), "{}");
        assert_eq!(pool.idle_count(), 1);
        let second = pool.send(Head::post_json("/b"), body).await.unwrap();
        assert_eq!(second.body.collect(6).await.unwrap(), "onetwo");
    };
    let (served, ()) = tokio::join!(serve(&listener, &acceptor), asked);
    served.unwrap();
}

#[tokio::test]
async fn an_engine_with_another_name_or_authority_is_not_asked() {
    let (authority, certificate, key) = certificates("localhost");
    let (other_authority, ..) = certificates("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let acceptor = acceptor(&certificate, &key);
    for (host, authority) in [("127.0.0.1", &authority), ("localhost", &other_authority)] {
        let pool = pool_for(&listener, host, authority);
        let (served, asked) = tokio::join!(
            serve(&listener, &acceptor),
            pool.send(Head::post_json("/a"), Bytes::from_static(b"{\"body\":1}"))
        );
        assert!(matches!(asked.unwrap_err(), ClientError::Connect(_)), "{host}");
        assert!(served.is_err());
    }
}

#[test]
fn a_bundle_without_a_certificate_is_refused() {
    for junk in ["", "no pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(matches!(tls::config(junk.as_bytes()), Err(TlsError::Bundle(_))), "{junk}");
    }
    let (authority, ..) = certificates("localhost");
    let config = tls::config(authority.as_bytes()).unwrap();
    for url in ["https://a b", "https://-.", "https://a/x"] {
        assert_eq!(Endpoint::parse(url, None, Some(&config)).unwrap_err(), EndpointError::Authority, "{url}");
    }
}

/// Probes run on a runtime of several threads.
#[test]
fn an_exchange_may_move_between_threads() {
    fn is_send<T: Send>(_: T) {}
    let endpoint = Endpoint::parse("http://127.0.0.1:1", None, None).unwrap();
    let pool = Pool::new(endpoint, PoolSettings::default());
    is_send(pool.send(Head::get("/"), Bytes::new()));
    is_send(tidegate_engine::scrape::scrape(&pool, tidegate_engine::Dialect::Vllm));
}
