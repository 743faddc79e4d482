//! Counting tokens.

use std::path::Path;

use tempfile::TempDir;
use tidegate_engine::tokenizer::{COUNTING_MAX, CannotCount, FILE, INLINE_BYTES_MAX, TEXT_BYTES_MAX, Tokenizer};

/// A tokenizer that splits at white space, with padding and truncation switched on as in files of the wild.
fn words(folder: &Path) {
    let text = r#"{
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[UNK]"},
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}, "unk_token": "[UNK]"}
    }"#;
    std::fs::write(folder.join(FILE), text).unwrap();
}

#[tokio::test]
async fn tokens_are_counted_without_padding_truncation_or_special_tokens() {
    let folder = TempDir::new().unwrap();
    words(folder.path());
    let tokenizer = Tokenizer::load(folder.path()).unwrap().unwrap();
    assert_eq!(tokenizer.count("hello world hello world hello world").await, Ok(6));
    assert_eq!(tokenizer.count("hello").await, Ok(1));
    assert_eq!(tokenizer.count("").await, Ok(0));
    let by_file = Tokenizer::load(&folder.path().join(FILE)).unwrap().unwrap();
    assert_eq!(by_file.count("hello").await, Ok(1));
}

#[tokio::test]
async fn long_texts_are_counted_elsewhere_and_bounded() {
    let folder = TempDir::new().unwrap();
    words(folder.path());
    let tokenizer = Tokenizer::load(folder.path()).unwrap().unwrap();
    let words = INLINE_BYTES_MAX / 6 + 1;
    assert_eq!(tokenizer.count(&"hello ".repeat(words)).await, Ok(words as u64));
    assert_eq!(tokenizer.count(&" ".repeat(TEXT_BYTES_MAX)).await, Ok(0));
    assert_eq!(tokenizer.count(&" ".repeat(TEXT_BYTES_MAX + 1)).await, Err(CannotCount::TooLong));
}

#[test]
fn who_finds_no_room_does_not_wait() {
    let folder = TempDir::new().unwrap();
    words(folder.path());
    let tokenizer = Tokenizer::load(folder.path()).unwrap().unwrap();
    // One blocking thread, which is kept busy: nothing is counted to its end meanwhile.
    let core = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    core.block_on(async {
        let (release, held) = std::sync::mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || held.recv()));
        let mut counts = tokio::task::JoinSet::new();
        for _ in 0..=COUNTING_MAX {
            let tokenizer = tokenizer.clone();
            counts.spawn(async move { tokenizer.count(&"hello ".repeat(INLINE_BYTES_MAX)).await });
        }
        // The one too many answers at once, the others only when the thread is free.
        assert_eq!(counts.join_next().await.unwrap().unwrap(), Err(CannotCount::Busy));
        assert_eq!(tokenizer.count("hello").await, Ok(1), "short texts need no room");
        release.send(()).unwrap();
        for _ in 0..COUNTING_MAX {
            assert_eq!(counts.join_next().await.unwrap().unwrap(), Ok(INLINE_BYTES_MAX as u64));
        }
    });
}

#[test]
fn a_folder_without_a_tokenizer_has_none_and_a_broken_file_is_an_error() {
    let folder = TempDir::new().unwrap();
    assert!(Tokenizer::load(folder.path()).unwrap().is_none());
    assert!(Tokenizer::load(&folder.path().join("gone.json")).is_err());
    for junk in ["", "{}", "[1]", "{\"model\": {\"type\": \"BPE\"}}"] {
        std::fs::write(folder.path().join(FILE), junk).unwrap();
        let error = Tokenizer::load(folder.path()).unwrap_err();
        assert!(error.to_string().contains(FILE), "{junk}: {error}");
    }
}
