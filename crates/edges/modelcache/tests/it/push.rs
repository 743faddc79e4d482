//! Pushing: whole or not at all, nothing twice, on real servers and a folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_modelcache::fetch::backoff::Backoff;
use tidegate_modelcache::layout::MANIFEST;
use tidegate_modelcache::manifest::{CHUNK_BYTES_MIN, MANIFEST_BYTES_MAX, Manifest, sha256};
use tidegate_modelcache::progress::Event;
use tidegate_modelcache::push::{PART_BYTES, PushOptions, PushSink, Pushed, push};
use tidegate_modelcache::remote::{Put, Remote, RemoteOptions};
use tidegate_modelcache::source::Source;
use tidegate_modelcache::{CacheFault, ModelPath};
use tidegate_testkit::real::{RealS3, S3Options, S3Server};

use super::store::settings;

fn options() -> PushOptions {
    let backoff =
        Backoff { base: Duration::from_millis(1), max: Duration::from_millis(5), tries_max: 100, ..Backoff::default() };
    PushOptions { chunk_size: CHUNK_BYTES_MIN, streams: 4, backoff, ..PushOptions::default() }
}

/// A model with a file in parts, a small, an empty one and one with an odd name.
fn model(folder: &Path) -> u64 {
    let large: Vec<u8> = (0..PART_BYTES + 100_000).map(|n| (n * 31 % 253) as u8).collect();
    fs::write(folder.join("config.json"), "{}").unwrap();
    fs::write(folder.join("model.safetensors"), &large).unwrap();
    fs::write(folder.join("empty.txt"), "").unwrap();
    fs::write(folder.join("tokenizer.json"), vec![b'x'; 70_000]).unwrap();
    fs::write(folder.join("ü +%#.bin"), "odd").unwrap();
    large.len() as u64 + 2 + 70_000 + 3
}

async fn push_folder(remote: &Remote, folder: &Path, sink: PushSink) -> Result<Pushed, CacheFault> {
    let source = Source::open(folder).unwrap();
    push(remote, &source, &ModelPath::parse("glm/1").unwrap(), &options(), sink).await
}

fn quiet() -> PushSink {
    Arc::new(|_| {})
}

/// What is in the store is exactly the manifest, byte for byte.
async fn check_store(remote: &Remote, pushed: &Manifest) {
    let model = ModelPath::parse("glm/1").unwrap();
    let (bytes, _) = remote.get_small(&model.object(MANIFEST), MANIFEST_BYTES_MAX).await.unwrap();
    assert_eq!(&Manifest::parse(&bytes).unwrap(), pushed);
    for file in pushed.files() {
        let (bytes, _) = remote.get_small(&model.object(&file.path), 64 << 20).await.unwrap();
        assert_eq!((bytes.len() as u64, sha256(&bytes)), (file.size, file.sha256), "{}", file.path);
        let chunks: Vec<_> = bytes.chunks(CHUNK_BYTES_MIN as usize).map(sha256).collect();
        assert_eq!(chunks, file.chunks);
    }
    assert_eq!(remote.list("glm/1").await.unwrap().len(), pushed.files().len() + 1);
}

/// The whole promise, on any store.
async fn pushes_whole_and_never_twice(remote: &Remote) {
    let folder = tempfile::tempdir().unwrap();
    let bytes = model(folder.path());
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink: PushSink = Arc::new({
        let events = Arc::clone(&events);
        move |event| events.lock().push(event)
    });
    let first = push_folder(remote, folder.path(), sink).await.unwrap();
    assert_eq!((first.sent_bytes, first.was_there), (bytes, false));
    check_store(remote, &first.manifest).await;
    check_events(&events.lock(), bytes);

    let again = push_folder(remote, folder.path(), quiet()).await.unwrap();
    assert_eq!((again.sent_bytes, again.was_there), (0, true));
    assert_eq!(again.manifest, first.manifest);

    fs::write(folder.path().join("config.json"), "[]").unwrap();
    let fault = push_folder(remote, folder.path(), quiet()).await.unwrap_err();
    let expected = CacheFault::VersionExists { model: "glm/1".to_owned(), digest: first.manifest.digest() };
    assert_eq!(fault, expected);
    check_store(remote, &first.manifest).await;
}

fn check_events(events: &[Event], bytes: u64) {
    assert!(matches!(events.first(), Some(Event::Hashing { .. })), "{:?}", events.first());
    let resolved = events.iter().find_map(|event| match event {
        Event::Resolved { files, bytes, cached_bytes, .. } => Some((*files, *bytes, *cached_bytes)),
        _ => None,
    });
    assert_eq!(resolved, Some((5, bytes, 0)));
    let done = events.iter().filter(|event| matches!(event, Event::FileDone { .. })).count();
    assert_eq!(done, 5);
    let furthest = events.iter().filter_map(|event| match event {
        Event::Progress { fetched_total, .. } => Some(*fetched_total),
        _ => None,
    });
    assert_eq!(furthest.max(), Some(bytes));
    assert!(matches!(events.last(), Some(Event::Published { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_versitygw() {
    let server = RealS3::start(S3Server::Versitygw, S3Options::default()).unwrap();
    pushes_whole_and_never_twice(&Remote::open(&settings(&server)).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_seaweedfs_over_tls() {
    let server = RealS3::start(S3Server::Seaweedfs, S3Options { tls: true, ..S3Options::default() }).unwrap();
    pushes_whole_and_never_twice(&Remote::open(&settings(&server)).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    pushes_whole_and_never_twice(&folder_store(folder.path())).await;
}

fn folder_store(path: &Path) -> Remote {
    let url = format!("file://{}", path.display());
    Remote::open(&RemoteOptions { url, ..RemoteOptions::default() }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_push_goes_on_with_what_is_missing() {
    let server = RealS3::start(S3Server::Versitygw, S3Options::default()).unwrap();
    let remote = Remote::open(&settings(&server)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let bytes = model(folder.path());
    // the first push ends at its first finished file, wherever the others are
    let (ended, end) = tokio::sync::oneshot::channel();
    let ended = Mutex::new(Some(ended));
    let sink: PushSink = Arc::new(move |event| {
        if let Event::FileDone { .. } = event
            && let Some(ended) = ended.lock().take()
        {
            ended.send(()).unwrap();
        }
    });
    tokio::select! {
        pushed = push_folder(&remote, folder.path(), sink) => panic!("ended: {pushed:?}"),
        done = end => done.unwrap(),
    }
    let object = ModelPath::parse("glm/1").unwrap().object(MANIFEST);
    assert_eq!(remote.head(&object).await.unwrap_err().code(), "vanished_object", "not there before it is whole");
    let second = push_folder(&remote, folder.path(), quiet()).await.unwrap();
    assert!(second.sent_bytes < bytes, "{} of {bytes}", second.sent_bytes);
    check_store(&remote, &second.manifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_lost_or_replaced_under_a_version_are_sent_again() {
    let server = RealS3::start(S3Server::Versitygw, S3Options::default()).unwrap();
    let remote = Remote::open(&settings(&server)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let first = push_folder(&remote, folder.path(), quiet()).await.unwrap();
    let key = |name: &str| format!("teams/a b+c/glm/1/{name}");
    fs::remove_file(server.object_file(&key("config.json"))).unwrap();
    server.truncate(&key("weights/ü +%#.bin"), 1).unwrap();
    let other = bytes::Bytes::from(vec![b'y'; 70_000]);
    remote.put_small("glm/1/tokenizer/tokenizer.json", other.clone(), sha256(&other), Put::Replace).await.unwrap();
    let again = push_folder(&remote, folder.path(), quiet()).await.unwrap();
    assert_eq!((again.sent_bytes, again.was_there), (2 + 3 + 70_000, true));
    check_store(&remote, &first.manifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_pushes_of_other_content_one_wins_and_its_version_is_whole() {
    let server = RealS3::start(S3Server::Versitygw, S3Options::default()).unwrap();
    let remote = Remote::open(&settings(&server)).unwrap();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (folder, text) in folders.iter().zip(["one", "two"]) {
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        for n in 0..20 {
            fs::write(folder.path().join(format!("{n}.bin")), text.repeat(1000 + n)).unwrap();
        }
    }
    let (one, two) = tokio::join!(
        push_folder(&remote, folders[0].path(), quiet()),
        push_folder(&remote, folders[1].path(), quiet())
    );
    let (won, lost) = match (one, two) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        other => panic!("{other:?}"),
    };
    assert_eq!(lost.code(), "version_exists");
    check_store(&remote, &won.manifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_pushed_is_refused() {
    let store = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let source = Source::open(folder.path()).unwrap();
    let config = folder.path().join("config.json");
    let sink: PushSink = Arc::new(move |event| {
        if let Event::Resolved { .. } = event {
            fs::write(&config, "[]").unwrap();
        }
    });
    let model = ModelPath::parse("glm/1").unwrap();
    let fault = push(&folder_store(store.path()), &source, &model, &options(), sink).await.unwrap_err();
    assert_eq!(fault.code(), "bad_source", "{fault}");
    assert!(!store.path().join("glm/1/manifest.json").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_says_slow_down_is_asked_again() {
    let options = S3Options { limit: Some(1), ..S3Options::default() };
    let server = RealS3::start(S3Server::Versitygw, options).unwrap();
    let remote = Remote::open(&settings(&server)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    for n in 0..8 {
        fs::write(folder.path().join(format!("{n}.bin")), vec![n; 2 << 20]).unwrap();
    }
    let pushed = push_folder(&remote, folder.path(), quiet()).await.unwrap();
    let again = push_folder(&remote, folder.path(), quiet()).await.unwrap();
    assert_eq!((pushed.sent_bytes, again.sent_bytes), (8 * (2 << 20) + 2, 0));
}
