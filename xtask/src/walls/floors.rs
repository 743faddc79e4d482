//! What may not be built in, and the lowest versions that may, from `deny.toml`. It is checked here as well as by cargo-deny,
//! because a machine without the advisory database, or without cargo-deny, must notice a step back too.

use anyhow::{Context as _, Result};

use super::Finding;
use super::sources::File;

/// `crate = "NAME@<VERSION"` of one line of `deny.toml`; without a version the crate may not be there at all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Floor {
    name: String,
    version: Option<String>,
}

impl Floor {
    /// What is wrong with that version of the crate.
    fn refusal(&self, version: &str) -> Option<String> {
        match &self.version {
            None => Some("is refused by deny.toml".to_owned()),
            Some(floor) if numbers(version) < numbers(floor) => {
                Some(format!("{version} is below {floor}, the floor in deny.toml"))
            }
            Some(_) => None,
        }
    }
}

/// A package that some crate of the workspace is built from: name and version.
pub(super) type Package = (String, String);

/// Reads the output of `cargo tree --prefix none` in the format `{p}`, tab, anything: what is really built. The lock file also holds what only
/// an unused feature would bring.
pub(super) fn packages(tree: &str) -> Vec<Package> {
    let lines = tree.lines().filter_map(|line| {
        let mut words = line.split('\t').next()?.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    lines.collect()
}

/// Every package that is refused or below its floor.
///
/// # Errors
/// There is no `deny.toml`, or no floor in it can be read: then this check would check nothing.
pub(super) fn check(packages: &[Package], files: &[File]) -> Result<Vec<Finding>> {
    let file = files.iter().find(|file| file.path == "deny.toml").context("there is no deny.toml")?;
    let floors = read(&file.text);
    anyhow::ensure!(!floors.is_empty(), "deny.toml refuses nothing");
    let mut findings = Vec::new();
    for (name, version) in packages {
        let refusal = floors.iter().filter(|floor| floor.name == *name).find_map(|floor| floor.refusal(version));
        findings.extend(refusal.map(|what| Finding::new("floors", name, what)));
    }
    Ok(findings)
}

fn read(text: &str) -> Vec<Floor> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("{ crate = \""));
    let entries = lines.filter_map(|line| Some(line.split_once('"')?.0));
    let floor = |entry: &str| match entry.split_once("@<") {
        Some((name, version)) => Floor { name: name.to_owned(), version: Some(version.to_owned()) },
        None => Floor { name: entry.to_owned(), version: None },
    };
    entries.map(floor).collect()
}

/// `1.2.3-rc.1` as [1, 2, 3]: a pre-release counts as its release, which is enough to tell a step back.
fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.trim().parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(list: &[(&str, &str)]) -> Vec<Package> {
        list.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
    }

    fn deny(text: &str) -> Vec<File> {
        vec![File { path: "deny.toml".to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn a_package_below_its_floor_is_found_at_the_bound() {
        let files = deny("deny = [\n  { crate = \"h2@<0.4.16\", reason = \"x\" },\n]\n");
        assert_eq!(check(&lock(&[("h2", "0.4.16"), ("h2", "0.10.0"), ("h3", "0.1.0")]), &files).unwrap(), []);
        let findings = check(&lock(&[("h2", "0.4.15")]), &files).unwrap();
        assert_eq!(findings[0].to_string(), "h2: [floors] 0.4.15 is below 0.4.16, the floor in deny.toml");
    }

    #[test]
    fn the_tree_of_what_is_built_is_read() {
        let tree = "tidegate v0.1.0 (somewhere)\tMIT\nserde v1.0.2 (proc-macro)\tMIT\n\nh2 v0.4.16\tMIT (*)\n";
        assert_eq!(packages(tree), lock(&[("tidegate", "0.1.0"), ("serde", "1.0.2"), ("h2", "0.4.16")]));
    }

    #[test]
    fn a_refused_package_is_found_in_any_version() {
        let files = deny("  { crate = \"ring\", reason = \"x\" },\n");
        assert_eq!(check(&lock(&[("ring", "99.0.0")]), &files).unwrap().len(), 1);
    }

    #[test]
    fn a_deny_file_without_floors_is_an_error_and_so_is_none() {
        assert!(check(&lock(&[]), &deny("[bans]\n")).is_err());
        assert!(check(&lock(&[]), &[]).is_err());
    }

    #[test]
    fn the_projects_own_floors_are_read() {
        let text = std::fs::read_to_string(crate::workspace::root().join("deny.toml")).unwrap();
        let floors = read(&text);
        assert!(floors.iter().any(|floor| floor.name == "rustls" && floor.refusal("0.23.44").is_some()), "{floors:?}");
    }
}
