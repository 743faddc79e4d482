//! A fake engine as a program: started, watched, stopped and killed as vLLM or llama.cpp would be.
//!
//! ```text
//! fake-engine serve MODEL --served-model-name N --host H --port P …     like `vllm serve`
//! fake-engine -m FILE --alias N --host H --port P -c N …                like `llama-server`
//! ```
//!
//! Arguments that it does not know are ignored with their values. As vLLM it is three processes or more (API server,
//! engine core, workers), writes vLLM's boot lines, and opens its port only when it is loaded; when the API server is
//! killed, the others live on, as the real ones do. What it does and how it fails stands in the variable `FAKE_ENGINE`,
//! `name` or `name=value` with commas between:
//!
//! | word | meaning |
//! | --- | --- |
//! | `configure=MS`, `load=MS`, `compile=MS` | how long these phases of its start take (default 20 each) |
//! | `workers=N`, `memory=MB` | worker processes (default 1), and what each holds |
//! | `ttft=MS`, `pace=MS`, `tokens=N`, `answer=TEXT`, `context=N` | its answers; `context` is what it really takes |
//! | `exit-at-load`, `oom-at-load` | the worker fails while it loads |
//! | `oom` | the first request finds no memory, the others hang |
//! | `hang` | every request hangs; SIGUSR1 does that later, SIGUSR2 ends it |
//! | `not-found` | requests get 404 |
//! | `empty`, `repeated` | it says nothing, or `!!!!!!` |
//! | `garbage-after-wake` | as `repeated`, after any wake |
//! | `slow-stop=MS`, `ignore-term` | after SIGTERM |
//! | `core-undetected` | when its core dies, the API server lives on and answers all but requests |

#![expect(clippy::print_stderr, reason = "an engine's log is what it prints")]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidegate_testkit::{FakeEngine, Fault, Refusal, Script};
use tokio::signal::unix::{SignalKind, signal};

/// Tells a process of ours what it is.
const ROLE: &str = "FAKE_ENGINE_ROLE";
/// The switches.
const SWITCHES: &str = "FAKE_ENGINE";
/// A child whose parent is gone ends after this long, so that a test that failed leaves nothing for ever.
const ORPHAN_MAX: Duration = Duration::from_secs(120);
/// From the end of the core to that of the API server.
const CORE_MISSED: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let switches = Switches::read(&std::env::var(SWITCHES).unwrap_or_default());
    let done = match std::env::var(ROLE).as_deref() {
        Ok("core") => core(&switches),
        Ok("worker") => worker(&switches),
        _ => api(&switches, &Args::read(std::env::args().skip(1))),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fake-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What `FAKE_ENGINE` says.
struct Switches(BTreeMap<String, String>);

impl Switches {
    fn read(text: &str) -> Self {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let pair = |word: &str| match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => (word.to_owned(), String::new()),
        };
        Self(words.map(pair).collect())
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }

    fn time(&self, name: &str, default_ms: u64) -> Duration {
        Duration::from_millis(self.number(name).unwrap_or(default_ms))
    }

    fn script(&self, args: &Args) -> Script {
        let mut script =
            if args.is_llamacpp { Script::llamacpp(&args.served_name) } else { Script::vllm(&args.served_name) };
        script.context_tokens = args.context_tokens;
        script.context_served = self.number("context");
        // Tokens are counted, so that a long prompt is a long one.
        script.prompt_tokens = None;
        script.embeds = true;
        script.has_sleep_routes = std::env::var("VLLM_SERVER_DEV_MODE").as_deref() == Ok("1");
        script.wakes_wrong = self.is_on("garbage-after-wake");
        script.is_stuck = self.is_on("hang");
        if let Some(tokens) = self.number("tokens").and_then(|tokens| usize::try_from(tokens).ok()) {
            script = script.answering(tokens);
        }
        if let Some(answer) = self.0.get("answer") {
            script = script.saying(answer);
        }
        if self.is_on("repeated") {
            script = script.saying("!!!!!!");
        }
        if self.is_on("empty") {
            script.tokens.clear();
        }
        if self.is_on("oom") {
            script.faults = vec![Some(Fault::OutOfMemory)];
        }
        if self.is_on("not-found") {
            script.fault = Some(Fault::Refuse(Refusal::NotFound));
        }
        script.paced(self.time("ttft", 0), self.time("pace", 0))
    }
}

/// What the command line says.
struct Args {
    model: String,
    served_name: String,
    address: SocketAddr,
    context_tokens: u64,
    is_llamacpp: bool,
}

impl Args {
    fn read(words: impl Iterator<Item = String>) -> Self {
        let mut args = Self {
            model: String::new(),
            served_name: String::new(),
            address: SocketAddr::from(([127, 0, 0, 1], 8_000)),
            context_tokens: 8_192,
            is_llamacpp: false,
        };
        let mut slots = 1;
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                if word != "serve" && args.model.is_empty() {
                    args.model = word;
                }
                continue;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, words.next_if(|next| !next.starts_with('-'))),
            };
            args.flag(&name, &value.unwrap_or_default(), &mut slots);
        }
        if args.is_llamacpp {
            // Its context is shared out over its slots.
            args.context_tokens /= slots.max(1);
        }
        if args.served_name.is_empty() {
            args.served_name.clone_from(&args.model);
        }
        args
    }

    fn flag(&mut self, name: &str, value: &str, slots: &mut u64) {
        match name {
            "--served-model-name" => value.clone_into(&mut self.served_name),
            "--alias" | "-a" => {
                value.clone_into(&mut self.served_name);
                self.is_llamacpp = true;
            }
            "--model" | "-m" => value.clone_into(&mut self.model),
            "--host" => {
                if let Ok(host) = value.parse::<IpAddr>() {
                    self.address.set_ip(host);
                }
            }
            "--port" => self.address.set_port(value.parse().unwrap_or(8_000)),
            "--max-model-len" | "-c" | "--ctx-size" => {
                self.context_tokens = value.parse().unwrap_or(self.context_tokens);
            }
            "-np" | "--parallel" => *slots = value.parse().unwrap_or(1),
            _ => {}
        }
    }
}

/// One line of vLLM's log.
fn log(process: &str, level: &str, place: &str, text: &str) {
    eprintln!("({process} pid={}) {level} 11-30 14:48:55 [{place}] {text}", std::process::id());
}

/// Another process of ours, which says on its standard output when it is ready.
fn spawn(role: &str, title: &str) -> io::Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg0(title).args(std::env::args().skip(1)).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Waits until a child is ready; false: it ended before.
fn is_ready(child: &mut Child) -> bool {
    let mut line = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    matches!(read, Some(Ok(1..)))
}

fn say_ready() -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(b"ready\n")?;
    out.flush()
}

fn terminate(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // One that is gone needs none.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Waits for the end of a child, a signal, or to have been an orphan for too long; true: the child ended by itself.
fn rest(children: &mut [Child]) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let parent = rustix::process::getppid();
        let mut orphan_since: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = term.recv() => return Ok(false),
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
            for child in &mut *children {
                if child.try_wait()?.is_some() {
                    return Ok(true);
                }
            }
            if rustix::process::getppid() == parent {
                continue;
            }
            if orphan_since.get_or_insert_with(Instant::now).elapsed() > ORPHAN_MAX {
                return Ok(false);
            }
        }
    })
}

fn worker(switches: &Switches) -> io::Result<ExitCode> {
    log("Worker", "INFO", "gpu_model_runner.py:68", "Starting to load model /models/fake...");
    let from = Instant::now();
    sleep(switches.time("load", 20));
    let failure = match (switches.is_on("oom-at-load"), switches.is_on("exit-at-load")) {
        (true, _) => Some("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (_, true) => Some("ValueError: no kernel for this model"),
        (false, false) => None,
    };
    if let Some(failure) = failure {
        for line in ["Traceback (most recent call last):", "  File \"worker.py\", line 1, in load_model", failure] {
            log("Worker", "ERROR", "worker.py:1", line);
        }
        return Ok(ExitCode::FAILURE);
    }
    let megabytes = switches.number("memory").and_then(|memory| usize::try_from(memory).ok()).unwrap_or(0);
    let held = vec![1_u8; megabytes << 20];
    let took = from.elapsed().as_secs_f64();
    log("Worker", "INFO", "default_loader.py:501", &format!("Loading weights took {took:.2} seconds"));
    say_ready()?;
    rest(&mut [])?;
    drop(std::hint::black_box(held));
    Ok(ExitCode::SUCCESS)
}

fn core(switches: &Switches) -> io::Result<ExitCode> {
    log(
        "EngineCore",
        "INFO",
        "core.py:133",
        "Initializing a V1 LLM engine (v0.32.0) with config: model='/models/fake'",
    );
    let count = switches.number("workers").unwrap_or(1).clamp(1, 64);
    let mut workers = (0..count).map(|_| spawn("worker", "VLLM::Worker")).collect::<io::Result<Vec<_>>>()?;
    if !workers.iter_mut().all(is_ready) {
        workers.iter().for_each(terminate);
        let text = "RuntimeError: Engine core initialization failed. See root cause above.";
        log("EngineCore", "ERROR", "core.py:1", text);
        return Ok(ExitCode::FAILURE);
    }
    let from = Instant::now();
    compile(switches)?;
    let took = from.elapsed().as_secs_f64();
    let text = format!("init engine (profile, create kv cache, warmup model) took {took:.2} s");
    log("EngineCore", "INFO", "core.py:402", &text);
    say_ready()?;
    let is_broken = rest(&mut workers)?;
    workers.iter().for_each(terminate);
    for worker in &mut workers {
        worker.wait()?;
    }
    Ok(if is_broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Compiles, or finds what was compiled before where it is told to keep it.
fn compile(switches: &Switches) -> io::Result<()> {
    let kept = std::env::var_os("VLLM_CACHE_ROOT").map(|root| PathBuf::from(root).join("torch_compile_cache/fake.bin"));
    if kept.as_ref().is_some_and(|kept| kept.exists()) {
        let text = "Directly load the compiled graph(s) for dynamic shape from the cache, took 0.001 s";
        log("EngineCore", "INFO", "backends.py:1", text);
        return Ok(());
    }
    let time = switches.time("compile", 20);
    sleep(time);
    if let Some(kept) = kept {
        std::fs::create_dir_all(kept.parent().unwrap_or(&kept))?;
        std::fs::write(kept, b"compiled")?;
    }
    let text = format!("torch.compile takes {:.2} s in total", time.as_secs_f64());
    log("EngineCore", "INFO", "monitor.py:1", &text);
    Ok(())
}

fn api(switches: &Switches, args: &Args) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let script = switches.script(args);
        let (engine, children) = if args.is_llamacpp {
            (llamacpp(switches, args, script).await?, Vec::new())
        } else {
            match vllm(switches, args, script).await? {
                Some((engine, core)) => (engine, vec![core]),
                None => return Ok(ExitCode::FAILURE),
            }
        };
        serve(switches, &engine, children).await
    })
}

/// llama.cpp's port answers 503 from the start.
async fn llamacpp(switches: &Switches, args: &Args, script: Script) -> io::Result<FakeEngine> {
    let engine = FakeEngine::start_at(args.address, Script { is_loading: true, ..script }).await?;
    eprintln!("srv    load_model: loading model '{}'", args.model);
    tokio::time::sleep(switches.time("load", 20)).await;
    engine.change(|script| script.is_loading = false);
    eprintln!("main: model loaded");
    eprintln!("main: server is listening on http://{}", args.address);
    Ok(engine)
}

/// vLLM's port is closed until all is ready.
async fn vllm(switches: &Switches, args: &Args, script: Script) -> io::Result<Option<(FakeEngine, Child)>> {
    log("APIServer", "INFO", "api_utils.py:286", &format!("non-default args: {{'model_tag': '{}'}}", args.model));
    sleep(switches.time("configure", 20));
    log("APIServer", "INFO", "model.py:733", "Resolved architecture: LlamaForCausalLM");
    // On a thread of its own: a signal that comes while it boots must be heard.
    let mut core = spawn("core", "VLLM::EngineCore")?;
    let mut term = signal(SignalKind::terminate())?;
    let pid = core.id();
    let mut booting = tokio::task::spawn_blocking(move || (is_ready(&mut core), core));
    let (is_ready, mut core) = tokio::select! {
        booted = &mut booting => booted.map_err(io::Error::other)?,
        _ = term.recv() => {
            terminate_pid(pid);
            let (_, mut core) = booting.await.map_err(io::Error::other)?;
            core.wait()?;
            return Ok(None);
        }
    };
    if !is_ready {
        core.wait()?;
        log(
            "APIServer",
            "ERROR",
            "core_client.py:1",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        );
        return Ok(None);
    }
    let engine = FakeEngine::start_at(args.address, script).await?;
    log("APIServer", "INFO", "entry.py:140", &format!("Starting vLLM server on http://{}", args.address));
    Ok(Some((engine, core)))
}

fn terminate_pid(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

async fn serve(switches: &Switches, engine: &FakeEngine, mut children: Vec<Child>) -> io::Result<ExitCode> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang = signal(SignalKind::user_defined1())?;
    let mut heal = signal(SignalKind::user_defined2())?;
    let mut core_gone: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = term.recv() => if !switches.is_on("ignore-term") { break },
            _ = interrupt.recv() => if !switches.is_on("ignore-term") { break },
            _ = hang.recv() => engine.change(|script| script.is_stuck = true),
            _ = heal.recv() => engine.change(|script| script.is_stuck = false),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        for child in &mut children {
            if child.try_wait()?.is_some() && core_gone.is_none() {
                core_gone = Some(Instant::now());
                engine.change(|script| script.is_stuck = true);
            }
        }
        let is_noticed = core_gone.is_some_and(|gone| gone.elapsed() >= CORE_MISSED);
        if is_noticed && !switches.is_on("core-undetected") {
            log(
                "APIServer",
                "ERROR",
                "core_client.py:1",
                "Engine core proc EngineCore died unexpectedly, shutting down client.",
            );
            return Ok(ExitCode::FAILURE);
        }
    }
    engine.stop_listening().await;
    tokio::time::sleep(switches.time("slow-stop", 0)).await;
    for child in &mut children {
        terminate(child);
        child.wait()?;
    }
    Ok(ExitCode::SUCCESS)
}
