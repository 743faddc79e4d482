//! One request's worth of chunks: from the store through a buffer to the disk, hashed on the way.
//!
//! ```text
//! body ── piece ── hash while it is in cache, copy ──> buffer ── full ──> written by a blocking thread
//!                                                      next buffer fills meanwhile
//! chunk complete: right ── its last buffer is written, then it is journalled
//!                 wrong ── named, fetched again by the plan
//! ```
//!
//! When a connection breaks, the next request asks for what is missing and goes on in the middle of the chunk; only a
//! wrong chunk begins anew.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Shared;
use super::backoff::{Tries, given_up};
use super::clock::RateWatch;
use super::partial::Partial;
use super::plan::Span;
use crate::buffer::Lease;
use crate::fault::{CacheFault, StallPhase};
use crate::manifest;

/// A file as the streams see it.
#[derive(Debug)]
pub(crate) struct Target {
    /// Which file of the fetch.
    pub(crate) file: usize,
    pub(crate) partial: Arc<Partial>,
    /// Key in the store.
    pub(crate) object: String,
    /// The tag that every range must have, once an answer has told it.
    pub(crate) etag: OnceLock<String>,
}

/// What a stream tells while it runs.
#[derive(Debug)]
pub(crate) enum Note {
    /// So many bytes of a file have come.
    Bytes(usize, u64),
    /// A request is made again.
    Retry { file: usize, fault: &'static str, attempt: u32, after: Duration },
}

/// How far a request's chunks have come.
struct Cursor {
    span: Span,
    /// Next byte of the file to come.
    at: u64,
    end: u64,
    hash: Context,
    buffer: Option<Lease>,
    write: Option<JoinHandle<Result<(), CacheFault>>>,
    wrong: Vec<u32>,
}

/// Fetches the chunks of `span` and says which came with wrong bytes. All others are written and journalled.
pub(crate) async fn fetch(shared: &Shared, target: &Target, span: Span) -> Result<Vec<u32>, CacheFault> {
    let bytes = target.partial.wanted().bytes(span);
    let mut cursor = Cursor {
        span,
        at: bytes.start,
        end: bytes.end,
        hash: Context::new(&SHA256),
        buffer: None,
        write: None,
        wrong: Vec::new(),
    };
    let mut tries = Tries::new(shared.backoff);
    while cursor.at < cursor.end {
        shared.brake.passed().await;
        let before = cursor.at;
        let result = attempt(shared, target, &mut cursor).await;
        tries.brought(cursor.at - before);
        if let Err(fault) = result {
            again(shared, target.file, &mut tries, fault).await?;
        }
    }
    cursor.written().await?;
    Ok(cursor.wrong)
}

/// Waits before the next try, or gives the fault back when there is none.
async fn again(shared: &Shared, file: usize, tries: &mut Tries, fault: CacheFault) -> Result<(), CacheFault> {
    let Some(after) = tries.after(&fault, super::random()) else { return Err(given_up(fault, tries.failed())) };
    shared.note(Note::Retry { file, fault: fault.code(), attempt: tries.failed(), after }).await;
    if fault.retry_after().is_some() {
        // the store asks all of us to wait, not this request alone
        shared.brake.hold(after);
    }
    tokio::time::sleep(after).await;
    Ok(())
}

/// One request for what is missing; ends well only when all of it has come.
async fn attempt(shared: &Shared, target: &Target, cursor: &mut Cursor) -> Result<(), CacheFault> {
    let clocks = &shared.clocks;
    let stalled = |phase, after: Duration| CacheFault::Stalled {
        object: target.object.clone(),
        phase,
        after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
    };
    let size = target.partial.wanted().entry.size;
    let etag = target.etag.get().map(String::as_str);
    let request = shared.remote.get_range(&target.object, cursor.at..cursor.end, size, etag);
    let answer = tokio::time::timeout(clocks.first_byte, request).await;
    let mut body = answer.map_err(|_| stalled(StallPhase::FirstByte, clocks.first_byte))??;
    same_object(target, body.etag())?;
    let mut watch = RateWatch::default();
    while cursor.at < cursor.end {
        let asked = Instant::now();
        let piece = tokio::time::timeout(clocks.gap, body.next()).await;
        let piece = piece.map_err(|_| stalled(StallPhase::Gap, clocks.gap))?;
        let Some(piece) = piece.transpose()? else { return Err(cut(target)) };
        let came = watch.came(asked.elapsed(), piece.len() as u64, clocks);
        cursor.take(shared, target, &piece).await?;
        came.map_err(|phase| stalled(phase, clocks.rate_window))?;
    }
    Ok(())
}

/// The first answer's tag is that of the file; requests that were made before it came are compared with it here.
fn same_object(target: &Target, etag: Option<&str>) -> Result<(), CacheFault> {
    match etag {
        Some(etag) if target.etag.get_or_init(|| etag.to_owned()) != etag => {
            Err(CacheFault::ChangedObject { object: target.object.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

fn cut(target: &Target) -> CacheFault {
    CacheFault::Interrupted { object: target.object.clone(), reason: "the body ended before its length".to_owned() }
}

impl Cursor {
    /// Takes bytes that came; what goes beyond the request's end is not looked at.
    async fn take(&mut self, shared: &Shared, target: &Target, mut piece: &[u8]) -> Result<(), CacheFault> {
        while !piece.is_empty() && self.at < self.end {
            let chunk = self.chunk(target);
            let chunk_end = target.partial.wanted().bytes(Span { first: chunk, count: 1 }).end;
            let left = usize::try_from(chunk_end - self.at).unwrap_or(usize::MAX);
            let taken = self.fill(shared, &piece[..piece.len().min(left)]).await?;
            piece = &piece[taken..];
            let is_complete = self.at == chunk_end;
            let is_full = self.buffer.as_mut().is_some_and(|lease| lease.get().room() == 0);
            if is_complete || is_full {
                let came = self.buffer.as_mut().map_or(0, |lease| lease.get().filled().len());
                shared.note(Note::Bytes(target.file, came as u64)).await;
            }
            if is_complete {
                self.complete(target, chunk).await?;
            } else if is_full {
                self.flush(target, None).await?;
            }
        }
        Ok(())
    }

    /// The chunk that the next byte belongs to.
    fn chunk(&self, target: &Target) -> u32 {
        let size = u64::from(target.partial.wanted().chunk_size);
        u32::try_from(self.at / size).unwrap_or(self.span.first)
    }

    async fn fill(&mut self, shared: &Shared, piece: &[u8]) -> Result<usize, CacheFault> {
        if self.buffer.is_none() {
            self.buffer = Some(shared.pool.take().await.ok_or(CacheFault::Cancelled)?);
        }
        let Some(lease) = &mut self.buffer else { return Err(CacheFault::Cancelled) };
        let taken = lease.get().fill(piece);
        self.hash.update(&piece[..taken]);
        self.at += taken as u64;
        Ok(taken)
    }

    /// A chunk's last byte has come.
    async fn complete(&mut self, target: &Target, chunk: u32) -> Result<(), CacheFault> {
        let hash = std::mem::replace(&mut self.hash, Context::new(&SHA256));
        let found = manifest::finished(hash.finish());
        let is_right = target.partial.wanted().chunk(chunk).is_some_and(|(_, _, expected)| expected == found);
        if is_right {
            self.flush(target, Some(chunk)).await
        } else {
            self.wrong.push(chunk);
            self.buffer = None;
            Ok(())
        }
    }

    /// Gives the buffer to a thread that writes it, once the one before is written.
    async fn flush(&mut self, target: &Target, complete: Option<u32>) -> Result<(), CacheFault> {
        let Some(mut lease) = self.buffer.take() else { return Ok(()) };
        let offset = self.at - lease.get().filled().len() as u64;
        self.written().await?;
        let partial = Arc::clone(&target.partial);
        self.write = Some(tokio::task::spawn_blocking(move || partial.write(lease.get(), offset, complete)));
        Ok(())
    }

    /// Waits for the write that is on its way.
    async fn written(&mut self) -> Result<(), CacheFault> {
        match self.write.take() {
            None => Ok(()),
            Some(write) => write.await.unwrap_or(Err(CacheFault::Cancelled)),
        }
    }
}
