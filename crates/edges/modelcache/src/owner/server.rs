//! The owner's side of the socket.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{
    ALIVE_EVERY, Asked, CONNECTIONS_MAX, HANDOVER_MAX, LINE_MAX, PROTOCOL, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Reply,
    Request, Serve, may_ask,
};
use crate::cache::{Cache, small};
use crate::fault::CacheFault;
use crate::progress::{Feed, Listener};

/// Serves the owner's socket.
#[derive(Debug)]
pub struct Server {
    socket: UnixListener,
}

impl Server {
    /// Puts `owner.sock` in place. Only who holds the cache can.
    ///
    /// # Errors
    ///
    /// What the disk says.
    pub fn bind(cache: &Cache) -> Result<Self, CacheFault> {
        let layout = cache.layout();
        let path = small::tmp_name(layout, "sock");
        let named = |error| CacheFault::disk("make", &layout.owner_socket(), &error);
        // A socket's path has 107 bytes at most: the folder is named by its descriptor, however deep it lies.
        let folder = File::open(layout.tmp()).map_err(named)?;
        let name = path.file_name().map(PathBuf::from).unwrap_or_default();
        let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        let socket = UnixListener::bind(short).map_err(named)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(named)?;
        // One rename: an asker finds the old socket, at which nobody listens, or this one.
        std::fs::rename(&path, layout.owner_socket()).map_err(named)?;
        Ok(Self { socket })
    }

    /// Serves until it is dropped; what runs then is cancelled.
    pub async fn run<S: Serve + 'static>(self, serve: Arc<S>) -> Infallible {
        self.accept(&serve, &mut JoinSet::new()).await
    }

    /// Serves as long as `own` runs. Who is served then has [`HANDOVER_MAX`] to end: those who followed `own` hear its
    /// end; the others go on by themselves, one of them as the next owner.
    pub async fn run_beside<S: Serve + 'static, T>(self, serve: Arc<S>, own: impl Future<Output = T>) -> T {
        let mut tasks = JoinSet::new();
        let done = tokio::select! {
            done = own => done,
            never = self.accept(&serve, &mut tasks) => match never {},
        };
        // Nobody new: they find nobody here, and wait for the lock.
        drop(self.socket);
        drop(timeout(HANDOVER_MAX, async { while tasks.join_next().await.is_some() {} }).await);
        done
    }

    async fn accept<S: Serve + 'static>(&self, serve: &Arc<S>, tasks: &mut JoinSet<()>) -> Infallible {
        loop {
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= CONNECTIONS_MAX {
                drop(tasks.join_next().await);
                continue;
            }
            match self.socket.accept().await {
                Ok((stream, _)) => drop(tasks.spawn(connection(stream, Arc::clone(serve)))),
                // Out of descriptors: wait until a connection gives one back.
                Err(error) => {
                    tracing::warn!(%error, "owner.sock: cannot accept");
                    tokio::time::sleep(super::ENTER_EVERY).await;
                }
            }
        }
    }
}

async fn connection<S: Serve>(stream: UnixStream, serve: Arc<S>) {
    let own = rustix::process::geteuid().as_raw();
    let is_allowed = stream.peer_cred().is_ok_and(|peer| may_ask(peer.uid(), own));
    if !is_allowed {
        tracing::warn!("owner.sock: a process of another user was turned away");
        return;
    }
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let reply = match timeout(LINE_MAX, request(&mut read)).await {
        Err(_elapsed) => return,
        Ok(Err(fault)) => Reply::Fault(fault),
        Ok(Ok(request)) => {
            tokio::select! {
                reply = answer(request, &*serve, &mut write) => match reply {
                    Some(reply) => reply,
                    None => return,
                },
                // The asker went away: dropping its work cancels it.
                () = gone(&mut read) => return,
            }
        }
    };
    drop(send(&mut write, &reply).await);
}

/// Does the work while its events are written; `None` when the asker does not take them.
async fn answer<S: Serve>(request: Request, serve: &S, write: &mut OwnedWriteHalf) -> Option<Reply> {
    let feed = Feed::new();
    let mut listener = feed.listen()?;
    // The work and the writing run side by side: a slow asker never holds up the work.
    let work = async {
        let sink = |event| feed.send(event);
        let done = serve.serve(request, &sink).await;
        feed.close();
        Ok::<_, std::io::Error>(done)
    };
    let (done, ()) = tokio::try_join!(work, events(&mut listener, write)).ok()?;
    Some(match done {
        Ok(value) => Reply::Result(value),
        Err(fault) => Reply::Fault(fault),
    })
}

/// Writes events until there are no more.
async fn events(listener: &mut Listener, write: &mut OwnedWriteHalf) -> std::io::Result<()> {
    loop {
        let reply = match timeout(ALIVE_EVERY, listener.next()).await {
            Ok(Some(event)) => Reply::Event(event),
            Ok(None) => return Ok(()),
            Err(_elapsed) => Reply::Alive,
        };
        send(write, &reply).await?;
    }
}

async fn send(write: &mut OwnedWriteHalf, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    if line.len() >= REPLY_BYTES_MAX {
        let reason = "the answer is longer than a line can be".to_owned();
        line = serde_json::to_vec(&Reply::Fault(CacheFault::OwnerBusy { pid: std::process::id(), reason }))?;
    }
    line.push(b'\n');
    timeout(LINE_MAX, write.write_all(&line)).await?
}

/// Reads the request, which is all that an asker ever sends.
async fn request(read: &mut BufReader<OwnedReadHalf>) -> Result<Request, CacheFault> {
    let refuse = |reason: String| CacheFault::OwnerBusy { pid: std::process::id(), reason };
    let mut line = Vec::new();
    let took = read.take(REQUEST_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).await;
    took.map_err(|error| refuse(format!("no request came: {error}")))?;
    if line.len() > REQUEST_BYTES_MAX || line.last() != Some(&b'\n') {
        return Err(refuse(format!("a request is one line of at most {REQUEST_BYTES_MAX} bytes")));
    }
    let protocol =
        serde_json::from_slice::<serde_json::Value>(&line).ok().and_then(|asked| asked.get("protocol")?.as_u64());
    if protocol != Some(PROTOCOL.into()) {
        return Err(refuse(format!("it speaks protocol {PROTOCOL}: use the same version of tidegate on both sides")));
    }
    let asked: Asked =
        serde_json::from_slice(&line).map_err(|error| refuse(format!("it cannot read the request: {error}")))?;
    Ok(asked.request)
}

/// Returns when the asker has closed, or sends what it should not.
async fn gone(read: &mut BufReader<OwnedReadHalf>) {
    let mut byte = [0];
    drop(read.read(&mut byte).await);
}
