//! What the disk refuses, at every step of a fetch: a named fault, a clean state, and the next fetch goes on.
//!
//! Failpoints are of the whole process, so the fetch runs in a child, which is this test binary again.

use std::path::Path;
use std::process::Command;

use tidegate_modelcache::{Layout, failpoint};

use crate::model::{ITSELF, Model, fetched, folder_store, is_clean, open_cache, options};

const ROOT: &str = "TIDEGATE_DISK_ROOT";

fn model() -> Model {
    Model::small(11, 400_000)
}

/// One fetch; nothing when this is not the child. Says how it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let root = Path::new(&root);
    let cache = open_cache(&root.join("cache"));
    let (result, _) = fetched(&cache, &folder_store(&root.join("store")), &model().path, &options()).await;
    let code = result.map_or_else(|fault| fault.code(), |_| "ok");
    println!("\nended {code}");
}

fn run(root: &Path, armed: &str) -> String {
    let output = Command::new(ITSELF)
        .args(["--exact", "disk::child", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env("TIDEGATE_CACHE_FAILPOINTS", armed)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let ended = text.lines().find_map(|line| line.strip_prefix("ended "));
    ended.unwrap_or_else(|| panic!("{armed}: {text}")).to_owned()
}

#[tokio::test]
async fn a_disk_that_refuses_at_any_step_is_named_and_leaves_a_state_that_the_next_fetch_goes_on_from() {
    let model = model();
    let faults = [
        ("full", &["disk_full", "inodes_full"][..]),
        ("quota", &["quota"]),
        ("readonly", &["read_only"]),
        ("io", &["io"]),
    ];
    for (number, point) in failpoint::POINTS.iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("store")).unwrap();
        model.put(&folder_store(&root.path().join("store"))).await;
        let layout = Layout::new(root.path().join("cache"));
        let (error, codes) = faults[number % faults.len()];
        let passing = 1 + number % 2;
        let passing = if point.contains("write") || point.contains("journal") { passing } else { 1 };
        let armed = format!("{point}=error:{error}@{passing}");
        let ended = run(root.path(), &armed);
        assert!(codes.contains(&ended.as_str()), "{armed}: {ended}");
        model.is_exact_or_absent(&layout, &armed);
        assert_eq!(run(root.path(), ""), "ok", "after {armed}");
        model.is_exact(&layout, &armed);
        is_clean(&layout, &armed);
    }
}
