//! The fuzz targets' seeds, and whatever they have found since, as ordinary tests.

use std::path::PathBuf;

use tidegate_wire::fuzz;

fn run(target: &str, entry: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut seeds = 0;
    for file in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let data = std::fs::read(file.unwrap().path()).unwrap();
        entry(&data);
        // Cut short and with a byte changed, each seed is several.
        for at in [data.len() / 3, data.len() / 2, data.len().saturating_sub(1)] {
            entry(&data[..at]);
            let mut changed = data.clone();
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 0x20;
            }
            entry(&changed);
        }
        seeds += 1;
    }
    assert!(seeds >= 5, "{target} has its seeds");
}

#[test]
fn sse_holds_on_its_corpus() {
    run("sse", fuzz::sse);
}

#[test]
fn json_holds_on_its_corpus() {
    run("json", fuzz::json);
}

#[test]
fn usage_holds_on_its_corpus() {
    run("usage", fuzz::usage);
}

#[test]
fn messages_holds_on_its_corpus() {
    run("messages", fuzz::messages);
}

#[test]
fn multipart_holds_on_its_corpus() {
    run("multipart", fuzz::multipart);
}
