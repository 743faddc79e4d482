//! A running `tidegate up` with a fake engine behind it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::fake::{FakeEngine, Script};

/// Nothing here takes this long; it only keeps a broken test from hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer of the gate or its admin port.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }
}

/// A running gate.
pub(crate) struct Gate {
    pub(crate) engine: FakeEngine,
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    child: Child,
    runtime: tokio::runtime::Runtime,
}

/// The documents: one alias `chat` for team `red`, on the engine at `engine`.
pub(crate) fn documents(gate: SocketAddr, admin: SocketAddr, engine: &str) -> String {
    format!(
        "apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {{name: test}}
spec:
  timeZone: Asia/Seoul
  gateway: {{listen: '{gate}', workers: 2, drain: 5s}}
  admin: {{listen: '{admin}'}}
---
kind: Model
metadata: {{name: tiny}}
spec: {{engine: vllm, precision: bf16}}
---
kind: Deployment
metadata: {{name: tiny-v1}}
spec:
  model: tiny
  endpoints: [{{url: '{engine}'}}]
  limits: {{contextTokens: 8192, maxOutputTokens: 256}}
---
kind: Alias
metadata: {{name: chat}}
spec: {{targets: [{{deployment: tiny-v1, weight: 100}}]}}
---
kind: Team
metadata: {{name: red}}
spec:
  models: [{{alias: chat, rpm: 1000}}]
"
    )
}

pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Gate {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(script: Script) -> Self {
        Self::start_with(script, documents)
    }

    /// The same with other documents, which are given the two addresses and the fake engine's URL.
    pub(crate) fn start_with(script: Script, documents: impl FnOnce(SocketAddr, SocketAddr, &str) -> String) -> Self {
        Self::start_in(script, |_, gate, admin, engine| documents(gate, admin, engine))
    }

    /// The same with files beside the documents, whose folder comes first.
    pub(crate) fn start_in(
        script: Script,
        documents: impl FnOnce(&Path, SocketAddr, SocketAddr, &str) -> String,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let engine = runtime.block_on(FakeEngine::start(script)).unwrap();
        let folder = TempDir::new().unwrap();
        let (address, admin) = (free_address(), free_address());
        let site = folder.path().join("site");
        std::fs::create_dir(&site).unwrap();
        std::fs::write(site.join("site.yaml"), documents(&site, address, admin, &engine.url())).unwrap();
        let child = spawn(folder.path());
        let gate = Self { engine, folder, address, admin, child, runtime };
        gate.wait_ready();
        gate
    }

    pub(crate) fn documents(&self) -> PathBuf {
        self.folder.path().join("site/site.yaml")
    }

    /// Starts the process again, after [`Gate::stop`] or [`Gate::kill`].
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.folder.path());
        self.wait_ready();
    }

    fn wait_ready(&self) {
        self.until("ready", || self.get_admin("/readyz").is_some_and(|answer| answer.status == 200));
    }

    /// Looks until something is so.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < PATIENCE, "never: {what}\n{}", self.log());
            std::thread::yield_now();
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Runs a verb on the state folder.
    pub(crate) fn verb(&self, args: &[&str]) -> Output {
        program().args(args).arg("--state").arg(self.folder.path().join("state")).output().unwrap()
    }

    /// Runs a verb that has to succeed, and reads its JSON.
    pub(crate) fn verb_json(&self, args: &[&str]) -> Value {
        let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
        let output = self.verb(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A new key of team `red`.
    pub(crate) fn key(&self) -> String {
        self.verb_json(&["key", "create", "--team", "red"])["secret"].as_str().unwrap().to_owned()
    }

    /// An unstreamed chat.
    pub(crate) fn chat(&self, key: &str) -> Answer {
        self.post(key, r#"{"model":"chat","messages":[{"role":"user","content":"hi"}],"max_tokens":16}"#)
    }

    pub(crate) fn post(&self, key: &str, body: &str) -> Answer {
        send(self.address, &post_text(key, body)).unwrap()
    }

    /// Sends a chat and returns the connection unread.
    pub(crate) fn open(&self, key: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(post_text(key, body).as_bytes()).unwrap();
        stream
    }

    pub(crate) fn get_admin(&self, path: &str) -> Option<Answer> {
        send(self.admin, &format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n"))
    }

    pub(crate) fn metric(&self, series: &str) -> f64 {
        let page = self.get_admin("/metrics").unwrap().body;
        let line = page.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("no {series}: {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Runs a future of the fake engine.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.child.wait().unwrap()
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(9));
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // One that was stopped already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
}

fn spawn(folder: &Path) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    program()
        .arg("up")
        .arg(folder.join("site"))
        .arg("--state")
        .arg(folder.join("state"))
        // There is a driver where a test has made one.
        .env("TIDEGATE_DRIVER_FOLDER", folder.join("site/driver"))
        // There is a cluster where a test has made one.
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Sends a chat to a gate; `None` when nobody listens.
pub(crate) fn post_to(address: SocketAddr, key: &str, body: &str) -> Option<Answer> {
    send(address, &post_text(key, body))
}

fn post_text(key: &str, body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends one request; `None` when nobody listens.
fn send(to: SocketAddr, request: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = if head.contains("transfer-encoding: chunked") { unchunk(body) } else { body.to_owned() };
    Some(Answer { status, head: head.to_owned(), body })
}

fn unchunk(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&rest[..size]);
        text = &rest[(size + 2).min(rest.len())..];
    }
    body
}
