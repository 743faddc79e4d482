//! Documents: YAML text in, a checked [`Site`] or a list of diagnostics out. No I/O: the caller reads the files.
//!
//! ```text
//! text ─ yaml ─▶ tree with positions ─ decode ─▶ Raw types ─ check ─▶ Site
//!                      │                  │                    │
//!                      └──────────────────┴────────────────────┴──▶ diagnostics, all of them
//! ```
//!
//! * [`check`] is the whole of it; a site exists only when there is no error.
//! * [`referenced_files`] says which further files the check needs to see.
//! * [`schema`], [`reference`] and [`examples`] are made from the same types; [`generated_files`] has all three with
//!   the paths at which they stand in the repository.
//!
//! Documents are refused rather than understood halfway: an unknown key, a name that nothing has, a sum that does not
//! add up is an error, and all errors are said at once.

mod at;
pub mod bounds;
mod check;
mod decode;
pub mod diagnostic;
mod generated;
mod node;
pub mod quantity;
mod raw;
pub mod scalar;
pub mod site;
mod suggest;
mod yaml;

use std::path::PathBuf;

pub use bounds::FILE_BYTES_MAX;
pub use diagnostic::{Diagnostic, Severity};
pub use generated::{examples, generated_files, reference, schema};
pub use site::Site;

/// `apiVersion` of all documents.
pub const API_VERSION: &str = "tidegate.dev/v1alpha1";

/// One file, read by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path as diagnostics name it; paths in its documents are resolved against its folder.
    pub path: PathBuf,
    /// Its text: any number of documents, UTF-8.
    pub text: Vec<u8>,
}

impl Source {
    /// A file with its text.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, text: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// The outcome of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The site; `None` when there is at least one error.
    pub site: Option<Site>,
    /// Everything that was found, by file and place; at most [`bounds::DIAGNOSTICS_MAX`] and one that says how many
    /// more there are.
    pub diagnostics: Vec<Diagnostic>,
}

impl Checked {
    /// How many errors were found.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }
}

/// Checks documents: all of them, and says everything that is wrong with them.
#[must_use]
pub fn check(sources: &[Source]) -> Checked {
    check::check(sources)
}

/// Files that documents name and whose content [`check`] needs (ModelProductionProfiles), as far as they are not among
/// the sources. The caller reads them and adds them; one that cannot be read is left out and reported by the check.
#[must_use]
pub fn referenced_files(sources: &[Source]) -> Vec<PathBuf> {
    check::referenced_files(sources)
}

/// Checks one text that may be anything: the entry for fuzzing. Never panics.
#[must_use]
pub fn check_text(text: &[u8]) -> Checked {
    check(&[Source::new("fuzz.yaml", text)])
}
