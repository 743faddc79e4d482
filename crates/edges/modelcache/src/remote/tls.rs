//! Which certificate authorities are believed.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Where Linux distributions keep the authorities they believe, in the order tried.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client configuration that believes the bundle, or without one what the system believes.
///
/// # Errors
/// No bundle is found, or it holds no certificate; the text says which.
pub(super) fn config(bundle_pem: Option<&[u8]>) -> Result<Arc<rustls::ClientConfig>, String> {
    let system;
    let bundle = match bundle_pem {
        Some(bundle) => bundle,
        None => {
            let found = SYSTEM_BUNDLES.iter().find_map(|path| std::fs::read(path).ok());
            system = found.ok_or("the system has no bundle of certificate authorities: set caBundle")?;
            &system
        }
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        let certificate = certificate.map_err(|error| format!("caBundle cannot be read: {error}"))?;
        // A bundle of a distribution may hold old certificates that the verifier cannot use; they are not missed.
        drop(roots.add(certificate));
    }
    if roots.is_empty() {
        return Err("caBundle holds no certificate".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
