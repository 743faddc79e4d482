//! Whoever opens the state folder next goes on.

use tidegate_node::{Exit, InstanceState, LocalNode, Node, OnExit};

use crate::house::{Alive, House, LONG, SHORT, close, ended, id, order, pid, report};

#[tokio::test]
async fn a_restart_finds_its_engine_and_goes_on() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let script = "trap 'exit 4' TERM\necho ready >&3\nwhile :; do sleep 1000 & wait $!; done";
    let (before, _) = alive.start(&node, order("a-0-g1", script)).await;
    node.close(OnExit::Leave).await;
    let node = house.open().await;
    let after = report(&node, &id("a-0-g1")).await;
    assert_eq!((pid(&after), after.port, after.started_at), (pid(&before), before.port, before.started_at));
    // Its port is booked for it still.
    let mut other = order("b-0-g1", "exit 0");
    other.ports = (before.port.unwrap(), before.port.unwrap());
    assert!(node.start(1, other).await.is_err());
    node.stop(1, &id("a-0-g1"), LONG).await.unwrap();
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(matches!(report.state, InstanceState::Ended { exit: Some(Exit::Code(4)), .. }), "{report:?}");
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn an_engine_that_ended_while_we_were_away_is_reported_with_its_exit() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", "echo ready >&3\nread word < gate; exit 6")).await;
    let gate = house.path().join("gate");
    close(node).await;
    alive.ended().await;
    // Once more, with a gate that opens while nobody is connected.
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive-2");
    let script = format!("echo ready >&3\nread word < {}; exit 6", gate.display());
    alive.start(&node, order("b-0-g1", &script)).await;
    node.close(OnExit::Leave).await;
    std::fs::write(&gate, "go\n").unwrap();
    alive.ended().await;
    let node = house.open().await;
    let report = ended(&node, &id("b-0-g1")).await;
    assert!(matches!(report.state, InstanceState::Ended { exit: Some(Exit::Code(6)), .. }), "{report:?}");
    // What has ended is known to the next one too, and is not started again under its id.
    node.close(OnExit::Leave).await;
    let node = house.open().await;
    assert_eq!(report.state, crate::house::report(&node, &id("b-0-g1")).await.state);
    let again = node.start(1, order("b-0-g1", "exec sleep 1000")).await.unwrap();
    assert!(again.state.has_ended());
    close(node).await;
}

#[tokio::test]
async fn closing_ends_engines_or_leaves_them_as_it_is_told() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let stubborn = "trap '' TERM\necho ready >&3\nwhile :; do sleep 1000; done";
    alive.start(&node, order("a-0-g1", stubborn)).await;
    node.close(OnExit::Stop(SHORT)).await;
    alive.ended().await;
    let node = house.open().await;
    assert!(report(&node, &id("a-0-g1")).await.state.has_ended());
    close(node).await;
}

#[tokio::test]
async fn a_state_folder_has_one_process() {
    let house = House::new();
    let node = house.open().await;
    let error = LocalNode::open(house.settings.clone()).await.unwrap_err();
    assert!(error.to_string().contains("another process uses it"), "{error}");
    close(node).await;
    close(house.open().await).await;
}

#[tokio::test]
async fn an_engine_whose_record_is_broken_is_ended_and_said() {
    let house = House::new();
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", "echo ready >&3\nexec sleep 1000")).await;
    node.close(OnExit::Leave).await;
    std::fs::write(house.instance("a-0-g1").join("record.json"), "{\"instance\":").unwrap();
    let node = house.open().await;
    alive.ended().await;
    let problems = node.facts().await.unwrap().problems;
    assert!(problems.iter().any(|problem| problem.what.contains("a-0-g1")), "{problems:?}");
    assert_eq!(node.instances().await.unwrap(), []);
    close(node).await;
}
