//! The HTTP/1.1 client, byte by byte.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use proptest::prelude::*;
use tidegate_engine::client::{CallOptions, ClientError, Endpoint, Head, Method, Pool, PoolSettings, replay};
use tokio::io::AsyncReadExt as _;

use crate::memory::{Memory, pool};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

#[tokio::test]
async fn one_request_goes_out_whole_and_its_connection_is_used_again() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    for turn in 0..3 {
        let head = Head::post_json("/v1/chat/completions").with_request_id("attempt-1");
        let (response, request) = tokio::join!(pool.send(head, Bytes::from_static(b"{\"a\":1}")), async {
            let request = engine.request(7).await;
            engine.say(OK).await;
            request
        });
        let response = response.unwrap();
        assert_eq!(response.head.status, 200);
        assert!(response.head.is_json());
        assert_eq!(response.body.collect(2).await.unwrap(), "{}");
        assert_eq!(
            request,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: engine:8000\r\nauthorization: Bearer sk-e\r\n\
             content-type: application/json\r\nx-request-id: attempt-1\r\ncontent-length: 7\r\n\r\n{\"a\":1}",
            "turn {turn}"
        );
    }
    assert_eq!(memory.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_arrives_together_leaves_together_and_what_arrives_alone_leaves_at_once() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::post_json("/x"), Bytes::new()), async {
        engine.request(0).await;
        engine.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
    });
    let mut body = response.unwrap().body;
    assert_eq!(body.frame().await.unwrap().unwrap(), "one");
    engine.say("3\r\ntwo\r\n5\r\nthree\r\n4\r\nfo").await;
    assert_eq!(body.frame().await.unwrap().unwrap(), "twothreefo");
    engine.say("ur\r").await;
    assert_eq!(body.frame().await.unwrap().unwrap(), "ur");
    assert_eq!(pool.idle_count(), 0);
    engine.say("\n0\r\n\r\n").await;
    assert!(body.frame().await.is_none());
    assert!(body.is_end());
    assert_eq!(pool.idle_count(), 1, "the connection is back");
}

#[tokio::test]
async fn a_dropped_body_closes_the_connection_so_that_the_engine_stops() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::post_json("/x"), Bytes::new()), async {
        engine.request(0).await;
        engine.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
    });
    drop(response.unwrap());
    assert_eq!(engine.0.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(pool.idle_count(), 0);
}

#[tokio::test]
async fn a_pooled_connection_that_the_engine_had_closed_is_replaced_without_anybody_noticing() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut first = memory.prepare(1024);
    let mut second = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        first.request(0).await;
        first.say(OK).await;
    });
    response.unwrap();
    assert_eq!(pool.idle_count(), 1);
    drop(first);
    let (response, request) = tokio::join!(pool.send(Head::post_json("/b"), Bytes::from_static(b"{}")), async {
        let request = second.request(2).await;
        second.say(OK).await;
        request
    });
    assert_eq!(response.unwrap().head.status, 200);
    assert!(request.ends_with("content-length: 2\r\n\r\n{}"));
    assert_eq!(memory.opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_request_is_not_repeated_once_a_byte_of_the_answer_came() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let spare = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        engine.request(0).await;
        engine.say(OK).await;
    });
    response.unwrap();
    let (response, ()) = tokio::join!(pool.send(Head::get("/b"), Bytes::new()), async {
        engine.request(0).await;
        engine.say("HTTP/1.1 20").await;
        drop(engine);
    });
    assert!(matches!(response.unwrap_err(), ClientError::Truncated));
    assert_eq!(memory.opened.load(Ordering::SeqCst), 1);
    drop(spare);
}

#[tokio::test]
async fn a_new_connection_that_closes_at_once_is_an_error_and_not_a_loop() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        engine.request(0).await;
        drop(engine);
    });
    let error = response.unwrap_err();
    assert!(error.before_response() && !error.is_own(), "{error:?}");
    assert!(matches!(pool.send(Head::get("/a"), Bytes::new()).await.unwrap_err(), ClientError::Connect(_)));
}

#[tokio::test]
async fn bytes_after_the_answer_cost_the_connection() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        engine.request(0).await;
        engine.say(format!("{OK}HTTP/1.1 200 OK\r\n\r\n")).await;
    });
    assert_eq!(response.unwrap().body.collect(9).await.unwrap(), "{}");
    assert_eq!(pool.idle_count(), 0);
}

#[tokio::test]
async fn interim_answers_are_skipped_and_bounded() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let interim = |n: usize| "HTTP/1.1 100 Continue\r\n\r\n".repeat(n);
    for (n, is_ok) in [(0, true), (8, true), (9, false)] {
        let mut engine = memory.prepare(4096);
        pool.clear();
        let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
            engine.request(0).await;
            engine.say(format!("{}{OK}", interim(n))).await;
        });
        assert_eq!(response.is_ok(), is_ok, "{n}");
    }
}

#[tokio::test]
async fn a_head_request_and_an_answer_without_content_leave_the_connection_usable() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let head = Head { method: Method::Head, ..Head::get("/health") };
    for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"] {
        let (response, ()) = tokio::join!(pool.send(head, Bytes::new()), async {
            engine.request(0).await;
            engine.say(answer).await;
        });
        assert!(response.unwrap().body.is_end());
        assert_eq!(pool.idle_count(), 1);
    }
}

#[tokio::test]
async fn an_answer_that_ends_by_close_is_given_out_and_its_connection_is_not_kept() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        engine.request(0).await;
        engine.say("HTTP/1.1 200 OK\r\n\r\nabc").await;
    });
    let mut body = response.unwrap().body;
    assert_eq!(body.frame().await.unwrap().unwrap(), "abc");
    drop(engine);
    assert!(body.frame().await.is_none());
    assert_eq!(pool.idle_count(), 0);
}

#[tokio::test]
async fn an_answer_that_is_cut_says_so() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    for rest in ["content-length: 9\r\n\r\nabc", "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"] {
        let mut engine = memory.prepare(1024);
        let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
            engine.request(0).await;
            engine.say(format!("HTTP/1.1 200 OK\r\n{rest}")).await;
        });
        let mut body = response.unwrap().body;
        assert_eq!(body.frame().await.unwrap().unwrap(), "abc");
        drop(engine);
        assert!(matches!(body.frame().await.unwrap().unwrap_err(), ClientError::Truncated));
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn a_body_that_still_arrives_is_passed_on_in_chunks_or_by_its_length() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let pieces = || Pieces(vec!["--b\r\n", "", "file bytes"].into_iter());
    let head =
        Head { content_type: Some("multipart/form-data; boundary=b"), ..Head::post_json("/v1/audio/transcriptions") };
    let mut engine = memory.prepare(1024);
    let (response, request) = tokio::join!(pool.send_stream(head, None, pieces()), async {
        let request = engine.until(b"0\r\n\r\n").await;
        engine.say(OK).await;
        request
    });
    assert_eq!(response.unwrap().head.status, 200);
    let request = String::from_utf8(request).unwrap();
    assert!(request.contains("transfer-encoding: chunked\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n5\r\n--b\r\n\r\na\r\nfile bytes\r\n0\r\n\r\n"), "{request}");

    let mut engine = memory.prepare(1024);
    let (response, request) = tokio::join!(pool.send_stream(head, Some(15), pieces()), async {
        let request = engine.request(15).await;
        engine.say(OK).await;
        request
    });
    assert_eq!(response.unwrap().head.status, 200);
    assert!(request.ends_with("content-length: 15\r\n\r\n--b\r\nfile bytes"), "{request}");

    for wrong in [14, 16] {
        let _engine = memory.prepare(1024);
        let error = pool.send_stream(head, Some(wrong), pieces()).await.unwrap_err();
        assert!(matches!(error, ClientError::RequestBody(_)), "{error:?}");
    }
}

/// A request body of ready pieces.
struct Pieces(std::vec::IntoIter<&'static str>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(Bytes::from(piece)))))
    }
}

#[tokio::test]
async fn an_engine_that_refuses_before_it_read_the_body_is_heard() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    // Far less room than the body needs: the request can never be sent whole.
    let mut engine = memory.prepare(256);
    let (response, ()) = tokio::join!(pool.send(Head::post_json("/a"), Bytes::from(vec![b' '; 4096])), async {
        engine.request(0).await;
        engine.say("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await;
    });
    assert_eq!(response.unwrap().head.status, 413);
    assert_eq!(pool.idle_count(), 0, "half a request lies in that connection");
}

#[tokio::test(start_paused = true)]
async fn idle_connections_grow_old_and_are_bounded() {
    let memory = Arc::new(Memory::default());
    let settings = PoolSettings { idle_max: 2, ..PoolSettings::default() };
    let connect: Arc<dyn tidegate_engine::client::Connect> = Arc::clone(&memory) as _;
    let pool = Pool::new(Endpoint::custom(connect, "e", None).unwrap(), settings);
    let mut engines = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..3 {
        let mut engine = memory.prepare(1024);
        let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
            engine.request(0).await;
            engine.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await;
        });
        bodies.push(response.unwrap().body);
        engines.push(engine);
    }
    for (engine, body) in engines.iter_mut().zip(bodies) {
        engine.say("{}").await;
        body.collect(2).await.unwrap();
    }
    assert_eq!(pool.idle_count(), 2, "over the bound the oldest goes");
    tokio::time::advance(settings.idle - Duration::from_millis(1)).await;
    pool.prune();
    assert_eq!(pool.idle_count(), 2);
    tokio::time::advance(Duration::from_millis(1)).await;
    pool.prune();
    assert_eq!(pool.idle_count(), 0);
}

#[tokio::test]
async fn a_socket_that_the_engine_closed_is_not_taken_from_the_pool() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let pool = Pool::new(Endpoint::parse(&url, None, None).unwrap(), PoolSettings::default());
    let answer = async |close: bool| {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(socket.read_u8().await.unwrap());
        }
        tokio::io::AsyncWriteExt::write_all(&mut socket, OK.as_bytes()).await.unwrap();
        (!close).then_some(socket)
    };
    let (response, _) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), answer(true));
    response.unwrap().body.collect(2).await.unwrap();
    assert_eq!(pool.idle_count(), 1);
    // The poller has to see the close; a second exchange cannot be answered before that.
    while pool.idle_count() > 0 {
        tokio::task::yield_now().await;
        pool.prune();
    }
    let (response, socket) = tokio::join!(pool.send(Head::get("/b"), Bytes::new()), answer(false));
    assert_eq!(response.unwrap().body.collect(2).await.unwrap(), "{}");
    pool.prune();
    assert_eq!(pool.idle_count(), 1, "an open one stays");
    drop(socket);
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_a_connect_fault() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let pool = Pool::new(Endpoint::parse(&url, None, None).unwrap(), PoolSettings::default());
    assert!(matches!(pool.send(Head::get("/"), Bytes::new()).await.unwrap_err(), ClientError::Connect(_)));
}

#[derive(Debug)]
struct Never;
impl tidegate_engine::client::Connect for Never {
    fn connect(&self) -> tidegate_engine::client::Connecting {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_connect_that_never_ends_meets_its_deadline() {
    let endpoint = Endpoint::custom(Arc::new(Never), "e", None).unwrap();
    let pool = Pool::new(endpoint, PoolSettings { connect: Duration::from_secs(2), ..PoolSettings::default() });
    let start = tokio::time::Instant::now();
    let error = pool.send(Head::get("/"), Bytes::new()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectTimeout(_)));
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

/// Responses of every framing, good and bad, with their bytes changed here and there.
fn response() -> impl Strategy<Value = Vec<u8>> {
    let chunk = prop::collection::vec(any::<u8>(), 1..40)
        .prop_map(|data| [format!("{:X}\r\n", data.len()).into_bytes(), data, b"\r\n".to_vec()].concat());
    let chunked = prop::collection::vec(chunk, 0..8).prop_map(|chunks| {
        let mut all = b"transfer-encoding: chunked\r\n\r\n".to_vec();
        all.extend(chunks.concat());
        all.extend(b"0\r\nx: y\r\n\r\n");
        all
    });
    let sized = prop::collection::vec(any::<u8>(), 0..200)
        .prop_map(|data| [format!("content-length: {}\r\n\r\n", data.len()).into_bytes(), data].concat());
    let closed = prop::collection::vec(any::<u8>(), 0..200).prop_map(|data| [b"\r\n".to_vec(), data].concat());
    let interim = prop_oneof![3 => Just(""), 1 => Just("HTTP/1.1 103 Early\r\na: b\r\n\r\n")];
    let bytes = (interim, prop_oneof![chunked, sized, closed], prop::collection::vec(any::<u8>(), 0..4)).prop_map(
        |(interim, rest, surplus)| {
            let mut all = interim.as_bytes().to_vec();
            all.extend(b"HTTP/1.1 200 OK\r\nserver: x\r\n");
            all.extend(rest);
            all.extend(surplus);
            all
        },
    );
    let damage = prop::option::of((any::<prop::sample::Index>(), any::<u8>()));
    (bytes, damage).prop_map(|(mut bytes, damage)| {
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_split_of_a_response_is_read_the_same(bytes in response(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        prop_assert_eq!(replay::read([&bytes[..]]), replay::read(pieces));
    }

    #[test]
    fn a_response_read_byte_by_byte_is_read_the_same(bytes in response()) {
        prop_assert_eq!(replay::read([&bytes[..]]), replay::read(bytes.chunks(1)));
    }

    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        tidegate_engine::fuzz::response(&bytes);
    }
}

#[tokio::test]
async fn the_body_is_an_http_body() {
    let memory = Arc::new(Memory::default());
    let pool = pool(&memory);
    let mut engine = memory.prepare(1024);
    let (response, ()) = tokio::join!(pool.send(Head::get("/a"), Bytes::new()), async {
        engine.request(0).await;
        engine.say(OK).await;
    });
    let body = response.unwrap().body;
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(2));
    assert_eq!(http_body_util::BodyExt::collect(body).await.unwrap().to_bytes(), "{}");
}

#[tokio::test(start_paused = true)]
async fn a_call_may_have_a_connect_deadline_of_its_own() {
    let pool = Pool::new(Endpoint::custom(Arc::new(Never), "engine", None).unwrap(), PoolSettings::default());
    let options = CallOptions { connect: Duration::from_millis(70), sent: || panic!("nothing was sent") };
    let head = || Head::post_json("/x");
    let began = tokio::time::Instant::now();
    let error = pool.send_with(head(), Bytes::from_static(b"{}"), options).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectTimeout(within) if within == options.connect), "{error}");
    assert_eq!(began.elapsed().as_millis() / 10, 7);
    let body = http_body_util::Full::new(Bytes::from_static(b"{}"));
    let error = pool.send_stream_with(head(), Some(2), body, options).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectTimeout(within) if within == options.connect), "{error}");
    let error = pool.send(head(), Bytes::new()).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectTimeout(within) if within == PoolSettings::default().connect));
}
