//! What every [`Node`] does, on the machine itself and through an agent: one suite for both.

use std::time::Duration;

use tidegate_node::wire::status;
use tidegate_node::{
    Exit, Happened, InstanceId, InstanceState, Keep, LogMark, ModelOrder, ModelState, Node, NodeError, OnExit, Proof,
    ProvenBy,
};

use crate::house::{House, NODE, ended, id, order};

/// Each of these runs twice.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod local {
            $(
                #[tokio::test]
                async fn $name() {
                    let house = crate::house::House::new();
                    let node = house.open("state").await;
                    super::$name(&*node, &house).await;
                    node.close(super::OnExit::Stop(super::Duration::ZERO)).await;
                }
            )*
        }
        mod remote {
            $(
                #[tokio::test]
                async fn $name() {
                    let house = crate::house::House::new();
                    let running = house.run().await;
                    super::$name(&running.remote(&house), &house).await;
                    running.end_all().await;
                }
            )*
        }
    };
}

on_both!(
    an_engine_is_started_seen_read_stopped_proven_and_forgotten,
    a_start_that_is_said_twice_is_one_engine,
    a_lower_generation_is_refused_by_every_command,
    what_is_not_there_is_named,
    events_come_in_order_and_from_a_number_on,
    a_model_comes_and_what_is_kept_is_the_whole_list,
    a_model_that_is_not_verified_starts_no_engine,
    two_who_wait_for_events_both_hear_them,
);

async fn an_engine_is_started_seen_read_stopped_proven_and_forgotten(node: &dyn Node, _house: &House) {
    let facts = node.facts().await.unwrap();
    assert_eq!(facts.node, NODE);
    let mut wish = order("a-0-g3", "echo \"$WORD\"; echo loading; exec sleep 1000");
    wish.marks = vec![LogMark { phase: "load".to_owned(), text: "loading".to_owned() }];
    let started = node.start(3, wish).await.unwrap();
    assert!(matches!(started.state, InstanceState::Running { .. }), "{started:?}");
    assert_eq!((started.generation, started.revision, &*started.deployment), (3, u64::MAX, "small"));
    let a = id("a-0-g3");
    until_loading(node).await;
    read_stopped_proven_forgotten(node, &a).await;
}

async fn read_stopped_proven_forgotten(node: &dyn Node, a: &InstanceId) {
    let log = node.log(a, 0, 1 << 20).await.unwrap();
    assert_eq!(log.text, "ä\n\"\nloading\n");
    assert_eq!(node.log(a, 5, 7).await.unwrap().text, "loading");
    assert_eq!(node.forget(3, a).await.unwrap_err().code(), "bad_request", "it runs");
    node.stop(3, a, Duration::ZERO).await.unwrap();
    ended(node, a).await;
    let listed = node.instances().await.unwrap();
    assert!(matches!(listed[0].state, InstanceState::Ended { exit: Some(Exit::Signal(9)), .. }), "{listed:?}");
    assert_eq!(node.prove(3, a).await.unwrap(), Proof::Free { by: ProvenBy::Processes });
    node.forget(3, a).await.unwrap();
    node.forget(3, a).await.unwrap();
    assert_eq!(node.instances().await.unwrap(), []);
}

/// Waits until a boot is said to load.
async fn until_loading(node: &dyn Node) {
    let mut after = 0;
    let is_loading = |what: &Happened| matches!(what, Happened::Booted { phase, .. } if phase == "load");
    loop {
        let events = node.events(after).await.unwrap();
        if events.iter().any(|event| is_loading(&event.what)) {
            return;
        }
        after = events.last().map_or(after, |event| event.number);
    }
}

async fn a_start_that_is_said_twice_is_one_engine(node: &dyn Node, _house: &House) {
    let wish = order("a-0-g1", "exec sleep 1000");
    let (first, second) = tokio::join!(node.start(1, wish.clone()), node.start(1, wish.clone()));
    assert_eq!(first.unwrap().state, second.unwrap().state);
    assert_eq!(node.instances().await.unwrap().len(), 1);
}

async fn a_lower_generation_is_refused_by_every_command(node: &dyn Node, _house: &House) {
    node.start(5, order("a-0-g5", "exec sleep 1000")).await.unwrap();
    let a = id("a-0-g5");
    let model = ModelOrder { path: "small/1".to_owned(), digest: None };
    let refusals = [
        node.start(4, order("b-0-g4", "exec sleep 1000")).await.unwrap_err(),
        node.stop(4, &a, Duration::ZERO).await.unwrap_err(),
        node.prove(4, &a).await.unwrap_err(),
        node.forget(4, &a).await.unwrap_err(),
        node.have(4, model).await.unwrap_err(),
        node.keep(4, Vec::new()).await.unwrap_err(),
        node.release(4, 0, "why").await.unwrap_err(),
    ];
    let stale = NodeError::StaleGeneration { generation: 4, highest: 5 };
    assert!(refusals.iter().all(|refusal| *refusal == stale), "{refusals:?}");
    assert_eq!(status(&stale), 409);
    let listed = node.instances().await.unwrap();
    assert!(matches!(&listed[..], [only] if matches!(only.state, InstanceState::Running { .. })), "{listed:?}");
}

async fn what_is_not_there_is_named(node: &dyn Node, _house: &House) {
    let nobody = id("nobody");
    let unknown = NodeError::UnknownInstance { instance: "nobody".to_owned() };
    assert_eq!(node.stop(1, &nobody, Duration::ZERO).await.unwrap_err(), unknown);
    assert_eq!(node.log(&nobody, 0, 1).await.unwrap_err(), unknown);
    assert_eq!(node.prove(1, &nobody).await.unwrap_err(), unknown);
    node.forget(1, &nobody).await.unwrap();
    let model = ModelOrder { path: "large/1".to_owned(), digest: None };
    assert_eq!(node.have(1, model).await.unwrap_err().code(), "unknown_model");
    let mut wish = order("a-0-g1", "true");
    wish.ports = (1, 0);
    let refused = node.start(1, wish).await.unwrap_err();
    assert!(matches!(refused.code(), "bad_request" | "no_port"), "{refused}");
}

async fn events_come_in_order_and_from_a_number_on(node: &dyn Node, _house: &House) {
    for name in ["a-0-g1", "b-0-g1", "c-0-g1"] {
        node.start(1, order(name, "true")).await.unwrap();
        ended(node, &id(name)).await;
    }
    let all = node.events(0).await.unwrap();
    assert!(all.is_sorted_by(|a, b| a.number < b.number), "{all:?}");
    let middle = all[all.len() / 2].number;
    let rest = node.events(middle).await.unwrap();
    assert!(rest.iter().all(|event| event.number > middle), "{rest:?}");
    assert_eq!(rest, all[all.len() / 2 + 1..]);
}

async fn a_model_comes_and_what_is_kept_is_the_whole_list(node: &dyn Node, house: &House) {
    let model = ModelOrder { path: "small/1".to_owned(), digest: None };
    assert_eq!(node.models().await.unwrap(), []);
    let coming = node.have(1, model.clone()).await.unwrap();
    let fetching = ModelState::Fetching { bytes: 3, total: Some(7), rate: Some(1), eta_seconds: Some(4) };
    assert_eq!(coming.state, fetching);
    assert_eq!(node.have(1, model).await.unwrap().state, ModelState::Verified { bytes: 7 });
    assert_eq!(node.models().await.unwrap().len(), 1);
    let keep = |path: &str| Keep {
        path: path.to_owned(),
        digest: None,
        next_use: Some(jiff_second(1_800_000_000)),
        why: "night".to_owned(),
    };
    node.keep(1, vec![keep("small/1"), keep("large/1")]).await.unwrap();
    node.keep(1, vec![keep("large/1")]).await.unwrap();
    assert_eq!(*house.cache.kept.lock(), [keep("large/1")]);
}

fn jiff_second(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap()
}

async fn a_model_that_is_not_verified_starts_no_engine(node: &dyn Node, _house: &House) {
    let mut wish = order("a-0-g1", "exec sleep 1000");
    let at = tidegate_node::ModelAt::Stored { path: "small/1".to_owned(), digest: None };
    wish.model = Some(tidegate_node::ModelUse { at, file: tidegate_node::ModelFile::Folder });
    assert_eq!(node.start(1, wish).await.unwrap_err().code(), "unknown_model");
    assert_eq!(node.instances().await.unwrap(), []);
}

async fn two_who_wait_for_events_both_hear_them(node: &dyn Node, _house: &House) {
    node.start(1, order("a-0-g1", "exec sleep 1000")).await.unwrap();
    let a = id("a-0-g1");
    let both = async { tokio::join!(ended(node, &a), ended(node, &a)) };
    let (_, stopped) = tokio::join!(both, node.stop(1, &a, Duration::ZERO));
    stopped.unwrap();
}
