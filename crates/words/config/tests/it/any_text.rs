//! Text of any kind is answered, never with a panic; and a site never comes of documents with an error.

use proptest::prelude::*;
use tidegate_config::{Checked, Severity, check_text, examples};

fn holds(checked: &Checked) {
    let has_error = checked.diagnostics.iter().any(|found| found.severity == Severity::Error);
    assert_eq!(checked.site.is_none(), has_error);
    for found in &checked.diagnostics {
        assert!(!found.message.is_empty() && !found.message.ends_with('.'), "{found:?}");
        assert!(!found.render().contains("\n\n"));
    }
}

/// Everything that stands in the examples and in the wrong documents, in one text.
fn corpus() -> Vec<u8> {
    let wrong = [
        include_str!("../data/wrong/site.yaml"),
        include_str!("../data/wrong/models.yaml"),
        include_str!("../data/wrong/policy.yaml"),
        include_str!("../data/wrong/broken.yaml"),
        include_str!("../data/design.yaml"),
    ];
    let texts = examples().iter().map(|(_, text)| *text).chain(wrong);
    texts.collect::<Vec<_>>().join("\n---\n").into_bytes()
}

#[test]
fn documents_that_are_cut_off_are_answered() {
    let text = include_bytes!("../data/design.yaml");
    // A prime step cuts at every kind of place without trying each byte.
    for end in (0..text.len()).step_by(7) {
        holds(&check_text(&text[..end]));
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_is_answered() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/documents");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        holds(&check_text(&std::fs::read(entry.unwrap().path()).unwrap()));
        count += 1;
    }
    assert!(count >= 12, "the corpus has shrunk to {count}");
}

#[test]
fn odd_texts_are_answered() {
    for text in [
        "",
        "\u{feff}",
        "---",
        "---\n---\n...",
        "\0",
        "%YAML 9.9\n---\na",
        "%TAG ! x\n---\n!a b",
        "? [a]\n: b",
        "{{}: a}",
        "<<: {a: b}",
        "a: &x\nb: *x",
        "&a a: *a",
        "- - - -",
        "a:\tb",
        "'",
        "\"\\x\"",
        "|\n a",
        "!!binary x",
        "a: !!null b",
        "[]: []",
        "~: ~",
        "null",
        "kind: Site\nmetadata: {name: [x]}\nspec: [x]",
        "kind: [Site]",
        "metadata: 5",
        "kind: Site\nmetadata:\nspec: ~",
    ] {
        holds(&check_text(text.as_bytes()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn bytes_of_any_kind_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        holds(&check_text(&bytes));
    }

    #[test]
    fn yaml_like_text_is_answered(text in r"([a-z]{1,4}(: |:\n  |, )|[\[\]{}&*!|>'%~-]|- |\n---\n|\n {0,6}){0,60}") {
        holds(&check_text(text.as_bytes()));
    }

    #[test]
    fn documents_with_damage_are_answered(
        start in 0..12_000_usize,
        length in 0..3_000_usize,
        damage in prop::collection::vec((0..3_000_usize, prop::sample::select(b"\n\t :-,[]{}'\"#&*!|>%~?0aZ\xff".to_vec())), 1..6),
    ) {
        let corpus = corpus();
        let start = start.min(corpus.len());
        let mut text = corpus[start..(start + length).min(corpus.len())].to_vec();
        for (place, byte) in damage {
            let place = place.min(text.len());
            text.insert(place, byte);
        }
        holds(&check_text(&text));
    }
}
