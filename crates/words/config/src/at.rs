//! Where in which document a check stands, and what it reports there.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bounds::DIAGNOSTICS_MAX;
use crate::diagnostic::{Diagnostic, Severity};
use crate::node::{NOT_SHOWN, Node, Position, is_secret_key};

/// A document as it was read.
#[derive(Debug)]
pub(crate) struct Origin {
    /// The file, as the caller named it.
    pub(crate) file: PathBuf,
    /// `<kind> <name>`, as far as they are known.
    pub(crate) title: Option<String>,
    pub(crate) root: Node,
    /// Paths at which the shape was wrong already: what follows from it is not reported again.
    pub(crate) wrong: BTreeSet<String>,
}

impl Origin {
    /// A path of the document, resolved against the folder of the file that it stands in.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        self.file.parent().unwrap_or_else(|| Path::new("")).join(path)
    }
}

/// A place in a document. Places form a list from the leaf to the root, so that naming one costs nothing until a
/// diagnostic needs its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) origin: &'a Origin,
    parent: Option<&'a At<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub(crate) fn root(origin: &'a Origin) -> Self {
        Self { origin, parent: None, step: Step::Root }
    }

    pub(crate) fn key<'b>(&'b self, key: &'b str) -> At<'b> {
        At { origin: self.origin, parent: Some(self), step: Step::Key(key) }
    }

    pub(crate) fn index(&self, index: usize) -> At<'_> {
        At { origin: self.origin, parent: Some(self), step: Step::Index(index) }
    }

    /// The path as diagnostics show it.
    pub(crate) fn path(&self) -> String {
        let mut path = self.parent.map(At::path).unwrap_or_default();
        push_step(&mut path, self.step);
        path
    }

    /// The value that stands here.
    pub(crate) fn node(&self) -> Option<&'a Node> {
        let parent = match self.parent {
            None => return Some(&self.origin.root),
            Some(parent) => parent.node()?,
        };
        match self.step {
            Step::Root => Some(parent),
            Step::Key(key) => parent.get(key),
            Step::Index(index) => parent.item(index),
        }
    }

    /// Where it stands, or where the nearest thing above it stands.
    fn position(&self) -> Position {
        match (self.node(), self.parent) {
            (Some(node), _) => node.at,
            (None, Some(parent)) => parent.position(),
            (None, None) => Position::default(),
        }
    }

    /// The value as a diagnostic may repeat it.
    pub(crate) fn value(&self) -> Option<String> {
        let node = self.node()?;
        match self.step {
            Step::Key(key) if is_secret_key(key) && node.text().is_some() => Some(NOT_SHOWN.to_owned()),
            Step::Root => None,
            Step::Key(_) | Step::Index(_) => Some(node.show()),
        }
    }

    /// Whether the shape was wrong exactly here, so that the value is read as if it were not there.
    pub(crate) fn is_set_aside(&self) -> bool {
        !self.origin.wrong.is_empty() && self.origin.wrong.contains(&self.path())
    }

    /// Whether the shape was wrong here or somewhere above.
    fn is_wrong(&self) -> bool {
        if self.origin.wrong.is_empty() {
            return false;
        }
        self.origin.wrong.contains(&self.path()) || self.parent.is_some_and(At::is_wrong)
    }
}

fn push_step(path: &mut String, step: Step<'_>) {
    match step {
        Step::Root => {}
        Step::Key(key) => push_key(path, key),
        Step::Index(index) => push_index(path, index),
    }
}

/// Appends a key to a path; keys that would read as several are quoted.
pub(crate) fn push_key(path: &mut String, key: &str) {
    if key.is_empty() || key.contains(['.', '[', ']', '"', ' ']) {
        let _ = write!(path, "[{key:?}]");
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Appends a list index to a path.
pub(crate) fn push_index(path: &mut String, index: usize) {
    let _ = write!(path, "[{index}]");
}

/// Everything that was found so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    diagnostics: Vec<Diagnostic>,
    /// How many were found beyond what is kept.
    left_out: usize,
    has_error: bool,
}

/// Most diagnostics that are kept until they are sorted: more than are shown, so that those shown come first in their
/// files.
const KEPT_MAX: usize = 10 * DIAGNOSTICS_MAX;

impl Report {
    /// Takes a diagnostic in; beyond the bound it is only counted.
    pub(crate) fn add(&mut self, diagnostic: Diagnostic) {
        self.has_error |= diagnostic.severity == Severity::Error;
        if self.diagnostics.len() < KEPT_MAX {
            self.diagnostics.push(diagnostic);
        } else {
            self.left_out += 1;
        }
    }

    /// Whether anything found is an error.
    pub(crate) fn has_error(&self) -> bool {
        self.has_error
    }

    /// What was kept, and how many were not.
    pub(crate) fn into_parts(self) -> (Vec<Diagnostic>, usize) {
        (self.diagnostics, self.left_out)
    }

    /// Reports an error.
    pub(crate) fn error(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.push(at, Severity::Error, message.into(), None);
    }

    /// Reports an error with what to write instead.
    pub(crate) fn error_hint(&mut self, at: &At<'_>, message: impl Into<String>, hint: impl Into<Option<String>>) {
        self.push(at, Severity::Error, message.into(), hint.into());
    }

    /// Reports an error about text that must not be repeated.
    pub(crate) fn error_without_value(&mut self, at: &At<'_>, message: &str, hint: &str) {
        if let Some(mut diagnostic) = diagnostic(at, Severity::Error, message.to_owned(), Some(hint.to_owned())) {
            diagnostic.value = Some(NOT_SHOWN.to_owned());
            self.add(diagnostic);
        }
    }

    /// Reports what is probably not meant.
    pub(crate) fn warning(&mut self, at: &At<'_>, message: impl Into<String>, hint: impl Into<Option<String>>) {
        self.push(at, Severity::Warning, message.into(), hint.into());
    }

    /// A required value: reports it when it is missing, unless its shape was reported already.
    pub(crate) fn required<'v, T>(&mut self, at: &At<'_>, key: &str, value: Option<&'v T>) -> Option<&'v T> {
        if value.is_none() {
            self.error(&at.key(key), format!("`{key}` is missing"));
        }
        value
    }

    /// Reports that a name is not among the known ones.
    pub(crate) fn unknown<'n>(
        &mut self,
        at: &At<'_>,
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'n str> + Clone,
    ) {
        // Hints cost a search among all names; nobody reads those of diagnostics that are not shown.
        let hint = if self.diagnostics.len() < DIAGNOSTICS_MAX { crate::suggest::hint(name, known) } else { None };
        self.error_hint(at, format!("no {what} has the name `{name}`"), hint);
    }

    /// Reports an error about a file, or about the documents as a whole (no file).
    pub(crate) fn about_file(&mut self, file: &Path, at: Position, message: String, hint: Option<String>) {
        self.add(Diagnostic {
            file: file.to_path_buf(),
            line: at.line,
            column: at.column,
            severity: Severity::Error,
            document: None,
            path: String::new(),
            value: None,
            message,
            hint,
        });
    }

    fn push(&mut self, at: &At<'_>, severity: Severity, message: String, hint: Option<String>) {
        if let Some(diagnostic) = diagnostic(at, severity, message, hint) {
            self.add(diagnostic);
        }
    }
}

/// A diagnostic about a place; `None` when the shape there was reported already.
fn diagnostic(at: &At<'_>, severity: Severity, message: String, hint: Option<String>) -> Option<Diagnostic> {
    if at.is_wrong() {
        return None;
    }
    let Position { line, column } = at.position();
    Some(Diagnostic {
        file: at.origin.file.clone(),
        line,
        column,
        severity,
        document: at.origin.title.clone(),
        path: at.path(),
        value: at.value(),
        message,
        hint,
    })
}

/// A name of a document as other documents use it.
pub(crate) type Name = Arc<str>;
