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

/// Makes a running instance's folder look as if this process had been killed at some moment: what is left is `left`.
fn forge(house: &House, instance: &str, edit: impl FnOnce(&std::path::Path, &mut serde_json::Value)) {
    let folder = house.instance(instance);
    let record = std::fs::read(folder.join("record.json")).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    record["ended"] = serde_json::Value::Null;
    std::fs::remove_file(folder.join("ended.json")).unwrap();
    edit(&folder, &mut record);
    std::fs::write(folder.join("record.json"), record.to_string()).unwrap();
}

async fn one_that_ended(house: &House) {
    let node = house.open().await;
    node.start(1, order("a-0-g1", "exit 0")).await.unwrap();
    ended(&node, &id("a-0-g1")).await;
    close(node).await;
}

async fn cause(house: &House) -> String {
    let node = house.open().await;
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { exit: None, cause: Some(cause), .. } = report.state else { panic!("{report:?}") };
    close(node).await;
    cause
}

#[tokio::test]
async fn a_start_that_was_cut_short_by_a_kill_is_an_end() {
    let house = House::new();
    one_that_ended(&house).await;
    forge(&house, "a-0-g1", |folder, _| std::fs::remove_file(folder.join("minder.json")).unwrap());
    assert!(cause(&house).await.starts_with("its start was cut short"));
}

#[tokio::test]
async fn after_a_boot_of_the_machine_a_number_is_somebody_else_s() {
    let house = House::new();
    one_that_ended(&house).await;
    // An innocent process has exactly the number and start time that were written down in another boot.
    let mut innocent = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", innocent.id())).unwrap();
    let start: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let proc = serde_json::json!({"pid": innocent.id(), "start": start});
    forge(&house, "a-0-g1", |folder, _| {
        let minding = serde_json::json!({"boot_id": "another", "minder": proc, "engine": proc});
        std::fs::write(folder.join("minder.json"), minding.to_string()).unwrap();
        let tree = serde_json::json!({"boot_id": "another", "procs": [proc]});
        std::fs::write(folder.join("tree.json"), tree.to_string()).unwrap();
    });
    assert_eq!(cause(&house).await, "the machine was booted anew");
    assert!(innocent.try_wait().unwrap().is_none(), "it lives");
    // In this boot, the same lines are a survivor of ours.
    forge_again(&house, &proc);
    assert!(cause(&house).await.starts_with("its minder was killed"));
    assert!(!innocent.wait().unwrap().success());
}

fn forge_again(house: &House, proc: &serde_json::Value) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(house.instance("a-0-g1").join("ended.json"), "").unwrap();
    forge(house, "a-0-g1", |folder, _| {
        let minding = serde_json::json!({"boot_id": boot.trim(), "minder": proc, "engine": proc});
        std::fs::write(folder.join("minder.json"), minding.to_string()).unwrap();
    });
}

#[tokio::test]
async fn files_that_hold_anything_are_no_panic_and_no_engine() {
    let house = House::new();
    for junk in ["", "{", "[]", "null", "{\"boot_id\":1}", "\u{0}\u{1}"] {
        one_that_ended(&house).await;
        forge(&house, "a-0-g1", |folder, _| {
            for file in ["minder.json", "tree.json", "launch.json", "ended.json"] {
                std::fs::write(folder.join(file), junk).unwrap();
            }
        });
        assert!(cause(&house).await.starts_with("its start was cut short"), "{junk:?}");
        let node = house.open().await;
        node.prove(1, &id("a-0-g1")).await.unwrap();
        node.forget(1, &id("a-0-g1")).await.unwrap();
        close(node).await;
    }
    // What is no instance is passed over.
    let instances = house.settings.folder.join("instances");
    std::fs::create_dir(instances.join("UPPER")).unwrap();
    std::fs::write(instances.join("a-file"), "x").unwrap();
    let node = house.open().await;
    assert_eq!(node.instances().await.unwrap(), []);
    close(node).await;
}
