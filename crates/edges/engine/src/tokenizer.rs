//! Prompt tokens, counted with the model's own tokenizer.
//!
//! A count costs 145 µs for 300 bytes and 25 ms for 40 KB, so only short texts are counted where they are asked for;
//! longer ones go to a blocking pool, and only so many of them at a time. Who finds no room, or a text over the bound,
//! falls back on the byte bound: an estimate never waits in a queue of its own.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// File in a model's folder.
pub const FILE: &str = "tokenizer.json";
/// Bytes of a tokenizer file; those of large vocabularies have some 35 MB.
pub const FILE_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Bytes up to which a text is counted on the spot.
pub const INLINE_BYTES_MAX: usize = 4 * 1024;
/// Bytes above which a text is not counted.
pub const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Long texts of one model that are counted at the same time, over all cores.
pub const COUNTING_MAX: usize = 4;

/// A model's tokenizer. Cheap to clone; shared by all cores.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    room: Arc<Semaphore>,
}

/// Why a text was not counted. In every case the byte bound stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotCount {
    /// It is over [`TEXT_BYTES_MAX`].
    #[error("text over {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// [`COUNTING_MAX`] long texts are being counted.
    #[error("too many long texts are being counted")]
    Busy,
    /// The tokenizer failed on it.
    #[error("the tokenizer failed")]
    Failed,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a folder, or the file itself; `Ok(None)` when the folder has none. Takes up to a
    /// second for large vocabularies: not on the data path.
    ///
    /// # Errors
    /// The file is too large, cannot be read, or is no tokenizer; the text names it.
    pub fn load(path: &Path) -> io::Result<Option<Self>> {
        let is_folder = path.is_dir();
        let file = if is_folder { path.join(FILE) } else { path.to_owned() };
        let named = |error: &dyn fmt::Display| io::Error::other(format!("{}: {error}", file.display()));
        let mut bytes = Vec::new();
        match File::open(&file) {
            Ok(open) => open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| named(&error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_folder => return Ok(None),
            Err(error) => return Err(io::Error::new(error.kind(), named(&error))),
        };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(named(&format!("over {FILE_BYTES_MAX} bytes")));
        }
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| named(&error))?;
        // Both would falsify a count, and files of the wild have them switched on.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| named(&error))?;
        Ok(Some(Self { inner: Arc::new(inner), room: Arc::new(Semaphore::new(COUNTING_MAX)) }))
    }

    /// Tokens of a text, without special ones: what a chat template adds is the caller's to add. Long texts are counted
    /// on the blocking pool of the runtime that asks.
    ///
    /// # Errors
    /// [`CannotCount`].
    pub async fn count(&self, text: &str) -> Result<u64, CannotCount> {
        if text.len() <= INLINE_BYTES_MAX {
            return count(&self.inner, text);
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(CannotCount::TooLong);
        }
        let permit = Arc::clone(&self.room).try_acquire_owned().map_err(|_| CannotCount::Busy)?;
        let (inner, text) = (Arc::clone(&self.inner), text.to_owned());
        let counted = tokio::task::spawn_blocking(move || {
            // Held until the work is done, not until the caller loses patience.
            let _permit = permit;
            count(&inner, &text)
        });
        counted.await.unwrap_or(Err(CannotCount::Failed))
    }
}

fn count(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<u64, CannotCount> {
    tokenizer.encode_fast(text, false).map(|encoding| encoding.len() as u64).map_err(|_| CannotCount::Failed)
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokenizer")
    }
}
