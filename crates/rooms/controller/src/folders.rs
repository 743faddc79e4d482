//! Where models of a store are on this machine: the binary knows, and gives its answer in here.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// What an engine's compiled code is for, besides the model: for anything else it is of no use, or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledFor {
    /// The engine's dialect.
    pub engine: &'static str,
    /// Its version, or its image with the digest.
    pub engine_version: Arc<str>,
    /// The GPU driver's version.
    pub driver: Arc<str>,
    /// The model of the GPUs.
    pub gpu: Arc<str>,
    /// GPUs of one replica.
    pub tensor_parallel: u32,
    /// The engine's arguments, without places and ports.
    pub flags: Vec<String>,
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

    /// Fills `target`, which is not there or empty, with what an earlier load compiled, here or on another node; whether
    /// there was anything.
    ///
    /// # Errors
    /// Why it cannot be had. A load goes on without it.
    async fn lay_out_compiled(&self, model: &Path, of: &CompiledFor, target: &Path) -> Result<bool, String>;

    /// Saves what a load has compiled in `from`, for the next one here or on another node.
    ///
    /// # Errors
    /// Why it cannot be saved. The engine serves all the same.
    async fn keep_compiled(&self, model: &Path, of: &CompiledFor, from: &Path) -> Result<(), String>;
}
