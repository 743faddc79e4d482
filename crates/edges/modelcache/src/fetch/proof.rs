//! The promise as a property: whatever lies in the cache, whenever a fetch is dropped, in whatever order chunks complete,
//! the published folder is exact or absent, and nothing that is proven to be there is fetched.

use std::fs;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::cache::CacheOptions;
use crate::journal::{Journal, Subject};
use crate::layout::Layout;
use crate::manifest::sha256;
use crate::remote::{Put, RemoteOptions};
use crate::room::KeepFree;

const CHUNK: usize = 64 << 10;

/// What lies under a file's content name.
#[derive(Clone, Debug)]
enum Content {
    Nothing,
    Right,
    Flipped(usize),
    /// Shorter or longer than it must be.
    Length(usize),
}

/// What lies under a file's partial name.
#[derive(Clone, Debug)]
struct Left {
    /// For each chunk: right, or something else.
    right: Vec<bool>,
    /// Chunks that the journal claims, in this order, rightly or not.
    claimed: Vec<u32>,
    /// What happened to the journal's bytes.
    damage: Vec<(usize, u8)>,
    /// Length to which data was cut.
    cut: Option<usize>,
}

#[derive(Clone, Debug)]
struct Case {
    len: usize,
    content: Content,
    left: Option<Left>,
}

fn left(chunks: usize) -> impl Strategy<Value = Left> {
    let claims = prop::sample::subsequence((0..chunks as u32).collect::<Vec<_>>(), 0..=chunks).prop_shuffle();
    let damage = prop::collection::vec((any::<usize>(), any::<u8>()), 0..3);
    (prop::collection::vec(any::<bool>(), chunks), claims, damage, prop::option::of(0..chunks * CHUNK + 1))
        .prop_map(|(right, claimed, damage, cut)| Left { right, claimed, damage, cut })
}

fn case() -> impl Strategy<Value = Case> {
    (0..6 * CHUNK).prop_flat_map(|len| {
        let content = prop_oneof![
            3 => Just(Content::Nothing),
            1 => Just(Content::Right),
            1 => (0..len.max(1)).prop_map(Content::Flipped),
            1 => (0..2 * len + 1).prop_map(Content::Length),
        ];
        (Just(len), content, prop::option::of(left(len.div_ceil(CHUNK)))).prop_map(|(len, content, left)| Case {
            len,
            content,
            left,
        })
    })
}

fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at.wrapping_mul(2_654_435_761) >> 7) ^ (at >> 3) ^ (number * 97)) as u8).collect()
}

struct World {
    _folder: TempDir,
    remote: Remote,
    cache: Arc<Cache>,
    model: ModelPath,
    manifest: Manifest,
    files: Vec<Vec<u8>>,
}

impl World {
    async fn new(cases: &[Case]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", folder.path().join("store").display());
        fs::create_dir(folder.path().join("store")).unwrap();
        let remote = Remote::open(&RemoteOptions { url, ..RemoteOptions::default() }).unwrap();
        let model = ModelPath::parse("proof/1").unwrap();
        let files: Vec<_> = cases.iter().enumerate().map(|(number, case)| bytes(number, case.len)).collect();
        let entries = files.iter().enumerate().map(|(number, bytes)| FileEntry {
            path: format!("weights/{number}"),
            size: bytes.len() as u64,
            sha256: sha256(bytes),
            chunks: bytes.chunks(CHUNK).map(sha256).collect(),
        });
        let manifest = Manifest::new(CHUNK as u32, entries.collect()).unwrap();
        for (entry, bytes) in manifest.files().iter().zip(&files) {
            put(&remote, &model.object(&entry.path), bytes).await;
        }
        put(&remote, &model.object(MANIFEST), manifest.bytes()).await;
        let options = CacheOptions { keep_free: KeepFree::Bytes(0), ..CacheOptions::default() };
        let cache = Arc::new(Cache::open(&folder.path().join("cache"), options).unwrap());
        Self { _folder: folder, remote, cache, model, manifest, files }
    }

    fn layout(&self) -> &Layout {
        self.cache.layout()
    }

    /// Puts what a case says into the cache.
    fn lay(&self, number: usize, case: &Case) {
        let (entry, bytes) = (&self.manifest.files()[number], &self.files[number]);
        let mut content = bytes.clone();
        match case.content {
            Content::Nothing => content.clear(),
            Content::Right => {}
            Content::Flipped(at) => content.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1),
            Content::Length(len) => content.resize(len, 7),
        }
        if !matches!(case.content, Content::Nothing) {
            let path = self.layout().file(entry.sha256);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        if let Some(left) = &case.left {
            self.leave(entry, bytes, left);
        }
    }

    fn leave(&self, entry: &FileEntry, bytes: &[u8], left: &Left) {
        fs::create_dir_all(self.layout().partial(entry.sha256)).unwrap();
        let mut data = bytes.to_vec();
        for (chunk, is_right) in data.chunks_mut(CHUNK).zip(&left.right) {
            if !is_right {
                chunk[0] ^= 1;
            }
        }
        data.truncate(left.cut.unwrap_or(usize::MAX));
        fs::write(self.layout().partial_data(entry.sha256), data).unwrap();
        let path = self.layout().partial_journal(entry.sha256);
        let subject = Subject { sha256: entry.sha256, chunk_size: CHUNK as u32, chunks: entry.chunks.len() as u32 };
        let (journal, _) = Journal::open(&path, subject).unwrap();
        left.claimed.iter().for_each(|chunk| journal.append(*chunk).unwrap());
        let mut journal = fs::read(&path).unwrap();
        for (at, what) in left.damage.iter().filter(|_| !left.claimed.is_empty()) {
            let at = at % journal.len().max(1);
            match what % 3 {
                0 => journal.truncate(at),
                1 => journal.insert(at, *what),
                _ => journal.iter_mut().skip(at).take(1).for_each(|byte| *byte = byte.wrapping_add(*what | 1)),
            }
        }
        fs::write(path, journal).unwrap();
    }

    /// Fetches, and gives it up after so many polls.
    async fn fetch(&self, polls: Option<u32>) -> Option<Result<Published, CacheFault>> {
        let options = FetchOptions { streams: 3, range_bytes: 2 * CHUNK as u64, ..FetchOptions::default() };
        let mut fetching = pin!(fetch(&self.cache, &self.remote, &self.model, &options, &|_| ()));
        let mut left = polls;
        std::future::poll_fn(|context| {
            if left == Some(0) {
                return Poll::Ready(None);
            }
            left = left.map(|left| left - 1);
            fetching.as_mut().poll(context).map(Some)
        })
        .await
    }

    fn exact_or_absent(&self) -> Result<bool, TestCaseError> {
        let folder = self.layout().published(self.manifest.digest());
        if !folder.exists() {
            return Ok(false);
        }
        for (entry, bytes) in self.manifest.files().iter().zip(&self.files) {
            let path = publish::published_file(self.layout(), self.manifest.digest(), entry);
            let found = fs::read(&path).map_err(|error| TestCaseError::fail(format!("{}: {error}", path.display())))?;
            prop_assert!(found == *bytes, "{} differs", path.display());
        }
        prop_assert!(publish::strangers(self.layout(), &self.manifest).unwrap().is_empty());
        Ok(true)
    }
}

async fn put(remote: &Remote, object: &str, bytes: &[u8]) {
    remote.put_small(object, Bytes::copy_from_slice(bytes), sha256(bytes), Put::Replace).await.unwrap();
}

/// Bytes that must come at most: all that is not there in a form that can be found.
fn most(case: &Case) -> usize {
    let chunk_len = |chunk: usize| CHUNK.min(case.len - chunk * CHUNK);
    let lacking = |has: &dyn Fn(usize) -> bool| -> usize {
        (0..case.len.div_ceil(CHUNK)).filter(|chunk| !has(*chunk)).map(chunk_len).sum()
    };
    match (&case.content, &case.left) {
        (Content::Right, _) => 0,
        // what of an earlier life counts is that which it had fetched or copied; it stands in the journal's way
        (Content::Flipped(at), None) => lacking(&|chunk| chunk != at / CHUNK),
        (Content::Length(len), None) => lacking(&|chunk| chunk * CHUNK + chunk_len(chunk) <= *len),
        (Content::Nothing, Some(left)) if left.damage.is_empty() && case.len > CHUNK => lacking(&|chunk| {
            let is_cut = left.cut.is_some_and(|cut| cut < chunk * CHUNK + chunk_len(chunk));
            left.claimed.contains(&(chunk as u32)) && left.right[chunk] && !is_cut
        }),
        _ => case.len,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn after_any_damage_and_any_kill_point_the_published_folder_is_exact_or_absent(
        cases in prop::collection::vec(case(), 1..4),
        drops in prop::collection::vec(0..60_u32, 0..3),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new(&cases).await;
            cases.iter().enumerate().for_each(|(number, case)| world.lay(number, case));
            let is_undisturbed = drops.is_empty();
            for polls in drops {
                let ended = world.fetch(Some(polls)).await;
                let is_there = world.exact_or_absent()?;
                prop_assert!(ended.is_none() || is_there);
            }
            let published = world.fetch(None).await.unwrap().unwrap();
            prop_assert!(world.exact_or_absent()?);
            if is_undisturbed {
                let most: usize = cases.iter().map(most).sum();
                prop_assert!(published.fetched_bytes <= most as u64, "{} bytes came, at most {most}", published.fetched_bytes);
            }
            let left: Vec<_> = fs::read_dir(world.layout().partials()).unwrap().flatten().collect();
            prop_assert!(left.is_empty(), "{left:?}");
            Ok(())
        })?;
    }
}
