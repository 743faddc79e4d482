//! The walls of ARCHITECTURE.md, as a program.
//!
//! [`graph`] reads who depends on whom, [`sources`] reads the files themselves, [`floors`] what is built and [`licences`]
//! on whose terms, [`map`] where ARCHITECTURE.md sends a newcomer. Each is a function from what was read to a list of findings, so that a test can plant a violation. A wall is moved by changing
//! ARCHITECTURE.md and the table here together, with the reason.

mod code;
mod floors;
mod graph;
mod licences;
mod map;
mod sources;

use std::fmt;

use anyhow::{Result, bail};

use crate::terminal::{complain, say};
use crate::workspace;

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The wall's name, as ARCHITECTURE.md has it.
    wall: &'static str,
    /// A crate, or a file with its line.
    place: String,
    /// What is wrong there.
    what: String,
}

impl Finding {
    fn new(wall: &'static str, place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { wall, place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] {}", self.place, self.wall, self.what)
    }
}

/// Checks everything and prints every finding.
///
/// # Errors
/// There is a finding, or the workspace could not be read.
pub(crate) fn run() -> Result<()> {
    let metadata =
        workspace::output(workspace::cargo().args(["metadata", "--format-version", "1", "--no-deps", "--locked"]))?;
    let tree = ["tree", "--workspace", "--locked", "--target", "all", "--edges", "all", "--prefix", "none"];
    let tree = workspace::output(workspace::cargo().args(tree).args(["--format", "{p}\t{l}"]))?;
    let packages = floors::packages(&tree);
    let graph = graph::Graph::parse(&metadata)?;
    let files = sources::read(&workspace::root())?;
    let mut findings = graph::check(&graph);
    findings.extend(sources::check(&files));
    findings.extend(floors::check(&packages, &files)?);
    findings.extend(licences::check(&licences::packages(&tree), &files)?);
    let paths = files.iter().map(|file| file.path.clone()).collect();
    let architecture = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    findings.extend(map::check(architecture.map_or("", |file| &file.text), &paths));
    findings.sort();
    for finding in &findings {
        complain!("{finding}");
    }
    for note in sources::notes(&files) {
        complain!("note: {note}");
    }
    if !findings.is_empty() {
        bail!("{} violations of the walls", findings.len());
    }
    say!("walls stand: {} crates, {} packages below them, {} files", graph.members.len(), packages.len(), files.len());
    Ok(())
}
