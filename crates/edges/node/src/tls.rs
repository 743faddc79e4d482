//! Who is at the other end: TLS 1.3 both ways, with certificates that are bound to one node of one site.
//!
//! A certificate's name is a URI in its subject's alternative names: `tidegate://SITE/node/NAME` or
//! `tidegate://SITE/controller`. Host names and addresses in it say nothing: a node keeps its certificate when it moves,
//! and nobody becomes a node by taking its address. Files are read again when they change; what cannot be read then
//! leaves the last in force.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, version,
};
use webpki::{EndEntityCert, KeyUsage};

/// Most bytes of a file with certificates or a key.
pub const PEM_BYTES_MAX: u64 = 256 * 1024;
/// Longest name of a site or node in a certificate.
pub const PARTY_NAME_MAX: usize = 253;

/// Who a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Party {
    /// The controllers of a site.
    Controller {
        /// The site's name.
        site: Arc<str>,
    },
    /// One node of a site.
    Node {
        /// The site's name.
        site: Arc<str>,
        /// The node's name in the documents.
        name: Arc<str>,
    },
}

impl Party {
    /// The party as certificates name it; `None`: a name cannot stand in one.
    #[must_use]
    pub fn uri(&self) -> Option<String> {
        let fits = |name: &str| {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            !name.is_empty() && name.len() <= PARTY_NAME_MAX && name.bytes().all(is_plain)
        };
        match self {
            Self::Controller { site } => fits(site).then(|| format!("tidegate://{site}/controller")),
            Self::Node { site, name } => (fits(site) && fits(name)).then(|| format!("tidegate://{site}/node/{name}")),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller { site } => write!(f, "the controller of site {site}"),
            Self::Node { site, name } => write!(f, "node {name} of site {site}"),
        }
    }
}

/// The files of one end, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The site's authority: whoever it signed may be at the other end.
    pub ca: PathBuf,
    /// Our certificate, and what stands between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// The files that `tidegate pki` makes in a folder.
    #[must_use]
    pub fn in_folder(folder: &Path, stem: &str) -> Self {
        Self {
            ca: folder.join("ca.pem"),
            cert: folder.join(format!("{stem}.pem")),
            key: folder.join(format!("{stem}.key")),
        }
    }

    /// Whether these files make `own` at this time: `Ok` when the other end would believe it.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn check(&self, own: &Party, at: UnixTime) -> Result<(), TlsError> {
        let Material { roots, chain, key } = Material::read(self, own)?;
        let fails = |error: &dyn fmt::Display| TlsError::Unfit { path: self.cert.clone(), why: error.to_string() };
        let (leaf, between) = chain.split_first().ok_or_else(|| fails(&"it is empty"))?;
        let leaf_read = EndEntityCert::try_from(leaf).map_err(|error| fails(&error))?;
        let usage = match own {
            Party::Controller { .. } => KeyUsage::client_auth(),
            Party::Node { .. } => KeyUsage::server_auth(),
        };
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        leaf_read
            .verify_for_usage(algorithms.all, &roots.roots, between, at, usage, None, None)
            .map_err(|error| fails(&error))?;
        let signer = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| fails(&error))?;
        let certified = rustls::sign::CertifiedKey::new(chain, signer);
        certified.keys_match().map_err(|error| fails(&format!("the key is another's: {error}")))
    }

    fn stamp(&self) -> Stamp {
        let of = |path: &Path| {
            fs::metadata(path).ok().map(|found| (found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        [of(&self.ca), of(&self.cert), of(&self.key)]
    }
}

/// Why files do not make an end.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {what} in PEM", path.display())]
    Holds {
        /// The file.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
    },
    /// The certificate is another's.
    #[error("{} is not for {party}: its names are {names}; issue one with `tidegate pki issue`", path.display())]
    Another {
        /// The file.
        path: PathBuf,
        /// Who it should be for.
        party: Party,
        /// Whom it is for.
        names: String,
    },
    /// Certificate, key and authority do not fit, or not at this time.
    #[error("{}: {why}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A name that cannot stand in a certificate.
    #[error("{party}: a name in a certificate has 1 to 253 of a-z, A-Z, 0-9, '.', '-' and '_'")]
    Name {
        /// Who.
        party: Party,
    },
}

/// What stands in the files.
struct Material {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Material {
    fn read(files: &TlsFiles, own: &Party) -> Result<Self, TlsError> {
        let certificates = |path: &Path| -> Result<Vec<_>, TlsError> {
            let text = pem(path)?;
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
            let holds = || TlsError::Holds { path: path.to_owned(), what: "certificate" };
            read.ok().filter(|read| !read.is_empty()).ok_or_else(holds)
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.ca)? {
            let unfit = |error: Error| TlsError::Unfit { path: files.ca.clone(), why: error.to_string() };
            roots.add(authority).map_err(unfit)?;
        }
        let chain = certificates(&files.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&pem(&files.key)?)
            .map_err(|_| TlsError::Holds { path: files.key.clone(), what: "private key" })?;
        let uri = own.uri().ok_or_else(|| TlsError::Name { party: own.clone() })?;
        let names = chain.first().map(names).unwrap_or_default();
        if !names.contains(&uri) {
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(TlsError::Another { path: files.cert.clone(), party: own.clone(), names });
        }
        Ok(Self { roots: Arc::new(roots), chain, key })
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(PEM_BYTES_MAX + 1).read_to_end(&mut text)).map_err(failed)?;
    if text.len() as u64 > PEM_BYTES_MAX {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "longer than 256 KiB")));
    }
    Ok(text)
}

/// The URIs that a certificate is for.
#[must_use]
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(read) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    read.valid_uri_names().map(str::to_owned).collect()
}

/// Fails unless a certificate, verified already, is for a party.
fn is_for(certificate: &CertificateDer<'_>, uri: &str) -> Result<(), Error> {
    let is_it = names(certificate).iter().any(|name| name == uri);
    if is_it { Ok(()) } else { Err(Error::InvalidCertificate(CertificateError::NotValidForName)) }
}

type FileStamp = Option<(u64, u64, i64, i64)>;
pub(crate) type Stamp = [FileStamp; 3];

/// Something made of files, made again when they change.
struct Live<T> {
    files: TlsFiles,
    own: Party,
    made: Mutex<(Stamp, Arc<T>)>,
}

impl<T> Live<T> {
    fn new(files: TlsFiles, own: Party, make: impl Fn(Material) -> Result<T, Error>) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let made = Arc::new(Self::make(&files, &own, make)?);
        Ok(Self { files, own, made: Mutex::new((stamp, made)) })
    }

    fn make(files: &TlsFiles, own: &Party, make: impl Fn(Material) -> Result<T, Error>) -> Result<T, TlsError> {
        let unfit = |error: Error| TlsError::Unfit { path: files.cert.clone(), why: error.to_string() };
        make(Material::read(files, own)?).map_err(unfit)
    }

    fn get(&self, make: impl Fn(Material) -> Result<T, Error>) -> (Stamp, Arc<T>) {
        let mut made = self.made.lock();
        let stamp = self.files.stamp();
        if made.0 != stamp {
            match Self::make(&self.files, &self.own, make) {
                Ok(new) => {
                    tracing::info!(cert = %self.files.cert.display(), "certificates are read again");
                    made.1 = Arc::new(new);
                }
                Err(error) => tracing::error!(%error, "changed certificates are not taken: the last stay in force"),
            }
            made.0 = stamp;
        }
        made.clone()
    }
}

impl<T> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("files", &self.files).field("own", &self.own).finish_non_exhaustive()
    }
}

/// An agent's end: it lets in the controllers of its site and nobody else.
#[derive(Debug)]
pub struct ServerTls {
    live: Live<ServerConfig>,
    peer: Arc<str>,
}

impl ServerTls {
    /// For a node of a site.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(files: TlsFiles, site: &str, node: &str) -> Result<Self, TlsError> {
        let [own, peer] = ends(site, node)?;
        let peer: Arc<str> = peer.1.into();
        let live = Live::new(files, own.0, |material| server(material, &peer))?;
        Ok(Self { live, peer })
    }

    /// What to accept connections with, as the files are now.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.live.get(|material| server(material, &self.peer)).1
    }
}

/// A controller's end: it talks to the one node it means and to nobody else.
#[derive(Debug)]
pub struct ClientTls {
    live: Live<ClientConfig>,
    peer: Arc<str>,
}

impl ClientTls {
    /// For the controllers of a site, towards one node.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(files: TlsFiles, site: &str, node: &str) -> Result<Self, TlsError> {
        let [peer, own] = ends(site, node)?;
        let peer: Arc<str> = peer.1.into();
        let live = Live::new(files, own.0, |material| client(material, &peer))?;
        Ok(Self { live, peer })
    }

    /// What to connect with, as the files are now.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.get().1
    }

    pub(crate) fn get(&self) -> (Stamp, Arc<ClientConfig>) {
        self.live.get(|material| client(material, &self.peer))
    }
}

/// The node and the controllers of a site, with their names.
fn ends(site: &str, node: &str) -> Result<[(Party, String); 2], TlsError> {
    let named = |party: Party| match party.uri() {
        Some(uri) => Ok((party, uri)),
        None => Err(TlsError::Name { party }),
    };
    let site: Arc<str> = site.into();
    let node = named(Party::Node { site: Arc::clone(&site), name: node.into() })?;
    Ok([node, named(Party::Controller { site })?])
}

fn server(material: Material, peer: &Arc<str>) -> Result<ServerConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let inner = WebPkiClientVerifier::builder_with_provider(material.roots, Arc::clone(&provider))
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    let verifier = Arc::new(OnlyController { inner, peer: Arc::clone(peer) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(material.chain, material.key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    // Every connection shows its certificate: one that was taken away is not remembered.
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(material: Material, peer: &Arc<str>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier =
        Arc::new(OnlyNode { roots: material.roots, provider: Arc::clone(&provider), peer: Arc::clone(peer) });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(material.chain, material.key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// As WebPKI says, and for the controllers of the site.
#[derive(Debug)]
struct OnlyController {
    inner: Arc<dyn ClientCertVerifier>,
    peer: Arc<str>,
}

impl ClientCertVerifier for OnlyController {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(leaf, between, now)?;
        is_for(leaf, &self.peer).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Signed by the site's authority, and for the one node that is meant.
#[derive(Debug)]
struct OnlyNode {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    peer: Arc<str>,
}

impl ServerCertVerifier for OnlyNode {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let algorithms = self.provider.signature_verification_algorithms;
        let read = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&read, &self.roots, between, now, algorithms.all)?;
        is_for(leaf, &self.peer).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
