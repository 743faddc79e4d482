//! A node in a folder of its own, and engines that are shell scripts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_node::nvml::scripted::Scripted;
use tidegate_node::{
    Command, Driver, GuardChoice, Happened, InstanceId, InstanceReport, InstanceState, LocalNode, LocalNodeSettings,
    Node, NodeError, OnExit, StartOrder,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// Patience that no test uses up.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Patience that is over at once, after one SIGTERM.
pub(crate) const SHORT: Duration = Duration::from_millis(50);

pub(crate) fn id(text: &str) -> InstanceId {
    InstanceId::new(text).unwrap()
}

/// A state folder and what is opened from it.
pub(crate) struct House {
    pub(crate) folder: TempDir,
    pub(crate) settings: LocalNodeSettings,
}

impl House {
    /// Without GPUs.
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let minder = vec![env!("CARGO_BIN_EXE_node-minder").into()];
        let mut settings = LocalNodeSettings::new("node-1", folder.path().join("state"), minder);
        settings.driver = Driver::None;
        // What a test that failed leaves behind goes away by itself.
        settings.orphan_after = Some(Duration::from_secs(120));
        Self { folder, settings }
    }

    pub(crate) fn guarded(guard: GuardChoice) -> Self {
        let mut house = Self::new();
        house.settings.guard = guard;
        house
    }

    /// With the GPUs of a scripted driver.
    pub(crate) fn with(driver: Scripted) -> (Self, Arc<Scripted>) {
        let driver = Arc::new(driver);
        let mut house = Self::new();
        house.settings.driver = Driver::Given(Arc::clone(&driver) as Arc<_>);
        (house, driver)
    }

    pub(crate) async fn open(&self) -> LocalNode {
        LocalNode::open(self.settings.clone()).await.unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn instance(&self, id: &str) -> PathBuf {
        self.settings.folder.join("instances").join(id)
    }
}

/// An order for a shell script.
pub(crate) fn order(instance: &str, script: &str) -> StartOrder {
    StartOrder {
        engine: None,
        instance: id(instance),
        deployment: "small".to_owned(),
        replica: 0,
        revision: 7,
        command: Command {
            program: "sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: BTreeMap::new(),
        },
        model: None,
        gpus: Vec::new(),
        gpu_free_bytes: None,
        numa: None,
        memory_max_bytes: None,
        cpu_milli: None,
        ports: (24_000, 29_999),
        host: [127, 0, 0, 1].into(),
        marks: Vec::new(),
    }
}

/// A named pipe that every process of a tree holds open: it ends when the last of them does.
pub(crate) struct Alive {
    path: PathBuf,
    pipe: pipe::Receiver,
}

impl Alive {
    pub(crate) fn new(house: &House, name: &str) -> Self {
        let path = house.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Self { path, pipe }
    }

    /// A script all of whose processes hold the pipe. What it writes to 3 is what [`Alive::word`] reads.
    pub(crate) fn script(&self, script: &str) -> String {
        format!("exec 3>{}\n{script}", self.path.display())
    }

    /// The next line.
    pub(crate) async fn word(&mut self) -> String {
        let mut word = Vec::new();
        loop {
            match self.pipe.read_u8().await.unwrap() {
                b'\n' => return String::from_utf8(word).unwrap(),
                byte => word.push(byte),
            }
        }
    }

    /// Starts it, and waits for its first line.
    pub(crate) async fn start(&mut self, node: &LocalNode, mut order: StartOrder) -> (InstanceReport, String) {
        order.command.args[1] = self.script(&order.command.args[1]);
        let report = node.start(1, order).await.unwrap();
        (report, self.word().await)
    }

    /// Returns when no process of the tree is left.
    pub(crate) async fn ended(mut self) {
        let mut rest = Vec::new();
        self.pipe.read_to_end(&mut rest).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }
}

pub(crate) async fn report(node: &LocalNode, id: &InstanceId) -> InstanceReport {
    node.instances().await.unwrap().into_iter().find(|report| report.instance == *id).unwrap()
}

/// Waits for the end of an instance, by its events.
pub(crate) async fn ended(node: &LocalNode, id: &InstanceId) -> InstanceReport {
    wait_for(node, |what| matches!(what, Happened::Ended { instance, .. } if instance == id)).await;
    let report = report(node, id).await;
    assert!(report.state.has_ended());
    report
}

/// Waits for something to happen, now or earlier.
pub(crate) async fn wait_for(node: &LocalNode, is_it: impl Fn(&Happened) -> bool) {
    let mut after = 0;
    loop {
        for event in node.events(after).await.unwrap() {
            if is_it(&event.what) {
                return;
            }
            after = event.number;
        }
    }
}

/// Stops an instance at once and waits until it has ended.
pub(crate) async fn kill(node: &LocalNode, id: &InstanceId) -> InstanceReport {
    node.stop(1, id, Duration::ZERO).await.unwrap();
    ended(node, id).await
}

pub(crate) fn pid(report: &InstanceReport) -> u32 {
    match report.state {
        InstanceState::Running { pid, .. } => pid,
        InstanceState::Stopping | InstanceState::Ended { .. } => panic!("{report:?}"),
    }
}

/// Sends a signal to a process that a test knows.
pub(crate) fn signal(name: &str, pid: impl ToString) {
    assert!(std::process::Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

pub(crate) fn code(error: &NodeError) -> &'static str {
    error.code()
}

/// Ends whatever still runs, at the end of a test.
pub(crate) async fn close(node: LocalNode) {
    node.close(OnExit::Stop(Duration::ZERO)).await;
}
