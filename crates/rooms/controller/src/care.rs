//! What is done with an engine over its own port: waiting for it, proving it, watching it, sleep. The real one speaks
//! HTTP; simulations bring their own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_engine::backend::Backend;
use tidegate_planner::placement::ReplicaKey;

use crate::launcher::Blueprint;

/// What is wrong with an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its stable name.
    pub code: Arc<str>,
    /// For people: what was seen, and what to do about it.
    pub text: Arc<str>,
}

impl Fault {
    /// A fault.
    #[must_use]
    pub fn new(code: &str, text: impl Into<Arc<str>>) -> Self {
        Self { code: code.into(), text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

/// A replica whose engine listens.
#[derive(Clone)]
pub struct Patient {
    /// Which replica.
    pub key: ReplicaKey,
    /// What it was started from.
    pub blueprint: Arc<Blueprint>,
    /// How it is asked.
    pub backend: Arc<Backend>,
    /// Whether nobody else serves its aliases.
    pub is_first: bool,
    /// Says what is in the way, or how far it is, in status; `None`: nothing.
    pub tell: Arc<dyn Fn(Option<String>) + Send + Sync>,
    /// Notes that a phase of its start began so long ago.
    pub mark: Arc<dyn Fn(&'static str, Duration) + Send + Sync>,
}

impl fmt::Debug for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patient").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Looks after engines. Futures may be dropped at any time.
#[async_trait]
pub trait Care: Send + Sync + fmt::Debug {
    /// How an engine at an address is asked.
    ///
    /// # Errors
    /// When it cannot be.
    fn backend(&self, key: &ReplicaKey, address: SocketAddr, blueprint: &Blueprint) -> Result<Arc<Backend>, Fault>;

    /// Waits until the engine answers. It has no deadline of its own.
    ///
    /// # Errors
    /// When it will never be the one that was meant.
    async fn load(&self, patient: &Patient) -> Result<(), Fault>;

    /// Proves that it serves, by the way that callers take.
    ///
    /// # Errors
    /// What it failed.
    async fn prove(&self, patient: &Patient) -> Result<(), Fault>;

    /// Watches a serving engine, and returns when it has to be started anew.
    async fn watch(&self, patient: &Patient) -> Fault;

    /// Puts it to sleep, level 1 or 2.
    ///
    /// # Errors
    /// When it does not sleep.
    async fn sleep(&self, patient: &Patient, level: u8) -> Result<(), Fault>;

    /// Wakes it. What it says after that is proven like after a load.
    ///
    /// # Errors
    /// When it does not wake.
    async fn wake(&self, patient: &Patient, level: u8) -> Result<(), Fault>;

    /// The level at which an engine sleeps that an earlier controller put to sleep; `None`: it is awake, or cannot sleep.
    async fn asleep(&self, key: &ReplicaKey, address: SocketAddr, blueprint: &Blueprint) -> Option<u8>;
}
