//! The scrub: every published model is read again from time to time, slowly, and put right.
//!
//! ```text
//! run ── the model whose last scrub is longest ago ── verify, paced ── wrong? ── repair from the store ── note the time
//!     └─ none is due ── wait
//! ```
//!
//! Which model is next follows from one small record and the folders that are there, so that a restart goes on where the
//! last process was. A scrub that failed counts as one: a model that cannot be read must not keep the others from theirs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use super::{Report, VerifyOptions, repair, verify};
use crate::cache::{self, Cache, shelf, small};
use crate::fault::CacheFault;
use crate::fetch::FetchOptions;
use crate::layout::{Layout, ModelPath};
use crate::manifest::Manifest;
use crate::progress::{Event, Sink};
use crate::remote::Remote;

/// How often a model is scrubbed when nothing is said.
pub const SCRUB_EVERY_DEFAULT: Duration = Duration::from_hours(7 * 24);
/// Most bytes per second of a scrub when nothing is said: a model of 400 GB takes two hours and a disk hardly notices.
pub const SCRUB_RATE_DEFAULT: u64 = 64 << 20;
/// How often it is looked whether a model is due.
pub const LOOK_EVERY: Duration = Duration::from_mins(10);

const RECORD_BYTES_MAX: u64 = 4 << 20;

/// How the scrub goes about it.
#[derive(Clone, Debug)]
pub struct ScrubOptions {
    /// How often each model is read.
    pub every: Duration,
    pub verify: VerifyOptions,
    /// For what has to be fetched again.
    pub fetch: FetchOptions,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        let verify = VerifyOptions { rate_max: Some(SCRUB_RATE_DEFAULT), readers: 1, ..VerifyOptions::default() };
        Self { every: SCRUB_EVERY_DEFAULT, verify, fetch: FetchOptions::default() }
    }
}

/// How the scrub of one model ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrubbed {
    /// Every byte is right.
    Right { bytes: u64 },
    /// Something was wrong and is right now; so many bytes were fetched for it.
    Repaired { report: Report, fetched_bytes: u64 },
    /// Something is wrong, and there is no store or no name in it to fetch it from.
    Damaged { report: Report },
    /// It was evicted while it was read.
    Gone,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    version: u32,
    /// When the last scrub of each model ended, in seconds since 1970.
    scrubbed: BTreeMap<Sha256Digest, u64>,
}

/// The model whose last scrub is longest ago, and at least `every_s`; one that never had any comes first.
#[must_use]
pub fn due(
    scrubbed: &BTreeMap<Sha256Digest, u64>,
    published: &[Sha256Digest],
    now_s: u64,
    every_s: u64,
) -> Option<Sha256Digest> {
    let last = |digest: &Sha256Digest| scrubbed.get(digest).copied();
    // a time that lies in the future is a clock that was wrong then
    let is_due = |digest: &&Sha256Digest| last(digest).is_none_or(|at| at > now_s || now_s - at >= every_s);
    published.iter().filter(is_due).min_by_key(|digest| (last(digest), **digest)).copied()
}

/// A record that cannot be read is none: everything is due.
fn scrubbed(layout: &Layout) -> Result<BTreeMap<Sha256Digest, u64>, CacheFault> {
    let bytes = match small::read(&layout.scrubs(), RECORD_BYTES_MAX) {
        Err(CacheFault::Damaged { .. }) => None,
        read => read?,
    };
    let record = bytes.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
    Ok(record.filter(|record| record.version == 1).unwrap_or_default().scrubbed)
}

fn note(cache: &Cache, digest: Sha256Digest) -> Result<(), CacheFault> {
    let layout = cache.layout();
    let published = shelf::published(layout)?;
    let mut scrubbed = scrubbed(layout)?;
    scrubbed.insert(digest, cache.now_s());
    scrubbed.retain(|digest, _| published.contains(digest));
    let path = layout.scrubs();
    let bytes = serde_json::to_vec(&Record { version: 1, scrubbed })
        .map_err(|error| small::damaged(&path, &error.to_string()))?;
    small::write(layout, &path, &bytes)
}

/// Scrubs the model that is due, if any.
///
/// # Errors
/// What the disk or the store says; the model's turn is over nevertheless.
pub async fn scrub_next(
    cache: &Arc<Cache>,
    remote: Option<&Remote>,
    options: &ScrubOptions,
    sink: Sink<'_>,
) -> Result<Option<(Sha256Digest, Scrubbed)>, CacheFault> {
    let layout = cache.layout();
    let published = shelf::published(layout)?;
    let Some(digest) = due(&scrubbed(layout)?, &published, cache.now_s(), options.every.as_secs()) else {
        return Ok(None);
    };
    let ended = scrub(cache, remote, digest, options, sink).await;
    note(cache, digest)?;
    ended.map(|ended| Some((digest, ended)))
}

async fn scrub(
    cache: &Arc<Cache>,
    remote: Option<&Remote>,
    digest: Sha256Digest,
    options: &ScrubOptions,
    sink: Sink<'_>,
) -> Result<Scrubbed, CacheFault> {
    let manifest = cache.manifest(digest)?;
    let report = match verify(cache.layout(), &manifest, &options.verify, sink).await {
        Ok(report) if report.is_right() => return Ok(Scrubbed::Right { bytes: report.bytes }),
        report if !cache.layout().published(digest).exists() => return report.map(|_| Scrubbed::Gone),
        report => report?,
    };
    tracing::warn!(%digest, wrong_chunks = report.wrong.len(), missing_files = report.missing.len(), "cached model damaged");
    let name = model_name(cache, &manifest)?;
    let (Some(remote), Some(name)) = (remote, name) else {
        cache.counters().checksum_failures_disk.add(report.wrong.len() as u64);
        return Ok(Scrubbed::Damaged { report });
    };
    let fetched_bytes = repair(cache, remote, &name, &manifest, &report, &options.fetch, sink).await?;
    tracing::info!(%digest, fetched_bytes, "cached model repaired");
    Ok(Scrubbed::Repaired { report, fetched_bytes })
}

/// A name under which the model was last seen in the store.
fn model_name(cache: &Cache, manifest: &Manifest) -> Result<Option<ModelPath>, CacheFault> {
    let digest = manifest.digest().to_string();
    let listed = cache::ls(cache.layout())?.into_iter().find(|listed| listed.digest == digest);
    Ok(listed.and_then(|listed| listed.models.iter().find_map(|name| ModelPath::parse(name).ok())))
}

/// Scrubs whatever is due, for ever. A model that cannot be scrubbed is told as a failed event, and the next one follows.
pub async fn run(cache: &Arc<Cache>, remote: Option<&Remote>, options: &ScrubOptions, sink: Sink<'_>) {
    loop {
        match scrub_next(cache, remote, options, sink).await {
            Ok(Some(_)) => {}
            Ok(None) => tokio::time::sleep(LOOK_EVERY).await,
            Err(fault) => {
                tracing::warn!(fault = %fault, code = fault.code(), "scrub failed");
                sink(Event::Failed {
                    code: fault.code().to_owned(),
                    message: fault.to_string(),
                    hint: fault.hint().to_owned(),
                });
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn model(number: u8) -> Sha256Digest {
        Sha256Digest([number; 32])
    }

    #[test]
    fn the_longest_unread_model_comes_first_and_none_before_its_time() {
        let mut scrubbed = BTreeMap::from([(model(1), 50), (model(2), 20)]);
        let published = [model(1), model(2), model(3)];
        assert_eq!(due(&scrubbed, &published, 100, 40), Some(model(3)), "never read");
        scrubbed.insert(model(3), 99);
        assert_eq!(due(&scrubbed, &published, 100, 40), Some(model(2)));
        scrubbed.insert(model(2), 100);
        assert_eq!(due(&scrubbed, &published, 100, 50), Some(model(1)), "at its very time");
        assert_eq!(due(&scrubbed, &published, 100, 51), None);
        assert_eq!(due(&scrubbed, &[], 1000, 1), None, "what is gone is not read");
        scrubbed.insert(model(1), 5000);
        assert_eq!(due(&scrubbed, &published, 100, 51), Some(model(1)), "the clock was wrong when it was noted");
    }
}
