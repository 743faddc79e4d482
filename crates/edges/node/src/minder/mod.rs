//! The minder: a small process beside an engine that outlives us, and the engine for just as long as it takes to leave
//! nothing behind.
//!
//! It is the own binary again, in a session of its own: a Ctrl-C of the terminal does not reach it, and no signal tells
//! it that its parent died. It adopts the engine's orphans, and ends the tree when told to. Whoever starts anew connects
//! to it and goes on.
//!
//! ```text
//! node ──spawn──▶ minder --instance DIR ──spawn──▶ minder --enter DIR ──exec──▶ engine ──▶ its children
//!   └──connects──▶ DIR/sock                         (cgroups, CPUs, memory)       └─ orphans ─▶ minder
//! ```
//!
//! | event | what happens |
//! | --- | --- |
//! | `stop N` on the socket | SIGTERM to the engine's first process every second; after N ms SIGKILL to the tree |
//! | nobody connected for `orphan N` ms; SIGTERM, SIGINT or SIGHUP to the minder | the same with [`ORPHAN_PATIENCE`] |
//! | the engine's first process ends | SIGTERM to what it left behind, SIGKILL after [`LEFTOVER_PATIENCE`] |
//! | no process left | `ended.json`, exit |

mod clients;
mod enter;
mod mind;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::instance_folder::InstanceFolder;

/// How long an engine has to end when nobody is left to say how long.
pub const ORPHAN_PATIENCE: Duration = Duration::from_secs(10);
/// How long the children of an engine have to end after its first process has.
pub const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two SIGTERMs: vLLM was seen to lose one while booting.
pub const TERM_EVERY: Duration = Duration::from_secs(1);

/// Exit code when the engine could not be started, as shells say it.
pub(crate) const NOT_STARTED: u8 = 127;

/// Runs the minder, or becomes an engine. `args` are what follows the words that lead here.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let (mode, folder) = (args.next().unwrap_or_default(), args.next().map(PathBuf::from));
    let outcome = match (mode.to_str(), folder) {
        (Some("--instance"), Some(folder)) => mind::run(&InstanceFolder::new(folder)),
        (Some("--enter"), Some(folder)) => enter::run(&InstanceFolder::new(folder)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "this is for tidegate itself")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Standard error is the engine's log.
        Err(error) => {
            drop(writeln!(io::stderr(), "engine not started: {error}"));
            ExitCode::from(NOT_STARTED)
        }
    }
}
