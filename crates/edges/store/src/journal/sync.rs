//! The thread that brings journals to the disk: at most once per interval, or at once for those that wait.
//!
//! A thread of its own and not a task, because `fdatasync` blocks for as long as the disk likes. It sleeps while
//! nothing is written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

use parking_lot::Mutex;

use super::segment::{Segment, Synced};
use super::{Durability, JournalError, Shared};
use crate::failpoint;

/// Rung by a core when it has written. Only the first ring since the last look costs more than a load.
///
/// All accesses are sequentially consistent: a core publishes `written` and then looks at `rung`; the thread clears
/// `rung` and then looks at `written`. So either the core sees it cleared and rings, or the thread sees the bytes.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if self.rung.load(Ordering::SeqCst) || self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}

/// Owns the syncing thread; dropping it syncs what is left and waits for the thread.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, JournalError> {
        let run = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("journal-sync".to_owned())
            .spawn(move || run_thread(&run))
            .map_err(|source| JournalError::from_io("start the syncing thread", &shared.folder, source))?;
        *shared.bell.thread.lock() = Some(thread.thread().clone());
        // A ring between spawn and here would have found nobody to wake.
        thread.thread().unpark();
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn stop(mut self) {
        self.join();
    }

    fn join(&mut self) {
        self.shared.bell.stop.store(true, Ordering::SeqCst);
        self.shared.bell.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the journal's syncing thread panicked");
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.join();
    }
}

fn run_thread(shared: &Shared) {
    loop {
        while !shared.bell.rung.swap(false, Ordering::SeqCst) {
            if shared.bell.stop.load(Ordering::SeqCst) {
                sync_all(shared);
                return;
            }
            thread::park();
        }
        if shared.options.durability == Durability::Process {
            // Before the sync, not after it: the writes right behind the first one would have to wait for the disk.
            rest(shared, Instant::now());
            // What was written meanwhile belongs to this sync.
            shared.bell.rung.store(false, Ordering::SeqCst);
        }
        sync_all(shared);
    }
}

/// Sleeps until the interval since `begun` is over, or the thread is to stop.
fn rest(shared: &Shared, begun: Instant) {
    loop {
        let left = shared.options.sync_interval.saturating_sub(begun.elapsed());
        if left.is_zero() || shared.bell.stop.load(Ordering::SeqCst) {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Syncs every file that has grown, the folder first when a file is new.
fn sync_all(shared: &Shared) {
    if shared.folder_changed.swap(false, Ordering::SeqCst)
        && let Err(error) = std::fs::File::open(&shared.folder).and_then(|folder| folder.sync_all())
    {
        shared.folder_changed.store(true, Ordering::SeqCst);
        failed(shared, &error);
    }
    for segment in shared.snapshot() {
        let bytes = segment.written();
        if segment.synced.borrow().bytes < bytes {
            sync_one(shared, &segment, bytes);
        }
    }
}

fn sync_one(shared: &Shared, segment: &Segment, bytes: u64) {
    let done = failpoint::hit("journal.sync.before").and_then(|()| segment.file.sync_data());
    failpoint::passed("journal.sync.after");
    // After a failure the kernel may forget what it could not write, and the next call succeeds without it. So the
    // file never counts as synced again, and its core goes on in a new one.
    let failed_before = segment.synced.borrow().failed;
    let failed_now = done.as_ref().err().inspect(|error| failed(shared, error)).is_some();
    segment.synced.send_replace(Synced { bytes, failed: failed_before || failed_now });
}

fn failed(shared: &Shared, error: &io::Error) {
    shared.sync_failures.fetch_add(1, Ordering::Relaxed);
    tracing::error!(%error, folder = %shared.folder.display(), "journal not brought to the disk");
}
