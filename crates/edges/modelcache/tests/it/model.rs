//! A small model, its store and its cache, for tests of the whole way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_modelcache::cache::{Cache, CacheOptions};
use tidegate_modelcache::fetch::{Backoff, FetchOptions, Published, fetch};
use tidegate_modelcache::layout::{MANIFEST, flat_name};
use tidegate_modelcache::manifest::sha256;
use tidegate_modelcache::progress::Event;
use tidegate_modelcache::remote::{Put, Remote, RemoteOptions};
use tidegate_modelcache::room::KeepFree;
use tidegate_modelcache::{CacheFault, FileEntry, Layout, Manifest, ModelPath};

pub(crate) const CHUNK: u32 = 64 << 10;

/// The running test binary, also when a build has put another in its place meanwhile.
pub(crate) const ITSELF: &str = "/proc/self/exe";

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes.into()
    }
}

/// A model as it should be.
pub(crate) struct Model {
    pub(crate) path: ModelPath,
    pub(crate) files: Vec<(String, Bytes)>,
    pub(crate) manifest: Manifest,
}

pub(crate) fn entry(path: &str, bytes: &[u8]) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        size: bytes.len() as u64,
        sha256: sha256(bytes),
        chunks: bytes.chunks(CHUNK as usize).map(sha256).collect(),
    }
}

impl Model {
    pub(crate) fn new(path: &str, files: Vec<(&str, Bytes)>) -> Self {
        let entries = files.iter().map(|(path, bytes)| entry(path, bytes)).collect();
        let manifest = Manifest::new(CHUNK, entries).unwrap();
        let files = files.into_iter().map(|(path, bytes)| (path.to_owned(), bytes)).collect();
        Self { path: ModelPath::parse(path).unwrap(), files, manifest }
    }

    /// One large file, a small one, an empty one, and one that is there twice.
    pub(crate) fn small(seed: u64, bytes: usize) -> Self {
        let mut random = Random(seed);
        let config = random.bytes(700);
        let files = vec![
            ("config.json", config.clone()),
            ("tokenizer/copy.json", config),
            ("weights/added_tokens.json", Bytes::new()),
            ("weights/model-1.safetensors", random.bytes(bytes)),
            ("weights/sub/model-2.safetensors", random.bytes(bytes / 3)),
        ];
        Self::new("glm/5.3-flash", files)
    }

    pub(crate) async fn put(&self, remote: &Remote) {
        for (path, bytes) in &self.files {
            remote.put_small(&self.path.object(path), bytes.clone(), sha256(bytes), Put::Replace).await.unwrap();
        }
        let bytes = Bytes::copy_from_slice(self.manifest.bytes());
        remote.put_small(&self.path.object(MANIFEST), bytes, self.manifest.digest(), Put::Replace).await.unwrap();
    }

    pub(crate) fn bytes(&self, path: &str) -> &Bytes {
        &self.files.iter().find(|(file, _)| file == path).unwrap().1
    }

    /// The published folder is this model to the byte, with nothing beside it.
    pub(crate) fn is_exact(&self, layout: &Layout, context: &str) {
        let folder = layout.published(self.manifest.digest());
        for (path, bytes) in &self.files {
            let found = std::fs::read(folder.join(flat_name(path)))
                .unwrap_or_else(|error| panic!("{context}: {path}: {error}"));
            assert!(found == **bytes, "{context}: {path} differs");
        }
        let strangers = tidegate_modelcache::publish::strangers(layout, &self.manifest).unwrap();
        assert!(strangers.is_empty(), "{context}: {strangers:?}");
    }

    /// The published folder is this model, or is not there.
    pub(crate) fn is_exact_or_absent(&self, layout: &Layout, context: &str) {
        if layout.published(self.manifest.digest()).exists() {
            self.is_exact(layout, context);
        }
    }
}

/// Nothing is left of the way: no partial file, nothing aside.
pub(crate) fn is_clean(layout: &Layout, context: &str) {
    for folder in [layout.partials(), layout.tmp()] {
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{context}: {left:?}");
    }
}

pub(crate) fn open_cache(root: &Path) -> Arc<Cache> {
    let options = CacheOptions { keep_free: KeepFree::Bytes(0), ..CacheOptions::default() };
    Arc::new(Cache::open(root, options).unwrap())
}

pub(crate) fn folder_store(root: &Path) -> Remote {
    let url = format!("file://{}", root.display());
    Remote::open(&RemoteOptions { url, ..RemoteOptions::default() }).unwrap()
}

/// Small ranges, and no patience that a test would have to wait for.
pub(crate) fn options() -> FetchOptions {
    let backoff = Backoff { base: Duration::from_micros(100), max: Duration::from_millis(1), ..Backoff::default() };
    FetchOptions { streams: 4, range_bytes: 2 * u64::from(CHUNK), backoff, ..FetchOptions::default() }
}

/// Fetches, and gives the events too.
pub(crate) async fn fetched(
    cache: &Arc<Cache>,
    remote: &Remote,
    model: &ModelPath,
    options: &FetchOptions,
) -> (Result<Published, CacheFault>, Vec<Event>) {
    let events = Mutex::new(Vec::new());
    let result = fetch(cache, remote, model, options, &|event| events.lock().push(event)).await;
    (result, events.into_inner())
}
