//! How long a plan takes, and how good it is: `cargo run --release -p tidegate-planner --example large`.
//!
//! One node with 10 deployments, and 64 nodes of 8 GPUs with 100 deployments of which 20 change at the hour; and the cost
//! of 20 changes in random knots beside the best that a long search finds. Prints one JSON object.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tidegate_config::{Site, Source, check};
use tidegate_planner::hardware::Hardware;
use tidegate_planner::outlook::Weight;
use tidegate_planner::plan::Known;
use tidegate_planner::strategy::{AliasMove, Arrival, Leaver, Problem, When, best, evaluate};
use tidegate_planner::{Outlook, Timetable};

/// A site: `stay` deployments in both shifts, `change` in one each by day and by night.
fn site(nodes: usize, stay: usize, change: usize, sizes: &[usize]) -> Site {
    let mut text = String::from("apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: large}\n");
    for node in 0..nodes {
        let _ = write!(
            text,
            "---\nkind: Node\nmetadata: {{name: n{node:03}}}\nspec: {{gpus: {{count: 8, memory: 288GB}}, hostMemory: 2TB, numa: [{{node: 0, gpus: 0-3, cpus: 0-63}}, {{node: 1, gpus: 4-7, cpus: 64-127}}]}}\n"
        );
    }
    text.push_str("---\nkind: Model\nmetadata: {name: m}\nspec: {engine: vllm, source: {path: m/x}}\n");
    let (mut day, mut night) = (Vec::new(), Vec::new());
    for number in 0..stay + 2 * change {
        let tp = sizes[number % sizes.len()];
        let budget = if number % 3 == 0 {
            String::new()
        } else {
            format!(", memory: {{weights: {}GB, kvCache: {}GB}}", 60 * tp, 40 * tp)
        };
        let _ = write!(
            text,
            "---\nkind: Deployment\nmetadata: {{name: d{number:03}}}\nspec: {{model: m, parallel: {{tp: {tp}}}, gpus: {{required: {tp}}}, priority: {}{budget}}}\n",
            number % 7
        );
        if number < stay + change {
            day.push(format!("d{number:03}"));
        }
        if number < stay || number >= stay + change {
            night.push(format!("d{number:03}"));
        }
    }
    for number in 0..stay {
        let _ = write!(
            text,
            "---\nkind: Alias\nmetadata: {{name: a{number:03}}}\nspec: {{targets: [{{deployment: d{number:03}}}]}}\n"
        );
    }
    for number in stay..stay + change {
        let _ = write!(
            text,
            "---\nkind: Alias\nmetadata: {{name: a{number:03}}}\nspec: {{shifts: {{day: {{targets: [{{deployment: d{number:03}}}]}}, night: {{targets: [{{deployment: d{:03}}}]}}}}}}\n",
            number + change
        );
    }
    let _ = write!(
        text,
        "---\nkind: Schedule\nmetadata: {{name: daily}}\nspec: {{gap: {{allowed: 2h}}, shifts: [{{name: day, start: '08:00', deployments: [{}]}}, {{name: night, start: '22:00', deployments: [{}]}}]}}\n",
        day.join(", "),
        night.join(", ")
    );
    check(&[Source::new("large.yaml", text)]).site.unwrap()
}

/// Milliseconds of a plan, the best of some rounds.
fn measure(site: &Site) -> f64 {
    const ROUNDS: u32 = 5;
    let now = "2026-12-01T12:00:00Z".parse().unwrap();
    let hour = Timetable::new(&site.schedules).next(now).unwrap();
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let outlook = Outlook::new(site, Hardware::of(site), Known::default(), &BTreeMap::new());
        let plan = outlook.next(None, now).unwrap();
        least = least.min(begin.elapsed().as_secs_f64() * 1_000.0);
        assert_eq!(plan.at, hour.at);
        assert!(outlook.findings(now).iter().all(|finding| finding.weight != Weight::Refused));
        assert!(!plan.changes.is_empty());
    }
    least
}

/// Numbers from a seed (SplitMix64, Steele, Lea and Flood 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }
}

/// Changes that take memory of one or two old ones each.
fn knot(dice: &mut Dice, changes: usize) -> Problem {
    const MEMORY: u64 = 10;
    let mut problem = Problem { capacity: (0..changes).map(|gpu| (gpu, MEMORY)).collect(), ..Problem::default() };
    // all new ones together fit: both sets were placed
    let mut left = vec![MEMORY; changes];
    let mut take = |dice: &mut Dice, gpu: usize, most: u64| {
        let bytes = (2 + dice.below(6) as u64).min(most).min(left[gpu]);
        left[gpu] -= bytes;
        (gpu, bytes)
    };
    for number in 0..changes {
        let seconds = |count: usize| Duration::from_secs(count as u64);
        problem
            .leavers
            .push(Leaver { takes: [(number, 3 + dice.below(7) as u64)].into(), drain: seconds(60 + dice.below(300)) });
        let mut takes = BTreeMap::from([take(dice, (number * 7 + 3) % changes, MEMORY)]);
        if dice.below(3) == 0 {
            let other = dice.below(changes);
            if !takes.contains_key(&other) {
                takes.extend([take(dice, other, 3)]);
            }
        }
        problem.arrivals.push(Arrival { takes, shares: dice.below(5) > 0, load: seconds(120 + dice.below(900)) });
        problem.moves.push(AliasMove {
            from: vec![number],
            to: vec![number],
            has_stayer: false,
            weight: 1 + dice.below(20) as u64,
        });
    }
    problem
}

/// The least cost that climbing from many random beginnings finds.
fn long_search(problem: &Problem, dice: &mut Dice, within: Duration) -> u128 {
    let count = problem.arrivals.len();
    let any = |dice: &mut Dice| match dice.below(count + 2) {
        0 => When::Before,
        1 => When::AtHour,
        other => When::After(other - 2),
    };
    let cost = |choice: &[When]| evaluate(problem, choice).map(|outcome| outcome.cost);
    let mut least = cost(&best(problem).unwrap().choice).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < within {
        let mut choice = vec![When::AtHour; count];
        for when in &mut choice {
            let other = any(dice);
            let before = std::mem::replace(when, other);
            if dice.below(2) == 0 {
                *when = before;
            }
        }
        let mut here = cost(&choice).unwrap_or(u128::MAX);
        let mut idle = 0;
        while idle < 40 * count && begin.elapsed() < within {
            let at = dice.below(count);
            let before = std::mem::replace(&mut choice[at], any(dice));
            match cost(&choice) {
                Some(other) if other <= here => {
                    idle = if other < here { 0 } else { idle + 1 };
                    here = other;
                }
                Some(_) | None => {
                    choice[at] = before;
                    idle += 1;
                }
            }
        }
        least = least.min(here);
    }
    least
}

fn main() {
    const KNOTS: u64 = 10;
    const SEARCH: Duration = Duration::from_secs(2);
    let small = measure(&site(1, 2, 4, &[1, 2, 1, 1, 1]));
    let large = measure(&site(64, 60, 20, &[1, 2, 4, 8, 4]));
    let (mut worst, mut slowest) = (1.0_f64, 0.0_f64);
    for seed in 0..KNOTS {
        let mut dice = Dice(seed);
        let problem = knot(&mut dice, 20);
        let begin = Instant::now();
        let own = best(&problem).unwrap().cost;
        slowest = slowest.max(begin.elapsed().as_secs_f64() * 1_000.0);
        let least = long_search(&problem, &mut dice, SEARCH);
        worst = worst.max(own as f64 / least.max(1) as f64);
    }
    println!(
        "{{\"smallMs\": {small:.2}, \"largeMs\": {large:.2}, \"worstOfBest\": {worst:.4}, \"knots\": {KNOTS}, \"knotMs\": {slowest:.1}}}"
    );
}
