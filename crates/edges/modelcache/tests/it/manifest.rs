//! The manifest's rules, at their bounds and on random content.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::layout::flat_name;
use tidegate_modelcache::manifest::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, COMPONENT_BYTES_MAX, FILES_MAX, FileEntry,
    MANIFEST_BYTES_MAX, MODEL_BYTES_MAX, Manifest, ManifestError, PATH_BYTES_MAX, check_chunk_size, check_path, sha256,
};

fn entry(path: &str, size: u64) -> FileEntry {
    let chunks = (0..size.div_ceil(CHUNK_BYTES_MIN.into())).map(|n| Sha256Digest([n as u8; 32])).collect();
    FileEntry { path: path.to_owned(), size, sha256: Sha256Digest([7; 32]), chunks }
}

fn make(paths: &[&str]) -> Result<Manifest, ManifestError> {
    Manifest::new(CHUNK_BYTES_MIN, paths.iter().map(|path| entry(path, 1)).collect())
}

/// The text of a good manifest with one thing changed.
fn changed(from: &str, to: &str) -> Result<Manifest, ManifestError> {
    let good = make(&["config.json", "weights/b"]).unwrap();
    let text = std::str::from_utf8(good.bytes()).unwrap();
    assert!(text.contains(from), "{text}");
    Manifest::parse(text.replacen(from, to, 1).as_bytes())
}

#[test]
fn a_manifest_survives_its_own_text_and_its_digest_is_that_of_the_text() {
    let manifest = make(&["weights/b", "config.json", "tokenizer/tokenizer.json"]).unwrap();
    let again = Manifest::parse(manifest.bytes()).unwrap();
    assert_eq!(again, manifest);
    let paths: Vec<_> = again.files().iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["config.json", "tokenizer/tokenizer.json", "weights/b"]);
    assert_eq!(again.digest(), sha256(manifest.bytes()));
}

#[test]
fn the_text_is_what_other_programs_read() {
    let manifest = Manifest::new(CHUNK_BYTES_MIN, vec![entry("config.json", 1)]).unwrap();
    let expected = format!(
        "{{\"manifestVersion\":1,\"chunkSize\":65536,\"files\":[{{\"path\":\"config.json\",\"size\":1,\
         \"sha256\":\"{}\",\"chunks\":[\"{}\"]}}]}}\n",
        "07".repeat(32),
        "00".repeat(32)
    );
    assert_eq!(std::str::from_utf8(manifest.bytes()).unwrap(), expected);
}

#[test]
fn one_content_has_one_text() {
    let digits = "07".repeat(32);
    for (from, to) in [
        (":1,", ": 1,"),
        ("\n", ""),
        ("\n", "\n\n"),
        ("config.json", "xonfig.json"),
        (digits.as_str(), "AB".repeat(32).as_str()),
        ("\"manifestVersion\":1,\"chunkSize\":65536", "\"chunkSize\":65536,\"manifestVersion\":1"),
        ("config.json", "\\u0063onfig.json"),
    ] {
        let refused = changed(from, to).unwrap_err();
        assert!(matches!(refused, ManifestError::NotCanonical), "{from:?} -> {to:?}: {refused}");
    }
}

#[test]
fn what_is_not_known_is_refused() {
    for (from, to) in [
        ("{\"manifestVersion\"", "{\"more\":1,\"manifestVersion\""),
        ("{\"path\"", "{\"more\":1,\"path\""),
        ("\"size\":1", "\"size\":1.0"),
        ("\"size\":1", "\"size\":-1"),
        ("\"size\":1", "\"size\":1,\"size\":1"),
        ("\"size\":1", "\"size\":18446744073709551616"),
        ("0707", "07"),
        ("0707", "zz07"),
    ] {
        assert!(matches!(changed(from, to), Err(ManifestError::Syntax(_))), "{from:?} -> {to:?}");
    }
    assert_eq!(changed("Version\":1", "Version\":2"), Err(ManifestError::Version(2)));
    assert_eq!(changed("65536", "65537"), Err(ManifestError::ChunkSize(65537)));
    assert_eq!(
        changed("\"size\":1", "\"size\":65537"),
        Err(ManifestError::ChunkCount { path: "config.json".to_owned(), expected: 2, found: 1 })
    );
    assert_eq!(
        changed("\"size\":1", "\"size\":0"),
        Err(ManifestError::ChunkCount { path: "config.json".to_owned(), expected: 0, found: 1 })
    );
    let max = u64::MAX.to_string();
    assert!(matches!(changed("\"size\":1", &format!("\"size\":{max}")), Err(ManifestError::ChunkCount { .. })));
}

#[test]
fn names_that_meet_in_the_flat_folder_are_refused() {
    assert!(matches!(make(&["weights/a", "a"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["weights/a", "tokenizer/a"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["weights/a", "a/b"]), Err(ManifestError::Collision { .. })));
    assert!(matches!(make(&["weights", "weights/a"]), Err(ManifestError::FileAndFolder { .. })));
    assert!(matches!(make(&["a", "a"]), Err(ManifestError::Twice(_))));
    assert!(matches!(make(&["x/a", "x/a/b"]), Err(ManifestError::FileAndFolder { .. })));
    make(&["weights/a", "a2", "weights/a-b/c"]).unwrap();
}

#[test]
fn paths_keep_to_their_bounds() {
    let component = "c".repeat(COMPONENT_BYTES_MAX);
    check_path(&component).unwrap();
    check_path(&format!("{component}c")).unwrap_err();
    let longest = format!("{component}/{component}/{component}/{component}/");
    let longest = format!("{longest}{}", "p".repeat(PATH_BYTES_MAX - longest.len()));
    check_path(&longest[..PATH_BYTES_MAX]).unwrap_or_else(|_| assert!(longest.ends_with('/')));
    check_path(&format!("{}/p", &longest[..PATH_BYTES_MAX - 1])).unwrap_err();
    for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b", "a\nb", "a\\b", "a\u{7f}", "manifest.json"]
    {
        check_path(bad).unwrap_err();
    }
    for good in ["a", ".a", "a..b", "...", "weights/über grün.bin", "x/manifest.json", "a b"] {
        check_path(good).unwrap();
    }
}

#[test]
fn chunk_sizes_are_powers_of_two_within_their_bounds() {
    for good in [CHUNK_BYTES_MIN, CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX] {
        assert_eq!(check_chunk_size(good.into()), Ok(good));
    }
    let bounds = [u64::from(CHUNK_BYTES_MIN / 2), u64::from(CHUNK_BYTES_MAX) * 2, 0, 65_537, 1 << 32, u64::MAX];
    for bad in bounds {
        assert_eq!(check_chunk_size(bad), Err(ManifestError::ChunkSize(bad)));
    }
}

#[test]
fn files_are_bounded_in_number_and_never_none() {
    let entries = |count: usize| (0..count).map(|n| entry(&format!("weights/{n}"), 0)).collect::<Vec<_>>();
    assert_eq!(Manifest::new(CHUNK_BYTES_MIN, entries(0)), Err(ManifestError::FileCount(0)));
    let most = Manifest::new(CHUNK_BYTES_MIN, entries(FILES_MAX)).unwrap();
    assert_eq!(Manifest::parse(most.bytes()).unwrap().files().len(), FILES_MAX);
    let more = Manifest::new(CHUNK_BYTES_MIN, entries(FILES_MAX + 1));
    assert_eq!(more, Err(ManifestError::FileCount(FILES_MAX + 1)));
}

#[test]
fn a_text_is_bounded_before_it_is_read() {
    let text = vec![b'x'; MANIFEST_BYTES_MAX];
    assert!(matches!(Manifest::parse(&text), Err(ManifestError::Syntax(_))));
    let text = vec![b'x'; MANIFEST_BYTES_MAX + 1];
    assert_eq!(Manifest::parse(&text), Err(ManifestError::TooLarge { size: MANIFEST_BYTES_MAX + 1 }));
    // chunks alone can make it too large
    let size = u64::from(CHUNK_BYTES_MIN) * (MANIFEST_BYTES_MAX as u64 / 60);
    let made = Manifest::new(CHUNK_BYTES_MIN, vec![entry("weights/x", size)]);
    assert!(matches!(made, Err(ManifestError::TooLarge { .. })));
    const { assert!(MODEL_BYTES_MAX < u64::MAX / 8) };
}

#[test]
fn spans_of_chunks_cover_a_file_exactly() {
    let size = u64::from(CHUNK_BYTES_MIN) * 3 + 5;
    let file = entry("x", size);
    let mut at = 0;
    for index in 0..file.chunks.len() as u64 {
        let (start, length) = file.chunk_span(CHUNK_BYTES_MIN, index).unwrap();
        assert_eq!(start, at);
        at += length;
    }
    assert_eq!(at, size);
    assert_eq!(file.chunk_span(CHUNK_BYTES_MIN, 4), None);
    assert_eq!(file.chunk_span(CHUNK_BYTES_MIN, u64::MAX), None);
    assert_eq!(entry("x", 0).chunk_span(CHUNK_BYTES_MIN, 0), None);
}

fn paths() -> impl Strategy<Value = Vec<String>> {
    let part = prop_oneof![Just("weights".to_owned()), Just("tokenizer".to_owned()), "[abc.]{1,2}", "[é ~#%]{1,3}"];
    proptest::collection::vec(proptest::collection::vec(part, 1..4).prop_map(|parts| parts.join("/")), 1..6)
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        drop(Manifest::parse(&bytes));
    }

    /// What is made is read again, and its flat folder can be laid out: no name twice, no file where a folder must be.
    #[test]
    fn what_is_made_is_read_again_and_can_be_laid_out(paths in paths(), sizes in proptest::collection::vec(0_u64..200_000, 6)) {
        let files: Vec<_> = paths.iter().zip(&sizes).map(|(path, size)| entry(path, *size)).collect();
        let Ok(manifest) = Manifest::new(CHUNK_BYTES_MIN, files.clone()) else { return Ok(()) };
        prop_assert_eq!(&Manifest::parse(manifest.bytes()).unwrap(), &manifest);
        prop_assert_eq!(manifest.total_bytes(), files.iter().map(|file| file.size).sum::<u64>());
        let names: BTreeSet<&str> = manifest.files().iter().map(|file| flat_name(&file.path)).collect();
        prop_assert_eq!(names.len(), manifest.files().len());
        for name in &names {
            let folder = format!("{name}/");
            prop_assert!(names.iter().all(|other| !other.starts_with(&folder)));
        }
        // the order in which files are given changes nothing
        let reversed = Manifest::new(CHUNK_BYTES_MIN, files.into_iter().rev().collect()).unwrap();
        prop_assert_eq!(reversed.digest(), manifest.digest());
    }

    /// A text with one byte changed is another model or none.
    #[test]
    fn no_changed_text_has_the_same_digest(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let manifest = make(&["config.json", "weights/b"]).unwrap();
        let mut text = manifest.bytes().to_vec();
        let at = at.index(text.len());
        prop_assume!(text[at] != byte);
        text[at] = byte;
        if let Ok(other) = Manifest::parse(&text) {
            prop_assert_ne!(other.digest(), manifest.digest());
            prop_assert_ne!(other.files(), manifest.files());
        }
    }
}
