//! The table in `docs/benchmarks.md`, with what it was measured on.

use anyhow::{Context as _, Result};

use super::figures::{Column, Figure};
use super::table;
use crate::workspace;

const BEGIN: &str = "<!-- table: begin -->\n";
const END: &str = "<!-- table: end -->";

/// What a run was made on; read before it, so that the load is other people's.
#[derive(Debug)]
pub(super) struct Conditions(String);

impl Conditions {
    /// `run` says how it was measured.
    ///
    /// # Errors
    /// The machine cannot be asked.
    pub(super) fn read(run: &str) -> Result<Self> {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").context("cannot read the processor's name")?;
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        let cores = std::thread::available_parallelism()?;
        let load = std::fs::read_to_string("/proc/loadavg").context("cannot read the load")?;
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        let kernel = workspace::output(workspace::command("uname").arg("-r"))?;
        let kernel = kernel.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
        let day = workspace::output(workspace::command("date").args(["-u", "+%F"]))?;
        let commit = workspace::output(workspace::command("git").args(["rev-parse", "--short", "HEAD"]))?;
        Ok(Self(format!(
            "{}, commit {}, {run}; {cores} cores ({model}), Linux {kernel}; load average before the run {load}.",
            day.trim(),
            commit.trim(),
        )))
    }
}

/// Puts the table into a page of `docs`.
///
/// # Errors
/// The page is not there or has lost its marks.
pub(super) fn write<C: Column>(name: &str, conditions: &Conditions, figures: &[Figure<C>]) -> Result<()> {
    let path = workspace::root().join("docs").join(name);
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read docs/{name}"))?;
    let content = format!("{}\n\n{}", conditions.0, table::markdown(figures));
    let page = replaced(&page, &content).with_context(|| format!("docs/{name} has lost the marks around its table"))?;
    std::fs::write(&path, page).with_context(|| format!("cannot write docs/{name}"))
}

fn replaced(page: &str, content: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{content}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page = format!("a\n{BEGIN}old\n{END}\nb\n");
        let once = replaced(&page, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}new\n{END}\nb\n"));
        assert_eq!(replaced(&once, "new\n").unwrap(), once);
        assert_eq!(replaced("no marks", "new"), None);
    }

    #[test]
    fn the_pages_in_the_tree_have_their_marks() {
        for name in ["benchmarks.md", "benchmarks-cache.md"] {
            let page = std::fs::read_to_string(workspace::root().join("docs").join(name)).unwrap();
            assert!(replaced(&page, "").is_some(), "{name}");
        }
    }
}
