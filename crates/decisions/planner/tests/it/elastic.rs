//! More GPUs where demand holds.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use tidegate_core::DeploymentName;
use tidegate_planner::elastic::{Change, Fleet, Load, decide, limit};
use tidegate_planner::hardware::Hardware;
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};

use crate::fleet::{deployment, fleet, node};

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

pub(crate) struct Stand {
    pub(crate) hardware: Hardware,
    pub(crate) needs: BTreeMap<DeploymentName, Need>,
    pub(crate) loads: BTreeMap<DeploymentName, Load>,
}

/// Golden 27: 70B on 0-3, 8B on 4, 5 and 6, an embedding model on 7; demand on the 70B holds.
pub(crate) fn golden_27(passed: &str) -> Stand {
    let large = deployment("llama-70b", 4, &format!(", priority: 100, profile: {{passed: {passed}}}"))
        .replace("{required: 4}", "{required: 4, min: 2, preferred: 4}");
    let small = deployment("llama-8b", 1, ", priority: 10, launch: {replicas: 3}")
        .replace("{required: 1}", "{required: 1, min: 1, preferred: 3}");
    let site = fleet(&[node(""), large, small, deployment("embed", 1, ", priority: 10")].concat());
    let mut loads: BTreeMap<DeploymentName, Load> = BTreeMap::new();
    for (name, index, gpus) in [
        ("llama-70b", 0, vec![0, 1, 2, 3]),
        ("llama-8b", 0, vec![4]),
        ("llama-8b", 1, vec![5]),
        ("llama-8b", 2, vec![6]),
        ("embed", 0, vec![7]),
    ] {
        let seat = Seat { parts: vec![Part { node: "n".into(), groups: vec![gpus], numa: None, mig: None }] };
        let load = loads.entry(name.into()).or_insert_with(|| Load {
            seats: BTreeMap::new(),
            demand_since: None,
            idle_since: None,
            changed_at: None,
        });
        load.seats.insert(ReplicaKey { deployment: name.into(), index }, seat);
    }
    loads.get_mut("llama-70b").unwrap().demand_since = Some(now() - SignedDuration::from_mins(3));
    Stand { hardware: Hardware::of(&site), needs: Need::all(&site), loads }
}

fn ask(stand: &Stand) -> Option<Change> {
    let blocked = BTreeSet::new();
    decide(
        Fleet { hardware: &stand.hardware, needs: &stand.needs, loads: &stand.loads, blocked: &blocked },
        false,
        now(),
    )
}

#[test]
fn golden_27_demand_takes_two_gpus_from_replicas_above_their_minimum() {
    let stand = golden_27("{\"4\": 16, \"2\": 6}");
    let change = ask(&stand).unwrap();
    let Change::Grow { deployment, tp, gpus, drains, count, .. } = &change else { panic!("{change}") };
    assert_eq!((deployment.as_str(), *tp, gpus.as_slice(), *count), ("llama-70b", 2, [4, 5].as_slice(), (4, 6)));
    assert_eq!(drains.iter().map(ToString::to_string).collect::<Vec<_>>(), ["llama-8b/0", "llama-8b/1"]);
    assert_eq!(change.to_string(), "demand on llama-70b: + TP2 on n 4-5 (4 -> 6 GPUs), drains llama-8b/0, llama-8b/1");
    let mut alone = golden_27("{\"4\": 16, \"2\": 6}");
    alone.needs.get_mut("llama-70b").unwrap().passed.remove(&2);
    assert_eq!(ask(&alone), None, "only if the profile passed TP2");
    let mut low = golden_27("{\"4\": 16, \"2\": 6}");
    low.needs.get_mut("llama-8b").unwrap().gpus.as_mut().unwrap().min = 2;
    assert_eq!(ask(&low), None, "never below min");
    let mut equal = golden_27("{\"4\": 16, \"2\": 6}");
    equal.needs.get_mut("llama-8b").unwrap().priority = 100;
    assert_eq!(ask(&equal), None, "only from lower priorities");
}

#[test]
fn growth_waits_for_demand_that_holds_for_its_cool_down_and_for_the_end_of_a_switch() {
    let mut stand = golden_27("{\"4\": 16, \"2\": 6}");
    let blocked = BTreeSet::new();
    let of = |stand: &Stand, is_switching| {
        decide(
            Fleet { hardware: &stand.hardware, needs: &stand.needs, loads: &stand.loads, blocked: &blocked },
            is_switching,
            now(),
        )
    };
    assert_eq!(of(&stand, true), None);
    let load = stand.loads.get_mut("llama-70b").unwrap();
    load.changed_at = Some(now() - SignedDuration::from_secs(599));
    assert_eq!(of(&stand, false), None);
    let load = stand.loads.get_mut("llama-70b").unwrap();
    load.changed_at = None;
    load.demand_since = Some(now() - SignedDuration::from_secs(179));
    assert_eq!(of(&stand, false), None);
}

#[test]
fn what_has_less_than_it_prefers_gets_more_when_there_is_room_and_takes_nothing_from_anybody() {
    let mut stand = golden_27("{\"4\": 16, \"2\": 6}");
    stand.loads.get_mut("llama-70b").unwrap().demand_since = None;
    let need = stand.needs.get_mut("llama-8b").unwrap();
    need.passed.insert(1, 8);
    need.gpus.as_mut().unwrap().preferred = 4;
    assert_eq!(ask(&stand), None, "no GPU is free");
    stand.loads.remove("embed");
    assert_eq!(ask(&stand).unwrap().to_string(), "room for llama-8b: + TP1 on n 7 (3 -> 4 GPUs)");
}

#[test]
fn what_is_not_needed_is_given_back_but_not_below_what_it_has_without_demand() {
    let mut stand = golden_27("{\"4\": 16, \"2\": 6}");
    let load = stand.loads.get_mut("llama-70b").unwrap();
    load.demand_since = None;
    load.idle_since = Some(now() - SignedDuration::from_mins(15));
    assert_eq!(ask(&stand), None);
    let seat = Seat { parts: vec![Part { node: "n".into(), groups: vec![vec![4, 5]], numa: None, mig: None }] };
    let key = ReplicaKey { deployment: "llama-70b".into(), index: 1 };
    stand.loads.get_mut("llama-70b").unwrap().seats.insert(key.clone(), seat);
    assert_eq!(ask(&stand), Some(Change::Shrink { replica: key, count: (6, 4) }));
}

#[test]
fn the_limit_of_an_alias_follows_what_serves() {
    assert_eq!((limit(30, 16, 48), limit(30, 48, 48), limit(30, 54, 48)), (10, 30, 33));
}
