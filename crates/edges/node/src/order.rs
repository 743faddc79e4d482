//! What a node is told to do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::InstanceId;

/// Stands in an argument or a variable for the port that the node chose.
pub const PORT: &str = "{{port}}";
/// Stands for the address to listen at.
pub const HOST: &str = "{{host}}";
/// Stands for the model's folder or file.
pub const MODEL: &str = "{{model}}";
/// Stands for the folder for what the engine compiles.
pub const COMPILED: &str = "{{compiled}}";

/// Most arguments of a command.
pub const ARGS_MAX: usize = 1_024;
/// Most variables of a command.
pub const ENV_MAX: usize = 1_024;
/// Most bytes of an argument, of a name or of a value.
pub const WORD_BYTES_MAX: usize = 64 * 1_024;
/// Most marks to look for in a log.
pub const MARKS_MAX: usize = 64;
/// Most GPUs of one instance on one node.
pub const GPUS_MAX: usize = 64;

/// Start an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartOrder {
    /// Its id: never used before for anything else.
    pub instance: InstanceId,
    /// The engine's dialect and its version or image, when both are known: what it compiles is for these alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The deployment it serves.
    pub deployment: String,
    /// Which replica of it.
    pub replica: u32,
    /// Fingerprint of what it is started from.
    pub revision: u64,
    /// What is run.
    pub command: Command,
    /// The model it serves; `None`: it needs none from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelUse>,
    /// GPUs by index, in the order in which the engine is to see them; empty: none.
    #[serde(default)]
    pub gpus: Vec<u32>,
    /// Bytes that have to be free on each of its GPUs before it is started; `None`: not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_free_bytes: Option<u64>,
    /// NUMA node whose CPUs and memory it is bound to; `None`: unbound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Most host memory of the whole tree, where the node can hold such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max_bytes: Option<u64>,
    /// Share of CPU in thousandths of one, where the node can hold such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// First and last port it may be given.
    pub ports: (u16, u16),
    /// Where it listens.
    pub host: IpAddr,
    /// What its log says on its way to serving, in any order; see [`crate::BootMark`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<LogMark>,
}

/// A command in which [`PORT`], [`HOST`], [`MODEL`] and [`COMPILED`] may stand, also inside of a longer word, in
/// arguments and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program; a name without a slash is looked for in `PATH`.
    pub program: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment, on top of the node's own without what begins with `TIDEGATE_`.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// A text in an engine's log that means a phase of its boot has been reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogMark {
    /// The phase.
    pub phase: String,
    /// The text, anywhere in a line.
    pub text: String,
}

/// A model that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelUse {
    /// Where it is.
    pub at: ModelAt,
    /// What the engine is given of it.
    pub file: ModelFile,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelAt {
    /// In the model store, and by then verified in the node's cache.
    Stored {
        /// `<family>/<version>`.
        path: String,
        /// The manifest's digest; `None`: whichever is current.
        digest: Option<String>,
    },
    /// A folder or file of the node itself.
    Local(PathBuf),
}

/// What an engine is given of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFile {
    /// The folder.
    Folder,
    /// Its one `.gguf` file, or the first shard of several.
    Gguf,
}

/// Have a model here: fetched and verified.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelOrder {
    /// `<family>/<version>` in the model store.
    pub path: String,
    /// The manifest's digest; `None`: whichever is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A model that is not to be evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// `<family>/<version>` in the model store.
    pub path: String,
    /// The manifest's digest; `None`: whichever is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When it is needed next; `None`: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_use: Option<Timestamp>,
    /// Why, for people.
    pub why: String,
}
