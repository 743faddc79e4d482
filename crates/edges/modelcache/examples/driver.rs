//! The library without anything around it, as a program: for benchmarks and for trying things on a real store.
//!
//! ```text
//! driver push FOLDER MODEL           driver pull MODEL CACHE      (STREAMS, default 16)
//! driver verify MODEL CACHE          driver ls|du|gc CACHE        (gc removes nothing)
//! ```
//!
//! The store is STORE_URL at STORE_ENDPOINT with the keys of the environment. What was done is printed as one line of JSON.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tidegate_modelcache::cache::{self, Cache, CacheOptions, gc};
use tidegate_modelcache::fetch::{FetchOptions, STREAMS_DEFAULT, fetch};
use tidegate_modelcache::push::{PushOptions, push};
use tidegate_modelcache::remote::{Remote, RemoteOptions};
use tidegate_modelcache::room::KeepFree;
use tidegate_modelcache::source::Source;
use tidegate_modelcache::verify::{VerifyOptions, verify};
use tidegate_modelcache::{Layout, ModelPath};

type Outcome = Result<Value, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["push", folder, model] => pushed(Path::new(folder), model).await?,
        ["pull", model, root] => pulled(model, Path::new(root)).await?,
        ["verify", model, root] => verified(model, Path::new(root)).await?,
        ["ls", root] => json!(cache::ls(&Layout::new(Path::new(root)))?),
        ["du", root] => json!(cache::du(&Layout::new(Path::new(root)), KeepFree::Bytes(0))?),
        ["gc", root] => json!(gc::dry_run(&Layout::new(Path::new(root)), KeepFree::Bytes(0), u64::MAX)?),
        _ => return Err("driver push|pull|verify|ls|du|gc …".into()),
    };
    writeln!(std::io::stdout(), "{done}")?;
    Ok(())
}

fn remote() -> Result<Remote, Box<dyn std::error::Error>> {
    let options = RemoteOptions {
        url: std::env::var("STORE_URL")?,
        endpoint: std::env::var("STORE_ENDPOINT").ok(),
        ..RemoteOptions::default()
    };
    Ok(Remote::open(&options)?)
}

async fn pushed(folder: &Path, model: &str) -> Outcome {
    let model = ModelPath::parse(model)?;
    let done = push(&remote()?, &Source::open(folder)?, &model, &PushOptions::default(), Arc::new(|_| {})).await?;
    Ok(json!({"digest": done.manifest.digest().to_string(), "sentBytes": done.sent_bytes, "wasThere": done.was_there}))
}

fn open(root: &Path) -> Result<Arc<Cache>, Box<dyn std::error::Error>> {
    Ok(Arc::new(Cache::open(root, CacheOptions { keep_free: KeepFree::Bytes(0), ..CacheOptions::default() })?))
}

async fn pulled(model: &str, root: &Path) -> Outcome {
    let streams = std::env::var("STREAMS").ok().and_then(|streams| streams.parse().ok()).unwrap_or(STREAMS_DEFAULT);
    let options = FetchOptions { streams, ..FetchOptions::default() };
    let done = fetch(&open(root)?, &remote()?, &ModelPath::parse(model)?, &options, &|_| {}).await?;
    Ok(json!({"path": done.path, "fetchedBytes": done.fetched_bytes}))
}

async fn verified(model: &str, root: &Path) -> Outcome {
    let cache = open(root)?;
    let digest = cache.reference(&ModelPath::parse(model)?)?.ok_or("not cached")?;
    let report = verify(cache.layout(), &cache.manifest(digest)?, &VerifyOptions::default(), &|_| {}).await?;
    Ok(json!({"bytes": report.bytes, "right": report.is_right()}))
}
