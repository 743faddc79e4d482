//! Engines as processes of ours: the command, the port, the process tree and its end.
//!
//! ```text
//! CommandLine::render(EngineSpec) --> Process::start --> minder (own binary again) --> engine --> its children
//!                                          |  pipe          | subreaper
//!                                          +---- stop ------+-- SIGTERM, repeated, then SIGKILL to the whole tree
//! ```
//!
//! Why a minder and not a parent-death signal: the signal reaches the engine's first process only, is tied to the
//! thread that started it, and an engine whose front process dies leaves children behind that hold all the memory
//! (E11). The minder adopts them, sees its pipe close when we die, however we die, and ends all of them.

mod boot_log;
mod command;
mod driver;
mod exit;
pub mod minder;
mod port;
mod process;
mod tree;

pub use boot_log::{BOOT_LOG_MAX, CAUSE_MAX, Phase, boot_log, root_cause};
pub use command::{CommandLine, EngineSpec, model_file};
pub use driver::{DRIVER_FOLDER, GpuDriver};
pub use exit::Exit;
pub use port::lowest_free;
pub use process::{INSTANCE_VARIABLE, LaunchError, Process, log_tail};
