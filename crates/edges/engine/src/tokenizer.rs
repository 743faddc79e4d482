//! Counting prompt tokens with a model's own tokenizer.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// File that holds a tokenizer.
pub const FILE: &str = "tokenizer.json";
/// Largest tokenizer file in bytes; those of large vocabularies have some 30 MB.
pub const FILE_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Texts up to this many bytes are counted where they are; longer ones on a blocking pool (25 ms for 40 KB would stall
/// every stream of the core).
pub const INLINE_BYTES_MAX: usize = 4 * 1024;

/// A model's tokenizer; cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
}

/// Why a text could not be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer failed")]
pub struct CannotCount;

impl Tokenizer {
    /// Reads `tokenizer.json` of a folder. `Ok(None)` when there is none.
    ///
    /// # Errors
    /// The file is too large, cannot be read, or is no tokenizer.
    pub fn load(folder: &Path) -> io::Result<Option<Self>> {
        let path = folder.join(FILE);
        let size = match std::fs::metadata(&path) {
            Ok(file) => file.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if size > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("{} is over {FILE_BYTES_MAX} bytes", path.display())));
        }
        let inner = tokenizers::Tokenizer::from_file(&path).map_err(io::Error::other)?;
        Ok(Some(Self { inner: Arc::new(inner) }))
    }

    /// Counts the tokens of a text, without special ones.
    ///
    /// # Errors
    /// The tokenizer failed on this text.
    pub async fn count(&self, text: &str) -> Result<u64, CannotCount> {
        if text.len() <= INLINE_BYTES_MAX {
            return count(&self.inner, text);
        }
        let (inner, text) = (Arc::clone(&self.inner), text.to_owned());
        tokio::task::spawn_blocking(move || count(&inner, &text)).await.map_err(|_| CannotCount)?
    }
}

fn count(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<u64, CannotCount> {
    tokenizer.encode_fast(text, false).map(|encoding| encoding.len() as u64).map_err(|_| CannotCount)
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokenizer")
    }
}
