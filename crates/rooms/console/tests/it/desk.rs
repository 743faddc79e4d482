//! A console over a store of its own, and a client that speaks plain HTTP/1.1.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::Value;
use tempfile::TempDir;
use tidegate_console::{Console, Panel, Readiness, Trust, load_keyring, serve_one};
use tidegate_core::{ShiftName, TeamName};
use tidegate_identity::{Pepper, SharedKeyring};
use tidegate_store::Store;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

#[derive(Debug)]
struct Stub;

impl Panel for Stub {
    fn readiness(&self) -> Readiness {
        Readiness { ready: true, waiting_for: Vec::new() }
    }

    fn metrics(&self) -> String {
        "# EOF\n".to_owned()
    }

    fn status(&self) -> Value {
        serde_json::json!({"running": true})
    }

    fn has_team(&self, team: &TeamName) -> bool {
        team.as_str() == "red"
    }

    fn shifts(&self) -> Vec<ShiftName> {
        Vec::new()
    }

    fn time_zone(&self) -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ready(()))
    }
}

pub(crate) struct Desk {
    pub(crate) console: Console,
    _state: TempDir,
}

/// Status and body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Desk {
    pub(crate) async fn new() -> Self {
        Self::with(Arc::new(Stub)).await
    }

    pub(crate) async fn with(panel: Arc<dyn Panel>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open_sqlite(&state.path().join("tidegate.db")).await.unwrap();
        let pepper = Arc::new(Pepper::new(&[7; 32]).unwrap());
        let keyring = load_keyring(&store, pepper, None).await.unwrap();
        let console = Console { store, keyring: Arc::new(SharedKeyring::new(keyring)), panel };
        Self { console, _state: state }
    }

    /// Asks as the owner of the state folder.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_one(theirs, self.console.clone().router(Trust::Owner)));
        exchange(ours, method, path, None, body).await
    }
}

/// One request on a connection of its own.
pub(crate) async fn exchange<S>(mut stream: S, method: &str, path: &str, key: Option<&str>, body: &str) -> Answer
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let key = key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n{key}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_answer(stream).await
}

/// What comes until the other end closes the connection.
pub(crate) async fn read_answer(mut stream: impl AsyncRead + Unpin) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).map_or(0, |status| status.parse().unwrap());
    Answer { status, body: body.to_owned() }
}
