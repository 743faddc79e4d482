//! The minder: a small process between us and an engine that outlives either of them for just as long as it takes to
//! leave nothing behind.
//!
//! It is the own binary again: `… -- PROGRAM ARGS…`, with a pipe as standard input. It becomes the adopter of the
//! engine's orphans, starts the engine in a process group of its own (a Ctrl-C of the terminal does not reach it), and
//! ends the tree when told to (`stop MILLISECONDS`), when the pipe closes because we died, or on SIGTERM. It exits when
//! no process of the tree is left, with the engine's own exit code.
//!
//! | event | what happens |
//! | --- | --- |
//! | `stop N` on the pipe | SIGTERM to the engine's first process every second; after N ms SIGKILL to the tree |
//! | pipe closed; SIGTERM, SIGINT or SIGHUP to the minder | the same with [`ORPHAN_PATIENCE`] |
//! | the engine's first process ends | SIGTERM to what it left behind, SIGKILL after [`LEFTOVER_PATIENCE`] |
//! | no process left | exit |

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, wait};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::exit::Exit;
use super::tree;

/// How long an engine has to end when nobody is left to say how long.
pub const ORPHAN_PATIENCE: Duration = Duration::from_secs(10);
/// How long the children of an engine have to end after its first process has.
pub const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two SIGTERMs: vLLM was seen to lose one while booting (E9).
pub const TERM_EVERY: Duration = Duration::from_secs(1);

/// Exit code when the engine could not be started, as shells say it.
const NOT_STARTED: u8 = 127;
/// Bytes of commands on the pipe that are read at once.
const COMMANDS_MAX: usize = 256;

/// Runs the minder. `args` are what follows the words that lead here: `--`, the engine's program, its arguments.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter().skip_while(|arg| arg == "--");
    let Some(program) = args.next() else { return ExitCode::from(NOT_STARTED) };
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(mind(command))) {
        Ok(exit) => ExitCode::from(exit.to_code()),
        // Standard error is the engine's log.
        Err(error) => {
            drop(io::Write::write_all(&mut io::stderr(), format!("engine not started: {error}\n").as_bytes()));
            ExitCode::from(NOT_STARTED)
        }
    }
}

/// A stop in progress.
struct Stop {
    kill_at: Instant,
    next: Instant,
}

struct Minder {
    engine: Pid,
    exit: Option<Exit>,
    stop: Option<Stop>,
}

async fn mind(mut command: Command) -> io::Result<Exit> {
    // Signal handlers first: a child that ends at once must not be missed.
    let mut children = signal(SignalKind::child())?;
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    set_child_subreaper(Some(getpid()))?;
    let mut pipe = Some(Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?);
    let engine = Pid::from_child(&command.spawn()?);
    let mut minder = Minder { engine, exit: None, stop: None };
    loop {
        if let Some(exit) = minder.reap() {
            return Ok(exit);
        }
        tokio::select! {
            _ = children.recv() => {}
            () = any(&mut ends) => minder.end_within(ORPHAN_PATIENCE),
            told = read_command(&mut pipe) => {
                if told.is_none() {
                    pipe = None;
                }
                minder.end_within(told.unwrap_or(ORPHAN_PATIENCE));
            }
            () = due(minder.stop.as_ref()) => minder.strike(),
        }
    }
}

/// Waits for the next SIGTERM or SIGKILL that is due.
async fn due(stop: Option<&Stop>) {
    match stop {
        Some(stop) => sleep_until(stop.next).await,
        None => std::future::pending().await,
    }
}

/// Waits for any of the signals that could be listened to.
async fn any(signals: &mut [io::Result<Signals>; 3]) {
    std::future::poll_fn(|cx| {
        let is_ready = signals.iter_mut().flatten().any(|signal| signal.poll_recv(cx).is_ready());
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// The shortest patience of the `stop N` lines that came together (each is written at once, so none is torn); `None`
/// when the pipe is closed or says something else. Never returns once it was closed.
async fn read_command(pipe: &mut Option<Receiver>) -> Option<Duration> {
    let Some(pipe) = pipe else { return std::future::pending().await };
    let mut text = [0; COMMANDS_MAX];
    let length = pipe.read(&mut text).await.ok()?;
    std::str::from_utf8(&text[..length]).ok()?.lines().filter_map(patience).min()
}

fn patience(line: &str) -> Option<Duration> {
    line.strip_prefix("stop ")?.parse().ok().map(Duration::from_millis)
}

impl Minder {
    /// Collects the dead. The exit, when nobody is left.
    fn reap(&mut self) -> Option<Exit> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let exit = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code(code),
                        (None, Some(signal)) => Exit::Signal(signal),
                        (None, None) => continue,
                    };
                    if pid == self.engine {
                        self.exit = Some(exit);
                        self.end_within(LEFTOVER_PATIENCE);
                    }
                }
                Ok(None) => return None,
                // No child is left. (The engine was one, so its exit is known.)
                Err(_) => return Some(self.exit.unwrap_or(Exit::Code(-1))),
            }
        }
    }

    /// Begins to end the tree, or shortens the time that it has.
    fn end_within(&mut self, patience: Duration) {
        let now = Instant::now();
        let kill_at = now + patience;
        let kill_at = self.stop.as_ref().map_or(kill_at, |stop| stop.kill_at.min(kill_at));
        self.stop = Some(Stop { kill_at, next: now });
    }

    fn strike(&mut self) {
        let now = Instant::now();
        let Some(stop) = &mut self.stop else { return };
        let is_over = now >= stop.kill_at;
        stop.next = if is_over { now + TERM_EVERY } else { (now + TERM_EVERY).min(stop.kill_at) };
        if is_over {
            // That nobody is left in it is what was wanted.
            let _: Result<(), Errno> = kill_process_group(self.engine, Signal::KILL);
            tree::signal(&tree::descendants(getpid()), Signal::KILL);
        } else if self.exit.is_none() {
            // Its first process ends its own children in its own order.
            tree::signal(&[self.engine], Signal::TERM);
        } else {
            tree::signal(&tree::descendants(getpid()), Signal::TERM);
        }
    }
}
