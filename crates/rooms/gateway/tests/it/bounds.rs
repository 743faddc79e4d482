//! The gate's own bounds, each at the bound and one past it, where no other file has it already.

use std::time::Duration;

use http::Method;
use tidegate_core::{Outcome, UsageSource};
use tidegate_store::failpoint::{self, Action};
use tidegate_testkit::fake::Script;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::house::{CHAT, House, Logs, SITE, granting, local, read_all};

const CHATS: &str = "/v1/chat/completions";

fn good() -> Script {
    Script::vllm("tiny-served")
}

/// Sends a body of `bytes`, in pieces of `piece` each second, and says how the answer begins and when it came.
async fn drip(house: &mut House, bytes: usize, piece: usize) -> (String, Duration) {
    let frame = CHAT.replace("hi", "").len();
    let body = CHAT.replace("hi", &"x".repeat(bytes - frame));
    let head =
        format!("POST {CHATS} HTTP/1.1\r\nhost: gate\r\nx-api-key: {}\r\ncontent-length: {bytes}\r\n\r\n", house.key);
    let mut stream = house.open(head.as_bytes()).await;
    let start = Instant::now();
    let mut answer = String::new();
    for piece in body.as_bytes().chunks(piece) {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        answer = read_all(&mut stream, Duration::from_secs(1)).await;
        if !answer.is_empty() {
            break;
        }
    }
    (answer, start.elapsed())
}

#[test]
fn a_body_may_be_slow_for_ten_seconds_and_must_then_average_sixteen_kib_a_second() {
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        house.engines[0].change(|script| script.context_tokens = 1 << 40);
        let (answer, took) = drip(&mut house, 640 << 10, 16 << 10).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(took >= Duration::from_secs(39), "{took:?}");
        // Half the rate: what has come allows for half the time beyond the grace, so that it ends after twice the grace.
        let (answer, took) = drip(&mut house, 640 << 10, 8 << 10).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!((19..=21).contains(&took.as_secs()), "{took:?}");
        house.assert_idle().await;
    });
}

#[test]
fn an_engines_error_body_is_read_up_to_its_bound_and_judged_by_status_beyond() {
    local(async {
        const MAX: usize = 64 << 10;
        for (bytes, code) in [(MAX, "context_length_exceeded"), (MAX + 1, "invalid_value")] {
            let frame = r#"{"error":{"message":"","type":"exceed_context_size_error","param":null,"code":400}}"#;
            let body = frame.replace("\"\"", &format!("\"{}\"", "x".repeat(bytes - frame.len())));
            let sent =
                format!("HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n{body}");
            let mut house = House::of_raw(SITE, sent, false).await;
            let answer = house.chat().await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, code), "{bytes}");
        }
    });
}

#[test]
fn an_unstreamed_answer_is_read_up_to_its_bound() {
    local(async {
        const MAX: usize = 64 << 20;
        for (bytes, status) in [(MAX, 200), (MAX + 1, 502)] {
            let frame = r#"{"model":"m","x":"","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
            let body = frame.replace("\"x\":\"\"", &format!("\"x\":\"{}\"", "x".repeat(bytes - frame.len())));
            let sent =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\r\n{body}");
            let mut house = House::of_raw(SITE, sent, false).await;
            let answer = house.chat().await;
            assert_eq!(answer.status, status, "{bytes}");
            if status == 200 {
                assert_eq!(answer.body.len(), MAX + 3, "`m` became `chat`");
                assert_eq!(house.entry().tokens(), 4);
            }
        }
    });
}

#[test]
fn a_journal_that_fails_refuses_those_with_a_quota_first_and_recovers_by_itself() {
    local(async {
        let mut house = House::new(&granting("dailyTokens: 100k"), vec![good()]).await;
        assert_eq!(house.chat().await.status, 200);
        for point in ["journal.reserve.before_write", "journal.flush.before_write"] {
            failpoint::set(point, Action::Full, 1);
        }
        assert_eq!(house.chat().await.code(), "server_is_overloaded");
        // From now on it is known without trying.
        failpoint::clear("journal.reserve.before_write");
        let refused = house.chat().await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("5")));
        assert_eq!(house.runs(), 1);
        failpoint::clear("journal.flush.before_write");
        house.settle().await;
        assert_eq!(house.chat().await.status, 200);
        assert_eq!(house.entries().len(), 4);
        house.assert_idle().await;
    });
}

#[test]
fn a_full_disk_is_logged_once_and_not_every_tick() {
    let logs = Logs::start();
    local(async {
        let mut house = House::new(SITE, vec![good()]).await;
        failpoint::set("journal.flush.before_write", Action::Full, 1);
        assert_eq!(house.chat().await.status, 200);
        tokio::time::sleep(Duration::from_secs(5)).await;
        failpoint::clear("journal.flush.before_write");
        house.assert_idle().await;
    });
    let text = logs.text();
    let errors: Vec<_> = text.lines().filter(|line| line.contains("\"ERROR\"")).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn what_the_ledger_is_told_is_in_the_journal_after_a_death() {
    local(async {
        let slow = good().paced(Duration::from_secs(30), Duration::ZERO);
        let mut house = House::new(SITE, vec![good()]).await;
        assert_eq!(house.chat().await.status, 200);
        house.chat_refused().await;
        house.engines[0].set(slow);
        let request = house.request(Method::POST, CHATS, CHAT);
        let pending = house.begin(request).await;
        house.engines[0].wait_for(|log| log.running == 1).await;
        house.settle().await;
        let recovery = house.after_death();
        assert_eq!((recovery.entries, recovery.damage.len()), (2, 0));
        assert_eq!(recovery.orphans.len(), 1, "the one that was running");
        assert_eq!(recovery.orphans[0].alias.as_str(), "chat");
        assert_eq!(recovery.orphans[0].output_tokens, 16);
        let settled: Vec<_> = recovery.admissions.iter().map(|admission| admission.settled_tokens).collect();
        assert_eq!(settled, [Some(43), None], "the refused one took nothing");
        pending.abort();
    });
}

#[test]
fn the_first_event_and_the_rest_leave_as_they_come() {
    local(async {
        let script = good().answering(5).paced(Duration::from_millis(500), Duration::from_millis(100));
        let mut house = House::new(SITE, vec![script]).await;
        let start = Instant::now();
        let request =
            house.request(Method::POST, CHATS, &CHAT.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\""));
        let mut response = house.start(request).await;
        assert_eq!(start.elapsed().as_millis(), 500, "the head comes with the first event");
        let mut times = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(response.body_mut()).await {
            if frame.unwrap().is_data() {
                times.push(start.elapsed().as_millis());
            }
        }
        times.dedup();
        assert_eq!(times, [500, 600, 700, 800, 900], "nothing waits for anything");
        let entry = house.entry();
        assert_eq!((entry.outcome, entry.source), (Outcome::Ok, UsageSource::Engine));
        assert_eq!((entry.ttft_us, entry.total_us), (Some(500_000), 900_000));
    });
}
