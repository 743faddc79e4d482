//! An engine whose every byte the test writes, over in-memory streams.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_engine::client::{Connect, Connecting, Endpoint, Pool, PoolSettings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// Opens the prepared streams one after the other; without one it refuses.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    prepared: Mutex<Vec<DuplexStream>>,
    pub(crate) opened: AtomicUsize,
}

impl Memory {
    /// Prepares the next connection and returns the engine's end of it.
    pub(crate) fn prepare(&self, capacity: usize) -> Peer {
        let (ours, engine) = tokio::io::duplex(capacity);
        self.prepared.lock().unwrap().push(ours);
        Peer(engine)
    }
}

impl Connect for Memory {
    fn connect(&self) -> Connecting {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let mut prepared = self.prepared.lock().unwrap();
        let stream = (!prepared.is_empty()).then(|| prepared.remove(0));
        Box::pin(async move {
            let stream = stream.ok_or(io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(stream) as Box<dyn tidegate_engine::client::Io>)
        })
    }
}

pub(crate) fn pool(memory: &Arc<Memory>) -> Arc<Pool> {
    let connect: Arc<dyn Connect> = Arc::clone(memory) as Arc<dyn Connect>;
    Pool::new(Endpoint::custom(connect, "engine:8000", Some("sk-e")).unwrap(), PoolSettings::default())
}

/// The engine's end of a connection.
pub(crate) struct Peer(pub(crate) DuplexStream);

impl Peer {
    /// Reads a request head and `body` bytes after it.
    pub(crate) async fn request(&mut self, body: usize) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            text.push(self.0.read_u8().await.unwrap());
        }
        let start = text.len();
        text.resize(start + body, 0);
        self.0.read_exact(&mut text[start..]).await.unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Reads until the text ends so.
    pub(crate) async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        while !text.ends_with(end) {
            text.push(self.0.read_u8().await.unwrap());
        }
        text
    }

    pub(crate) async fn say(&mut self, text: impl AsRef<[u8]>) {
        self.0.write_all(text.as_ref()).await.unwrap();
    }
}
