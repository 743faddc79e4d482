//! Named points at every step of a fetch, for harnesses that kill the process or fail the step there.
//!
//! Without the feature `failpoints` a point is nothing. With it, `TIDEGATE_CACHE_FAILPOINTS` (read at the first point)
//! arms points for the whole process: `write.before=abort@3;journal.append=error:full`. `@N` means that the point acts
//! at its Nth passing and from then on. Actions: `abort` (SIGABRT, nothing is flushed), `error:full` (ENOSPC),
//! `error:quota` (EDQUOT), `error:readonly` (EROFS), `error:io` (EIO).

/// Every point, in the order in which a fetch meets them.
pub const POINTS: &[&str] = &[
    "manifest.before_rename",
    "manifest.after_rename",
    "partial.before_allocate",
    "partial.after_allocate",
    "write.before",
    "write.after",
    "journal.before_append",
    "journal.torn",
    "journal.after_append",
    "seal.before_sync",
    "seal.before_rename",
    "seal.after_rename",
    "seal.after_clean",
    "publish.before_link",
    "publish.before_sync",
    "publish.before_rename",
    "publish.after_rename",
    "reference.before_rename",
    "reference.after_rename",
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

#[cfg(feature = "failpoints")]
pub use armed::hit;

#[cfg(feature = "failpoints")]
mod armed {
    use std::collections::HashMap;
    use std::io;
    use std::sync::LazyLock;

    use parking_lot::Mutex;
    use rustix::io::Errno;

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Abort,
        Fail(Errno),
    }

    #[derive(Debug)]
    struct Point {
        action: Action,
        from: u64,
        hits: u64,
    }

    static ARMED: LazyLock<Mutex<HashMap<String, Point>>> = LazyLock::new(|| {
        let text = std::env::var("TIDEGATE_CACHE_FAILPOINTS").unwrap_or_default();
        Mutex::new(text.split(';').filter_map(parse).collect())
    });

    fn parse(text: &str) -> Option<(String, Point)> {
        let (name, action) = text.split_once('=')?;
        let (action, from) = action.split_once('@').unwrap_or((action, "1"));
        let action = match action {
            "abort" => Action::Abort,
            "error:full" => Action::Fail(Errno::NOSPC),
            "error:quota" => Action::Fail(Errno::DQUOT),
            "error:readonly" => Action::Fail(Errno::ROFS),
            "error:io" => Action::Fail(Errno::IO),
            _ => return None,
        };
        Some((name.to_owned(), Point { action, from: from.parse().ok()?, hits: 0 }))
    }

    /// Passes a point.
    ///
    /// # Errors
    /// What the point was armed with.
    pub fn hit(name: &'static str) -> io::Result<()> {
        let mut armed = ARMED.lock();
        let Some(point) = armed.get_mut(name) else { return Ok(()) };
        point.hits += 1;
        if point.hits < point.from {
            return Ok(());
        }
        match point.action {
            Action::Abort => std::process::abort(),
            Action::Fail(errno) => Err(errno.into()),
        }
    }
}
