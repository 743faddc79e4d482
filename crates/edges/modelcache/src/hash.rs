//! What is to be pushed, hashed: one read of every file gives its SHA-256 and those of its chunks.
//!
//! A file's own SHA-256 is serial, so one thread makes it while another makes the chunks' from the same blocks; several
//! files go side by side.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use aws_lc_rs::digest::{Context, SHA256};
use tidegate_core::Sha256Digest;
use tokio::task::JoinSet;

use crate::fault::CacheFault;
use crate::manifest::{FileEntry, Manifest, finished};
use crate::source::{Source, SourceFile, Stamp};

/// What a file is read in, in bytes. Chunks are whole multiples of a block.
const BLOCK_BYTES: usize = 64 << 10;
/// Blocks between the two threads of one file.
const BLOCKS_AHEAD: usize = 32;

/// Hears which file went on by how many bytes.
pub type Hashed = Arc<dyn Fn(&str, u64) + Send + Sync>;

/// Reads and hashes everything, `files_at_once` files side by side. `hashed` hears of bytes as they are done.
///
/// # Errors
/// [`CacheFault::BadSource`] when a file changes meanwhile, or a path breaks the manifest's rules; [`CacheFault::Io`].
pub async fn manifest_of(
    source: &Source,
    chunk_size: u32,
    files_at_once: usize,
    hashed: Hashed,
) -> Result<Manifest, CacheFault> {
    let mut waiting = source.files().to_vec().into_iter();
    let mut running = JoinSet::new();
    let mut entries = Vec::with_capacity(source.files().len());
    loop {
        while running.len() < files_at_once.max(1)
            && let Some(file) = waiting.next()
        {
            let hashed = Arc::clone(&hashed);
            running.spawn_blocking(move || entry_of(&file, chunk_size, &*hashed));
        }
        match running.join_next().await {
            Some(entry) => entries.push(entry.map_err(|_| CacheFault::Cancelled)??),
            None => break,
        }
    }
    Manifest::new(chunk_size, entries).map_err(CacheFault::from)
}

fn entry_of(file: &SourceFile, chunk_size: u32, hashed: &dyn Fn(&str, u64)) -> Result<FileEntry, CacheFault> {
    let mut from = File::open(&file.from).map_err(|error| CacheFault::disk("open", &file.from, &error))?;
    check_stamp(file, &from)?;
    let (sender, blocks) = sync_channel::<Arc<[u8]>>(BLOCKS_AHEAD);
    let (sha256, chunks) = std::thread::scope(|scope| {
        let whole = scope.spawn(move || hash_whole(&blocks));
        let chunks = hash_chunks(&mut from, file, chunk_size, &sender, hashed);
        drop(sender);
        (whole.join(), chunks)
    });
    check_stamp(file, &from)?;
    let sha256 = sha256.map_err(|_| CacheFault::Cancelled)?;
    Ok(FileEntry { path: file.path.clone(), size: file.size, sha256, chunks: chunks? })
}

fn hash_whole(blocks: &Receiver<Arc<[u8]>>) -> Sha256Digest {
    let mut context = Context::new(&SHA256);
    while let Ok(block) = blocks.recv() {
        context.update(&block);
    }
    finished(context.finish())
}

fn hash_chunks(
    from: &mut File,
    file: &SourceFile,
    chunk_size: u32,
    whole: &SyncSender<Arc<[u8]>>,
    hashed: &dyn Fn(&str, u64),
) -> Result<Vec<Sha256Digest>, CacheFault> {
    let mut chunks = Vec::new();
    let mut context = Context::new(&SHA256);
    let (mut left, mut left_of_chunk) = (file.size, u64::from(chunk_size));
    while left > 0 {
        let length = left.min(BLOCK_BYTES as u64);
        let mut block = vec![0; usize::try_from(length).unwrap_or(BLOCK_BYTES)];
        from.read_exact(&mut block).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => changed(file),
            _ => CacheFault::disk("read", &file.from, &error),
        })?;
        context.update(&block);
        // the other side ends only when this one does
        drop(whole.send(block.into()));
        left -= length;
        left_of_chunk -= length;
        if left_of_chunk == 0 || left == 0 {
            chunks.push(finished(std::mem::replace(&mut context, Context::new(&SHA256)).finish()));
            left_of_chunk = chunk_size.into();
        }
        hashed(&file.path, length);
    }
    Ok(chunks)
}

/// The file is still the one that was found.
pub(crate) fn check_stamp(file: &SourceFile, open: &File) -> Result<(), CacheFault> {
    let stat = open.metadata().map_err(|error| CacheFault::disk("look at", &file.from, &error))?;
    if Stamp::of(&stat) == file.stamp { Ok(()) } else { Err(changed(file)) }
}

fn changed(file: &SourceFile) -> CacheFault {
    CacheFault::BadSource { path: file.from.clone(), reason: "it changed while it was read".to_owned() }
}
