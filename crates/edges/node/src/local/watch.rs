//! Watching an instance: through its minder's socket while there is one, and after it to the last process.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::Shared;
use super::start::Filled;
use super::table::{Ended, Entry};
use crate::guard::Cage;
use crate::id::InstanceId;
use crate::instance_folder::{Ending, InstanceFolder, Minding};
use crate::process::{self, signal};
use crate::report::{BootMark, Exit, Happened};
use crate::{files, log, port};

/// How often a log is looked at.
const LOG_EVERY: Duration = Duration::from_millis(500);
/// Bytes of a log that are searched for marks in one look.
const LOG_LOOK_MAX: u32 = 1024 * 1024;
/// How often a minder that does not answer yet, or has not ended yet, is tried again.
const MINDER_EVERY: Duration = Duration::from_millis(20);
/// How long after the time that an engine was given its minder has to be gone.
const SILENT_AFTER: Duration = Duration::from_secs(5);
/// How often processes that do not die are killed again.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// How often an empty cgroup is tried to be removed.
const REMOVE_TRIES: u32 = 20;
/// How long after its start an engine may find its port taken and be given the next one.
const PORT_WITHIN: Duration = Duration::from_secs(120);
/// Ports that one instance is given at most.
const PORTS_MAX: u32 = 8;
/// Bytes of a log that a cause is looked for in.
const CAUSE_LOG_MAX: u32 = 1024 * 1024;
/// Exit code that shells give what was killed.
const KILLED_CODE: i32 = 137;

/// What engines say when somebody has their port.
const PORT_TAKEN: [&str; 4] =
    ["address already in use", "address in use", "couldn't bind http server socket", "errno 98"];

impl Shared {
    /// Watches an instance from now on.
    pub(crate) fn watch(shared: &Arc<Self>, id: InstanceId, child: Option<Child>, filled: Option<Filled>) {
        let own = Arc::clone(shared);
        shared.spawn(async move { own.watch_to_the_end(&id, child, filled).await });
    }

    async fn watch_to_the_end(&self, id: &InstanceId, mut child: Option<Child>, filled: Option<Filled>) {
        let Ok((folder, stop)) = self.with(id, |entry| (entry.folder.clone(), entry.stop.subscribe())) else { return };
        let mut tail = Tail::default();
        for attempt in 1.. {
            if self.follow(id, &folder, stop.clone(), &mut tail).await == Followed::Silent {
                let cage = self.with(id, |entry| entry.record.cage.clone()).unwrap_or_default();
                self.sweep(&folder, id, &cage).await;
            }
            if let Some(mut child) = child.take() {
                // Collected, so that its number is free.
                drop(child.wait().await);
            }
            self.look_at_log(id, &mut tail);
            let ending = self.left_nothing(id, &folder).await;
            let again = filled.as_ref().filter(|_| attempt < PORTS_MAX && stop.borrow().is_none());
            match again {
                Some(filled) if self.found_its_port_taken(id, &folder) => {
                    child = self.run_again(id, &folder, filled).await;
                    if child.is_none() {
                        return self.ended(id, ending, true);
                    }
                }
                Some(_) | None => return self.ended(id, ending, false),
            }
        }
    }

    /// Stays connected until the minder is gone, or does not do what it was told.
    async fn follow(
        &self,
        id: &InstanceId,
        folder: &InstanceFolder,
        mut stop: watch::Receiver<Option<Duration>>,
        tail: &mut Tail,
    ) -> Followed {
        let Some(mut stream) = connect(folder).await else {
            self.met(id);
            return Followed::Gone;
        };
        if let Ok(Some(minding)) = files::read::<Minding>(&folder.minding()) {
            let _: Result<(), _> = self.with(id, |entry| entry.minding = Some(minding));
        }
        let orphan = match self.orphan_after_ms() {
            Some(ms) => format!("orphan {ms}\n"),
            None => "orphan never\n".to_owned(),
        };
        let mut told = stream.write_all(orphan.as_bytes()).await;
        self.met(id);
        let mut every = interval(LOG_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        stop.mark_changed();
        let mut byte = [0];
        let mut deadline: Option<Instant> = None;
        while told.is_ok() {
            tokio::select! {
                // It says nothing: what comes is its end.
                _ = stream.read(&mut byte) => return Followed::Gone,
                Ok(()) = stop.changed() => {
                    let patience = *stop.borrow_and_update();
                    if let Some(patience) = patience {
                        let by = Instant::now().checked_add(patience + SILENT_AFTER);
                        deadline = [deadline, by].into_iter().flatten().min();
                        told = stream.write_all(format!("stop {}\n", patience.as_millis()).as_bytes()).await;
                    }
                }
                () = at(deadline) => return Followed::Silent,
                _ = every.tick() => self.look_at_log(id, tail),
            }
        }
        Followed::Gone
    }

    fn met(&self, id: &InstanceId) {
        let _: Result<bool, _> = self.with(id, |entry| entry.met.send_replace(true));
    }

    /// Looks for marks in what the log has got since the last look, and keeps it within bounds.
    fn look_at_log(&self, id: &InstanceId, tail: &mut Tail) {
        let Ok((path, marks, from)) = self.with(id, |entry| {
            let open =
                entry.record.marks.iter().filter(|mark| !entry.record.boot.iter().any(|b| b.phase == mark.phase));
            (entry.folder.log(), open.cloned().collect::<Vec<_>>(), entry.record.log_from)
        }) else {
            return;
        };
        if let Err(error) = log::trim(&path, self.settings.log) {
            tracing::warn!(instance = %id, %error, "a log cannot be kept within its bounds");
        }
        if marks.is_empty() {
            return;
        }
        let Ok(part) = log::part(&path, tail.at.max(from), LOG_LOOK_MAX) else { return };
        let text = tail.take(&part.text, part.next);
        for mark in marks.iter().filter(|mark| text.contains(&mark.text)) {
            let is_news = self.with(id, |entry| {
                let is_news = !entry.record.boot.iter().any(|known| known.phase == mark.phase);
                if is_news {
                    entry.record.boot.push(BootMark { phase: mark.phase.clone(), at: Timestamp::now() });
                    entry.keep();
                }
                is_news
            });
            if is_news == Ok(true) {
                self.events.push(Happened::Booted { instance: id.clone(), phase: mark.phase.clone() });
            }
        }
    }

    /// Returns when no process of the instance is left, whatever became of its minder.
    async fn left_nothing(&self, id: &InstanceId, folder: &InstanceFolder) -> Ending {
        // Nobody has the lock: the minder is gone, also one that was just being started.
        let lock = loop {
            match folder.try_lock() {
                Ok(Some(lock)) => break Some(lock),
                Ok(None) => sleep(MINDER_EVERY).await,
                Err(error) => {
                    tracing::error!(instance = %id, %error, "an instance's lock cannot be tried");
                    break None;
                }
            }
        };
        let cage = self.with(id, |entry| entry.record.cage.clone()).unwrap_or_default();
        let oom_kills = cage.oom_kills().unwrap_or(0);
        self.sweep(folder, id, &cage).await;
        drop(lock);
        self.remove(id, &cage).await;
        let nobody_saw = Ending { exit: None, at: Timestamp::now(), is_stopped: false, oom_kills };
        files::read(&folder.ending()).ok().flatten().unwrap_or(nobody_saw)
    }

    /// Removes an instance's cgroups. The kernel may take a moment after the last process.
    async fn remove(&self, id: &InstanceId, cage: &Cage) {
        for _ in 0..REMOVE_TRIES {
            if cage.remove().is_ok() {
                return;
            }
            sleep(SWEEP_EVERY).await;
        }
        tracing::warn!(instance = %id, "an instance's cgroup cannot be removed: it stays, empty");
    }

    /// Kills whoever is left of an instance, until nobody is.
    pub(crate) async fn sweep(&self, folder: &InstanceFolder, id: &InstanceId, cage: &Cage) {
        let mut is_told = false;
        let mut empty_looks = 0;
        // A cgroup's list is exact; a mark cannot be read for a moment while a process executes another program.
        let looks_needed = if cage.is_empty() { 2 } else { 1 };
        loop {
            let left = folder.survivors(&self.mark(id), cage);
            empty_looks = if left.is_empty() { empty_looks + 1 } else { 0 };
            if empty_looks >= looks_needed {
                return;
            }
            if !left.is_empty() && !is_told {
                tracing::warn!(instance = %id, count = left.len(), "killing what an engine left behind");
                is_told = true;
            }
            cage.kill();
            signal(&left, Signal::KILL);
            sleep(SWEEP_EVERY).await;
        }
    }

    /// Whether somebody else had the instance's port: its log says so, soon after the start, and the port does not bind.
    fn found_its_port_taken(&self, id: &InstanceId, folder: &InstanceFolder) -> bool {
        let Ok(record) = self.with(id, |entry| entry.record.clone()) else { return false };
        let age = Timestamp::now().duration_since(record.started_at).unsigned_abs();
        let says = || {
            let text = log::part(&folder.log(), record.log_from, CAUSE_LOG_MAX).map(|part| part.text.to_lowercase());
            text.is_ok_and(|text| PORT_TAKEN.iter().any(|said| text.contains(said)))
        };
        let is_taken = |port| !port::binds(record.host, port);
        age <= PORT_WITHIN && says() && record.port.is_some_and(is_taken)
    }

    /// Starts the engine again on the next port.
    async fn run_again(&self, id: &InstanceId, folder: &InstanceFolder, filled: &Filled) -> Option<Child> {
        let mut record = self.with(id, |entry| entry.record.clone()).ok()?;
        tracing::warn!(instance = %id, port = record.port, "its port was taken: the engine gets the next one");
        let above = record.port.unwrap_or(0);
        record.boot.clear();
        match self.run(&mut record, folder, filled, above).await {
            Ok((minding, child)) => {
                self.with(id, |entry| {
                    entry.record = record;
                    entry.minding = Some(minding);
                })
                .ok()?;
                Some(child)
            }
            Err(error) => {
                tracing::warn!(instance = %id, %error, "it cannot be started on another port");
                self.sweep(folder, id, &record.cage).await;
                self.remove(id, &record.cage).await;
                None
            }
        }
    }

    /// Writes down how it ended.
    fn ended(&self, id: &InstanceId, ending: Ending, is_port_taken: bool) {
        self.unbook(id);
        let cause = self.with(id, |entry| match is_port_taken {
            true => Some(format!("port_taken: port {} and the next ones", entry.record.port.unwrap_or(0))),
            false => self.cause(entry, &ending),
        });
        let Ok(cause) = cause else { return };
        tracing::info!(instance = %id, cause, "instance ended");
        let _: Result<(), _> = self.with(id, |entry| {
            entry.record.ended = Some(Ended { exit: ending.exit, cause: cause.clone(), at: ending.at });
            entry.model = None;
            entry.keep();
        });
        self.events.push(Happened::Ended { instance: id.clone(), cause });
    }

    fn cause(&self, entry: &Entry, ending: &Ending) -> Option<String> {
        if ending.oom_kills > 0 {
            return Some("out_of_memory: the kernel killed a process of it for want of host memory".to_owned());
        }
        if ending.is_stopped {
            return None;
        }
        let log = log::part(&entry.folder.log(), entry.record.log_from, CAUSE_LOG_MAX).map(|part| part.text);
        let said = || (self.settings.cause)(&log.unwrap_or_default());
        match ending.exit {
            None => Some(unseen_end(&entry.folder).to_owned()),
            Some(exit @ (Exit::Signal(9) | Exit::Code(KILLED_CODE))) => {
                Some(format!("killed ({exit}): by somebody, or by the kernel for want of host memory; see dmesg"))
            }
            Some(exit) => Some(said().map_or_else(|| exit.to_string(), |said| format!("{exit}: {said}"))),
        }
    }
}

/// How following a minder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    /// It is gone.
    Gone,
    /// It was told to end its tree, and did not in time: it may be stopped or wedged.
    Silent,
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Why nobody saw how it ended.
fn unseen_end(folder: &InstanceFolder) -> &'static str {
    match files::read::<Minding>(&folder.minding()) {
        Ok(Some(minding)) if minding.boot_id != process::boot_id() => "the machine was booted anew",
        Ok(Some(_)) => "its minder was killed; whoever was left of it was ended",
        Ok(None) | Err(_) => "its start was cut short; whoever was left of it was ended",
    }
}

/// Connects to the minder: one that is being started listens soon. `None`: there is none.
pub(crate) async fn connect(folder: &InstanceFolder) -> Option<UnixStream> {
    loop {
        let connected: io::Result<UnixStream> = async {
            let (_open, path) = folder.socket()?;
            UnixStream::connect(path).await
        }
        .await;
        if let Ok(stream) = connected {
            return Some(stream);
        }
        match folder.try_lock() {
            Ok(None) => sleep(MINDER_EVERY).await,
            Ok(Some(_)) | Err(_) => return None,
        }
    }
}

/// Where a log is being read.
#[derive(Debug, Default)]
struct Tail {
    at: u64,
    /// The line that was not whole at the last look.
    rest: String,
}

impl Tail {
    /// What is new, from the start of a line on.
    fn take(&mut self, text: &str, next: u64) -> String {
        let whole = std::mem::take(&mut self.rest) + text;
        self.at = next;
        self.rest = match whole.rsplit_once('\n') {
            Some((_, rest)) if rest.len() <= LOG_LOOK_MAX as usize => rest.to_owned(),
            None if whole.len() <= LOG_LOOK_MAX as usize => whole.clone(),
            Some(_) | None => String::new(),
        };
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_found_across_two_looks() {
        let mut tail = Tail::default();
        assert_eq!(tail.take("one\ntw", 6), "one\ntw");
        assert_eq!(tail.take("o thr", 11), "two thr");
        assert_eq!(tail.take("ee\n", 14), "two three\n");
        assert_eq!((tail.take("x", 15).as_str(), tail.at), ("x", 15));
        let long = "y".repeat(LOG_LOOK_MAX as usize);
        tail.take(&long, 16);
        assert_eq!(tail.take("z", 17), "z", "a line without an end is not kept for ever");
    }
}
