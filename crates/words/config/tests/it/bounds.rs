//! Every bound, at the bound and one beyond.

use std::fmt::Write;

use tidegate_config::bounds::{
    DEPTH_MAX, DIAGNOSTICS_MAX, DOCUMENTS_MAX, FILE_BYTES_MAX, FILES_MAX, NAME_BYTES_MAX, SHAPE_ERRORS_MAX,
    TOTAL_BYTES_MAX, VALUE_SHOWN_MAX, VALUES_MAX,
};
use tidegate_config::{Source, check, check_text};

use crate::site_of::{BASE, said, with};

#[track_caller]
fn is_said(messages: &[String], part: &str) -> bool {
    messages.iter().any(|message| message.contains(part))
}

#[test]
fn a_file_has_a_largest_size() {
    let padded = |length: usize| {
        let mut text = BASE.to_owned();
        text.push('#');
        text.push_str(&"x".repeat(length - text.len()));
        check(&[Source::new("base.yaml", text)])
    };
    assert_eq!(padded(FILE_BYTES_MAX).diagnostics, []);
    let said = padded(FILE_BYTES_MAX + 1).diagnostics;
    assert_eq!(said.len(), 1, "nothing follows from what was not read");
    assert_eq!(said[0].message, "file is larger than 1048576 bytes");
}

#[test]
fn all_files_together_have_a_largest_size() {
    let files = |bytes: usize| {
        let mut files = vec![Source::new("base.yaml", BASE)];
        let mut left = bytes - BASE.len();
        while left > 0 {
            let size = left.min(FILE_BYTES_MAX);
            // A comment of one line is the cheapest text to read.
            files.push(Source::new(format!("{left}.yaml"), format!("#{}", "x".repeat(size - 1))));
            left -= size;
        }
        check(&files).diagnostics
    };
    assert_eq!(files(TOTAL_BYTES_MAX), []);
    assert_eq!(files(TOTAL_BYTES_MAX + 1)[0].message, "more than 16777216 bytes in all files together");
}

#[test]
fn long_chains_of_aliases_are_walked_once() {
    let chain = |count: usize, last: &str| {
        let mut text = String::new();
        for index in 0..count {
            let next = if index + 1 < count { format!("x{:05}", index + 1) } else { last.to_owned() };
            let _ = write!(
                text,
                "kind: Alias\nmetadata: {{name: x{index:05}}}\nspec: {{targets: [{{deployment: d}}], fallback: [{next}]}}\n---\n"
            );
        }
        with(&text).diagnostics
    };
    assert_eq!(chain(5_000, "a"), []);
    let said = chain(5_000, "x00000");
    assert_eq!(said.len(), 1);
    assert_eq!(
        said[0].message,
        "falls back in a circle: x00000 → x00001 → x00002 → x00003 → x00004 → x00005 → … → x00000 (5000 steps)"
    );
}

#[test]
fn there_is_a_largest_number_of_files_and_of_documents() {
    let files = |count: usize| {
        let mut files = vec![Source::new("base.yaml", BASE)];
        files.extend((1..count).map(|index| Source::new(format!("{index}.yaml"), "")));
        check(&files).diagnostics
    };
    assert_eq!(files(FILES_MAX), []);
    assert_eq!(files(FILES_MAX + 1)[0].message, "more than 2000 files");

    let documents = |count: usize| {
        let mut files = vec![Source::new("base.yaml", BASE)];
        // The base has five.
        for part in (5..count).collect::<Vec<_>>().chunks(1_000) {
            let mut text = String::from("apiVersion: tidegate.dev/v1alpha1\n");
            for index in part {
                let _ = write!(text, "kind: Model\nmetadata: {{name: x{index}}}\nspec: {{engine: vllm}}\n---\n");
            }
            files.push(Source::new(format!("{}.yaml", part[0]), text));
        }
        check(&files).diagnostics
    };
    assert_eq!(documents(DOCUMENTS_MAX), []);
    assert_eq!(documents(DOCUMENTS_MAX + 1)[0].message, "more than 10000 documents");
}

#[test]
fn nesting_has_a_bottom_in_both_styles() {
    // Levels: document, spec, kvTier, settings, and the lists.
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 4), "]".repeat(levels - 4));
        format!(
            "kind: Deployment\nmetadata: {{name: f}}\nspec: {{model: m, endpoints: [{{url: 'http://h:1'}}], kvTier: {{external: nixl, settings: {{x: {open}{close}}}}}}}"
        )
    };
    assert_eq!(said(&nested(DEPTH_MAX)), [""; 0]);
    assert!(is_said(&said(&nested(DEPTH_MAX + 1)), "nested deeper than 24 levels"));

    let mut block = String::from("kind: Alias\nmetadata: {name: f}\nspec:\n");
    for level in 0..200 {
        let _ = writeln!(block, "{}x:", " ".repeat(level + 1));
    }
    assert!(with(&block).site.is_none());
    assert!(check_text("[".repeat(100_000).as_bytes()).site.is_none());
    assert!(check_text("- ".repeat(100_000).as_bytes()).site.is_none());
    assert!(check_text("{a: ".repeat(100_000).as_bytes()).site.is_none());
}

#[test]
fn values_are_counted_with_aliases_in_full() {
    // Document, kind, metadata, name, spec, model, endpoints, item, url, kvTier, external, settings, x: 13, and the items.
    let items = |count: usize| {
        let list = vec!["1"; count].join(",");
        format!(
            "kind: Deployment\nmetadata: {{name: f}}\nspec: {{model: m, endpoints: [{{url: 'http://h:1'}}], kvTier: {{external: nixl, settings: {{x: [{list}]}}}}}}"
        )
    };
    let counted = |text: &str| is_said(&said(text), "more than 50000 values");
    // Keys are scalars too: 13 values have 11 keys before the items, and apiVersion has two.
    let overhead = 26;
    assert!(!counted(&items(VALUES_MAX - overhead)));
    assert!(counted(&items(VALUES_MAX)));

    let mut bomb = String::from("kind: Alias\nmetadata: {name: f}\nspec:\n  a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (name, before) in ('b'..='z').zip('a'..) {
        let _ = writeln!(bomb, "  {name}: &{name} [{}]", vec![format!("*{before}"); 9].join(","));
    }
    assert!(counted(&bomb), "a billion laughs is refused by counting");
    assert!(is_said(&said("kind: &k [*k]"), "alias stands inside the value that it names"));
    assert!(is_said(&said("kind: *nowhere"), "no anchor `&nowhere`"));
}

#[test]
fn a_document_has_a_largest_number_of_shape_errors_and_a_check_of_diagnostics() {
    let keys = |count: usize| {
        let list: Vec<String> = (0..count).map(|index| format!("x{index}: 1")).collect();
        said(&format!("kind: Team\nmetadata: {{name: t}}\nspec: {{models: [{{all: true}}], {}}}", list.join(", ")))
    };
    assert_eq!(keys(SHAPE_ERRORS_MAX - 1).len(), SHAPE_ERRORS_MAX - 1);
    assert_eq!(keys(SHAPE_ERRORS_MAX + 50).len(), SHAPE_ERRORS_MAX, "then nothing more is read of that document");

    let teams = |count: usize| {
        let document = |index: usize| {
            format!("kind: Team\nmetadata: {{name: t{index}}}\nspec: {{models: [{{alias: nobody}}]}}\n---\n")
        };
        with(&(0..count).map(document).collect::<String>()).diagnostics
    };
    assert_eq!(teams(DIAGNOSTICS_MAX).len(), DIAGNOSTICS_MAX);
    let said = teams(DIAGNOSTICS_MAX + 7);
    assert_eq!(said.len(), DIAGNOSTICS_MAX + 1);
    assert_eq!(said.last().unwrap().message, "7 more are not shown");
}

#[test]
fn names_and_shown_values_have_a_length() {
    let team = |length: usize| {
        said(&format!("kind: Team\nmetadata: {{name: {}}}\nspec: {{models: [{{all: true}}]}}", "x".repeat(length)))
    };
    assert_eq!(team(NAME_BYTES_MAX), [""; 0]);
    assert_eq!(team(NAME_BYTES_MAX + 1), ["error metadata.name: not a name"]);
    for name in ["-x", "x-", "X", "x_y", "x y", ""] {
        assert_eq!(
            said(&format!("kind: Team\nmetadata: {{name: '{name}'}}\nspec: {{models: [{{all: true}}]}}")).len(),
            1,
            "{name:?}"
        );
    }
    let shown = |length: usize| {
        let checked = with(&format!("kind: Team\nmetadata: {{name: t}}\nspec: {{priority: {}}}", "ü".repeat(length)));
        checked.diagnostics.iter().find_map(|found| found.value.clone()).unwrap()
    };
    assert_eq!(shown(VALUE_SHOWN_MAX), "ü".repeat(VALUE_SHOWN_MAX));
    assert_eq!(shown(VALUE_SHOWN_MAX + 1), format!("{}…", "ü".repeat(VALUE_SHOWN_MAX - 1)));
}

#[test]
fn bytes_that_are_not_utf_8_are_named_by_their_place_and_what_is_before_them_is_read() {
    let mut text = BASE.as_bytes().to_vec();
    text.extend(b"---\nkind: Team\nmetadata: {name: \xff}\n");
    let said = check(&[Source::new("base.yaml", text)]).diagnostics;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((said[0].message.as_str(), said[0].column), ("not UTF-8", 18));
}
