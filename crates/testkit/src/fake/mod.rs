//! A fake engine: dialect × fault, on a loopback port or in memory.

mod answers;
mod life;
mod plan;
mod program;
mod refusal;
mod script;
pub(crate) mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tidegate_engine::client::{Connect, Connecting, Io};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

pub use program::{fake_engine_program, workspace_program};
pub use refusal::Refusal;
pub use script::{Fault, Pace, Script, Shape, ToolCall};
pub use wire::Recorded;

use life::Life;
use wire::{Played, Wire};

/// Bytes that an in-memory connection holds in each direction.
pub const DUPLEX_BYTES: usize = 64 * 1024;

/// How a request that ran the model ended, as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// All was said.
    Done,
    /// The peer left before.
    PeerLeft,
    /// It was refused with this status.
    Refused(u16),
    /// The script's fault ended it.
    Fault,
}

/// The engine's own record of one request that ran the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    /// The answer's id.
    pub id: String,
    /// The `x-request-id` it came with.
    pub request_id: Option<String>,
    /// Prompt tokens.
    pub prompt: u64,
    /// Of these, cached.
    pub cached: u64,
    /// Tokens that left.
    pub output: u64,
    /// How it ended.
    pub finish: Finish,
}

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Every request in full, in order of arrival.
    pub requests: Vec<Recorded>,
    /// Every request that ran the model and has ended, in order of their ends.
    pub usage: Vec<UsageRow>,
    /// Requests that run the model now.
    pub running: usize,
    /// The most that ever ran at once.
    pub running_max: usize,
    /// Connections accepted.
    pub connections: usize,
    /// Tokens that left, in all.
    pub generated: u64,
    /// Prompt tokens of requests that ran, in all.
    pub prompted: u64,
}

struct Shared {
    script: Mutex<Script>,
    log: watch::Sender<Log>,
    life: watch::Sender<Life>,
    is_listening: AtomicBool,
}

enum Command {
    Listen(oneshot::Sender<io::Result<()>>),
    StopListening(oneshot::Sender<()>),
    Adopt(DuplexStream),
}

/// A running fake engine. It ends when this is dropped.
pub struct FakeEngine {
    addr: SocketAddr,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    task: AbortHandle,
    /// Owns the task.
    _tasks: JoinSet<()>,
}

impl FakeEngine {
    /// Starts one on a free loopback port, in the runtime of the caller.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(script: Script) -> io::Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), script).await
    }

    /// The same on this address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn start_at(addr: SocketAddr, script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            log: watch::Sender::new(Log::default()),
            life: watch::Sender::new(Life::default()),
            is_listening: AtomicBool::new(true),
        });
        let (commands, inbox) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let task = tasks.spawn(serve(Some(listener), addr, Arc::clone(&shared), inbox));
        Ok(Self { addr, shared, commands, task, _tasks: tasks })
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The same as an engine URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Reaches it over in-memory streams.
    #[must_use]
    pub fn connector(&self) -> Arc<dyn Connect> {
        Arc::new(Connector { commands: self.commands.clone(), shared: Arc::clone(&self.shared) })
    }

    /// Gives it another script, from the next request on.
    pub fn set(&self, script: Script) {
        *self.shared.script.lock() = script;
    }

    /// Changes its script, from the next request on.
    pub fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock());
    }

    /// Closes the port: connects are refused. Open connections stay.
    pub async fn stop_listening(&self) {
        let (done, is_done) = oneshot::channel();
        if self.commands.send(Command::StopListening(done)).is_ok() {
            drop(is_done.await);
        }
    }

    /// Opens the same port again.
    ///
    /// # Errors
    /// When somebody else has taken it.
    pub async fn listen_again(&self) -> io::Result<()> {
        let (done, is_done) = oneshot::channel();
        drop(self.commands.send(Command::Listen(done)));
        is_done.await.map_err(io::Error::other)?
    }

    /// Dies as a killed process does: every connection ends, the port closes.
    pub fn kill(&self) {
        self.task.abort();
    }

    /// Every request so far, in full.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.log.borrow().requests.clone()
    }

    /// Requests so far that ran a model (everything else than probes, scrapes and the like).
    #[must_use]
    pub fn runs(&self) -> Vec<Recorded> {
        let log = self.shared.log.borrow();
        log.requests.iter().filter(|request| answers::Route::of(request.path()).is_some()).cloned().collect()
    }

    /// The engine's own record of what it generated.
    #[must_use]
    pub fn usage_log(&self) -> Vec<UsageRow> {
        self.shared.log.borrow().usage.clone()
    }

    /// All that happened so far.
    #[must_use]
    pub fn log(&self) -> Log {
        self.shared.log.borrow().clone()
    }

    /// Waits until the log shows something.
    pub async fn wait_for(&self, mut is_so: impl FnMut(&Log) -> bool) -> Log {
        let mut log = self.shared.log.subscribe();
        // The sender lives in `self`, so this ends only with what was waited for.
        match log.wait_for(|log| is_so(log)).await {
            Ok(log) => log.clone(),
            Err(_) => self.log(),
        }
    }
}

impl std::fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeEngine").field("addr", &self.addr).finish_non_exhaustive()
    }
}

struct Connector {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connect for Connector {
    fn connect(&self) -> Connecting {
        let (ours, engine) = tokio::io::duplex(DUPLEX_BYTES);
        let is_open =
            self.shared.is_listening.load(Ordering::SeqCst) && self.commands.send(Command::Adopt(engine)).is_ok();
        Box::pin(async move {
            if is_open { Ok(Box::new(ours) as Box<dyn Io>) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
        })
    }
}

async fn serve(
    mut listener: Option<TcpListener>,
    addr: SocketAddr,
    shared: Arc<Shared>,
    mut inbox: mpsc::UnboundedReceiver<Command>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                None => return,
                Some(Command::Adopt(stream)) => {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
                Some(Command::StopListening(done)) => {
                    listener = None;
                    shared.is_listening.store(false, Ordering::SeqCst);
                    // Whoever asked may be gone.
                    let _: Result<(), ()> = done.send(());
                }
                Some(Command::Listen(done)) => {
                    let bound = TcpListener::bind(addr).await;
                    shared.is_listening.store(bound.is_ok(), Ordering::SeqCst);
                    drop(done.send(bound.map(|bound| listener = Some(bound))));
                }
            },
            accepted = accept(listener.as_ref()) => if let Ok(stream) = accepted {
                drop(stream.set_nodelay(true));
                connections.spawn(connection(stream, Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn connection<W: Wire>(mut wire: W, shared: Arc<Shared>) {
    shared.log.send_modify(|log| log.connections += 1);
    let mut buffer = BytesMut::with_capacity(4_096);
    // An error is a peer that went away in the middle of a request: nothing to answer.
    while let Ok(Some(request)) = wire::read_request(&mut wire, &mut buffer).await {
        if !matches!(answer(&mut wire, &mut buffer, &request, &shared).await, Ok(Played::Whole)) {
            return;
        }
    }
}

/// Counts a request as running for as long as it lives, and writes its row at the end, even when the engine is killed.
struct Running<'a> {
    shared: &'a Shared,
    row: UsageRow,
}

impl<'a> Running<'a> {
    fn new(shared: &'a Shared, row: UsageRow) -> Self {
        shared.log.send_modify(|log| {
            log.running += 1;
            log.running_max = log.running_max.max(log.running);
        });
        Self { shared, row }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.log.send_modify(|log| {
            log.running -= 1;
            log.usage.push(self.row.clone());
        });
    }
}

async fn answer<W: Wire>(
    wire: &mut W,
    buffer: &mut BytesMut,
    request: &Recorded,
    shared: &Shared,
) -> io::Result<Played> {
    shared.log.send_modify(|log| log.requests.push(request.clone()));
    let has_sleep_routes = shared.script.lock().has_sleep_routes;
    if has_sleep_routes && let Some(played) = life::answer(wire, buffer, request, shared).await {
        return played;
    }
    let Some(route) = answers::Route::of(request.path()) else {
        let log = shared.log.borrow().clone();
        let life = *shared.life.borrow();
        let steps = plan::other(&shared.script.lock(), request, &log, life);
        return wire::play(wire, buffer, steps, None, |_| {}).await;
    };
    let mut life = shared.life.subscribe();
    // One that arrives while the engine sleeps is held, and counted nowhere.
    if !life::awake(wire, buffer, &mut life).await {
        return Ok(Played::PeerLeft);
    }
    let serial = shared.log.borrow().requests.len() as u64;
    let planned = {
        let mut script = shared.script.lock();
        let fault = if script.faults.is_empty() { script.fault.clone() } else { script.faults.remove(0) };
        let now = *life.borrow();
        let is_stuck = script.is_stuck || now.is_stuck;
        if fault == Some(Fault::OutOfMemory) {
            shared.life.send_modify(|life| life.is_stuck = true);
        }
        let fault = if is_stuck { Some(Fault::Hang) } else { fault };
        if now.says_garbage(script.wakes_wrong) {
            plan::run(&script.garbled(), fault.as_ref(), route, request, serial)
        } else {
            plan::run(&script, fault.as_ref(), route, request, serial)
        }
    };
    let row = UsageRow {
        id: planned.id,
        request_id: request.header("x-request-id").map(ToOwned::to_owned),
        prompt: planned.prompt,
        cached: planned.cached,
        output: 0,
        finish: Finish::PeerLeft,
    };
    let mut running = Running::new(shared, row);
    let mut prompt = planned.prompt;
    let played = wire::play(wire, buffer, planned.steps, Some(life), |tokens| {
        running.row.output += tokens;
        let prompt = std::mem::take(&mut prompt);
        shared.log.send_modify(|log| {
            log.generated += tokens;
            log.prompted += prompt;
        });
    })
    .await;
    if matches!(played, Ok(Played::Whole | Played::Over)) {
        running.row.finish = planned.finish;
    }
    played
}

/// Long enough that no test ends by it.
pub(crate) const LONG: Duration = Duration::from_secs(86_400);
