//! Documents that stand in the tree as examples or for tests: each set is a right one.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

use std::path::{Path, PathBuf};

use tidegate_config::{Source, check};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn complaints(folder: &str) -> Vec<String> {
    let folder = root().join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no documents", folder.display());
    let sources: Vec<_> = paths.iter().map(|path| Source::new(path, std::fs::read(path).unwrap())).collect();
    let checked = check(&sources);
    assert_eq!(checked.errors() == 0, checked.site.is_some());
    checked.diagnostics.iter().map(|diagnostic| format!("{diagnostic:?}")).collect()
}

#[test]
fn the_quick_starts_documents_are_right() {
    assert_eq!(complaints("examples/quickstart"), Vec::<String>::new());
}

#[test]
fn the_client_suites_documents_are_right() {
    assert_eq!(complaints("tests/clients/site"), Vec::<String>::new());
}
