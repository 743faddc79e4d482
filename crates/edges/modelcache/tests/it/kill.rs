//! `kill -9` at any moment of a fetch from a real server: what is published is exact, or it is not there.
//!
//! The child is this test binary again: it opens the cache and fetches. The parent kills it at a random moment, or arms
//! one failpoint to abort it, some lives long; between lives it may damage what lies in the cache. Then a last life runs to
//! its end and the folder is compared byte for byte. Between client and server a relay counts what is sent.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_modelcache::fetch::{FetchOptions, fetch};
use tidegate_modelcache::remote::{Remote, RemoteOptions};
use tidegate_modelcache::{Layout, failpoint};
use tidegate_testkit::real::{BUCKET, RealS3, S3Options, S3Server};

use crate::model::{CHUNK, ITSELF, Model, Random, is_clean, open_cache, options};
use crate::store::keys;

const ROOT: &str = "TIDEGATE_KILL_CACHE";
const ENDPOINT: &str = "TIDEGATE_KILL_ENDPOINT";
const NAME: &str = "TIDEGATE_KILL_MODEL";
/// How many seeds: 500 unless the environment says otherwise.
const SEEDS: &str = "TIDEGATE_KILL_SEEDS";
const LIVES: u64 = 3;
const STREAMS: usize = 4;
/// Longest random time to a kill, in microseconds: about what a life takes.
const KILL_AFTER_MAX_US: u64 = 60_000;
/// What an answer's head and the end of a connection may add to the bytes of a range.
const HEAD_BYTES_MAX: u64 = 2 << 10;

fn remote(endpoint: &str) -> Remote {
    let options = RemoteOptions {
        url: format!("s3://{BUCKET}/kill"),
        endpoint: Some(endpoint.to_owned()),
        credentials: keys(),
        ..RemoteOptions::default()
    };
    Remote::open(&options).unwrap()
}

/// One life; nothing when this is not the child.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let remote = remote(&std::env::var(ENDPOINT).unwrap());
    let model = std::env::var(NAME).unwrap().parse().unwrap();
    let cache = open_cache(Path::new(&root));
    let options = FetchOptions { streams: STREAMS, ..options() };
    fetch(&cache, &remote, &model, &options, &|_| ()).await.unwrap();
}

/// Passes bytes between a client and the server, and counts those of the server.
struct Relay {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

impl Relay {
    fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        // it ends with the process of the test
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(upstream)) = (client, TcpStream::connect(server)) else { continue };
                let (client_again, upstream_again) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || pass(client_again, upstream_again, None));
                std::thread::spawn(move || pass(upstream, client, Some(&counted)));
            }
        });
        Self { address, sent }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Until one of the two ends.
fn pass(mut from: TcpStream, mut to: TcpStream, counted: Option<&AtomicU64>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
        if let Some(counted) = counted {
            counted.fetch_add(read as u64, Ordering::Relaxed);
        }
    }
    drop(from.shutdown(std::net::Shutdown::Both));
    drop(to.shutdown(std::net::Shutdown::Both));
}

/// How a life ends.
#[derive(Clone, Debug)]
enum End {
    ByItself,
    /// From outside, after so long.
    Killed(Duration),
    /// By the failpoint that is armed.
    Aborted(String),
}

fn life(root: &Path, relay: &Relay, model: &Model, end: &End) -> ExitStatus {
    let armed = if let End::Aborted(armed) = end { armed.as_str() } else { "" };
    let mut child = Command::new(ITSELF)
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .env(ENDPOINT, format!("http://{}", relay.address))
        .env(NAME, model.path.as_str())
        .env("TIDEGATE_CACHE_FAILPOINTS", armed)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    if let End::Killed(after) = end {
        let until = Instant::now() + *after;
        while Instant::now() < until && is_running(&mut child) {
            std::thread::park_timeout(Duration::from_micros(500));
        }
        child.kill().unwrap();
    }
    child.wait().unwrap()
}

fn is_running(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_none()
}

/// Files under a folder that a life has left.
fn files_under(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// Damages one file of what is not published yet. A content file that a published folder has is the scrub's business.
fn damage(layout: &Layout, model: &Model, random: &mut Random) -> Option<String> {
    let mut files = [files_under(&layout.partials()), files_under(&layout.manifests())].concat();
    if !layout.published(model.manifest.digest()).exists() {
        files.extend(files_under(&layout.files()));
    }
    let path = files.get(random.below(files.len().max(1) as u64) as usize)?;
    let mut bytes = std::fs::read(path).unwrap();
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let what = random.below(4);
    match what {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 => drop(bytes.splice(at..at, random.bytes(1 + at % 50))),
        _ => {
            std::fs::remove_file(path).unwrap();
            return Some(format!("removed {}", path.display()));
        }
    }
    // another file in its place, as a file system that was repaired would leave it
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
    Some(format!("damage {what} at {at} of {}", path.display()))
}

fn end(seed: u64, turn: u64, random: &mut Random) -> End {
    if (seed + turn).is_multiple_of(2) {
        return End::Killed(Duration::from_micros(random.below(KILL_AFTER_MAX_US)));
    }
    let point = failpoint::POINTS[((seed * LIVES + turn) / 2 % failpoint::POINTS.len() as u64) as usize];
    let passings = match point {
        "write.before" | "write.after" | "journal.before_append" | "journal.torn" | "journal.after_append" => 12,
        _ if point.starts_with("manifest.") || point.starts_with("reference.") => 1,
        "publish.before_link" => 4,
        _ if point.starts_with("publish.") => 1,
        _ => 3,
    };
    End::Aborted(format!("{point}=abort@{}", 1 + random.below(passings)))
}

/// All lives of one seed; the failpoints at which it died.
fn seed(seed: u64, folder: &Path, relay: &Relay, models: &[Model]) -> BTreeSet<String> {
    let mut random = Random(seed);
    let model = &models[random.below(models.len() as u64) as usize];
    let root = tempfile::tempdir_in(folder).unwrap();
    let layout = Layout::new(root.path());
    let (mut context, mut died) = (format!("seed {seed}"), BTreeSet::new());
    let (mut deaths, mut is_damaged) = (0, false);
    let before = relay.sent();
    for turn in 0..LIVES {
        let end = end(seed, turn, &mut random);
        context = format!("{context}; {end:?}");
        let status = life(root.path(), relay, model, &end);
        if let (End::Aborted(armed), Some(_)) = (&end, status.signal()) {
            died.extend(armed.split_once('=').map(|(point, _)| point.to_owned()));
        }
        deaths += u64::from(!status.success());
        model.is_exact_or_absent(&layout, &context);
        if seed % 4 == 3 {
            let damaged = damage(&layout, model, &mut random);
            is_damaged |= damaged.is_some();
            context = format!("{context}; {damaged:?}");
        }
    }
    let last = life(root.path(), relay, model, &End::ByItself);
    assert!(last.success(), "{context}: {last:?}");
    model.is_exact(&layout, &context);
    is_clean(&layout, &context);
    if !is_damaged {
        let requests = model.manifest.total_bytes() / u64::from(CHUNK) + (LIVES + 1) * 16;
        let twice = deaths * STREAMS as u64 * 2 * u64::from(CHUNK);
        let manifests = (LIVES + 1) * model.manifest.bytes().len() as u64;
        let most = model.manifest.total_bytes() + twice + manifests + requests * HEAD_BYTES_MAX;
        let sent = relay.sent() - before;
        assert!(sent <= most, "{context}: {sent} bytes came, at most {most}: one range per connection and death twice");
    }
    died
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_after_kill_9_at_any_moment_is_exact_and_no_more_than_a_range_per_connection_comes_twice() {
    let server =
        RealS3::start(S3Server::Versitygw, S3Options::default()).expect("versitygw is needed: cargo xtask real s3");
    let sizes = [70_000, 300_000, 1_000_001, 5_900_000];
    let models: Vec<_> = (0..).zip(sizes).map(|(seed, bytes)| Model::small(seed, bytes)).collect();
    let models: Vec<_> = models
        .into_iter()
        .zip(1..)
        .map(|(model, number)| Model { path: format!("kill/{number}").parse().unwrap(), ..model })
        .collect();
    for model in &models {
        assert!(model.manifest.total_bytes() <= 8 << 20);
        model.put(&remote(server.url())).await;
    }
    let address: SocketAddr = server.url().strip_prefix("http://").unwrap().parse().unwrap();
    let seeds = std::env::var(SEEDS).ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let folder = tempfile::tempdir().unwrap();
    let next = AtomicU64::new(0);
    let worker = || {
        let relay = Relay::start(address);
        let mut died = BTreeSet::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                return died;
            }
            died.extend(seed(number, folder.path(), &relay, &models));
        }
    };
    let died: BTreeSet<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let spared: Vec<_> = failpoint::POINTS.iter().filter(|point| !died.contains(**point)).collect();
    assert!(seeds < 500 || spared.is_empty(), "nobody died at {spared:?}");
}

/// L24: a stale lock must not mean "downloading" for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l24_a_process_that_was_killed_in_mid_download_leaves_no_lock_and_the_next_start_goes_on() {
    let server =
        RealS3::start(S3Server::Versitygw, S3Options::default()).expect("versitygw is needed: cargo xtask real s3");
    let model = Model::small(3, 1_000_001);
    model.put(&remote(server.url())).await;
    let relay = Relay::start(server.url().strip_prefix("http://").unwrap().parse().unwrap());
    let root = tempfile::tempdir().unwrap();
    let status = life(root.path(), &relay, &model, &End::Aborted("journal.after_append=abort@8".to_owned()));
    assert!(status.signal().is_some(), "it died in the middle");
    let layout = Layout::new(root.path());
    assert!(!layout.published(model.manifest.digest()).exists());
    let before = relay.sent();
    assert!(life(root.path(), &relay, &model, &End::ByItself).success());
    model.is_exact(&layout, "the next start");
    let sent = relay.sent() - before;
    assert!(sent < model.manifest.total_bytes(), "{sent}: eight chunks were there");
}
