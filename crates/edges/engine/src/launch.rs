//! What an engine is started with, and what its log says: who starts it is the node's affair.
//!
//! ```text
//! CommandLine::render(EngineSpec) --> program, arguments, environment     log --> phases, the cause of its end
//! ```

mod boot_log;
mod command;
mod driver;

pub use boot_log::{CAUSE_MAX, Phase, root_cause};
pub use command::{CommandLine, EngineSpec, model_file};
pub use driver::{DRIVER_FOLDER, GpuDriver};
