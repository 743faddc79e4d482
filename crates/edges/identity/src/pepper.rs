//! The server-side secret under which key MACs are made: a stolen database alone verifies no guess.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use aws_lc_rs::hmac;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::key::ApiKey;

/// HMAC-SHA-256 of a whole key under the pepper: what the store keeps of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac([u8; 32]);

impl Mac {
    /// From the store's bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For the store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Compares in constant time.
    #[must_use]
    pub fn matches(&self, other: &Self) -> subtle::Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mac(…)")
    }
}

/// Why there is no pepper.
#[derive(Debug, thiserror::Error)]
pub enum PepperError {
    /// Fewer than [`Pepper::LEN_MIN`] bytes.
    #[error("the key pepper has {0} bytes, at least {min} are needed", min = Pepper::LEN_MIN)]
    TooShort(usize),
    /// More than [`Pepper::LEN_MAX`] bytes: certainly not what was meant.
    #[error("the key pepper has more than {max} bytes", max = Pepper::LEN_MAX)]
    TooLong,
    /// Somebody else may read it.
    #[error("the key pepper's file may be read by others: its mode must be 0600")]
    Exposed,
    /// The file could not be read or made.
    #[error("the key pepper's file: {0}")]
    Io(#[from] io::Error),
    /// The system's random generator failed.
    #[error(transparent)]
    Random(#[from] crate::key::RandomFailed),
}

/// The pepper, held only as the prepared HMAC state; `Debug` shows nothing.
pub struct Pepper {
    key: hmac::Key,
}

impl Pepper {
    /// Fewest bytes accepted.
    pub const LEN_MIN: usize = 32;
    /// Most bytes accepted.
    pub const LEN_MAX: usize = 4_096;

    /// A pepper of given bytes (from the environment or a file named in the documents).
    ///
    /// # Errors
    /// When it is too short or too long to be one.
    pub fn new(bytes: &[u8]) -> Result<Self, PepperError> {
        match bytes.len() {
            len if len < Self::LEN_MIN => Err(PepperError::TooShort(len)),
            len if len > Self::LEN_MAX => Err(PepperError::TooLong),
            _ => Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes) }),
        }
    }

    /// Reads the pepper of the state folder, or makes it: 32 random bytes, mode 0600, on disk before this returns. Of
    /// two processes that make it at once, one wins and both use the winner's.
    ///
    /// # Errors
    /// When the file cannot be read or made, is readable by others, or holds no pepper.
    pub fn open(path: &Path) -> Result<Self, PepperError> {
        match read_private(path) {
            Err(PepperError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                make_private(path)?;
                Self::new(&read_private(path)?)
            }
            other => Self::new(&other?),
        }
    }

    /// The MAC of a key.
    #[must_use]
    pub fn mac(&self, key: &ApiKey) -> Mac {
        let tag = hmac::sign(&self.key, key.reveal().as_bytes());
        let mut mac = [0; 32];
        for (to, from) in mac.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        Mac(mac)
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(…)")
    }
}

fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, PepperError> {
    use std::os::unix::fs::PermissionsExt;
    let file = File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(PepperError::Exposed);
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(64));
    file.take(Pepper::LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Written beside and linked into place, so that nobody ever reads half a pepper and an existing one is never replaced.
fn make_private(path: &Path) -> Result<(), PepperError> {
    let mut bytes = Zeroizing::new([0_u8; Pepper::LEN_MIN]);
    aws_lc_rs::rand::fill(&mut *bytes).map_err(|_| crate::key::RandomFailed)?;
    let mut unique = [0_u8; 8];
    aws_lc_rs::rand::fill(&mut unique).map_err(|_| crate::key::RandomFailed)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{:016x}", u64::from_ne_bytes(unique)));
    let draft = Path::new(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(&*bytes)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(draft, path);
    std::fs::remove_file(draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    if let Some(folder) = path.parent() {
        // A relative file name has the empty parent, which means the current folder.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
