//! Names of what is on a node.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest instance id.
pub const INSTANCE_ID_MAX: usize = 120;

/// One start of one engine, for ever: `<deployment>-<index>-g<generation>` by the controller's custom. An id is never
/// used twice, is a folder's name, and stands in the environment of every process of the engine's tree.
///
/// Lower-case letters, digits, `.` and `-`, beginning with a letter or digit; at most [`INSTANCE_ID_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Arc<str>", into = "Arc<str>")]
pub struct InstanceId(Arc<str>);

/// A text that is no instance id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an instance id has 1 to 120 of a-z, 0-9, '.' and '-', and begins with a letter or digit")]
pub struct BadInstanceId;

impl InstanceId {
    /// Reads an id.
    ///
    /// # Errors
    /// [`BadInstanceId`].
    pub fn new(text: &str) -> Result<Self, BadInstanceId> {
        Self::try_from(Arc::from(text))
    }

    /// The id as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for InstanceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<Arc<str>> for InstanceId {
    type Error = BadInstanceId;

    fn try_from(text: Arc<str>) -> Result<Self, BadInstanceId> {
        let begins_well = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let is_plain = text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-'));
        if begins_well && is_plain && text.len() <= INSTANCE_ID_MAX { Ok(Self(text)) } else { Err(BadInstanceId) }
    }
}

impl From<InstanceId> for Arc<str> {
    fn from(id: InstanceId) -> Self {
        id.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A GPU's own name (`GPU-…`) or a MIG instance's (`MIG-…`): the same after a restart and in a container, where its
/// index may not be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    /// The name as the driver says it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for GpuUuid {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_safe_folder_name() {
        assert!(InstanceId::new("glm-5.3-0-g7").is_ok());
        assert!(InstanceId::new(&"a".repeat(INSTANCE_ID_MAX)).is_ok());
        for bad in ["", ".", "..", "-a", "a/b", "a b", "A", "é", "a\0", &"a".repeat(INSTANCE_ID_MAX + 1)] {
            assert_eq!(InstanceId::new(bad), Err(BadInstanceId), "{bad:?}");
        }
        assert!(serde_json::from_str::<InstanceId>("\"../x\"").is_err());
    }
}
