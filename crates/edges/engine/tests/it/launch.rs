//! Processes: started, stopped, and never left behind.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_engine::launch::{CommandLine, Exit, LaunchError, Process, boot_log, log_tail};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

fn minder() -> Vec<OsString> {
    vec![env!("CARGO_BIN_EXE_engine-minder").into()]
}

fn shell(script: &str) -> CommandLine {
    CommandLine { program: "sh".into(), args: vec!["-c".into(), script.into()], env: [].into() }
}

/// A named pipe that every process of a tree holds open: it ends when the last of them does.
struct Alive {
    folder: TempDir,
    pipe: pipe::Receiver,
}

impl Alive {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("alive");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Self { folder, pipe }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a script whose processes all hold the pipe, and waits until `ready` was written to it.
    async fn start(&mut self, instance: &str, script: &str) -> Process {
        let script = format!("exec 3>{}\n{script}", self.path().join("alive").display());
        let process = Process::start(&minder(), instance, &shell(&script), &self.path().join("log")).unwrap();
        let mut word = [0; 6];
        self.pipe.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"ready\n");
        process
    }

    /// Returns when no process of the tree is left.
    async fn ended(mut self) {
        let mut rest = Vec::new();
        self.pipe.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

#[tokio::test]
async fn a_stop_ends_the_engine_and_its_children() {
    let mut alive = Alive::new();
    let script = "trap 'exit 7' TERM\nsleep 1000 & sleep 1000 & echo ready >&3\nwait";
    let mut process = alive.start("stop-1", script).await;
    assert_eq!(process.try_exit(), None);
    assert!(process.pid().is_some());
    assert_eq!(process.stop(Duration::from_secs(20)).await, Exit::Code(7), "its own exit code, after SIGTERM");
    alive.ended().await;
}

#[tokio::test]
async fn an_engine_that_ignores_sigterm_is_killed_when_patience_ends() {
    let mut alive = Alive::new();
    let script =
        "trap '' TERM\n(trap '' TERM; while :; do sleep 1000; done) & echo ready >&3\nwhile :; do sleep 1000; done";
    let mut process = alive.start("stop-2", script).await;
    assert_eq!(process.stop(Duration::from_millis(50)).await, Exit::Signal(9));
    alive.ended().await;
}

#[tokio::test]
async fn children_that_left_the_process_group_are_found() {
    let mut alive = Alive::new();
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' & echo ready >&3\nwait";
    let mut process = alive.start("stop-3", script).await;
    process.stop(Duration::from_millis(50)).await;
    alive.ended().await;
}

#[tokio::test]
async fn children_of_an_engine_whose_front_process_died_are_ended() {
    let mut alive = Alive::new();
    let mut process = alive.start("front-1", "setsid sleep 1000 & echo ready >&3\nexit 3").await;
    assert_eq!(process.exited().await, Exit::Code(3));
    alive.ended().await;
}

#[tokio::test]
async fn an_engine_does_not_outlive_us() {
    let mut alive = Alive::new();
    let process = alive.start("orphan-1", "sleep 1000 & echo ready >&3\nwait").await;
    // Dropping closes the pipe to the minder, as our death does, however it comes.
    drop(process);
    alive.ended().await;
}

#[tokio::test]
async fn an_engine_does_not_outlive_its_minder() {
    let mut alive = Alive::new();
    let mut process = alive.start("minder-1", "setsid sleep 1000 & echo ready >&3\nwait").await;
    let minder = process.pid().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-KILL", &minder]).status().unwrap().success());
    assert_eq!(process.exited().await, Exit::Signal(9));
    alive.ended().await;
}

#[tokio::test]
async fn a_signal_to_the_minder_ends_the_engine() {
    let mut alive = Alive::new();
    let mut process = alive.start("minder-2", "trap 'exit 5' TERM\nsleep 1000 & echo ready >&3\nwait").await;
    let minder = process.pid().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &minder]).status().unwrap().success());
    assert_eq!(process.exited().await, Exit::Code(5));
    alive.ended().await;
}

#[tokio::test]
async fn output_goes_to_the_log_and_secrets_do_not_go_to_the_engine() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("logs/engine.log");
    let mut command = shell("echo out; echo err >&2; env | grep -c '^TIDEGATE_' ; echo $COLOUR $TIDEGATE_INSTANCE");
    command.env.insert("COLOUR".into(), "blue".into());
    let mut process = Process::start(&minder(), "log-1", &command, &log).unwrap();
    assert_eq!(process.exited().await, Exit::Code(0));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "out\nerr\n1\nblue log-1\n");
    assert_eq!(log_tail(&log, 1 << 20).unwrap(), "out\nerr\n1\nblue log-1\n");
    assert_eq!(log_tail(&log, 13).unwrap(), "blue log-1\n", "from the start of a line on");
    // A second start appends.
    let mut second = Process::start(&minder(), "log-2", &shell("echo more"), &log).unwrap();
    second.exited().await;
    assert_eq!(boot_log(&log, second.log_start()).unwrap(), "more\n");
    assert!(std::fs::read_to_string(&log).unwrap().ends_with("blue log-1\nmore\n"));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_exit_with_the_reason_in_the_log() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let command = CommandLine { program: "no-such-engine".into(), args: Vec::new(), env: [].into() };
    let mut process = Process::start(&minder(), "none-1", &command, &log).unwrap();
    assert_eq!(process.exited().await, Exit::Code(127));
    assert!(std::fs::read_to_string(&log).unwrap().starts_with("engine not started: "));
    let error = Process::start(&["no-such-minder".into()], "none-2", &command, &log).unwrap_err();
    assert!(matches!(error, LaunchError::Minder { .. }), "{error}");
    let error = Process::start(&minder(), "none-3", &command, folder.path()).unwrap_err();
    assert!(matches!(error, LaunchError::Log { .. }), "{error}");
}
