//! Fetches, side by side, and what is fetched again after kill -9.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::clients::{self, Cost};
use super::limits::Limits;
use super::stand::{Model, Stand};
use super::{Client, Column as _, Options};
use crate::bench::figures::{Figure, Goal, median};
use crate::terminal::complain;

/// Of a gigabyte for people.
const MB: f64 = 1e6;
/// Most that may be fetched twice, in MiB: a chunk of 32 MiB on each of 16 connections.
const AGAIN_MAX_MIB: f64 = 32.0 * 16.0;

/// Every client fetches the model in every round, in turn.
///
/// # Errors
/// A client fails.
pub(super) fn run(stand: &Stand, options: &Options, model: &Model, limits: &Limits) -> Result<Vec<Figure<Client>>> {
    let mut costs: BTreeMap<Client, Vec<Cost>> = BTreeMap::new();
    for round in 1..=options.rounds {
        for client in options.clients() {
            complain!("{}, round {round} of {}: {}", model.size(), options.rounds, client.name());
            costs.entry(client).or_default().push(clients::fetch(stand, client, model)?);
        }
    }
    let over = |of: &dyn Fn(&Cost) -> f64| -> BTreeMap<Client, f64> {
        let middle = |costs: &Vec<Cost>| median(&costs.iter().map(of).collect::<Vec<_>>());
        costs.iter().filter_map(|(client, costs)| Some((*client, middle(costs)?))).collect()
    };
    let size = model.size();
    let rates = over(&|cost| model.bytes as f64 / MB / cost.seconds);
    let own = rates.get(&Client::Tidegate).copied();
    let mut rate = Figure::new(format!("fetch {size}, durable"), "MB/s", rates);
    for (peer, times) in [
        (Client::Rclone8, 0.9),
        (Client::Rclone16, 0.9),
        (Client::Rclone32, 0.9),
        (Client::S5cmd, 1.9),
        (Client::Aws, 2.0),
    ] {
        rate = rate.wants(Goal::TimesAtLeast(peer, times));
    }
    let cpu = over(&|cost| cost.cpu_seconds / model.gib());
    let rss = over(&|cost| cost.rss_bytes as f64 / MB);
    let mut figures = vec![
        rate,
        Figure::new(format!("fetch {size}: CPU of the client"), "s/GiB", cpu).wants(Goal::AtMost(1.6)),
        Figure::new(format!("fetch {size}: most resident"), "MB", rss).wants(Goal::AtMost(256.0)),
    ];
    if let Some(own) = own {
        let (name, limit) = limits.of_fetch();
        figures.push(Figure::own(format!("fetch {size}: of the lowest limit ({name})"), "×", own / limit));
    }
    Ok(figures)
}

/// Kills a fetch at several moments, lets the next one finish it, and counts what the store sent beyond the model.
///
/// # Errors
/// The second fetch fails.
pub(super) fn killed(stand: &Stand, model: &Model, rounds: usize) -> Result<Figure<Client>> {
    let whole = {
        let start = Instant::now();
        clients::fetch(stand, Client::Tidegate, model)?;
        start.elapsed()
    };
    let mut again_mib = 0.0_f64;
    for round in 0..rounds {
        // spread over the fetch, never the same moments
        let share = (round as f64 + jitter()) / rounds as f64;
        complain!("{}, kill -9 {} of {rounds}: after {:.0} %", model.size(), round + 1, share * 100.0);
        let folder = stand.fresh()?;
        let to = folder.display().to_string();
        let before = stand.sent_bytes()?;
        let mut child = stand.program(&["pull", &model.path, &to]).spawn()?;
        std::thread::sleep(whole.mul_f64(share));
        child.kill()?;
        let was_done = child.wait()?.success();
        let sent_before = stand.sent_bytes()? - before;
        stand.ask(&["pull", &model.path, &to])?;
        let sent = stand.sent_bytes()? - before;
        if was_done {
            complain!("it had ended before the kill: not counted");
            continue;
        }
        if sent < model.bytes {
            bail!("the store sent {sent} of {} bytes: its count cannot be right", model.bytes);
        }
        complain!("{sent_before} bytes were sent before the kill, {} after", sent - sent_before);
        again_mib = again_mib.max((sent - model.bytes) as f64 / f64::from(1 << 20));
    }
    Ok(Figure::own(format!("kill -9 while fetching {}: most sent twice", model.size()), "MiB", again_mib)
        .wants(Goal::AtMost(AGAIN_MAX_MIB)))
}

/// Even in 0..1.
fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(Duration::ZERO);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
