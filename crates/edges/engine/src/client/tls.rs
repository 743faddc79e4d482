//! TLS towards engines: which certificate authorities are believed.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Where Linux distributions keep the authorities they believe, in the order tried.
pub const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why there is no TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// None of the system's bundles can be read, and none was given.
    #[error("no bundle of certificate authorities found")]
    NoBundle,
    /// The bundle holds something that is no certificate, or nothing at all.
    #[error("bundle of certificate authorities cannot be read: {0}")]
    Bundle(Box<str>),
    /// The crypto provider refused.
    #[error("tls set-up failed")]
    Tls(#[from] rustls::Error),
}

/// A client configuration that believes the authorities of a PEM bundle.
///
/// # Errors
/// [`TlsError`] when the bundle is empty or broken.
pub fn config(bundle_pem: &[u8]) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle_pem) {
        let certificate = certificate.map_err(|error| TlsError::Bundle(error.to_string().into()))?;
        // A bundle of a distribution may hold old certificates that the verifier cannot use; they are not missed.
        drop(roots.add(certificate));
    }
    if roots.is_empty() {
        return Err(TlsError::Bundle("no certificate in it".into()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A client configuration that believes what the system believes.
///
/// # Errors
/// [`TlsError`] when no bundle is found or it is broken.
pub fn system() -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let bundle = SYSTEM_BUNDLES.iter().find_map(|path| std::fs::read(Path::new(path)).ok());
    config(&bundle.ok_or(TlsError::NoBundle)?)
}
