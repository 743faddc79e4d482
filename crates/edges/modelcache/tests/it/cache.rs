//! The cache's life: what is listed, what stays, what goes, and what a collection finds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::gc::{self, ABANDONED_AFTER_S, Action, Found, Mode, Report};
use tidegate_modelcache::cache::records::{PIN_TEXT_MAX, PINS_MAX};
use tidegate_modelcache::cache::{Cache, CacheOptions, ListedState, du, ls};
use tidegate_modelcache::evict::{Hold, Room};
use tidegate_modelcache::flight::Join;
use tidegate_modelcache::remote::Remote;
use tidegate_modelcache::room::{Disk, KeepFree};
use tidegate_modelcache::{CacheFault, Layout};

use crate::model::{Model, Random, fetched, folder_store, open_cache, options};

const KEEP: KeepFree = KeepFree::Bytes(0);

/// A store and a cache in one folder.
struct Stand {
    folder: TempDir,
    remote: Remote,
    cache: Arc<Cache>,
}

impl Stand {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        let remote = folder_store(&folder.path().join("store"));
        let cache = open_cache(&folder.path().join("cache"));
        Self { folder, remote, cache }
    }

    fn layout(&self) -> &Layout {
        self.cache.layout()
    }

    async fn pull(&self, model: &Model) -> Sha256Digest {
        model.put(&self.remote).await;
        fetched(&self.cache, &self.remote, &model.path, &options()).await.0.unwrap().digest
    }

    fn gc(&self, mode: Mode) -> Report {
        self.cache.gc(mode).unwrap()
    }

    /// What a collection finds, twice said and once done; afterwards nothing that it removes is left.
    fn finds(&self, expected: &[(Found, Action)]) -> Report {
        let dry = gc::dry_run(self.layout(), KEEP, self.cache.now_s()).unwrap();
        let of =
            |report: &Report| report.findings.iter().map(|finding| (finding.found, finding.action)).collect::<Vec<_>>();
        assert_eq!(of(&dry), expected, "{:?}", dry.findings);
        assert_eq!(of(&self.gc(Mode::DryRun)), expected);
        let done = self.gc(Mode::Remove);
        assert_eq!(done.findings, dry.findings);
        let again = self.gc(Mode::Remove);
        assert!(again.findings.iter().all(|finding| finding.action == Action::Keep), "{:?}", again.findings);
        done
    }
}

/// Models that share a file: `config.json` is the same in all.
fn model(name: &str, seed: u64, bytes: usize) -> Model {
    let files = vec![
        ("config.json", Bytes::from_static(b"{\"same\": true}")),
        ("weights/model.safetensors", Random(seed).bytes(bytes)),
    ];
    Model::new(name, files)
}

const CONFIG_BYTES: u64 = 14;

/// Every path below a folder.
fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(place) = open.pop() {
        for entry in fs::read_dir(place).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
            all.insert(entry.path());
        }
    }
    all
}

#[tokio::test]
async fn ls_and_du_show_models_with_their_own_and_their_shared_bytes() {
    let stand = Stand::new();
    let day = stand.pull(&model("glm/5.3", 1, 200_000)).await;
    let night = stand.pull(&model("qwen/3", 2, 100_000)).await;
    stand.cache.pin(day, Hold::Pinned, "ann", "needed for the demo").unwrap();
    stand.cache.used(night).unwrap();
    let listed = ls(stand.layout()).unwrap();
    let of = |digest: Sha256Digest| listed.iter().find(|model| model.digest == digest.to_string()).unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!((&*of(day).models, of(day).state), (&["glm/5.3".to_owned()][..], ListedState::Published));
    assert_eq!((of(day).files, of(day).bytes, of(day).own_bytes), (2, 200_000 + CONFIG_BYTES, 200_000));
    assert_eq!((of(day).pins.len(), &*of(day).pins[0].note), (1, "needed for the demo"));
    assert!(of(night).last_use_s.is_some());
    let used = du(stand.layout(), KEEP).unwrap();
    assert_eq!((used.model_bytes, used.shared_bytes), (300_000 + CONFIG_BYTES, CONFIG_BYTES));
    assert_eq!((used.partial_bytes, used.artifact_bytes), (0, 0));
    assert!(used.free_bytes > 0 && used.total_bytes >= used.free_bytes);
    assert_eq!(used.models, listed);
    assert_eq!(stand.finds(&[]).freed_bytes, 0);
}

#[tokio::test]
async fn ls_and_du_need_no_owner_and_change_nothing() {
    let stand = Stand::new();
    stand.pull(&model("glm/5.3", 1, 1000)).await;
    let before = tree(stand.layout().root());
    ls(stand.layout()).unwrap();
    du(stand.layout(), KEEP).unwrap();
    gc::dry_run(stand.layout(), KEEP, 0).unwrap();
    assert_eq!(tree(stand.layout().root()), before);
    let nowhere = Layout::new(stand.folder.path().join("nowhere"));
    assert_eq!(ls(&nowhere).unwrap(), []);
    assert_eq!(du(&nowhere, KEEP).unwrap_err().code(), "io");
}

/// Evicts as a full disk would: asks for what is free and one byte more than the spare models take.
fn crowd(stand: &Stand, extra: u64) -> Result<Vec<String>, CacheFault> {
    let disk = Disk::of(stand.layout().root()).unwrap();
    let need = Room { bytes: disk.free_bytes + extra, inodes: 0 };
    let grant = stand.cache.make_room(need)?;
    Ok(grant.evicted.into_iter().map(|model| model.digest).collect())
}

#[tokio::test]
async fn no_reason_to_stay_is_ever_overruled_and_the_refusal_names_it() {
    let stand = Stand::new();
    let digest = stand.pull(&model("glm/5.3", 1, 100_000)).await;
    let before = tree(stand.layout().root());
    for hold in [Hold::Serving, Hold::Coming, Hold::RollbackTarget, Hold::Pinned] {
        stand.cache.pin(digest, hold, "controller", "").unwrap();
        // However much is asked for, however much is free: nothing of a held model can be had.
        let fault = crowd(&stand, 1 << 50).unwrap_err();
        assert!(matches!(&fault, CacheFault::NoRoom(refused) if refused.evictable_bytes == 0), "{fault}");
        assert!(fault.to_string().contains(hold.as_str()), "{fault}");
        assert!(stand.cache.unpin(digest, hold, "controller").unwrap());
        assert!(!stand.cache.unpin(digest, hold, "controller").unwrap());
    }
    let Join::Lead(lead) = stand.cache.models().join(digest).unwrap() else { panic!("nobody leads") };
    let fault = crowd(&stand, 1 << 50).unwrap_err();
    assert!(fault.to_string().contains("in_progress"), "{fault}");
    drop(lead);
    assert_eq!(tree(stand.layout().root()), before, "a refusal changes nothing");
    let CacheFault::NoRoom(refused) = crowd(&stand, 1 << 50).unwrap_err() else { panic!("there is no such disk") };
    assert_eq!(refused.evictable_bytes, 100_000 + CONFIG_BYTES, "nothing holds it any more");
}

#[tokio::test]
async fn an_owner_that_restarts_still_knows_what_stays() {
    let mut stand = Stand::new();
    let digest = stand.pull(&model("glm/5.3", 1, 1000)).await;
    stand.cache.pin(digest, Hold::RollbackTarget, "controller", "revision 7").unwrap();
    let root = stand.layout().root().to_path_buf();
    stand.cache = Arc::new(Cache::open(&stand.folder.path().join("other"), CacheOptions::default()).unwrap());
    stand.cache = open_cache(&root);
    assert_eq!(stand.cache.pins(digest).unwrap()[0].hold, Hold::RollbackTarget);
    assert!(matches!(crowd(&stand, 1 << 50), Err(CacheFault::NoRoom(refused)) if refused.evictable_bytes == 0));
}

#[test]
fn pins_are_bounded_and_one_for_each_holder_and_reason() {
    let folder = TempDir::new().unwrap();
    let cache = open_cache(folder.path());
    let digest = Sha256Digest([1; 32]);
    for number in 0..PINS_MAX {
        cache.pin(digest, Hold::Pinned, &format!("{number}"), &"x".repeat(PIN_TEXT_MAX)).unwrap();
    }
    cache.pin(digest, Hold::Pinned, "0", "again").unwrap();
    assert_eq!(cache.pins(digest).unwrap().len(), PINS_MAX);
    assert_eq!(cache.pin(digest, Hold::Pinned, "one more", "").unwrap_err().code(), "bad_settings");
    let other = Sha256Digest([2; 32]);
    for (by, note) in [("x".repeat(PIN_TEXT_MAX + 1), ""), ("a\nb".to_owned(), ""), ("a".to_owned(), "\u{1b}[31m")] {
        assert_eq!(cache.pin(other, Hold::Pinned, &by, note).unwrap_err().code(), "bad_settings");
    }
    assert_eq!(cache.pins(other).unwrap(), []);
}

#[test]
fn a_controller_says_its_whole_mind_and_others_pins_stay() {
    let folder = TempDir::new().unwrap();
    let cache = open_cache(folder.path());
    let [a, b, c] = [1, 2, 3].map(|number| Sha256Digest([number; 32]));
    cache.pin(a, Hold::Pinned, "ann", "").unwrap();
    let wants = |digests: &[(Sha256Digest, Hold)]| {
        let wanted: Vec<_> = digests.iter().map(|(digest, hold)| (*digest, *hold, "night".to_owned())).collect();
        cache.set_holds("controller", &wanted).unwrap();
        [a, b, c].map(|digest| cache.pins(digest).unwrap().into_iter().map(|pin| pin.hold).collect::<Vec<_>>())
    };
    assert_eq!(
        wants(&[(a, Hold::Serving), (b, Hold::Coming)]),
        [vec![Hold::Pinned, Hold::Serving], vec![Hold::Coming], vec![]]
    );
    assert_eq!(
        wants(&[(b, Hold::Serving), (c, Hold::Coming)]),
        [vec![Hold::Pinned], vec![Hold::Serving], vec![Hold::Coming]]
    );
    assert_eq!(wants(&[]), [vec![Hold::Pinned], vec![], vec![]]);
}

#[tokio::test]
async fn a_damaged_record_of_pins_keeps_its_model_and_is_said() {
    let stand = Stand::new();
    let digest = stand.pull(&model("glm/5.3", 1, 1000)).await;
    for bytes in [&b"nonsense"[..], b"", b"{\"version\":2,\"pins\":[]}", &[b' '; 200_000]] {
        fs::write(stand.layout().pin(digest), bytes).unwrap();
        assert_eq!(ls(stand.layout()).unwrap()[0].pins[0].by, "a damaged record");
        assert!(crowd(&stand, 1 << 50).unwrap_err().to_string().contains("pinned"));
        assert_eq!(stand.cache.pins(digest).unwrap_err().code(), "damaged");
    }
}

#[tokio::test]
async fn what_has_no_record_is_found_and_removed() {
    let stand = Stand::new();
    let digest = stand.pull(&model("glm/5.3", 1, 1000)).await;
    let layout = stand.layout();
    let stray = Sha256Digest([9; 32]);
    fs::create_dir_all(layout.file(stray).parent().unwrap()).unwrap();
    fs::write(layout.file(stray), [0; 10_000]).unwrap();
    fs::create_dir_all(layout.partial(stray)).unwrap();
    fs::write(layout.partial_data(stray), [0; 10_000]).unwrap();
    fs::create_dir_all(layout.published(stray).join("sub")).unwrap();
    fs::write(layout.published(stray).join("sub/a"), b"unproven").unwrap();
    fs::write(layout.tmp().join("left"), b"x").unwrap();
    fs::create_dir_all(layout.refs().join("old")).unwrap();
    fs::write(layout.refs().join("old/1"), stray.to_string()).unwrap();
    fs::write(layout.last_use(stray), b"5").unwrap();
    let report = stand.finds(&[
        (Found::Leftover, Action::Remove),
        (Found::FileWithoutModel, Action::Remove),
        (Found::PartialWithoutModel, Action::Remove),
        (Found::FolderWithoutManifest, Action::Remove),
        (Found::NameWithoutModel, Action::Remove),
        (Found::UseWithoutModel, Action::Remove),
    ]);
    assert!(report.freed_bytes >= 20_000, "{}", report.freed_bytes);
    for gone in [layout.file(stray), layout.partial(stray), layout.published(stray), layout.last_use(stray)] {
        assert!(!gone.exists(), "{}", gone.display());
    }
    assert_eq!(ls(layout).unwrap().len(), 1);
    assert_eq!(ls(layout).unwrap()[0].digest, digest.to_string());
}

#[tokio::test]
async fn what_a_record_misses_is_said_and_not_hidden() {
    let stand = Stand::new();
    let model = Model::small(3, 100_000);
    let digest = stand.pull(&model).await;
    let layout = stand.layout();
    let folder = layout.published(digest);
    let damaged = &[(Found::DamagedModel, Action::Keep)];
    // A file is gone from the folder.
    fs::remove_file(folder.join("sub/model-2.safetensors")).unwrap();
    stand.finds(damaged);
    // It is another one than the content file.
    fs::write(folder.join("sub/model-2.safetensors"), model.bytes("weights/sub/model-2.safetensors")).unwrap();
    stand.finds(damaged);
    // Nothing is missing, but something is there that does not belong to it.
    fetched(&stand.cache, &stand.remote, &model.path, &options()).await.0.unwrap();
    fs::remove_file(folder.join("sub/model-2.safetensors")).unwrap();
    fetched(&stand.cache, &stand.remote, &model.path, &options()).await.0.unwrap();
    stand.finds(&[]);
    fs::write(folder.join("stranger"), b"x").unwrap();
    stand.finds(damaged);
    fs::remove_file(folder.join("stranger")).unwrap();
    stand.finds(&[]);
    // A content file is gone: the folder still has it, but it is not what the records say.
    let config = model.manifest.files().iter().find(|file| file.path == "config.json").unwrap();
    fs::remove_file(layout.file(config.sha256)).unwrap();
    stand.finds(damaged);
}

#[tokio::test]
async fn a_pin_may_come_before_its_model_and_what_is_not_ours_is_not_touched() {
    let stand = Stand::new();
    stand.cache.pin(Sha256Digest([4; 32]), Hold::Coming, "controller", "tomorrow").unwrap();
    let stranger = stand.layout().root().join("lost+found");
    fs::create_dir(&stranger).unwrap();
    stand.finds(&[(Found::PinWithoutModel, Action::Keep), (Found::Stranger, Action::Keep)]);
    assert!(stranger.exists());
    assert_eq!(stand.cache.pins(Sha256Digest([4; 32])).unwrap().len(), 1);
}

#[tokio::test]
async fn a_manifest_that_cannot_be_read_takes_its_model_with_it_unless_that_is_held() {
    let stand = Stand::new();
    let digest = stand.pull(&model("glm/5.3", 1, 10_000)).await;
    let layout = stand.layout();
    let index = layout.manifests().join(format!("{digest}.index"));
    fs::remove_file(index).unwrap();
    fs::write(layout.manifest(digest), b"damaged").unwrap();
    assert_eq!(ls(layout).unwrap()[0].state, ListedState::Damaged);
    stand.cache.pin(digest, Hold::Serving, "controller", "").unwrap();
    let before = tree(layout.root());
    stand.finds(&[(Found::FolderWithoutManifest, Action::Keep)]);
    assert_eq!(tree(layout.root()), before, "an engine has it open: not even its content files go");
    stand.cache.unpin(digest, Hold::Serving, "controller").unwrap();
    let report = stand.gc(Mode::Remove);
    assert!(report.freed_bytes >= 10_000);
    assert_eq!((ls(layout).unwrap(), layout.published(digest).exists()), (vec![], false));
    assert_eq!(stand.finds(&[]).found, 0);
}

#[tokio::test]
async fn an_interrupted_fetch_is_kept_for_a_week_and_then_given_up() {
    let stand = Stand::new();
    let model = model("glm/5.3", 1, 10_000);
    let layout = stand.layout();
    stand.cache.declare(&model.manifest).unwrap();
    let part = model.manifest.files()[1].sha256;
    fs::create_dir_all(layout.partial(part)).unwrap();
    fs::write(layout.partial_data(part), [0; 10_000]).unwrap();
    assert_eq!(ls(layout).unwrap()[0].state, ListedState::Partial);
    assert!(du(layout, KEEP).unwrap().partial_bytes >= 10_000);
    stand.finds(&[]);
    let set_age = |age_s: u64| {
        let manifest = fs::File::options().append(true).open(layout.manifest(model.manifest.digest())).unwrap();
        manifest.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
    };
    set_age(ABANDONED_AFTER_S - 3600);
    stand.finds(&[]);
    set_age(ABANDONED_AFTER_S + 1);
    let Join::Lead(lead) = stand.cache.models().join(model.manifest.digest()).unwrap() else { panic!("nobody leads") };
    assert_eq!(stand.gc(Mode::Remove).findings, [], "it is being fetched");
    drop(lead);
    stand.finds(&[(Found::PartialWithoutModel, Action::Remove), (Found::AbandonedFetch, Action::Remove)]);
    assert!(!layout.partial(part).exists());
}

#[tokio::test]
async fn a_death_at_any_step_of_an_eviction_is_finished_by_the_next_owner() {
    // What an eviction does, in its order; the process dies after each step.
    type Step = fn(&Layout, &Model);
    let steps: [Step; 3] = [
        |layout, model| fs::rename(layout.published(model.manifest.digest()), layout.tmp().join("evicted")).unwrap(),
        |layout, model| {
            let digest = model.manifest.digest();
            fs::remove_file(layout.manifest(digest)).unwrap();
            fs::remove_file(layout.manifests().join(format!("{digest}.index"))).unwrap();
        },
        |layout, model| fs::remove_file(layout.file(model.manifest.files()[1].sha256)).unwrap(),
    ];
    for died_after in 1..=steps.len() {
        let mut stand = Stand::new();
        let (gone, stays) = (model("glm/5.3", 1, 10_000), model("qwen/3", 2, 10_000));
        stand.pull(&gone).await;
        stand.pull(&stays).await;
        for step in &steps[..died_after] {
            step(stand.layout(), &gone);
        }
        let root = stand.layout().root().to_path_buf();
        stand.cache = open_cache(&stand.folder.path().join("other"));
        stand.cache = open_cache(&root);
        assert_eq!(tree(&stand.layout().tmp()).len(), 0);
        stand.gc(Mode::Remove);
        stays.is_exact(stand.layout(), "the other model");
        assert!(!stand.layout().published(gone.manifest.digest()).exists());
        // With its records it is a fetch that was interrupted, and goes on from its files; without them all is gone.
        let content = stand.layout().file(gone.manifest.files()[1].sha256);
        assert_eq!(content.exists(), died_after == 1, "{died_after}");
        stand.pull(&gone).await;
        gone.is_exact(stand.layout(), "fetched again");
        stand.finds(&[]);
    }
}
