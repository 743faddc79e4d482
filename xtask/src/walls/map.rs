//! The code map of ARCHITECTURE.md: the files that it sends a newcomer to are there.

use std::collections::BTreeSet;

use super::Finding;

/// Checks each row `| place | what | first file |` whose place is a crate.
pub(super) fn check(architecture: &str, paths: &BTreeSet<String>) -> Vec<Finding> {
    let rows = architecture.lines().filter(|line| line.starts_with("| `crates/"));
    rows.flat_map(|row| {
        let mut cells = row.trim_matches('|').split('|');
        let place = quoted(cells.next().unwrap_or_default()).next().unwrap_or_default().to_owned();
        let files: Vec<_> = quoted(cells.nth(1).unwrap_or_default()).filter(|name| name.ends_with(".rs")).collect();
        files.into_iter().map(move |file| format!("{place}/src/{file}")).collect::<Vec<_>>()
    })
    .filter(|path| !paths.contains(path))
    .map(|path| Finding::new("map", "ARCHITECTURE.md", format!("{path} does not exist")))
    .collect()
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_map_names_and_that_is_not_there_is_found() {
        let map = "| `crates/a` | what | `lib.rs`: all, `gone.rs` |\n| `xtask` | what | `x.rs` |\n";
        let paths = BTreeSet::from(["crates/a/src/lib.rs".to_owned()]);
        let found = check(map, &paths);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("crates/a/src/gone.rs"));
    }
}
