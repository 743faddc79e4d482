//! A replica that is drained while it has requests: what runs may finish, until the deadline ends it properly.

use std::time::Duration;

use http::Method;
use tidegate_core::{FaultKind, Outcome, UsageSource};
use tidegate_routing::ReplicaState;
use tidegate_testkit::fake::Script;

use crate::faults::{assert_interrupted, streams};
use crate::house::{CHAT, CHAT_STREAM, House, SITE, finish, local};

const CHATS: &str = "/v1/chat/completions";
/// Longer than a tick of the gate.
const A_TICK: Duration = Duration::from_millis(25);

fn paced(each: Duration) -> Script {
    Script::vllm("tiny-served").paced(Duration::ZERO, each).answering(1_200)
}

/// A request for that many tokens.
fn long(body: &str) -> String {
    body.replace("\"max_tokens\":16", "\"max_tokens\":256")
}

/// [`SITE`] with answers of any length, for an hour.
fn endless() -> String {
    SITE.replace("spec: {targets: [{deployment: tiny-v1, weight: 100}]}", "spec: {targets: [{deployment: tiny-v1}]}")
        .replace("maxOutputTokens: 256", "maxOutputTokens: 2048")
}

impl House {
    fn drain_replica(&self, index: usize) {
        self.backends[index].replica().set_state(ReplicaState::Draining);
    }
}

/// L20 and L15: nothing that runs is touched before the deadline, however long it takes, and what comes meanwhile does
/// not wait for it.
#[test]
fn a_drained_replica_finishes_a_stream_of_twenty_minutes_while_new_requests_go_elsewhere() {
    local(async {
        let slow = paced(Duration::from_secs(1));
        let mut house = House::new(&endless(), vec![slow, Script::vllm("tiny-served")]).await;
        house.prefer_first();
        let body = CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":2048");
        let running = house.begin(house.request(Method::POST, CHATS, &body)).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        house.drain_replica(0);
        for _ in 0..3 {
            assert_eq!(house.chat().await.status, 200);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        assert_eq!((house.engines[0].runs().len(), house.engines[1].runs().len()), (1, 3));
        let answer = running.await.unwrap();
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{answer:?}");
        let entry = house.last();
        assert_eq!((entry.outcome, entry.output_tokens), (Outcome::Ok, 1_200));
        assert!(entry.total_us >= 1_199_000_000, "{entry:?}");
        house.assert_idle().await;
    });
}

/// L17: a generation that runs away does not keep a replica for ever.
#[test]
fn a_stream_that_still_runs_at_the_deadline_ends_in_an_error_event_of_its_path() {
    local(async {
        for (path, documents, body) in streams() {
            let mut house = House::new(&documents, vec![paced(Duration::from_millis(10))]).await;
            let response = house.start(house.request(Method::POST, path, &long(&body))).await;
            tokio::time::sleep(Duration::from_millis(205)).await;
            house.drain_replica(0);
            tokio::time::sleep(Duration::from_millis(200)).await;
            house.backends[0].replica().cut();
            tokio::time::sleep(A_TICK).await;
            let cut_at = house.entry();
            let answer = finish(response).await;
            assert_interrupted(path, &answer);
            assert!(answer.whole, "{path}: the body itself ends as its framing says");
            assert_eq!((cut_at.outcome, cut_at.status), (Outcome::Failed, 200), "{path}");
            assert_eq!(cut_at.fault, Some(FaultKind::UpstreamInterrupted), "{path}");
            assert!((30..=45).contains(&cut_at.output_tokens), "{path}: charged as far as it came: {cut_at:?}");
            assert_ne!(cut_at.source, UsageSource::None, "{path}");
            house.assert_idle().await;
        }
    });
}

#[test]
fn an_engine_that_never_pauses_is_cut_all_the_same() {
    local(async {
        let mut house = House::new(&endless(), vec![paced(Duration::from_millis(1))]).await;
        let body = CHAT_STREAM.replace("\"max_tokens\":16", "\"max_tokens\":2048");
        let response = house.start(house.request(Method::POST, CHATS, &body)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        house.drain_replica(0);
        house.backends[0].replica().cut();
        let answer = finish(response).await;
        assert_interrupted(CHATS, &answer);
        assert!(house.entry().output_tokens < 200, "{:?}", house.entry());
        house.assert_idle().await;
    });
}

#[test]
fn a_request_without_an_answer_is_tried_elsewhere_at_the_deadline() {
    local(async {
        for body in [CHAT, CHAT_STREAM] {
            let slow = Script::vllm("tiny-served").paced(Duration::from_secs(30), Duration::ZERO);
            let mut house = House::new(SITE, vec![slow, Script::vllm("tiny-served")]).await;
            house.prefer_first();
            let running = house.begin(house.request(Method::POST, CHATS, body)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            house.drain_replica(0);
            house.backends[0].replica().cut();
            let answer = running.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            let entry = house.entry();
            assert_eq!((entry.attempts, entry.outcome), (2, Outcome::Ok), "{body}");
            assert_eq!(entry.replica.unwrap().as_str(), "replica/1");
            assert!(entry.total_us < 2_000_000, "at once, not when the engine is through: {}", entry.total_us);
            house.assert_idle().await;
        }
    });
}

#[test]
fn a_request_without_an_answer_and_without_another_replica_gets_an_error_answer() {
    local(async {
        for (body, path) in [(CHAT, CHATS), (CHAT_STREAM, CHATS), (CHAT, "/v1/messages")] {
            let slow = Script::vllm("tiny-served").paced(Duration::from_secs(30), Duration::ZERO);
            let mut house = House::new(SITE, vec![slow]).await;
            let running = house.begin(house.request(Method::POST, path, body)).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            house.drain_replica(0);
            house.backends[0].replica().cut();
            let answer = running.await.unwrap();
            assert_eq!(answer.status, 502, "{answer:?}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("its model is being switched"), "{message}");
            let entry = house.entry();
            assert_eq!((entry.outcome, entry.fault), (Outcome::Failed, Some(FaultKind::UpstreamUnreachable)));
            assert_eq!(entry.tokens(), 0, "nothing was delivered");
            house.assert_idle().await;
        }
    });
}

#[test]
fn other_replicas_are_not_touched_by_a_cut_and_one_that_serves_again_is_as_before() {
    local(async {
        let slow = paced(Duration::from_millis(10));
        let mut house = House::new(SITE, vec![slow.clone(), slow]).await;
        house.prefer_first();
        house.drain_replica(0);
        house.backends[0].replica().cut();
        let beside = house.begin(house.request(Method::POST, CHATS, &long(CHAT_STREAM))).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        house.backends[0].replica().cut();
        assert!(beside.await.unwrap().text().ends_with("data: [DONE]\n\n"));

        house.backends[0].replica().set_state(ReplicaState::Serving);
        let answer = house.send(house.request(Method::POST, CHATS, &long(CHAT_STREAM))).await;
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        assert_eq!((house.engines[0].runs().len(), house.engines[1].runs().len()), (1, 1));
        house.assert_idle().await;
    });
}
