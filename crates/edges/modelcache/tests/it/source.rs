//! What can be pushed and what cannot.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tidegate_modelcache::source::{DEPTH_MAX, Source, SourceKind};

fn write(root: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn paths(source: &Source) -> Vec<&str> {
    source.files().iter().map(|file| file.path.as_str()).collect()
}

fn reason(path: &Path) -> String {
    let fault = Source::open(path).unwrap_err();
    assert_eq!(fault.code(), "bad_source", "{fault}");
    fault.to_string()
}

/// The cache of Hugging Face's tools with one revision.
fn hugging_face(root: &Path) -> std::path::PathBuf {
    let repository = root.join("models--org--name");
    write(
        &repository,
        &[("refs/main", "abc123"), ("blobs/1", "{}"), ("blobs/2", "weights"), ("blobs/3", "{}"), ("blobs/4", "sub")],
    );
    let snapshot = repository.join("snapshots/abc123");
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    for (name, blob) in [("config.json", "1"), ("model.safetensors", "2"), ("tokenizer.json", "3")] {
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    symlink("../../../blobs/4", snapshot.join("sub/x.bin")).unwrap();
    repository
}

#[test]
fn a_folder_is_laid_out_for_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("config.json", "{}"),
        ("generation_config.json", "{}"),
        ("model.safetensors", "w"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{}"),
        (".git/HEAD", "hidden"),
        (".gitattributes", "hidden"),
    ];
    write(folder.path(), &files);
    let source = Source::open(folder.path()).unwrap();
    assert_eq!(source.kind(), &SourceKind::Folder);
    let expected = [
        "config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "weights/generation_config.json",
        "weights/model.safetensors",
    ];
    assert_eq!(paths(&source), expected);
    assert_eq!(source.total_bytes(), 9);
}

#[test]
fn a_folder_laid_out_like_the_store_is_taken_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("config.json", "{}"), ("weights/a.gguf", "GGUF"), ("tokenizer/tokenizer.json", "{}")]);
    let source = Source::open(folder.path()).unwrap();
    assert_eq!(paths(&source), ["config.json", "tokenizer/tokenizer.json", "weights/a.gguf"]);
}

#[test]
fn a_snapshot_is_read_through_its_links_by_repository_or_by_revision() {
    let root = tempfile::tempdir().unwrap();
    let repository = hugging_face(root.path());
    let expected = ["config.json", "tokenizer/tokenizer.json", "weights/model.safetensors", "weights/sub/x.bin"];
    for path in [repository.clone(), repository.join("snapshots/abc123")] {
        let source = Source::open(&path).unwrap();
        assert_eq!(source.kind(), &SourceKind::HuggingFace { revision: "abc123".to_owned() });
        assert_eq!(paths(&source), expected);
        assert!(source.files().iter().all(|file| file.from.to_str().unwrap().contains("/blobs/")));
    }
    fs::create_dir(repository.join("snapshots/def")).unwrap();
    fs::remove_file(repository.join("refs/main")).unwrap();
    assert!(reason(&repository).contains("abc123, def"));
}

#[test]
fn links_out_of_the_repository_or_to_nothing_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let repository = hugging_face(root.path());
    let link = repository.join("snapshots/abc123/secret.json");
    write(root.path(), &[("secret", "s")]);
    symlink(root.path().join("secret"), &link).unwrap();
    assert!(reason(&repository).contains("a link out of"));
    fs::remove_file(&link).unwrap();
    symlink("../../blobs/none", &link).unwrap();
    assert!(reason(&repository).contains("a link to nothing"));
    fs::remove_file(&link).unwrap();
    symlink("../..", &link).unwrap();
    assert!(reason(&repository).contains("a link to a folder"));
}

#[test]
fn half_a_download_and_half_a_copy_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let index = r#"{"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    write(
        folder.path(),
        &[("config.json", "{}"), ("model.safetensors.index.json", index), ("model-1.safetensors", "w")],
    );
    assert!(reason(folder.path()).contains("model-2.safetensors is missing"));
    write(folder.path(), &[("model-2.safetensors", "w")]);
    assert_eq!(Source::open(folder.path()).unwrap().files().len(), 4);
    write(folder.path(), &[(".cache/huggingface/download/x.incomplete", "")]);
    assert!(reason(folder.path()).contains("not complete"));
}

#[test]
fn a_gguf_file_is_a_model_with_all_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("m.gguf", "GGUF…"), ("s-00001-of-00002.gguf", "GGUF1"), ("other.bin", "GGU")]);
    let source = Source::open(&folder.path().join("m.gguf")).unwrap();
    assert_eq!((source.kind(), paths(&source)), (&SourceKind::Gguf, vec!["weights/m.gguf"]));
    let split = folder.path().join("s-00001-of-00002.gguf");
    assert!(reason(&split).contains("s-00002-of-00002.gguf of the split model is missing"));
    write(folder.path(), &[("s-00002-of-00002.gguf", "GGUF2")]);
    assert_eq!(Source::open(&split).unwrap().files().len(), 2);
    assert!(reason(&folder.path().join("other.bin")).contains("no GGUF"));
}

#[test]
fn what_is_no_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(reason(folder.path()).contains("not a model's folder"));
    write(folder.path(), &[("notes.txt", "x")]);
    assert!(reason(folder.path()).contains("not a model's folder"));
    assert_eq!(Source::open(&folder.path().join("none")).unwrap_err().code(), "io");
    write(folder.path(), &[("config.json", "{}"), ("back\\slash", "x")]);
    assert!(reason(folder.path()).contains("backslash"));
    fs::remove_file(folder.path().join("back\\slash")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    assert!(reason(folder.path()).contains("neither a file nor a folder"));
}

#[test]
fn folders_nest_up_to_their_bound() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("config.json", "{}"), (&format!("{}x", "d/".repeat(DEPTH_MAX)), "x")]);
    assert_eq!(Source::open(folder.path()).unwrap().files().len(), 2);
    write(folder.path(), &[(&format!("{}x", "d/".repeat(DEPTH_MAX + 1)), "x")]);
    assert!(reason(folder.path()).contains("folders deep"));
}
