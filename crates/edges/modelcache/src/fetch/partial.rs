//! A file on its way, on the disk: found, checked chunk by chunk, written, sealed.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::FlockOperation;
use tidegate_core::Sha256Digest;

use super::plan::{Found, Span};
use crate::buffer::{BUFFER_BYTES_MAX, Buffer};
use crate::direct::{DirectFile, DiskIo};
use crate::failpoint;
use crate::fault::CacheFault;
use crate::journal::{Journal, Subject};
use crate::layout::Layout;
use crate::manifest::FileEntry;
use crate::publish::{make_folder, sync_folder};
use crate::writer::DataFile;

/// One file that a fetch wants: where it goes and what it must be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) layout: Layout,
    pub(crate) entry: Arc<FileEntry>,
    pub(crate) chunk_size: u32,
    pub(crate) disk_io: DiskIo,
}

/// An open file of the fetch.
#[derive(Clone, Debug)]
pub(crate) enum Opened {
    /// It is in the cache already, said to be right.
    Content(Arc<DirectFile>),
    /// It is written by us.
    Partial(Arc<Partial>),
}

/// A file that is written chunk by chunk.
#[derive(Debug)]
pub(crate) struct Partial {
    wanted: Wanted,
    data: DataFile,
    /// None for a file of one chunk: it is there or not.
    journal: Option<Journal>,
}

impl Wanted {
    fn sha256(&self) -> Sha256Digest {
        self.entry.sha256
    }

    /// How many chunks the file has.
    pub(crate) fn chunks(&self) -> u32 {
        // a manifest's size bounds its chunks far below
        u32::try_from(self.entry.chunks.len()).unwrap_or(u32::MAX)
    }

    /// Where a chunk begins, its length, and what it must be.
    pub(crate) fn chunk(&self, chunk: u32) -> Option<(u64, u64, Sha256Digest)> {
        let (start, len) = self.entry.chunk_span(self.chunk_size, chunk.into())?;
        Some((start, len, *self.entry.chunks.get(chunk as usize)?))
    }

    /// First byte of a span and the byte behind its last.
    pub(crate) fn bytes(&self, span: Span) -> std::ops::Range<u64> {
        let size = u64::from(self.chunk_size);
        u64::from(span.first) * size..(u64::from(span.end()) * size).min(self.entry.size)
    }

    /// Opens what there is of the file; `None` while another fetch writes it.
    pub(crate) fn prepare(&self) -> Result<Option<(Opened, Found)>, CacheFault> {
        let content = self.layout.file(self.sha256());
        match DirectFile::open(&content, self.disk_io) {
            Ok(file) => {
                let meta = file.plain().metadata().map_err(file.fault("read"))?;
                if !meta.is_file() {
                    let reason = "it is no plain file".to_owned();
                    return Err(CacheFault::Damaged { path: content, reason });
                }
                if meta.len() != self.entry.size {
                    return self.replace();
                }
                return Ok(Some((Opened::Content(Arc::new(file)), Found::Content)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(CacheFault::disk("open", &content, &error)),
        }
        let Some((partial, claimed)) = self.open_partial()? else { return Ok(None) };
        Ok(Some((Opened::Partial(Arc::new(partial)), Found::Partial(claimed))))
    }

    fn open_partial(&self) -> Result<Option<(Partial, Vec<bool>)>, CacheFault> {
        let folder = self.layout.partial(self.sha256());
        make_folder(&self.layout.partials())?;
        let path = self.layout.partial_data(self.sha256());
        let opened = make(&folder).and_then(|()| DataFile::open(&path, self.entry.size, self.disk_io));
        let Some(data) = opened.map_err(|error| CacheFault::disk("open", &path, &error))? else { return Ok(None) };
        if self.chunks() <= 1 {
            return Ok(Some((Partial { wanted: self.clone(), data, journal: None }, vec![false])));
        }
        let path = self.layout.partial_journal(self.sha256());
        let (journal, claimed) =
            Journal::open(&path, self.subject()).map_err(|error| CacheFault::disk("open", &path, &error))?;
        Ok(Some((Partial { wanted: self.clone(), data, journal: Some(journal) }, claimed)))
    }

    fn subject(&self) -> Subject {
        Subject { sha256: self.sha256(), chunk_size: self.chunk_size, chunks: self.chunks() }
    }

    /// Makes a new file that begins with the bytes of a content file that is wrong; all its chunks are claimed, to be
    /// checked. The content file stays as it is, for whoever has it open.
    pub(crate) fn replace(&self) -> Result<Option<(Opened, Found)>, CacheFault> {
        let content = self.layout.file(self.sha256());
        let Some((partial, claimed)) = self.open_partial()? else { return Ok(None) };
        // an earlier life that fetched a chunk had copied the rest before
        if !claimed.contains(&true) {
            let copied =
                File::open(&content).and_then(|from| copy(&from, partial.data.file().plain(), self.entry.size));
            copied.map_err(|error| CacheFault::disk("copy", &content, &error))?;
        }
        let claimed = vec![true; self.chunks() as usize];
        Ok(Some((Opened::Partial(Arc::new(partial)), Found::Partial(claimed))))
    }

    /// Removes what is left of a file on its way that has arrived, unless another fetch writes it.
    pub(crate) fn clean(&self) -> Result<(), CacheFault> {
        match File::open(self.layout.partial_data(self.sha256())) {
            Ok(data) if rustix::fs::flock(&data, FlockOperation::NonBlockingLockExclusive).is_err() => Ok(()),
            Ok(_) | Err(_) => self.remove(),
        }
    }

    fn remove(&self) -> Result<(), CacheFault> {
        let folder = self.layout.partial(self.sha256());
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CacheFault::disk("remove", &folder, &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Length of the buffers with which chunks are read and written: a chunk is a whole number of them.
pub(crate) const fn buffer_bytes(chunk_size: u32) -> usize {
    let chunk = chunk_size as usize;
    if chunk < BUFFER_BYTES_MAX { chunk } else { BUFFER_BYTES_MAX }
}

fn make(folder: &std::path::Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies up to `size` bytes from the start, by reference where the file system can.
fn copy(from: &File, to: &File, size: u64) -> io::Result<()> {
    let (mut source, mut target) = (0, 0);
    while source < size {
        let most = usize::try_from(size - source).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), most) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Opened {
    fn file(&self) -> &DirectFile {
        match self {
            Self::Content(file) => file,
            Self::Partial(partial) => partial.data.file(),
        }
    }

    /// Reads chunks and says which of them are not right.
    pub(crate) fn check(&self, wanted: &Wanted, span: Span, buffer: &mut Buffer) -> Result<Vec<u32>, CacheFault> {
        let file = self.file();
        let mut wrong = Vec::new();
        for chunk in span.first..span.end() {
            let Some((start, len, sha256)) = wanted.chunk(chunk) else { continue };
            if !file.is_right(buffer, start, len, sha256, None)? {
                wrong.push(chunk);
            }
        }
        Ok(wrong)
    }
}

impl Partial {
    pub(crate) const fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Writes what is filled of `buffer` at `offset`; with `complete`, a chunk that is right now and wholly written.
    pub(crate) fn write(&self, buffer: &mut Buffer, offset: u64, complete: Option<u32>) -> Result<(), CacheFault> {
        self.data.write(buffer, offset).map_err(self.data.file().fault("write"))?;
        if let (Some(chunk), Some(journal)) = (complete, &self.journal) {
            journal.append(chunk).map_err(|error| CacheFault::disk("append to", journal.path(), &error))?;
        }
        Ok(())
    }

    /// Makes the file durable and gives it its name. All its chunks are proven.
    pub(crate) fn seal(&self) -> Result<(), CacheFault> {
        let (layout, sha256) = (&self.wanted.layout, self.wanted.sha256());
        let data = layout.partial_data(sha256);
        if let Err(error) = self.data.seal() {
            // what a failed sync has left on the disk nobody knows: none of it is used again
            self.wanted.remove()?;
            return Err(CacheFault::disk("sync", &data, &error));
        }
        let content = layout.file(sha256);
        let folder: PathBuf = content.parent().map_or_else(|| layout.files(), PathBuf::from);
        make_folder(&folder)?;
        let fault = |error| CacheFault::disk("rename", &content, &error);
        failpoint::hit("seal.before_rename").map_err(fault)?;
        fs::rename(&data, &content).map_err(fault)?;
        failpoint::hit("seal.after_rename").map_err(fault)?;
        sync_folder(&folder)?;
        self.wanted.clean()?;
        failpoint::hit("seal.after_clean").map_err(fault)
    }
}
