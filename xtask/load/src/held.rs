//! Streams that are opened and held: how many a gate carries at once, and what each costs it in memory.
//!
//! Says `{"open": N, …}` when every stream has had its first event or failed, holds them until standard input ends, then
//! says `{"alive": N, …}`: a stream is alive when it did not end, and had a further event while it was held.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::answer::Reader;

/// What to open.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) message: Bytes,
    pub(crate) body: Bytes,
    pub(crate) key: Option<String>,
    pub(crate) streams: usize,
    pub(crate) per_connection: usize,
    pub(crate) open_within: Duration,
}

/// One stream's life, as far as it got.
#[derive(Debug, Default)]
struct Life {
    /// Pieces of body that arrived.
    pieces: Cell<u64>,
    ended: Cell<bool>,
}

impl Life {
    fn ends_with(&self, result: Result<()>, failure: &Cell<Option<String>>) {
        self.ended.set(true);
        if let Err(error) = result {
            // the first is the one to know: the others follow from it more often than not
            let first = failure.take().unwrap_or_else(|| format!("{error:#}"));
            failure.set(Some(first));
        }
    }

    fn piece(&self) {
        self.pieces.set(self.pieces.get() + 1);
    }
}

/// What went wrong first.
type Failure = Rc<Cell<Option<String>>>;

/// The request of an HTTP/2 stream.
#[derive(Clone, Debug)]
struct Call {
    address: SocketAddr,
    key: Option<String>,
    body: Bytes,
}

impl Call {
    fn request(&self) -> Result<http::Request<Full<Bytes>>> {
        let mut request = http::Request::post(format!("http://{}/v1/chat/completions", self.address))
            .header(http::header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(Full::new(self.body.clone())).context("no request can be made of that address or key")
    }
}

/// Runs the plan.
///
/// # Errors
/// A report could not be written.
pub(crate) async fn run(plan: Plan, report: fn(&Value) -> Result<()>) -> Result<()> {
    let start = Instant::now();
    let lives: Vec<Rc<Life>> = (0..plan.streams).map(|_| Rc::default()).collect();
    let failure = Failure::default();
    let mut tasks = JoinSet::new();
    if plan.per_connection == 0 {
        for life in &lives {
            let (life, failure, message) = (Rc::clone(life), Rc::clone(&failure), plan.message.clone());
            let address = plan.address;
            tasks.spawn_local(async move { life.ends_with(plain(&life, address, &message).await, &failure) });
        }
    } else {
        for group in lives.chunks(plan.per_connection) {
            let (group, failure) = (group.to_vec(), Rc::clone(&failure));
            let call = Call { address: plan.address, key: plan.key.clone(), body: plan.body.clone() };
            tasks.spawn_local(async move {
                if let Err(error) = multiplexed(&group, &call, &failure).await {
                    for life in &group {
                        life.ends_with(Err(anyhow::anyhow!("{error:#}")), &failure);
                    }
                }
            });
        }
    }
    let begun = |life: &&Rc<Life>| life.pieces.get() > 0 || life.ended.get();
    while lives.iter().filter(begun).count() < lives.len() && start.elapsed() < plan.open_within {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let alive = |life: &&Rc<Life>| life.pieces.get() > 0 && !life.ended.get();
    let open = lives.iter().filter(alive).count();
    report(&json!({"open": open, "seconds": start.elapsed().as_secs_f64(), "error": failure.take()}))?;
    let before: Vec<u64> = lives.iter().map(|life| life.pieces.get()).collect();
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()))
        .await
        .context("waiting on standard input ended badly")?
        .context("cannot wait on standard input")?;
    let went_on =
        lives.iter().zip(before).filter(|(life, before)| !life.ended.get() && life.pieces.get() > *before).count();
    report(&json!({"alive": went_on, "seconds": start.elapsed().as_secs_f64(), "error": failure.take()}))
}

/// One stream over a connection of its own, HTTP/1.1.
async fn plain(life: &Life, address: SocketAddr, message: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(address).await.context("cannot connect")?;
    stream.write_all(message).await.context("cannot send")?;
    let mut reader = Reader::default();
    let mut buffer = [0; 2048];
    loop {
        let length = stream.read(&mut buffer).await.context("cannot read")?;
        ensure!(length > 0, "closed in the middle of a stream");
        let step = reader.push(&buffer[..length])?;
        ensure!(reader.status == 200 || reader.status == 0, "status {}", reader.status);
        if step.body > 0 {
            life.piece();
        }
        if step.done {
            return Ok(());
        }
    }
}

/// Many streams over one connection, HTTP/2 by prior knowledge.
async fn multiplexed(group: &[Rc<Life>], call: &Call, failure: &Failure) -> Result<()> {
    let stream = TcpStream::connect(call.address).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.context("no HTTP/2")?;
    let mut tasks = JoinSet::new();
    tasks.spawn_local(async move { drop(connection.await) });
    for life in group {
        let (life, failure) = (Rc::clone(life), Rc::clone(failure));
        let (mut sender, call) = (sender.clone(), call.clone());
        tasks.spawn_local(async move {
            let result = one_of_many(&life, &mut sender, &call).await;
            life.ends_with(result, &failure);
        });
    }
    drop(sender);
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn one_of_many(life: &Life, sender: &mut http2::SendRequest<Full<Bytes>>, call: &Call) -> Result<()> {
    sender.ready().await.context("the connection ended")?;
    let response = sender.send_request(call.request()?).await.context("no answer")?;
    ensure!(response.status() == 200, "status {}", response.status());
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if frame.context("the stream broke")?.is_data() {
            life.piece();
        }
    }
    Ok(())
}
