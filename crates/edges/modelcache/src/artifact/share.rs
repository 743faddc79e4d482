//! Compile caches in the store, so that one node compiles for all.
//!
//! ```text
//! <prefix>/_artifacts/<key>/<sha256 of the pack>    first, its name is its content
//!                           record.json             last, one of any number of writers wins
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use tidegate_core::Sha256Digest;

use super::{ArtifactKey, Place, RECORD_BYTES_MAX, Record, STORE_FOLDER, blocking, pack};
use crate::cache::{Cache, small};
use crate::evict::Room;
use crate::fault::CacheFault;
use crate::fetch::backoff::{Backoff, Tries, given_up};
use crate::fetch::random;
use crate::manifest::{finished, sha256};
use crate::remote::{Put, Remote, Upload};
use crate::room::Disk;

/// Bytes of one request.
const PART_BYTES: u64 = 16 << 20;

fn object(digest: Sha256Digest, name: &str) -> String {
    format!("{STORE_FOLDER}/{digest}/{name}")
}

/// Tries a request until it goes well, or is given up.
async fn tried<T, F: Future<Output = Result<T, CacheFault>>>(
    cache: &Cache,
    mut ask: impl FnMut() -> F,
) -> Result<T, CacheFault> {
    let mut tries = Tries::new(Backoff::default());
    loop {
        let fault = match ask().await {
            Ok(done) => return Ok(done),
            Err(fault) => fault,
        };
        let Some(after) = tries.after(&fault, random()) else { return Err(given_up(fault, tries.failed())) };
        cache.counters().retries.one();
        tokio::time::sleep(after).await;
    }
}

/// Brings the compile cache of `key` to the disk; whether the store has it.
pub(super) async fn pull(cache: &Arc<Cache>, remote: &Remote, key: &ArtifactKey) -> Result<bool, CacheFault> {
    let digest = key.digest()?;
    let name = object(digest, "record.json");
    let bytes = match tried(cache, || remote.get_small(&name, RECORD_BYTES_MAX)).await {
        Ok((bytes, _)) => bytes,
        Err(CacheFault::VanishedObject { .. }) => return Ok(false),
        Err(fault) => return Err(fault),
    };
    let record = Record::parse(&bytes, key).map_err(|reason| CacheFault::BadAnswer { object: name, reason })?;
    let disk = Disk::of(cache.layout().root())?;
    let need = disk.room_of([record.pack_bytes]).plus(Room { bytes: 0, inodes: 2 });
    let grant = blocking(cache, move |cache| cache.make_room(need)).await?;
    let aside = small::tmp_name(cache.layout(), "artifact");
    fs::create_dir(&aside).map_err(|error| CacheFault::disk("make", &aside, &error))?;
    let guard = Aside(aside.clone());
    download(cache, remote, digest, &record, &aside.join("pack")).await?;
    let place = Place::of(cache.layout(), key)?;
    blocking(cache, move |_| pack::publish(&record, &aside, &place)).await?;
    drop((guard, grant));
    Ok(true)
}

/// Removes what was made ready when it is not wanted any more, also when its future was dropped.
struct Aside(std::path::PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

async fn download(
    cache: &Cache,
    remote: &Remote,
    digest: Sha256Digest,
    record: &Record,
    path: &Path,
) -> Result<(), CacheFault> {
    let named = |error: io::Error| CacheFault::disk("write", path, &error);
    let name = object(digest, &record.pack_sha256.to_string());
    let mut file = File::create_new(path).map_err(named)?;
    let mut context = Context::new(&SHA256);
    let mut start = 0;
    while start < record.pack_bytes {
        let range = start..record.pack_bytes.min(start + PART_BYTES);
        let part = tried(cache, || part(remote, &name, range.clone(), record.pack_bytes)).await?;
        cache.counters().fetch_bytes.add(part.len() as u64);
        context.update(&part);
        file.write_all(&part).map_err(named)?;
        start = range.end;
    }
    if finished(context.finish()) != record.pack_sha256 {
        cache.counters().checksum_failures_store.one();
        return Err(CacheFault::WrongBytes { file: name, chunk: 0 });
    }
    tokio::task::spawn_blocking(move || file.sync_all()).await.unwrap_or(Ok(())).map_err(named)
}

async fn part(remote: &Remote, name: &str, range: std::ops::Range<u64>, size: u64) -> Result<Vec<u8>, CacheFault> {
    let mut all = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
    let mut body = remote.get_range(name, range, size, None).await?;
    while let Some(bytes) = body.next().await {
        all.extend_from_slice(&bytes?);
    }
    Ok(all)
}

/// Puts the compile cache of `key` into the store, unless it is there.
pub(super) async fn push(cache: &Arc<Cache>, remote: &Remote, key: &ArtifactKey) -> Result<(), CacheFault> {
    let digest = key.digest()?;
    let place = Place::of(cache.layout(), key)?;
    let name = object(digest, "record.json");
    match tried(cache, || remote.head(&name)).await {
        Ok(_) => return Ok(()),
        Err(CacheFault::VanishedObject { .. }) => {}
        Err(fault) => return Err(fault),
    }
    let Some(record) = place.read(key)? else { return Ok(()) };
    upload(cache, remote, &object(digest, &record.pack_sha256.to_string()), &record, &place.pack()).await?;
    let bytes = Bytes::from(record.bytes().map_err(|reason| small::damaged(&place.record(), &reason))?);
    let sum = sha256(&bytes);
    tried(cache, || remote.put_small(&name, bytes.clone(), sum, Put::IfAbsent)).await.map(drop)
}

async fn upload(cache: &Cache, remote: &Remote, name: &str, record: &Record, pack: &Path) -> Result<(), CacheFault> {
    let sum = record.pack_sha256;
    let mut file = File::open(pack).map_err(|error| CacheFault::disk("open", pack, &error))?;
    if record.pack_bytes <= PART_BYTES {
        let bytes = next_part(&mut file, record.pack_bytes, pack)?;
        return tried(cache, || remote.put_small(name, bytes.clone(), sum, Put::Replace)).await.map(drop);
    }
    let upload = tried(cache, || remote.put_multipart(name, sum)).await?;
    let sent = parts(cache, &upload, &mut file, record.pack_bytes, pack).await;
    if sent.is_err() {
        // Parts that stay take room in the store.
        drop(upload.abort().await);
    }
    sent
}

async fn parts(cache: &Cache, upload: &Upload, file: &mut File, size: u64, pack: &Path) -> Result<(), CacheFault> {
    let (mut ids, mut start) = (Vec::new(), 0);
    while start < size {
        let bytes = next_part(file, PART_BYTES.min(size - start), pack)?;
        let length = bytes.len() as u64;
        ids.push(tried(cache, || upload.put_part(ids.len(), start, bytes.clone())).await?);
        start += length;
    }
    tried(cache, || upload.complete(ids.clone())).await
}

fn next_part(file: &mut File, length: u64, pack: &Path) -> Result<Bytes, CacheFault> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact(&mut bytes).map_err(|error| CacheFault::disk("read", pack, &error))?;
    Ok(bytes.into())
}
