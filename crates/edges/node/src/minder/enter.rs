//! The engine's first process, until it is the engine.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::instance_folder::{InstanceFolder, Launch};
use crate::{bind, files};

/// Enters the cgroups, binds itself and becomes the engine. Returns only when that fails.
pub(super) fn run(folder: &InstanceFolder) -> io::Result<()> {
    let launch: Launch = files::read(&folder.launch())?.ok_or(io::ErrorKind::NotFound)?;
    launch.cage.enter()?;
    bind::cpus(&launch.cpus)?;
    if let Some(numa) = launch.numa {
        bind::memory(numa)?;
    }
    let error = Command::new(&launch.program).args(&launch.args).exec();
    Err(io::Error::new(error.kind(), format!("{}: {error}", launch.program)))
}
