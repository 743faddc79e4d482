//! The highest generation that was seen, on disk.

use std::path::PathBuf;

use parking_lot::Mutex;

use crate::fault::NodeError;
use crate::files;

/// Refuses commands of controllers that were replaced.
#[derive(Debug)]
pub(crate) struct Fence {
    path: PathBuf,
    highest: Mutex<u64>,
}

impl Fence {
    pub(crate) fn open(path: PathBuf) -> Result<Self, NodeError> {
        let highest = files::read(&path).map_err(|error| NodeError::io("cannot read the generation", error))?;
        Ok(Self { path, highest: Mutex::new(highest.unwrap_or(0)) })
    }

    /// Lets a command pass whose generation is at least the highest; a higher one is on disk before it passes.
    pub(crate) fn admit(&self, generation: u64) -> Result<(), NodeError> {
        let mut highest = self.highest.lock();
        if generation < *highest {
            return Err(NodeError::StaleGeneration { generation, highest: *highest });
        }
        if generation > *highest {
            files::write(&self.path, &generation)
                .map_err(|error| NodeError::io("cannot keep the generation", error))?;
            *highest = generation;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_generation_is_refused_after_a_restart_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("generation");
        let fence = Fence::open(path.clone()).unwrap();
        fence.admit(7).unwrap();
        fence.admit(7).unwrap();
        let fence = Fence::open(path.clone()).unwrap();
        assert_eq!(fence.admit(6), Err(NodeError::StaleGeneration { generation: 6, highest: 7 }));
        std::fs::write(&path, "x").unwrap();
        assert_eq!(Fence::open(path).unwrap_err().code(), "io", "a broken file is not generation 0");
    }
}
