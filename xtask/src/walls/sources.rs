//! What stands in the files: sizes, loosened lints, clocks and sockets where none belong, and what must never leave this
//! machine.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Finding, code};
use crate::workspace;

/// Lines of code in a function, as clippy counts them.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 900;
/// From here on a file is named, so that somebody thinks of parting it.
const FILE_LINES_SOFT: usize = 500;

/// What words and decisions may not call: clocks, files, sockets, threads, the environment.
const OUTSIDE_CALLS: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "std::env::",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::thread",
    "thread_rng",
    "rand::rng(",
];

/// Hosts of package registries, each in two parts so that this file does not name them.
const REGISTRIES: &[(&str, &str)] = &[
    ("crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("registry.npmjs", ".org"),
    ("proxy.golang", ".org"),
    ("repo1.maven", ".org"),
    ("repo.maven.apache", ".org"),
    ("deb.debian", ".org"),
    ("rust-lang", ".org/dist"),
];

/// A file of the project.
#[derive(Clone, Debug)]
pub(super) struct File {
    /// Relative to the root, `/` between its parts.
    pub(super) path: String,
    pub(super) text: String,
}

/// All text files that are or would be committed.
///
/// # Errors
/// git is missing, this is no clone, or a file cannot be read.
pub(super) fn read(root: &Path) -> Result<Vec<File>> {
    let listed = workspace::output(workspace::command("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        let full = root.join(path);
        // links and files just removed have no text of their own
        if !full.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

/// Every violation in the files.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let private = private_places(&workspace::root());
    let mut findings = Vec::new();
    for file in files {
        if has_extension(&file.path, "rs") {
            findings.extend(rust(file));
        }
        // fuzz is a workspace of its own, for another compiler
        let is_member = file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/");
        if is_member && !file.text.contains("[lints]\nworkspace = true") {
            findings.push(Finding::new("lints", &file.path, "does not take the workspace's lints"));
        }
        findings.extend(places(file, &private));
    }
    findings
}

/// What is no violation yet.
pub(super) fn notes(files: &[File]) -> Vec<String> {
    let rust = files.iter().filter(|file| has_extension(&file.path, "rs") && !is_test(&file.path));
    let sizes = rust.map(|file| (lines_without_tests(&file.text), &file.path));
    let large = sizes.filter(|(lines, _)| (FILE_LINES_SOFT + 1..=FILE_LINES_MAX).contains(lines));
    large.map(|(lines, path)| format!("{path} has {lines} lines: part it before {FILE_LINES_MAX}")).collect()
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Tests, and programs beside the code that do not ship.
fn is_test(path: &str) -> bool {
    ["/tests/", "/examples/", "/benches/"].iter().any(|folder| path.contains(folder)) || path.ends_with("/tests.rs")
}

fn lines_without_tests(text: &str) -> usize {
    let blanked = code::blank(text);
    let lines = |text: &str| text.lines().count();
    lines(text) - code::test_items(&blanked).into_iter().map(|item| lines(&blanked[item])).sum::<usize>()
}

fn rust(file: &File) -> Vec<Finding> {
    let blanked = code::blank(&file.text);
    let mut findings = loosened(file, &blanked);
    if is_test(&file.path) {
        return findings;
    }
    let lines = lines_without_tests(&file.text);
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines without tests, at most {FILE_LINES_MAX}");
        findings.push(Finding::new("size", &file.path, what));
    }
    let shipped = code::without_tests(&blanked);
    for function in code::functions(&shipped) {
        let excepted = file.text[function.before.clone()].contains("clippy::too_many_lines");
        if function.length > FUNCTION_LINES_MAX && !excepted {
            let what = format!("{} has {} lines, at most {FUNCTION_LINES_MAX}", function.name, function.length);
            findings.push(Finding::new("size", format!("{}:{}", file.path, function.line), what));
        }
    }
    if file.path.starts_with("crates/words/") || file.path.starts_with("crates/decisions/") {
        findings.extend(outside_calls(file, &shipped));
    }
    findings
}

/// Lints switched off without a word, and tests that never run.
fn loosened(file: &File, blanked: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let attributes = blanked.match_indices("#[").chain(blanked.match_indices("#!["));
    for (start, _) in attributes {
        let end = blanked[start..].find('\n').map_or(blanked.len(), |length| start + length);
        let attribute = &blanked[start..end];
        let place = || format!("{}:{}", file.path, code::line_of(blanked, start));
        if attribute.contains("allow(") {
            findings.push(Finding::new("lints", place(), "allow: use #[expect(…, reason = \"…\")]"));
        }
        if attribute.contains("[ignore") {
            findings.push(Finding::new("tests", place(), "an ignored test: mend it or take it out"));
        }
    }
    findings
}

fn outside_calls(file: &File, shipped: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for call in OUTSIDE_CALLS {
        for (start, _) in shipped.match_indices(call) {
            let place = format!("{}:{}", file.path, code::line_of(shipped, start));
            let what = format!("{call}: words and decisions are given time, randomness and content as arguments");
            findings.push(Finding::new("pure", place, what));
        }
    }
    findings
}

/// Folders of this machine or of a person.
fn private_places(root: &Path) -> Vec<String> {
    let mut places =
        vec![root.display().to_string(), concat!("/home", "/").to_owned(), concat!("/Users", "/").to_owned()];
    if let Some(home) = std::env::var_os("HOME").filter(|home| home.len() > 1) {
        places.push(format!("{}/", Path::new(&home).display()));
    }
    // the folder around the clone, unless it is one that every machine has
    let common = ["/", "/tmp", "/var/tmp", "/opt", "/srv", "/mnt", "/home"];
    if let Some(parent) = root.parent().and_then(Path::to_str).filter(|parent| !common.contains(parent)) {
        places.push(format!("{parent}/"));
    }
    places
}

fn places(file: &File, private: &[String]) -> Vec<Finding> {
    // the lock file is cargo's: it names where each package came from
    if file.path.ends_with("Cargo.lock") {
        return Vec::new();
    }
    let hosts = REGISTRIES.iter().map(|(name, rest)| (format!("{name}{rest}"), "names a package registry"));
    let paths = private.iter().map(|path| (path.clone(), "names a folder of one machine"));
    let mut findings = Vec::new();
    for (text, what) in hosts.chain(paths) {
        for (start, _) in file.text.match_indices(&text) {
            let place = format!("{}:{}", file.path, code::line_of(&file.text, start));
            findings.push(Finding::new("places", place, format!("{what}: {text}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&[file]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_in_order_has_no_finding() {
        let text = "//! allow(dead_code) in words only.\n#[expect(dead_code, reason = \"x\")]\nfn a() { let s = \"#[allow(x)]\"; }\n";
        assert_eq!(found("crates/words/core/src/a.rs", text), Vec::<String>::new());
    }

    #[test]
    fn a_lint_that_is_allowed_is_found() {
        for attribute in ["#[allow(dead_code)]", "#![allow(x)]", "#[cfg_attr(test, allow(x))]"] {
            let findings = found("crates/edges/store/tests/it/main.rs", &format!("\n{attribute}\nfn a() {{}}\n"));
            assert!(findings[0].starts_with("crates/edges/store/tests/it/main.rs:2: [lints]"), "{findings:?}");
        }
    }

    #[test]
    fn an_ignored_test_is_found() {
        let findings =
            found("crates/edges/store/src/a.rs", "#[cfg(test)]\nmod tests {\n #[test]\n #[ignore]\n fn a() {}\n}\n");
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn a_file_is_measured_at_its_bound_and_tests_do_not_count() {
        let long = "\n".repeat(FILE_LINES_MAX);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(found("crates/tidegate/src/a.rs", &long), Vec::<String>::new());
        assert_eq!(found("crates/tidegate/src/a.rs", &tests), Vec::<String>::new());
        assert_eq!(found("crates/tidegate/tests/it/a.rs", &format!("{long}\n\n")), Vec::<String>::new());
        assert_eq!(found("crates/tidegate/src/a.rs", &format!("{long}\n")).len(), 1);
    }

    #[test]
    fn a_function_is_measured_at_its_bound() {
        let function =
            |attribute: &str, lines: usize| format!("{attribute}fn long() {{\n{}}}\n", "a();\n".repeat(lines));
        assert_eq!(found("xtask/src/a.rs", &function("", FUNCTION_LINES_MAX)), Vec::<String>::new());
        let findings = found("xtask/src/a.rs", &function("", FUNCTION_LINES_MAX + 1));
        assert_eq!(findings, ["xtask/src/a.rs:1: [size] long has 71 lines, at most 70"]);
        let expected = "#[expect(clippy::too_many_lines, reason = \"a flat list\")]\n";
        assert_eq!(found("xtask/src/a.rs", &function(expected, FUNCTION_LINES_MAX + 1)), Vec::<String>::new());
    }

    #[test]
    fn a_clock_in_a_decision_is_found_and_in_its_tests_is_not() {
        let call = "fn a() { let t = std::time::Instant::now(); }\n";
        assert_eq!(found("crates/decisions/policy/src/a.rs", call).len(), 1);
        assert_eq!(found("crates/rooms/gateway/src/a.rs", call), Vec::<String>::new());
        let test = format!("#[cfg(test)]\nmod tests {{ {call} }}\n");
        assert_eq!(found("crates/decisions/policy/src/a.rs", &test), Vec::<String>::new());
        assert_eq!(found("crates/words/core/src/a.rs", "use std::fs;\n").len(), 1);
    }

    #[test]
    fn a_folder_of_this_machine_and_a_registry_are_found() {
        let root = workspace::root().display().to_string();
        assert!(!found("docs/a.md", &format!("see {root}/docs")).is_empty());
        assert!(!found("docs/a.md", concat!("see /home", "/somebody/x")).is_empty());
        assert!(!found("docs/a.md", concat!("from pypi", ".org")).is_empty());
        assert_eq!(found("Cargo.lock", concat!("crates", ".io")), Vec::<String>::new());
    }

    #[test]
    fn a_crate_without_the_workspaces_lints_is_found() {
        assert_eq!(found("crates/words/core/Cargo.toml", "[package]\nname = \"x\"\n").len(), 1);
        assert_eq!(found("crates/words/core/Cargo.toml", "[lints]\nworkspace = true\n"), Vec::<String>::new());
    }
}
