//! The model cache of this process, as its nodes use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_engine::launch::GpuDriver;
use tidegate_node::{
    Happened, HeldModel, InstanceId, Keep, ModelHands, ModelOrder, ModelReport, ModelState, Node, NodeError, StartOrder,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::model::{CompiledFor, ModelFolder, Models};

/// The cache, and what is on its way into it.
#[derive(Debug)]
pub(crate) struct CacheHands {
    shared: Arc<Shared>,
    /// Where what engines compile is laid out.
    folder: PathBuf,
    /// The GPUs here and their driver. Compiled code is kept only where they are known.
    driver: Option<GpuDriver>,
    /// Models on their way; they end with this.
    coming: Mutex<JoinSet<()>>,
    /// What engines compile anew, until they serve.
    compiling: Mutex<BTreeMap<InstanceId, Compiling>>,
}

/// What an engine compiles that nobody has compiled before.
#[derive(Debug)]
struct Compiling {
    model: PathBuf,
    of: CompiledFor,
    folder: PathBuf,
}

/// The phase of a boot from which on nothing more is compiled.
const SERVES: &str = "serve";

#[derive(Debug)]
struct Shared {
    models: Arc<Models>,
    flights: Mutex<BTreeMap<ModelOrder, Flight>>,
    changed: Notify,
}

#[derive(Debug)]
enum Flight {
    Coming(ModelState),
    /// Held, so that it is not evicted before its engine has it.
    Here {
        _held: Arc<ModelFolder>,
        bytes: u64,
    },
    Failed(ModelState),
}

impl CacheHands {
    pub(crate) fn new(models: Arc<Models>, folder: PathBuf, driver: Option<GpuDriver>) -> Self {
        let shared = Shared { models, flights: Mutex::default(), changed: Notify::new() };
        Self { shared: Arc::new(shared), folder, driver, coming: Mutex::default(), compiling: Mutex::default() }
    }

    fn report(order: &ModelOrder, flight: &Flight) -> ModelReport {
        let state = match flight {
            Flight::Coming(state) | Flight::Failed(state) => state.clone(),
            Flight::Here { bytes, .. } => ModelState::Verified { bytes: *bytes },
        };
        ModelReport { path: order.path.clone(), digest: order.digest.clone(), state }
    }

    /// Saves what the engines of a node compiled as soon as they serve, and clears what they leave, for ever.
    pub(crate) async fn follow(self: Arc<Self>, node: Arc<dyn Node>) {
        let mut after = 0;
        loop {
            let events = match node.events(after).await {
                Ok(events) => events,
                Err(error) => {
                    tracing::error!(%error, "compiled code of engines on this node is not saved any more");
                    return;
                }
            };
            for event in events {
                after = event.number;
                match event.what {
                    Happened::Booted { instance, phase } if phase == SERVES => self.save(&instance).await,
                    Happened::Ended { instance, .. } => self.clear(&instance),
                    _ => {}
                }
            }
        }
    }

    async fn save(&self, instance: &InstanceId) {
        let Some(Compiling { model, of, folder }) = self.compiling.lock().remove(instance) else { return };
        if let Err(why) = self.shared.models.keep_compiled(&model, &of, &folder).await {
            tracing::warn!(%instance, why, "compiled code is not saved: the next load compiles anew");
        }
    }

    fn clear(&self, instance: &InstanceId) {
        self.compiling.lock().remove(instance);
        let folder = self.folder.join(instance.as_str());
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, folder = %folder.display(), "cannot remove what an engine has compiled");
            }
            Ok(()) | Err(_) => {}
        }
    }

    fn compiled_for(&self, order: &StartOrder) -> Option<CompiledFor> {
        let driver = self.driver.as_ref()?;
        let version = order.engine.as_ref()?;
        let tensor_parallel = u32::try_from(order.gpus.len().max(1)).ok()?;
        Some(CompiledFor {
            engine: "vllm",
            engine_version: version.as_str().into(),
            driver: Arc::clone(&driver.version),
            gpu: Arc::clone(&driver.gpu),
            tensor_parallel,
            flags: order.command.args.clone(),
        })
    }
}

impl Shared {
    async fn bring(self: Arc<Self>, order: ModelOrder) {
        let bytes = std::sync::atomic::AtomicU64::new(0);
        let show = |state: ModelState| {
            if let ModelState::Fetching { total: Some(total), .. } = state {
                bytes.store(total, std::sync::atomic::Ordering::Relaxed);
            }
            self.flights.lock().insert(order.clone(), Flight::Coming(state));
        };
        let brought = self.models.had(&order.path, order.digest.as_deref(), &|_| (), &show).await;
        let flight = match brought {
            Ok(folder) => Flight::Here { _held: Arc::new(folder), bytes: bytes.into_inner() },
            Err(why) => Flight::Failed(why),
        };
        self.flights.lock().insert(order, flight);
        self.changed.notify_one();
    }
}

#[async_trait]
impl ModelHands for CacheHands {
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        Ok(self.shared.flights.lock().iter().map(|(order, flight)| Self::report(order, flight)).collect())
    }

    async fn have(&self, order: ModelOrder) -> Result<ModelReport, NodeError> {
        let mut flights = self.shared.flights.lock();
        let report = flights.get(&order).map(|flight| Self::report(&order, flight));
        if let Some(report) = report {
            // A failure is told once; whoever asks again wants another try.
            if matches!(flights.get(&order), Some(Flight::Failed(_))) {
                flights.remove(&order);
            }
            return Ok(report);
        }
        let flight = Flight::Coming(ModelState::Fetching { bytes: 0, total: None, rate: None, eta_seconds: None });
        let report = Self::report(&order, &flight);
        flights.insert(order.clone(), flight);
        drop(flights);
        let mut coming = self.coming.lock();
        while coming.try_join_next().is_some() {}
        coming.spawn(Arc::clone(&self.shared).bring(order));
        Ok(report)
    }

    async fn keep(&self, kept: Vec<Keep>) -> Result<(), NodeError> {
        let is_kept = |order: &ModelOrder| kept.iter().any(|keep| keep.path == order.path);
        self.shared.flights.lock().retain(|order, flight| !matches!(flight, Flight::Here { .. }) || is_kept(order));
        Ok(())
    }

    async fn hold(&self, order: ModelOrder, _instance: &InstanceId) -> Result<HeldModel, NodeError> {
        let folder = self.shared.models.folder(&order.path, order.digest.as_deref(), &|_| {}).await;
        let folder = folder.map_err(|why| NodeError::UnknownModel { model: order.path.clone(), why })?;
        Ok(HeldModel { path: folder.path, digest: order.digest, held: folder.hold })
    }

    async fn compiled(&self, order: &StartOrder, model: &HeldModel) -> Result<PathBuf, NodeError> {
        let target = self.folder.join(order.instance.as_str());
        if let Some(of) = self.compiled_for(order) {
            let found = self.shared.models.lay_out_compiled(&model.path, &of, &target).await;
            if let Err(why) = &found {
                tracing::warn!(why, "compiled code is not laid out: the engine compiles anew");
            }
            if !found.unwrap_or(false) {
                let compiling = Compiling { model: model.path.clone(), of, folder: target.clone() };
                self.compiling.lock().insert(order.instance.clone(), compiling);
            }
        }
        make(&target)?;
        Ok(target)
    }

    async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

fn make(folder: &Path) -> Result<(), NodeError> {
    std::fs::create_dir_all(folder)
        .map_err(|error| NodeError::Io { what: folder.display().to_string(), why: error.to_string() })
}
