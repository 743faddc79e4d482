//! Named points at every step of a write, for harnesses that kill the process or fail the step there.
//!
//! Without the feature `failpoints` a point is nothing. With it, `TIDEGATE_FAILPOINTS` (read at the first point) or
//! `set` arm points: `journal.reserve.before_write=abort@3;store.append.before_commit=error:full`. `@N` means that
//! the point acts at its Nth passing and from then on (an abort needs no more). Actions: `abort` (SIGABRT, nothing is
//! flushed), `error:full` (ENOSPC), `error:readonly` (EROFS), `error:io` (EIO).

/// Every point of the store, in the order in which a request meets them.
pub const POINTS: &[&str] = &[
    "journal.create.before",
    "journal.create.after",
    "journal.reserve.before_write",
    "journal.write.torn",
    "journal.reserve.after_write",
    "journal.flush.before_write",
    "journal.flush.after_write",
    "journal.sync.before",
    "journal.sync.after",
    "journal.rotate.before",
    "journal.rotate.after",
    "store.append.before_insert",
    "store.append.before_commit",
    "store.append.after_commit",
    "store.poll.before",
    "ledger.before_settled",
    "ledger.after_settled",
    "ledger.before_carry",
    "ledger.after_carry",
    "ledger.before_delete",
    "ledger.after_delete",
];

/// Every point of a relayed request, in their order. A stream meets all of them, an answer at once those without events.
pub const RELAY_POINTS: &[&str] = &[
    "relay.before_send",
    "relay.after_send",
    "relay.after_head",
    "relay.after_first_event",
    "relay.after_event",
    "relay.before_settle",
    "relay.after_settle",
];

/// Passes a point.
///
/// # Errors
/// What the point was armed with; never without the feature.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn hit(_name: &'static str) -> std::io::Result<()> {
    Ok(())
}

/// Passes a point behind a step that is done: only an abort makes sense there, an error is nobody's.
#[inline(always)]
pub fn passed(name: &'static str) {
    if let Err(error) = hit(name) {
        tracing::debug!(%error, name, "no error can be made here");
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Action, clear, hit, set};

#[cfg(feature = "failpoints")]
mod armed {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::io;
    use std::sync::LazyLock;

    use parking_lot::Mutex;
    use rustix::io::Errno;

    /// What an armed point does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Action {
        /// The process dies at once.
        Abort,
        /// The step fails: disk full.
        Full,
        /// The step fails: read-only file system.
        ReadOnly,
        /// The step fails: the device.
        Io,
    }

    #[derive(Debug)]
    struct Point {
        action: Action,
        from: u64,
        hits: u64,
    }

    impl Point {
        fn pass(&mut self) -> io::Result<()> {
            self.hits += 1;
            if self.hits < self.from {
                return Ok(());
            }
            match self.action {
                Action::Abort => std::process::abort(),
                Action::Full => Err(Errno::NOSPC.into()),
                Action::ReadOnly => Err(Errno::ROFS.into()),
                Action::Io => Err(Errno::IO.into()),
            }
        }
    }

    type Points = HashMap<String, Point>;

    /// Armed by the environment: for every thread of the process.
    static EVERYWHERE: LazyLock<Mutex<Points>> = LazyLock::new(|| {
        let text = std::env::var("TIDEGATE_FAILPOINTS").unwrap_or_default();
        Mutex::new(text.split(';').filter_map(parse).collect())
    });

    thread_local! {
        /// Armed by [`set`]: for the calling thread, so that tests of one process do not meet.
        static HERE: RefCell<Points> = RefCell::default();
    }

    fn parse(text: &str) -> Option<(String, Point)> {
        let (name, action) = text.split_once('=')?;
        let (action, from) = action.split_once('@').unwrap_or((action, "1"));
        let action = match action {
            "abort" => Action::Abort,
            "error:full" => Action::Full,
            "error:readonly" => Action::ReadOnly,
            "error:io" => Action::Io,
            _ => return None,
        };
        Some((name.to_owned(), Point { action, from: from.parse().ok()?, hits: 0 }))
    }

    /// Arms a point for the calling thread: it acts at its `from`th passing from now, counted from 1, and later.
    pub fn set(name: &str, action: Action, from: u64) {
        HERE.with_borrow_mut(|points| points.insert(name.to_owned(), Point { action, from, hits: 0 }));
    }

    /// Disarms a point that [`set`] armed.
    pub fn clear(name: &str) {
        HERE.with_borrow_mut(|points| points.remove(name));
    }

    /// Passes a point.
    ///
    /// # Errors
    /// What the point was armed with.
    pub fn hit(name: &'static str) -> io::Result<()> {
        HERE.with_borrow_mut(|points| points.get_mut(name).map_or(Ok(()), Point::pass))?;
        EVERYWHERE.lock().get_mut(name).map_or(Ok(()), Point::pass)
    }
}
