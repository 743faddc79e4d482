//! The gate on real sockets and threads: protocols told apart, drain, and a taken address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_gateway::{CoreParts, Gateway, server};
use tidegate_store::{JournalOptions, Journals};
use tidegate_testkit::fake::Script;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::house::{CHAT, House, SITE};

/// A gate of two cores before the house's engine, over TCP.
fn start(house: &House) -> (Gateway, tempfile::TempDir, Journals) {
    let folder = tempfile::TempDir::new().unwrap();
    let (journals, _) = Journals::open(folder.path(), JournalOptions::default()).unwrap();
    let listeners = server::bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
    let cores = listeners
        .into_iter()
        .zip(0..)
        .map(|(listener, core)| CoreParts { listener, journal: journals.journal(core).unwrap() })
        .collect();
    let gate = Gateway::start(&Arc::clone(&house.shared), cores, None, Duration::from_secs(10)).unwrap();
    (gate, folder, journals)
}

async fn ask(address: SocketAddr, key: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let raw = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nx-api-key: {key}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{CHAT}",
        CHAT.len()
    );
    stream.write_all(raw.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Real time, real threads.
fn real<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

#[test]
fn both_protocols_are_spoken_on_one_port_and_a_drain_ends_it() {
    real(async {
        let house = House::new(SITE, vec![Script::vllm("tiny-served")]).await;
        let (gate, _folder, _journals) = start(&house);
        let address = gate.address();
        for _ in 0..10 {
            let answer = ask(address, &house.key).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"model\":\"chat\""), "{answer}");
        }
        // HTTP/2 by prior knowledge: the gate's first frame is its settings.
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(head[3], 4);
        drop(stream);
        assert_eq!(house.entries().len(), 10);
        gate.drain();
        let joined = tokio::task::spawn_blocking(move || gate.join());
        joined.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
        house.assert_idle_now();
    });
}

#[test]
fn an_address_that_is_not_ours_is_said_before_anything_starts() {
    assert!(server::bind("192.0.2.1:1".parse().unwrap(), 1).is_err());
}

#[test]
fn many_callers_on_two_cores_never_pass_a_limit() {
    real(async {
        let documents = crate::house::granting("concurrency: 5");
        let held = Script::vllm("tiny-served").paced(Duration::from_millis(20), Duration::ZERO);
        let house = House::new(&documents, vec![held]).await;
        let (gate, _folder, _journals) = start(&house);
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let (address, key) = (gate.address(), house.key.clone());
            callers.spawn_local(async move { ask(address, &key).await });
        }
        let mut good = 0;
        while let Some(answer) = callers.join_next().await {
            let answer = answer.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 ") || answer.starts_with("HTTP/1.1 429 "), "{answer}");
            good += usize::from(answer.starts_with("HTTP/1.1 200 "));
        }
        assert!(good >= 5, "{good}");
        assert!(house.engines[0].log().running_max <= 5, "{}", house.engines[0].log().running_max);
        assert_eq!(house.entries().len(), 64);
        gate.drain();
        tokio::task::spawn_blocking(move || gate.join()).await.unwrap().unwrap();
        house.assert_idle_now();
    });
}
