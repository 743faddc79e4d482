//! The manifest's rules, at their bounds and on random content.

use proptest::prelude::*;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::manifest::{CHUNK_BYTES_MIN, FileEntry, Manifest, ManifestError};

fn entry(path: &str, size: u64) -> FileEntry {
    let chunks = (0..size.div_ceil(CHUNK_BYTES_MIN.into())).map(|n| Sha256Digest([n as u8; 32])).collect();
    FileEntry { path: path.to_owned(), size, sha256: Sha256Digest([7; 32]), chunks }
}

fn make(paths: &[&str]) -> Result<Manifest, ManifestError> {
    Manifest::new(CHUNK_BYTES_MIN, paths.iter().map(|path| entry(path, 1)).collect())
}

#[test]
fn a_manifest_survives_its_own_text_and_its_digest_is_that_of_the_text() {
    let manifest = make(&["weights/b", "config.json", "tokenizer/tokenizer.json"]).unwrap();
    let again = Manifest::parse(manifest.bytes()).unwrap();
    assert_eq!(again, manifest);
    let paths: Vec<_> = again.files().iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["config.json", "tokenizer/tokenizer.json", "weights/b"]);
    assert_eq!(again.digest(), tidegate_modelcache::manifest::sha256(manifest.bytes()));
}

#[test]
fn names_that_meet_in_the_flat_folder_are_refused() {
    assert!(matches!(make(&["weights/a", "a"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["weights/a", "tokenizer/a"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["weights/a", "a/b"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["a", "a"]), Err(ManifestError::Twice(_))));
    assert!(matches!(make(&["x/a", "x/a/b"]), Err(ManifestError::FileAndFolder { .. })));
    make(&["weights/a", "a2", "weights/a-b/c"]).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Manifest::parse(&bytes);
    }
}
