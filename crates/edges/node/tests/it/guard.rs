//! No process is left, under each of the guarantees: the same suite for all.

use std::time::Duration;

use tidegate_node::facts::{KillBy, LimitBy};
use tidegate_node::{GuardChoice, InstanceState, Node, OnExit};

use crate::house::{Alive, House, SHORT, close, ended, id, order, pid, signal};

/// Workers that have left the process group and the session, whose parent is gone, who ignore SIGTERM and whose
/// environment says nothing of us.
const DAEMONS: &str = "for n in 1 2 3; do\n\
    (setsid env -i sh -c 'trap \"\" TERM HUP INT; echo worker >&3; while :; do sleep 1000; done' &)\n\
    done\n";

/// The guarantee that a machine must have for its layer to be tested at all.
fn wanted(choice: GuardChoice) -> KillBy {
    match choice {
        GuardChoice::Best => KillBy::CgroupV2,
        GuardChoice::NoV2 => KillBy::CgroupV1,
        GuardChoice::RecordedTree => KillBy::RecordedTree,
    }
}

async fn house(choice: GuardChoice) -> (House, tidegate_node::LocalNode) {
    let house = House::guarded(choice);
    let node = house.open().await;
    let facts = node.facts().await.unwrap();
    assert_eq!(facts.guard.kill, wanted(choice), "this machine lacks what is tested: {:?}", facts.guard);
    (house, node)
}

async fn three_workers(alive: &mut Alive) {
    // The first line was read at the start.
    assert_eq!(alive.word().await, "worker");
    assert_eq!(alive.word().await, "worker");
}

async fn daemons_are_ended_with_their_engine(choice: GuardChoice) {
    let (house, node) = house(choice).await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", &format!("{DAEMONS}exec sleep 1000"))).await;
    three_workers(&mut alive).await;
    node.stop(1, &id("a-0-g1"), SHORT).await.unwrap();
    ended(&node, &id("a-0-g1")).await;
    alive.ended().await;
    close(node).await;
}

async fn workers_of_an_api_process_that_was_killed_are_ended(choice: GuardChoice) {
    // L01
    let (house, node) = house(choice).await;
    let mut alive = Alive::new(&house, "alive");
    let (report, _) = alive.start(&node, order("a-0-g1", &format!("{DAEMONS}exec sleep 1000"))).await;
    three_workers(&mut alive).await;
    signal("-KILL", pid(&report));
    ended(&node, &id("a-0-g1")).await;
    alive.ended().await;
    close(node).await;
}

async fn nothing_survives_the_minder(choice: GuardChoice, script: &str) {
    let (house, node) = house(choice).await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", script)).await;
    let workers = script.matches("for n in 1 2 3").count() * 2;
    for _ in 0..workers {
        alive.word().await;
    }
    signal("-KILL", minder(&house, "a-0-g1"));
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { exit: None, cause: Some(cause), .. } = report.state else { panic!("{report:?}") };
    assert!(cause.contains("minder was killed"), "{cause}");
    alive.ended().await;
    close(node).await;
}

async fn nothing_survives_a_minder_that_died_while_we_were_away(choice: GuardChoice, script: &str) {
    let (house, node) = house(choice).await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", script)).await;
    let workers = script.matches("for n in 1 2 3").count() * 2;
    for _ in 0..workers {
        alive.word().await;
    }
    node.close(OnExit::Leave).await;
    signal("-KILL", minder(&house, "a-0-g1"));
    let node = house.open().await;
    ended(&node, &id("a-0-g1")).await;
    alive.ended().await;
    close(node).await;
}

pub(crate) fn minder(house: &House, instance: &str) -> i64 {
    let text = std::fs::read(house.instance(instance).join("minder.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["minder"]["pid"].as_i64().unwrap()
}

/// Workers that keep their environment: all that the lowest layer needs.
const MARKED: &str =
    "(setsid sh -c 'trap \"\" TERM HUP INT; echo worker >&3; while :; do sleep 1000; done' &)\nexec sleep 1000";

macro_rules! suite {
    ($name:ident, $choice:expr, $after_minder:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn daemons_without_group_session_parent_or_environment_are_ended() {
                daemons_are_ended_with_their_engine($choice).await;
            }

            #[tokio::test]
            async fn workers_live_on_and_hold_the_gpus_after_the_api_process_was_killed() {
                workers_of_an_api_process_that_was_killed_are_ended($choice).await;
            }

            #[tokio::test]
            async fn an_engine_does_not_outlive_its_minder() {
                nothing_survives_the_minder($choice, $after_minder).await;
            }

            #[tokio::test]
            async fn an_engine_does_not_outlive_a_minder_that_died_while_we_were_away() {
                nothing_survives_a_minder_that_died_while_we_were_away($choice, $after_minder).await;
            }
        }
    };
}

suite!(cgroup_v2, GuardChoice::Best, &format!("{DAEMONS}exec sleep 1000"));
suite!(cgroup_v1, GuardChoice::NoV2, &format!("{DAEMONS}exec sleep 1000"));
suite!(recorded_tree, GuardChoice::RecordedTree, MARKED);

#[tokio::test]
async fn an_engine_has_a_cgroup_of_its_own_that_goes_with_it() {
    let (house, node) = house(GuardChoice::Best).await;
    let mut alive = Alive::new(&house, "alive");
    let (report, _) = alive.start(&node, order("a-0-g1", "echo ready >&3\nexec sleep 1000")).await;
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", pid(&report))).unwrap();
    let v2 = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    assert!(v2.contains("/tidegate-") && v2.ends_with("/a-0-g1"), "{own}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap().split(' ').nth(1).unwrap().to_owned();
    let folder = format!("{mount}{v2}");
    assert!(std::path::Path::new(&folder).join("cgroup.kill").exists());
    node.stop(1, &id("a-0-g1"), Duration::ZERO).await.unwrap();
    ended(&node, &id("a-0-g1")).await;
    assert!(!std::path::Path::new(&folder).exists());
    close(node).await;
}

#[tokio::test]
async fn workers_of_a_parent_that_the_kernel_killed_for_memory_are_ended_and_it_is_said() {
    // L02
    let (house, node) = house(GuardChoice::Best).await;
    let memory = node.facts().await.unwrap().guard.memory;
    assert!(
        matches!(memory, Some(LimitBy::CgroupV1 | LimitBy::CgroupV2)),
        "this machine has no memory controller that can be written, and the case cannot be shown"
    );
    let mut alive = Alive::new(&house, "alive");
    let hungry = "exec python3 -c 'import sys\nkept = []\nwhile True: kept.append(bytearray(b\"x\" * (1 << 20)))'";
    let mut wish = order("a-0-g1", &format!("{DAEMONS}{hungry}"));
    wish.memory_max_bytes = Some(64 << 20);
    alive.start(&node, wish).await;
    let report = ended(&node, &id("a-0-g1")).await;
    let InstanceState::Ended { cause: Some(cause), .. } = &report.state else { panic!("{report:?}") };
    assert!(cause.starts_with("out_of_memory"), "{cause}");
    three_workers(&mut alive).await;
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn an_engine_that_nobody_is_connected_to_is_ended_after_a_while_and_not_before() {
    let mut house = House::new();
    let node = house.open().await;
    let gate = house.path().join("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let mut alive = Alive::new(&house, "alive");
    let script = format!("echo ready >&3\nread word < {}\necho still >&3\nexec sleep 1000", gate.display());
    alive.start(&node, order("a-0-g1", &script)).await;
    node.close(OnExit::Leave).await;
    // Whoever is connected says how long nobody may be.
    house.settings.orphan_after = Some(Duration::from_millis(1));
    let node = house.open().await;
    std::fs::write(&gate, "go\n").unwrap();
    assert_eq!(alive.word().await, "still");
    node.close(OnExit::Leave).await;
    alive.ended().await;
    let node = house.open().await;
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(report.state.has_ended(), "{report:?}");
    close(node).await;
}

#[tokio::test]
async fn a_signal_to_the_minder_ends_the_engine_and_a_ctrl_c_does_not_reach_it() {
    let (house, node) = house(GuardChoice::Best).await;
    let mut alive = Alive::new(&house, "alive");
    let script = "trap 'exit 5' TERM\nsleep 1000 & echo ready >&3\nwait";
    let (report, _) = alive.start(&node, order("a-0-g1", script)).await;
    let session = |pid: i64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().to_owned()
    };
    let minder = minder(&house, "a-0-g1");
    assert_eq!(session(minder), minder.to_string(), "a session of its own");
    assert_eq!(session(i64::from(pid(&report))), minder.to_string());
    signal("-TERM", minder);
    let report = ended(&node, &id("a-0-g1")).await;
    assert!(
        matches!(report.state, InstanceState::Ended { exit: Some(tidegate_node::Exit::Code(5)), .. }),
        "{report:?}"
    );
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn a_minder_that_hangs_does_not_keep_its_engine() {
    let (house, node) = house(GuardChoice::Best).await;
    let mut alive = Alive::new(&house, "alive");
    alive.start(&node, order("a-0-g1", &format!("{DAEMONS}exec sleep 1000"))).await;
    three_workers(&mut alive).await;
    signal("-STOP", minder(&house, "a-0-g1"));
    node.stop(1, &id("a-0-g1"), Duration::ZERO).await.unwrap();
    ended(&node, &id("a-0-g1")).await;
    alive.ended().await;
    close(node).await;
}

#[tokio::test]
async fn limits_are_in_force_where_the_machine_can_hold_them() {
    let (house, node) = house(GuardChoice::Best).await;
    let mut alive = Alive::new(&house, "alive");
    let mut wish = order("a-0-g1", "echo ready >&3\nexec sleep 1000");
    (wish.memory_max_bytes, wish.cpu_milli) = (Some(256 << 20), Some(500));
    let (report, _) = alive.start(&node, wish).await;
    let own = std::fs::read_to_string(format!("/proc/{}/cgroup", pid(&report))).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let read = |controller: &str, v1: &str, v2: &str| {
        let is_it = |line: &&str| line.split(':').nth(1).unwrap().split(',').any(|name| name == controller);
        let line = own.lines().find(is_it).or_else(|| own.lines().find(|line| line.starts_with("0::"))).unwrap();
        let (is_v2, path) = (line.starts_with("0::"), line.splitn(3, ':').nth(2).unwrap());
        let is_mount = |line: &&str| {
            let kind = line.split(' ').nth(2).unwrap();
            if is_v2 {
                kind == "cgroup2"
            } else {
                kind == "cgroup" && line.split([' ', ',']).any(|word| word == controller)
            }
        };
        let point = mounts.lines().find(is_mount).unwrap().split(' ').nth(1).unwrap();
        std::fs::read_to_string(format!("{point}{path}/{}", if is_v2 { v2 } else { v1 })).unwrap().trim().to_owned()
    };
    assert_eq!(read("memory", "memory.limit_in_bytes", "memory.max"), (256 << 20).to_string());
    let cpu = read("cpu", "cpu.cfs_quota_us", "cpu.max");
    assert!(cpu == "50000" || cpu == "50000 100000", "half of a period: {cpu}");
    close(node).await;
}

#[tokio::test]
async fn a_check_says_what_is_in_force_and_leaves_nothing() {
    let house = House::new();
    let node = house.open().await;
    let checked = tidegate_node::check(house.settings.clone()).await.unwrap();
    let own = node.facts().await.unwrap();
    assert_eq!((checked.guard, checked.numa, checked.source), (own.guard, own.numa, own.source));
    let left = std::env::temp_dir().join(format!("tidegate-check-{}", std::process::id()));
    assert!(!left.exists());
    close(node).await;
}
