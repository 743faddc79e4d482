//! A day of demand in virtual time: a deployment grows into the GPUs of a less important one at its peaks, and gives them
//! back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use tidegate_core::DeploymentName;
use tidegate_planner::elastic::{COOL_DOWN, Change, DEMAND_HOLDS, Fleet, IDLE_HOLDS, Load, Why, decide, limit};
use tidegate_planner::hardware::{GpuId, Hardware};
use tidegate_planner::need::Need;
use tidegate_planner::placement::{Part, ReplicaKey, Seat};

use crate::elastic::{Stand, golden_27};

/// Requests in flight on the large model by hour, of its busiest: quiet nights, two peaks.
const SHAPE: [u32; 24] = [12, 9, 7, 6, 6, 8, 15, 35, 60, 85, 100, 92, 60, 70, 95, 98, 88, 70, 55, 48, 42, 36, 28, 18];
/// Requests in flight at the busiest minute: 16 is what its own four GPUs carry, 22 with two more.
const PEAK: u32 = 21;
/// From a decision until the new replica serves: drain, load, proof.
const STARTS_IN: SignedDuration = SignedDuration::from_mins(7);
const TICK: SignedDuration = SignedDuration::from_secs(15);

fn midnight() -> Timestamp {
    "2026-12-01T00:00:00Z".parse().unwrap()
}

/// Requests in flight at an instant, in hundredths.
fn demand(now: Timestamp) -> u32 {
    let minutes = u32::try_from(now.duration_since(midnight()).as_mins() % (24 * 60)).unwrap();
    let (hour, minute) = ((minutes / 60) as usize, minutes % 60);
    let between = SHAPE[hour] * (60 - minute) + SHAPE[(hour + 1) % 24] * minute;
    PEAK * between / 60
}

/// From the prefetch of a switch at 08:00 and at 22:00 to its end.
fn is_switching(now: Timestamp) -> bool {
    let minutes = now.duration_since(midnight()).as_mins() % (24 * 60);
    [8 * 60, 22 * 60].iter().any(|hour| (hour - 30..hour + 12).contains(&minutes))
}

struct Day {
    stand: Stand,
    /// Replicas that load, and when they serve.
    loading: BTreeMap<ReplicaKey, Timestamp>,
    changes: Vec<(Timestamp, Change, u64)>,
}

impl Day {
    fn large() -> DeploymentName {
        "llama-70b".into()
    }

    fn capacity(&self, name: &DeploymentName, now: Timestamp) -> u64 {
        let need = &self.stand.needs[name];
        let serves = |key: &&ReplicaKey| self.loading.get(*key).is_none_or(|at| now >= *at);
        let replicas = self.stand.loads[name].seats.iter();
        replicas.filter(|(key, _)| serves(key)).map(|(_, seat)| need.passed[&(seat.gpus().len() as u32)]).sum()
    }

    fn observe(&mut self, now: Timestamp) {
        let name = Self::large();
        let (in_flight, capacity) = (u64::from(demand(now)), 100 * self.capacity(&name, now));
        let load = self.stand.loads.get_mut(&name).unwrap();
        let since = |is: bool, since: Option<Timestamp>| is.then(|| since.unwrap_or(now));
        // nobody waits until the engines are full
        load.demand_since = since(in_flight > capacity, load.demand_since);
        load.idle_since = since(2 * in_flight < capacity, load.idle_since);
    }

    fn turn(&mut self, now: Timestamp) {
        self.observe(now);
        let blocked = BTreeSet::new();
        let Stand { hardware, needs, loads } = &self.stand;
        let Some(change) = decide(Fleet { hardware, needs, loads, blocked: &blocked }, is_switching(now), now) else {
            return;
        };
        let before = self.stand.loads.clone();
        match &change {
            Change::Grow { deployment, node, gpus, drains, .. } => {
                for key in drains {
                    self.stand.loads.get_mut(&key.deployment).unwrap().seats.remove(key);
                }
                let load = self.stand.loads.get_mut(deployment).unwrap();
                let part = Part { node: node.clone(), groups: vec![gpus.clone()], numa: None, mig: None };
                let index = (0..).find(|index| !load.seats.keys().any(|key| key.index == *index)).unwrap();
                let key = ReplicaKey { deployment: deployment.clone(), index };
                load.seats.insert(key.clone(), Seat { parts: vec![part] });
                self.loading.insert(key, now + STARTS_IN);
            }
            Change::Shrink { replica, .. } => {
                self.stand.loads.get_mut(&replica.deployment).unwrap().seats.remove(replica);
            }
        }
        for (name, load) in &mut self.stand.loads {
            if before[name].seats != load.seats {
                load.changed_at = Some(now);
            }
        }
        let declared = 16;
        let allowed = limit(16, self.capacity(&Self::large(), now + STARTS_IN), declared);
        self.check(now, &change, &before);
        self.changes.push((now, change, allowed));
    }

    fn check(&self, now: Timestamp, change: &Change, before: &BTreeMap<DeploymentName, Load>) {
        assert!(!is_switching(now), "{now} {change}");
        assert!(!change.to_string().is_empty());
        let mut owners: BTreeSet<GpuId> = BTreeSet::new();
        for (name, load) in &self.stand.loads {
            let gpus: Vec<GpuId> = load.seats.values().flat_map(Seat::gpus).collect();
            let min = self.stand.needs[name].gpus.unwrap().min;
            assert!(gpus.len() as u32 >= min, "{name} below its min: {change}");
            gpus.into_iter().for_each(|gpu| assert!(owners.insert(gpu), "a GPU with two owners: {change}"));
        }
        let held = |since: Option<Timestamp>| now.duration_since(since.unwrap()).unsigned_abs();
        let of = match change {
            Change::Grow { deployment, why: Why::Demand, .. } => {
                assert!(held(before[deployment].demand_since) >= DEMAND_HOLDS, "{change}");
                deployment
            }
            Change::Grow { deployment, why: Why::Room, drains, .. } => {
                assert!(drains.is_empty(), "{change}");
                deployment
            }
            Change::Shrink { replica, .. } => {
                assert!(held(before[&replica.deployment].idle_since) >= IDLE_HOLDS, "{change}");
                &replica.deployment
            }
        };
        let last = before[of].changed_at.map(|at| now.duration_since(at).unsigned_abs());
        assert!(last.is_none_or(|rested| rested >= COOL_DOWN), "{now}: {change} after {last:?}");
    }
}

#[test]
fn over_two_days_the_large_model_grows_at_its_peaks_and_gives_back_what_it_took_and_limits_follow() {
    let mut stand = golden_27("{\"4\": 16, \"2\": 6}");
    stand.needs.get_mut("llama-8b").unwrap().passed.insert(1, 8);
    stand.loads.get_mut("llama-70b").unwrap().demand_since = None;
    let mut day = Day { stand, loading: BTreeMap::new(), changes: Vec::new() };
    let mut now = midnight();
    let mut waits = SignedDuration::ZERO;
    while now < midnight() + SignedDuration::from_hours(48) {
        day.turn(now);
        if day.stand.loads["llama-70b"].demand_since.is_some() {
            waits += TICK;
        }
        now += TICK;
    }
    let told: Vec<String> = day.changes.iter().map(|(at, change, _)| format!("{at} {change}")).collect();
    let grown: Vec<_> =
        day.changes.iter().filter(|(_, change, _)| matches!(change, Change::Grow { why: Why::Demand, .. })).collect();
    assert!((2..=6).contains(&grown.len()), "at the peaks, and not again and again: {told:#?}");
    assert!(grown.iter().all(|(.., allowed)| *allowed == 22), "the limit follows: {told:#?}");
    let shrunk = day.changes.iter().filter(|(_, change, _)| matches!(change, Change::Shrink { .. }));
    assert!(shrunk.clone().count() >= 2 && shrunk.clone().all(|(.., allowed)| *allowed == 16), "{told:#?}");
    assert_eq!(day.stand.loads["llama-8b"].seats.len(), 3, "what was taken is given back: {told:#?}");
    // every growth waits for its three minutes and its load, and no longer
    assert!(waits <= SignedDuration::from_mins(12 * i64::try_from(grown.len()).unwrap()), "{waits:#} {told:#?}");
}

/// What the test stands on: hardware and needs do not move.
#[test]
fn a_quiet_day_changes_nothing() {
    let mut stand = golden_27("{\"4\": 16, \"2\": 6}");
    stand.loads.get_mut("llama-70b").unwrap().demand_since = None;
    let (hardware, needs): (&Hardware, &BTreeMap<DeploymentName, Need>) = (&stand.hardware, &stand.needs);
    let blocked = BTreeSet::new();
    let fleet = Fleet { hardware, needs, loads: &stand.loads, blocked: &blocked };
    for minutes in 0..24 * 60 {
        let now = midnight() + SignedDuration::from_mins(minutes);
        assert_eq!(decide(fleet, is_switching(now), now), None);
    }
}
