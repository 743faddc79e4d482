//! The asker's side of the socket.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Asked, LINE_MAX, PROTOCOL, REPLY_BYTES_MAX, Reply, Request, SILENCE_MAX};
use crate::fault::CacheFault;
use crate::layout::Layout;
use crate::progress::Sink;

/// A connection to the owner.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    pid: u32,
}

/// Why an owner did not give a result.
#[derive(Debug)]
pub enum Lost {
    /// It ended before it answered: its lock is free, go on as the next one.
    Gone,
    /// It answered with a fault, or does not answer.
    Fault(CacheFault),
}

impl Client {
    /// Connects to who listens on `owner.sock`.
    ///
    /// # Errors
    ///
    /// Nobody does, or it is a process of a stranger.
    pub async fn connect(layout: &Layout) -> io::Result<Self> {
        let folder = File::open(layout.root())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join("owner.sock");
        let stream = timeout(LINE_MAX, UnixStream::connect(path)).await??;
        let peer = stream.peer_cred()?;
        let trusted = [0, rustix::process::geteuid().as_raw(), folder.metadata()?.uid()];
        if !trusted.contains(&peer.uid()) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a process of another user listens there"));
        }
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        Ok(Self { stream: BufReader::new(stream), pid })
    }

    /// The owner's process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Has the owner do `request`. Dropping the future takes the request back.
    ///
    /// # Errors
    ///
    /// [`Lost`].
    pub async fn ask(mut self, request: &Request, sink: Sink<'_>) -> Result<Value, Lost> {
        let asked = Asked { protocol: PROTOCOL, request: request.clone() };
        let mut line =
            serde_json::to_vec(&asked).map_err(|error| self.busy(&format!("the request is none: {error}")))?;
        line.push(b'\n');
        match timeout(LINE_MAX, self.stream.get_mut().write_all(&line)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Lost::Gone),
            Err(_elapsed) => return Err(self.busy("it does not take requests")),
        }
        loop {
            match self.reply().await? {
                Reply::Event(event) => sink(event),
                Reply::Alive => {}
                Reply::Result(value) => return Ok(value),
                Reply::Fault(fault) => return Err(Lost::Fault(fault)),
            }
        }
    }

    async fn reply(&mut self) -> Result<Reply, Lost> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.stream).take(REPLY_BYTES_MAX as u64 + 1);
        match timeout(SILENCE_MAX, bounded.read_until(b'\n', &mut line)).await {
            Ok(Ok(_)) if line.len() > REPLY_BYTES_MAX => Err(self.busy("its answer is longer than it can be")),
            // Cut in mid-line: it was killed while it wrote.
            Ok(Ok(_)) if line.last() != Some(&b'\n') => Err(Lost::Gone),
            Ok(Ok(_)) => {
                serde_json::from_slice(&line).map_err(|error| self.busy(&format!("its answer makes no sense: {error}")))
            }
            Ok(Err(_)) => Err(Lost::Gone),
            Err(_elapsed) => Err(self.busy(&format!("it was silent for {} s", SILENCE_MAX.as_secs()))),
        }
    }

    fn busy(&self, reason: &str) -> Lost {
        Lost::Fault(CacheFault::OwnerBusy { pid: self.pid, reason: reason.to_owned() })
    }
}
