//! The fake engine as a program.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;

use serde_json::json;
use tidegate_engine::client::{Endpoint, Head, Pool, PoolSettings};

struct Program {
    child: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Program {
    fn start(switches: &str, args: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-engine"))
            .args(args)
            .args(["--host", "127.0.0.1", "--port", &port.to_string()])
            .env("FAKE_ENGINE", switches)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    /// The log up to the line that holds this; all of it when none does.
    fn log_until(&mut self, mark: &str) -> String {
        let mut log = String::new();
        loop {
            let mut line = String::new();
            if self.log.read_line(&mut line).unwrap() == 0 {
                return log;
            }
            log.push_str(&line);
            if line.contains(mark) {
                return log;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn pool(&self) -> Arc<Pool> {
        Pool::new(Endpoint::parse(&format!("http://{}", self.address), None, None).unwrap(), PoolSettings::default())
    }
}

const LINE: [&str; 6] = ["serve", "/models/tiny", "--served-model-name", "tiny", "--max-model-len", "2048"];

#[tokio::test]
async fn it_boots_in_vllms_phases_serves_and_ends_when_asked() {
    let mut program = Program::start("", &LINE);
    let log = program.log_until("Starting vLLM server on");
    let marks = [
        "Resolved architecture",
        "Initializing a V1 LLM engine",
        "Starting to load model",
        "Loading weights took",
        "torch.compile takes",
        "init engine (profile, create kv cache, warmup model) took",
        "Starting vLLM server on",
    ];
    let places: Vec<_> =
        marks.iter().map(|mark| log.find(mark).unwrap_or_else(|| panic!("no {mark}: {log}"))).collect();
    assert!(places.is_sorted(), "{log}");
    let pool = program.pool();
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    let answer = pool.send(Head::post_json("/v1/chat/completions"), body.into()).await.unwrap();
    assert_eq!(answer.head.status, 200);
    program.signal(rustix::process::Signal::TERM);
    assert!(program.child.wait().unwrap().success());
    assert_eq!(program.log_until("nothing"), "", "its children have ended: nobody holds its log");
}

#[test]
fn what_fails_in_a_worker_is_the_first_traceback_and_the_port_never_opens() {
    let mut program = Program::start("oom-at-load", &LINE);
    assert!(!program.child.wait().unwrap().success());
    let log = program.log_until("nothing");
    let cause = tidegate_engine::launch::root_cause(&log);
    assert!(cause.as_deref().is_some_and(|cause| cause.contains("CUDA out of memory")), "{cause:?}: {log}");
    assert!(TcpStream::connect(program.address).is_err());
}

#[test]
fn its_core_and_workers_outlive_a_killed_api_server_as_the_real_ones_do() {
    let mut program = Program::start("workers=2", &LINE);
    let log = program.log_until("Starting vLLM server on");
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let mark = "(EngineCore pid=";
    let core: i32 = log.split(mark).nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
    let core = rustix::process::Pid::from_raw(core).unwrap();
    rustix::process::test_kill_process(core).expect("it lives on");
    rustix::process::kill_process(core, rustix::process::Signal::TERM).unwrap();
    assert_eq!(program.log_until("nothing"), "", "the core took its workers with it");
}

#[test]
fn a_compile_cache_that_is_laid_out_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-engine"))
            .args(LINE)
            .args(["--port", &port.to_string()])
            .env("VLLM_CACHE_ROOT", folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut program = Program { child, log, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        let log = program.log_until("Starting vLLM server on");
        program.signal(rustix::process::Signal::TERM);
        program.child.wait().unwrap();
        log
    };
    assert!(run().contains("torch.compile takes"));
    assert!(run().contains("Directly load the compiled graph(s)"));
}

#[tokio::test]
async fn llama_cpps_port_answers_503_while_it_loads() {
    const LINE: [&str; 8] = ["-m", "/models/tiny.gguf", "--alias", "tiny", "-c", "2048", "-np", "4"];
    let mut loading = Program::start("load=3600000", &LINE);
    loading.log_until("loading model");
    let health = loading.pool().send(Head::get("/health"), "".into()).await.unwrap();
    assert_eq!(health.head.status, 503);
    loading.child.kill().unwrap();
    loading.child.wait().unwrap();

    let mut program = Program::start("", &LINE);
    program.log_until("server is listening");
    let props = program.pool().send(Head::get("/props"), "".into()).await.unwrap();
    let props: serde_json::Value = serde_json::from_slice(&props.body.collect(1 << 20).await.unwrap()).unwrap();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512, "shared out over four slots");
    program.signal(rustix::process::Signal::TERM);
    assert!(program.child.wait().unwrap().success());
}
