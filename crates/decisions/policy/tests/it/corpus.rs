//! The fuzz target's seeds, and whatever it has found since, as an ordinary test.

use std::path::PathBuf;

use proptest::prelude::*;
use tidegate_policy::fuzz;

#[test]
fn limiter_holds_on_its_corpus() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/limiter");
    let mut seeds = 0;
    for file in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let data = std::fs::read(file.unwrap().path()).unwrap();
        fuzz::limiter(&data);
        for at in 0..data.len() {
            let mut changed = data.clone();
            changed[at] = changed[at].wrapping_add(1);
            fuzz::limiter(&changed);
        }
        seeds += 1;
    }
    assert!(seeds >= 5, "limiter has its seeds");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn limiter_holds_on_any_bytes(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz::limiter(&data);
    }
}
