//! An S3 store that keeps the rules until a test tells it not to: what no real server does on demand.
//!
//! It runs on a thread and clock of its own, so that tests on a paused clock and programs of their own can talk to it.
//! Every request is recorded, whatever became of it. Signatures are read, not verified: real servers do that.

mod answer;
mod fault;
mod objects;
mod serve;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

pub use fault::{S3Fault, When};

use crate::fake::Recorded;
use crate::real::{ACCESS_KEY, BUCKET};
use objects::{Object, Objects};

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// An object, or a range of it.
    Get,
    /// An object's head.
    Head,
    /// To store an object in one piece, or to make a bucket.
    Put,
    /// To begin an upload in parts.
    Begin,
    /// To store one part.
    Part,
    /// To make the object from its parts.
    Complete,
    /// To forget an upload.
    Abort,
    /// To remove an object.
    Delete,
    /// To list a bucket.
    List,
    /// Keys for a web identity token.
    Identity,
    /// Anything else.
    Other,
}

/// One request, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Request {
    /// What it wants.
    pub verb: Verb,
    /// The bucket; empty when it names none.
    pub bucket: String,
    /// The key; empty when it names none.
    pub key: String,
    /// The bytes asked for; `None` when all.
    pub range: Option<Range<u64>>,
    /// Its `If-Match`.
    pub if_match: Option<String>,
    /// Its `If-None-Match`.
    pub if_none_match: Option<String>,
    /// All header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Method and target as they came.
    pub line: String,
    /// Bytes of its body.
    pub received: u64,
    /// Status it was answered with; 0 before.
    pub status: u16,
    /// Bytes of the answer's body that left so far.
    pub sent: u64,
}

/// All that happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Log {
    /// Every request, in order of arrival.
    pub requests: Vec<S3Request>,
    /// Connections accepted, TLS not yet spoken.
    pub connections: usize,
    /// GETs that are being answered now.
    pub gets_running: usize,
    /// The most that ever were at once.
    pub gets_running_max: usize,
    /// Answers that hold now; see [`S3Fault::Hold`].
    pub holding: usize,
}

impl S3Log {
    /// Requests of one kind for keys that end so.
    pub fn of<'a>(&'a self, verb: Verb, key: &'a str) -> impl Iterator<Item = &'a S3Request> {
        self.requests.iter().filter(move |request| request.verb == verb && request.key.ends_with(key))
    }

    /// Bytes of objects that left in answers to GETs of keys that end so.
    #[must_use]
    pub fn sent(&self, key: &str) -> u64 {
        self.of(Verb::Get, key).filter(|request| request.status < 300).map(|request| request.sent).sum()
    }
}

/// Who may do what.
#[derive(Debug)]
struct Access {
    /// Access keys and the session token that each needs.
    keys: BTreeMap<String, Option<String>>,
    expired: BTreeSet<String>,
    denied: BTreeSet<Verb>,
    /// The web identity token that is traded for keys.
    identity_token: Option<String>,
    issued: u64,
    issued_until: String,
    /// The bucket of every request, where the host names it and the path does not.
    virtual_host: Option<String>,
    /// Most keys of one page of a listing.
    page: usize,
}

#[derive(Debug)]
struct State {
    objects: Objects,
    access: Access,
    rules: Vec<(When, S3Fault)>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    log: watch::Sender<S3Log>,
    /// How often holds were released.
    released: watch::Sender<u64>,
}

enum Command {
    Listen(std::sync::mpsc::Sender<io::Result<()>>),
    StopListening(std::sync::mpsc::Sender<io::Result<()>>),
    Disconnect(std::sync::mpsc::Sender<io::Result<()>>),
}

/// A running double with the empty bucket [`BUCKET`]. It ends when this is dropped.
#[derive(Debug)]
pub struct S3Double {
    addr: SocketAddr,
    ca_pem: Option<String>,
    shared: Arc<Shared>,
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Double {
    /// Starts one on a free loopback port.
    ///
    /// # Errors
    /// No port, or no thread.
    pub fn start() -> io::Result<Self> {
        Self::start_with(None, None)
    }

    /// Starts one that speaks TLS, with a certificate for 127.0.0.1, localhost and *.localhost from a CA of its own.
    ///
    /// # Errors
    /// No port, no thread, or no certificate.
    pub fn start_tls() -> io::Result<Self> {
        let (acceptor, ca_pem) = certificates().map_err(io::Error::other)?;
        Self::start_with(Some(acceptor), Some(ca_pem))
    }

    fn start_with(acceptor: Option<TlsAcceptor>, ca_pem: Option<String>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let mut objects = Objects::default();
        objects.make_bucket(BUCKET);
        let access = Access {
            keys: BTreeMap::from([(ACCESS_KEY.to_owned(), None)]),
            expired: BTreeSet::new(),
            denied: BTreeSet::new(),
            identity_token: None,
            issued: 0,
            issued_until: "2999-01-01T00:00:00Z".to_owned(),
            virtual_host: None,
            page: 1000,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State { objects, access, rules: Vec::new() }),
            log: watch::Sender::new(S3Log::default()),
            released: watch::Sender::new(0),
        });
        let (commands, inbox) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serving = serve::serve(listener, acceptor, Arc::clone(&shared), inbox);
        let thread = std::thread::Builder::new().name("s3-double".to_owned()).spawn(move || {
            runtime.block_on(serving);
        })?;
        Ok(Self { addr, ca_pem, shared, commands: Some(commands), thread: Some(thread) })
    }

    /// `http://127.0.0.1:PORT`, or https.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.ca_pem.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its CA; `None` without TLS.
    #[must_use]
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// Puts an object into [`BUCKET`] behind everybody's back.
    pub fn put(&self, key: &str, content: impl Into<Bytes>) {
        // the bucket is made at the start and never removed
        drop(self.shared.state.lock().objects.put(BUCKET, key, Object::new(content.into()), false));
    }

    /// Takes an object out of [`BUCKET`].
    pub fn remove(&self, key: &str) {
        self.shared.state.lock().objects.remove(BUCKET, key);
    }

    /// An object of [`BUCKET`].
    #[must_use]
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.shared.state.lock().objects.get(BUCKET, key).map(|object| object.content.clone())
    }

    /// All keys of [`BUCKET`], sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.shared.state.lock().objects.bucket(BUCKET).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Uploads in parts that were begun and neither completed nor aborted.
    #[must_use]
    pub fn uploads_open(&self) -> usize {
        self.shared.state.lock().objects.uploads_open()
    }

    /// From now on this goes wrong then. Of several that hit a request the one set first is played.
    pub fn fault(&self, when: When, fault: S3Fault) {
        self.shared.state.lock().rules.push((when, fault));
    }

    /// Nothing goes wrong any more, from the next request on.
    pub fn heal(&self) {
        self.shared.state.lock().rules.clear();
    }

    /// Lets all go on that hold now.
    pub fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }

    /// Requests of this kind are refused with 403 `AccessDenied`: a policy.
    pub fn deny(&self, verb: Verb) {
        self.shared.state.lock().access.denied.insert(verb);
    }

    /// These keys and no others are taken from now on.
    pub fn set_key(&self, access_key: &str, session_token: Option<&str>) {
        let keys = BTreeMap::from([(access_key.to_owned(), session_token.map(ToOwned::to_owned))]);
        self.shared.state.lock().access.keys = keys;
    }

    /// Requests with this access key are answered with 400 `ExpiredToken` from now on.
    pub fn expire(&self, access_key: &str) {
        self.shared.state.lock().access.expired.insert(access_key.to_owned());
    }

    /// Trades this web identity token for keys `ISSUED1`, `ISSUED2`… that end at `until` (RFC 3339).
    pub fn trade(&self, identity_token: &str, until: &str) {
        let access = &mut self.shared.state.lock().access;
        access.identity_token = Some(identity_token.to_owned());
        until.clone_into(&mut access.issued_until);
    }

    /// The host names the bucket: the whole path is the key, and the bucket is always this one.
    pub fn virtual_host(&self, bucket: &str) {
        self.shared.state.lock().access.virtual_host = Some(bucket.to_owned());
    }

    /// Listings come in pages of so many keys.
    pub fn page(&self, keys: usize) {
        self.shared.state.lock().access.page = keys;
    }

    /// Closes the port: connects are refused. Open connections stay.
    ///
    /// # Errors
    /// It has ended.
    pub fn stop_listening(&self) -> io::Result<()> {
        self.command(Command::StopListening)
    }

    /// Opens the same port again.
    ///
    /// # Errors
    /// Somebody else has taken it.
    pub fn listen_again(&self) -> io::Result<()> {
        self.command(Command::Listen)
    }

    /// Ends every open connection wherever it is.
    ///
    /// # Errors
    /// It has ended.
    pub fn disconnect(&self) -> io::Result<()> {
        self.command(Command::Disconnect)
    }

    fn command(&self, make: impl FnOnce(std::sync::mpsc::Sender<io::Result<()>>) -> Command) -> io::Result<()> {
        let (done, is_done) = std::sync::mpsc::channel();
        let commands = self.commands.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        commands.send(make(done)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        is_done.recv().map_err(io::Error::other)?
    }

    /// All that happened so far.
    #[must_use]
    pub fn log(&self) -> S3Log {
        self.shared.log.borrow().clone()
    }

    /// Waits until the log shows something.
    pub async fn wait_for(&self, mut is_so: impl FnMut(&S3Log) -> bool) -> S3Log {
        let mut log = self.shared.log.subscribe();
        // the sender lives in `self`, so this ends only with what was waited for
        match log.wait_for(|log| is_so(log)).await {
            Ok(log) => log.clone(),
            Err(_) => self.log(),
        }
    }
}

impl Drop for S3Double {
    fn drop(&mut self) {
        // without its sender the loop ends, and with it every connection
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // a panic in there has been printed already, and the test that saw its effects fails by them
            drop(thread.join());
        }
    }
}

impl Shared {
    /// Reads a request and looks up what goes wrong with it.
    fn take(&self, recorded: &Recorded) -> (S3Request, Option<S3Fault>) {
        let mut state = self.state.lock();
        let request = serve::read(recorded, state.access.virtual_host.as_deref());
        let mut found = None;
        for (when, fault) in &mut state.rules {
            // each counts its own, whether or not another comes first
            if when.hits(&request) && found.is_none() {
                found = Some(fault.clone());
            }
        }
        (request, found)
    }
}

fn certificates() -> Result<(TlsAcceptor, String), Box<dyn std::error::Error + Send + Sync>> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let names = ["127.0.0.1", "localhost", "*.localhost"].map(str::to_owned);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(names)?.signed_by(&key, &ca)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config =
        ServerConfig::builder_with_provider(Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), ca.pem()))
}
