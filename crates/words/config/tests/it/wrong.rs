//! A set of documents with many errors: all are said at once, each with its place, value and hint.

use tidegate_config::{Checked, Diagnostic, Source, check};

fn checked() -> Checked {
    check(&[
        Source::new("wrong/broken.yaml", include_str!("../data/wrong/broken.yaml")),
        Source::new("wrong/models.yaml", include_str!("../data/wrong/models.yaml")),
        Source::new("wrong/policy.yaml", include_str!("../data/wrong/policy.yaml")),
        Source::new("wrong/site.yaml", include_str!("../data/wrong/site.yaml")),
    ])
}

#[test]
fn every_error_of_every_file_is_said_at_once() {
    let checked = checked();
    assert!(checked.site.is_none());
    let text: Vec<String> = checked.diagnostics.iter().map(Diagnostic::render).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn diagnostics_are_a_list_of_plain_objects_for_programs() {
    let checked = checked();
    let json = serde_json::to_value(&checked.diagnostics[..2]).unwrap();
    insta::assert_snapshot!(format!("{json:#}"));
}

#[test]
fn the_text_of_a_secret_is_never_repeated() {
    let said = serde_json::to_string(&checked().diagnostics).unwrap();
    for secret in ["hunter2", "sk-very-secret", "BEGIN CERTIFICATE", "hf_abc"] {
        assert!(!said.contains(secret), "{secret} leaked");
    }
    assert!(said.contains("(not shown)"));
}
