//! HTTP/2: the same answers as over HTTP/1.1, and attack case A13 frame by frame.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_core::Outcome;
use tidegate_gateway::server::{H2_HEADER_LIST_MAX, H2_STREAMS_MAX, HEADER_DEADLINE};
use tidegate_testkit::fake::{Fault, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::house::{Answer, CHAT, CHAT_STREAM, House, SITE, finish, local};

const CHATS: &str = "/v1/chat/completions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

async fn house() -> House {
    House::new(SITE, vec![good()]).await
}

// As a client library speaks it.

#[derive(Clone)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// The same, with an owner who can end them.
#[derive(Clone, Default)]
struct Owned(Rc<RefCell<JoinSet<()>>>);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Owned {
    fn execute(&self, future: F) {
        self.0.borrow_mut().spawn_local(future);
    }
}

async fn connect(house: &mut House) -> SendRequest<Full<Bytes>> {
    let (sender, connection) = http2::handshake(Local, TokioIo::new(house.connect_h2())).await.unwrap();
    tokio::task::spawn_local(connection);
    sender
}

fn request(house: &House, method: Method, path: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = house.request(method, &format!("http://gate{path}"), body);
    request.headers_mut().remove("host");
    request
}

async fn ask(house: &mut House, path: &str, body: &str) -> Answer {
    let mut sender = connect(house).await;
    let request = request(house, Method::POST, path, body);
    finish(sender.send_request(request).await.unwrap()).await
}

#[test]
fn answers_and_streams_are_those_of_http_1() {
    local(async {
        let mut house = house().await;
        let answer = ask(&mut house, CHATS, CHAT).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &"chat".into()));
        let streamed = ask(&mut house, CHATS, CHAT_STREAM).await;
        assert!(streamed.text().ends_with("data: [DONE]\n\n"));
        assert!(house.entries().iter().all(|entry| entry.output_tokens == 6));
        house.assert_idle().await;
    });
}

#[test]
fn refusals_keep_the_connection_for_the_other_streams() {
    local(async {
        let mut house = house().await;
        let mut sender = connect(&mut house).await;
        for (key, body, status) in [("sk-x", CHAT, 401), ("", "{", 400), ("", CHAT, 200)] {
            let mut request = request(&house, Method::POST, CHATS, body);
            if !key.is_empty() {
                request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
            }
            let answer = finish(sender.send_request(request).await.unwrap()).await;
            assert_eq!(answer.status, status, "{answer:?}");
            assert!(answer.headers.contains_key("x-request-id"));
            assert!(!answer.headers.contains_key("connection"), "no such header in HTTP/2");
        }
    });
}

#[test]
fn a_broken_stream_ends_in_an_error_event_here_too() {
    local(async {
        let script = good().paced(Duration::ZERO, Duration::from_millis(10)).failing(Fault::Cut(2));
        let mut house = House::new(SITE, vec![script]).await;
        let answer = ask(&mut house, CHATS, CHAT_STREAM).await;
        assert!(answer.text().contains("upstream_interrupted") && !answer.text().contains("[DONE]"));
    });
}

#[test]
fn a_stream_that_is_reset_frees_its_slot_and_leaves_the_others_alone() {
    local(async {
        let slow = good().answering(200).paced(Duration::ZERO, Duration::from_millis(10));
        let mut house = House::new(SITE, vec![slow]).await;
        let mut sender = connect(&mut house).await;
        let body = CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":256");
        let first = sender.send_request(request(&house, Method::POST, CHATS, &body)).await.unwrap();
        let second = sender.send_request(request(&house, Method::POST, CHATS, &body)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(first);
        let answer = finish(second).await;
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        house.assert_idle().await;
        let entries = house.entries();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].outcome, entries[1].outcome), (Outcome::Cancelled, Outcome::Ok));
        assert!((50..=53).contains(&entries[0].output_tokens), "{}", entries[0].output_tokens);
        assert!(house.engines[0].usage_log()[0].output < 60, "the engine stopped at once");
    });
}

#[test]
fn a_connection_that_dies_ends_all_its_streams() {
    local(async {
        let slow = good().answering(200).paced(Duration::ZERO, Duration::from_millis(10));
        let mut house = House::new(SITE, vec![slow]).await;
        let tasks = Owned::default();
        let (mut sender, connection) = http2::handshake(tasks.clone(), TokioIo::new(house.connect_h2())).await.unwrap();
        tasks.0.borrow_mut().spawn_local(async { drop(connection.await) });
        let mut streams = Vec::new();
        for _ in 0..20 {
            streams.push(sender.send_request(request(&house, Method::POST, CHATS, CHAT_STREAM)).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        tasks.0.borrow_mut().abort_all();
        house.engines[0].wait_for(|log| log.running == 0).await;
        house.assert_idle().await;
        assert_eq!(house.entries().len(), 20);
        assert!(house.entries().iter().all(|entry| entry.outcome == Outcome::Cancelled));
    });
}

#[test]
fn streams_of_one_connection_are_bounded() {
    local(async {
        let slow = good().paced(Duration::from_secs(60), Duration::ZERO);
        let mut house = House::new(SITE, vec![slow]).await;
        let sender = connect(&mut house).await;
        let mut pending = Vec::new();
        for _ in 0..H2_STREAMS_MAX + 5 {
            let (mut sender, request) = (sender.clone(), request(&house, Method::POST, CHATS, CHAT));
            pending.push(tokio::task::spawn_local(async move { sender.send_request(request).await }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(house.engines[0].log().running, H2_STREAMS_MAX as usize, "the rest waits at the client");
        for answer in pending {
            assert_eq!(answer.await.unwrap().unwrap().status(), 200);
        }
        assert_eq!(house.engines[0].log().running_max, H2_STREAMS_MAX as usize);
    });
}

#[test]
fn a_large_body_arrives_through_the_windows() {
    local(async {
        let mut house = house().await;
        let body = CHAT.replace("hi", &"x".repeat(3 << 20));
        let mut script = good();
        script.context_tokens = 1 << 40;
        house.engines[0].set(script);
        let answer = ask(&mut house, CHATS, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(house.engines[0].runs()[0].body.len() > 3 << 20);
    });
}

#[test]
fn a_slow_body_is_408_here_too() {
    local(async {
        let mut house = house().await;
        let (mut sender, connection) = http2::handshake::<
            _,
            _,
            http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>,
        >(Local, TokioIo::new(house.connect_h2()))
        .await
        .unwrap();
        tokio::task::spawn_local(connection);
        let (parts, _) = request(&house, Method::POST, CHATS, "").into_parts();
        let (_held, receiver) = tokio::sync::mpsc::channel::<()>(1);
        let body = Never(receiver).boxed();
        let start = Instant::now();
        let answer = sender.send_request(Request::from_parts(parts, body)).await.unwrap();
        assert_eq!(answer.status(), 408);
        assert!((10_000..10_100).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    });
}

/// A body of which nothing comes.
struct Never(tokio::sync::mpsc::Receiver<()>);

impl hyper::body::Body for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|_| None)
    }
}

#[test]
fn a_drain_says_goaway_and_lets_streams_finish() {
    local(async {
        let slow = good().answering(50).paced(Duration::ZERO, Duration::from_millis(10));
        let mut house = House::new(SITE, vec![slow]).await;
        let mut sender = connect(&mut house).await;
        let body = CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":256");
        let running = sender.send_request(request(&house, Method::POST, CHATS, &body)).await.unwrap();
        house.gate.drain();
        house.settle().await;
        assert!(finish(running).await.text().ends_with("[DONE]\n\n"));
        assert!(sender.ready().await.is_err(), "the connection takes nothing new");
        assert_eq!(house.shared.metrics.connections.get(), 0);
    });
}

#[test]
fn hosts_with_two_readings_are_refused_here_too() {
    local(async {
        for (authority, host) in [("gate", Some("other")), ("a@b", None), ("gate", Some("gate"))] {
            let mut house = house().await;
            let mut wire = Wire::open(&mut house).await;
            let mut fields = head("POST", CHATS, authority);
            fields.extend(field("x-api-key", &house.key));
            if let Some(host) = host {
                fields.extend(field("host", host));
            }
            wire.send(HEADERS, END_STREAM | END_HEADERS, 1, &fields).await;
            let frames = wire.listen().await;
            let refused = authority != "gate" || host == Some("other");
            assert_eq!(house.entries().is_empty(), refused, "{authority} {host:?}: {frames:?}");
            assert_eq!(house.runs(), 0);
        }
    });
}

// Frame by frame.

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    let mut out = vec![len[1], len[2], len[3], kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A header field without Huffman coding: literal, not indexed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        integer(&mut out, 7, 0, text.len());
        out.extend(text.as_bytes());
    }
    out
}

/// An integer of RFC 7541, behind the high bits of its first byte.
fn integer(out: &mut Vec<u8>, prefix: u32, high: u8, mut value: usize) {
    let max = (1_usize << prefix) - 1;
    if value < max {
        out.push(high | value as u8);
        return;
    }
    out.push(high | max as u8);
    value -= max;
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

fn head(method: &str, path: &str, authority: &str) -> Vec<u8> {
    [field(":method", method), field(":scheme", "http"), field(":path", path), field(":authority", authority)].concat()
}

/// A connection, frame by frame. The reading side may be left alone, as an attacker leaves it.
struct Wire {
    stream: DuplexStream,
    is_open: bool,
}

impl Wire {
    async fn open(house: &mut House) -> Self {
        let mut wire = Self { stream: house.connect_h2(), is_open: true };
        wire.write(PREFACE).await;
        wire.send(SETTINGS, 0, 0, &[]).await;
        wire
    }

    /// Writes, unless the gate has closed or takes nothing more.
    async fn write(&mut self, bytes: &[u8]) {
        let wrote = tokio::time::timeout(Duration::from_secs(1), self.stream.write_all(bytes)).await;
        self.is_open &= matches!(wrote, Ok(Ok(())));
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, stream, payload)).await;
    }

    /// Kinds of all frames that the gate sends until it is silent or closes.
    async fn listen(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(Ok(len @ 1..)) = tokio::time::timeout(Duration::from_secs(1), self.stream.read(&mut buffer)).await
        {
            bytes.extend_from_slice(&buffer[..len]);
        }
        let mut kinds = Vec::new();
        let mut rest = &bytes[..];
        while let [a, b, c, kind, ..] = *rest {
            kinds.push(kind);
            let len = u32::from_be_bytes([0, a, b, c]) as usize + 9;
            rest = rest.get(len..).unwrap_or_default();
        }
        kinds
    }

    async fn is_closed(&mut self) -> bool {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            match tokio::time::timeout(Duration::from_secs(1), self.stream.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Floods until the gate has had enough, at most `most` times, and returns how often.
async fn flood(wire: &mut Wire, most: usize, one: impl Fn(usize) -> Vec<u8>) -> usize {
    for n in 0..most {
        wire.write(&one(n)).await;
        if !wire.is_open {
            return n;
        }
        if n % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    most
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Set in a process that runs one flood and nothing else, so that its memory says something.
const ALONE: &str = "TIDEGATE_TEST_ALONE";

/// Runs a flood on one connection beside an honest caller on another.
fn under(attack: impl AsyncFnOnce(&House, &mut Wire)) {
    local(async {
        let mut house = house().await;
        let mut honest = connect(&mut house).await;
        let ask = request(&house, Method::POST, CHATS, CHAT);
        assert_eq!(honest.send_request(ask).await.unwrap().status(), 200);
        let mut wire = Wire::open(&mut house).await;
        let before = resident();
        attack(&house, &mut wire).await;
        if std::env::var_os(ALONE).is_some() {
            let grown = resident().saturating_sub(before);
            assert!(grown < 32 << 20, "{grown} bytes");
        }
        for _ in 0..3 {
            let ask = request(&house, Method::POST, CHATS, CHAT);
            assert_eq!(honest.send_request(ask).await.unwrap().status(), 200, "another connection is not disturbed");
        }
        drop(wire);
        house.assert_idle().await;
    });
}

#[test]
fn a13_streams_opened_and_reset_are_cut_off() {
    under(async |house, wire| {
        let fields = [head("POST", CHATS, "gate"), field("x-api-key", &house.key)].concat();
        let sent = flood(wire, 10_000, |n| {
            let stream = 1 + 2 * n as u32;
            [frame(HEADERS, END_HEADERS, stream, &fields), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        })
        .await;
        assert!(sent < 10_000, "never cut off");
        assert_eq!(house.runs(), 1);
    });
}

#[test]
fn a13_headers_without_an_end_are_cut_off() {
    under(async |_, wire| {
        wire.send(HEADERS, END_STREAM, 1, &head("GET", "/v1/models", "gate")).await;
        let sent =
            flood(wire, 10_000, |n| frame(CONTINUATION, 0, 1, &field(&format!("x-{n}"), &"y".repeat(1_000)))).await;
        assert!(sent < 1_000, "{sent}");
    });
}

#[test]
fn a13_empty_frames_are_cut_off() {
    under(async |house, wire| {
        let fields = [head("POST", CHATS, "gate"), field("x-api-key", &house.key)].concat();
        wire.send(HEADERS, END_HEADERS, 1, &fields).await;
        let sent = flood(wire, 1_000_000, |_| frame(DATA, 0, 1, &[])).await;
        assert!(sent < 1_000_000, "never cut off");
    });
}

#[test]
fn a13_settings_and_pings_that_nobody_reads_the_answers_of_are_bounded() {
    for kind in [SETTINGS, PING] {
        under(async |_, wire| {
            let payload: &[u8] = if kind == PING { &[0; 8] } else { &[] };
            // Whether the gate closes or just stops reading: what it holds is bounded, and this connection's loss alone.
            flood(wire, 100_000, |_| frame(kind, 0, 0, payload)).await;
        });
    }
}

#[test]
fn a13_a_header_list_that_unpacks_without_bound_never_becomes_a_request() {
    under(async |house, wire| {
        // One large field in the dynamic table, then named by one byte each, thousands of times.
        let mut block = head("GET", "/v1/models", "gate");
        block.extend(field("x-api-key", &house.key));
        block.push(0x40);
        for text in ["x-bomb", &"b".repeat(3_900)] {
            integer(&mut block, 7, 0, text.len());
            block.extend(text.as_bytes());
        }
        block.extend(std::iter::repeat_n(0x80 | 62, 10_000));
        wire.send(HEADERS, END_STREAM | END_HEADERS, 1, &block).await;
        let frames = wire.listen().await;
        assert!(house.entries().iter().all(|entry| entry.endpoint.as_ref() != "/v1/models"), "{frames:?}");
        assert!(frames.iter().any(|kind| [HEADERS, RST_STREAM, GOAWAY].contains(kind)), "{frames:?}");
    });
}

#[test]
fn a_header_list_at_the_bound_is_a_request_and_over_it_is_not() {
    local(async {
        for (more, passes) in [(0, true), (64, false)] {
            let mut house = house().await;
            let mut wire = Wire::open(&mut house).await;
            let plain = [head("GET", "/v1/models", "gate"), field("x-api-key", &house.key)].concat();
            // RFC 9113 counts 32 bytes for each field beside its name and value.
            let used: usize =
                [(":method", "GET"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "gate")]
                    .iter()
                    .chain([&("x-api-key", house.key.as_str())])
                    .map(|(name, value)| name.len() + value.len() + 32)
                    .sum();
            // The library under us lets pass what is below the bound.
            let room = H2_HEADER_LIST_MAX as usize - used - 33 - 1;
            let block = [plain, field("x", &"y".repeat(room + more))].concat();
            let (first, rest) = block.split_at(16_000);
            wire.send(HEADERS, END_STREAM, 1, first).await;
            wire.send(CONTINUATION, END_HEADERS, 1, rest).await;
            let frames = wire.listen().await;
            assert_eq!(house.entries().len() == 1, passes, "{frames:?}");
        }
    });
}

#[test]
fn a13_memory_stays_bounded_under_every_flood() {
    let program = std::env::current_exe().unwrap();
    for name in [
        "a13_streams_opened_and_reset_are_cut_off",
        "a13_headers_without_an_end_are_cut_off",
        "a13_empty_frames_are_cut_off",
        "a13_settings_and_pings_that_nobody_reads_the_answers_of_are_bounded",
        "a13_a_header_list_that_unpacks_without_bound_never_becomes_a_request",
    ] {
        let output = std::process::Command::new(&program)
            .args([&format!("h2::{name}"), "--exact", "--test-threads=1"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}");
    }
}

/// Floods on one connection after the other, for as long as it is let. `frames` counts those that the gate took.
async fn flood_for_ever(
    house: Rc<RefCell<House>>,
    frames: Rc<Cell<u64>>,
    first: Vec<u8>,
    one: impl Fn(u32) -> Vec<u8>,
) {
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &first].concat();
    loop {
        let mut stream = house.borrow_mut().connect_h2();
        let mut next = Some(opening.clone());
        for n in 0.. {
            let bytes = next.take().unwrap_or_else(|| one(n));
            // Where the gate takes nothing more it is no flood either: another connection is.
            let took = tokio::select! {
                biased;
                wrote = stream.write_all(&bytes) => wrote.is_ok(),
                () = turns_pass(64) => false,
            };
            if !took {
                break;
            }
            frames.set(frames.get() + 1);
            if n % 64 == 0 {
                turns_pass(1).await;
            }
        }
    }
}

/// Lets all others run, so many times.
async fn turns_pass(mut count: u32) {
    std::future::poll_fn(|context| {
        if count == 0 {
            return Poll::Ready(());
        }
        count -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Turns that 99 of 100 honest requests need at most. No engine is asked: its turns would be ours, too.
async fn p99(house: &RefCell<House>) -> u64 {
    let answers = {
        let mut house = house.borrow_mut();
        let requests = (0..100).map(|_| house.request(Method::GET, "/v1/models", "")).collect();
        house.in_turns(requests)
    };
    let answers = answers.await.unwrap();
    assert!(answers.iter().all(|(_, answer)| answer.status == 200));
    let mut turns: Vec<_> = answers.iter().map(|(turns, _)| *turns).collect();
    turns.sort_unstable();
    turns[98]
}

type Flood = (&'static str, Vec<u8>, Box<dyn Fn(u32) -> Vec<u8>>);

/// Their names, what opens the connection, and what then comes again and again.
fn floods(key: &str) -> [Flood; 6] {
    let key = field("x-api-key", key);
    let get = head("GET", "/v1/models", "gate");
    let post = [head("POST", CHATS, "gate"), key.clone()].concat();
    let mut bomb = [get.clone(), key, vec![0x40]].concat();
    for text in ["x-bomb", &"b".repeat(3_900)] {
        integer(&mut bomb, 7, 0, text.len());
        bomb.extend(text.as_bytes());
    }
    bomb.extend(std::iter::repeat_n(0x80 | 62, 10_000));
    let endless = frame(HEADERS, END_STREAM, 1, &get);
    let upload = frame(HEADERS, END_HEADERS, 1, &post);
    let reset = move |n| {
        let stream = 1 + 2 * n;
        [frame(HEADERS, END_HEADERS, stream, &post), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    };
    let more = |n| frame(CONTINUATION, 0, 1, &field(&format!("x-{n}"), &"y".repeat(1_000)));
    [
        ("resets", vec![], Box::new(reset)),
        ("continuations", endless, Box::new(more)),
        ("empty data", upload, Box::new(|_| frame(DATA, 0, 1, &[]))),
        ("settings", vec![], Box::new(|_| frame(SETTINGS, 0, 0, &[]))),
        ("pings", vec![], Box::new(|_| frame(PING, 0, 0, &[0; 8]))),
        ("bombs", vec![], Box::new(move |n| frame(HEADERS, END_STREAM | END_HEADERS, 1 + 2 * n, &bomb))),
    ]
}

#[test]
fn a13_another_client_waits_at_most_twice_as_many_turns_beside_every_flood() {
    local(async {
        let house = house().await;
        let key = house.key.clone();
        let house = Rc::new(RefCell::new(house));
        let quiet = p99(&house).await;
        for (name, first, one) in floods(&key) {
            let frames = Rc::new(Cell::new(0));
            let mut attack = JoinSet::new();
            attack.spawn_local(flood_for_ever(Rc::clone(&house), Rc::clone(&frames), first, one));
            let noisy = p99(&house).await;
            assert!(frames.get() > 1_000, "{name}: {} frames are no flood", frames.get());
            assert!(noisy <= 2 * quiet, "{name}: {noisy} turns instead of {quiet}, beside {} frames", frames.get());
            attack.shutdown().await;
        }
    });
}

#[test]
fn d03_a_peer_that_never_sends_a_request_is_closed_at_the_header_deadline() {
    local(async {
        for bytes in [&b""[..], b"PRI * HT", PREFACE, &[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()] {
            let mut house = house().await;
            let mut stream = house.connect_h2();
            stream.write_all(bytes).await.unwrap();
            let start = Instant::now();
            let mut wire = Wire { stream, is_open: true };
            while !wire.is_closed().await {
                assert!(start.elapsed() < Duration::from_secs(60), "never closed: {bytes:?}");
            }
            assert!(start.elapsed() <= HEADER_DEADLINE + Duration::from_secs(1), "{:?}", start.elapsed());
        }
    });
}

#[test]
fn a_peer_that_vanished_is_closed_when_it_answers_no_ping() {
    local(async {
        let mut house = house().await;
        let mut wire = Wire::open(&mut house).await;
        let fields = [head("GET", "/v1/models", "gate"), field("x-api-key", &house.key)].concat();
        wire.send(HEADERS, END_STREAM | END_HEADERS, 1, &fields).await;
        house.settle().await;
        assert_eq!(house.entries().len(), 1);
        let start = Instant::now();
        while !wire.is_closed().await {
            assert!(start.elapsed() < Duration::from_secs(120), "never closed");
        }
        assert!(start.elapsed() <= Duration::from_secs(45), "{:?}", start.elapsed());
    });
}
