//! What stands in `instances/ID/`, and who writes it.
//!
//! | file | written by | what |
//! | --- | --- | --- |
//! | `record.json` | the node | what it was started as, and what was proven since |
//! | `launch.json` | the node | what the minder and the engine's first process need |
//! | `minder.json` | the minder | who it is, who the engine is, in which boot of the machine |
//! | `tree.json` | the minder | whom it has seen of the tree, where no cgroup holds it |
//! | `ended.json` | the minder | how the engine ended; nobody of the tree is left |
//! | `lock` | – | locked by the minder for as long as it lives, and by the node while it starts one |
//! | `sock` | the minder | takes `stop MILLISECONDS` and `orphan MILLISECONDS` or `orphan never`, a line each |
//! | `log` | the engine | its output; the middle of a long one is a hole |

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::files::{self, Lock};
use crate::guard::Cage;
use crate::process::{self, Mark, Proc};
use crate::report::Exit;

/// The folder of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceFolder(PathBuf);

/// What the minder and the engine's first process need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// Words after the own program that lead to [`crate::minder::main`].
    pub(crate) lead: Vec<String>,
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) cage: Cage,
    /// Empty: unbound.
    pub(crate) cpus: BTreeSet<u32>,
    pub(crate) numa: Option<u32>,
    /// How long nobody may be connected; `None`: for ever.
    pub(crate) orphan_after_ms: Option<u64>,
}

/// Who minds and who is minded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Minding {
    pub(crate) boot_id: String,
    pub(crate) minder: Proc,
    pub(crate) engine: Proc,
}

/// Whom the minder has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SeenTree {
    pub(crate) boot_id: String,
    pub(crate) procs: Vec<Proc>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ending {
    pub(crate) exit: Option<Exit>,
    pub(crate) at: Timestamp,
    /// Whether the minder was ending it.
    pub(crate) is_stopped: bool,
    /// Processes of it that the kernel killed for want of memory.
    pub(crate) oom_kills: u64,
}

impl InstanceFolder {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("record.json")
    }

    pub(crate) fn launch(&self) -> PathBuf {
        self.0.join("launch.json")
    }

    pub(crate) fn minding(&self) -> PathBuf {
        self.0.join("minder.json")
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.0.join("tree.json")
    }

    pub(crate) fn ending(&self) -> PathBuf {
        self.0.join("ended.json")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The socket's path by way of an open folder: a path to a socket may have 107 bytes, and ours are longer.
    pub(crate) fn socket(&self) -> io::Result<(OpenFolder, PathBuf)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.0)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/sock", file.as_raw_fd()));
        Ok((OpenFolder { _file: file }, path))
    }

    /// The instance's lock: `None` while a minder lives, or is being started by somebody else.
    pub(crate) fn try_lock(&self) -> io::Result<Option<Lock>> {
        Lock::try_new(&self.0.join("lock"))
    }

    /// Removes what the last minder left, so that the next one's files are its own.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for path in [self.minding(), self.tree(), self.ending(), self.0.join("sock")] {
            files::remove(&path)?;
        }
        Ok(())
    }

    /// Everybody of the instance who is alive, with the help of everything that knows them: its cgroups, its mark, and
    /// what its minder has seen in this boot of the machine.
    pub(crate) fn survivors(&self, mark: &Mark, cage: &Cage) -> Vec<Proc> {
        let mut found: BTreeSet<Proc> = cage.procs().into_iter().collect();
        found.extend(process::marked(|found| found == mark));
        let boot_id = process::boot_id();
        if let Ok(Some(tree)) = files::read::<SeenTree>(&self.tree())
            && tree.boot_id == boot_id
        {
            found.extend(tree.procs.into_iter().filter(|proc| proc.is_alive()));
        }
        if let Ok(Some(minding)) = files::read::<Minding>(&self.minding())
            && minding.boot_id == boot_id
        {
            found.extend([minding.minder, minding.engine].into_iter().filter(|proc| proc.is_alive()));
        }
        found.into_iter().collect()
    }
}

/// Keeps the path of a socket good.
#[derive(Debug)]
pub(crate) struct OpenFolder {
    _file: File,
}
