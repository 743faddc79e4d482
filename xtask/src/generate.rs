//! Files that are made from the types and kept in the tree, so that readers and editors have them: JSON Schema, the
//! reference of documents, `docs/errors.md`. What is in the tree must be what the types say; CI compares.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tidegate_core::Case;

use crate::terminal::{complain, say};
use crate::workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when a file is not what it should be.
    #[arg(long)]
    check: bool,
}

/// A file relative to the root, and what belongs in it.
type Generated = (String, String);

/// The command line's `generate`.
///
/// # Errors
/// A file cannot be written, or with `--check` one differs.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.check { check() } else { write() }
}

/// Fails when a generated file is not what the types say.
///
/// # Errors
/// Names every file that differs.
pub(crate) fn check() -> Result<()> {
    let files = files();
    let stale = stale(&workspace::root(), &files);
    for path in &stale {
        complain!("{path} is not what `cargo xtask generate` writes");
    }
    if !stale.is_empty() {
        bail!("{} generated files differ", stale.len());
    }
    say!("{} generated files are up to date", files.len());
    Ok(())
}

fn write() -> Result<()> {
    let root = workspace::root();
    let files = files();
    let stale = stale(&root, &files);
    for (path, content) in files.iter().filter(|(path, _)| stale.contains(path)) {
        let full = root.join(path);
        let folder = full.parent().context("a generated file without a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(&full, content).with_context(|| format!("cannot write {path}"))?;
        say!("{path}");
    }
    Ok(())
}

fn stale(root: &Path, files: &[Generated]) -> Vec<String> {
    let differs =
        |(path, content): &&Generated| std::fs::read_to_string(root.join(path)).ok().as_ref() != Some(content);
    files.iter().filter(differs).map(|(path, _)| path.clone()).collect()
}

fn files() -> Vec<Generated> {
    let mut files = tidegate_config::generated_files();
    files.push(("docs/errors.md".to_owned(), errors()));
    files
}

/// The page of refusals: one row of the table each, as callers and operators read it.
fn errors() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         <!-- Generated from the table of cases by `cargo xtask generate`; do not edit. -->\n\n\
         Every refusal there is, in the order in which a request can meet them: the first that applies is answered, and \
         it changes nothing else. The body has the shape of the API that was called; on OpenAI's paths:\n\n\
         ```json\n\
         {\"error\": {\"message\": \"…\", \"type\": \"…\", \"param\": null, \"code\": \"…\"}}\n\
         ```\n\n\
         In the middle of a stream the same object comes as an event, and nothing after it. `x-request-id` is on every \
         answer. `kind` is the label of metrics, logs and the ledger. Client libraries retry 408, 409, 429 and 5xx by \
         themselves; where waiting cannot help, `x-should-retry: false` stops them. Where it can, `Retry-After` says how \
         long.\n\n",
    );
    page.push_str(
        "| status | code | type | kind | retry | meaning | what the caller does | what the operator does |\n",
    );
    page.push_str("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for case in Case::ALL {
        let row = case.row();
        let code = row.code.map_or_else(|| "null".to_owned(), |code| format!("`{code}`"));
        let retry = match row.should_retry {
            Some(true) => "yes",
            Some(false) => "no",
            None => "by status",
        };
        page.push_str(&format!(
            "| {} | {code} | `{}` | `{}` | {retry} | {} | {} | {} |\n",
            row.status,
            row.r#type,
            row.kind.as_str(),
            cell(row.message),
            cell(row.caller),
            cell(row.operator)
        ));
    }
    page
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_row() {
        let page = errors();
        let rows = page.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(rows, Case::ALL.len() + 2);
    }

    #[test]
    fn a_file_that_differs_or_is_missing_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("same"), "a\n").unwrap();
        std::fs::write(folder.path().join("other"), "b\n").unwrap();
        let files = ["same", "other", "missing"].map(|path| (path.to_owned(), "a\n".to_owned()));
        assert_eq!(stale(folder.path(), &files), ["other", "missing"]);
    }
}
