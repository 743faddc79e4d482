//! Connections: requests are read, answered, and what leaves is bent as the script says.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::answer::{self, Answer};
use super::objects::Object;
use super::{Access, Command, S3Fault, S3Log, S3Request, Shared, State, Verb};
use crate::fake::Recorded;
use crate::fake::wire::{Wire, read_request};

/// How much is given to the kernel at once.
const PIECE_BYTES: usize = 256 * 1024;
/// What the kernel keeps for a reader that is to be caught pausing, in bytes.
const SMALL_SEND_BUFFER: usize = 16 * 1024;

/// A stream whose send buffer can be made small.
trait Narrow: Wire {
    fn narrow(&self);
}

impl Narrow for TcpStream {
    fn narrow(&self) {
        // a larger buffer only makes the pause take longer to be seen
        drop(socket2::SockRef::from(self).set_send_buffer_size(SMALL_SEND_BUFFER));
    }
}

impl Wire for TlsStream<TcpStream> {
    fn make_reset(&self) {
        self.get_ref().0.make_reset();
    }
}

impl Narrow for TlsStream<TcpStream> {
    fn narrow(&self) {
        self.get_ref().0.narrow();
    }
}

/// Serves until the handle is dropped.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    mut inbox: mpsc::UnboundedReceiver<Command>,
) {
    let (Ok(addr), Ok(listener)) = (listener.local_addr(), TcpListener::from_std(listener)) else { return };
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            command = inbox.recv() => {
                let (done, result) = match command {
                    None => return,
                    Some(Command::StopListening(done)) => {
                        listener = None;
                        (done, Ok(()))
                    }
                    Some(Command::Listen(done)) => (done, TcpListener::bind(addr).await.map(|bound| listener = Some(bound))),
                    Some(Command::Disconnect(done)) => {
                        connections.shutdown().await;
                        (done, Ok(()))
                    }
                };
                // whoever asked may be gone
                drop(done.send(result));
            }
            accepted = accept(listener.as_ref()) => if let Ok(stream) = accepted {
                drop(stream.set_nodelay(true));
                connections.spawn(accepted_one(stream, acceptor.clone(), Arc::clone(&shared)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn accepted_one(stream: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    shared.log.send_modify(|log| log.connections += 1);
    match acceptor {
        None => connection(stream, &shared).await,
        // a client that does not trust us leaves in the handshake
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                connection(stream, &shared).await;
            }
        }
    }
}

async fn connection<W: Narrow>(mut wire: W, shared: &Shared) {
    let mut buffer = BytesMut::with_capacity(4_096);
    // an error is a peer that went away in the middle of a request: nothing to answer
    while let Ok(Some(recorded)) = read_request(&mut wire, &mut buffer).await {
        if !matches!(respond(&mut wire, &mut buffer, &recorded, shared).await, Ok(After::Next)) {
            return;
        }
    }
}

/// What the connection can still do.
enum After {
    Next,
    Over,
}

/// Reads what a request wants.
pub(super) fn read(recorded: &Recorded, virtual_host: Option<&str>) -> S3Request {
    let path = answer::decoded(recorded.path().trim_start_matches('/'));
    let (bucket, key) = match virtual_host {
        Some(bucket) => (bucket.to_owned(), path),
        None => match path.split_once('/') {
            Some((bucket, key)) => (bucket.to_owned(), key.to_owned()),
            None => (path, String::new()),
        },
    };
    let query = answer::query(&recorded.target);
    let has = |name: &str| query.contains_key(name);
    let verb = match recorded.method.as_str() {
        "POST" if recorded.body.starts_with(b"Action=AssumeRoleWithWebIdentity") => Verb::Identity,
        "GET" if key.is_empty() && has("list-type") => Verb::List,
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "PUT" if has("partNumber") => Verb::Part,
        "PUT" => Verb::Put,
        "POST" if has("uploads") => Verb::Begin,
        "POST" if has("uploadId") => Verb::Complete,
        "DELETE" if has("uploadId") => Verb::Abort,
        "DELETE" => Verb::Delete,
        _ => Verb::Other,
    };
    S3Request {
        verb,
        bucket,
        key,
        range: answer::asked(recorded),
        if_match: recorded.header("if-match").map(ToOwned::to_owned),
        if_none_match: recorded.header("if-none-match").map(ToOwned::to_owned),
        headers: recorded.headers.clone(),
        line: format!("{} {}", recorded.method, recorded.target),
        received: recorded.body.len() as u64,
        status: 0,
        sent: 0,
    }
}

/// Why a request may not be answered.
fn refused(access: &Access, request: &S3Request, recorded: &Recorded) -> Option<Answer> {
    if request.verb == Verb::Identity {
        return None;
    }
    let signed = recorded.header("authorization").and_then(|line| line.split_once("Credential=")?.1.split('/').next());
    let Some(key) = signed else { return Some(Answer::refusal(403, "AccessDenied")) };
    if access.expired.contains(key) {
        return Some(Answer::refusal(400, "ExpiredToken"));
    }
    match access.keys.get(key) {
        None => Some(Answer::refusal(403, "InvalidAccessKeyId")),
        Some(token) if token.as_deref() != recorded.header("x-amz-security-token") => {
            Some(Answer::refusal(403, "InvalidToken"))
        }
        Some(_) if access.denied.contains(&request.verb) => Some(Answer::refusal(403, "AccessDenied")),
        Some(_) => None,
    }
}

/// How an answer's body leaves.
struct Delivery {
    wait: Duration,
    piece_bytes: usize,
    between: Duration,
    /// Where in the body something happens, and what.
    turn: Option<(u64, Turn)>,
    pause_max: Option<Duration>,
}

enum Turn {
    Silence,
    Hold,
    Close,
    Reset,
    ReplaceAndClose(Bytes),
    /// The object is replaced; what is to be sent from here on is in the body already.
    Replace(Bytes),
}

/// A request that is answered; a GET counts as running as long as this lives.
struct Running<'a> {
    shared: &'a Shared,
    index: usize,
    is_get: bool,
}

impl<'a> Running<'a> {
    fn new(shared: &'a Shared, request: S3Request) -> Self {
        let is_get = request.verb == Verb::Get;
        let mut index = 0;
        shared.log.send_modify(|log| {
            index = log.requests.len();
            log.requests.push(request);
            log.gets_running += usize::from(is_get);
            log.gets_running_max = log.gets_running_max.max(log.gets_running);
        });
        Self { shared, index, is_get }
    }

    fn change(&self, change: impl FnOnce(&mut S3Request)) {
        self.shared.log.send_modify(|log| log.requests.get_mut(self.index).map(change).unwrap_or_default());
    }

    fn status(&self, status: u16) {
        self.change(|request| request.status = status);
    }

    fn sent(&self, bytes: usize) {
        self.change(|request| request.sent += bytes as u64);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shared.log.send_modify(|log| log.gets_running -= usize::from(self.is_get));
    }
}

async fn respond<W: Narrow>(
    wire: &mut W,
    buffer: &mut BytesMut,
    recorded: &Recorded,
    shared: &Shared,
) -> io::Result<After> {
    let (request, fault) = shared.take(recorded);
    let running = Running::new(shared, request.clone());
    match fault {
        Some(S3Fault::Garbage) => {
            wire.write_all(b"this is not the protocol\r\n\r\n").await?;
            wire.shutdown().await?;
            return Ok(After::Over);
        }
        Some(S3Fault::Endless) => {
            running.status(200);
            return endless(wire, &running).await;
        }
        _ => {}
    }
    let mut delivery = Delivery {
        wait: Duration::ZERO,
        piece_bytes: PIECE_BYTES,
        between: Duration::ZERO,
        turn: None,
        pause_max: None,
    };
    let answer = {
        let mut state = shared.state.lock();
        match fault {
            None => answer_of(&mut state, &request, recorded),
            Some(fault) => bent(&mut state, &request, recorded, fault, &mut delivery),
        }
    };
    if !nap(wire, buffer, delivery.wait).await {
        return Ok(After::Over);
    }
    running.status(answer.status);
    let head = head(&answer);
    wire.write_all(&head).await?;
    if request.verb == Verb::Head {
        return Ok(After::Next);
    }
    deliver(wire, buffer, &request, &answer.body, delivery, &running).await
}

fn answer_of(state: &mut State, request: &S3Request, recorded: &Recorded) -> Answer {
    refused(&state.access, request, recorded)
        .unwrap_or_else(|| answer::answer(&mut state.objects, &mut state.access, request, recorded))
}

/// An answer with its fault.
fn bent(
    state: &mut State,
    request: &S3Request,
    recorded: &Recorded,
    fault: S3Fault,
    delivery: &mut Delivery,
) -> Answer {
    match &fault {
        S3Fault::Refuse { status, code, retry_after_s } => {
            let refusal = Answer::refusal(*status, code);
            return match retry_after_s {
                Some(seconds) => refusal.line("retry-after", seconds.to_string()),
                None => refusal,
            };
        }
        S3Fault::Page => {
            let page = Bytes::from_static(b"<!doctype html><title>Log in</title><p>Please log in.");
            return Answer::new(200, page).line("content-type", "text/html".to_owned());
        }
        S3Fault::Replace { with } => replace(state, request, with.clone()),
        _ => {}
    }
    let mut answer = answer_of(state, request, recorded);
    let object = state.objects.get(&request.bucket, &request.key).cloned();
    let part = answer.range.clone().unwrap_or(0..answer.body.len() as u64);
    if answer.status < 300 {
        misplace(&mut answer, &part, object.as_ref(), &fault);
        delay(&mut answer, &part, fault, delivery);
    }
    answer
}

fn replace(state: &mut State, request: &S3Request, with: Bytes) {
    // a request for a bucket that is not there replaces nothing
    drop(state.objects.put(&request.bucket, &request.key, Object::new(with), false));
}

/// What is wrong with head and bytes.
fn misplace(answer: &mut Answer, part: &Range<u64>, object: Option<&Object>, fault: &S3Fault) {
    let whole = object.map(|object| object.content.clone()).unwrap_or_default();
    let size = whole.len() as u64;
    match *fault {
        S3Fault::WrongByte { offset } if part.contains(&offset) => {
            let mut body = BytesMut::from(&*answer.body);
            if let Some(byte) = usize::try_from(offset - part.start).ok().and_then(|at| body.get_mut(at)) {
                *byte ^= 1;
            }
            answer.body = body.freeze();
        }
        S3Fault::Shorter { by } => {
            answer.body = answer::slice(&answer.body, &(0..(answer.body.len() as u64).saturating_sub(by)));
        }
        S3Fault::WholeForRange => {
            (answer.status, answer.body) = (200, whole);
            answer.lines.retain(|(name, _)| *name != "content-range");
        }
        S3Fault::RangeUnder200 => answer.status = 200,
        S3Fault::OtherRange { shift } => {
            let length = part.end - part.start;
            let start = (part.start + shift).min(size.saturating_sub(length));
            let other = start..start + length;
            answer.body = answer::slice(&whole, &other);
            answer.lines.retain(|(name, _)| *name != "content-range");
            answer.lines.push(("content-range", answer::content_range(&other, size)));
        }
        S3Fault::NoContentRange => answer.lines.retain(|(name, _)| *name != "content-range"),
        _ => {}
    }
}

/// What is wrong with the time and the end of a body.
fn delay(answer: &mut Answer, part: &Range<u64>, fault: S3Fault, delivery: &mut Delivery) {
    match fault {
        S3Fault::Slow(wait) => delivery.wait = wait,
        S3Fault::Drip { bytes, every } => {
            delivery.piece_bytes = bytes;
            delivery.between = every;
        }
        S3Fault::Stall { after } => delivery.turn = Some((after, Turn::Silence)),
        S3Fault::Hold { after } => delivery.turn = Some((after, Turn::Hold)),
        S3Fault::Cut { after } => delivery.turn = Some((after, Turn::Close)),
        S3Fault::Reset { after } => delivery.turn = Some((after, Turn::Reset)),
        S3Fault::ShortAt { offset } if part.contains(&offset) => {
            delivery.turn = Some((offset - part.start, Turn::Close));
        }
        S3Fault::CutWhenPaused { after } => delivery.pause_max = Some(after),
        S3Fault::ReplaceAndCut { after, with } => delivery.turn = Some((after, Turn::ReplaceAndClose(with))),
        S3Fault::ReplaceAndMix { after, with } => {
            let rest = answer::slice(&with, &(part.start + after..part.end));
            let mut body = BytesMut::from(&*answer::slice(&answer.body, &(0..after)));
            body.extend_from_slice(&rest);
            // the length in the head is the old one, whatever the new object's is
            answer.length = Some(answer.body.len() as u64);
            answer.body = body.freeze();
            delivery.turn = Some((after, Turn::Replace(with)));
        }
        _ => {}
    }
}

fn head(answer: &Answer) -> Bytes {
    let mut text = format!("HTTP/1.1 {} Answer\r\n", answer.status);
    for (name, value) in &answer.lines {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if answer.status != 204 {
        text.push_str(&format!("content-length: {}\r\n", answer.length.unwrap_or(answer.body.len() as u64)));
    }
    text.push_str("\r\n");
    text.into()
}

async fn deliver<W: Narrow>(
    wire: &mut W,
    buffer: &mut BytesMut,
    request: &S3Request,
    body: &Bytes,
    delivery: Delivery,
    running: &Running<'_>,
) -> io::Result<After> {
    if delivery.pause_max.is_some() {
        wire.narrow();
    }
    let (at, turn) = delivery.turn.map_or((u64::MAX, None), |(at, turn)| (at, Some(turn)));
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(body.len());
    let pace = Pace { piece_bytes: delivery.piece_bytes, between: delivery.between, pause_max: delivery.pause_max };
    if !pieces(wire, buffer, &body[..at], &pace, running).await? {
        return Ok(After::Over);
    }
    match turn {
        None => return Ok(After::Next),
        Some(Turn::Silence) => {
            peer_left(wire, buffer).await;
            return Ok(After::Over);
        }
        Some(Turn::Hold) => hold(running.shared).await,
        Some(Turn::Close) => {
            wire.shutdown().await?;
            return Ok(After::Over);
        }
        Some(Turn::Reset) => {
            wire.make_reset();
            return Ok(After::Over);
        }
        Some(Turn::ReplaceAndClose(with)) => {
            replace(&mut running.shared.state.lock(), request, with);
            wire.shutdown().await?;
            return Ok(After::Over);
        }
        Some(Turn::Replace(with)) => replace(&mut running.shared.state.lock(), request, with),
    }
    let is_whole = pieces(wire, buffer, &body[at..], &pace, running).await?;
    Ok(if is_whole { After::Next } else { After::Over })
}

struct Pace {
    piece_bytes: usize,
    between: Duration,
    pause_max: Option<Duration>,
}

/// Sends bytes; false when the connection is over.
async fn pieces<W: Narrow>(
    wire: &mut W,
    buffer: &mut BytesMut,
    bytes: &[u8],
    pace: &Pace,
    running: &Running<'_>,
) -> io::Result<bool> {
    for (number, piece) in bytes.chunks(pace.piece_bytes.max(1)).enumerate() {
        if number > 0 && !nap(wire, buffer, pace.between).await {
            return Ok(false);
        }
        match pace.pause_max {
            None => wire.write_all(piece).await?,
            // what was taken of the piece is not known: pieces are small beside what is asserted
            Some(most) => {
                if let Ok(written) = tokio::time::timeout(most, wire.write_all(piece)).await {
                    written?;
                } else {
                    wire.make_reset();
                    return Ok(false);
                }
            }
        }
        wire.flush().await?;
        running.sent(piece.len());
    }
    Ok(true)
}

/// Waits; false when the peer left before.
async fn nap<W: Wire>(wire: &mut W, buffer: &mut BytesMut, time: Duration) -> bool {
    if time.is_zero() {
        return true;
    }
    tokio::select! {
        biased;
        () = peer_left(wire, buffer) => false,
        () = tokio::time::sleep(time) => true,
    }
}

/// Returns when the peer has closed. What it sends meanwhile is kept for the next request.
async fn peer_left<W: Wire>(wire: &mut W, buffer: &mut BytesMut) {
    use tokio::io::AsyncReadExt as _;
    while matches!(wire.read_buf(buffer).await, Ok(1..)) {}
}

/// Waits for the next release.
async fn hold(shared: &Shared) {
    struct Holding<'a>(&'a Shared);
    impl Drop for Holding<'_> {
        fn drop(&mut self) {
            self.0.log.send_modify(|log: &mut S3Log| log.holding -= 1);
        }
    }
    let mut released = shared.released.subscribe();
    shared.log.send_modify(|log| log.holding += 1);
    let _holding = Holding(shared);
    // an error is the double's own end
    drop(released.changed().await);
}

async fn endless<W: Wire>(wire: &mut W, running: &Running<'_>) -> io::Result<After> {
    wire.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let chunk = [b"1000\r\n".as_slice(), &[b' '; 0x1000], b"\r\n"].concat();
    loop {
        wire.write_all(&chunk).await?;
        wire.flush().await?;
        running.sent(0x1000);
    }
}
