//! One engine, minded.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, setsid, wait};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal as listen};
use tokio::time::{Instant, sleep_until};

use super::clients::{Change, Clients, Told};
use super::{LEFTOVER_PATIENCE, ORPHAN_PATIENCE, TERM_EVERY};
use crate::files;
use crate::instance_folder::{Ending, InstanceFolder, Launch, Minding, SeenTree};
use crate::process::{Proc, boot_id, descendants, signal};
use crate::report::Exit;

/// How often the tree is written down where no cgroup holds it.
const RECORD_EVERY: Duration = Duration::from_secs(1);
/// How often a cgroup that is not empty yet is looked at, after the last child was collected.
const EMPTY_EVERY: Duration = Duration::from_millis(20);

/// Minds the engine of a folder to its end. Its id goes to standard output as soon as it runs.
pub(super) fn run(folder: &InstanceFolder) -> io::Result<()> {
    // Fails where we lead a session already.
    let _: rustix::io::Result<Pid> = setsid();
    let launch: Launch = files::read(&folder.launch())?.ok_or(io::ErrorKind::NotFound)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(mind(folder, launch))
}

/// A stop in progress.
#[derive(Clone, Copy, Debug)]
struct Stop {
    kill_at: Instant,
    next: Instant,
}

#[derive(Debug)]
struct Minder<'a> {
    folder: &'a InstanceFolder,
    launch: Launch,
    boot_id: String,
    engine: Pid,
    engine_proc: Proc,
    exit: Option<Exit>,
    /// Whether the end was asked for, before it came.
    is_stopped: bool,
    stop: Option<Stop>,
    orphan_at: Option<Instant>,
    seen: Vec<Proc>,
    record_at: Instant,
}

async fn mind(folder: &InstanceFolder, launch: Launch) -> io::Result<()> {
    // Signal handlers first: a child that ends at once must not be missed.
    let mut children = listen(SignalKind::child())?;
    let mut ends = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(listen);
    set_child_subreaper(Some(getpid()))?;
    let (_open, path) = folder.socket()?;
    let mut clients = Clients::new(UnixListener::bind(path)?);
    let (engine, engine_proc) = spawn(folder, &launch)?;
    let now = Instant::now();
    let mut minder = Minder {
        folder,
        boot_id: boot_id(),
        engine,
        engine_proc,
        exit: None,
        is_stopped: false,
        stop: None,
        orphan_at: launch.orphan_after_ms.map(|ms| now + Duration::from_millis(ms)),
        seen: Vec::new(),
        record_at: now,
        launch,
    };
    minder.announce()?;
    loop {
        if minder.reap() {
            return minder.end().await;
        }
        tokio::select! {
            _ = children.recv() => {}
            () = any(&mut ends) => minder.stop_within(ORPHAN_PATIENCE),
            change = clients.next() => minder.hear(change, clients.count()),
            () = due(minder.stop.map(|stop| stop.next)) => minder.strike(),
            () = due(minder.orphan_at) => {
                minder.orphan_at = None;
                minder.stop_within(ORPHAN_PATIENCE);
            }
            () = due(minder.must_record().then_some(minder.record_at)) => minder.record(),
        }
    }
}

/// Starts the engine by way of ourselves: that process enters the cgroups before it becomes the engine.
fn spawn(folder: &InstanceFolder, launch: &Launch) -> io::Result<(Pid, Proc)> {
    let out = OpenOptions::new().create(true).append(true).open(folder.log())?;
    let err = out.try_clone()?;
    // The program may have been replaced on the disk since: this is the one that runs.
    let mut command = Command::new("/proc/self/exe");
    command.args(&launch.lead).arg("--enter").arg(folder.path());
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let engine = Pid::from_child(&command.spawn()?);
    // It may have ended already; nobody else has its number until it is collected.
    let ended = Proc { pid: engine.as_raw_nonzero().get(), start: 0 };
    Ok((engine, Proc::of(ended.pid).unwrap_or(ended)))
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
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

impl Minder<'_> {
    /// Says who we are, on disk and to whoever started us. That nobody reads it is fine.
    fn announce(&self) -> io::Result<()> {
        let minder = Proc::of(getpid().as_raw_nonzero().get()).ok_or(io::ErrorKind::NotFound)?;
        let minding = Minding { boot_id: self.boot_id.clone(), minder, engine: self.engine_proc };
        files::write(&self.folder.minding(), &minding)?;
        let mut line = serde_json::to_vec(&minding)?;
        line.push(b'\n');
        let _: io::Result<()> = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    }

    fn hear(&mut self, change: Change, count: usize) {
        match change {
            Change::Said(Told::Stop(patience)) => self.stop_within(patience),
            Change::Said(Told::Orphan(after)) => {
                self.launch.orphan_after_ms = after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            }
            Change::Number => {}
        }
        self.orphan_at = match (count, self.launch.orphan_after_ms) {
            (0, Some(ms)) => self.orphan_at.or_else(|| Instant::now().checked_add(Duration::from_millis(ms))),
            (0, None) | (1.., _) => None,
        };
    }

    /// Collects the dead. Whether nobody is left.
    fn reap(&mut self) -> bool {
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
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                // No child is left. (The engine was one, so its exit is known.)
                Err(_) => return true,
            }
        }
    }

    fn stop_within(&mut self, patience: Duration) {
        self.is_stopped |= self.exit.is_none();
        self.end_within(patience);
    }

    /// Begins to end the tree, or shortens the time that it has.
    fn end_within(&mut self, patience: Duration) {
        let now = Instant::now();
        let kill_at = now.checked_add(patience).unwrap_or(now);
        let kill_at = self.stop.map_or(kill_at, |stop| stop.kill_at.min(kill_at));
        self.stop = Some(Stop { kill_at, next: now });
    }

    fn strike(&mut self) {
        let now = Instant::now();
        let Some(stop) = &mut self.stop else { return };
        let is_over = now >= stop.kill_at;
        stop.next = if is_over { now + TERM_EVERY } else { (now + TERM_EVERY).min(stop.kill_at) };
        if is_over {
            if self.exit.is_none() {
                // While its first process is not collected, its number is nobody else's.
                let _: Result<(), Errno> = kill_process_group(self.engine, Signal::KILL);
            }
            self.launch.cage.kill();
            signal(&descendants(getpid()), Signal::KILL);
        } else if self.exit.is_none() {
            // Its first process ends its own children in its own order.
            signal(&[self.engine_proc], Signal::TERM);
        } else {
            signal(&descendants(getpid()), Signal::TERM);
        }
    }

    const fn must_record(&self) -> bool {
        self.launch.cage.is_empty()
    }

    /// Writes the tree down, should we be killed and it have lost its mark. A machine that boots anew forgets it: not
    /// synced.
    fn record(&mut self) {
        self.record_at = Instant::now() + RECORD_EVERY;
        let procs = descendants(getpid());
        if procs == self.seen {
            return;
        }
        self.seen.clone_from(&procs);
        let tree = SeenTree { boot_id: self.boot_id.clone(), procs };
        let path = self.folder.tree();
        let part = path.with_extension("part");
        let written = serde_json::to_vec(&tree).map_err(io::Error::from).and_then(|text| fs::write(&part, text));
        if written.and_then(|()| fs::rename(&part, &path)).is_err() {
            self.seen.clear();
        }
    }

    /// Nobody descends from us any more: sees to it that the cgroup is empty too, and says how it ended.
    async fn end(self) -> io::Result<()> {
        let oom_kills = self.launch.cage.oom_kills().unwrap_or(0);
        while !self.launch.cage.procs().is_empty() {
            self.launch.cage.kill();
            tokio::time::sleep(EMPTY_EVERY).await;
        }
        // The node removes what we could not.
        let _: io::Result<()> = self.launch.cage.remove();
        let ending = Ending { exit: self.exit, at: Timestamp::now(), is_stopped: self.is_stopped, oom_kills };
        files::write(&self.folder.ending(), &ending)
    }
}
