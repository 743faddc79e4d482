//! The launcher over processes conforms, too: a real node, its minder, and the fake engine as a program.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tempfile::TempDir;
use tidegate_config::Site;
use tidegate_controller::launcher::processes::{Member, Members, Processes};
use tidegate_controller::launcher::{Blueprint, Launcher, Order};
use tidegate_core::DeploymentName;
use tidegate_engine::Dialect;
use tidegate_node::{Driver, InstanceId, InstanceState, LocalNode, LocalNodeSettings, Node, OnExit};
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};
use tidegate_testkit::{fake_engine_program, workspace_program};

use crate::conformance::conforms;
use crate::pods::Subject;

struct Here {
    site: Arc<Site>,
    node: Arc<LocalNode>,
    launcher: Processes,
    number: AtomicU64,
    _folder: TempDir,
}

impl Here {
    async fn new() -> Self {
        let (engine, minder) = tokio::task::spawn_blocking(|| {
            (fake_engine_program().unwrap(), workspace_program("tidegate-node", "node-minder").unwrap())
        })
        .await
        .unwrap();
        let site = crate::stage::site(&format!(
            "kind: Node\nmetadata: {{name: n1}}\nspec: {{facts: document, gpus: {{count: 4}}, hostMemory: 64GB}}\n---\n\
             kind: Model\nmetadata: {{name: m}}\nspec: {{engine: vllm, source: {{local: /tmp}}}}\n---\n\
             kind: Deployment\nmetadata: {{name: d}}\nspec: {{model: m, gpus: {{required: 1, min: 1, preferred: 1}}, launch: {{replicas: 1, command: ['{}', serve]}}}}\n---\n\
             kind: Alias\nmetadata: {{name: a}}\nspec: {{targets: [{{deployment: d}}]}}\n",
            engine.display()
        ));
        let folder = TempDir::new().unwrap();
        let mut settings = LocalNodeSettings::new("n1", folder.path().join("state"), vec![minder.into_os_string()]);
        settings.driver = Driver::None;
        settings.document = site.nodes.get("n1").cloned();
        let node = Arc::new(LocalNode::open(settings).await.unwrap());
        let member = Member { node: Arc::clone(&node) as Arc<_>, host: [127, 0, 0, 1].into() };
        let launcher = Processes::new(Arc::clone(&site), Members::from([("n1".into(), member)]));
        Self { site, node, launcher, number: AtomicU64::new(0), _folder: folder }
    }
}

#[async_trait]
impl Subject for Here {
    fn launcher(&self) -> &dyn Launcher {
        &self.launcher
    }

    fn fresh(&self) -> Order {
        let name = DeploymentName::from("d");
        let (deployment, number) = (&self.site.deployments[&name], self.number.fetch_add(1, Ordering::Relaxed));
        let part = Part { node: "n1".into(), groups: vec![vec![0]], numa: None, mig: None };
        Order {
            is_first: false,
            instance: InstanceId::new(&format!("d-0-g{number}")).unwrap(),
            key: ReplicaKey { deployment: name.clone(), index: 0 },
            seat: Seat { parts: vec![part] },
            blueprint: Arc::new(Blueprint {
                deployment: deployment.clone(),
                engine: None,
                model: self.site.models[&deployment.model].source.clone(),
                dialect: Dialect::Vllm,
                revision: Need::of(&self.site, &name).unwrap().revision,
                may_sleep: false,
                name,
            }),
        }
    }

    async fn break_it(&self, instance: &InstanceId) {
        let reports = self.node.instances().await.unwrap();
        let report = reports.iter().find(|report| report.instance == *instance).unwrap();
        let InstanceState::Running { pid, .. } = report.state else { panic!("{report:?}") };
        assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_launcher_over_processes_conforms() {
    let here = Here::new().await;
    conforms(&here).await;
    let Here { node, launcher, .. } = here;
    drop(launcher);
    Arc::into_inner(node).unwrap().close(OnExit::Stop(std::time::Duration::from_secs(5))).await;
}
