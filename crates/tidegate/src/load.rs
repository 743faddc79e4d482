//! Documents and secrets from disk and environment. The check itself is pure and lives in `tidegate-config`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tidegate_config::site::SecretRef;
use tidegate_config::{Checked, Source};

use crate::outlook;

/// Largest secret or certificate file.
const SECRET_BYTES_MAX: u64 = 1024 * 1024;
/// Files of one directory of documents.
const FILES_MAX: usize = 4_096;
/// Depth of folders below it.
const DEPTH_MAX: usize = 8;

/// Reads and checks a directory (all `*.yaml` and `*.yml` below it, in the order of their paths) or one file.
pub(crate) fn documents(at: &Path) -> anyhow::Result<Checked> {
    let mut sources = Vec::new();
    for path in files(at)? {
        sources.push(source(&path)?);
    }
    for path in tidegate_config::referenced_files(&sources) {
        // One that cannot be read is a diagnostic of the check, at the place that names it.
        if let Ok(source) = source(&path) {
            sources.push(source);
        }
    }
    Ok(tidegate_config::check(&sources))
}

/// As [`documents`], and what the planner finds in them: a site that cannot be carried out is refused like one that cannot
/// be read. The texts are notices for people.
pub(crate) fn planned(at: &Path) -> anyhow::Result<(Checked, Vec<String>)> {
    let mut checked = documents(at)?;
    // what is not right as it stands is not planned on
    let (wrong, notices) = checked.site.as_ref().map(outlook::diagnostics).unwrap_or_default();
    checked.diagnostics.extend(wrong);
    checked.site = checked.site.take().filter(|_| checked.errors() == 0);
    Ok((checked, notices))
}

/// Every file that the documents consist of, those that they name included; as far as they can be read.
pub(crate) fn read_files(at: &Path) -> Vec<PathBuf> {
    let mut files = files(at).unwrap_or_default();
    let sources: Vec<_> = files.iter().filter_map(|path| source(path).ok()).collect();
    files.extend(tidegate_config::referenced_files(&sources));
    files
}

fn source(path: &Path) -> anyhow::Result<Source> {
    let limit = tidegate_config::FILE_BYTES_MAX as u64;
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut text = Vec::new();
    file.take(limit + 1).read_to_end(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Source { path: path.to_owned(), text })
}

/// The files of a directory of documents.
pub(crate) fn files(at: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let kind = std::fs::metadata(at).with_context(|| {
        format!("cannot read {}: give the directory (or file) that holds your documents", at.display())
    })?;
    if kind.is_file() {
        return Ok(vec![at.to_owned()]);
    }
    let mut found = Vec::new();
    walk(at, 0, &mut found)?;
    found.sort();
    if found.is_empty() {
        bail!("{} holds no .yaml or .yml file; examples are in the project's examples folder", at.display());
    }
    Ok(found)
}

fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if depth > DEPTH_MAX {
        bail!("{} is more than {DEPTH_MAX} folders deep", folder.display());
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        // Hidden files and folders are editors' and version control's; Kubernetes' `..data` links are among them.
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        // Follows links: a mounted ConfigMap consists of them.
        let kind = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if kind.is_dir() {
            walk(&path, depth + 1, found)?;
        } else if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            if found.len() >= FILES_MAX {
                bail!("{} holds more than {FILES_MAX} files of documents", folder.display());
            }
            found.push(path);
        }
    }
    Ok(())
}

/// The content of a secret. Never logged, never part of an error.
pub(crate) fn secret(from: &SecretRef) -> anyhow::Result<Vec<u8>> {
    match from {
        SecretRef::Env(name) => {
            let value = std::env::var_os(&**name)
                .with_context(|| format!("environment variable {name} is not set; the documents name it in fromEnv"))?;
            Ok(value.into_encoded_bytes())
        }
        SecretRef::File(path) => {
            let file = std::fs::File::open(path)
                .with_context(|| format!("cannot open {}; the documents name it in fromFile", path.display()))?;
            let mut content = Vec::new();
            file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut content)?;
            if content.len() as u64 > SECRET_BYTES_MAX {
                bail!("{} is over {SECRET_BYTES_MAX} bytes", path.display());
            }
            Ok(content)
        }
    }
}

/// A secret that is one line of text, without the line's end.
pub(crate) fn secret_text(from: &SecretRef) -> anyhow::Result<String> {
    let text = String::from_utf8(secret(from)?).ok().context("a secret is not text")?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
