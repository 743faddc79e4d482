//! Answers recorded from real engines.

use std::path::PathBuf;

use tidegate_engine::Dialect;
use tidegate_engine::client::replay::{self, Outcome};
use tidegate_engine::launch::{Phase, root_cause};

/// The folder of recorded answers.
pub(crate) fn folder() -> PathBuf {
    let shared = std::env::var_os("TIDEGATE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../../shared")), PathBuf::from);
    let folder = shared.join("fixtures");
    assert!(folder.is_dir(), "no recorded answers at {}: set TIDEGATE_SHARED", folder.display());
    folder
}

/// One recorded answer: status and body.
pub(crate) fn read(name: &str) -> (u16, Vec<u8>) {
    let text = std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    match replay::read([&*as_sent(text)]) {
        Outcome::Whole { status, body, surplus: 0 } => (status, body),
        other => panic!("{name}: {other:?}"),
    }
}

/// The recordings hold joined bodies under a chunked head: puts the framing back.
fn as_sent(text: Vec<u8>) -> Vec<u8> {
    let end = text.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
    if !head.contains("transfer-encoding: chunked") {
        return text;
    }
    let mut sent = text[..end].to_vec();
    for event in text[end..].chunks(97) {
        sent.extend(format!("{:x}\r\n", event.len()).bytes());
        sent.extend(event);
        sent.extend(b"\r\n");
    }
    sent.extend(b"0\r\n\r\n");
    sent
}

#[test]
fn every_recorded_answer_of_a_real_engine_is_read() {
    let mut count = 0;
    for engine in ["vllm", "llamacpp"] {
        for file in std::fs::read_dir(folder().join(engine)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            // The one file with a head only.
            if name.ends_with(".http") && name != "metrics_openmetrics_head.http" {
                let (status, _) = read(&format!("{engine}/{name}"));
                assert!((200..=503).contains(&status), "{name}");
                count += 1;
            }
        }
    }
    assert!(count > 70, "{count}");
}

#[test]
fn recorded_boots_show_their_phases_and_the_cause_of_failure() {
    let log = |name: &str| std::fs::read_to_string(folder().join("vllm/boot").join(name)).unwrap();
    let failed = log("boot_failure_bad_block_size.log");
    assert_eq!(Phase::of(Dialect::Vllm, &failed), Phase::Loading);
    assert_eq!(
        root_cause(&failed).as_deref(),
        Some("ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).")
    );
    let good = log("boot_ok_real_smollm2.log");
    assert_eq!(Phase::of(Dialect::Vllm, &good), Phase::Serving);
    let mut before = Phase::Starting;
    for (end, _) in good.match_indices('\n') {
        let now = Phase::of(Dialect::Vllm, &good[..end]);
        assert!(now >= before);
        before = now;
    }
}

/// Runs every file of a fuzz target's corpus.
fn corpus(target: &str, run: fn(&[u8])) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus")).join(target);
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        run(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

#[test]
fn the_fuzz_corpus_holds() {
    corpus("response", tidegate_engine::fuzz::response);
    corpus("engine_error", tidegate_engine::fuzz::error_body);
    corpus("metrics", tidegate_engine::fuzz::metrics);
}

proptest::proptest! {
    #[test]
    fn no_error_body_and_no_metrics_page_breaks_a_promise(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), text in "[ -~\n]{0,200}") {
        tidegate_engine::fuzz::error_body(&bytes);
        tidegate_engine::fuzz::error_body(text.as_bytes());
        tidegate_engine::fuzz::metrics(text.as_bytes());
        let line = format!("vllm:num_requests_running{text}");
        tidegate_engine::fuzz::metrics(line.as_bytes());
    }
}

#[test]
fn marks_of_a_start_are_in_recorded_logs_in_their_order() {
    let log = std::fs::read_to_string(folder().join("vllm/boot/boot_ok_real_smollm2.log")).unwrap();
    let marks = Dialect::Vllm.boot_marks().iter().filter(|(_, phase)| !phase.starts_with("compiled"));
    let places: Vec<_> = marks.map(|(text, phase)| log.find(text).unwrap_or_else(|| panic!("no {phase}"))).collect();
    assert!(places.is_sorted(), "{places:?}");
}
