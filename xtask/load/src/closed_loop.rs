//! A closed loop: each connection sends its next request when the last answer is whole.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::answer::Reader;
use crate::latency::Times;

/// What to send, and for how long.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) message: Bytes,
    pub(crate) stream: bool,
    pub(crate) connections: usize,
    pub(crate) warm: Duration,
    pub(crate) seconds: Duration,
    pub(crate) requests: Option<u64>,
}

/// What one connection, or all of them, saw.
#[derive(Debug, Default)]
struct Seen {
    whole: Times,
    first: Times,
    gaps: Times,
    requests: u64,
    /// Whole answers, those of the warm-up too: what the target spent its time on.
    answered: u64,
    bytes: u64,
    events: u64,
    errors: u64,
    /// The first thing that went wrong.
    error: Option<String>,
}

/// One connection's answers: `None` while warming up.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Runs the plan.
///
/// # Errors
/// Not one connection could be made.
pub(crate) async fn run(plan: Plan) -> Result<Value> {
    let start = Instant::now();
    let measured_from = start + plan.warm;
    let until = plan.requests.is_none().then(|| measured_from + plan.seconds);
    let share = plan.requests.map(|requests| requests.div_ceil(plan.connections as u64));
    let mut tasks = JoinSet::new();
    for _ in 0..plan.connections {
        let stop = Stop { measured_from, until, share };
        tasks.spawn_local(connection(plan.address, plan.message.clone(), plan.stream, stop));
    }
    let mut all = Seen::default();
    while let Some(seen) = tasks.join_next().await {
        all.add(seen.context("a connection's task ended badly")?);
    }
    let seconds = measured_from.elapsed().as_secs_f64();
    Ok(all.report(seconds))
}

/// When a connection measures, and when it has done enough.
#[derive(Clone, Copy, Debug)]
struct Stop {
    measured_from: Instant,
    until: Option<Instant>,
    share: Option<u64>,
}

impl Stop {
    fn reached(&self, requests: u64) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until) || self.share.is_some_and(|share| requests >= share)
    }
}

async fn connection(address: SocketAddr, message: Bytes, stream: bool, stop: Stop) -> Seen {
    let mut seen = Seen::default();
    let mut open = None;
    while !stop.reached(seen.requests + seen.errors) {
        let result = match open.take() {
            Some(connection) => request(connection, &message, stream, stop.measured_from, &mut seen).await,
            None => match connect(address).await {
                Ok(connection) => request(connection, &message, stream, stop.measured_from, &mut seen).await,
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(connection) => open = Some(connection),
            Err(error) => {
                seen.errors += 1;
                seen.error.get_or_insert_with(|| format!("{error:#}"));
                // a target that refuses at once must not be asked in a tight loop
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    seen
}

async fn connect(address: SocketAddr) -> Result<Connection> {
    let stream = TcpStream::connect(address).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    Ok(Connection { stream, buffer: vec![0; 64 * 1024] })
}

async fn request(
    mut connection: Connection,
    message: &[u8],
    stream: bool,
    measured_from: Instant,
    seen: &mut Seen,
) -> Result<Connection> {
    let start = Instant::now();
    connection.stream.write_all(message).await.context("cannot send")?;
    let mut reader = Reader::default();
    let mut one = One::default();
    loop {
        let length = connection.stream.read(&mut connection.buffer).await.context("cannot read")?;
        anyhow::ensure!(length > 0, "closed in the middle of an answer");
        let step = reader.push(&connection.buffer[..length])?;
        if stream && step.events > 0 {
            one.arrived(Instant::now());
        }
        one.bytes += step.body as u64;
        one.events += step.events as u64;
        if step.done {
            break;
        }
    }
    let end = Instant::now();
    anyhow::ensure!(reader.status == 200, "status {}: {}", reader.status, String::from_utf8_lossy(&reader.tail));
    anyhow::ensure!(!stream || reader.tail.ends_with(b"data: [DONE]\n\n"), "a stream without its end");
    seen.answered += 1;
    if start >= measured_from {
        seen.count(start, end, &one);
    }
    Ok(connection)
}

/// One answer.
#[derive(Debug, Default)]
struct One {
    bytes: u64,
    events: u64,
    arrivals: Vec<Instant>,
}

impl One {
    fn arrived(&mut self, now: Instant) {
        self.arrivals.push(now);
    }
}

impl Seen {
    fn count(&mut self, start: Instant, end: Instant, one: &One) {
        self.requests += 1;
        self.bytes += one.bytes;
        self.events += one.events;
        self.whole.push(end - start);
        if let Some(first) = one.arrivals.first() {
            self.first.push(*first - start);
        }
        for pair in one.arrivals.windows(2) {
            self.gaps.push(pair[1] - pair[0]);
        }
    }

    fn add(&mut self, other: Self) {
        let Self { whole, first, gaps, requests, answered, bytes, events, errors, error } = other;
        self.whole.append(whole);
        self.first.append(first);
        self.gaps.append(gaps);
        self.requests += requests;
        self.answered += answered;
        self.bytes += bytes;
        self.events += events;
        self.errors += errors;
        self.error = self.error.take().or(error);
    }

    fn report(mut self, seconds: f64) -> Value {
        json!({
            "seconds": seconds,
            "requests": self.requests,
            "requests_per_second": self.requests as f64 / seconds,
            "answered": self.answered,
            "events": self.events,
            "bytes": self.bytes,
            "errors": self.errors,
            "error": self.error,
            "whole_us": {"p50": self.whole.percentile(0.5), "p99": self.whole.percentile(0.99)},
            "first_us": {"p50": self.first.percentile(0.5), "p99": self.first.percentile(0.99)},
            "gap_us": {"p50": self.gaps.percentile(0.5), "p99": self.gaps.percentile(0.99)},
        })
    }
}
