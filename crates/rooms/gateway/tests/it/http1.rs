//! HTTP/1.1 towards callers, byte by byte.

use std::time::Duration;

use tidegate_core::Outcome;
use tidegate_testkit::fake::Script;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::house::{CHAT, CHAT_STREAM, House, SITE, local, read_all};

const A_MOMENT: Duration = Duration::from_secs(1);

fn good() -> Script {
    Script::vllm("tiny-served")
}

/// A chat with these header lines besides host and key.
fn request(house: &House, lines: &str, body: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\n{lines}\r\n{body}", house.key)
}

fn with_length(house: &House, more: &str, body: &str) -> String {
    request(house, &format!("content-length: {}\r\n{more}", body.len()), body)
}

#[test]
fn a_request_in_single_bytes_is_one_request() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let chunks: String = CHAT.as_bytes().chunks(10).fold(String::new(), |all, piece| {
            all + &format!("{:x};e=1\r\n{}\r\n", piece.len(), std::str::from_utf8(piece).unwrap())
        });
        let chunked = request(&house, "transfer-encoding: chunked\r\n", &format!("{chunks}0\r\nx-t: y\r\n\r\n"));
        for raw in [with_length(&house, "", CHAT), chunked] {
            let mut stream = house.connect();
            for byte in raw.as_bytes() {
                stream.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            let answer = read_all(&mut stream, A_MOMENT).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        }
        assert_eq!(house.runs(), 2);
        house.assert_idle().await;
    });
}

#[test]
fn requests_sent_ahead_are_answered_in_their_order_on_one_connection() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let list = format!("GET /v1/models HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\n\r\n", house.key);
        let all = with_length(&house, "", CHAT) + &list + &with_length(&house, "", CHAT_STREAM) + &list;
        let answer = house.raw(all.as_bytes()).await;
        let kinds: Vec<_> = answer.split("HTTP/1.1 200 OK\r\n").skip(1).collect();
        assert_eq!(kinds.len(), 4, "{answer}");
        for (at, mark) in ["\"usage\"", "\"object\":\"list\"", "data: [DONE]", "\"object\":\"list\""].iter().enumerate()
        {
            assert!(kinds[at].contains(mark), "{at}: {}", kinds[at]);
        }
        house.assert_idle().await;
    });
}

#[test]
fn an_answer_arrives_in_one_piece_and_a_stream_begins_with_its_first_event() {
    local(async {
        let mut house = House::new(SITE, vec![good().paced(Duration::ZERO, Duration::from_secs(1))]).await;
        let mut buffer = [0; 16 * 1024];
        let mut stream = house.open(with_length(&house, "", CHAT).as_bytes()).await;
        let len = stream.read(&mut buffer).await.unwrap();
        let text = std::str::from_utf8(&buffer[..len]).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("\r\ndate: ") && !head.contains("connection:"), "{head}");
        stream.write_all(with_length(&house, "", CHAT_STREAM).as_bytes()).await.unwrap();
        let len = stream.read(&mut buffer).await.unwrap();
        let text = std::str::from_utf8(&buffer[..len]).unwrap();
        assert!(text.contains("transfer-encoding: chunked\r\n") && text.contains("\r\ndata: {"), "{text}");
        assert!(text.ends_with("\n\n\r\n"), "whole events in whole chunks: {text}");
        let rest = read_all(&mut stream, 2 * A_MOMENT).await;
        assert!(rest.ends_with("\r\n0\r\n\r\n"), "{rest}");
    });
}

#[test]
fn a_caller_that_waits_to_be_told_is_told_once_its_body_is_wanted() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let raw = with_length(&house, "expect: 100-continue\r\n", CHAT);
        let (head, body) = raw.split_at(raw.len() - CHAT.len());
        let mut stream = house.open(head.as_bytes()).await;
        let mut buffer = [0; 1024];
        let len = stream.read(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..len], b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(body.as_bytes()).await.unwrap();
        assert!(read_all(&mut stream, A_MOMENT).await.starts_with("HTTP/1.1 200 OK\r\n"));
        let at_once = house.raw(raw.as_bytes()).await;
        assert!(at_once.starts_with("HTTP/1.1 200 OK\r\n"), "it did not wait: {at_once}");
    });
}

#[test]
fn a_caller_of_the_old_version_is_answered_without_chunks() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let old = |raw: String| raw.replace("HTTP/1.1", "HTTP/1.0");
        let whole = house.raw(old(with_length(&house, "", CHAT)).as_bytes()).await;
        assert!(whole.contains("connection: close\r\n"), "{whole}");
        let kept = old(with_length(&house, "connection: keep-alive\r\n", CHAT));
        let kept = house.raw(kept.repeat(2).as_bytes()).await;
        assert_eq!(kept.matches("connection: keep-alive\r\n").count(), 2, "{kept}");
        let streamed = old(with_length(&house, "connection: keep-alive\r\n", CHAT_STREAM));
        let streamed = house.raw(streamed.as_bytes()).await;
        assert!(!streamed.contains("chunked") && streamed.contains("connection: close\r\n"), "{streamed}");
        assert!(streamed.ends_with("data: [DONE]\n\n"), "{streamed}");
        house.assert_idle().await;
    });
}

#[test]
fn a_caller_that_leaves_inside_its_body_is_accounted_and_takes_nothing() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let raw = with_length(&house, "", CHAT);
        drop(house.open(&raw.as_bytes()[..raw.len() - 5]).await);
        house.settle().await;
        let entry = house.entry();
        assert_eq!((entry.outcome, entry.tokens(), house.runs()), (Outcome::Cancelled, 0, 0));
        house.assert_idle().await;
    });
}

#[test]
fn a_body_whose_chunks_cannot_be_read_is_400_and_the_end() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        let raw = request(&house, "transfer-encoding: chunked\r\n", "5\r\nhelloXX\r\n0\r\n\r\n");
        let answer = house.raw(raw.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("connection: close\r\n"), "{answer}");
        assert_eq!(house.runs(), 0);
        house.assert_idle().await;
    });
}

#[test]
fn a_draining_gate_closes_idle_connections_and_finishes_what_runs() {
    local(async {
        let mut house = House::new(SITE, vec![good().paced(Duration::ZERO, A_MOMENT)]).await;
        let raw = with_length(&house, "", CHAT_STREAM);
        let (mut idle, mut busy) = (house.connect(), house.open(raw.as_bytes()).await);
        let mut first = [0; 64];
        busy.read_exact(&mut first).await.unwrap();
        house.gate.drain();
        assert_eq!(idle.read(&mut first).await.unwrap(), 0);
        let rest = read_all(&mut busy, 5 * A_MOMENT).await;
        assert!(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{rest}");
        assert_eq!(busy.read(&mut first).await.unwrap(), 0, "and then it is closed");
    });
}
