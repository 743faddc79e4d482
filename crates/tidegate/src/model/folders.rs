//! A model's folder in the cache, and what an engine's compiled code is for.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

/// A model's folder. It stays where it is for as long as this is held.
pub(crate) struct ModelFolder {
    /// What an engine loads.
    pub(crate) path: PathBuf,
    /// Keeps it.
    pub(crate) hold: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for ModelFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelFolder").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What an engine's compiled code is for, besides the model: for anything else it is of no use, or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompiledFor {
    /// The engine's dialect.
    pub(crate) engine: &'static str,
    /// Its version, or its image with the digest.
    pub(crate) engine_version: Arc<str>,
    /// The GPU driver's version.
    pub(crate) driver: Arc<str>,
    /// The model of the GPUs.
    pub(crate) gpu: Arc<str>,
    /// GPUs of one replica.
    pub(crate) tensor_parallel: u32,
    /// The engine's arguments, without places and ports.
    pub(crate) flags: Vec<String>,
}
