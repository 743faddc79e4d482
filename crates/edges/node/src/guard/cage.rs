//! The cgroups of one instance: everything it starts is in them, whoever its parent is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::process::{Proc, signal};

/// How deep below its own folder an engine's own cgroups are looked for.
const DEPTH_MAX: u32 = 8;
/// Rounds of one [`Cage::kill`] where the kernel has no call that ends all at once: children are born in between.
const KILL_ROUNDS: u32 = 16;

/// One cgroup folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CageFolder {
    pub(super) path: PathBuf,
    pub(super) is_v2: bool,
}

/// All cgroup folders of an instance; none where the machine has none that we may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cage {
    pub(super) folders: Vec<CageFolder>,
}

impl Cage {
    /// Moves the calling process in: what it executes and starts from then on is in it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        for folder in &self.folders {
            fs::write(folder.path.join("cgroup.procs"), "0\n").map_err(|error| {
                io::Error::new(error.kind(), format!("cannot enter cgroup {}: {error}", folder.path.display()))
            })?;
        }
        Ok(())
    }

    /// Who is in it.
    pub(crate) fn procs(&self) -> Vec<Proc> {
        let mut pids = BTreeSet::new();
        for folder in &self.folders {
            walk(&folder.path, DEPTH_MAX, &mut |path| {
                let list = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                pids.extend(list.lines().filter_map(|pid| pid.trim().parse::<i32>().ok()).filter(|pid| *pid > 0));
            });
        }
        pids.into_iter().filter_map(Proc::of).collect()
    }

    /// Whether no cgroup holds the instance.
    pub(crate) const fn is_empty(&self) -> bool {
        self.folders.is_empty()
    }

    /// Ends everybody in it.
    pub(crate) fn kill(&self) {
        for folder in self.folders.iter().filter(|folder| folder.is_v2) {
            // A kernel before 5.14 has no such file: the list is killed below.
            let _: io::Result<()> = fs::write(folder.path.join("cgroup.kill"), "1");
        }
        for _ in 0..KILL_ROUNDS {
            let procs = self.procs();
            if procs.is_empty() {
                return;
            }
            signal(&procs, Signal::KILL);
        }
    }

    /// Processes in it that the kernel killed for want of memory; `None`: nobody counts them.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let counted = self.folders.iter().filter_map(|folder| {
            let file = if folder.is_v2 { "memory.events" } else { "memory.oom_control" };
            let text = fs::read_to_string(folder.path.join(file)).ok()?;
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        });
        counted.max()
    }

    /// Removes its folders. Fails while somebody is in one.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in &self.folders {
            let mut found = Vec::new();
            walk(&folder.path, DEPTH_MAX, &mut |path| found.push(path.to_owned()));
            for path in found.iter().rev() {
                match fs::remove_dir(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// A folder, then those below it.
fn walk(path: &Path, depth: u32, each: &mut dyn FnMut(&Path)) {
    if !path.is_dir() {
        return;
    }
    each(path);
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), depth - 1, each);
        }
    }
}
