//! What a process and its children cost: CPU time and resident memory, as the kernel counts them.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Clock ticks per second of `/proc/PID/stat`: fixed at 100 in what the kernel shows to programs.
const TICKS_PER_SECOND: f64 = 100.0;
/// How long a process has to end by itself.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Its own ticks, user and system.
    own: u64,
    /// Ticks of children that ended and were waited for.
    reaped: u64,
}

impl Stat {
    fn parse(line: &str) -> Option<Self> {
        // the name is in brackets and may hold anything: fields are counted after the last bracket
        let fields: Vec<&str> = line.get(line.rfind(')')? + 1..)?.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: number(11)? + number(12)?,
            reaped: number(13)? + number(14)?,
        })
    }
}

/// All processes below and including `root`.
fn tree(root: u32) -> BTreeMap<u32, Stat> {
    let mut all = BTreeMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // a process may end between listing and reading
        if let Some(stat) =
            std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|line| Stat::parse(&line))
        {
            all.insert(pid, stat);
        }
    }
    let mut found = BTreeMap::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        if let Some(stat) = all.get(&pid) {
            found.insert(pid, *stat);
            next.extend(all.iter().filter(|(_, stat)| stat.parent == pid).map(|(child, _)| *child));
        }
    }
    found
}

/// CPU seconds, user and system, that the process and its children have used so far.
pub(super) fn cpu_seconds(pid: u32) -> f64 {
    let ticks: u64 = tree(pid).values().map(|stat| stat.own + stat.reaped).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// CPU seconds, user and system, of all children of ours that have ended, with their own.
pub(super) fn reaped_cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").ok().and_then(|line| Stat::parse(&line));
    stat.map_or(f64::NAN, |stat| stat.reaped as f64 / TICKS_PER_SECOND)
}

/// The most that was ever resident of one process; nothing when it has ended.
pub(super) fn peak_resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:").unwrap_or(0)
}

/// A line of `/proc/PID/status` that counts memory.
fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Resident bytes of the process and its children; shared pages count in each.
pub(super) fn resident_bytes(pid: u32) -> u64 {
    tree(pid).keys().filter_map(|pid| status_bytes(*pid, "VmRSS:")).sum()
}

/// A child of ours, ended when dropped.
#[derive(Debug)]
pub(super) struct Owned {
    child: Child,
}

impl Owned {
    /// Starts a program with its output in a file.
    ///
    /// # Errors
    /// The program or the file cannot be opened.
    pub(super) fn start(command: &mut Command, log: &std::path::Path) -> Result<Self> {
        let file = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command.stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails when it has ended.
    ///
    /// # Errors
    /// It has ended, or cannot be asked.
    pub(super) fn alive(&mut self) -> Result<()> {
        match self.child.try_wait().context("cannot ask for a child's state")? {
            Some(status) => bail!("it ended with {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut term = workspace::command("kill");
        term.args(["-TERM", &self.child.id().to_string()]).stderr(Stdio::null());
        // if it is gone already, that is what is wanted
        drop(term.status());
        let start = Instant::now();
        while start.elapsed() < END_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_program_is_called() {
        let line = "42 (a) S 1 (x) R 7 42 42 0 -1 4194560 100 200 0 0 30 12 5 6 20 0 4 0 100 1000 50 1844";
        assert_eq!(Stat::parse(line), Some(Stat { parent: 7, own: 42, reaped: 11 }));
        assert_eq!(Stat::parse("42 (a) S 1"), None);
    }

    #[test]
    fn our_own_cost_is_seen() {
        let pid = std::process::id();
        assert!(resident_bytes(pid) > 100_000);
        let mut sum = 0_u64;
        while cpu_seconds(pid) < 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
