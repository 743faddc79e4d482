//! Where things are, in the store and on the disk.
//!
//! ```text
//! store   <prefix>/<family>/<version>/manifest.json        written last: the version is there from then on
//!                                     config.json
//!                                     tokenizer/…
//!                                     weights/…
//!
//! disk    <root>/sha256-<digest>/…            a published model: the flat folder that an engine loads; its entries are
//!                                             hard links to the content files, and it appears by one rename
//!               files/<aa>/<sha256>           content files, mode 0444, stored once whoever uses them
//!               partial/<sha256>/data         a file on its way, allocated whole
//!               partial/<sha256>/journal      which of its chunks are there
//!               manifests/<digest>.json       manifests of published models and of those on their way
//!               refs/<family>/<version>       the digest last seen under that name
//!               pins/<digest>  uses/<digest>  kept by hand; time of last use
//!               artifacts/…                   compile caches
//!               scrubs.json                   when each model was last read again
//!               tmp/                          what is made ready for a rename; emptied at each opening
//!               owner.lock  owner.sock        flock of the one owner, and where others ask it
//! ```

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use crate::fault::CacheFault;

/// File name of the manifest under a version's folder.
pub const MANIFEST: &str = "manifest.json";
/// Folders of a version that are stripped from the flat folder.
pub const WEIGHTS: &str = "weights/";
/// See [`WEIGHTS`].
pub const TOKENIZER: &str = "tokenizer/";
/// Longest family or version, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// A model's name in the store: `family/version`, such as `glm/5.3-flash`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelPath {
    text: String,
    /// Where the `/` is.
    cut: usize,
}

/// Why a text names no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no model path: {reason}")]
pub struct BadModelPath {
    text: String,
    reason: &'static str,
}

impl ModelPath {
    /// Reads `family/version`. Both consist of letters, digits, `.`, `_` and `-`, and begin with a letter or a digit.
    ///
    /// # Errors
    /// It has not that form.
    pub fn parse(text: &str) -> Result<Self, BadModelPath> {
        let refuse = |reason| Err(BadModelPath { text: text.chars().take(300).collect(), reason });
        let Some(cut) = text.find('/') else {
            return refuse("it has the form family/version");
        };
        for name in [&text[..cut], &text[cut + 1..]] {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return refuse("family and version have 1 to 128 letters");
            }
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
                return refuse("family and version consist of letters, digits, '.', '_' and '-'");
            }
            if !name.as_bytes()[0].is_ascii_alphanumeric() {
                return refuse("family and version begin with a letter or a digit");
            }
        }
        Ok(Self { text: text.to_owned(), cut })
    }

    #[must_use]
    pub fn family(&self) -> &str {
        &self.text[..self.cut]
    }

    #[must_use]
    pub fn version(&self) -> &str {
        &self.text[self.cut + 1..]
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Key of one of its files, relative to the store's prefix; `file` is a path of the manifest, or [`MANIFEST`].
    #[must_use]
    pub fn object(&self, file: &str) -> String {
        format!("{}/{file}", self.text)
    }
}

impl FromStr for ModelPath {
    type Err = BadModelPath;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl TryFrom<String> for ModelPath {
    type Error = BadModelPath;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<ModelPath> for String {
    fn from(path: ModelPath) -> Self {
        path.text
    }
}

impl std::fmt::Display for ModelPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<BadModelPath> for CacheFault {
    fn from(error: BadModelPath) -> Self {
        Self::BadSettings { reason: error.to_string() }
    }
}

/// A file's name in the flat folder: its path in the store without a leading `weights/` or `tokenizer/`.
#[must_use]
pub fn flat_name(path: &str) -> &str {
    path.strip_prefix(WEIGHTS).or_else(|| path.strip_prefix(TOKENIZER)).unwrap_or(path)
}

/// Paths under the cache's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The flat folder of a published model.
    #[must_use]
    pub fn published(&self, digest: Sha256Digest) -> PathBuf {
        self.root.join(format!("sha256-{digest}"))
    }

    /// The digest of a published folder's name.
    #[must_use]
    pub fn published_digest(name: &str) -> Option<Sha256Digest> {
        name.strip_prefix("sha256-")
            .filter(|hex| hex.bytes().all(|byte| !byte.is_ascii_uppercase()))
            .and_then(Sha256Digest::parse)
    }

    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// A content file, by the digest of its bytes.
    #[must_use]
    pub fn file(&self, sha256: Sha256Digest) -> PathBuf {
        let hex = sha256.to_string();
        self.files().join(&hex[..2]).join(hex)
    }

    #[must_use]
    pub fn partials(&self) -> PathBuf {
        self.root.join("partial")
    }

    /// The folder of a file on its way.
    #[must_use]
    pub fn partial(&self, sha256: Sha256Digest) -> PathBuf {
        self.partials().join(sha256.to_string())
    }

    #[must_use]
    pub fn partial_data(&self, sha256: Sha256Digest) -> PathBuf {
        self.partial(sha256).join("data")
    }

    #[must_use]
    pub fn partial_journal(&self, sha256: Sha256Digest) -> PathBuf {
        self.partial(sha256).join("journal")
    }

    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    #[must_use]
    pub fn manifest(&self, digest: Sha256Digest) -> PathBuf {
        self.manifests().join(format!("{digest}.json"))
    }

    #[must_use]
    pub fn refs(&self) -> PathBuf {
        self.root.join("refs")
    }

    #[must_use]
    pub fn reference(&self, model: &ModelPath) -> PathBuf {
        self.refs().join(model.family()).join(model.version())
    }

    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.root.join("pins")
    }

    #[must_use]
    pub fn pin(&self, digest: Sha256Digest) -> PathBuf {
        self.pins().join(digest.to_string())
    }

    #[must_use]
    pub fn uses(&self) -> PathBuf {
        self.root.join("uses")
    }

    #[must_use]
    pub fn last_use(&self, digest: Sha256Digest) -> PathBuf {
        self.uses().join(digest.to_string())
    }

    #[must_use]
    pub fn artifacts(&self) -> PathBuf {
        self.root.join("artifacts")
    }

    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// When each model was last read again.
    #[must_use]
    pub fn scrubs(&self) -> PathBuf {
        self.root.join("scrubs.json")
    }

    #[must_use]
    pub fn owner_lock(&self) -> PathBuf {
        self.root.join("owner.lock")
    }

    #[must_use]
    pub fn owner_socket(&self) -> PathBuf {
        self.root.join("owner.sock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_path_is_family_and_version() {
        let path = ModelPath::parse("glm/5.3-flash").unwrap();
        assert_eq!((path.family(), path.version()), ("glm", "5.3-flash"));
        assert_eq!(path.object(MANIFEST), "glm/5.3-flash/manifest.json");
        let long = "a".repeat(NAME_BYTES_MAX);
        assert!(ModelPath::parse(&format!("{long}/{long}")).is_ok());
        assert!(ModelPath::parse(&format!("{long}a/1")).is_err());
        for bad in
            ["", "glm", "glm/", "/5", "glm/5/x", "../5", "glm/..", "glm/.5", "g lm/5", "glm/5\n", "glm/5%2f", "é/1"]
        {
            assert!(ModelPath::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_the_leading_weights_and_tokenizer_are_stripped() {
        assert_eq!(flat_name("weights/model.safetensors"), "model.safetensors");
        assert_eq!(flat_name("tokenizer/tokenizer.json"), "tokenizer.json");
        assert_eq!(flat_name("weights/weights/x"), "weights/x");
        assert_eq!(flat_name("original/weights/x"), "original/weights/x");
        assert_eq!(flat_name("config.json"), "config.json");
    }

    #[test]
    fn a_published_folder_names_its_digest() {
        let digest = Sha256Digest([0xab; 32]);
        let layout = Layout::new("/cache");
        let folder = layout.published(digest);
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(Layout::published_digest(name), Some(digest));
        assert_eq!(Layout::published_digest("sha256-ab"), None);
        assert_eq!(Layout::published_digest(&name.replace("ab", "AB")), None);
        assert!(layout.file(digest).starts_with("/cache/files/ab"));
    }
}
