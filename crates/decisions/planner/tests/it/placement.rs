//! Who gets which GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_config::site::MemoryBudget;
use tidegate_core::DeploymentName;
use tidegate_planner::hardware::{GpuId, GpuState, Hardware, Node};
use tidegate_planner::memory::{self, Agreement, Band, Footprint};
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Placement, Reason, Remedy, ReplicaKey, Request, Seat, Situation, place, remedies};
use tidegate_planner::topology::Lattice;

use crate::fleet::{Board, alias, deployment, fleet, node, schedule, seats};

const KEEP_7: &str = ", groups: [{name: spare, gpus: 7, keepFree: true}]";

fn short(placement: &Placement) -> Vec<u32> {
    placement.misfits.iter().filter_map(|misfit| misfit.reason.gpus_short()).collect()
}

#[test]
fn golden_8_three_fit_with_one_kept_free_and_two_large_ones_are_short() {
    let three = [("llama-70b", 4), ("qwen-32b", 2), ("llama-8b", 1)];
    let placement = Board::one(&three, KEEP_7).place();
    assert_eq!(seats(&placement, 0), ["llama-70b 0-3", "llama-8b 6", "qwen-32b 4-5"]);
    assert_eq!(placement.misfits, []);
    let placement = Board::one(&[("llama-70b", 4), ("deepseek-r1-70b", 4), ("qwen-32b", 2)], "").place();
    assert_eq!(short(&placement), [2]);
    let board = Board::one(&[("llama-70b", 4), ("deepseek-r1-70b", 4)], KEEP_7);
    let placement = board.place();
    assert_eq!(short(&placement), [1]);
    assert_eq!(placement.misfits[0].reason.to_string(), "1 GPU short: 8 are needed, 7 can be used");
    let said: Vec<String> = remedies(board.request(), 0).iter().map(Remedy::to_string).collect();
    assert_eq!(said, ["keepFree: false for GPU group spare of n", "take out deepseek-r1-70b", "4 GPUs more"]);
}

#[test]
fn golden_15_day_and_night_have_their_gpus() {
    let names = [("deepseek", 4), ("glm-flash", 4), ("glm", 4), ("qwen", 2), ("gpt-oss", 1)];
    let deployments: String = names.iter().map(|(name, tp)| deployment(name, *tp, "")).collect();
    let aliases: String = [
        alias("deepseek", "deepseek", &["day"], &["night"]),
        alias("glm-flash", "glm-flash", &["day"], &["night"]),
        alias("glm", "glm", &["night"], &["day"]),
        alias("qwen", "qwen", &["night"], &["day"]),
        alias("gpt-oss", "gpt-oss", &["night"], &["day"]),
    ]
    .concat();
    let schedule = schedule(&["deepseek", "glm-flash"], &["glm", "qwen", "gpt-oss"], "");
    let placement = Board::of(&fleet(&format!("{}{deployments}{aliases}{schedule}", node("")))).place();
    assert_eq!(placement.misfits, []);
    assert_eq!(seats(&placement, 0), ["deepseek 0-3", "glm-flash 4-7"]);
    assert_eq!(seats(&placement, 1), ["glm 0-3", "gpt-oss 6", "qwen 4-5"]);
}

#[test]
fn golden_16_aligned_blocks_only() {
    let placement = Board::one(&[("a", 4), ("b", 2), ("c", 1), ("d", 1)], "").place();
    assert_eq!(seats(&placement, 0), ["a 0-3", "b 4-5", "c 6", "d 7"]);
    let mut board = Board::one(&[("a", 4)], "");
    for tp in [3, 6] {
        let need = Need { tp, ..board.needs[&DeploymentName::from("a")].clone() };
        board.needs.insert(need.name.clone(), need);
        assert_eq!(board.place().misfits[0].reason, Reason::NoDomain { size: tp });
    }
    let lattice = Lattice::of(&board.hardware.nodes["n"]);
    let blocks: Vec<_> = lattice.blocks(4).iter().map(|block| block.gpus.clone()).collect();
    assert_eq!(blocks, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]], "never {{0,2,5,7}}");
    let mut second = Board::one(&[("a", 4), ("b", 4)], "");
    assert_eq!(seats(&second.place(), 0), ["a 0-3", "b 4-7"]);
    second.situations[0].blocked.insert(GpuId { node: Arc::from("n"), index: 5 }, Arc::from("research"));
    assert_eq!(second.place().misfits[0].reason, Reason::Short { needed: 8, usable: 7 });
}

#[test]
fn golden_26_budgets_become_shares_flags_and_bands() {
    const GB: u64 = 1_000_000_000;
    let budget = MemoryBudget { weights: 280 * GB, kv_cache: 80 * GB, workspace: 20 * GB, reserve: 20 * GB };
    let gpu = 288 * GB;
    assert_eq!(memory::total(&budget), 400 * GB);
    assert_eq!(memory::share(&budget, 4), 100 * GB);
    assert_eq!(memory::percent(100 * GB, gpu), "34.7 %");
    assert_eq!(memory::flag(&budget, 4, gpu).to_string(), "0.33");
    let booked = memory::booked(&Footprint::Budget(budget), 4, gpu);
    assert_eq!(booked, 100 * GB);
    assert_eq!((memory::percent(2 * booked, gpu), memory::band(2 * booked, gpu)), ("69.4 %".into(), Band::Unused));
    assert_eq!((memory::percent(3 * booked, gpu), memory::band(3 * booked, gpu)), ("104.2 %".into(), Band::Refused));
    let large = |tp| memory::share(&MemoryBudget { weights: 700 * GB, kv_cache: 0, workspace: 0, reserve: 0 }, tp);
    assert_eq!((large(8), memory::percent(large(8), gpu)), (87_500_000_000, "30.4 %".into()));
    assert_eq!((large(4), memory::percent(large(4), gpu)), (175 * GB, "60.8 %".into()));
    assert_eq!((large(2), memory::band(large(2), gpu)), (350 * GB, Band::Refused));
    assert_eq!(memory::gibibytes(gpu), "268.2 GiB");
    let site = fleet(&format!("{}{}", node(""), deployment("big", 2, ", memory: {weights: 700GB, kvCache: 0GB}")));
    let situation =
        Situation { label: "x".into(), set: [DeploymentName::from("big")].into(), blocked: BTreeMap::new() };
    let board = Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] };
    let said = board.place().misfits[0].reason.to_string();
    assert!(said.starts_with("needs 351.4 GB of each GPU") || said.starts_with("needs 350 GB of each GPU"), "{said}");
}

#[test]
fn bands_hold_at_their_bounds() {
    let bands = [(699, Band::Unused), (700, Band::Fine), (800, Band::Fine), (801, Band::Notice), (850, Band::Notice)];
    for (booked, band) in bands.into_iter().chain([(851, Band::Warning), (900, Band::Warning), (901, Band::Refused)]) {
        assert_eq!(memory::band(booked, 1_000), band, "{booked}");
    }
}

#[test]
fn memory_that_was_written_in_gb_for_gib_is_told_apart_from_other_memory() {
    let measured = 288 * (1 << 30);
    assert_eq!(memory::compare(288_000_000_000, measured), Agreement::AgreesAsGib);
    assert_eq!(memory::compare(309_000_000_000, measured), Agreement::Agrees);
    assert_eq!(memory::compare(192_000_000_000, measured), Agreement::Differs);
}

#[test]
fn a_deployment_of_both_shifts_keeps_its_gpus() {
    let deployments: String =
        [("small", 1), ("a", 4), ("b", 4), ("c", 2)].iter().map(|(name, tp)| deployment(name, *tp, "")).collect();
    let aliases: String = ["a", "b", "c"]
        .iter()
        .map(|name| {
            let (here, there) = if *name == "a" { ("day", "night") } else { ("night", "day") };
            alias(name, name, &[here], &[there])
        })
        .collect();
    let both = alias("small", "small", &["day", "night"], &[]);
    let schedule =
        schedule(&["small", "a"], &["small", "c", "a2"].map(|name| if name == "a2" { "b" } else { name }), "");
    let site = fleet(&format!("{}{deployments}{aliases}{both}{schedule}", node("")));
    let placement = Board::of(&site).place();
    assert_eq!(placement.misfits, []);
    assert_eq!(seats(&placement, 0), ["a 4-7", "small 0"]);
    assert_eq!(seats(&placement, 1), ["b 4-7", "c 2-3", "small 0"]);
}

#[test]
fn small_models_share_a_gpu_only_with_budgets_on_all_and_no_block_free() {
    let set = |budget: &str| {
        let small = format!(", memory: {{weights: {budget}, kvCache: 20GB}}");
        let documents: String = (0..10).map(|number| deployment(&format!("d{number}"), 1, &small)).collect();
        let site = fleet(&format!("{}{documents}", node("")));
        let situation =
            Situation { label: "x".into(), set: site.deployments.keys().cloned().collect(), blocked: BTreeMap::new() };
        Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] }
    };
    let placement = set("60GB").place();
    assert_eq!(placement.misfits, []);
    assert_eq!(seats(&placement, 0)[8..], ["d8 0".to_owned(), "d9 0".to_owned()]);
    let tight = set("100GB").place();
    assert_eq!(seats(&tight, 0)[8..], ["d8 0".to_owned(), "d9 1".to_owned()], "a third would be above 90 %");
    assert_eq!(set("130GB").place().misfits.len(), 2);
    let mut unknown = set("60GB");
    let need = unknown.needs.get_mut("d0").unwrap();
    need.footprint = Footprint::Flag(memory::Hundredths(10));
    assert_eq!(
        seats(&unknown.place(), 0)[8..],
        ["d8 1".to_owned(), "d9 1".to_owned()],
        "never beside one without a budget"
    );
}

#[test]
fn groups_are_for_their_classes_and_unknown_links_stay_unknown() {
    let groups = ", groups: [{name: large, gpus: 0-3, classes: [interactive]}, {name: small, gpus: 4-7, classes: [general, batch]}]";
    let documents = [
        deployment("a", 4, ", class: interactive"),
        deployment("b", 1, ""),
        deployment("c", 2, ", placement: {group: small}, class: batch"),
    ]
    .concat();
    let site = fleet(&format!("{}{documents}", node(groups)));
    let situation =
        Situation { label: "x".into(), set: site.deployments.keys().cloned().collect(), blocked: BTreeMap::new() };
    let board = Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] };
    let placement = board.place();
    assert_eq!(seats(&placement, 0), ["a 0-3", "b 6", "c 4-5"]);
    assert!(!Lattice::of(&board.hardware.nodes["n"]).blocks(4)[0].is_known);
}

#[test]
fn a_group_over_two_link_domains_is_refused() {
    let mut board = Board::one(&[("a", 8)], "");
    assert_eq!(board.place().misfits, [], "unknown links are not refused");
    let node = board.hardware.nodes.get_mut("n").unwrap();
    for (index, gpu) in &mut node.gpus {
        gpu.link = Some(u32::from(*index >= 6));
    }
    assert_eq!(board.place().misfits[0].reason, Reason::NoDomain { size: 8 });
}

#[test]
fn a_replica_over_two_nodes_is_one_resource_on_aligned_rails() {
    let documents = "---\nkind: Model\nmetadata: {name: m}\nspec: {engine: vllm, source: {path: m/x}}\n---\nkind: Deployment\nmetadata: {name: wide}\nspec: {model: m, parallel: {tp: 8, pp: 2}, gpus: {required: 16}}\n";
    let two = format!("{}---\n{}", node(""), node("").replace("name: n}", "name: o}"));
    let site = fleet(&format!("{two}{documents}"));
    let situation =
        Situation { label: "x".into(), set: [DeploymentName::from("wide")].into(), blocked: BTreeMap::new() };
    let mut board = Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] };
    assert_eq!(seats(&board.place(), 0), ["wide 0-7 + o 0-7"]);
    board.situations[0].blocked.insert(GpuId { node: Arc::from("o"), index: 3 }, Arc::from("x"));
    assert_eq!(board.place().seats[0].len(), 0, "half a replica is none");
    board.situations[0].blocked.clear();
    board.hardware.nodes.get_mut("o").unwrap().rdma = Some(false);
    assert_eq!(board.place().misfits[0].reason, Reason::NoRdma);
}

#[test]
fn workers_book_cpus_and_memory_and_gpu_nodes_in_mig_are_for_who_asks() {
    let worker = |name: &str, cpu: u32, memory: &str| {
        format!(
            "---\nkind: Model\nmetadata: {{name: m-{name}}}\nspec: {{engine: vllm, source: {{path: m/{name}}}}}\n---\nkind: Deployment\nmetadata: {{name: {name}}}\nspec: {{model: m-{name}, kind: document, cpu: {cpu}, hostMemory: {memory}}}\n"
        )
    };
    let documents = [worker("a", 40, "500GB"), worker("b", 40, "500GB"), worker("c", 40, "500GB")].concat();
    let site = fleet(&format!("{}{documents}", node("")));
    let situation =
        Situation { label: "x".into(), set: site.deployments.keys().cloned().collect(), blocked: BTreeMap::new() };
    let mut board = Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] };
    let placement = board.place();
    let numa = |name: &str| placement.seats[0][&ReplicaKey { deployment: name.into(), index: 0 }].parts[0].numa;
    assert_eq!((numa("a"), numa("b"), numa("c")), (Some(0), Some(1), None), "the third finds only rests of both");
    board.hardware.nodes.get_mut("n").unwrap().host_memory = Some(1_200_000_000_000);
    assert!(board.place().misfits[0].reason.to_string().contains("at most 200 GB"));
    let mut board = Board::one(&[("small", 1), ("other", 1)], "");
    let gpu = board.hardware.nodes.get_mut("n").unwrap().gpus.get_mut(&0).unwrap();
    gpu.state = GpuState::Mig(vec!["1g.36gb".into(), "1g.36gb".into()]);
    board.needs.get_mut("small").unwrap().mig = Some("1g.36gb".into());
    board.needs.get_mut("small").unwrap().replicas = 2;
    assert_eq!(seats(&board.place(), 0), ["other 1", "small 0", "small 0"]);
    board.needs.get_mut("small").unwrap().replicas = 3;
    assert_eq!(board.place().misfits[0].reason, Reason::NoInstance("1g.36gb".into()));
}

#[test]
fn a_pinned_replica_stays_and_one_on_a_failed_gpu_may_use_the_kept_one() {
    let mut board = Board::one(&[("a", 1), ("b", 4)], KEEP_7);
    let key = ReplicaKey { deployment: "a".into(), index: 0 };
    let seat = Seat {
        parts: vec![tidegate_planner::placement::Part {
            node: "n".into(),
            groups: vec![vec![5]],
            numa: Some(1),
            mig: None,
        }],
    };
    let pinned = BTreeMap::from([(key, seat)]);
    let placed = |board: &Board| seats(&place(Request { pinned: &pinned, ..board.request() }), 0);
    assert_eq!(placed(&board), ["a 5", "b 0-3"]);
    for index in [4, 5, 6] {
        board.hardware.nodes.get_mut("n").unwrap().gpus.get_mut(&index).unwrap().state = GpuState::Failed;
    }
    assert_eq!(placed(&board), ["a 7", "b 0-3"].map(str::to_owned).to_vec());
}

#[test]
fn an_exclusive_deployment_has_its_node_for_itself() {
    let documents = [deployment("a", 1, ", placement: {exclusive: node}"), deployment("b", 1, "")].concat();
    let site = fleet(&format!("{}{documents}", node("")));
    let situation =
        Situation { label: "x".into(), set: site.deployments.keys().cloned().collect(), blocked: BTreeMap::new() };
    let board = Board { hardware: Hardware::of(&site), needs: Need::all(&site), situations: vec![situation] };
    let placement = board.place();
    assert_eq!(seats(&placement, 0), ["a 0"]);
    assert_eq!(placement.misfits[0].reason, Reason::NotAlone);
}

/// Whether any choice of aligned blocks fits, tried one by one.
fn brute(node: &Node, sizes: &[u32], taken: &BTreeSet<u32>) -> bool {
    let Some((size, rest)) = sizes.split_first() else { return true };
    let starts = (0..8).step_by(*size as usize);
    starts.into_iter().any(|start| {
        let block: BTreeSet<u32> = (start..start + size).collect();
        let is_free = block.is_disjoint(taken) && block.iter().all(|gpu| node.gpus[gpu].state == GpuState::Usable);
        is_free && brute(node, rest, &taken.union(&block).copied().collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// What is placed is aligned, usable and nobody else's; what is refused has no place in any order.
    #[test]
    fn a_set_is_placed_exactly_when_it_can_be(
        sizes in proptest::collection::vec(prop::sample::select(vec![1_u32, 1, 2, 2, 4, 8]), 1..6),
        failed in proptest::collection::btree_set(0_u32..8, 0..3),
    ) {
        let names: Vec<String> = (0..sizes.len()).map(|number| format!("d{number}")).collect();
        let named: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
        let mut board = Board::one(&named, "");
        for index in &failed {
            board.hardware.nodes.get_mut("n").unwrap().gpus.get_mut(index).unwrap().state = GpuState::Failed;
        }
        let placement = board.place();
        let mut taken = BTreeSet::new();
        for (key, seat) in &placement.seats[0] {
            let gpus: Vec<u32> = seat.gpus().iter().map(|gpu| gpu.index).collect();
            let size = board.needs[&key.deployment].tp;
            prop_assert_eq!(gpus.len() as u32, size);
            prop_assert_eq!(gpus[0] % size, 0);
            prop_assert!(gpus.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            for gpu in gpus {
                prop_assert!(!failed.contains(&gpu) && taken.insert(gpu));
            }
        }
        let mut sizes = sizes;
        sizes.sort_unstable();
        sizes.reverse();
        let can = brute(&board.hardware.nodes["n"], &sizes, &BTreeSet::new());
        prop_assert_eq!(placement.misfits.is_empty(), can);
        prop_assert_eq!(board.place(), placement, "the same again");
        for remedy in remedies(board.request(), 0).into_iter().filter(|_| !can) {
            if let Remedy::Drop(names) = remedy {
                let mut fewer = board.situations[0].clone();
                fewer.set.retain(|name| !names.contains(name));
                let misfits = place(Request { situations: &[fewer], ..board.request() }).misfits;
                prop_assert!(misfits.is_empty());
            }
        }
    }
}
