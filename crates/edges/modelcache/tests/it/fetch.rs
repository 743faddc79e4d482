//! Fetching from the S3 double: what goes right, and what each fault costs.

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_modelcache::cache::Cache;
use tidegate_modelcache::fetch::{Clocks, FetchOptions, Published, STREAMS_MAX, fetch};
use tidegate_modelcache::layout::flat_name;
use tidegate_modelcache::manifest::sha256;
use tidegate_modelcache::progress::{Event, Place};
use tidegate_modelcache::remote::{Remote, RemoteOptions};
use tidegate_modelcache::{CacheFault, FileEntry, Manifest};
use tidegate_testkit::real::BUCKET;
use tidegate_testkit::{S3Double, S3Fault, Verb, When};

use crate::model::{self, CHUNK, Model, fetched, is_clean, open_cache};
use crate::store::keys;

const LARGE: &str = "weights/model-1.safetensors";

struct Stand {
    _folder: TempDir,
    double: S3Double,
    remote: Remote,
    cache: Arc<Cache>,
    model: Model,
}

impl Stand {
    async fn new(bytes: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let double = S3Double::start().unwrap();
        let remote = remote(&double);
        let model = Model::small(7, bytes);
        model.put(&remote).await;
        let cache = open_cache(&folder.path().join("cache"));
        Self { _folder: folder, double, remote, cache, model }
    }

    async fn fetch(&self) -> (Result<Published, CacheFault>, Vec<Event>) {
        fetched(&self.cache, &self.remote, &self.model.path, &model::options()).await
    }

    /// Fetches until a fault ends it; the folder is not there, and what ends it comes as the last event.
    async fn fails(&self, context: &str) -> CacheFault {
        let (result, events) = self.fetch().await;
        let fault = result.expect_err(context);
        let last = events.last().unwrap();
        assert!(matches!(last, Event::Failed { code, .. } if code == fault.code()), "{context}: {last:?}");
        assert!(!self.cache.layout().published(self.model.manifest.digest()).exists(), "{context}");
        fault
    }

    /// Fetches to the end and says how many bytes of the large file came for it.
    async fn succeeds(&self, context: &str) -> u64 {
        let before = self.double.log().sent(LARGE);
        let (result, _) = self.fetch().await;
        result.expect(context);
        self.model.is_exact(self.cache.layout(), context);
        is_clean(self.cache.layout(), context);
        self.double.log().sent(LARGE) - before
    }

    fn size(&self) -> u64 {
        self.model.bytes(LARGE).len() as u64
    }
}

fn remote(double: &S3Double) -> Remote {
    let options = RemoteOptions {
        url: format!("s3://{BUCKET}/models"),
        endpoint: Some(double.url()),
        credentials: keys(),
        ..RemoteOptions::default()
    };
    Remote::open(&options).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_fetched_in_ranges_of_whole_chunks_and_never_twice() {
    let stand = Stand::new(1_000_001).await;
    let (result, events) = stand.fetch().await;
    let published = result.unwrap();
    stand.model.is_exact(stand.cache.layout(), "first");
    is_clean(stand.cache.layout(), "first");
    let unique = stand.model.manifest.total_bytes() - 700;
    assert_eq!(published.fetched_bytes, unique, "the same content comes once");

    let log = stand.double.log();
    let ranges: Vec<_> = log.of(Verb::Get, LARGE).map(|request| request.range.clone().unwrap()).collect();
    assert!(
        ranges
            .iter()
            .all(|range| range.start % u64::from(CHUNK) == 0 && range.end - range.start <= 2 * u64::from(CHUNK))
    );
    assert!(log.gets_running_max <= 4, "no more streams than were asked for");
    assert_eq!(log.of(Verb::Head, "").count(), 0);
    assert!(log.of(Verb::Get, LARGE).any(|request| request.if_match.is_some()), "later ranges are bound to the first");

    assert!(matches!(&events[0], Event::Resolved { cached_bytes: 0, files: 5, .. }), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Progress { .. })));
    let done = events.iter().filter(|event| matches!(event, Event::FileDone { .. })).count();
    assert_eq!(done, 4, "each content");
    assert!(matches!(events.last(), Some(Event::Published { .. })));

    let requests = stand.double.log().requests.len();
    assert_eq!(stand.succeeds("again").await, 0);
    let log = stand.double.log();
    assert_eq!(log.requests.len(), requests + 1, "the manifest and nothing else");
    let pinned = FetchOptions { pin: Some(stand.model.manifest.digest()), ..model::options() };
    fetched(&stand.cache, &stand.remote, &stand.model.path, &pinned).await.0.unwrap();
    assert_eq!(stand.double.log().requests.len(), requests + 1, "a pinned model that is there asks nothing");
}

#[tokio::test]
async fn a_pin_refuses_another_version_before_any_file_is_asked_for() {
    let stand = Stand::new(1000).await;
    let pinned = FetchOptions { pin: Some(sha256(b"another")), ..model::options() };
    let (result, _) = fetched(&stand.cache, &stand.remote, &stand.model.path, &pinned).await;
    assert_eq!(result.unwrap_err().code(), "wrong_digest");
    assert_eq!(stand.double.log().requests.iter().filter(|request| request.verb == Verb::Get).count(), 1);
    let absent = "glm/none".parse().unwrap();
    let (result, _) = fetched(&stand.cache, &stand.remote, &absent, &model::options()).await;
    assert_eq!(result.unwrap_err().code(), "no_such_model");
}

/// L21: a digest mismatch after 400 GB must not delete everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l21_a_wrong_chunk_is_fetched_again_alone_then_named_and_the_rest_is_kept() {
    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE).first(1).holding(200_000), S3Fault::WrongByte { offset: 200_000 });
    let fetched = stand.succeeds("once wrong").await;
    assert_eq!(fetched, stand.size() + u64::from(CHUNK), "one chunk more");
    assert_eq!(stand.cache.counters().checksum_failures_store.get(), 1);

    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE), S3Fault::WrongByte { offset: 200_000 });
    let fault = stand.fails("always wrong").await;
    assert_eq!(fault, CacheFault::WrongBytes { file: LARGE.to_owned(), chunk: 3 });
    let tries = stand.double.log().of(Verb::Get, LARGE).filter(|get| get.range == Some(196_608..262_144)).count();
    assert_eq!(tries, 2, "after the first, which was a longer range, up to the bound");
    stand.double.heal();
    let fetched = stand.succeeds("healed").await;
    assert!(fetched < stand.size() / 2, "{fetched}: what was right is not fetched again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_go_on_in_the_middle_of_the_chunk() {
    for fault in [S3Fault::Cut { after: 50_000 }, S3Fault::Reset { after: 90_000 }, S3Fault::Shorter { by: 30_000 }] {
        let stand = Stand::new(1_000_001).await;
        stand.double.fault(When::get(LARGE).first(6), fault.clone());
        stand.succeeds(&format!("{fault:?}")).await;
        // of the six, up to three ask for the rest of one that broke, and that may be shorter than where the fault is
        assert!(stand.cache.counters().retries.get() >= 3, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_refusals_passes_and_one_for_ever_is_named() {
    let storms = [S3Fault::slow_down(), S3Fault::internal_error(), S3Fault::too_many_requests(None)];
    for fault in storms {
        let stand = Stand::new(500_000).await;
        stand.double.fault(When::verb(Verb::Get).first(5), fault.clone());
        stand.succeeds(&format!("{fault:?}")).await;
    }
    let for_ever = [
        (S3Fault::slow_down_read(), "store_unavailable"),
        (S3Fault::too_many_requests(None), "throttled"),
        (S3Fault::internal_error(), "store_unavailable"),
        (S3Fault::vanished(), "vanished_object"),
        (S3Fault::access_denied(), "refused"),
        (S3Fault::expired_token(), "expired_credentials"),
        (S3Fault::WholeForRange, "range_ignored"),
        (S3Fault::RangeUnder200, "range_ignored"),
        (S3Fault::OtherRange { shift: 65_536 }, "wrong_content_range"),
        (S3Fault::NoContentRange, "wrong_content_range"),
        (S3Fault::Cut { after: 0 }, "interrupted"),
        (S3Fault::ShortAt { offset: 100_000 }, "interrupted"),
    ];
    for (fault, code) in for_ever {
        let stand = Stand::new(500_000).await;
        stand.double.fault(When::get(LARGE), fault.clone());
        assert_eq!(stand.fails(&format!("{fault:?}")).await.code(), code, "{fault:?}");
        stand.double.heal();
        stand.succeeds(&format!("{fault:?} healed")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_changes_while_it_is_read_ends_the_fetch_and_is_never_mixed() {
    let other = Bytes::from(vec![3; 1_000_001]);
    for fault in [
        S3Fault::ReplaceAndCut { after: 10_000, with: other.clone() },
        S3Fault::ReplaceAndMix { after: 10_000, with: other.clone() },
        S3Fault::Replace { with: other.clone() },
    ] {
        let stand = Stand::new(1_000_001).await;
        stand.double.fault(When::get(LARGE).number(3), fault.clone());
        let fault_found = stand.fails(&format!("{fault:?}")).await;
        assert!(matches!(fault_found.code(), "changed_object" | "wrong_bytes"), "{fault:?}: {fault_found}");
        stand.double.heal();
        stand.double.put(&format!("models/{}", stand.model.path.object(LARGE)), stand.model.bytes(LARGE).clone());
        stand.succeeds("the right object is back").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_and_a_drip_are_named_and_what_came_is_kept() {
    let clocks = Clocks {
        gap: std::time::Duration::from_millis(50),
        rate_window: std::time::Duration::from_millis(40),
        ..Clocks::default()
    };
    let drip = S3Fault::Drip { bytes: 1, every: std::time::Duration::from_millis(2) };
    for (fault, phase) in [(S3Fault::Stall { after: 0 }, "no further byte"), (drip, "below the lowest rate")] {
        let stand = Stand::new(1_000_001).await;
        stand.double.fault(When::get(LARGE).holding(900_000), fault);
        let options = FetchOptions { clocks, ..model::options() };
        let (result, _) = fetched(&stand.cache, &stand.remote, &stand.model.path, &options).await;
        let error = result.unwrap_err();
        assert_eq!(error.code(), "stalled");
        assert!(error.to_string().contains(phase), "{error}");
        stand.double.heal();
        assert!(stand.succeeds("healed").await < stand.size());
    }
}

/// L22: a partial file never lies under its final name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l22_while_a_model_is_on_its_way_nothing_of_it_has_its_final_name() {
    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE), S3Fault::Hold { after: 70_000 });
    let layout = stand.cache.layout().clone();
    let (model, double) = (&stand.model, &stand.double);
    let look = async {
        double.wait_for(|log| log.holding >= 4).await;
        assert!(!layout.published(model.manifest.digest()).exists());
        assert!(!layout.file(sha256(model.bytes(LARGE))).exists());
        double.heal();
        double.release();
    };
    let ((result, _), ()) = tokio::join!(stand.fetch(), look);
    result.unwrap();
    stand.model.is_exact(&layout, "at the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_is_dropped_leaves_a_state_that_the_next_goes_on_from() {
    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE).holding(900_000), S3Fault::Hold { after: 0 });
    {
        let dropped = stand.fetch();
        tokio::pin!(dropped);
        let done =
            |log: &tidegate_testkit::S3Log| log.holding == 1 && log.gets_running == 1 && log.sent(LARGE) >= 600_000;
        tokio::select! {
            _ = &mut dropped => panic!("it holds"),
            _ = stand.double.wait_for(done) => {}
        }
    }
    stand.double.heal();
    stand.double.release();
    let fetched = stand.succeeds("again").await;
    assert!(fetched <= stand.size() - 600_000 + 4 * 2 * u64::from(CHUNK), "{fetched}");
}

/// L25: four workers, one fetch; a restart fetches nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l25_four_askers_are_one_fetch_and_a_restart_fetches_nothing_again() {
    let stand = Stand::new(1_000_001).await;
    let results = tokio::join!(stand.fetch(), stand.fetch(), stand.fetch(), stand.fetch());
    for (result, events) in [&results.0, &results.1, &results.2, &results.3] {
        assert!(result.is_ok());
        assert!(matches!(events.last(), Some(Event::Published { .. })), "each hears the end");
        assert!(events.iter().any(|event| matches!(event, Event::Resolved { .. })), "and where things stand");
    }
    assert_eq!(stand.double.log().sent(LARGE), stand.size(), "once");
    let Stand { _folder: folder, double, remote, cache, model } = stand;
    drop(cache);
    let cache = open_cache(&folder.path().join("cache"));
    let requests = double.log().requests.len();
    let (result, _) = fetched(&cache, &remote, &model.path, &model::options()).await;
    assert_eq!(result.unwrap().fetched_bytes, 0);
    assert_eq!(double.log().requests.len(), requests + 1, "the manifest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_content_file_that_another_manifest_lied_about_is_not_believed() {
    let stand = Stand::new(300_000).await;
    // another model says of its own bytes that they are those of the large file
    let forged = Bytes::from(vec![9; stand.model.bytes(LARGE).len()]);
    let lie = FileEntry {
        path: "weights/x".to_owned(),
        sha256: sha256(stand.model.bytes(LARGE)),
        ..model::entry("weights/x", &forged)
    };
    let liar = Manifest::new(CHUNK, vec![lie]).unwrap();
    let liar = Model { path: "bad/1".parse().unwrap(), files: vec![("weights/x".to_owned(), forged)], manifest: liar };
    liar.put(&stand.remote).await;
    fetched(&stand.cache, &stand.remote, &liar.path, &model::options()).await.0.unwrap();
    stand.succeeds("after the liar").await;
    liar.is_exact(stand.cache.layout(), "the other model keeps what its manifest says");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_two_models_have_is_fetched_once_and_lies_on_the_disk_once() {
    let stand = Stand::new(300_000).await;
    let files =
        vec![("weights/same.bin", stand.model.bytes(LARGE).clone()), ("config.json", Bytes::from_static(b"{}"))];
    let second = Model::new("glm/6", files);
    second.put(&stand.remote).await;
    stand.succeeds("first").await;
    let (result, _) = fetched(&stand.cache, &stand.remote, &second.path, &model::options()).await;
    assert_eq!(result.unwrap().fetched_bytes, 2);
    second.is_exact(stand.cache.layout(), "second");
    let inode = |model: &Model, path: &str| {
        let path = stand.cache.layout().published(model.manifest.digest()).join(flat_name(path));
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
    };
    assert_eq!(inode(&stand.model, LARGE), inode(&second, "weights/same.bin"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_as_many_streams_as_the_bound() {
    let stand = Stand::new(6_000_000).await;
    let options = FetchOptions { streams: usize::MAX, range_bytes: 0, ..model::options() };
    fetch(&stand.cache, &stand.remote, &stand.model.path, &options, &|_| ()).await.unwrap();
    assert!(stand.double.log().gets_running_max <= STREAMS_MAX);
    stand.model.is_exact(stand.cache.layout(), "many streams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_on_the_disk_costs_its_chunk_and_open_readers_keep_their_file() {
    use std::os::unix::fs::FileExt;
    use tidegate_modelcache::verify::{VerifyOptions, WrongChunk, repair, verify};

    let stand = Stand::new(1_000_001).await;
    stand.succeeds("first").await;
    let layout = stand.cache.layout();
    let path = layout.published(stand.model.manifest.digest()).join("model-1.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    set_mode(&path, 0o644);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[bytes[500_000] ^ 1], 500_000).unwrap();
    let reader = std::fs::File::open(&path).unwrap();

    let manifest = &stand.model.manifest;
    let events = parking_lot::Mutex::new(Vec::new());
    let options = VerifyOptions::default();
    let report = verify(layout, manifest, &options, &|event| events.lock().push(event)).await.unwrap();
    events.lock().retain(|event| !matches!(event, Event::Hashing { .. }));
    assert_eq!(report.wrong, [WrongChunk { file: LARGE.to_owned(), chunk: 7 }]);
    assert_eq!(report.bytes, manifest.total_bytes());
    let bad = Event::ChunkBad { file: LARGE.to_owned(), chunk: 7, place: Place::Disk };
    assert_eq!(events.into_inner(), [bad]);

    let repaired =
        repair(&stand.cache, &stand.remote, &stand.model.path, manifest, &report, &model::options(), &|_| ()).await;
    assert_eq!(repaired.unwrap(), u64::from(CHUNK), "one chunk and no more");
    stand.model.is_exact(layout, "repaired");
    is_clean(layout, "repaired");
    assert!(verify(layout, manifest, &options, &|_| ()).await.unwrap().is_right());
    let mut held = [0];
    reader.read_exact_at(&mut held, 500_000).unwrap();
    assert_eq!(held, [bytes[500_000] ^ 1], "nobody writes into a file that a reader holds");
}

fn set_mode(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_removed_or_put_into_a_published_folder_is_found_and_put_right() {
    use tidegate_modelcache::verify::{Depth, VerifyOptions, repair, verify};

    let stand = Stand::new(300_000).await;
    stand.succeeds("first").await;
    let layout = stand.cache.layout();
    let folder = layout.published(stand.model.manifest.digest());
    std::fs::remove_file(folder.join("config.json")).unwrap();
    set_mode(&folder.join("model-1.safetensors"), 0o644);
    std::fs::OpenOptions::new().write(true).open(folder.join("model-1.safetensors")).unwrap().set_len(99_999).unwrap();
    std::fs::write(folder.join("stranger.py"), b"import os").unwrap();
    let options = VerifyOptions { depth: Depth::Files, ..VerifyOptions::default() };
    let report = verify(layout, &stand.model.manifest, &options, &|_| ()).await.unwrap();
    assert_eq!(report.missing, ["config.json", LARGE]);
    assert_eq!(report.strangers, [folder.join("stranger.py")]);
    let options = model::options();
    let manifest = &stand.model.manifest;
    let bytes = repair(&stand.cache, &stand.remote, &stand.model.path, manifest, &report, &options, &|_| ()).await;
    assert_eq!(
        bytes.unwrap(),
        300_000 - u64::from(CHUNK),
        "config.json is still in the cache, and one chunk of the other"
    );
    stand.model.is_exact(layout, "repaired");
    // the same by a plain fetch
    std::fs::remove_file(folder.join("config.json")).unwrap();
    assert_eq!(stand.succeeds("fetched").await, 0);
}

#[tokio::test]
async fn a_manifest_that_contradicts_itself_is_found_by_hashing_whole_files() {
    use tidegate_modelcache::verify::{Depth, VerifyOptions, verify};

    let stand = Stand::new(1000).await;
    let bytes = Bytes::from(vec![5; 100_000]);
    let entry = FileEntry { sha256: sha256(b"something else"), ..model::entry("weights/x", &bytes) };
    let manifest = Manifest::new(CHUNK, vec![entry]).unwrap();
    let odd = Model { path: "odd/1".parse().unwrap(), files: vec![("weights/x".to_owned(), bytes)], manifest };
    odd.put(&stand.remote).await;
    fetched(&stand.cache, &stand.remote, &odd.path, &model::options()).await.0.unwrap();
    let verified = |depth| {
        let options = VerifyOptions { depth, ..VerifyOptions::default() };
        let (layout, manifest) = (stand.cache.layout().clone(), odd.manifest.clone());
        async move { verify(&layout, &manifest, &options, &|_| ()).await.unwrap() }
    };
    assert!(verified(Depth::Chunks).await.is_right());
    assert_eq!(verified(Depth::Files).await.contradicted, ["weights/x"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scrub_reads_each_model_in_its_turn_and_puts_right_what_rotted() {
    use tidegate_modelcache::verify::scrub::{ScrubOptions, Scrubbed, scrub_next};

    let stand = Stand::new(300_000).await;
    let options = ScrubOptions { fetch: model::options(), ..ScrubOptions::default() };
    let next = || scrub_next(&stand.cache, Some(&stand.remote), &options, &|_| ());
    assert_eq!(next().await.unwrap(), None, "nothing is here");
    stand.succeeds("first").await;
    let digest = stand.model.manifest.digest();
    let path = stand.cache.layout().published(digest).join("model-1.safetensors");
    set_mode(&path, 0o644);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let (scrubbed, ended) = next().await.unwrap().unwrap();
    assert_eq!(scrubbed, digest);
    let Scrubbed::Repaired { report, fetched_bytes } = ended else { panic!("{ended:?}") };
    assert_eq!((report.wrong.len(), fetched_bytes), (1, u64::from(CHUNK)));
    assert_eq!(stand.cache.counters().checksum_failures_disk.get(), 1, "counted once");
    stand.model.is_exact(stand.cache.layout(), "scrubbed");
    assert_eq!(next().await.unwrap(), None, "its turn is over");
    std::fs::write(stand.cache.layout().scrubs(), b"damaged").unwrap();
    let (_, ended) = next().await.unwrap().unwrap();
    assert_eq!(ended, Scrubbed::Right { bytes: stand.model.manifest.total_bytes() });
}
