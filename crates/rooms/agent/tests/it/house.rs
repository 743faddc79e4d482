//! A site's certificates, a node in a folder of its own, and its agent on a free port.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tempfile::TempDir;
use tidegate_agent::Agent;
use tidegate_node::tls::{ClientTls, Party, ServerTls, TlsFiles};
use tidegate_node::{
    Command, Driver, HeldModel, InstanceId, Keep, LocalNode, LocalNodeSettings, ModelHands, ModelOrder, ModelReport,
    ModelState, Node, NodeError, OnExit, RemoteNode, StartOrder,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

pub(crate) const SITE: &str = "berlin";
pub(crate) const NODE: &str = "node-1";

/// A site's authority and what it has signed, in a folder.
pub(crate) struct Pki {
    pub(crate) folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
        let pki = Self { folder, authority };
        pki.issue("controller", &controller());
        pki.issue(NODE, &node(NODE));
        pki
    }

    pub(crate) fn issue(&self, stem: &str, party: &Party) -> TlsFiles {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = vec![SanType::URI(party.uri().unwrap().try_into().unwrap())];
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let files = TlsFiles::in_folder(&self.folder, stem);
        fs::write(&files.cert, certificate.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    pub(crate) fn files(&self, stem: &str) -> TlsFiles {
        TlsFiles::in_folder(&self.folder, stem)
    }
}

pub(crate) fn controller() -> Party {
    Party::Controller { site: SITE.into() }
}

pub(crate) fn node(name: &str) -> Party {
    Party::Node { site: SITE.into(), name: name.into() }
}

/// A model cache of one model, which is here as soon as it is asked for twice.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    asked: parking_lot::Mutex<u32>,
    pub(crate) kept: parking_lot::Mutex<Vec<Keep>>,
    changed: Notify,
}

impl Cache {
    fn report(order: &ModelOrder, state: ModelState) -> ModelReport {
        ModelReport { path: order.path.clone(), digest: order.digest.clone(), state }
    }
}

#[async_trait]
impl ModelHands for Cache {
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        let order = ModelOrder { path: "small/1".to_owned(), digest: None };
        let is_here = *self.asked.lock() > 1;
        Ok(is_here.then(|| Self::report(&order, ModelState::Verified { bytes: 7 })).into_iter().collect())
    }

    async fn have(&self, order: ModelOrder) -> Result<ModelReport, NodeError> {
        if order.path != "small/1" {
            return Err(NodeError::UnknownModel { model: order.path, why: "not in the store".to_owned() });
        }
        let mut asked = self.asked.lock();
        *asked += 1;
        self.changed.notify_one();
        let coming = ModelState::Fetching { bytes: 3, total: Some(7), rate: Some(1), eta_seconds: Some(4) };
        Ok(Self::report(&order, if *asked > 1 { ModelState::Verified { bytes: 7 } } else { coming }))
    }

    async fn keep(&self, kept: Vec<Keep>) -> Result<(), NodeError> {
        *self.kept.lock() = kept;
        Ok(())
    }

    async fn hold(&self, order: ModelOrder, _instance: &InstanceId) -> Result<HeldModel, NodeError> {
        Err(NodeError::UnknownModel { model: order.path, why: "not verified".to_owned() })
    }

    async fn compiled(&self, _order: &StartOrder, _model: &HeldModel) -> Result<PathBuf, NodeError> {
        Err(NodeError::BadRequest { why: "nothing is compiled here".to_owned() })
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A state folder and a site's certificates.
pub(crate) struct House {
    pub(crate) folder: TempDir,
    pub(crate) pki: Pki,
    pub(crate) cache: Arc<Cache>,
}

/// An agent that runs.
pub(crate) struct Running {
    pub(crate) local: Arc<LocalNode>,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl House {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let pki = Pki::new(folder.path().join("pki"));
        Self { folder, pki, cache: Arc::default() }
    }

    pub(crate) async fn open(&self, state: &str) -> Arc<LocalNode> {
        let minder = vec![env!("CARGO_BIN_EXE_agent-minder").into()];
        let mut settings = LocalNodeSettings::new(NODE, self.path().join(state), minder);
        settings.driver = Driver::None;
        settings.models = Some(Arc::clone(&self.cache) as Arc<_>);
        // What a test that failed leaves behind goes away by itself.
        settings.orphan_after = Some(Duration::from_secs(120));
        Arc::new(LocalNode::open(settings).await.unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn server_tls(&self) -> ServerTls {
        ServerTls::new(self.pki.files(NODE), SITE, NODE).unwrap()
    }

    pub(crate) fn client_tls(&self) -> ClientTls {
        ClientTls::new(self.pki.files("controller"), SITE, NODE).unwrap()
    }

    /// An agent at a free port.
    pub(crate) async fn run(&self) -> Running {
        self.run_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn run_at(&self, address: SocketAddr) -> Running {
        let local = self.open("state").await;
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let agent = Agent::new(Arc::<LocalNode>::clone(&local), self.server_tls());
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.serve(listener, async { drop(stopped.await) }));
        Running { local, address, stop: Some(stop), tasks }
    }
}

impl Running {
    pub(crate) fn remote(&self, house: &House) -> RemoteNode {
        RemoteNode::new(NODE, &self.address.to_string(), house.client_tls())
    }

    /// Ends the agent; its engines go on.
    pub(crate) async fn end(mut self) {
        drop(self.stop.take());
        while self.tasks.join_next().await.is_some() {}
        self.local.close(OnExit::Leave).await;
    }

    /// Ends the agent and its engines.
    pub(crate) async fn end_all(mut self) {
        drop(self.stop.take());
        while self.tasks.join_next().await.is_some() {}
        self.local.close(OnExit::Stop(Duration::ZERO)).await;
    }
}

pub(crate) fn id(text: &str) -> InstanceId {
    InstanceId::new(text).unwrap()
}

/// An order for a shell script.
pub(crate) fn order(instance: &str, script: &str) -> StartOrder {
    StartOrder {
        engine: None,
        instance: id(instance),
        deployment: "small".to_owned(),
        replica: 0,
        revision: u64::MAX,
        command: Command {
            program: "sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: [("WORD".to_owned(), "ä\n\"".to_owned())].into(),
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

/// Waits for the end of an instance, by events.
pub(crate) async fn ended(node: &dyn Node, id: &InstanceId) {
    let mut after = 0;
    loop {
        for event in node.events(after).await.unwrap() {
            if matches!(&event.what, tidegate_node::Happened::Ended { instance, .. } if instance == id) {
                return;
            }
            after = event.number;
        }
    }
}
