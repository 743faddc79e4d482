//! A small house to test in: documents, keys, engines, one core of the gate.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tempfile::TempDir;
use tidegate_config::Source;
use tidegate_core::{AliasName, CallerName, Entry, Limits, ModelName, ShiftName, TeamName, Unix};
use tidegate_engine::backend::Backend;
use tidegate_engine::client::{Connect, Connecting, Endpoint, Io, PoolSettings};
use tidegate_engine::scrape::{Sample, Signals};
use tidegate_engine::tokenizer::Tokenizer;
use tidegate_gateway::catalogue::{Catalogue, Parts};
use tidegate_gateway::local::LocalGate;
use tidegate_gateway::metrics::Metrics;
use tidegate_gateway::{Clock, Observer, Shared};
use tidegate_identity::{
    ApiKey, KeyKind, KeyRecord, Keyring, LastUsed, PeerThrottle, Pepper, SharedKeyring, StoreState,
};
use tidegate_policy::limiter::MemoryCounters;
use tidegate_routing::{Lease, Replica, ReplicaState};
use tidegate_store::store::RouteRow;
use tidegate_store::{JournalOptions, Journals};
use tidegate_testkit::fake::{FakeEngine, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::{JoinHandle, JoinSet};

/// Documents with one alias `chat` on one vLLM deployment of as many replicas as there are engines.
pub(crate) const SITE: &str = "
apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {name: test}
spec: {timeZone: Asia/Seoul}
---
kind: Model
metadata: {name: tiny}
spec: {engine: vllm, precision: bf16}
---
kind: Deployment
metadata: {name: tiny-v1}
spec:
  model: tiny
  endpoints: [{url: 'http://engine-0:1'}, {url: 'http://engine-1:1'}]
  servedName: tiny-served
  limits: {contextTokens: 8192, maxOutputTokens: 256}
---
kind: Alias
metadata: {name: chat}
spec: {targets: [{deployment: tiny-v1, weight: 100}]}
---
kind: Team
metadata: {name: red}
spec:
  models: [{alias: chat}]
";

/// A running gate with everything around it.
pub(crate) struct House {
    pub(crate) gate: LocalGate,
    pub(crate) engines: Vec<FakeEngine>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: String,
    pub(crate) backends: Vec<Arc<Backend>>,
    entries: Arc<Mutex<Vec<Entry>>>,
    pepper: Arc<Pepper>,
    records: Vec<Arc<KeyRecord>>,
    _journals: Journals,
    folder: TempDir,
    /// Bookings that steer the pick.
    steering: Mutex<Vec<Lease>>,
    registry: Registry,
}

/// What may be special about a house.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// Wall time at the start, in milliseconds; the system's when left out.
    pub(crate) wall: Option<i64>,
    /// The shift in force; the default one when left out.
    pub(crate) shift: Option<&'static str>,
    /// Where the controller sends aliases.
    pub(crate) routes: BTreeMap<AliasName, RouteRow>,
    pub(crate) tokenizers: BTreeMap<ModelName, Arc<Tokenizer>>,
    pub(crate) journal: JournalOptions,
    /// An engine that says always the same.
    pub(crate) raw: Option<Arc<dyn Connect>>,
}

impl Setup {
    /// A tokenizer for the model `tiny` that makes one token of each word.
    pub(crate) fn counting_words() -> Self {
        let folder = TempDir::new().unwrap();
        let words = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
            "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"[UNK]":0},"unk_token":"[UNK]"}}"#;
        std::fs::write(folder.path().join("tokenizer.json"), words).unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap().unwrap();
        Self { tokenizers: [(ModelName::from("tiny"), Arc::new(tokenizer))].into(), ..Self::default() }
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether the body ended as its framing says.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The data of every event, parsed; `[DONE]` is a string.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data = self.text().lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("null").to_owned()
    }
}

impl House {
    /// The house of `documents` with one engine per script; every deployment has all of them as its replicas, unless
    /// its name ends in `-N`: then it has engine N alone.
    pub(crate) async fn new(documents: &str, scripts: Vec<Script>) -> Self {
        Self::with(documents, scripts, Setup::default()).await
    }

    /// The same with something special about it.
    pub(crate) async fn with(documents: &str, scripts: Vec<Script>, setup: Setup) -> Self {
        let mut engines = Vec::new();
        for script in scripts {
            engines.push(FakeEngine::start(script).await.unwrap());
        }
        let checked = tidegate_config::check(&[Source::new("site.yaml", documents)]);
        let site = checked.site.unwrap_or_else(|| {
            panic!("{}", checked.diagnostics.iter().map(tidegate_config::Diagnostic::render).collect::<String>())
        });
        let site = Arc::new(site);
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::register(&mut registry));
        let connectors = engines.iter().map(FakeEngine::connector).chain(setup.raw);
        let all: Vec<_> = connectors.enumerate().map(|(index, connector)| backend(connector, index)).collect();
        let mut backends = BTreeMap::new();
        for name in site.deployments.keys() {
            let own = name.as_str().rsplit_once('-').and_then(|(_, index)| index.parse::<usize>().ok());
            backends.insert(name.clone(), own.map_or_else(|| all.clone(), |index| vec![Arc::clone(&all[index])]));
        }
        let catalogue = Catalogue::new(
            Arc::clone(&site),
            &Parts {
                shift: setup.shift.map_or_else(|| site.default_shift(), ShiftName::from),
                generation: 1,
                created: 0,
                backends: &backends.into(),
                routes: &setup.routes,
                tokenizers: &setup.tokenizers,
                metrics: &metrics,
            },
        );
        let entries = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&entries);
        let folder = TempDir::new().unwrap();
        let pepper = Arc::new(Pepper::new(&[7; 32]).unwrap());
        let shared = Arc::new(Shared {
            catalogue: ArcSwap::from_pointee(catalogue),
            keyring: Arc::new(SharedKeyring::new(Keyring::new(Arc::clone(&pepper), []))),
            counters: Arc::new(MemoryCounters::new()),
            metrics,
            throttle: PeerThrottle::new(),
            clock: setup.wall.map_or_else(Clock::start, |wall| Clock::start_at(Unix::from_ms(wall))),
            draining: AtomicBool::new(false),
            observer: Some(Observer(Box::new(move |entry| seen.lock().unwrap().push(entry.clone())))),
        });
        let (journals, _) = Journals::open(Path::new(folder.path()), setup.journal).unwrap();
        let gate = LocalGate::new(Arc::clone(&shared), journals.journal(0).unwrap());
        let mut house = Self {
            gate,
            engines,
            shared,
            key: String::new(),
            backends: all,
            entries,
            pepper,
            records: Vec::new(),
            _journals: journals,
            folder,
            steering: Mutex::default(),
            registry,
        };
        house.key = house.make_key("red", |_| {});
        house
    }

    /// The house of one engine that answers every request with these bytes.
    pub(crate) async fn of_raw(documents: &str, answer: String, closes: bool) -> Self {
        let raw: Arc<dyn Connect> = Arc::new(RawEngine { answer: answer.into(), closes });
        Self::with(documents, Vec::new(), Setup { raw: Some(raw), ..Setup::default() }).await
    }

    /// Books all replicas but the first, so that it is picked first for as long as it may be picked.
    pub(crate) fn prefer_first(&self) {
        let leases =
            self.backends.iter().skip(1).map(|backend| backend.replica().book(self.shared.clock.now()).unwrap());
        self.steering.lock().unwrap().extend(leases);
    }

    /// Another key.
    pub(crate) fn make_key(&mut self, team: &str, change: impl FnOnce(&mut KeyRecord)) -> String {
        let key = ApiKey::generate(KeyKind::Test).unwrap();
        let mut record = KeyRecord {
            id: key.key_id(),
            mac: Some(self.pepper.mac(&key)),
            previous: None,
            sha256: None,
            team: TeamName::from(team),
            caller: CallerName::from(key.id()),
            aliases: None,
            limits: Limits::default(),
            admin: false,
            created: Unix::from_ms(0),
            expires: None,
            revoked: None,
            last4: key.last4().into(),
            last_used: LastUsed::default(),
        };
        change(&mut record);
        self.records.push(Arc::new(record));
        self.shared.keyring.replace(Keyring::new(Arc::clone(&self.pepper), self.records.iter().cloned()));
        key.reveal().to_owned()
    }

    /// Revokes every key, as the keyring would show it.
    pub(crate) fn revoke_all(&mut self) {
        for record in &mut self.records {
            *record = Arc::new(KeyRecord { revoked: Some(Unix::from_ms(1)), ..(**record).clone() });
        }
        self.shared.keyring.replace(Keyring::new(Arc::clone(&self.pepper), self.records.iter().cloned()));
    }

    /// Changes the last key made.
    pub(crate) fn change_last_key(&mut self, change: impl FnOnce(&mut KeyRecord)) {
        let mut record = KeyRecord::clone(self.records.last().unwrap());
        change(&mut record);
        *self.records.last_mut().unwrap() = Arc::new(record);
        self.shared.keyring.replace(Keyring::new(Arc::clone(&self.pepper), self.records.iter().cloned()));
    }

    /// The last key made is not in the keyring any more.
    pub(crate) fn forget_last_key(&mut self) {
        self.records.pop();
        self.shared.keyring.replace(Keyring::new(Arc::clone(&self.pepper), self.records.iter().cloned()));
    }

    /// Whether the store follows: `Away` means that unknown keys cannot be told from wrong ones.
    pub(crate) fn store_is(&self, state: StoreState) {
        self.shared.keyring.note_store(state);
    }

    /// A new connection that speaks HTTP/2.
    pub(crate) fn connect_h2(&mut self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(256 * 1024);
        self.gate.serve(theirs, "192.0.2.2:1000".parse().unwrap(), true);
        ours
    }

    /// A new connection.
    pub(crate) fn connect(&mut self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(256 * 1024);
        self.gate.serve(theirs, "192.0.2.1:1000".parse().unwrap(), false);
        ours
    }

    /// Sends one request and reads its answer to the end.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Answer {
        let pending = self.start(request).await;
        finish(pending).await
    }

    /// Sends one request and reads its answer as it comes; aborting it closes its connection.
    pub(crate) async fn begin(&mut self, request: Request<Full<Bytes>>) -> JoinHandle<Answer> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect())).await.unwrap();
        tokio::task::spawn_local(async move {
            // In one task, so that both end together.
            let asked = async { finish(sender.send_request(request).await.unwrap()).await };
            tokio::pin!(connection);
            tokio::pin!(asked);
            tokio::select! {
                answer = asked.as_mut() => answer,
                _ = connection => asked.await,
            }
        })
    }

    /// Sends requests one after the other over one connection; each answer with the turns that it took.
    pub(crate) fn in_turns(&mut self, requests: Vec<Request<Full<Bytes>>>) -> JoinHandle<Vec<(u64, Answer)>> {
        let stream = self.connect();
        tokio::task::spawn_local(async move {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            let count = Rc::new(Cell::new(0));
            let mut beside = JoinSet::new();
            beside.spawn_local(async move { drop(connection.await) });
            beside.spawn_local(count_turns(Rc::clone(&count)));
            let mut answers = Vec::new();
            for request in requests {
                let before = count.get();
                let answer = finish(sender.send_request(request).await.unwrap()).await;
                answers.push((count.get() - before, answer));
            }
            answers
        })
    }

    /// Opens a connection and writes these bytes.
    pub(crate) async fn open(&mut self, bytes: &[u8]) -> DuplexStream {
        let mut stream = self.connect();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Sends raw bytes in two pieces, the second when the first has been dealt with, and reads as [`Self::raw_for`].
    pub(crate) async fn raw_in_two(&mut self, first: &[u8], second: &[u8], patience: Duration) -> String {
        let mut stream = self.open(first).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(second).await.unwrap();
        read_all(&mut stream, patience).await
    }

    /// What a scrape of an engine said just now.
    pub(crate) fn scraped(&self, index: usize, running: f64) {
        let signals = Signals { running: Some(running), waiting: Some(0.0), ..Signals::default() };
        let booked = Some(self.backends[index].replica().booked());
        self.backends[index].set_sample(Some(Sample { signals, at: tokio::time::Instant::now(), booked }));
    }

    /// Prompt tokens that are reserved for a request, whatever its output.
    pub(crate) async fn bound(&mut self, path: &str, body: &str) -> u64 {
        assert_eq!(self.post(path, body).await.status, 200);
        let max = serde_json::from_str::<Value>(body).unwrap()["max_tokens"].as_u64().unwrap();
        self.last().reserved_tokens - max
    }

    /// A chat that is refused for its body.
    pub(crate) async fn chat_refused(&mut self) -> Answer {
        let request = self.request(Method::POST, "/v1/chat/completions", "{}");
        self.send(request).await
    }

    /// What a new process would find, if this one died now.
    pub(crate) fn after_death(&self) -> tidegate_store::Recovery {
        let copy = TempDir::new().unwrap();
        for file in std::fs::read_dir(self.folder.path()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        Journals::open(copy.path(), JournalOptions::default()).unwrap().1
    }

    /// Everything in the journal's files.
    pub(crate) fn journal_text(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        files
            .filter(|path| path.is_file())
            .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
            .collect()
    }

    /// The page of metrics.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Sends one request and returns when its head has come.
    pub(crate) async fn start(&mut self, request: Request<Full<Bytes>>) -> http::Response<hyper::body::Incoming> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(self.connect())).await.unwrap();
        tokio::task::spawn_local(connection);
        sender.send_request(request).await.unwrap()
    }

    /// A request with the house's key.
    pub(crate) fn request(&self, method: Method, path: &str, body: &str) -> Request<Full<Bytes>> {
        self.request_with(&self.key, method, path, body)
    }

    pub(crate) fn request_with(&self, key: &str, method: Method, path: &str, body: &str) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "gate")
            .header("authorization", format!("Bearer {key}"))
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap()
    }

    /// A POST with the house's key, answered.
    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Answer {
        let request = self.request(Method::POST, path, body);
        self.send(request).await
    }

    /// A transcription whose form names the model before its file.
    pub(crate) async fn upload(&mut self, model: &str) -> Answer {
        let request = self.form(&[("model", model)], b"RIFF0000WAVE", &[]);
        self.send(request).await
    }

    /// A form: fields, the file, fields behind it.
    pub(crate) fn form(&self, before: &[(&str, &str)], file: &[u8], behind: &[(&str, &str)]) -> Request<Full<Bytes>> {
        let mut body = Vec::new();
        let field = |body: &mut Vec<u8>, (name, value): &(&str, &str)| {
            body.extend_from_slice(
                format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").as_bytes(),
            );
        };
        before.iter().for_each(|pair| field(&mut body, pair));
        body.extend_from_slice(
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n",
        );
        body.extend_from_slice(file);
        body.extend_from_slice(b"\r\n");
        behind.iter().for_each(|pair| field(&mut body, pair));
        body.extend_from_slice(b"--XX--\r\n");
        let mut request = self.request(Method::POST, "/v1/audio/transcriptions", "");
        *request.body_mut() = Full::new(body.into());
        request.headers_mut().insert("content-type", "multipart/form-data; boundary=XX".parse().unwrap());
        request
    }

    /// A chat that is not streamed.
    pub(crate) async fn chat(&mut self) -> Answer {
        self.post("/v1/chat/completions", CHAT).await
    }

    /// Sends raw bytes on a new connection and reads until the gate closes it or says nothing for a second.
    pub(crate) async fn raw(&mut self, bytes: &[u8]) -> String {
        self.raw_for(bytes, Duration::from_secs(1)).await
    }

    /// The same with more patience.
    pub(crate) async fn raw_for(&mut self, bytes: &[u8], patience: Duration) -> String {
        let mut stream = self.open(bytes).await;
        read_all(&mut stream, patience).await
    }

    /// Ledger entries so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    /// The ledger as it was at the start.
    pub(crate) fn forget_entries(&self) {
        self.entries.lock().unwrap().clear();
    }

    /// Puts an entry back.
    pub(crate) fn remember(&self, entry: Entry) {
        self.entries.lock().unwrap().push(entry);
    }

    /// The one ledger entry.
    pub(crate) fn entry(&self) -> Entry {
        let entries = self.entries();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.into_iter().next().unwrap()
    }

    /// Nothing is in flight, held, booked or reserved: waits for what the engines may still hold.
    pub(crate) async fn assert_idle(&self) {
        self.settle().await;
        self.assert_idle_now();
    }

    /// The same without waiting.
    pub(crate) fn assert_idle_now(&self) {
        self.steering.lock().unwrap().clear();
        assert_eq!(self.shared.counters.live(), 0, "reservations");
        assert_eq!(self.shared.metrics.in_flight.get(), 0, "requests in flight");
        assert_eq!(self.gate.held(), 0, "slots held");
        for backend in &self.backends {
            assert_eq!(backend.replica().booked(), 0, "bookings of {}", backend.replica().id());
        }
    }

    /// Lets everything run that can run now, and the longest abort bound pass.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// The last ledger entry.
    pub(crate) fn last(&self) -> Entry {
        self.entries().into_iter().last().unwrap()
    }

    /// Requests that ran a model, over all engines.
    pub(crate) fn runs(&self) -> usize {
        self.engines.iter().map(|engine| engine.runs().len()).sum()
    }
}

/// Reads until the other side closes, or says nothing for so long.
pub(crate) async fn read_all(stream: &mut DuplexStream, patience: Duration) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match tokio::time::timeout(patience, stream.read(&mut buffer)).await {
            Ok(Ok(0) | Err(_)) | Err(_) => break,
            Ok(Ok(len)) => answer.extend_from_slice(&buffer[..len]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads an answer to its end.
pub(crate) async fn finish(response: http::Response<hyper::body::Incoming>) -> Answer {
    let (parts, mut body) = response.into_parts();
    let mut all = Vec::new();
    let mut whole = true;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => all.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Err(_) => {
                whole = false;
                break;
            }
        }
    }
    Answer { status: parts.status, headers: parts.headers, body: all.into(), whole }
}

pub(crate) const CHAT: &str = r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":16}"#;
pub(crate) const CHAT_STREAM: &str =
    r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":16,"stream":true}"#;

fn backend(connector: Arc<dyn Connect>, index: usize) -> Arc<Backend> {
    let endpoint = Endpoint::custom(connector, "engine", None).unwrap();
    let replica = Replica::new(format!("replica/{index}").into());
    replica.set_state(ReplicaState::Serving);
    Arc::new(Backend::new(replica, &endpoint, PoolSettings::default(), 1))
}

/// All logs of the calling thread, at every level, as the binary writes them: one JSON object a line.
pub(crate) struct Logs {
    lines: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Logs {
    pub(crate) fn start() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&lines);
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || Line(Arc::clone(&writer)))
            .finish();
        Self { lines, _guard: tracing::subscriber::set_default(subscriber) }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.lines.lock().unwrap().clone()).unwrap()
    }
}

struct Line(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An engine that answers every request with the same bytes, and then closes or says nothing more.
#[derive(Debug)]
struct RawEngine {
    answer: Bytes,
    closes: bool,
}

impl Connect for RawEngine {
    fn connect(&self) -> Connecting {
        let (ours, mut engine) = tokio::io::duplex(256 * 1024);
        let (answer, closes) = (self.answer.clone(), self.closes);
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 16 * 1024];
            if engine.read(&mut buffer).await.is_ok() && engine.write_all(&answer).await.is_ok() && !closes {
                // Until the gate closes it.
                while engine.read(&mut buffer).await.is_ok_and(|len| len > 0) {}
            }
        });
        Box::pin(async move { Ok(Box::new(ours) as Box<dyn Io>) })
    }
}

/// Runs a test on one thread in paused time.
pub(crate) fn local<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// Counts turns of the event loop: a task that is always the last in the row, so that when it runs again, all that wanted to
/// run has run once. On one thread and a clock that stands still this is the measure of how long somebody waits for
/// others; while it counts, the paused clock does not move.
async fn count_turns(count: Rc<Cell<u64>>) {
    std::future::poll_fn::<(), _>(|context| {
        count.set(count.get() + 1);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// [`SITE`] with these limits in the team's grant of `chat`.
pub(crate) fn granting(limits: &str) -> String {
    SITE.replace("models: [{alias: chat}]", &format!("models: [{{alias: chat, {limits}}}]"))
}

/// [`SITE`] with more in the alias `chat`.
pub(crate) fn alias_with(more: &str) -> String {
    SITE.replace(
        "{targets: [{deployment: tiny-v1, weight: 100}]}",
        &format!("{{targets: [{{deployment: tiny-v1}}], {more}}}"),
    )
}

/// [`SITE`] with these engines instead of vLLM: one that speaks only chat completions.
pub(crate) fn translating() -> String {
    SITE.replace("spec: {timeZone: Asia/Seoul}", "spec: {engines: {plain: {dialect: vllm, messages: translate}}}")
        .replace("engine: vllm", "engine: plain")
}
