//! Compile caches: kept after a load, laid out before the next, on this node and on others, exact or not at all.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::artifact::{
    ARTIFACT_FILES_MAX, ArtifactKey, KEY_FLAGS_MAX, KEY_TEXT_MAX, LaidOut, Origin, keep, lay_out,
};
use tidegate_modelcache::cache::{Cache, du, gc};
use tidegate_modelcache::remote::Remote;
use tidegate_modelcache::room::KeepFree;

use crate::model::{Random, folder_store, is_clean, open_cache};

fn key() -> ArtifactKey {
    ArtifactKey {
        model: Sha256Digest([1; 32]),
        engine: "vllm".into(),
        engine_version: "0.32.0".into(),
        driver: "580.95.05".into(),
        gpu: "sm_103".into(),
        tensor_parallel: 4,
        flags: vec!["--max-model-len=131072".into(), "-O3".into()],
    }
}

/// A folder as an engine leaves it.
fn compiled(folder: &Path) -> PathBuf {
    let compiled = folder.join("compiled");
    fs::create_dir_all(compiled.join("triton/ABC")).unwrap();
    fs::create_dir_all(compiled.join("torch_compile_cache/rank_0/empty")).unwrap();
    fs::write(compiled.join("triton/ABC/kernel.cubin"), Random(1).bytes(300_000)).unwrap();
    fs::write(compiled.join("triton/ABC/launcher.so"), Random(2).bytes(40_000)).unwrap();
    fs::set_permissions(compiled.join("triton/ABC/launcher.so"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(compiled.join("triton/ABC.json"), b"{}").unwrap();
    fs::write(compiled.join("triton/ABC-lock"), b"").unwrap();
    fs::write(compiled.join("torch_compile_cache/rank_0/graph.py"), b"def f(): pass\n").unwrap();
    compiled
}

/// Every file below a folder with its bytes and whether it may be run.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>, bool)> {
    let (mut files, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(place) = open.pop() {
        for entry in fs::read_dir(place).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                let path = entry.path();
                let runs = fs::metadata(&path).unwrap().permissions().mode() & 0o100 != 0;
                files.push((path.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&path).unwrap(), runs));
            }
        }
    }
    files.sort();
    files
}

struct Stand {
    folder: TempDir,
    store: Remote,
    cache: Arc<Cache>,
}

impl Stand {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        let store = folder_store(&folder.path().join("store"));
        let cache = open_cache(&folder.path().join("cache"));
        Self { folder, store, cache }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("laid-out")
    }

    /// Lays out, and takes the folder away again: what was in it.
    async fn laid_out(&self, cache: &Arc<Cache>, key: &ArtifactKey) -> (LaidOut, Vec<(PathBuf, Vec<u8>, bool)>) {
        let found = lay_out(cache, Some(&self.store), key, &self.target()).await.unwrap();
        let content = if self.target().exists() { files(&self.target()) } else { Vec::new() };
        drop(fs::remove_dir_all(self.target()));
        assert_eq!(found == LaidOut::Miss, content.is_empty());
        (found, content)
    }

    /// The only file with this name below a folder.
    fn find(&self, below: &str, name: &str) -> PathBuf {
        let folder = self.folder.path().join(below);
        let found: Vec<_> =
            files(&folder).into_iter().map(|(path, ..)| path).filter(|path| path.ends_with(name)).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        folder.join(&found[0])
    }
}

#[tokio::test]
async fn what_one_load_compiled_is_there_before_the_next_and_on_other_nodes() {
    let stand = Stand::new();
    let source = compiled(stand.folder.path());
    assert_eq!(stand.laid_out(&stand.cache, &key()).await.0, LaidOut::Miss);
    let kept = keep(&stand.cache, Some(&stand.store), &key(), &source).await.unwrap();
    assert_eq!((kept.files, kept.left_out, kept.is_new), (5, 0, true));
    let expected = files(&source);
    let (found, content) = stand.laid_out(&stand.cache, &key()).await;
    assert_eq!(found, LaidOut::Hit { from: Origin::Disk, files: 5, bytes: kept.bytes });
    assert_eq!(content, expected);
    let other = open_cache(&stand.folder.path().join("other-node"));
    for from in [Origin::Store, Origin::Disk] {
        let (found, content) = stand.laid_out(&other, &key()).await;
        assert_eq!(found, LaidOut::Hit { from, files: 5, bytes: kept.bytes });
        assert_eq!(content, expected);
    }
    let count = |cache: &Cache| (cache.counters().artifact_hits.get(), cache.counters().artifact_misses.get());
    assert_eq!((count(&stand.cache), count(&other)), ((1, 1), (2, 0)));
    assert!(du(other.layout(), KeepFree::Bytes(0)).unwrap().artifact_bytes >= kept.bytes);
    is_clean(other.layout(), "other");
    assert_eq!(gc::dry_run(other.layout(), KeepFree::Bytes(0), 0).unwrap().findings, [], "they are no strangers");
    // An engine that writes into what it got changes neither what is kept nor what the next one gets.
    assert!(!keep(&stand.cache, Some(&stand.store), &key(), stand.folder.path()).await.unwrap().is_new);
    assert_eq!(stand.laid_out(&stand.cache, &key()).await.1, expected);
}

#[tokio::test]
async fn another_model_engine_driver_gpu_parallelism_or_flag_is_another_compile_cache() {
    let stand = Stand::new();
    keep(&stand.cache, Some(&stand.store), &key(), &compiled(stand.folder.path())).await.unwrap();
    let others = [
        ArtifactKey { model: Sha256Digest([2; 32]), ..key() },
        ArtifactKey { engine: "sglang".into(), ..key() },
        ArtifactKey { engine_version: "0.32.1".into(), ..key() },
        ArtifactKey { driver: "580.95.06".into(), ..key() },
        ArtifactKey { gpu: "sm_100".into(), ..key() },
        ArtifactKey { tensor_parallel: 8, ..key() },
        ArtifactKey { flags: vec!["-O3".into()], ..key() },
        ArtifactKey { flags: vec!["-O3".into(), "--max-model-len=131072".into()], ..key() },
        ArtifactKey { engine: "vllm0".into(), engine_version: ".32.0".into(), ..key() },
    ];
    for other in others {
        assert_eq!(stand.laid_out(&stand.cache, &other).await.0, LaidOut::Miss, "{other:?}");
    }
}

#[test]
fn keys_are_bounded() {
    let text = |length: usize| ArtifactKey { gpu: "x".repeat(length), ..key() }.digest();
    assert!(text(KEY_TEXT_MAX).is_ok());
    assert_eq!(text(KEY_TEXT_MAX + 1).unwrap_err().code(), "bad_settings");
    let flags = |count: usize| ArtifactKey { flags: vec![String::new(); count], ..key() }.digest();
    assert!(flags(KEY_FLAGS_MAX).is_ok());
    assert_eq!(flags(KEY_FLAGS_MAX + 1).unwrap_err().code(), "bad_settings");
}

#[tokio::test]
async fn links_and_pipes_are_left_out_so_that_nothing_from_outside_gets_in() {
    let stand = Stand::new();
    let source = compiled(stand.folder.path());
    let expected = files(&source);
    let secret = stand.folder.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), b"secret").unwrap();
    symlink(secret.join("key"), source.join("linked-file")).unwrap();
    symlink(&secret, source.join("linked-folder")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        source.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let kept = keep(&stand.cache, None, &key(), &source).await.unwrap();
    assert_eq!((kept.files, kept.left_out), (5, 3));
    assert_eq!(stand.laid_out(&stand.cache, &key()).await.1, expected);
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_and_leaves_nothing() {
    let stand = Stand::new();
    let of = &stand;
    let refused = |source: PathBuf| async move {
        let fault = keep(&of.cache, Some(&of.store), &key(), &source).await.unwrap_err();
        is_clean(of.cache.layout(), "refused");
        fault.code()
    };
    assert_eq!(refused(stand.folder.path().join("nowhere")).await, "io");
    let many = stand.folder.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..=ARTIFACT_FILES_MAX {
        fs::write(many.join(number.to_string()), b"").unwrap();
    }
    assert_eq!(refused(many.clone()).await, "bad_source");
    fs::remove_file(many.join("0")).unwrap();
    let kept = keep(&stand.cache, None, &key(), &many).await.unwrap();
    assert_eq!(kept.files, ARTIFACT_FILES_MAX as u64, "at the bound");
    let large = stand.folder.path().join("large");
    fs::create_dir(&large).unwrap();
    fs::File::create(large.join("hole")).unwrap().set_len(1 << 40).unwrap();
    let other = ArtifactKey { tensor_parallel: 1, ..key() };
    let fault = keep(&stand.cache, None, &other, &large).await.unwrap_err();
    assert_eq!(fault.code(), "bad_source", "{fault}");
}

#[tokio::test]
async fn a_folder_that_is_in_use_is_not_laid_out_into() {
    let stand = Stand::new();
    keep(&stand.cache, None, &key(), &compiled(stand.folder.path())).await.unwrap();
    fs::create_dir(stand.target()).unwrap();
    fs::write(stand.target().join("mine"), b"x").unwrap();
    let fault = lay_out(&stand.cache, None, &key(), &stand.target()).await.unwrap_err();
    assert_eq!(fault.code(), "bad_source");
    assert_eq!(files(&stand.target()).len(), 1);
    fs::remove_file(stand.target().join("mine")).unwrap();
    assert!(matches!(lay_out(&stand.cache, None, &key(), &stand.target()).await.unwrap(), LaidOut::Hit { .. }));
}

#[tokio::test]
async fn a_damaged_copy_on_the_disk_is_fetched_again_and_one_in_the_store_is_never_laid_out() {
    let stand = Stand::new();
    let source = compiled(stand.folder.path());
    keep(&stand.cache, Some(&stand.store), &key(), &source).await.unwrap();
    let expected = files(&source);
    let damages: [fn(&mut Vec<u8>); 3] = [|bytes| bytes[77] ^= 1, |bytes| bytes.truncate(1000), |bytes| bytes.push(0)];
    for (number, damage) in damages.iter().enumerate() {
        let pack = stand.find("cache/artifacts", "pack");
        let mut bytes = fs::read(&pack).unwrap();
        damage(&mut bytes);
        fs::write(&pack, bytes).unwrap();
        let (found, content) = stand.laid_out(&stand.cache, &key()).await;
        assert!(matches!(found, LaidOut::Hit { from: Origin::Store, .. }), "{found:?}");
        assert_eq!(content, expected);
        assert_eq!(stand.cache.counters().checksum_failures_disk.get(), number as u64 + 1);
    }
    // Now the store's own copy.
    let other = open_cache(&stand.folder.path().join("other-node"));
    let record = stand.find("store", "record.json");
    let pack =
        fs::read_dir(record.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).find(|path| *path != record);
    let pack = pack.unwrap();
    let mut bytes = fs::read(&pack).unwrap();
    bytes[5] ^= 1;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&pack, bytes).unwrap();
    let fault = lay_out(&other, Some(&stand.store), &key(), &stand.target()).await.unwrap_err();
    assert_eq!((fault.code(), stand.target().exists()), ("wrong_bytes", false));
    assert_eq!(other.counters().checksum_failures_store.get(), 1);
    is_clean(other.layout(), "wrong bytes");
    assert_eq!(fs::read_dir(other.layout().artifacts()).unwrap().count(), 0);
}

#[tokio::test]
async fn compile_caches_outlive_their_model_by_a_week() {
    let stand = Stand::new();
    keep(&stand.cache, None, &key(), &compiled(stand.folder.path())).await.unwrap();
    let now_s = stand.cache.now_s();
    let found = |now_s| gc::dry_run(stand.cache.layout(), KeepFree::Bytes(0), now_s).unwrap().findings;
    assert_eq!(found(now_s + gc::ABANDONED_AFTER_S - 60), []);
    let findings = found(now_s + gc::ABANDONED_AFTER_S + 60);
    assert_eq!((findings.len(), findings[0].found), (1, gc::Found::ArtifactWithoutModel));
    assert!(findings[0].bytes > 340_000);
    let place = stand.cache.layout().artifacts().join(key().model.to_string());
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(gc::ABANDONED_AFTER_S + 60);
    fs::File::open(&place).unwrap().set_modified(long_ago).unwrap();
    assert!(stand.cache.gc(gc::Mode::Remove).unwrap().freed_bytes > 340_000);
    assert!(!place.exists());
    assert_eq!(lay_out(&stand.cache, None, &key(), &stand.target()).await.unwrap(), LaidOut::Miss);
}

/// Records that a store or a disk might hold; none of them may write outside the folder or panic.
#[tokio::test]
async fn records_that_make_no_sense_are_refused() {
    let stand = Stand::new();
    keep(&stand.cache, Some(&stand.store), &key(), &compiled(stand.folder.path())).await.unwrap();
    let record = stand.find("store", "record.json");
    fs::set_permissions(&record, fs::Permissions::from_mode(0o644)).unwrap();
    let good = fs::read_to_string(&record).unwrap();
    let bad = [
        good.replace("triton/ABC/kernel.cubin", "../outside"),
        good.replace("triton/ABC/kernel.cubin", "/outside"),
        good.replace("triton/ABC/kernel.cubin", "triton/ABC/launcher.so"),
        good.replace("triton/ABC/kernel.cubin", "triton/ABC.json/x"),
        good.replace("\"size\":300000", "\"size\":300001"),
        good.replace("\"artifactVersion\":1", "\"artifactVersion\":2"),
        good.replace("0.32.0", "0.33.0"),
        good.replace("\"files\"", "\"more\":1,\"files\""),
        good[..good.len() / 2].to_owned(),
        String::new(),
    ];
    for text in bad {
        assert_ne!(text, good);
        fs::write(&record, &text).unwrap();
        let other = open_cache(&stand.folder.path().join("other-node"));
        let fault = lay_out(&other, Some(&stand.store), &key(), &stand.target()).await.unwrap_err();
        assert_eq!(fault.code(), "bad_answer", "{text}");
        drop(other);
        // The same on the disk: removed, and then the store is asked.
        let own = stand.find("cache/artifacts", "record.json");
        let kept = fs::read(&own).unwrap();
        fs::write(&own, &text).unwrap();
        assert_eq!(lay_out(&stand.cache, None, &key(), &stand.target()).await.unwrap(), LaidOut::Miss, "{text}");
        assert!(!own.exists());
        fs::write(&record, &good).unwrap();
        assert!(matches!(stand.laid_out(&stand.cache, &key()).await.0, LaidOut::Hit { from: Origin::Store, .. }));
        assert_eq!(fs::read(&own).unwrap(), kept);
    }
    assert!(!stand.folder.path().join("outside").exists());
}

fn any_tree() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    proptest::collection::btree_map(
        "[a-c.-]{1,2}(/[a-c.-]{1,2}){0,2}",
        proptest::collection::vec(any::<u8>(), 0..300),
        0..12,
    )
    .prop_map(|files| files.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_folder_comes_back_as_it_was(tree in any_tree()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stand = Stand::new();
        let source = stand.folder.path().join("compiled");
        fs::create_dir(&source).unwrap();
        for (path, bytes) in tree {
            // Paths that do not fit together are not made: a file is no folder.
            let path = source.join(path);
            if fs::create_dir_all(path.parent().unwrap()).is_ok() {
                drop(fs::write(path, bytes));
            }
        }
        let expected = files(&source);
        runtime.block_on(async {
            keep(&stand.cache, Some(&stand.store), &key(), &source).await.unwrap();
            let other = open_cache(&stand.folder.path().join("other-node"));
            for cache in [&stand.cache, &other] {
                let found = lay_out(cache, Some(&stand.store), &key(), &stand.target()).await.unwrap();
                assert!(matches!(found, LaidOut::Hit { .. }));
                assert_eq!(files(&stand.target()), expected);
                fs::remove_dir_all(stand.target()).unwrap();
            }
        });
    }
}
