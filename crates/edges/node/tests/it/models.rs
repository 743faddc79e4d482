//! Models that an engine is given, and how long they are held.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_node::{
    Happened, HeldModel, InstanceId, Keep, ModelAt, ModelFile, ModelHands, ModelOrder, ModelReport, ModelState,
    ModelUse, Node, NodeError, OnExit, StartOrder,
};
use tokio::sync::Notify;

use crate::house::{Alive, House, close, code, ended, id, kill, order, wait_for};

/// A cache that holds what it is told.
#[derive(Debug, Default)]
struct Cache {
    root: PathBuf,
    models: Mutex<BTreeMap<String, ModelState>>,
    held: Arc<AtomicUsize>,
    kept: Mutex<Vec<Keep>>,
    changed: Notify,
}

#[derive(Debug)]
struct Hold(Arc<AtomicUsize>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Cache {
    fn set(&self, path: &str, state: ModelState) {
        self.models.lock().insert(path.to_owned(), state);
        self.changed.notify_one();
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ModelHands for Cache {
    async fn models(&self) -> Result<Vec<ModelReport>, NodeError> {
        let report = |(path, state): (&String, &ModelState)| ModelReport {
            path: path.clone(),
            digest: None,
            state: state.clone(),
        };
        Ok(self.models.lock().iter().map(report).collect())
    }

    async fn have(&self, order: ModelOrder) -> Result<ModelReport, NodeError> {
        let state = ModelState::Fetching { bytes: 0, total: None, rate: None, eta_seconds: None };
        self.set(&order.path, state.clone());
        Ok(ModelReport { path: order.path, digest: None, state })
    }

    async fn keep(&self, kept: Vec<Keep>) -> Result<(), NodeError> {
        *self.kept.lock() = kept;
        Ok(())
    }

    async fn hold(&self, order: ModelOrder, _: &InstanceId) -> Result<HeldModel, NodeError> {
        match self.models.lock().get(&order.path) {
            Some(ModelState::Verified { .. }) => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let held = Box::new(Hold(Arc::clone(&self.held)));
                Ok(HeldModel { path: self.root.join("sha256-AAAA"), digest: Some("AAAA".to_owned()), held })
            }
            _ => Err(NodeError::UnknownModel { model: order.path, why: "it is not verified".to_owned() }),
        }
    }

    async fn compiled(&self, order: &StartOrder, model: &HeldModel) -> Result<PathBuf, NodeError> {
        Ok(self.root.join(format!("compiled-{}-{}", order.deployment, model.digest.as_deref().unwrap_or_default())))
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn house() -> (House, Arc<Cache>) {
    let mut house = House::new();
    let cache = Arc::new(Cache { root: house.path().to_owned(), ..Cache::default() });
    fs::create_dir(house.path().join("sha256-AAAA")).unwrap();
    fs::write(house.path().join("sha256-AAAA/m-Q4.gguf"), "").unwrap();
    house.settings.models = Some(Arc::clone(&cache) as Arc<_>);
    (house, cache)
}

fn stored(instance: &str, script: &str, file: ModelFile) -> StartOrder {
    let at = ModelAt::Stored { path: "small/1".to_owned(), digest: None };
    StartOrder { model: Some(ModelUse { at, file }), ..order(instance, script) }
}

#[tokio::test]
async fn no_engine_is_started_before_its_model_is_verified_and_the_model_is_held_as_long_as_it_runs() {
    let (house, cache) = house();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let wish = |name: &str, file| stored(name, "echo {{model}} >&3\necho {{compiled}} >&3\nexec sleep 1000", file);
    let refused = node.start(1, wish("a-0-g1", ModelFile::Folder)).await.unwrap_err();
    assert_eq!(code(&refused), "unknown_model");
    cache.set("small/1", ModelState::Verified { bytes: 5 });
    let folder = house.path().join("sha256-AAAA").display().to_string();
    let (_, word) = alive.start(&node, wish("a-0-g1", ModelFile::Folder)).await;
    assert_eq!(word, folder);
    assert_eq!(alive.word().await, house.path().join("compiled-small-AAAA").display().to_string());
    let (_, word) = alive.start(&node, wish("b-0-g1", ModelFile::Gguf)).await;
    assert_eq!(word, format!("{folder}/m-Q4.gguf"));
    assert_eq!(cache.held(), 2);
    // A restart holds what runs, again.
    node.close(OnExit::Leave).await;
    drop(node);
    assert_eq!(cache.held(), 0);
    let node = house.open().await;
    assert_eq!(cache.held(), 2);
    kill(&node, &id("a-0-g1")).await;
    assert_eq!(cache.held(), 1);
    kill(&node, &id("b-0-g1")).await;
    assert_eq!(cache.held(), 0);
    close(node).await;
}

#[tokio::test]
async fn a_start_that_is_refused_holds_nothing() {
    let (house, cache) = house();
    let node = house.open().await;
    cache.set("small/1", ModelState::Verified { bytes: 5 });
    let mut wish = stored("a-0-g1", "exit 0", ModelFile::Folder);
    wish.gpus = vec![9];
    assert_eq!(code(&node.start(1, wish).await.unwrap_err()), "bad_request");
    assert_eq!(cache.held(), 0);
    node.start(1, stored("b-0-g1", "exit 0", ModelFile::Folder)).await.unwrap();
    ended(&node, &id("b-0-g1")).await;
    assert_eq!(cache.held(), 0);
    close(node).await;
}

#[tokio::test]
async fn a_model_that_came_or_failed_is_an_event() {
    let (house, cache) = house();
    let node = house.open().await;
    let order = ModelOrder { path: "small/1".to_owned(), digest: None };
    let report = node.have(1, order).await.unwrap();
    assert!(matches!(report.state, ModelState::Fetching { .. }));
    let is = |wanted: fn(&ModelState) -> bool| move |what: &Happened| matches!(what, Happened::Model { report } if wanted(&report.state));
    wait_for(&node, is(|state| matches!(state, ModelState::Fetching { .. }))).await;
    cache.set("small/1", ModelState::Verified { bytes: 5 });
    wait_for(&node, is(|state| matches!(state, ModelState::Verified { .. }))).await;
    assert_eq!(node.models().await.unwrap().len(), 1);
    let kept = Keep { path: "small/1".to_owned(), digest: None, next_use: None, why: "night".to_owned() };
    node.keep(1, vec![kept.clone()]).await.unwrap();
    assert_eq!(*cache.kept.lock(), [kept]);
    close(node).await;
}
