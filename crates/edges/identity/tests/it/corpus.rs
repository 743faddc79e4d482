//! The fuzz targets' seeds, and whatever they have found since, as ordinary tests.

use std::path::PathBuf;

use tidegate_identity::fuzz;

fn run(target: &str, entry: fn(&[u8])) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut seeds = 0;
    for file in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let data = std::fs::read(file.unwrap().path()).unwrap();
        entry(&data);
        // Cut short and with a byte changed, each seed is several.
        for at in 0..data.len() {
            entry(&data[..at]);
            let mut changed = data.clone();
            changed[at] ^= 0x20;
            entry(&changed);
        }
        seeds += 1;
    }
    assert!(seeds >= 5, "{target} has its seeds");
}

#[test]
fn key_holds_on_its_corpus() {
    run("key", fuzz::key);
}

#[test]
fn credential_holds_on_its_corpus() {
    run("credential", fuzz::credential);
}
