//! Room on real file systems of a few megabytes: a user's own mount namespace has a tmpfs with as many bytes and inodes
//! as the test says. The test itself runs in a child, which is this test binary again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tidegate_modelcache::cache::gc::Mode;
use tidegate_modelcache::cache::{Cache, CacheOptions, ls};
use tidegate_modelcache::evict::{Hold, Room};
use tidegate_modelcache::progress::Event;
use tidegate_modelcache::remote::Remote;
use tidegate_modelcache::room::{Disk, KeepFree};
use tidegate_modelcache::{CacheFault, Layout};

use crate::model::{Model, Random, fetched, folder_store, is_clean, options};

const ROOT: &str = "TIDEGATE_ROOM_ROOT";
const MIB: u64 = 1 << 20;

/// Runs test `child` of this module with a tmpfs of these options at the cache's place. `after` is done with it, as the
/// file system's owner, before the test: `mount -o remount,ro` and the like.
fn on_tmpfs(child: &str, tmpfs: &str, after: &str) {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
        command
    };
    // A disk that cannot be made shows nothing: that is a failure, not a pass.
    assert!(
        unshare("true").status().is_ok_and(|status| status.success()),
        "`unshare --user --mount` is needed and not allowed here (sysctl kernel.unprivileged_userns_clone)"
    );
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("cache")).unwrap();
    std::fs::create_dir(root.path().join("store")).unwrap();
    let script = format!(
        "mount -t tmpfs -o {tmpfs} none \"$0/cache\"; {after}; exec \"$1\" --exact room::{child} --nocapture --test-threads=1"
    );
    let output = unshare(&script)
        .arg(root.path())
        .arg(std::env::current_exe().unwrap())
        .env(ROOT, root.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed") && text.contains("was shown"), "{text}");
}

/// The folder of the child, with the store in `store` and the tmpfs at `cache`; `None` when this is not the child.
#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn child_root() -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os(ROOT)?);
    println!("\nwas shown");
    Some(root)
}

/// A clock that goes on by a second whenever it is read.
fn ticking() -> u64 {
    static NOW_S: AtomicU64 = AtomicU64::new(1_800_000_000);
    NOW_S.fetch_add(1, Ordering::Relaxed)
}

fn cache_of(root: &Path, keep_free: KeepFree) -> Arc<Cache> {
    Arc::new(Cache::open(&root.join("cache"), CacheOptions { keep_free, now_s: ticking }).unwrap())
}

fn model(name: &str, seed: u64, bytes: u64) -> Model {
    let weights = Random(seed).bytes(usize::try_from(bytes).unwrap());
    Model::new(name, vec![("config.json", Bytes::from_static(b"{}")), ("weights/model.safetensors", weights)])
}

async fn pull(cache: &Arc<Cache>, store: &Remote, model: &Model) -> Result<(), CacheFault> {
    model.put(store).await;
    fetched(cache, store, &model.path, &options()).await.0.map(drop)
}

fn names(layout: &Layout) -> Vec<String> {
    let mut names: Vec<String> = ls(layout).unwrap().into_iter().flat_map(|model| model.models).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_makes_room() {
    let Some(root) = child_root() else { return };
    let (cache, store) = (cache_of(&root, KeepFree::Millipercent(10_000)), folder_store(&root.join("store")));
    let [first, second, third, fourth] =
        [("a/1", 1), ("b/1", 2), ("c/1", 3), ("d/1", 4)].map(|(name, seed)| model(name, seed, 3 * MIB));
    for model in [&first, &second] {
        pull(&cache, &store, model).await.unwrap();
    }
    // The timetable needs the first tomorrow and the second next week.
    let digest = |model: &Model| model.manifest.digest();
    cache.set_next_use([(digest(&first), 1_800_086_400), (digest(&second), 1_800_600_000)]);
    pull(&cache, &store, &third).await.unwrap();
    assert_eq!(names(cache.layout()), ["a/1", "c/1"], "the furthest next use went");
    assert_eq!((cache.counters().evictions.get(), cache.counters().evicted_bytes.get()), (1, 3 * MIB));
    for held in [&first, &third] {
        cache.pin(digest(held), Hold::Serving, "controller", "").unwrap();
    }
    let (result, events) = {
        fourth.put(&store).await;
        fetched(&cache, &store, &fourth.path, &options()).await
    };
    let CacheFault::NoRoom(refused) = result.unwrap_err() else { panic!("it cannot fit") };
    assert_eq!((refused.evictable_bytes, refused.kept.len()), (0, 2), "{refused}");
    assert!(!events.iter().any(|event| matches!(event, Event::FileStarted { .. })), "refused before the first byte");
    for model in [&first, &third] {
        model.is_exact(cache.layout(), "what serves is untouched");
    }
    is_clean(cache.layout(), "a refusal leaves nothing");
    cache.unpin(digest(&third), Hold::Serving, "controller").unwrap();
    pull(&cache, &store, &fourth).await.unwrap();
    assert_eq!(names(cache.layout()), ["a/1", "d/1"]);
    let disk = Disk::of(cache.layout().root()).unwrap();
    assert!(disk.free_bytes >= KeepFree::Millipercent(10_000).bytes(disk.total_bytes), "{disk:?}");
}

#[test]
fn what_does_not_fit_makes_room_by_the_timetable_or_is_refused_before_its_first_byte() {
    on_tmpfs("child_that_makes_room", "size=9m", ":");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_runs_out_of_inodes() {
    let Some(root) = child_root() else { return };
    let (cache, store) = (cache_of(&root, KeepFree::Bytes(0)), folder_store(&root.join("store")));
    let many = |name: &str, seed: u64, count: u64| {
        let files: Vec<(String, Bytes)> =
            (0..count).map(|at| (format!("weights/{at}"), Random(seed + at).bytes(100))).collect();
        Model::new(name, files.iter().map(|(path, bytes)| (&**path, bytes.clone())).collect())
    };
    let (first, second, third) = (many("a/1", 1, 60), many("b/1", 1000, 60), many("c/1", 2000, 250));
    pull(&cache, &store, &first).await.unwrap();
    pull(&cache, &store, &second).await.unwrap();
    assert_eq!(names(cache.layout()), ["b/1"], "the first went for the inodes of the second");
    let fault = pull(&cache, &store, &third).await.unwrap_err();
    assert_eq!(fault.code(), "inodes_full", "{fault}");
    second.is_exact(cache.layout(), "refused in time");
}

#[test]
fn inodes_are_room_too() {
    on_tmpfs("child_that_runs_out_of_inodes", "size=64m,nr_inodes=650", ":");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_on_a_read_only_disk() {
    let Some(root) = child_root() else { return };
    let opened = Cache::open(&root.join("cache"), CacheOptions::default());
    assert_eq!(opened.unwrap_err().code(), "read_only");
    assert_eq!(ls(&Layout::new(root.join("cache"))).unwrap(), [], "what only reads still works");
    assert!(Disk::of(&root.join("cache")).unwrap().read_only);
}

#[test]
fn a_read_only_disk_is_named_at_once() {
    on_tmpfs("child_on_a_read_only_disk", "size=1m", "mount -o remount,ro none \"$0/cache\"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_others_on_the_disk() {
    let Some(root) = child_root() else { return };
    let (cache, store) = (cache_of(&root, KeepFree::Bytes(2 * MIB)), folder_store(&root.join("store")));
    let (first, second) = (model("a/1", 1, 2 * MIB), model("b/1", 2, 2 * MIB));
    pull(&cache, &store, &first).await.unwrap();
    pull(&cache, &store, &second).await.unwrap();
    cache.used(first.manifest.digest()).unwrap();
    // Somebody else fills the disk; the reserve is no longer there.
    let filler = root.join("cache/somebody-elses");
    std::fs::write(&filler, vec![1; 3 * usize::try_from(MIB).unwrap()]).unwrap();
    let report = cache.gc(Mode::DryRun).unwrap();
    assert_eq!((report.evicted.len(), report.missing_bytes), (1, 0), "{report:?}");
    assert_eq!(names(cache.layout()), ["a/1", "b/1"], "it only said so");
    let report = cache.gc(Mode::Remove).unwrap();
    assert_eq!(report.evicted[0].models, ["b/1"], "the least recently used");
    assert_eq!(names(cache.layout()), ["a/1"]);
    assert!(filler.exists());
    // An open file keeps its room though its name is gone: what was promised is not there, and is not handed out.
    let open =
        std::fs::File::open(cache.layout().published(first.manifest.digest()).join("model.safetensors")).unwrap();
    let disk = Disk::of(cache.layout().root()).unwrap();
    let need = Room { bytes: disk.free_bytes - MIB, inodes: 1 };
    let fault = cache.make_room(need).unwrap_err();
    assert_eq!(fault.code(), "no_room", "{fault}");
    drop(open);
    drop(cache.make_room(need).unwrap());
}

#[test]
fn the_reserve_is_restored_and_files_that_are_open_are_not_counted_as_free() {
    on_tmpfs("child_with_others_on_the_disk", "size=8m", ":");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_two_fetches_at_once() {
    let Some(root) = child_root() else { return };
    let cache = cache_of(&root, KeepFree::Bytes(0));
    let disk = Disk::of(cache.layout().root()).unwrap();
    let two_thirds = Room { bytes: disk.free_bytes / 3 * 2, inodes: 1 };
    let first = cache.make_room(two_thirds).unwrap();
    assert_eq!(cache.make_room(two_thirds).unwrap_err().code(), "no_room", "the disk still shows it as free");
    drop(first);
    drop(cache.make_room(two_thirds).unwrap());
}

#[test]
fn room_is_not_granted_twice() {
    on_tmpfs("child_with_two_fetches_at_once", "size=4m", ":");
}

/// The disk fills up behind admission's back, in the middle of a fetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_whose_disk_fills_up() {
    let Some(root) = child_root() else { return };
    let (cache, store) = (cache_of(&root, KeepFree::Bytes(0)), folder_store(&root.join("store")));
    let model = model("a/1", 1, 3 * MIB);
    model.put(&store).await;
    let filler = root.join("cache/somebody-elses");
    let fill = |event: Event| {
        if matches!(event, Event::Resolved { .. }) {
            // All but what the manifest and the first file take: admission has looked, or looks now.
            drop(std::fs::write(&filler, vec![1; 7 * usize::try_from(MIB).unwrap()]));
        }
    };
    let result = tidegate_modelcache::fetch::fetch(&cache, &store, &model.path, &options(), &fill).await;
    let code = result.unwrap_err().code();
    assert!(["disk_full", "no_room"].contains(&code), "{code}");
    model.is_exact_or_absent(cache.layout(), "full");
    std::fs::remove_file(&filler).unwrap();
    pull(&cache, &store, &model).await.unwrap();
    model.is_exact(cache.layout(), "room again");
}

#[test]
fn a_disk_that_somebody_else_fills_is_a_named_fault_and_the_next_fetch_goes_on() {
    on_tmpfs("child_whose_disk_fills_up", "size=8m", ":");
}
