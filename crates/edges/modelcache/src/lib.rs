//! Models between the object store, which is the truth, and the local disk, which is a cache that may be lost.
//!
//! - [`manifest`]: what a model is; its digest is the cache's key.
//! - [`layout`]: where things are, in the store and on the disk.
//! - [`fault`]: everything that can go wrong, by name.
//! - [`remote`]: the object store, every answer checked.
//! - [`source`], [`push`]: a model on the disk, and its way into the store.

pub mod artifact;
mod buffer;
pub mod cache;
pub mod counters;
pub mod direct;
pub mod evict;
pub mod failpoint;
pub mod fault;
pub mod fetch;
pub mod flight;
pub mod hash;
mod journal;
pub mod layout;
pub mod manifest;
pub mod owner;
pub mod progress;
pub mod publish;
pub mod push;
pub mod remote;
pub mod room;
pub mod source;
pub mod verify;
mod writer;

pub use fault::{CacheFault, NoRoom, StallPhase};
pub use layout::{Layout, ModelPath};
pub use manifest::{FileEntry, Manifest, ManifestError};
