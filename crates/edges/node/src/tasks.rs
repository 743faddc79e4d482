//! Tasks of connections, which end with whoever has them.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// The tasks of one owner: dropped, they end.
pub type Owned = Arc<Mutex<JoinSet<()>>>;

/// Runs what an HTTP/2 connection needs for as long as the owner of its tasks is there.
#[derive(Clone, Debug)]
pub struct Tasks(Weak<Mutex<JoinSet<()>>>);

impl Tasks {
    /// Among the tasks of an owner.
    #[must_use]
    pub fn of(owned: &Owned) -> Self {
        Self(Arc::downgrade(owned))
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
{
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            let mut tasks = tasks.lock();
            while tasks.try_join_next().is_some() {}
            tasks.spawn(async move { drop(task.await) });
        }
    }
}
