//! The gate on the current thread, without a listener: each connection is a stream that is handed in. For tests over
//! in-memory sockets with paused time, and for embedding.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_store::Journal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::core::{Core, Shared};
use crate::deadline::TICK;
use crate::server::{self, Peer};

/// One core on the current thread; lives inside a [`tokio::task::LocalSet`].
#[derive(Debug)]
pub struct LocalGate {
    core: Rc<Core>,
    drain: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl LocalGate {
    /// Starts it, with its tick.
    #[must_use]
    pub fn new(shared: Arc<Shared>, journal: Journal) -> Self {
        let core = Core::new(0, shared, journal);
        let mut tasks = JoinSet::new();
        let ticking = Rc::clone(&core);
        tasks.spawn_local(async move {
            let mut tick = tokio::time::interval(TICK);
            loop {
                tick.tick().await;
                ticking.tick();
            }
        });
        Self { core, drain: watch::channel(false).0, tasks }
    }

    /// Serves one connection: HTTP/2 when `h2`, else HTTP/1.1.
    pub fn serve<S>(&mut self, stream: S, peer: SocketAddr, h2: bool)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (core, drain) = (Rc::clone(&self.core), self.drain.subscribe());
        let peer = Peer::now(peer);
        self.tasks.spawn_local(server::speak(core, stream, peer, h2, drain));
    }

    /// Finishes what runs and takes nothing new.
    pub fn drain(&self) {
        self.core.shared.draining.store(true, std::sync::atomic::Ordering::Relaxed);
        self.drain.send_replace(true);
    }

    /// Slots that are held for engines that have not let go yet.
    #[must_use]
    pub fn held(&self) -> usize {
        self.core.holds.len()
    }

    /// Writes what is settled to the journal's file.
    pub fn flush(&self) {
        self.core.flush();
    }
}
