//! Goldens 17 and 18: shifts between cached sets read nothing, and the digest decides what is here.

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::{Cache, ListedState, ls};
use tidegate_modelcache::evict::Hold;
use tidegate_modelcache::layout::MANIFEST;
use tidegate_modelcache::remote::{Remote, RemoteOptions};
use tidegate_testkit::S3Double;
use tidegate_testkit::real::BUCKET;

use crate::model::{Model, Random, fetched, open_cache, options};
use crate::store::keys;

struct Stand {
    _folder: TempDir,
    store: S3Double,
    remote: Remote,
    cache: Arc<Cache>,
}

impl Stand {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let store = S3Double::start().unwrap();
        let options = RemoteOptions {
            url: format!("s3://{BUCKET}"),
            endpoint: Some(store.url()),
            credentials: keys(),
            ..RemoteOptions::default()
        };
        let remote = Remote::open(&options).unwrap();
        let cache = open_cache(&folder.path().join("cache"));
        Self { _folder: folder, store, remote, cache }
    }

    /// Makes a set loadable and has it served; what served before is the way back.
    async fn shift(&self, set: &[&Model]) {
        let mut serving = Vec::new();
        for model in set {
            let published = fetched(&self.cache, &self.remote, &model.path, &options()).await.0.unwrap();
            assert_eq!(published.digest, model.manifest.digest());
            model.is_exact(self.cache.layout(), model.path.as_str());
            self.cache.used(published.digest).unwrap();
            serving.push((published.digest, Hold::Serving, String::new()));
        }
        self.cache.set_holds("controller", &serving).unwrap();
    }

    /// Bytes of model files that the store has sent so far; manifests do not count.
    fn sent(&self) -> u64 {
        self.store.keys().iter().filter(|key| !key.ends_with(MANIFEST)).map(|key| self.store.log().sent(key)).sum()
    }
}

fn model(name: &str, seed: u64, others: &[(&str, Bytes)]) -> Model {
    let mut files = vec![("config.json", Bytes::copy_from_slice(name.as_bytes()))];
    files.push(("weights/model-1.safetensors", Random(seed).bytes(200_000)));
    files.extend(others.iter().cloned());
    Model::new(name, files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_17_the_second_cycle_of_day_and_night_reads_no_byte_of_a_model() {
    let stand = Stand::new();
    let shared = Random(99).bytes(150_000);
    let day = [model("deepseek/v4.1-flash", 1, &[]), model("glm/5.3-flash", 2, &[])];
    let night = [model("glm/5.3", 3, &[("weights/model-2.safetensors", shared.clone())]), model("qwen/3", 4, &[])];
    for model in day.iter().chain(&night) {
        model.put(&stand.remote).await;
    }
    let (day, mut night) = (day.iter().collect::<Vec<_>>(), night.iter().collect::<Vec<_>>());
    stand.shift(&day).await;
    stand.shift(&night).await;
    let first_cycle = stand.sent();
    let all: u64 = day.iter().chain(&night).map(|model| model.manifest.total_bytes()).sum();
    assert_eq!(first_cycle, all, "each byte once");
    stand.shift(&day).await;
    stand.shift(&night).await;
    assert_eq!(stand.sent() - first_cycle, 0, "the second cycle");

    // A new version of one model: one file of it is new, the other is that of the old version.
    let newer = model("glm/5.4", 5, &[("weights/model-2.safetensors", shared)]);
    newer.put(&stand.remote).await;
    night[0] = &newer;
    stand.shift(&day).await;
    stand.shift(&night).await;
    let new_files = newer.files.iter().filter(|(path, _)| path != "weights/model-2.safetensors");
    let new_bytes: u64 = new_files.map(|(_, bytes)| bytes.len() as u64).sum();
    assert_eq!(stand.sent() - first_cycle, new_bytes, "only what is new");
    stand.shift(&day).await;
    stand.shift(&night).await;
    assert_eq!(stand.sent() - first_cycle, new_bytes, "once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_17_a_new_version_is_fetched_once_however_many_ask_at_the_same_time() {
    let stand = Stand::new();
    let model = model("glm/5.3", 1, &[]);
    model.put(&stand.remote).await;
    let options = options();
    let ask = || fetched(&stand.cache, &stand.remote, &model.path, &options);
    let asked = tokio::join!(ask(), ask(), ask(), ask());
    for (result, _) in [asked.0, asked.1, asked.2, asked.3] {
        assert_eq!(result.unwrap().digest, model.manifest.digest());
    }
    assert_eq!(stand.sent(), model.manifest.total_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn golden_18_the_digest_decides_between_hit_and_download() {
    let (aaaa, bbbb) = (model("family/2026-10-01", 1, &[]), model("family/2026-10-01", 2, &[]));
    let digest = aaaa.manifest.digest();
    // What is local, and what a pull does.
    for (local, expected) in [(Some(&aaaa), "hit"), (Some(&bbbb), "download"), (None, "download")] {
        let stand = Stand::new();
        if let Some(local) = local {
            local.put(&stand.remote).await;
            fetched(&stand.cache, &stand.remote, &local.path, &options()).await.0.unwrap();
        }
        aaaa.put(&stand.remote).await;
        let (sent, hits) = (stand.sent(), stand.cache.counters().hits.get());
        let published = fetched(&stand.cache, &stand.remote, &aaaa.path, &options()).await.0.unwrap();
        let is_hit = stand.cache.counters().hits.get() > hits;
        assert_eq!(is_hit, expected == "hit");
        assert_eq!(stand.sent() == sent, is_hit, "a hit reads no byte of a model, a download does");
        assert_eq!(published.path.file_name().unwrap().to_str().unwrap(), format!("sha256-{digest}"));
        aaaa.is_exact(stand.cache.layout(), expected);
        assert_eq!(stand.cache.reference(&aaaa.path).unwrap(), Some(digest));
        let listed = ls(stand.cache.layout()).unwrap();
        let of = |digest: Sha256Digest| listed.iter().find(|model| model.digest == digest.to_string());
        assert_eq!(of(digest).unwrap().state, ListedState::Published);
        if local.is_some_and(|local| local.manifest.digest() != digest) {
            assert_eq!(of(bbbb.manifest.digest()).unwrap().models, Vec::<String>::new(), "it has no name any more");
        }
    }
}
