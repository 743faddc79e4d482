//! The table in `docs/benchmarks.md`, with what it was measured on.

use anyhow::{Context as _, Result};

use super::figures::Figure;
use super::{Gate, table};
use crate::workspace;

const BEGIN: &str = "<!-- table: begin -->\n";
const END: &str = "<!-- table: end -->";

/// What a run was made on; read before it, so that the load is other people's.
#[derive(Debug)]
pub(super) struct Conditions(String);

impl Conditions {
    /// # Errors
    /// The machine cannot be asked.
    pub(super) fn read(options: &Gate) -> Result<Self> {
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
            "{}, commit {}, profile {}, {} rounds of {} s; {cores} cores ({model}), Linux {kernel}; load average before the run {load}.",
            day.trim(),
            commit.trim(),
            options.profile,
            options.rounds,
            options.seconds
        )))
    }
}

/// Puts the table into the page.
///
/// # Errors
/// The page is not there or has lost its marks.
pub(super) fn write(conditions: &Conditions, figures: &[Figure]) -> Result<()> {
    let path = workspace::root().join("docs/benchmarks.md");
    let page = std::fs::read_to_string(&path).context("cannot read docs/benchmarks.md")?;
    let content = format!("{}\n\n{}", conditions.0, table::markdown(figures));
    let page = replaced(&page, &content).context("docs/benchmarks.md has lost the marks around its table")?;
    std::fs::write(&path, page).context("cannot write docs/benchmarks.md")
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
    fn the_page_in_the_tree_has_its_marks() {
        let page = std::fs::read_to_string(workspace::root().join("docs/benchmarks.md")).unwrap();
        assert!(replaced(&page, "").is_some());
    }
}
