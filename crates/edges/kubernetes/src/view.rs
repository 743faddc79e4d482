//! What is there, kept up to date by watches and listed anew now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::access::Cluster;
use crate::fault::Fault;
use crate::names::{INSTANCE, MANAGED_BY, MANAGER};
use crate::pods::{Object, PodFacts, is_lost};
use crate::seen::{ReplicaSeen, judge};
use crate::write::group_resource;

/// Everything is listed anew after so long, whatever the watches say: what they lost is then found.
pub const RESYNC: Duration = Duration::from_secs(60);
/// How long a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Waits between tries, the last one for ever.
const BACKOFF: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(3)];

/// A watch's kinds.
const KINDS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    Deployments = 0,
    Groups = 1,
    Pods = 2,
    Nodes = 3,
}

#[derive(Clone, Debug, Default)]
struct World {
    deployments: BTreeMap<String, Object>,
    groups: BTreeMap<String, Object>,
    pods: BTreeMap<String, PodFacts>,
    nodes: BTreeMap<String, bool>,
    /// Per feed: not listed yet, or why it is behind.
    behind: [Option<Fault>; KINDS],
    /// Counts changes.
    number: u64,
}

impl World {
    fn new() -> Self {
        let not_yet = || Some(Fault::Unreachable { why: "not listed yet".into() });
        Self { behind: [not_yet(), not_yet(), not_yet(), not_yet()], ..Self::default() }
    }
}

/// The replicas in a namespace, as of a moment ago.
#[derive(Clone, Debug)]
pub struct View {
    world: watch::Receiver<World>,
}

impl View {
    /// A view of the cluster's namespace, and the future that keeps it up to date.
    pub fn of(cluster: Cluster) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (out, world) = watch::channel(World::new());
        let out = Arc::new(out);
        let following = async move {
            tokio::join!(
                follow(cluster.api::<Deployment>(), ours(), Feed::Deployments, Arc::clone(&out), Deployments),
                follow_groups(cluster.clone(), Arc::clone(&out)),
                follow(
                    cluster.api::<Pod>(),
                    watcher::Config::default().labels(INSTANCE),
                    Feed::Pods,
                    Arc::clone(&out),
                    Pods
                ),
                follow(Api::<Node>::all(cluster.client().clone()), watcher::Config::default(), Feed::Nodes, out, Nodes),
            );
        };
        (Self { world }, following)
    }

    /// Everything of ours.
    ///
    /// # Errors
    /// When a part of it is not known to be up to date.
    pub fn now(&self) -> Result<Vec<ReplicaSeen>, Fault> {
        let world = self.world.borrow();
        if let Some(fault) = world.behind.iter().flatten().next() {
            return Err(fault.clone());
        }
        let lost: BTreeSet<String> =
            world.nodes.iter().filter(|(_, lost)| **lost).map(|(name, _)| name.clone()).collect();
        let objects = world.deployments.values().chain(world.groups.values());
        Ok(objects.map(|object| judge(object, &pods_of(&world, object), &lost)).collect())
    }

    /// Waits until something was said of an instance that satisfies `found`, at most `patience`.
    pub async fn until(&self, patience: Duration, found: impl Fn(&[ReplicaSeen]) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut world = self.world.clone();
        loop {
            world.mark_unchanged();
            if self.now().is_ok_and(|seen| found(&seen)) {
                return true;
            }
            if !matches!(timeout_at(deadline, world.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// Waits for a change of whatever kind; for ever when nobody follows any more.
    pub async fn changed(&self) {
        let mut world = self.world.clone();
        world.mark_unchanged();
        if world.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn pods_of<'w>(world: &'w World, object: &Object) -> Vec<&'w PodFacts> {
    let instance = crate::names::label_value(&object.order.instance);
    world.pods.values().filter(|pod| pod.instance == instance).collect()
}

fn ours() -> watcher::Config {
    watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"))
}

/// What becomes of the objects of one kind.
trait Keeps<K>: Send + Sync {
    fn replace(&self, world: &mut World, all: Vec<K>);
    fn put(&self, world: &mut World, one: &K);
    fn remove(&self, world: &mut World, one: &K);
}

struct Deployments;
struct Groups;
struct Pods;
struct Nodes;

/// Keeps an object that can be read; one that cannot is said once, when it arrives, and is not ours.
fn keep(into: &mut BTreeMap<String, Object>, uid: String, object: Result<Object, Fault>) {
    match object {
        Ok(object) => {
            into.insert(uid, object);
        }
        Err(fault) => {
            tracing::warn!(%fault, hint = fault.hint(), "object is left alone");
            into.remove(&uid);
        }
    }
}

fn uid<K: Resource>(one: &K) -> String {
    one.meta().uid.clone().unwrap_or_default()
}

impl Keeps<Deployment> for Deployments {
    fn replace(&self, world: &mut World, all: Vec<Deployment>) {
        world.deployments.clear();
        all.iter().for_each(|one| self.put(world, one));
    }
    fn put(&self, world: &mut World, one: &Deployment) {
        keep(&mut world.deployments, uid(one), Object::of_deployment(one));
    }
    fn remove(&self, world: &mut World, one: &Deployment) {
        world.deployments.remove(&uid(one));
    }
}

impl Keeps<DynamicObject> for Groups {
    fn replace(&self, world: &mut World, all: Vec<DynamicObject>) {
        world.groups.clear();
        all.iter().for_each(|one| self.put(world, one));
    }
    fn put(&self, world: &mut World, one: &DynamicObject) {
        keep(&mut world.groups, one.metadata.uid.clone().unwrap_or_default(), Object::of_group(one));
    }
    fn remove(&self, world: &mut World, one: &DynamicObject) {
        world.groups.remove(one.metadata.uid.as_deref().unwrap_or_default());
    }
}

impl Keeps<Pod> for Pods {
    fn replace(&self, world: &mut World, all: Vec<Pod>) {
        world.pods = all.iter().map(|one| (uid(one), PodFacts::of(one))).collect();
    }
    fn put(&self, world: &mut World, one: &Pod) {
        world.pods.insert(uid(one), PodFacts::of(one));
    }
    fn remove(&self, world: &mut World, one: &Pod) {
        world.pods.remove(&uid(one));
    }
}

impl Keeps<Node> for Nodes {
    fn replace(&self, world: &mut World, all: Vec<Node>) {
        world.nodes = all.iter().map(|one| (one.name_any(), is_lost(one))).collect();
    }
    fn put(&self, world: &mut World, one: &Node) {
        world.nodes.insert(one.name_any(), is_lost(one));
    }
    fn remove(&self, world: &mut World, one: &Node) {
        // a node that was taken away does not answer either
        world.nodes.insert(one.name_any(), true);
    }
}

async fn follow_groups(cluster: Cluster, out: Arc<watch::Sender<World>>) {
    follow(cluster.dynamic(cluster.namespace(), &group_resource()), ours(), Feed::Groups, out, Groups).await;
}

/// Follows one kind for ever: lists, watches, and lists anew after [`RESYNC`] or when anything went wrong.
async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    feed: Feed,
    out: Arc<watch::Sender<World>>,
    keeps: impl Keeps<K>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut failures = 0_usize;
    loop {
        match follow_once(&api, &config, feed, &out, &keeps).await {
            Ok(()) => failures = 0,
            Err(Fault::NotInstalled { kind }) if feed == Feed::Groups => {
                // a cluster without LeaderWorkerSets has none of ours
                tracing::debug!(kind = &*kind, "not installed");
                change(&out, |world| {
                    world.groups.clear();
                    world.behind[feed as usize] = None;
                });
                sleep(RESYNC).await;
            }
            Err(fault) => {
                tracing::warn!(%fault, ?feed, "watch");
                change(&out, |world| world.behind[feed as usize] = Some(fault));
                let wait = BACKOFF[failures.min(BACKOFF.len() - 1)];
                failures = failures.saturating_add(1);
                sleep(wait).await;
            }
        }
    }
}

fn change(out: &watch::Sender<World>, change: impl FnOnce(&mut World)) {
    out.send_modify(|world| {
        change(world);
        world.number += 1;
    });
}

async fn follow_once<K>(
    api: &Api<K>,
    config: &watcher::Config,
    feed: Feed,
    out: &watch::Sender<World>,
    keeps: &impl Keeps<K>,
) -> Result<(), Fault>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream = std::pin::pin!(watcher(api.clone(), config.clone()));
    let mut listed: Option<Vec<K>> = Some(Vec::new());
    let mut deadline = Instant::now() + LIST_TIMEOUT;
    loop {
        let event = match timeout_at(deadline, stream.next()).await {
            Ok(Some(event)) => event.map_err(|error| of_watch(&error))?,
            Ok(None) => return Ok(()),
            Err(_) if listed.is_none() => return Ok(()),
            Err(_) => {
                return Err(Fault::Unreachable { why: format!("no list within {} s", LIST_TIMEOUT.as_secs()).into() });
            }
        };
        match event {
            Event::Init => listed = Some(Vec::new()),
            Event::InitApply(one) => listed.get_or_insert_default().push(one),
            Event::InitDone => {
                let all = listed.take().unwrap_or_default();
                deadline = Instant::now() + RESYNC;
                change(out, |world| {
                    keeps.replace(world, all);
                    world.behind[feed as usize] = None;
                });
            }
            Event::Apply(one) => change(out, |world| keeps.put(world, &one)),
            Event::Delete(one) => change(out, |world| keeps.remove(world, &one)),
        }
    }
}

fn of_watch(error: &watcher::Error) -> Fault {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Fault::of("watch", error),
        watcher::Error::WatchError(status) => Fault::Busy { said: crate::fault::bounded(&status.message) },
        watcher::Error::NoResourceVersion => Fault::Unreachable { why: crate::fault::bounded(&error.to_string()) },
    }
}
