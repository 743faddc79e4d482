//! How verbs reach the admin API: over the socket of the state folder, over a URL with an admin key, or, when no process
//! runs, in this process over the store itself. The same requests in all three cases.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use jiff::tz::TimeZone;
use serde::de::DeserializeOwned;
use tidegate_console::{Console, Panel, Readiness, Soon, Trust};
use tidegate_core::{ShiftName, TeamName};
use tidegate_identity::SharedKeyring;
use tidegate_store::{JournalOptions, Journals, LedgerWriter, Store, WriterOptions};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::app;
use crate::cli::Reach;
use crate::known::{self, Known};
use crate::state::{self, StateFolder};

/// Longest wait for one look at a running process.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What the admin API says instead of doing what was asked.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

/// Asks the admin API and reads its answer.
pub(crate) fn ask<T: DeserializeOwned>(reach: &Reach, method: Method, path: &str, body: &str) -> anyhow::Result<T> {
    answered(try_ask(reach, method, path, body)?)
}

/// Asks the admin API; a refusal is an answer, too.
pub(crate) fn try_ask<T: DeserializeOwned>(
    reach: &Reach,
    method: Method,
    path: &str,
    body: &str,
) -> anyhow::Result<Result<T, Refusal>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (status, text) = runtime.block_on(send(reach, method, path, body.to_owned()))?;
    read(status, &text)
}

/// Looks at a running process. Never opens the store: that would keep a process out that is about to start.
pub(crate) fn ask_running<T: DeserializeOwned>(reach: &Reach, path: &str) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (status, text) = runtime.block_on(async {
        let sent = send_running(reach, Method::GET, path, String::new());
        let sent = tokio::time::timeout(LOOK_TIMEOUT, sent).await.context("no answer in time")??;
        sent.ok_or_else(|| anyhow::anyhow!("no process runs on {}", reach.state.state.display()))
    })?;
    answered(read(status, &text)?)
}

fn answered<T>(answer: Result<T, Refusal>) -> anyhow::Result<T> {
    answer.or_else(|refusal| bail!("{} (HTTP {})", refusal.message, refusal.status.as_u16()))
}

fn read<T: DeserializeOwned>(status: StatusCode, text: &[u8]) -> anyhow::Result<Result<T, Refusal>> {
    if !status.is_success() {
        let message = serde_json::from_slice::<serde_json::Value>(text).ok();
        let message = message.as_ref().and_then(|body| body["error"]["message"].as_str()).unwrap_or("no reason given");
        return Ok(Err(Refusal { status, message: message.to_owned() }));
    }
    serde_json::from_slice(text).map(Ok).context("the answer is not what this version expects")
}

async fn send(reach: &Reach, method: Method, path: &str, body: String) -> anyhow::Result<(StatusCode, Bytes)> {
    match send_running(reach, method.clone(), path, body.clone()).await? {
        Some(answer) => Ok(answer),
        None => alone(&reach.state.state, request(method, path, body, None)?).await,
    }
}

/// `None` when no process runs on the state folder.
async fn send_running(
    reach: &Reach,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<Option<(StatusCode, Bytes)>> {
    if let Some(url) = &reach.url {
        let authority = url
            .strip_prefix("http://")
            .context("--url takes http://HOST:PORT; put TLS in front of the admin port by other means")?
            .trim_end_matches('/');
        let key = reach.admin_key.as_deref().context("--url needs an admin key: --admin-key or TIDEGATE_ADMIN_KEY")?;
        let stream = TcpStream::connect(authority).await.with_context(|| format!("cannot reach {authority}"))?;
        return exchange(stream, request(method, path, body, Some(key))?).await.map(Some);
    }
    match UnixStream::connect(state::socket(&reach.state.state)).await {
        Ok(stream) => exchange(stream, request(method, path, body, None)?).await.map(Some),
        Err(_) => Ok(None),
    }
}

fn request(method: Method, path: &str, body: String, key: Option<&str>) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "admin");
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    if let Some(key) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    Ok(request.body(Full::new(Bytes::from(body)))?)
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let response = sender.send_request(request).await.context("the process closed the connection")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?;
    Ok((status, body.to_bytes()))
}

/// No process runs: the store is opened here, under the state folder's lock.
async fn alone(state: &Path, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
    let known = Known::read(state)?;
    let folder = StateFolder::open(state)?;
    let path = known.sqlite.clone().context("the store is not a local one: name a running process with --url")?;
    let store = Store::open_sqlite(&folder.path().join(path)).await?;
    // What a dead process left in its journal belongs to the usage that is asked for.
    let (journals, recovery) = Journals::open(&folder.path().join("journal"), JournalOptions::default())?;
    let writer = LedgerWriter::start(store.clone(), &journals, &recovery, WriterOptions::default()).await?;
    let named = known.pepper.as_ref().map(known::Pepper::secret);
    let pepper = Arc::new(app::pepper(named.as_ref(), folder.path())?);
    let keyring = tidegate_console::load_keyring(&store, pepper, None).await?;
    let console =
        Console { store: store.clone(), keyring: Arc::new(SharedKeyring::new(keyring)), panel: Arc::new(Alone(known)) };
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let mut tasks = JoinSet::new();
    tasks.spawn(tidegate_console::serve_one(theirs, console.router(Trust::Owner)));
    let answer = exchange(ours, request).await;
    tasks.shutdown().await;
    writer.stop().await.map_err(anyhow::Error::msg)?;
    journals.close();
    store.close().await;
    answer
}

/// The panel of no process.
#[derive(Debug)]
struct Alone(Known);

impl Panel for Alone {
    fn readiness(&self) -> Readiness {
        Readiness { ready: false, waiting_for: vec!["no process runs".to_owned()] }
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({"running": false, "documents": {"path": self.0.documents}})
    }

    fn has_team(&self, team: &TeamName) -> bool {
        self.0.teams.iter().any(|known| known == team.as_str())
    }

    fn shifts(&self) -> Vec<ShiftName> {
        self.0.shifts.iter().map(|name| ShiftName::from(name.as_str())).collect()
    }

    fn time_zone(&self) -> TimeZone {
        TimeZone::get(&self.0.zone).unwrap_or(TimeZone::UTC)
    }

    fn settle(&self) -> Soon<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn has_schedule(&self) -> bool {
        self.0.schedule
    }

    fn is_alone(&self) -> bool {
        true
    }
}
