//! Open streams: what each costs in memory, and how many are held.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::figures::{Figure, Goal};
use super::process;
use super::stand::{Stand, Target};
use crate::terminal::complain;

/// Streams of one HTTP/2 connection.
const PER_CONNECTION: usize = 100;
/// Longer than the slow upstream's pace, so that each stream has a further event while it is held.
const HOLD: Duration = Duration::from_secs(5);
const MEGABYTE: f64 = 1e6;

/// Memory of each target as it stands.
pub(super) fn resident(stand: &Stand, when: &str) -> Figure {
    let resident = stand.targets.iter().filter_map(|(target, runs)| Some((*target, megabytes(runs.pid?))));
    Figure::new(format!("RSS after the {when}"), "MB", resident.collect())
}

fn megabytes(pid: u32) -> f64 {
    process::resident_bytes(pid) as f64 / MEGABYTE
}

/// What was seen while streams were held.
#[derive(Clone, Copy, Debug)]
struct Seen {
    alive: f64,
    megabytes: f64,
    open_seconds: f64,
}

/// Opens 1,000 streams on Tidegate and on the peers that can be asked the same way, then 10,000 on Tidegate. Each is a
/// process of its own that has done nothing else, so that what an earlier load left behind is not counted.
///
/// # Errors
/// A peer cannot be started or the generator fails.
pub(super) fn run(stand: &Stand) -> Result<Vec<Figure>> {
    let mut thousand = BTreeMap::new();
    for target in [Target::Nginx, Target::SglangRouter] {
        if stand.targets.contains_key(&target) {
            // another one in front of the slow upstream; it ends with this block
            let runs = stand.target(target, &stand.slow)?;
            if let Some(pid) = runs.pid {
                let seen = hold(stand, target, pid, &runs.address, 1_000)?;
                thousand.insert(target, seen.megabytes);
            }
        }
    }
    let mut figures = Vec::new();
    if !stand.targets.contains_key(&Target::Tidegate) {
        return Ok(figures);
    }
    let runs = stand.tidegate_on(&stand.folder.join("held"), &stand.documents()?)?;
    let pid = runs.pid.context("tidegate without a process")?;
    let seen = hold(stand, Target::Tidegate, pid, &runs.address, 1_000)?;
    thousand.insert(Target::Tidegate, seen.megabytes);
    figures.push(Figure::own("1,000 open streams: alive", "streams", seen.alive).wants(Goal::Exactly(1_000.0)));
    figures.push(Figure::new("1,000 open streams: RSS", "MB", thousand).wants(Goal::AtMost(60.0)));
    let seen = hold(stand, Target::Tidegate, pid, &runs.address, 10_000)?;
    figures.push(Figure::own("10,000 open streams: alive", "streams", seen.alive).wants(Goal::Exactly(10_000.0)));
    figures.push(Figure::own("10,000 open streams: RSS", "MB", seen.megabytes));
    figures.push(Figure::own("10,000 open streams: all open after", "s", seen.open_seconds));
    Ok(figures)
}

fn hold(stand: &Stand, target: Target, pid: u32, to: &super::stand::Address, streams: usize) -> Result<Seen> {
    complain!("{streams} streams on {}", target.as_str());
    // peers speak HTTP/1.1 in the clear only: a connection for each stream
    let (model, per_connection) =
        if target == Target::Tidegate { ("bench-slow", PER_CONNECTION) } else { ("mock-slow", 0) };
    let mut holding = stand.generator.hold(to, model, streams, per_connection)?;
    let opened = holding.opened()?;
    sleep(HOLD);
    let megabytes = megabytes(pid);
    let ended = holding.end()?;
    if let Some(error) = opened.error.or(ended.error) {
        complain!("{}: {} of {streams} opened; first error: {error}", target.as_str(), opened.streams);
    }
    Ok(Seen { alive: ended.streams as f64, megabytes, open_seconds: opened.seconds })
}
