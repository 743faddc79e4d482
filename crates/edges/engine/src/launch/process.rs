//! One engine that runs as a process of ours.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use super::command::CommandLine;
use super::exit::Exit;
use super::minder::LEFTOVER_PATIENCE;
use super::tree;

/// The variable that marks every process of an engine's tree.
pub const INSTANCE_VARIABLE: &str = "TIDEGATE_INSTANCE";

/// How long the minder may take beyond the patience it was given.
const MINDER_GRACE: Duration = Duration::from_secs(5);
/// Rounds in which an instance's stray processes are killed: one kills them, the others see that nobody was just born.
const SWEEPS_MAX: usize = 10;
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// Why an engine was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Its log file cannot be written.
    #[error("log file {path} cannot be opened")]
    Log {
        /// The file.
        path: Box<str>,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The minder cannot be started.
    #[error("minder {program} cannot be started")]
    Minder {
        /// The program.
        program: Box<str>,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A running engine. Dropping it ends the whole tree, without waiting for that.
#[derive(Debug)]
pub struct Process {
    minder: Child,
    /// The minder sees it close when we die.
    control: Option<ChildStdin>,
    instance: Arc<str>,
    log_start: u64,
}

impl Process {
    /// Starts an engine. `minder` is the program and the words that lead to [`super::minder::main`]; `instance` is an
    /// id that no other engine ever had; output is appended to the log file. What starts with `TIDEGATE_` in our
    /// environment is not passed on: keys and peppers may be among it.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Errors
    /// [`LaunchError`]. That the engine's own program is missing shows as its exit with code 127.
    pub fn start(minder: &[OsString], instance: &str, engine: &CommandLine, log: &Path) -> Result<Self, LaunchError> {
        let (out, err, log_start) =
            open_log(log).map_err(|source| LaunchError::Log { path: log.to_string_lossy().into(), source })?;
        let program = minder.first().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command.args(&minder[1.min(minder.len())..]).arg("--").arg(&engine.program).args(&engine.args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.envs(engine.env.iter().map(|(name, value)| (&**name, &**value))).env(INSTANCE_VARIABLE, instance);
        command.stdin(Stdio::piped()).stdout(out).stderr(err).process_group(0);
        let mut minder = command
            .spawn()
            .map_err(|source| LaunchError::Minder { program: program.to_string_lossy().into(), source })?;
        let control = minder.stdin.take();
        Ok(Self { minder, control, instance: instance.into(), log_start })
    }

    /// The minder's process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.minder.id()
    }

    /// The instance id, as in the environment of the whole tree.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// How long the log file was when it started: what it wrote itself begins there.
    #[must_use]
    pub const fn log_start(&self) -> u64 {
        self.log_start
    }

    /// How it ended, if it has: without waiting.
    pub fn try_exit(&mut self) -> Option<Exit> {
        self.minder.try_wait().ok().flatten().map(Exit::of_minder)
    }

    /// Waits until no process of the tree is left, and says how the first one ended.
    pub async fn exited(&mut self) -> Exit {
        let exit = match self.minder.wait().await {
            Ok(status) => Exit::of_minder(status),
            Err(_) => Exit::Code(-1),
        };
        self.sweep().await;
        exit
    }

    /// Ends the engine: SIGTERM, repeated every second, and SIGKILL for whoever is left after `patience`. Returns when
    /// no process of the tree is left. Drain first: an engine's own patience is not to be relied on (E8).
    pub async fn stop(&mut self, patience: Duration) -> Exit {
        if let Some(control) = &mut self.control {
            // A pipe that is closed has nobody behind it: the minder is gone, which the wait will show.
            drop(control.write_all(format!("stop {}\n", patience.as_millis()).as_bytes()).await);
        }
        let in_time = patience + LEFTOVER_PATIENCE + MINDER_GRACE;
        match tokio::time::timeout(in_time, self.exited()).await {
            Ok(exit) => exit,
            Err(_) => {
                drop(self.minder.start_kill());
                self.exited().await
            }
        }
    }

    /// A minder that was itself killed leaves the tree behind: it is found by its mark.
    async fn sweep(&self) {
        for _ in 0..SWEEPS_MAX {
            let strays = tree::with_variable(INSTANCE_VARIABLE, &self.instance);
            if strays.is_empty() {
                return;
            }
            tracing::warn!(instance = %self.instance, count = strays.len(), "killing stray processes of an engine");
            tree::signal(&strays, Signal::KILL);
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }
}

/// The log twice, and its length.
fn open_log(path: &Path) -> io::Result<(File, File, u64)> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let out = OpenOptions::new().create(true).append(true).open(path)?;
    let err = out.try_clone()?;
    let length = out.metadata()?.len();
    Ok((out, err, length))
}

/// The last `bytes_max` bytes of a log, from the start of a line on.
///
/// # Errors
/// When the file cannot be read.
pub fn log_tail(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(bytes_max).read_to_end(&mut tail)?;
    let text = String::from_utf8_lossy(&tail);
    let is_whole = start == 0;
    Ok(match text.split_once('\n') {
        Some((_, rest)) if !is_whole => rest.to_owned(),
        _ => text.into_owned(),
    })
}
