//! `cargo xtask bench gate`: the gate beside its peers on one mock upstream, in one run.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

use super::figures::{Figure, Goal, median};
use super::load::{self, Loop, Outcome};
use super::stand::{Runs, Stand, Target};
use super::{Gate, Part, held, process, rooms, start};
use crate::terminal::complain;

/// A kind of load. Each is run against every target in every round, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scenario {
    name: &'static str,
    connections: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// 964 bytes of JSON.
    Json,
    /// 67 events at once.
    Burst,
    /// 67 events, one every 10 ms.
    Paced,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "JSON c=1", connections: 1, kind: Kind::Json },
    Scenario { name: "JSON c=16", connections: 16, kind: Kind::Json },
    Scenario { name: "JSON c=64", connections: 64, kind: Kind::Json },
    Scenario { name: "SSE burst c=1", connections: 1, kind: Kind::Burst },
    Scenario { name: "SSE burst c=16", connections: 16, kind: Kind::Burst },
    Scenario { name: "SSE burst c=64", connections: 64, kind: Kind::Burst },
    Scenario { name: "SSE paced c=16", connections: 16, kind: Kind::Paced },
];

/// The name to ask a target for.
const fn model(target: Target, kind: Kind) -> &'static str {
    match (target, kind) {
        (Target::Tidegate, Kind::Json | Kind::Burst) => "bench",
        (Target::Tidegate, Kind::Paced) => "bench-paced",
        (_, Kind::Json | Kind::Burst) => "mock",
        (_, Kind::Paced) => "mock-paced",
    }
}

/// One measurement.
#[derive(Clone, Debug)]
struct Sample {
    outcome: Outcome,
    /// Microseconds of CPU per answer; `None` for the direct connection.
    cpu: Option<f64>,
}

type Samples = BTreeMap<(Scenario, Target), Vec<Sample>>;

/// Runs the parts that are wanted.
///
/// # Errors
/// Something could not be built, installed, started or asked, or Tidegate answered with an error.
pub(super) fn run(options: &Gate) -> Result<Vec<Figure>> {
    let binaries = match &options.binaries {
        Some(folder) => folder.canonicalize().with_context(|| format!("there is no folder {}", folder.display()))?,
        None => {
            complain!("building with profile {}", options.profile);
            load::build(&options.profile, options.without.contains(&Target::Tidegate))?
        }
    };
    let stand = Stand::start(&binaries, &options.without)?;
    let mut figures = Vec::new();
    figures.push(held::resident(&stand, "start").wants(Goal::AtMost(60.0)));
    if options.wants(Part::Loops) {
        figures.extend(of_loops(&loops(&stand, options)?));
        figures.push(held::resident(&stand, "closed loops"));
    }
    if options.wants(Part::Streams) {
        figures.extend(held::run(&stand)?);
    }
    if options.wants(Part::Start) {
        figures.extend(start::run(&stand)?);
    }
    if options.wants(Part::Rooms) {
        figures.extend(rooms::run(&stand)?);
    }
    if options.soak {
        figures.push(soak(&stand)?);
    }
    Ok(figures)
}

fn loops(stand: &Stand, options: &Gate) -> Result<Samples> {
    let mut samples = Samples::new();
    for round in 1..=options.rounds {
        for scenario in SCENARIOS {
            complain!("round {round} of {}: {}", options.rounds, scenario.name);
            for (target, runs) in &stand.targets {
                let sample = measure(stand, *target, runs, *scenario, options.seconds)?;
                if sample.outcome.errors > 0 {
                    let error = sample.outcome.error.clone().unwrap_or_default();
                    // a figure made of refusals would flatter whoever refuses
                    ensure!(
                        *target != Target::Tidegate,
                        "{}: {} errors: {error}",
                        scenario.name,
                        sample.outcome.errors
                    );
                    complain!("{} left out of {}: {error}", target.as_str(), scenario.name);
                    continue;
                }
                samples.entry((*scenario, *target)).or_default().push(sample);
            }
        }
    }
    Ok(samples)
}

fn measure(stand: &Stand, target: Target, runs: &Runs, scenario: Scenario, seconds: f64) -> Result<Sample> {
    let plan = Loop {
        connections: scenario.connections,
        seconds: if scenario.kind == Kind::Paced { seconds * 3.0 } else { seconds },
        requests: None,
        stream: scenario.kind != Kind::Json,
    };
    let before = runs.pid.map(process::cpu_seconds);
    let outcome = stand.generator.run(&runs.address, model(target, scenario.kind), plan)?;
    let after = runs.pid.map(process::cpu_seconds);
    let cpu = before.zip(after).map(|(before, after)| (after - before) * 1e6 / outcome.answered.max(1.0));
    Ok(Sample { outcome, cpu })
}

/// The median of one property over the rounds, for each target that has it.
fn medians(samples: &Samples, scenario: Scenario, of: fn(&Sample) -> Option<f64>) -> BTreeMap<Target, f64> {
    let measured = samples.iter().filter(|((of_scenario, _), _)| *of_scenario == scenario);
    let medians = measured.filter_map(|((_, target), rounds)| {
        let values: Vec<f64> = rounds.iter().filter_map(of).collect();
        Some((*target, median(&values)?))
    });
    medians.collect()
}

/// Values with the direct connection's taken off: what the proxy adds.
fn added(values: &BTreeMap<Target, f64>) -> BTreeMap<Target, f64> {
    let Some(direct) = values.get(&Target::Direct) else { return BTreeMap::new() };
    let proxies = values.iter().filter(|(target, _)| **target != Target::Direct);
    proxies.map(|(target, value)| (*target, value - direct)).collect()
}

fn milliseconds(values: BTreeMap<Target, f64>) -> BTreeMap<Target, f64> {
    values.into_iter().map(|(target, micros)| (target, micros / 1e3)).collect()
}

fn of_loops(samples: &Samples) -> Vec<Figure> {
    let mut figures = Vec::new();
    for scenario in SCENARIOS.iter().copied() {
        let name = scenario.name;
        let cpu =
            Figure::new(format!("{name}: CPU per request"), "us", medians(samples, scenario, |sample| sample.cpu));
        figures.push(match scenario.kind {
            Kind::Json => {
                cpu.wants(Goal::TimesAtMost(Target::Nginx, 2.0)).wants(Goal::TimesAtMost(Target::SglangRouter, 0.25))
            }
            Kind::Burst | Kind::Paced => cpu.wants(Goal::TimesAtMost(Target::Nginx, 1.5)),
        });
        if scenario.kind == Kind::Paced {
            figures.extend(of_first_chunk(samples, scenario));
            continue;
        }
        let whole = medians(samples, scenario, |sample| sample.outcome.whole_p50);
        if scenario.connections == 1 {
            let figure = Figure::new(format!("{name}: p50 added"), "ms", milliseconds(added(&whole)));
            figures.push(if scenario.kind == Kind::Json { figure.wants(Goal::AtMost(0.2)) } else { figure });
        }
        figures.push(Figure::new(format!("{name}: p50"), "ms", milliseconds(whole)));
        let tail = medians(samples, scenario, |sample| sample.outcome.whole_p99);
        figures.push(Figure::new(format!("{name}: p99"), "ms", milliseconds(tail)));
        let rate = medians(samples, scenario, |sample| Some(sample.outcome.requests_per_second));
        let figure = Figure::new(format!("{name}: throughput"), "req/s", rate);
        let bound = scenario.kind == Kind::Json && scenario.connections == 64;
        figures.push(if bound { figure.wants(Goal::TimesAtLeast(Target::Nginx, 2.0 / 3.0)) } else { figure });
    }
    figures
}

fn of_first_chunk(samples: &Samples, scenario: Scenario) -> Vec<Figure> {
    let name = scenario.name;
    let first = medians(samples, scenario, |sample| sample.outcome.first_p50);
    let gap = medians(samples, scenario, |sample| sample.outcome.gap_p99);
    vec![
        Figure::new(format!("{name}: first chunk added, p50"), "ms", milliseconds(added(&first)))
            .wants(Goal::AtMost(0.5)),
        Figure::new(format!("{name}: first chunk, p50"), "ms", milliseconds(first)),
        Figure::new(format!("{name}: gap, p99"), "ms", milliseconds(gap)),
    ]
}

/// Memory over 1,000,000 requests: growth over the last half.
fn soak(stand: &Stand) -> Result<Figure> {
    const REQUESTS: u64 = 1_000_000;
    const PARTS: u64 = 20;
    let runs = &stand.targets[&Target::Tidegate];
    let pid = runs.pid.unwrap_or_default();
    let mut resident = Vec::new();
    for part in 1..=PARTS {
        complain!("soak: part {part} of {PARTS}");
        let plan = Loop { connections: 64, seconds: 0.0, requests: Some(REQUESTS / PARTS), stream: part % 2 == 0 };
        let outcome = stand.generator.run(&runs.address, "bench", plan)?;
        ensure!(outcome.errors == 0, "{} errors in the soak: {}", outcome.errors, outcome.error.unwrap_or_default());
        resident.push(process::resident_bytes(pid) as f64);
    }
    let growth = growth(&resident).context("too few readings")?;
    Ok(Figure::own("RSS growth over the last half of 1,000,000 requests", "%", growth).wants(Goal::AtMost(2.0)))
}

/// Growth over the last half in percent: the median of its first half against that of its second. Single readings differ
/// by several percent, because a batch of the ledger is in memory or is not.
fn growth(resident: &[f64]) -> Option<f64> {
    let last_half = &resident[resident.len() / 2..];
    let (earlier, later) = last_half.split_at(last_half.len() / 2);
    let (earlier, later) = (median(earlier)?, median(later)?);
    Some((later - earlier) / earlier * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(p50: f64) -> Sample {
        let outcome = Outcome {
            requests_per_second: 1.0,
            answered: 1.0,
            errors: 0,
            error: None,
            whole_p50: Some(p50),
            whole_p99: Some(p50),
            first_p50: None,
            gap_p99: None,
        };
        Sample { outcome, cpu: None }
    }

    #[test]
    fn growth_compares_the_two_halves_of_the_last_half_and_not_single_readings() {
        assert_eq!(growth(&[1.0, 1.0, 100.0, 100.0, 102.0, 102.0]), Some(2.0));
        let batch_in_memory = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 109.0, 100.0, 100.0, 100.0, 109.0];
        assert_eq!(growth(&batch_in_memory), Some(0.0));
        assert_eq!(growth(&[]), None);
    }

    #[test]
    fn what_a_proxy_adds_is_the_difference_of_medians() {
        let scenario = SCENARIOS[0];
        let rounds = |values: [f64; 3]| values.map(sample).to_vec();
        let samples = Samples::from([
            ((scenario, Target::Direct), rounds([10.0, 11.0, 90.0])),
            ((scenario, Target::Tidegate), rounds([100.0, 61.0, 60.0])),
        ]);
        let medians = medians(&samples, scenario, |sample| sample.outcome.whole_p50);
        assert_eq!(added(&medians), BTreeMap::from([(Target::Tidegate, 50.0)]));
    }
}
