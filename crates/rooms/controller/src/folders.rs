//! Where models of a store are on this machine: the binary knows, and gives its answer in here.

use std::any::Any;
use std::path::PathBuf;

use async_trait::async_trait;

/// A model's folder. It stays where it is for as long as this is held.
pub struct ModelFolder {
    /// What an engine loads.
    pub path: PathBuf,
    /// Keeps it.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for ModelFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFolder").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Has models of the store on this machine.
#[async_trait]
pub trait ModelFolders: Send + Sync {
    /// The folder of model `path` (`family/version`), whose manifest has the digest `pinned` if there is one; fetched
    /// when it is not here. `say` hears how it goes. Dropping the future ends the fetch, and the next goes on from there.
    ///
    /// # Errors
    /// Why it cannot be had, and what to do about it.
    async fn folder(
        &self,
        path: &str,
        pinned: Option<&str>,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<ModelFolder, String>;
}
