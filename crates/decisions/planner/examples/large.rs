//! How long a plan takes, and how good it is: `cargo run --release -p tidegate-planner --example large`.
//!
//! One node with 10 deployments, and 64 nodes of 8 GPUs with 100 deployments of which 20 change at the hour.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use tidegate_config::{Site, Source, check};
use tidegate_planner::hardware::Hardware;
use tidegate_planner::outlook::Weight;
use tidegate_planner::plan::Known;
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

fn measure(label: &str, site: &Site) {
    const ROUNDS: u32 = 5;
    let now = "2026-12-01T12:00:00Z".parse().unwrap();
    let hour = Timetable::new(&site.schedules).next(now).unwrap();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let outlook = Outlook::new(site, Hardware::of(site), Known::default(), &BTreeMap::new());
        let plan = outlook.next(None, now).unwrap();
        best = best.min(begin.elapsed().as_secs_f64() * 1_000.0);
        assert_eq!(plan.at, hour.at);
        assert!(outlook.findings(now).iter().all(|finding| finding.weight != Weight::Refused));
        assert!(!plan.changes.is_empty());
    }
    println!("{label}: {best:.1} ms, best of {ROUNDS}");
}

fn main() {
    measure("1 node, 10 deployments", &site(1, 2, 4, &[1, 2, 1, 1, 1]));
    measure("64 nodes of 8 GPUs, 100 deployments, 20 changes", &site(64, 60, 20, &[1, 2, 4, 8, 4]));
}
