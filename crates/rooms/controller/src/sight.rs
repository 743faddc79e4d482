//! What a launcher sees, looked at once for everybody.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_node::InstanceId;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::launcher::{Launcher, Seen, SeenState};

/// How often a launcher is asked.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks after which an instance that was started and never seen counts as vanished.
const UNSEEN_MAX: u64 = 8;

/// What was seen in one look.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// Counts the looks that succeeded.
    pub number: u64,
    /// Everything of ours.
    pub seen: BTreeMap<InstanceId, Seen>,
    /// Why the last look did not succeed, if it did not.
    pub failing: Option<Arc<str>>,
}

/// The last sight, for those who wait for something to be seen.
#[derive(Clone, Debug)]
pub struct Eyes(watch::Receiver<Arc<Sight>>);

impl Eyes {
    /// Eyes on a launcher, and the future that keeps them open.
    pub fn on(launcher: Arc<dyn Launcher>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (out, sight) = watch::channel(Arc::new(Sight::default()));
        let looking = async move {
            loop {
                look(&*launcher, &out).await;
                sleep(LOOK_EVERY).await;
            }
        };
        (Self(sight), looking)
    }

    /// The last sight.
    #[must_use]
    pub fn now(&self) -> Arc<Sight> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits until a look has succeeded.
    pub async fn first(&self) -> Arc<Sight> {
        self.until(|sight| (sight.number > 0).then(|| Arc::clone(sight))).await
    }

    async fn until<T>(&self, mut found: impl FnMut(&Arc<Sight>) -> Option<T>) -> T {
        let mut sight = self.0.clone();
        loop {
            let seen = Arc::clone(&sight.borrow_and_update());
            if let Some(found) = found(&seen) {
                return found;
            }
            if sight.changed().await.is_err() {
                // Nobody looks any more: the controller is on its way out.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until an instance's processes run; `tell` hears what it waits for.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn running(
        &self,
        instance: &InstanceId,
        tell: &(dyn Fn(Arc<str>) + Send + Sync),
    ) -> Result<SocketAddr, Arc<str>> {
        let from = self.now().number;
        self.until(|sight| match sight.seen.get(instance).map(|seen| &seen.state) {
            Some(SeenState::Running { address }) => Some(Ok(*address)),
            Some(SeenState::Pending { why }) => {
                tell(Arc::clone(why));
                None
            }
            Some(SeenState::Ended { cause }) => Some(Err(Arc::clone(cause))),
            Some(SeenState::Stopping) => Some(Err("stopped: somebody else ended it".into())),
            None => {
                let is_lost = sight.number > from + UNSEEN_MAX;
                is_lost.then(|| Err("vanished: it was started and is not there".into()))
            }
        })
        .await
    }

    /// Waits until an instance that ran does not any more, and says why.
    pub async fn ended(&self, instance: &InstanceId) -> Arc<str> {
        let from = self.now().number;
        self.until(|sight| match sight.seen.get(instance).map(|seen| &seen.state) {
            Some(SeenState::Ended { cause }) => Some(Arc::clone(cause)),
            Some(SeenState::Stopping) => Some("stopped: somebody else ended it".into()),
            Some(SeenState::Running { .. } | SeenState::Pending { .. }) => None,
            None => (sight.number > from + UNSEEN_MAX).then(|| "vanished: it ran and is not there any more".into()),
        })
        .await
    }

    /// Waits until nothing of an instance runs, seen after now.
    pub async fn gone(&self, instance: &InstanceId) {
        let from = self.now().number;
        self.until(|sight| match sight.seen.get(instance).map(|seen| &seen.state) {
            Some(SeenState::Ended { .. }) => Some(()),
            Some(SeenState::Running { .. } | SeenState::Pending { .. } | SeenState::Stopping) => None,
            None => (sight.number > from).then_some(()),
        })
        .await;
    }
}

async fn look(launcher: &dyn Launcher, out: &watch::Sender<Arc<Sight>>) {
    let looked = launcher.look().await;
    let before = Arc::clone(&out.borrow());
    let sight = match looked {
        Ok(seen) => Sight {
            number: before.number + 1,
            seen: seen.into_iter().map(|seen| (seen.instance.clone(), seen)).collect(),
            failing: None,
        },
        Err(fault) => Sight { failing: Some(fault.to_string().into()), ..(*before).clone() },
    };
    out.send_replace(Arc::new(sight));
}
