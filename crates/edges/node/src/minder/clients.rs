//! Whoever is connected to a minder.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most connections at once: more are closed at once.
pub(super) const CLIENTS_MAX: usize = 8;
/// Longest line.
pub(super) const LINE_MAX: usize = 256;
/// Commands that wait.
const WAITING_MAX: usize = 16;

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// End the tree within this time.
    Stop(Duration),
    /// End it when nobody is connected for this time.
    Orphan(Option<Duration>),
}

/// Reads one line.
fn told(line: &str) -> Option<Told> {
    match line.split_once(' ')? {
        ("stop", ms) => ms.parse().ok().map(Duration::from_millis).map(Told::Stop),
        ("orphan", "never") => Some(Told::Orphan(None)),
        ("orphan", ms) => ms.parse().ok().map(Duration::from_millis).map(|after| Told::Orphan(Some(after))),
        _ => None,
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Clients {
    listener: UnixListener,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Told>,
    receiver: mpsc::Receiver<Told>,
}

/// Something that happened among the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// One said something.
    Said(Told),
    /// One came or left.
    Number,
}

impl Clients {
    pub(super) fn new(listener: UnixListener) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        Self { listener, tasks: JoinSet::new(), sender, receiver }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Waits for the next change. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Change {
        tokio::select! {
            biased;
            Some(told) = self.receiver.recv() => Change::Said(told),
            Some(_) = self.tasks.join_next() => Change::Number,
            Ok((stream, _)) = self.listener.accept() => {
                if self.tasks.len() < CLIENTS_MAX {
                    self.tasks.spawn(read(stream, self.sender.clone()));
                }
                Change::Number
            }
            else => std::future::pending().await,
        }
    }
}

/// Reads lines until the client leaves, or says something that is none.
async fn read(mut stream: UnixStream, sender: mpsc::Sender<Told>) {
    let mut text = Vec::new();
    let mut part = [0; LINE_MAX];
    loop {
        match stream.read(&mut part).await {
            Ok(length @ 1..) => text.extend_from_slice(&part[..length]),
            Ok(0) | Err(_) => return,
        }
        while let Some(end) = text.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let Some(told) = std::str::from_utf8(&line[..end]).ok().and_then(told) else { return };
            if sender.send(told).await.is_err() {
                return;
            }
        }
        if text.len() >= LINE_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn only_commands_are_taken() {
        assert_eq!(told("stop 250"), Some(Told::Stop(Duration::from_millis(250))));
        assert_eq!(told("orphan never"), Some(Told::Orphan(None)));
        assert_eq!(told("orphan 60000"), Some(Told::Orphan(Some(Duration::from_secs(60)))));
        for bad in ["", "stop", "stop ", "stop -1", "stop 99999999999999999999", "kill 1", "orphan x"] {
            assert_eq!(told(bad), None, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn one_client_too_many_is_closed_and_a_long_line_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sock");
        let mut clients = Clients::new(UnixListener::bind(&path).unwrap());
        let mut held = Vec::new();
        for _ in 0..CLIENTS_MAX {
            held.push(UnixStream::connect(&path).await.unwrap());
            assert_eq!(clients.next().await, Change::Number);
        }
        let mut more = UnixStream::connect(&path).await.unwrap();
        assert_eq!(clients.next().await, Change::Number);
        assert_eq!(more.read(&mut [0]).await.unwrap(), 0, "closed");
        assert_eq!(clients.count(), CLIENTS_MAX);
        // Split anywhere, a line is a line.
        held[0].write_all(b"stop 1\nsto").await.unwrap();
        assert_eq!(clients.next().await, Change::Said(Told::Stop(Duration::from_millis(1))));
        held[0].write_all(b"p 2\n").await.unwrap();
        assert_eq!(clients.next().await, Change::Said(Told::Stop(Duration::from_millis(2))));
        held[0].write_all(&[b'x'; LINE_MAX]).await.unwrap();
        assert_eq!(clients.next().await, Change::Number);
        assert_eq!(clients.count(), CLIENTS_MAX - 1);
    }
}
