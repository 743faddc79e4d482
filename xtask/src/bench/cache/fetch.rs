//! Fetches, side by side, and what is fetched again after kill -9.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

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
/// Earliest moment of a kill, as a share of a whole fetch.
const SHARE_MIN: f64 = 0.02;

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
    let whole = clients::fetch(stand, Client::Tidegate, model)?.seconds;
    let mut again_mib = 0.0_f64;
    for round in 0..rounds {
        // spread over the fetch, never the same moments
        let mut share = (round as f64 + jitter()) / rounds as f64;
        complain!("{}, kill -9 {} of {rounds}: after {:.0} %", model.size(), round + 1, share * 100.0);
        let again = loop {
            match kill_once(stand, model, Duration::from_secs_f64(whole * share))? {
                Some(again) => break again,
                None if share < SHARE_MIN => bail!("every fetch ends before it can be killed: take a larger model"),
                // it was quicker than the one that was timed
                None => share *= 0.7,
            }
        };
        again_mib = again_mib.max(again as f64 / f64::from(1 << 20));
    }
    Ok(Figure::own(format!("kill -9 while fetching {}: most sent twice", model.size()), "MiB", again_mib)
        .wants(Goal::AtMost(AGAIN_MAX_MIB)))
}

/// Bytes that the store sent beyond the model; `None` when the fetch had ended before the kill.
fn kill_once(stand: &Stand, model: &Model, after: Duration) -> Result<Option<u64>> {
    let folder = stand.fresh()?.display().to_string();
    let before = stand.sent_bytes()?;
    let mut pull = stand.model_command(&["pull", &model.path, "--cache", &folder]);
    let mut child = pull.stdout(Stdio::null()).spawn()?;
    std::thread::sleep(after);
    child.kill()?;
    if child.wait()?.success() {
        return Ok(None);
    }
    let sent_before = stand.sent_bytes()? - before;
    stand.model_run(&["pull", &model.path, "--cache", &folder])?;
    let sent = stand.sent_bytes()? - before;
    complain!("the store sent {sent_before} bytes before the kill and {} after it", sent - sent_before);
    sent.checked_sub(model.bytes).map(Some).context("the store sent less than the model: its count cannot be right")
}

/// Even in 0..1.
fn jitter() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(Duration::ZERO);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
