//! Processes as `/proc` shows them: who descends from whom, and who belongs to an instance.
//!
//! A number is no identity: numbers are given out again. Number and start time together are one, until the machine boots
//! anew; and a signal goes through a pidfd, which is opened before the start time is compared.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// The variable that marks every process of an engine's tree.
pub(crate) const INSTANCE_VARIABLE: &str = "TIDEGATE_INSTANCE";
/// The variable that says of which state folder an instance is: two nodes on one machine may use the same ids.
pub(crate) const STATE_VARIABLE: &str = "TIDEGATE_STATE";

/// Most bytes of one process's environment that are looked at.
const ENVIRON_MAX: usize = 1024 * 1024;
/// Most bytes of a command's name that are shown.
const NAME_MAX: usize = 64;

/// One process, and no other that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Proc {
    /// Its number.
    pub(crate) pid: i32,
    /// When it was started, in clock ticks since boot.
    pub(crate) start: u64,
}

impl Proc {
    /// The process that has this number now; `None` when there is none, or only what a parent has not yet collected.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Stat::read(pid).filter(|stat| !stat.is_zombie).map(|stat| Self { pid, start: stat.start })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends it a signal; that it is gone is what was wanted.
    fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                if self.is_alive() {
                    let _: Result<(), Errno> = pidfd_send_signal(pidfd, signal);
                }
            }
            // A kernel without pidfds: the number may be given out anew between the look and the signal.
            Err(Errno::NOSYS | Errno::PERM | Errno::MFILE | Errno::NFILE) if self.is_alive() => {
                let _: Result<(), Errno> = kill_process(pid, signal);
            }
            Err(_) => {}
        }
    }
}

/// Sends a signal to each.
pub(crate) fn signal(procs: &[Proc], signal: Signal) {
    for proc in procs {
        proc.signal(signal);
    }
}

/// What a `/proc/PID/stat` line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    is_zombie: bool,
    parent: i32,
    start: u64,
}

/// Fields between the parent and the start time.
const UNTIL_START: usize = 17;

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name before the fields may hold anything, brackets and spaces included.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let start = fields.nth(UNTIL_START)?.parse().ok()?;
        Some(Self { is_zombie, parent, start })
    }
}

/// All living descendants of a process, children before their children.
pub(crate) fn descendants(of: Pid) -> Vec<Proc> {
    let mut children: BTreeMap<i32, Vec<Proc>> = BTreeMap::new();
    for pid in all() {
        if let Some(stat) = Stat::read(pid).filter(|stat| !stat.is_zombie) {
            children.entry(stat.parent).or_default().push(Proc { pid, start: stat.start });
        }
    }
    let mut found = Vec::new();
    let mut open = vec![of.as_raw_nonzero().get()];
    while let Some(pid) = open.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            open.push(child.pid);
            found.push(child);
        }
    }
    found
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What every process of an instance of ours has in its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The instance's id.
    pub(crate) instance: String,
    /// The state folder, by its hash; `None` in a Pod.
    pub(crate) state: Option<String>,
}

impl Mark {
    /// The mark of a process; `None`: it has none, or is not ours to read.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let environ = fs::read(format!("/proc/{pid}/environ")).ok().filter(|environ| environ.len() <= ENVIRON_MAX)?;
        let value = |name: &str| {
            let value =
                environ.split(|&b| b == 0).find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            String::from_utf8(value.to_owned()).ok()
        };
        Some(Self { instance: value(INSTANCE_VARIABLE)?, state: value(STATE_VARIABLE) })
    }
}

/// Living processes with a mark in the environment that they were started with. One that is just executing another program
/// has none for a moment: look twice.
pub(crate) fn marked(is_it: impl Fn(&Mark) -> bool) -> Vec<Proc> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let marked = all().filter(|pid| *pid != own && Mark::of(*pid).is_some_and(|mark| is_it(&mark)));
    marked.filter_map(Proc::of).collect()
}

/// A process's command name, for people.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().chars().filter(|c| !c.is_control()).take(NAME_MAX).collect())
}

/// Changes with every boot of the machine; empty where the kernel does not say.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;

    const REST: &str = "12 12 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 4711 1000";

    #[test]
    fn a_process_name_cannot_forge_a_parent() {
        let parent = |line: &str| Stat::parse(line).map(|stat| (stat.parent, stat.is_zombie, stat.start));
        assert_eq!(parent(&format!("12 (sh) S 7 {REST}")), Some((7, false, 4711)));
        assert_eq!(parent(&format!("12 (a) S 1 (b) R 9 {REST}")), Some((9, false, 4711)));
        assert_eq!(parent(&format!("12 (sh) Z 7 {REST}")), Some((7, true, 4711)));
        for bad in ["", "12 (sh) S x", "12 (sh) S 7 1 2 3"] {
            assert_eq!(Stat::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_child_is_found_below_its_parent_and_by_its_mark() {
        let me = rustix::process::getpid();
        let mut command = std::process::Command::new("cat");
        command
            .env(INSTANCE_VARIABLE, "tree-test-1")
            .env_remove(STATE_VARIABLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It answers: it has become what it is. Until then its environment cannot be read.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let proc = Proc::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(descendants(me).contains(&proc));
        assert_eq!(marked(|mark| mark.instance == "tree-test-1" && mark.state.is_none()), [proc]);
        assert!(marked(|mark| mark.instance == "tree-test").is_empty());
        assert_eq!(name_of(child.id()).as_deref(), Some("cat"));
        // Another start time is another process: it is left alone.
        signal(&[Proc { pid: proc.pid, start: proc.start + 1 }], Signal::KILL);
        assert!(proc.is_alive());
        signal(&[proc], Signal::KILL);
        child.wait().unwrap();
        assert!(!proc.is_alive() && !descendants(me).contains(&proc));
    }
}
