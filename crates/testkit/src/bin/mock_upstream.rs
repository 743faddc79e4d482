//! A model server for benches that must never be the bottleneck: it generates nothing and only writes.
//!
//! Unstreamed requests get 964 bytes of JSON; streams get 67 events of about 200 bytes, in one write or one every so
//! many milliseconds, with usage on every event when the request asks for it. Everything it says is made at the start.
//!
//! The pace of one request is, in this order: query `pace_ms=`, header `x-mock-pace-ms`, the served name (one that
//! ends in `paced` has 10 ms), the command line. So a bench can choose it through a proxy that passes on nothing but
//! the body.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use clap::Parser;
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Bytes of an unstreamed answer's body.
const JSON_BYTES: usize = 964;
/// Events of a stream, the final chunk included, `[DONE]` and the usage chunk not.
const EVENTS: usize = 67;
/// Pace of a served name that ends in `paced`.
const PACED: Duration = Duration::from_millis(10);
/// Largest request taken.
const REQUEST_MAX: usize = 64 << 20;

#[derive(Parser)]
#[command(about = "a model server for benches: writes prepared answers as fast as it can")]
struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:18090")]
    listen: SocketAddr,
    /// Serving threads; all accept from one socket
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Milliseconds between the events of a stream; 0 writes it at once
    #[arg(long, default_value_t = 0)]
    pace_ms: u64,
    /// A served name; may be given several times
    #[arg(long = "model", default_values_t = ["mock".to_owned(), "mock-paced".to_owned()])]
    models: Vec<String>,
}

/// Everything one served name says.
struct Said {
    needle: Vec<u8>,
    pace: Option<Duration>,
    json: Vec<u8>,
    /// Without usage, with a usage chunk at the end, with usage on every event.
    streams: [Vec<Vec<u8>>; 3],
    bursts: [Vec<u8>; 3],
}

struct Mock {
    said: Vec<Said>,
    models: Vec<u8>,
    pace: Duration,
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nserver: mock\r\n";
const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    transfer-encoding: chunked\r\n\r\n";
const METRICS: &str = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0.0\n\
    # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0.0\n\
    # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.0\n";

fn main() -> io::Result<()> {
    let args = Args::parse();
    let mock: &'static Mock = Box::leak(Box::new(Mock::new(&args)));
    let listener = bind(args.listen)?;
    let serve_apart = |_| -> io::Result<_> {
        let listener = listener.try_clone()?;
        Ok(std::thread::spawn(move || -> io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(serve(mock, listener))
        }))
    };
    let threads = (0..args.threads.max(1)).map(serve_apart).collect::<io::Result<Vec<_>>>()?;
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a serving thread panicked"))??;
    }
    Ok(())
}

/// The one socket that all threads accept from: were each to bind its own, sharing the port, a second process would share
/// it too, and a bench would measure both.
fn bind(listen: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(listen), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&listen.into())?;
    socket.listen(4_096)?;
    Ok(socket.into())
}

async fn serve(mock: &'static Mock, listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                connections.spawn(connection(mock, stream));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(mock: &Mock, mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(16 * 1024);
    loop {
        let end = loop {
            if let Some(end) = request_end(&buffer) {
                break end;
            }
            if buffer.len() > REQUEST_MAX || stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let request = buffer.split_to(end);
        mock.answer(&mut stream, &request).await?;
        buffer.reserve(4 * 1024);
    }
}

/// Where the request ends that the buffer begins with, once all of it is there.
fn request_end(buffer: &[u8]) -> Option<usize> {
    let head = memmem::find(buffer, b"\r\n\r\n")? + 4;
    let body = &buffer[head..];
    if let Some(length) = header(&buffer[..head], b"content-length:") {
        let end = head + usize::try_from(length).ok()?;
        return (buffer.len() >= end).then_some(end);
    }
    if header_at(&buffer[..head], b"transfer-encoding:").is_none() {
        return Some(head);
    }
    // Chunks come from proxies that stream: the last one is what counts.
    if body.starts_with(b"0\r\n\r\n") {
        return Some(head + 5);
    }
    memmem::find(body, b"\r\n0\r\n\r\n").map(|at| head + at + 7)
}

fn header_at(head: &[u8], name: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', head)
        .map(|at| at + 1)
        .find(|&at| head.get(at..at + name.len()).is_some_and(|line| line.eq_ignore_ascii_case(name)))
        .map(|at| at + name.len())
}

fn header(head: &[u8], name: &[u8]) -> Option<u64> {
    number(head[header_at(head, name)?..].trim_ascii_start())
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

impl Mock {
    fn new(args: &Args) -> Self {
        let listed: Vec<_> = args
            .models
            .iter()
            .map(|model| format!(r#"{{"id":"{model}","object":"model","owned_by":"vllm","max_model_len":131072}}"#))
            .collect();
        let models = format!(r#"{{"object":"list","data":[{}]}}"#, listed.join(","));
        Self {
            said: args.models.iter().map(|model| Said::new(model)).collect(),
            models: whole("application/json", models.as_bytes()),
            pace: Duration::from_millis(args.pace_ms),
        }
    }

    async fn answer(&self, stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
        let head = memmem::find(request, b"\r\n\r\n").unwrap_or(request.len());
        let (head, body) = request.split_at(head);
        if head.starts_with(b"GET ") {
            return self.answer_get(stream, head).await;
        }
        // The needle holds both quotes, so that `mock` is not found in `mock-paced`.
        let found = self.said.iter().find(|said| memmem::find(body, &said.needle).is_some());
        let Some(said) = found.or_else(|| self.said.first()) else { return Ok(()) };
        if !has_true(body, b"\"stream\"") {
            return stream.write_all(&said.json).await;
        }
        let usage = match (has_true(body, b"\"continuous_usage_stats\""), has_true(body, b"\"include_usage\"")) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        let pace = self.pace_of(head, said);
        if pace.is_zero() {
            return stream.write_all(&said.bursts[usage]).await;
        }
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        stream.write_all(STREAM_HEAD).await?;
        for event in &said.streams[usage] {
            ticks.tick().await;
            stream.write_all(event).await?;
        }
        Ok(())
    }

    async fn answer_get(&self, stream: &mut TcpStream, head: &[u8]) -> io::Result<()> {
        if head.starts_with(b"GET /v1/models") {
            return stream.write_all(&self.models).await;
        }
        if head.starts_with(b"GET /metrics") {
            return stream.write_all(&whole("text/plain; version=0.0.4", METRICS.as_bytes())).await;
        }
        stream.write_all(&whole("application/json", b"{\"status\":\"ok\"}")).await
    }

    fn pace_of(&self, head: &[u8], said: &Said) -> Duration {
        let line = memchr::memchr(b'\r', head).map_or(head, |end| &head[..end]);
        let query = memmem::find(line, b"pace_ms=").and_then(|at| number(&line[at + 8..]));
        query.or_else(|| header(head, b"x-mock-pace-ms:")).map(Duration::from_millis).or(said.pace).unwrap_or(self.pace)
    }
}

/// Whether `"key": true` stands in the text, however it is spaced.
fn has_true(body: &[u8], key: &[u8]) -> bool {
    memmem::find_iter(body, key).any(|at| {
        let rest = body[at + key.len()..].trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"true"))
    })
}

fn whole(content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{HEAD}content-type: {content_type}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn chunk(event: &str) -> Vec<u8> {
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

impl Said {
    fn new(model: &str) -> Self {
        let streams = [stream_of(model, false, false), stream_of(model, true, false), stream_of(model, true, true)];
        let bursts = [0, 1, 2].map(|usage: usize| [STREAM_HEAD, &streams[usage].concat()].concat());
        Self {
            needle: format!("\"{model}\"").into_bytes(),
            pace: model.ends_with("paced").then_some(PACED),
            json: whole("application/json", json_of(model).as_bytes()),
            streams,
            bursts,
        }
    }
}

fn usage_of(output: usize) -> String {
    format!(r#"{{"prompt_tokens":37,"total_tokens":{},"completion_tokens":{output}}}"#, 37 + output)
}

fn json_of(model: &str) -> String {
    let make = |text: &str| {
        format!(
            r#"{{"id":"chatcmpl-mock-000000000001","object":"chat.completion","created":1796049949,"model":"{model}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}","refusal":null,"tool_calls":null}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}],"service_tier":null,"system_fingerprint":"mock","usage":{}}}"#,
            usage_of(64)
        )
    };
    let room = JSON_BYTES.saturating_sub(make("").len());
    make(&"token ".repeat(room.div_ceil(6))[..room])
}

fn stream_of(model: &str, has_usage: bool, is_continuous: bool) -> Vec<Vec<u8>> {
    let start = format!(
        r#"{{"id":"chatcmpl-mock-000000000001","object":"chat.completion.chunk","created":1796049949,"model":"{model}","choices":["#
    );
    let event = |choices: &str, usage: Option<usize>| {
        let usage = usage.map(|output| format!(r#","usage":{}"#, usage_of(output))).unwrap_or_default();
        chunk(&format!("data: {start}{choices}]{usage}}}\n\n"))
    };
    let mut events: Vec<_> = (0..EVENTS)
        .map(|n| {
            let delta = match n {
                0 => r#""role":"assistant","content":"""#.to_owned(),
                _ => format!(r#""content":" t{n:03}""#),
            };
            let reason = if n + 1 == EVENTS { r#""stop""# } else { "null" };
            let choice = format!(r#"{{"index":0,"delta":{{{delta}}},"logprobs":null,"finish_reason":{reason}}}"#);
            event(&choice, is_continuous.then_some(n))
        })
        .collect();
    if has_usage {
        events.push(event("", Some(EVENTS - 1)));
    }
    let mut done = chunk("data: [DONE]\n\n");
    done.extend_from_slice(b"0\r\n\r\n");
    events.push(done);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_have_the_sizes_that_the_bench_states() {
        for model in ["mock", "mock-paced", "something/else"] {
            assert_eq!(json_of(model).len(), JSON_BYTES);
            assert!(serde_json::from_str::<serde_json::Value>(&json_of(model)).is_ok());
            let stream = stream_of(model, false, false);
            assert_eq!(stream.len(), EVENTS + 1);
            let event = stream[5].len() - "c8\r\n\r\n".len();
            assert!((180..=220).contains(&event), "{event}");
        }
    }

    #[test]
    fn a_request_ends_where_its_framing_says() {
        assert_eq!(request_end(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"), Some(27));
        assert_eq!(request_end(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab"), None);
        assert_eq!(request_end(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcd"), Some(41));
        assert_eq!(request_end(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"), Some(58));
    }

    #[test]
    fn flags_are_found_however_they_are_spaced() {
        assert!(has_true(br#"{"stream" : true}"#, b"\"stream\""));
        assert!(has_true(br#"{"stream_options":{"stream":false},"stream":true}"#, b"\"stream\""));
        assert!(!has_true(br#"{"stream":false}"#, b"\"stream\""));
    }
}
