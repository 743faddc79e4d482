//! Random switches of random sites under load, with troubles, in virtual time:
//! `cargo run --release -p tidegate-controller --features simulation --example switches -- [COUNT] [FIRST SEED]`.
//!
//! Prints one JSON object: what was played, and every switch in which something happened that never must.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::time::Instant;

use tidegate_controller::simulation::switches::{Told, play};

fn number(at: usize, otherwise: u64) -> Result<u64, std::num::ParseIntError> {
    std::env::args().nth(at).map_or(Ok(otherwise), |text| text.parse())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (count, first) = (number(1, 1_000)?, number(2, 1)?);
    let begin = Instant::now();
    let mut told: Vec<Told> = Vec::new();
    for seed in first..first + count {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        told.push(runtime.block_on(play(seed)));
    }
    let sum = |of: fn(&Told) -> u64| told.iter().map(of).sum::<u64>();
    let mut strategies = std::collections::BTreeMap::<&str, u32>::new();
    for (strategy, changes) in told.iter().flat_map(|told| &told.strategies) {
        *strategies.entry(strategy).or_default() += changes;
    }
    let wrong: Vec<&Told> = told.iter().filter(|told| !told.violations.is_empty()).collect();
    let json = serde_json::json!({
        "switches": count,
        "firstSeed": first,
        "seconds": begin.elapsed().as_secs_f64(),
        "answered": sum(|told| told.answered),
        "refusedInGap": sum(|told| told.refused_in_gap),
        "refusedBefore": sum(|told| told.refused_before),
        "refusedOnTheWayBack": sum(|told| told.refused_on_the_way_back),
        "refusedBroken": sum(|told| told.refused_broken),
        "kills": sum(|told| u64::from(told.kills)),
        "troubles": sum(|told| told.troubles.len() as u64),
        "strategies": strategies,
        "wrong": wrong,
    });
    println!("{}", serde_json::to_string_pretty(&json)?);
    Ok(())
}
