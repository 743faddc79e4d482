//! Processes as `/proc` shows them: who descends from whom, and who belongs to an instance.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// Most bytes of one process's environment that are looked at.
const ENVIRON_MAX: usize = 1024 * 1024;

/// All living descendants of a process, children before their children.
pub(super) fn descendants(of: Pid) -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in all() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(parent) = parent_of(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![of.as_raw_nonzero().get()];
    while let Some(pid) = open.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            open.push(child);
            found.extend(Pid::from_raw(child));
        }
    }
    found
}

/// Parent in a `/proc/PID/stat` line of a process that is no zombie. The name before it may hold anything, brackets
/// and spaces included.
fn parent_of(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let is_zombie = fields.next()? == "Z";
    let parent = fields.next()?.parse().ok()?;
    (!is_zombie).then_some(parent)
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Living processes of ours with `NAME=value` in the environment that they were started with.
pub(super) fn with_variable(name: &str, value: &str) -> Vec<Pid> {
    let wanted = format!("{name}={value}");
    all()
        .filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.len() <= ENVIRON_MAX && environ.split(|&b| b == 0).any(|line| line == wanted.as_bytes())
        })
        .filter_map(Pid::from_raw)
        .collect()
}

/// Sends a signal; that a process is already gone is what was wanted.
pub(super) fn signal(pids: &[Pid], signal: Signal) {
    for &pid in pids {
        let _: Result<(), Errno> = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_forge_a_parent() {
        assert_eq!(parent_of("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (a) S 1 (b) R 9 12 12 0"), Some(9));
        assert_eq!(parent_of("12 (sh) Z 7 12 12 0"), None);
        assert_eq!(parent_of(""), None);
        assert_eq!(parent_of("12 (sh) S x"), None);
    }

    #[test]
    fn a_child_is_found_below_its_parent() {
        let me = rustix::process::getpid();
        let mut child = std::process::Command::new("sleep").arg("60").env("TIDEGATE_TREE_TEST", "v1").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants(me).contains(&pid));
        assert_eq!(with_variable("TIDEGATE_TREE_TEST", "v1"), [pid]);
        assert!(with_variable("TIDEGATE_TREE_TEST", "v").is_empty());
        signal(&[pid], Signal::KILL);
        child.wait().unwrap();
        assert!(!descendants(me).contains(&pid));
    }
}
