//! Who is let in, and who is believed.

use std::fs;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use tidegate_node::tls::{ClientTls, PEM_BYTES_MAX, Party, ServerTls, TlsError};
use tidegate_node::{Node, NodeError, RemoteNode};
use tokio::io::AsyncReadExt as _;
use tokio_rustls::TlsConnector;

use crate::house::{House, NODE, Pki, SITE, controller, node};

fn is_refused<T: std::fmt::Debug>(answer: Result<T, NodeError>) {
    assert!(matches!(answer, Err(NodeError::Refused { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_node_is_not_let_in_as_a_controller() {
    let house = House::new();
    let running = house.run().await;
    house.pki.issue("node-2", &node("node-2"));
    // The client's own check is got round by files that change under it.
    fs::copy(house.pki.folder.join("controller.pem"), house.pki.folder.join("kept.pem")).unwrap();
    let error = ClientTls::new(house.pki.files("node-2"), SITE, NODE).unwrap_err();
    assert!(matches!(error, TlsError::Another { .. }), "{error}");
    let outcome = raw(&running.address.to_string(), &house.pki, "node-2").await;
    assert!(outcome.contains("CertificateUnknown") || outcome.contains("BadCertificate"), "{outcome}");
    running.local.facts().await.unwrap();
    running.end_all().await;
}

/// Connects with whatever certificate, reads, and says what came of it.
async fn raw(address: &str, pki: &Pki, stem: &str) -> String {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let files = pki.files(stem);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(std::sync::Arc::new(Anybody))
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(&files.cert).unwrap()],
            PrivateKeyDer::from_pem_file(&files.key).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("agent").unwrap();
    let mut stream = TlsConnector::from(std::sync::Arc::new(config)).connect(name, socket).await.unwrap();
    let mut read = Vec::new();
    match stream.read_to_end(&mut read).await {
        Ok(_) => format!("answered {} bytes", read.len()),
        Err(error) => format!("{error:?}"),
    }
}

#[derive(Debug)]
struct Anybody;

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test]
async fn an_agent_of_another_node_is_not_believed_though_it_has_the_address() {
    let house = House::new();
    let running = house.run().await;
    let tls = ClientTls::new(house.pki.files("controller"), SITE, "node-2").unwrap();
    is_refused(RemoteNode::new("node-2", &running.address.to_string(), tls).facts().await);
    running.end_all().await;
}

#[tokio::test]
async fn another_authority_is_believed_by_neither_side() {
    let house = House::new();
    let running = house.run().await;
    let other = Pki::new(house.path().join("other"));
    let tls = ClientTls::new(other.files("controller"), SITE, NODE).unwrap();
    is_refused(RemoteNode::new(NODE, &running.address.to_string(), tls).facts().await);
    // The controller believes the agent, but not the agent the controller.
    fs::copy(house.pki.folder.join("ca.pem"), other.folder.join("ca.pem")).unwrap();
    let tls = ClientTls::new(other.files("controller"), SITE, NODE).unwrap();
    is_refused(RemoteNode::new(NODE, &running.address.to_string(), tls).facts().await);
    running.end_all().await;
}

#[tokio::test]
async fn the_controller_of_another_site_is_refused() {
    let house = House::new();
    let running = house.run().await;
    house.pki.issue("elsewhere", &Party::Controller { site: "paris".into() });
    let outcome = raw(&running.address.to_string(), &house.pki, "elsewhere").await;
    assert!(outcome.contains("AlertReceived"), "{outcome}");
    running.end_all().await;
}

#[tokio::test]
async fn renewed_certificates_are_taken_without_a_restart_and_broken_ones_are_not() {
    let house = House::new();
    let running = house.run().await;
    let remote = running.remote(&house);
    remote.facts().await.unwrap();
    // Everything anew, under another authority.
    Pki::new(house.pki.folder.clone());
    remote.facts().await.unwrap();
    // A file that is half written leaves the last in force.
    fs::write(house.pki.folder.join("controller.pem"), "-----BEGIN").unwrap();
    fs::write(house.pki.folder.join(format!("{NODE}.key")), "").unwrap();
    remote.facts().await.unwrap();
    running.end_all().await;
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let house = House::new();
    let running = house.run().await;
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(std::sync::Arc::new(Anybody))
        .with_no_client_auth();
    let socket = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("agent").unwrap();
    let mut stream = TlsConnector::from(std::sync::Arc::new(config)).connect(name, socket).await.unwrap();
    let error = stream.read_u8().await.unwrap_err();
    assert!(format!("{error:?}").contains("CertificateRequired"), "{error:?}");
    running.end_all().await;
}

#[test]
fn files_are_checked_at_any_time() {
    let house = House::new();
    let now = UnixTime::now();
    let files = house.pki.files(NODE);
    files.check(&node(NODE), now).unwrap();
    house.pki.files("controller").check(&controller(), now).unwrap();
    assert!(matches!(files.check(&controller(), now), Err(TlsError::Another { .. })));
    let long_ago = UnixTime::since_unix_epoch(Duration::ZERO);
    let error = files.check(&node(NODE), long_ago).unwrap_err();
    assert!(matches!(error, TlsError::Unfit { .. }), "{error}");
    house.pki.issue("other", &node(NODE));
    fs::copy(house.pki.folder.join("other.key"), &files.key).unwrap();
    let error = files.check(&node(NODE), now).unwrap_err();
    assert!(error.to_string().contains("the key is another's"), "{error}");
}

#[test]
fn a_file_of_certificates_is_bounded_and_a_name_has_to_fit() {
    let house = House::new();
    let files = house.pki.files(NODE);
    let mut text = fs::read(&files.ca).unwrap();
    text.resize(usize::try_from(PEM_BYTES_MAX).unwrap(), b'\n');
    fs::write(&files.ca, &text).unwrap();
    files.check(&node(NODE), UnixTime::now()).unwrap();
    text.push(b'\n');
    fs::write(&files.ca, &text).unwrap();
    assert!(matches!(files.check(&node(NODE), UnixTime::now()), Err(TlsError::Read { .. })));
    for bad in ["", "a/b", "a b", &"a".repeat(254)] {
        assert!(matches!(ServerTls::new(files.clone(), SITE, bad), Err(TlsError::Name { .. })), "{bad:?}");
    }
    assert!(node(&"a".repeat(253)).uri().is_some());
}
