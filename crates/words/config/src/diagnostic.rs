//! What is wrong with the documents, said so that it can be mended: where, what stands there, and what to write.

use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No site comes of these documents.
    Error,
    /// A site comes of them, but this is probably not what was meant.
    Warning,
}

impl Severity {
    /// The severity as messages show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that is wrong in one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Diagnostic {
    /// The file, as the caller named it; empty when the documents as a whole are meant.
    pub file: PathBuf,
    /// Line, from 1; 0 when the file as a whole is meant.
    pub line: u32,
    /// Column in characters, from 1; 0 when the file as a whole is meant.
    pub column: u32,
    /// How bad it is.
    pub severity: Severity,
    /// `<kind> <name>` of the document, as far as they are known.
    pub document: Option<String>,
    /// The place in the document: `spec.shifts.day.targets[0].deployment`.
    pub path: String,
    /// What stands there, shortened; never the text of a secret.
    pub value: Option<String>,
    /// What is wrong with it; lower case, no full stop.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// The diagnostic for people: the first line has the form that editors and terminals make clickable.
    ///
    /// ```text
    /// site.yaml:12:5: error: unknown key `target`
    ///     at    Alias glm-flash, spec.target
    ///     value [{deployment: a}]
    ///     hint  did you mean `targets`?
    /// ```
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        if !self.file.as_os_str().is_empty() {
            let _ = write!(text, "{}:", self.file.display());
            if self.line > 0 {
                let _ = write!(text, "{}:{}:", self.line, self.column);
            }
            text.push(' ');
        }
        let _ = write!(text, "{}: {}", self.severity.as_str(), self.message);
        let place: Vec<&str> =
            self.document.as_deref().into_iter().chain([self.path.as_str()]).filter(|part| !part.is_empty()).collect();
        if !place.is_empty() {
            let _ = write!(text, "\n    at    {}", place.join(", "));
        }
        for (label, line) in [("value", &self.value), ("hint ", &self.hint)] {
            if let Some(line) = line {
                let _ = write!(text, "\n    {label} {line}");
            }
        }
        text
    }
}
