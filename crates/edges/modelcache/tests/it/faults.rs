//! Stores that fail in the middle of a fetch: each failure has its name and a bound, what came is kept, and a wrong byte
//! is never published.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::cache::Cache;
use tidegate_modelcache::fetch::{Backoff, Clocks, FetchOptions, Published};
use tidegate_modelcache::layout::{MANIFEST, flat_name};
use tidegate_modelcache::progress::Event;
use tidegate_modelcache::remote::{Remote, RemoteOptions};
use tidegate_testkit::real::{ACCESS_KEY, BUCKET};
use tidegate_testkit::{S3Double, S3Fault, Verb, When};

use crate::model::{self, CHUNK, Model, Random, fetched, is_clean, open_cache};
use crate::store::keys;

const LARGE: &str = "weights/model-1.safetensors";
const PREFIX: &str = "prefix";
/// Of one request without progress, in these tests.
const TRIES: u32 = 5;

struct Stand {
    _folder: TempDir,
    double: S3Double,
    remote: Remote,
    cache: Arc<Cache>,
    model: Model,
    options: FetchOptions,
}

impl Stand {
    async fn on(double: S3Double, seed: u64, bytes: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let remote = Remote::open(&RemoteOptions {
            url: format!("s3://{BUCKET}/{PREFIX}"),
            endpoint: Some(double.url()),
            ca_bundle: double.ca_pem().map(|pem| pem.as_bytes().to_vec()),
            credentials: keys(),
            ..RemoteOptions::default()
        })
        .unwrap();
        let model = Model::small(seed, bytes);
        model.put(&remote).await;
        let cache = open_cache(&folder.path().join("cache"));
        let options = model::options();
        let backoff = Backoff { tries_max: TRIES, ..options.backoff };
        let options = FetchOptions { backoff, ..options };
        Self { _folder: folder, double, remote, cache, model, options }
    }

    async fn new(bytes: usize) -> Self {
        Self::on(S3Double::start().unwrap(), 11, bytes).await
    }

    async fn fetch(&self) -> (Result<Published, CacheFault>, Vec<Event>) {
        fetched(&self.cache, &self.remote, &self.model.path, &self.options).await
    }

    fn nothing_is_published(&self, context: &str) {
        assert!(!self.cache.layout().published(self.model.manifest.digest()).exists(), "{context}");
    }

    /// Fetches until a fault ends it.
    async fn fails(&self, context: &str) -> CacheFault {
        let (result, events) = self.fetch().await;
        let fault = result.expect_err(context);
        assert!(matches!(events.last(), Some(Event::Failed { code, .. }) if code == fault.code()), "{context}");
        self.nothing_is_published(context);
        fault
    }

    /// Fetches to the end and says how many bytes of the large file came for it.
    async fn succeeds(&self, context: &str) -> u64 {
        let before = self.double.log().sent(LARGE);
        self.fetch().await.0.expect(context);
        self.model.is_exact(self.cache.layout(), context);
        is_clean(self.cache.layout(), context);
        self.double.log().sent(LARGE) - before
    }

    fn key(&self, object: &str) -> String {
        format!("{PREFIX}/{}", self.model.path.object(object))
    }

    fn size(&self) -> u64 {
        self.model.bytes(LARGE).len() as u64
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_under_tls_are_named_and_never_published() {
    // TLS proves who sent the bytes, not that the disk behind was sound
    let stand = Stand::on(S3Double::start_tls().unwrap(), 3, 500_000).await;
    stand.double.fault(When::get(LARGE), S3Fault::WrongByte { offset: 300_000 });
    let fault = stand.fails("always wrong").await;
    assert_eq!(fault, CacheFault::WrongBytes { file: LARGE.to_owned(), chunk: 300_000 / u64::from(CHUNK) });
    stand.double.heal();
    stand.succeeds("healed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_lost_a_part_is_asked_for_a_bounded_number_of_times_and_named() {
    let stand = Stand::new(500_000).await;
    stand.double.fault(When::get(LARGE).holding(300_000), S3Fault::slow_down_read());
    let fault = stand.fails("for ever").await;
    assert_eq!(fault.code(), "store_unavailable");
    assert!(fault.to_string().contains(LARGE) && fault.to_string().contains("SlowDownRead"), "{fault}");
    let log = stand.double.log();
    let refused = log.of(Verb::Get, LARGE).filter(|get| get.status == 503).count();
    assert_eq!(refused, TRIES as usize);
    stand.double.heal();
    let again = stand.succeeds("the part is back").await;
    assert!(again < stand.size(), "{again}: what came is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_waited_for_up_to_its_cap_by_every_stream() {
    let cap = Duration::from_millis(30);
    let mut stand = Stand::new(500_000).await;
    stand.options.backoff.retry_after_max = cap;
    stand.double.fault(When::get(LARGE).first(4), S3Fault::too_many_requests(Some(60)));
    let (result, events) = stand.fetch().await;
    result.unwrap();
    let waits: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Retry { fault, after_ms, .. } if fault == "throttled" => Some(*after_ms),
            _ => None,
        })
        .collect();
    assert_eq!(waits.len(), 4);
    let most = (cap + stand.options.backoff.max).as_millis() as u64;
    assert!(waits.iter().all(|wait| (cap.as_millis() as u64..=most).contains(wait)), "{waits:?}");
    stand.model.is_exact(stand.cache.layout(), "after the wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_answer_is_waited_for_and_one_that_does_not_come_is_a_stall() {
    let mut stand = Stand::new(300_000).await;
    stand.double.fault(When::get(LARGE), S3Fault::Slow(Duration::from_millis(5)));
    stand.succeeds("slow").await;

    stand = Stand::new(300_000).await;
    stand.options.clocks = Clocks { first_byte: Duration::from_millis(30), ..Clocks::default() };
    stand.double.fault(When::get(LARGE), S3Fault::Slow(Duration::from_secs(3600)));
    let fault = stand.fails("never").await;
    assert_eq!(fault.code(), "stalled");
    assert!(fault.to_string().contains("no first byte"), "{fault}");
    stand.double.heal();
    stand.succeeds("healed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_expire_on_the_way_end_the_fetch_and_new_ones_go_on() {
    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE).after(3), S3Fault::expired_token());
    assert_eq!(stand.fails("expired on the way").await.code(), "expired_credentials");
    let asked = stand.double.log().of(Verb::Get, LARGE).filter(|get| get.status == 400).count();
    assert!(asked <= stand.options.streams, "{asked}: expired keys are not tried again");
    stand.double.heal();
    assert!(stand.succeeds("new ones").await < stand.size());
    // and none at all is a refusal before any file is asked for
    let stand = Stand::new(1000).await;
    stand.double.expire(ACCESS_KEY);
    assert_eq!(stand.fails("expired before").await.code(), "expired_credentials");
    assert_eq!(stand.double.log().of(Verb::Get, LARGE).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_vanishes_on_the_way_is_named_and_a_push_brings_it_back() {
    let stand = Stand::new(1_000_001).await;
    stand.double.fault(When::get(LARGE).number(2), S3Fault::Hold { after: 1000 });
    let remove = async {
        stand.double.wait_for(|log| log.holding == 1).await;
        stand.double.remove(&stand.key(LARGE));
        stand.double.release();
    };
    let ((result, _), ()) = tokio::join!(stand.fetch(), remove);
    let fault = result.unwrap_err();
    assert_eq!(fault.code(), "vanished_object");
    assert!(fault.to_string().contains(LARGE), "{fault}");
    stand.nothing_is_published("vanished");
    stand.model.put(&stand.remote).await;
    assert!(stand.succeeds("back").await < stand.size());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_allows_only_to_read_objects_is_enough_for_a_pull() {
    let stand = Stand::new(300_000).await;
    for verb in [Verb::List, Verb::Head, Verb::Put, Verb::Begin, Verb::Delete] {
        stand.double.deny(verb);
    }
    stand.succeeds("read only").await;
    let log = stand.double.log();
    assert!(log.requests.iter().all(|request| request.status != 403), "nothing is asked that is not needed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_cut_off_and_comes_back_costs_what_was_on_its_way() {
    let mut stand = Stand::new(1_000_001).await;
    // as patient as minutes are in production
    stand.options.backoff.tries_max = u32::MAX;
    stand.double.fault(When::get(LARGE).number(5), S3Fault::Hold { after: 1000 });
    let cut_off = async {
        stand.double.wait_for(|log| log.holding == 1).await;
        stand.double.stop_listening().unwrap();
        stand.double.disconnect().unwrap();
        while stand.cache.counters().retries.get() < 10 {
            tokio::task::yield_now().await;
        }
        stand.double.listen_again().unwrap();
    };
    let ((result, events), ()) = tokio::join!(stand.fetch(), cut_off);
    result.unwrap();
    stand.model.is_exact(stand.cache.layout(), "back");
    assert!(events.iter().any(|event| matches!(event, Event::Retry { fault, .. } if fault == "connect")));
    let on_the_way = stand.options.streams as u64 * stand.options.range_bytes;
    assert!(stand.double.log().sent(LARGE) <= stand.size() + on_the_way);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_not_there_is_named() {
    let stand = Stand::new(1000).await;
    stand.double.stop_listening().unwrap();
    stand.double.disconnect().unwrap();
    assert_eq!(stand.fails("nobody listens").await.code(), "connect");
    stand.double.listen_again().unwrap();
    stand.succeeds("back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_store_is_named_at_the_manifest_and_costs_nothing() {
    let cases = [
        (S3Fault::Page, &["manifest_invalid", "bad_answer"][..]),
        (S3Fault::Garbage, &["bad_answer", "interrupted"]),
        (S3Fault::Endless, &["bad_answer"]),
        (S3Fault::Refuse { status: 404, code: "NoSuchBucket", retry_after_s: None }, &["no_such_bucket"]),
        (S3Fault::Refuse { status: 301, code: "PermanentRedirect", retry_after_s: None }, &["bad_settings"]),
        (S3Fault::access_denied(), &["refused"]),
    ];
    for (fault, codes) in cases {
        let stand = Stand::new(1000).await;
        stand.double.fault(When::get(MANIFEST), fault.clone());
        let found = stand.fails(&format!("{fault:?}")).await;
        assert!(codes.contains(&found.code()), "{fault:?}: {found}");
        let log = stand.double.log();
        assert_eq!(log.of(Verb::Get, LARGE).count(), 0, "{fault:?}: no file is asked for");
        assert!(log.of(Verb::Get, MANIFEST).count() <= TRIES as usize, "{fault:?}");
        stand.double.heal();
        stand.succeeds(&format!("{fault:?} healed")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_of_the_manifest_gets_past_a_pin_or_changes_a_byte_of_a_file() {
    let length = Stand::new(100_000).await.model.manifest.bytes().len() as u64;
    // a prime step: every kind of place in the manifest is hit
    for offset in (0..length).step_by(61) {
        let mut stand = Stand::new(100_000).await;
        stand.double.fault(When::get(MANIFEST), S3Fault::WrongByte { offset });
        let published = stand.fetch().await.0;
        if let Ok(published) = published {
            assert_ne!(published.digest, stand.model.manifest.digest());
            for (path, bytes) in &stand.model.files {
                let found = std::fs::read(published.path.join(flat_name(path)));
                // a name may be the one that was flipped; then its object was not there to be fetched
                assert!(found.unwrap() == **bytes, "offset {offset}: {path}");
            }
        }
        stand.nothing_is_published("not under this digest");
        stand.options.pin = Some(stand.model.manifest.digest());
        let fault = stand.fails(&format!("offset {offset}, pinned")).await;
        assert!(matches!(fault.code(), "manifest_invalid" | "wrong_digest"), "offset {offset}: {fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_pauses_is_cut_by_the_store_and_told_so() {
    let stand = Stand::new(1000).await;
    // more than the kernel keeps for a reader that does not read
    let size = 32 << 20;
    stand.double.put(&format!("{PREFIX}/big"), vec![5; size]);
    stand.double.fault(When::get("big"), S3Fault::CutWhenPaused { after: Duration::from_millis(20) });
    let mut body = stand.remote.get_range("big", 0..size as u64, size as u64, None).await.unwrap();
    stand.double.wait_for(|log| log.of(Verb::Get, "big").count() == 1 && log.gets_running == 0).await;
    let mut came = 0;
    let fault = loop {
        match body.next().await.expect("a short body does not end well") {
            Ok(bytes) => came += bytes.len(),
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault.code(), "interrupted", "{fault}");
    assert!(came < size);
}

/// One thing that passes when it is asked again.
fn passing(random: &mut Random, size: u64) -> S3Fault {
    let after = random.below(2 * u64::from(CHUNK));
    match random.below(9) {
        0 => S3Fault::Cut { after },
        1 => S3Fault::Reset { after },
        2 => S3Fault::WrongByte { offset: random.below(size) },
        3 => S3Fault::slow_down(),
        4 => S3Fault::internal_error(),
        5 => S3Fault::too_many_requests(Some(0)),
        6 => S3Fault::Shorter { by: 1 + random.below(1000) },
        7 => S3Fault::Drip { bytes: 10_000, every: Duration::from_micros(100) },
        _ => S3Fault::Slow(Duration::from_millis(1)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_passes_in_whatever_order_the_published_folder_is_exact_or_absent() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let stand = Stand::on(S3Double::start().unwrap(), seed, 600_000).await;
        for _ in 0..2 + random.below(20) {
            let number = random.below(24);
            let fault = passing(&mut random, stand.size());
            stand.double.fault(When::get(".safetensors").number(number), fault);
        }
        let (result, _) = stand.fetch().await;
        let context = format!("seed {seed}: {result:?}");
        stand.model.is_exact_or_absent(stand.cache.layout(), &context);
        if let Err(fault) = result {
            assert!(fault.retryable(), "{context}: only what lasts too long ends it");
        }
        stand.double.heal();
        stand.succeeds(&context).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_replaced_by_one_of_another_length_is_named() {
    for with in [vec![1; 10], vec![1; 3_000_000]] {
        let stand = Stand::new(1_000_001).await;
        let length = with.len();
        stand.double.fault(When::get(LARGE).number(0), S3Fault::Replace { with: Bytes::from(with) });
        let fault = stand.fails(&format!("{length} bytes")).await;
        assert!(matches!(fault.code(), "wrong_length" | "changed_object"), "{length}: {fault}");
        stand.model.put(&stand.remote).await;
        stand.double.heal();
        stand.succeeds("the right one is back").await;
    }
}
