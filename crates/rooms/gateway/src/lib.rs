//! The HTTP data plane: from a socket to an engine and back, with one ledger entry for each accepted request.
//!
//! Open `path.rs` first: the request path as one list of eight rooms, one file each. Around it: `server.rs` (sockets and
//! cores), `catalogue.rs` (what the path reads of the documents), `core.rs` (what a core holds), `deadline.rs`.

mod accept;
mod account;
mod admit;
mod answer;
mod authenticate;
mod authorise;
mod body;
mod caller_body;
pub mod catalogue;
mod collect;
mod core;
mod count;
mod deadline;
mod hold;
#[doc(hidden)]
pub mod http1;
pub mod local;
pub mod metrics;
mod models;
mod multipart;
mod outgoing;
mod path;
mod pick;
mod read_body;
mod relay;
mod route;
pub mod server;
pub mod shifts;
mod streamed;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_store::Journal;
use tokio::sync::watch;
use tokio::task::LocalSet;

pub use crate::accept::HEADERS_MAX;
pub use crate::core::{Observer, Shared};
pub use crate::deadline::Clock;

use crate::core::Core;
use crate::deadline::TICK;

/// What one core is started with.
#[derive(Debug)]
pub struct CoreParts {
    /// Its listener.
    pub listener: TcpListener,
    /// Its journal.
    pub journal: Journal,
}

/// The running gate.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    shared: Arc<Shared>,
    drain: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Gateway {
    /// Starts one thread per core; sockets are bound already, so that a taken address is known before.
    ///
    /// # Errors
    /// A thread or runtime cannot be made.
    pub fn start(
        shared: &Arc<Shared>,
        cores: Vec<CoreParts>,
        tls: Option<Arc<rustls::ServerConfig>>,
        drain_timeout: Duration,
    ) -> io::Result<Self> {
        let (drain, draining) = watch::channel(false);
        let first = cores.first().ok_or_else(|| io::Error::other("the gate needs a core"))?;
        let address = first.listener.local_addr()?;
        let mut threads = Vec::with_capacity(cores.len());
        for (index, parts) in cores.into_iter().enumerate() {
            let (shared, tls, draining) = (Arc::clone(shared), tls.clone(), draining.clone());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = std::thread::Builder::new().name(format!("gate-{index}")).spawn(move || {
                let core = Core::new(index, shared, parts.journal);
                LocalSet::new().block_on(&runtime, run_core(core, parts.listener, tls, draining, drain_timeout))
            })?;
            threads.push(thread);
        }
        Ok(Self { address, shared: Arc::clone(shared), drain, threads })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing new and lets what runs finish.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.drain.send_replace(true);
    }

    /// Waits for all cores, after [`Gateway::drain`].
    ///
    /// # Errors
    /// What ended a core early.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a core panicked"))??;
        }
        Ok(())
    }
}

async fn run_core(
    core: Rc<Core>,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    draining: watch::Receiver<bool>,
    drain_timeout: Duration,
) -> io::Result<()> {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let ticking = async {
        loop {
            tick.tick().await;
            core.tick();
        }
    };
    let result = tokio::select! {
        result = server::serve(Rc::clone(&core), listener, tls, draining, drain_timeout) => result,
        () = ticking => Ok(()),
    };
    core.holds.free_all(&core.shared.counters);
    core.flush();
    result
}
