//! A GPU changes hands only after proof that nothing is left on it.

use std::sync::Arc;

use tidegate_node::facts::{FactSource, GpuState, ProofKind};
use tidegate_node::nvml::scripted::{Figures, H200_BYTES, IDLE_BYTES, Scripted};
use tidegate_node::{LocalNode, Node, NodeError, OnExit, Proof, ProvenBy, StartOrder};

use crate::house::{Alive, House, close, code, ended, id, kill, order, pid, signal};

const GIB: u64 = 1 << 30;

fn on(instance: &str, gpus: &[u32], script: &str) -> StartOrder {
    StartOrder { gpus: gpus.to_vec(), ..order(instance, script) }
}

fn waiting(instance: &str, gpus: &[u32]) -> StartOrder {
    on(instance, gpus, "exec sleep 1000")
}

async fn not_free(node: &LocalNode, instance: &str) -> String {
    match node.prove(1, &id(instance)).await.unwrap() {
        Proof::NotFree { why, .. } => why,
        free @ Proof::Free { .. } => panic!("{free:?}"),
    }
}

async fn state(node: &LocalNode, gpu: usize) -> GpuState {
    node.facts().await.unwrap().gpus.remove(gpu).state
}

/// An instance on a GPU, with memory there, measured.
async fn running(node: &LocalNode, driver: &Arc<Scripted>, instance: &str, gpu: u32, bytes: u64) -> u32 {
    let pid = pid(&node.start(1, waiting(instance, &[gpu])).await.unwrap());
    driver.set_process(gpu, pid, bytes);
    node.facts().await.unwrap();
    pid
}

#[tokio::test]
async fn workers_hold_the_gpus_after_the_api_process_was_killed_and_the_next_start_runs_out_of_memory() {
    // L01
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    let mut alive = Alive::new(&house, "alive");
    let script = "(setsid sh -c 'trap \"\" TERM; echo $$ >&3; while :; do sleep 1000; done' &)\nexec sleep 1000";
    let (report, worker) = alive.start(&node, on("a-0-g1", &[0, 1], script)).await;
    let worker: u32 = worker.parse().unwrap();
    driver.set_process(0, worker, 40 * GIB);
    driver.set_process(1, worker, 40 * GIB);
    assert!(matches!(state(&node, 0).await, GpuState::InUse { .. }), "the worker is known to be ours");
    signal("-KILL", pid(&report));
    ended(&node, &id("a-0-g1")).await;
    alive.ended().await;
    // All of its processes are gone, and the driver has not noticed yet.
    assert_eq!(not_free(&node, "a-0-g1").await, format!("gpu 0: its process {worker} is still listed"));
    let refused = node.start(1, waiting("b-0-g1", &[0, 1])).await.unwrap_err();
    assert!(
        matches!(&refused, NodeError::GpuTaken { gpu: 0, by } if by.starts_with("a-0-g1, which has ended")),
        "{refused}"
    );
    driver.set_process(0, worker, 0);
    driver.set_process(1, worker, 0);
    assert_eq!(code(&node.forget(1, &id("a-0-g1")).await.unwrap_err()), "bad_request", "not proven yet");
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    node.start(1, waiting("b-0-g1", &[0, 1])).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn an_instance_that_is_gone_with_22_gb_left_on_the_gpu_proves_nothing() {
    // L03, as far as processes go
    let (house, driver) = House::with(Scripted::h200());
    let node = house.open().await;
    let gone = running(&node, &driver, "a-0-g1", 0, 22 * GIB).await;
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(0, gone, 0);
    driver.set_leaked(0, 22 * GIB);
    let why = not_free(&node, "a-0-g1").await;
    assert!(why.starts_with("gpu 0: 22532 MiB are in use that nobody has"), "{why}");
    close(node).await;
}

#[tokio::test]
async fn a_load_that_failed_on_a_dirty_gpu_leaves_no_sticky_error() {
    // L04
    let (house, driver) = House::with(Scripted::h200());
    let node = house.open().await;
    driver.set_leaked(0, 10 * GIB);
    let refused = node.start(1, waiting("a-0-g1", &[0])).await.unwrap_err();
    assert!(
        matches!(&refused, NodeError::GpuTaken { gpu: 0, by } if by.contains("nobody that the driver lists")),
        "{refused}"
    );
    assert_eq!(node.instances().await.unwrap(), []);
    driver.set_leaked(0, 0);
    node.start(1, waiting("a-0-g1", &[0])).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn memory_that_does_not_come_back_blocks_the_gpu_until_it_does_or_a_person_says_so() {
    // L05
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    for (instance, gpu) in [("a-0-g1", 0), ("b-0-g1", 1)] {
        let gone = running(&node, &driver, instance, gpu, 100 * GIB).await;
        kill(&node, &id(instance)).await;
        driver.set_process(gpu, gone, 0);
        driver.set_leaked(gpu, 100 * GIB);
    }
    not_free(&node, "a-0-g1").await;
    let GpuState::Unproven { instance, why } = state(&node, 0).await else { panic!() };
    assert!(instance == id("a-0-g1") && why.contains("in use that nobody has"), "{why}");
    assert!(matches!(state(&node, 1).await, GpuState::Unproven { .. }), "not even asked yet");
    assert_eq!(code(&node.start(1, waiting("c-0-g1", &[0])).await.unwrap_err()), "gpu_taken");
    node.start(1, waiting("d-0-g1", &[2])).await.unwrap();
    // It is still so after a restart.
    node.close(OnExit::Leave).await;
    let node = house.open().await;
    assert!(matches!(state(&node, 0).await, GpuState::Unproven { .. }));
    not_free(&node, "a-0-g1").await;
    driver.set_leaked(0, 512 << 20);
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    assert_eq!(state(&node, 0).await, GpuState::Free);
    node.release(1, 1, "the machine was looked at").await.unwrap();
    assert_eq!(node.prove(1, &id("b-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Person });
    assert_eq!(state(&node, 1).await, GpuState::Free);
    node.forget(1, &id("b-0-g1")).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn every_gpu_of_a_tp_group_is_waited_for_rank_0_too() {
    // L06
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    let started = node.start(1, waiting("a-0-g1", &[0, 1])).await.unwrap();
    let gone = pid(&started);
    driver.set_process(0, gone, 50 * GIB);
    driver.set_process(1, gone, 50 * GIB);
    node.facts().await.unwrap();
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(1, gone, 0);
    assert!(not_free(&node, "a-0-g1").await.starts_with("gpu 0: "));
    assert_eq!(
        code(&node.start(1, waiting("b-0-g1", &[1])).await.unwrap_err()),
        "gpu_taken",
        "nor is the other given away"
    );
    driver.set_process(0, gone, 0);
    // A look at the second GPU counts as much.
    driver.set_leaked(1, GIB);
    assert!(not_free(&node, "a-0-g1").await.starts_with("gpu 1: "));
    driver.set_leaked(1, 0);
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    close(node).await;
}

#[tokio::test]
async fn a_worker_that_keeps_its_gpu_is_not_booked_over() {
    // L07: one of the node's own, whose end nobody has proven, and one of somebody else
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    running(&node, &driver, "a-0-g1", 3, 9 * GIB).await;
    kill(&node, &id("a-0-g1")).await;
    let refused = node.start(1, waiting("b-0-g1", &[2, 3])).await.unwrap_err();
    assert!(matches!(&refused, NodeError::GpuTaken { gpu: 3, .. }), "{refused}");
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    driver.set_process(5, stranger.id(), 3 * GIB);
    let refused = node.start(1, waiting("b-0-g1", &[4, 5])).await.unwrap_err();
    let by = format!("sleep (pid {})", stranger.id());
    assert_eq!(refused, NodeError::GpuTaken { gpu: 5, by: by.clone() });
    assert_eq!(state(&node, 5).await, GpuState::Foreign { by });
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    // Listed still, though nobody lives under that number.
    assert_eq!(code(&node.start(1, waiting("b-0-g1", &[4, 5])).await.unwrap_err()), "gpu_taken");
    driver.set_process(5, stranger.id(), 0);
    node.start(1, waiting("b-0-g1", &[4, 5])).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn a_neighbour_on_the_same_gpu_is_neither_waited_for_nor_counted_as_free() {
    let (house, driver) = House::with(Scripted::h200());
    let node = house.open().await;
    let gone = running(&node, &driver, "a-0-g1", 0, 40 * GIB).await;
    let stays = running(&node, &driver, "b-0-g1", 0, 60 * GIB).await;
    assert_ne!(gone, stays);
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(0, gone, 0);
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    // What is left for the next one is what is free.
    let mut wish = waiting("c-0-g1", &[0]);
    wish.gpu_free_bytes = Some(H200_BYTES - 60 * GIB - IDLE_BYTES + 1);
    let refused = node.start(1, wish.clone()).await.unwrap_err();
    assert!(matches!(&refused, NodeError::GpuTaken { by, .. } if by.contains("are needed")), "{refused}");
    wish.gpu_free_bytes = Some(H200_BYTES - 60 * GIB - IDLE_BYTES);
    node.start(1, wish).await.unwrap();
    close(node).await;
}

#[tokio::test]
async fn without_figures_of_each_process_the_total_has_to_fall() {
    let (house, driver) = House::with(Scripted::h200());
    driver.set_figures(Figures::Who);
    let node = house.open().await;
    let stays = running(&node, &driver, "b-0-g1", 0, 60 * GIB).await;
    let gone = running(&node, &driver, "a-0-g1", 0, 40 * GIB).await;
    assert_eq!(node.facts().await.unwrap().proof, ProofKind::Total);
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(0, gone, 0);
    driver.set_leaked(0, 5 * GIB);
    let why = not_free(&node, "a-0-g1").await;
    assert!(why.contains("the total fell by 35840 MiB, its use was 40960 MiB"), "{why}");
    driver.set_leaked(0, 4 * GIB);
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Total });
    // Alone, it is the baseline that counts.
    kill(&node, &id("b-0-g1")).await;
    driver.set_process(0, stays, 0);
    not_free(&node, "b-0-g1").await;
    driver.set_leaked(0, 0);
    driver.set_figures(Figures::None);
    assert_eq!(node.prove(1, &id("b-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Total });
    close(node).await;
}

#[tokio::test]
async fn a_driver_that_went_away_proves_nothing_and_a_gpu_off_the_bus_neither() {
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    let gone = running(&node, &driver, "a-0-g1", 6, 40 * GIB).await;
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(6, gone, 0);
    driver.set_away(true);
    assert!(not_free(&node, "a-0-g1").await.contains("driver is gone"));
    driver.set_away(false);
    driver.set_failed(6, Some("GPU has fallen off the bus"));
    assert!(not_free(&node, "a-0-g1").await.contains("off the bus"));
    let refused = node.start(1, waiting("b-0-g1", &[6])).await.unwrap_err();
    assert_eq!(code(&refused), "gpu_taken");
    driver.set_failed(6, None);
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    close(node).await;
}

#[tokio::test]
async fn three_samples_have_to_say_so_and_one_that_does_not_ends_the_proof() {
    let (house, driver) = House::with(Scripted::h200());
    let node = house.open().await;
    let gone = running(&node, &driver, "a-0-g1", 0, GIB).await;
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(0, gone, 0);
    let before = driver.looks();
    node.prove(1, &id("a-0-g1")).await.unwrap();
    assert_eq!(driver.looks() - before, 3);
    node.prove(1, &id("a-0-g1")).await.unwrap();
    assert_eq!(driver.looks() - before, 3, "what is proven is proven");
    close(node).await;
}

#[tokio::test]
async fn without_a_driver_the_processes_are_the_proof() {
    let house = House::new();
    let node = house.open().await;
    let facts = node.facts().await.unwrap();
    assert_eq!((facts.source, facts.proof, facts.gpus.len()), (FactSource::None, ProofKind::Processes, 0));
    assert!(facts.host_memory_bytes > 0 && facts.host_free_bytes > 0 && !facts.boot_id.is_empty());
    let refused = node.start(1, waiting("a-0-g1", &[0])).await.unwrap_err();
    assert_eq!(code(&refused), "bad_request", "there is no such gpu");
    node.start(1, waiting("a-0-g1", &[])).await.unwrap();
    kill(&node, &id("a-0-g1")).await;
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Processes });
    close(node).await;
}

#[tokio::test]
async fn nothing_is_started_on_gpus_that_differ_from_their_document() {
    let (mut house, _driver) = House::with(Scripted::h200());
    house.settings.document = Some(document(141_000_000_000));
    let node = house.open().await;
    let problems = node.facts().await.unwrap().problems;
    assert_eq!(problems[0].hint.as_deref(), Some("write 141GiB"));
    let refused = node.start(1, waiting("a-0-g1", &[0])).await.unwrap_err();
    assert!(refused.to_string().contains("more than 3 % off"), "{refused}");
    node.start(1, waiting("b-0-g1", &[])).await.unwrap();
    close(node).await;
    house.settings.document = Some(document(141 << 30));
    let node = house.open().await;
    node.start(1, waiting("a-0-g1", &[0])).await.unwrap();
    close(node).await;
}

fn document(memory_bytes: u64) -> tidegate_config::site::Node {
    tidegate_config::site::Node {
        address: None,
        facts: tidegate_config::site::GpuFacts::Nvml,
        gpu_count: 1,
        gpu_product: Some("H200".into()),
        gpu_memory_bytes: Some(memory_bytes),
        host_memory_bytes: None,
        gpu_sharing: tidegate_config::site::GpuSharing::Plugin,
        numa: Vec::new(),
        groups: Vec::new(),
        launcher: None,
        engine_ports: None,
    }
}

#[tokio::test]
async fn a_gpu_that_fell_off_the_bus_does_not_lend_its_index_to_its_neighbour() {
    let (house, driver) = House::with(Scripted::b300_x8());
    let node = house.open().await;
    let gone = running(&node, &driver, "a-0-g1", 6, 40 * GIB).await;
    kill(&node, &id("a-0-g1")).await;
    driver.set_process(6, gone, 0);
    // Number 6 is lost, and what was 7 is 6 now: another GPU, on which nothing is.
    let name = |number: u32| tidegate_node::GpuUuid::from(&*format!("GPU-00000000-0000-0000-0000-{number:012}"));
    driver.edit(6, |gpu| gpu.uuid = Some(name(7)));
    driver.edit(7, |gpu| gpu.uuid = Some(name(8)));
    assert_eq!(not_free(&node, "a-0-g1").await, "gpu 6: the driver does not show it");
    assert_eq!(state(&node, 6).await, GpuState::Free, "nothing of it was ever on this one");
    driver.edit(7, |gpu| gpu.uuid = Some(name(6)));
    assert!(matches!(state(&node, 7).await, GpuState::Unproven { .. }), "here it is");
    assert_eq!(node.prove(1, &id("a-0-g1")).await.unwrap(), Proof::Free { by: ProvenBy::Nvml });
    close(node).await;
}
