//! Two controllers and one Lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_controller::launcher::{LaunchFault, Launcher};
use tidegate_controller::leader::while_leading;
use tidegate_kubernetes::{Leadership, LeaseClocks, campaign};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{PATIENCE, Stand, id};

const CLOCKS: LeaseClocks = LeaseClocks {
    duration: Duration::from_secs(2),
    renew_deadline: Duration::from_millis(1_500),
    retry: Duration::from_millis(200),
};

fn candidate(stand: &Stand, name: &str, tasks: &mut JoinSet<()>) -> (Leadership, oneshot::Sender<()>) {
    let (resign, resigned) = oneshot::channel::<()>();
    let resigned = async {
        if resigned.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let store = stand.cluster.lease("tidegate-controller");
    let (leadership, campaign) = campaign(store, name.to_owned(), CLOCKS, resigned);
    tasks.spawn(campaign);
    (leadership, resign)
}

/// Counts itself for as long as it works.
struct AtWork(Arc<AtomicU32>);

impl AtWork {
    fn begin(count: &Arc<AtomicU32>) -> Self {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two at work");
        Self(Arc::clone(count))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn never_two_work_at_once_and_what_the_first_had_begun_is_refused_after_the_second() {
    let stand = Stand::new("leaders").await;
    let (mut tasks, at_work) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    let work = |leadership: Leadership| {
        let at_work = Arc::clone(&at_work);
        async move {
            let forever = |_| async {
                let _working = AtWork::begin(&at_work);
                std::future::pending::<()>().await;
            };
            while_leading(&leadership, forever).await;
        }
    };
    let (first, resign) = candidate(&stand, "a", &mut tasks);
    tasks.spawn(work(first.clone()));
    let term = first.held().await;
    let (second, _keep) = candidate(&stand, "b", &mut tasks);
    tasks.spawn(work(second.clone()));
    stand.launcher.start(1, &stand.order("glm-5.3-0-g1", &[0, 1, 2, 3])).await.unwrap();
    stand.running("glm-5.3-0-g1").await;
    assert_eq!((first.term(), second.term()), (Some(term), None));
    resign.send(()).unwrap();
    let next = tokio::time::timeout(PATIENCE, second.held()).await.expect("the second takes over");
    assert!(next > term && first.term().is_none());
    // what the second one counts on from
    let highest = stand.cluster.highest().await.unwrap();
    assert_eq!(highest, 1);
    stand.stop(highest + 1, &id("glm-5.3-0-g1"), Duration::from_secs(1)).await.unwrap();
    let late = stand.launcher.start(1, &stand.order("glm-5.3-1-g1", &[4, 5, 6, 7])).await;
    assert_eq!(late, Err(LaunchFault::Stale { highest: 2 }));
    tasks.shutdown().await;
    assert_eq!(at_work.load(Ordering::SeqCst), 0);
}
