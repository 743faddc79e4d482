//! Agents that are not there, that go, and that come again.

use std::time::Duration;

use tidegate_node::{InstanceState, LocalNode, Node, NodeError};
use tokio::net::TcpListener;

use crate::house::{House, ended, id, order};

fn is_away<T: std::fmt::Debug>(answer: Result<T, NodeError>) {
    assert!(matches!(&answer, Err(fault) if fault.is_away()), "{answer:?}");
}

#[tokio::test]
async fn an_agent_that_is_away_at_unload_is_said_and_answers_when_it_is_back() {
    let house = House::new();
    let running = house.run().await;
    let (remote, address) = (running.remote(&house), running.address);
    let started = remote.start(4, order("a-0-g4", "exec sleep 1000")).await.unwrap();
    running.end().await;
    let a = id("a-0-g4");
    is_away(remote.stop(4, &a, Duration::ZERO).await);
    is_away(remote.prove(4, &a).await);
    is_away(remote.facts().await);
    is_away(remote.events(0).await);
    // It comes again where it was: the engine was left alone, and the generation is known.
    let running = house.run_at(address).await;
    assert_eq!(remote.instances().await.unwrap()[0].state, started.state);
    let stale = NodeError::StaleGeneration { generation: 3, highest: 4 };
    assert_eq!(remote.stop(3, &a, Duration::ZERO).await.unwrap_err(), stale);
    remote.stop(4, &a, Duration::ZERO).await.unwrap();
    ended(&remote, &a).await;
    running.end_all().await;
}

#[tokio::test]
async fn somebody_else_at_the_address_is_away_and_no_node() {
    let house = House::new();
    // Accepts and hangs up.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            drop(socket);
        }
    });
    let remote = tidegate_node::RemoteNode::new("node-1", &address.to_string(), house.client_tls());
    is_away(remote.facts().await);
    tasks.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_who_never_answers_is_away_in_time() {
    let house = House::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let remote = tidegate_node::RemoteNode::new("node-1", &address, house.client_tls());
    is_away(remote.facts().await);
}

#[tokio::test]
async fn who_waits_for_events_hears_that_the_agent_ends() {
    let house = House::new();
    let running = house.run().await;
    let remote = running.remote(&house);
    remote.start(1, order("a-0-g1", "exec sleep 1000")).await.unwrap();
    let known = remote.events(0).await.unwrap().last().map_or(0, |event| event.number);
    let (heard, ()) = tokio::join!(remote.events(known), running.end_all());
    is_away(heard);
}

#[tokio::test]
async fn two_agents_are_two_nodes_of_one_machine_and_one_state_folder_has_one_agent() {
    let (first, second) = (House::new(), House::new());
    let (one, two) = (first.run().await, second.run().await);
    let (a, b) = (one.remote(&first), two.remote(&second));
    a.start(1, order("a-0-g1", "exec sleep 1000")).await.unwrap();
    b.start(9, order("b-0-g9", "exec sleep 1000")).await.unwrap();
    assert_eq!(a.instances().await.unwrap()[0].instance, id("a-0-g1"));
    assert_eq!(b.instances().await.unwrap()[0].instance, id("b-0-g9"));
    // A generation is a node's own.
    a.stop(1, &id("a-0-g1"), Duration::ZERO).await.unwrap();
    ended(&a, &id("a-0-g1")).await;
    let states: Vec<_> = b.instances().await.unwrap().into_iter().map(|report| report.state).collect();
    assert!(matches!(states[..], [InstanceState::Running { .. }]), "{states:?}");
    let minder = vec!["none".into()];
    let again = tidegate_node::LocalNodeSettings::new("node-1", first.path().join("state"), minder);
    let error = LocalNode::open(again).await.unwrap_err();
    assert!(error.to_string().contains("another process uses it"), "{error}");
    one.end_all().await;
    two.end_all().await;
}
