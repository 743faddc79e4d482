//! One owner of a cache folder: two real processes that race, join, and outlive each other.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::{Cache, CacheOptions, owner_pid};
use tidegate_modelcache::flight::{Followed, Join, follow};
use tidegate_modelcache::manifest::sha256;
use tidegate_modelcache::owner::{self, ALIVE_EVERY, PROTOCOL, REQUEST_BYTES_MAX, Request, Serve, Server, perform};
use tidegate_modelcache::progress::{Event, Sink};
use tidegate_modelcache::{CacheFault, Layout, ModelPath};

/// How many chunks the model of these tests has.
const CHUNKS: u64 = 6;

fn request() -> Request {
    Request::Pull { model: ModelPath::parse("glm/5.3-flash").unwrap(), pin: None, store: "s3://models".into() }
}

/// Fetches a chunk for each line on standard input, and notes in a file who fetched which: the test holds the clock.
struct Stepwise {
    cache: Arc<Cache>,
}

impl Stepwise {
    fn log(layout: &Layout) -> PathBuf {
        layout.root().join("files/log")
    }

    async fn fetch(&self, digest: Sha256Digest, tell: impl Fn(Event)) -> Result<(), CacheFault> {
        let layout = self.cache.layout();
        let done = std::fs::read_to_string(Self::log(layout)).unwrap_or_default().lines().count() as u64;
        tell(Event::FileStarted { file: "a".into(), bytes: CHUNKS, resumed_bytes: done });
        for chunk in done..CHUNKS {
            let step = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap();
            assert_eq!(step.unwrap(), 2, "a step is a letter and its line end");
            let mut log = std::fs::File::options().create(true).append(true).open(Self::log(layout)).unwrap();
            writeln!(log, "{} {chunk}", std::process::id()).unwrap();
            tell(Event::Retry {
                file: None,
                fault: "step".into(),
                attempt: u32::try_from(chunk).unwrap(),
                after_ms: 0,
            });
        }
        std::fs::create_dir(layout.published(digest)).unwrap();
        Ok(())
    }
}

#[async_trait]
impl Serve for Stepwise {
    async fn serve(&self, request: Request, sink: Sink<'_>) -> Result<Value, CacheFault> {
        let Request::Pull { model, .. } = request else { return Err(CacheFault::Cancelled) };
        let digest = sha256(model.as_str().as_bytes());
        loop {
            match self.cache.models().join(digest)? {
                Join::Follow(listener) => {
                    if follow(listener, sink).await? == Followed::Done {
                        return Ok(json!("followed"));
                    }
                }
                Join::Lead(_) if self.cache.layout().published(digest).exists() => return Ok(json!("hit")),
                Join::Lead(lead) => {
                    self.fetch(digest, |event| {
                        lead.tell(event.clone());
                        sink(event);
                    })
                    .await?;
                    lead.tell(Event::Published { digest: digest.to_string(), path: String::new() });
                    return Ok(json!("led"));
                }
            }
        }
    }
}

/// Not a test by itself: one process that wants the model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_wants_the_model() {
    let Ok(root) = std::env::var("TIDEGATE_CACHE_ROOT") else { return };
    let sink = |event: Event| match event {
        Event::FileStarted { .. } => println!("\nstarted"),
        Event::Retry { attempt, .. } => println!("\nstep {attempt}"),
        _ => {}
    };
    let make = |cache: Arc<Cache>| {
        println!("\nowner");
        Ok(Stepwise { cache })
    };
    let done = perform(Path::new(&root), CacheOptions::default(), &request(), &sink, make).await.unwrap();
    println!("\ndone {}", done.as_str().unwrap());
}

/// A process that wants the model; ended when dropped.
struct Wants {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Wants {
    fn start(root: &Path) -> Self {
        let mut child = Command::new(crate::model::ITSELF)
            .args(["--exact", "owner::child_that_wants_the_model", "--nocapture"])
            .env("TIDEGATE_CACHE_ROOT", root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn step(&mut self) {
        self.input.write_all(b"s\n").unwrap();
    }

    /// Reads its output to the line `wanted`; the end of the output before it fails the test.
    fn sees(&mut self, wanted: &str) {
        let mut seen = String::new();
        loop {
            let from = seen.len();
            assert_ne!(self.output.read_line(&mut seen).unwrap(), 0, "no {wanted:?} in {seen}");
            if seen[from..].trim_end() == wanted {
                return;
            }
        }
    }

    /// The rest of what it says; it has to end well.
    fn ends(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Wants {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Who fetched which chunk.
fn fetched(root: &Path) -> Vec<(u32, u64)> {
    let log = std::fs::read_to_string(Stepwise::log(&Layout::new(root))).unwrap();
    let line = |line: &str| {
        let (pid, chunk) = line.split_once(' ').unwrap();
        (pid.parse().unwrap(), chunk.parse().unwrap())
    };
    log.lines().map(line).collect()
}

fn by(pid: u32, chunks: std::ops::Range<u64>) -> Vec<(u32, u64)> {
    chunks.map(|chunk| (pid, chunk)).collect()
}

#[test]
fn two_processes_that_want_one_digest_fetch_it_once_and_the_second_sees_the_progress_of_the_first() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Wants::start(root.path());
    first.sees("owner");
    first.step();
    first.sees("step 0");
    let mut second = Wants::start(root.path());
    second.sees("started");
    for chunk in 1..CHUNKS - 1 {
        first.step();
        second.sees(&format!("step {chunk}"));
    }
    first.step();
    let pid = first.child.id();
    assert!(first.ends().contains("done led"));
    let rest = second.ends();
    assert!(rest.contains("done followed") || rest.contains("done hit"), "{rest}");
    assert_eq!(fetched(root.path()), by(pid, 0..CHUNKS));
}

#[test]
fn processes_that_race_from_the_start_fetch_once() {
    for _ in 0..8 {
        let root = tempfile::tempdir().unwrap();
        let mut all: Vec<Wants> = (0..3).map(|_| Wants::start(root.path())).collect();
        for wants in &mut all {
            (0..CHUNKS).for_each(|_| wants.step());
        }
        let pids: Vec<u32> = all.iter().map(|wants| wants.child.id()).collect();
        let said: Vec<String> = all.into_iter().map(Wants::ends).collect();
        assert_eq!(said.iter().filter(|said| said.contains("done led")).count(), 1, "{said:?}");
        let fetched = fetched(root.path());
        assert!(pids.contains(&fetched[0].0));
        assert_eq!(fetched, by(fetched[0].0, 0..CHUNKS));
    }
}

#[test]
fn an_owner_that_is_killed_leaves_the_rest_to_the_next_asker() {
    let root = tempfile::tempdir().unwrap();
    let mut first = Wants::start(root.path());
    first.sees("owner");
    let mut second = Wants::start(root.path());
    second.sees("started");
    for chunk in 0..3 {
        first.step();
        first.sees(&format!("step {chunk}"));
    }
    second.sees("step 2");
    first.kill();
    second.sees("owner");
    (3..CHUNKS).for_each(|_| second.step());
    let pids = (first.child.id(), second.child.id());
    assert!(second.ends().contains("done led"));
    assert_eq!(fetched(root.path()), [by(pids.0, 0..3), by(pids.1, 3..CHUNKS)].concat());
}

#[test]
fn an_asker_that_is_killed_leaves_the_lead_to_one_that_follows() {
    let root = tempfile::tempdir().unwrap();
    // The owner's own wish is for the same digest: it leads, and the askers follow.
    let mut owner = Wants::start(root.path());
    owner.sees("owner");
    owner.sees("started");
    let mut asker = Wants::start(root.path());
    asker.sees("started");
    asker.kill();
    (0..CHUNKS).for_each(|_| owner.step());
    let pid = owner.child.id();
    assert!(owner.ends().contains("done led"));
    assert_eq!(fetched(root.path()), by(pid, 0..CHUNKS));
}

/// A service that never ends, and says when it is dropped.
struct Hangs(tokio::sync::mpsc::UnboundedSender<&'static str>);

struct SaysDropped(tokio::sync::mpsc::UnboundedSender<&'static str>);

impl Drop for SaysDropped {
    fn drop(&mut self) {
        let _sent = self.0.send("dropped");
    }
}

#[async_trait]
impl Serve for Hangs {
    async fn serve(&self, _: Request, sink: Sink<'_>) -> Result<Value, CacheFault> {
        let _dropped = SaysDropped(self.0.clone());
        let _sent = self.0.send("began");
        sink(Event::Missed { events: 1 });
        std::future::pending().await
    }
}

/// Runs `ask` on a thread of its own against an owner that hangs; returns what the service said.
async fn with_hanging_owner<T: Send + 'static>(
    ask: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> (T, Vec<&'static str>) {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(root.path(), CacheOptions::default()).unwrap();
    let server = Server::bind(&cache).unwrap();
    let (send, mut said) = tokio::sync::mpsc::unbounded_channel();
    let socket = cache.layout().owner_socket();
    let asked = tokio::task::spawn_blocking(move || ask(socket));
    let got = tokio::select! {
        got = asked => got.unwrap(),
        never = server.run(Arc::new(Hangs(send))) => match never {},
    };
    // The server is gone here, with all that it ran.
    let mut all = Vec::new();
    while let Some(word) = said.recv().await {
        all.push(word);
    }
    (got, all)
}

fn exchange(socket: &Path, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(line).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_make_no_sense_are_refused_with_the_reason() {
    let ask = |socket: PathBuf| {
        let long = vec![b'x'; REQUEST_BYTES_MAX];
        let lines: [(&[u8], &str); 6] = [
            (b"", "one line"),
            (b"{\"protocol\":1", "one line"),
            (b"nonsense\n", "protocol 1"),
            (b"{\"protocol\":2,\"request\":{}}\n", "protocol 1"),
            (b"{\"protocol\":1,\"request\":{\"verb\":\"destroy\"}}\n", "cannot read the request"),
            (&[&long[..], b"\n"].concat(), "at most 65536 bytes"),
        ];
        lines.map(|(line, expected)| (exchange(&socket, line), expected))
    };
    let (answers, began) = with_hanging_owner(ask).await;
    for (answer, expected) in answers {
        assert!(answer.contains(expected) && answer.contains("owner_busy"), "{expected}: {answer}");
    }
    assert_eq!(began, Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asker_that_goes_away_cancels_its_work() {
    let ask = |socket: PathBuf| {
        let mut stream = UnixStream::connect(socket).unwrap();
        let line = serde_json::json!({"protocol": PROTOCOL, "request": request()}).to_string() + "\n";
        stream.write_all(line.as_bytes()).unwrap();
        let mut event = String::new();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut event).unwrap();
        assert!(event.contains("missed"), "{event}");
        drop(stream);
    };
    let ((), said) = with_hanging_owner(ask).await;
    assert_eq!(said, ["began", "dropped"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_shows_that_it_is_alive_while_nothing_happens() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(root.path(), CacheOptions::default()).unwrap();
    let server = Server::bind(&cache).unwrap();
    let (send, _said) = tokio::sync::mpsc::unbounded_channel();
    let client = owner::Client::connect(cache.layout()).await.unwrap();
    assert_eq!(client.pid(), std::process::id());
    let (request, began) = (request(), tokio::time::Instant::now());
    let patient = async {
        tokio::select! {
            lost = client.ask(&request, &|_| ()) => panic!("{lost:?}"),
            () = tokio::time::sleep(10 * owner::SILENCE_MAX) => {}
        }
    };
    tokio::select! {
        () = patient => {}
        never = server.run(Arc::new(Hangs(send))) => match never {},
    }
    assert!(began.elapsed() > 10 * ALIVE_EVERY);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_hangs_is_named_after_the_silence() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(root.path(), CacheOptions::default()).unwrap();
    // Connections are accepted by the kernel, and nobody serves them.
    let _server = Server::bind(&cache).unwrap();
    let never = |_: Arc<Cache>| -> Result<Stepwise, CacheFault> { panic!("somebody owns it") };
    let fault = perform(root.path(), CacheOptions::default(), &request(), &|_| (), never).await.unwrap_err();
    assert_eq!(fault.code(), "owner_busy");
    assert!(fault.to_string().contains("silent for 20 s"), "{fault}");
}

#[tokio::test(start_paused = true)]
async fn an_owner_without_a_socket_is_waited_for_and_then_named() {
    let root = tempfile::tempdir().unwrap();
    let _cache = Cache::open(root.path(), CacheOptions::default()).unwrap();
    let fault = owner::enter(root.path(), CacheOptions::default()).await.unwrap_err();
    let CacheFault::OwnerBusy { pid, reason } = fault else { panic!("{fault}") };
    assert_eq!(pid, std::process::id());
    assert!(reason.contains("cannot connect"), "{reason}");
}

#[test]
fn a_cache_has_one_owner_and_the_lock_ends_with_it() {
    let root = tempfile::tempdir().unwrap();
    let cache = Cache::open(root.path(), CacheOptions::default()).unwrap();
    let fault = Cache::open(root.path(), CacheOptions::default()).unwrap_err();
    assert!(matches!(fault, CacheFault::OwnerBusy { pid, .. } if pid == std::process::id()), "{fault}");
    assert_eq!(owner_pid(cache.layout()), std::process::id());
    drop(cache);
    drop(Cache::open(root.path(), CacheOptions::default()).unwrap());
}

#[tokio::test]
async fn a_cache_that_lies_deeper_than_a_sockets_path_is_long_has_its_socket() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("d".repeat(100)).join("e".repeat(100));
    let cache = Cache::open(&deep, CacheOptions::default()).unwrap();
    let _server = Server::bind(&cache).unwrap();
    owner::Client::connect(cache.layout()).await.unwrap();
    let mode = std::fs::metadata(cache.layout().owner_socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Not a test by itself: a process of another user that asks.
#[test]
fn child_of_another_user() {
    let Ok(socket) = std::env::var("TIDEGATE_CACHE_SOCKET") else { return };
    let line = serde_json::json!({"protocol": PROTOCOL, "request": request()}).to_string() + "\n";
    let mut stream = UnixStream::connect(socket).unwrap();
    drop(stream.write_all(line.as_bytes()));
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    assert_eq!(answer, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_another_user_is_turned_away() {
    if !rustix::process::geteuid().is_root() {
        println!("not shown: only root can become another user");
        return;
    }
    let ask = |socket: PathBuf| {
        // Whatever the folder's and the socket's modes allow, the peer's user decides.
        let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        open(socket.parent().unwrap(), 0o755);
        open(&socket, 0o777);
        let child = Command::new(crate::model::ITSELF)
            .args(["--exact", "owner::child_of_another_user"])
            .env("TIDEGATE_CACHE_SOCKET", &socket)
            .uid(65_534)
            .output()
            .unwrap();
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let (out, said) = with_hanging_owner(ask).await;
    assert!(out.contains("1 passed"), "{out}");
    assert_eq!(said, Vec::<&str>::new());
}

/// The real fetch behind the owner.
struct Fetches {
    cache: Arc<Cache>,
    store: tidegate_modelcache::remote::Remote,
}

#[async_trait]
impl Serve for Fetches {
    async fn serve(&self, request: Request, sink: Sink<'_>) -> Result<Value, CacheFault> {
        let Request::Pull { model, .. } = request else { return Err(CacheFault::Cancelled) };
        let options = crate::model::options();
        let published = tidegate_modelcache::fetch::fetch(&self.cache, &self.store, &model, &options, sink).await?;
        Ok(json!(published.fetched_bytes))
    }
}

/// Not a test by itself: one process that pulls from a folder as a store, and says how many bytes came for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_pulls() {
    let Some(root) = std::env::var_os("TIDEGATE_PULL_ROOT") else { return };
    let root = PathBuf::from(root);
    let make = |cache: Arc<Cache>| {
        let store = crate::model::folder_store(&root.join("store"));
        Ok(Fetches { cache, store })
    };
    let options = CacheOptions { keep_free: tidegate_modelcache::room::KeepFree::Bytes(0), ..CacheOptions::default() };
    let done = perform(&root.join("cache"), options, &request(), &|_| (), make).await.unwrap();
    println!("\nfetched {done}");
}

#[tokio::test]
async fn processes_that_race_on_one_digest_with_the_real_fetch_read_each_byte_once() {
    for seed in 0..4 {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("store")).unwrap();
        let model = crate::model::Model::small(seed, 600_000);
        model.put(&crate::model::folder_store(&root.path().join("store"))).await;
        let start = || {
            Command::new(crate::model::ITSELF)
                .args(["--exact", "owner::child_that_pulls", "--nocapture"])
                .env("TIDEGATE_PULL_ROOT", root.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let racing = [start(), start(), start()];
        let mut fetched = Vec::new();
        for child in racing {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{text}");
            fetched.extend(text.lines().find_map(|line| line.strip_prefix("fetched ")?.parse::<u64>().ok()));
        }
        fetched.sort_unstable();
        // Who only follows reads nothing. `config.json` is in the model twice and read once.
        let once = model.manifest.total_bytes() - model.bytes("config.json").len() as u64;
        assert_eq!((fetched.len(), fetched[0], fetched[1]), (3, 0, 0), "{fetched:?}");
        assert!(fetched[2] == once || fetched[2] == model.manifest.total_bytes(), "{fetched:?}, {once}");
        model.is_exact(&Layout::new(root.path().join("cache")), "raced");
    }
}
