//! What the limiter costs per request: admit, settle and release with five subjects and all five dimensions limited.
//!
//! `cargo run --release -p tidegate-policy --example limiter_cost`
//!
//! Prints nanoseconds per request: the median of several rounds, for one core and for several at once that share the
//! alias and the team.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program whose output is a table")]

use std::sync::Arc;
use std::time::Instant;

use tidegate_core::{AliasName, KeyId, Limits, Monotonic, RequestId, TeamName, Unix};
use tidegate_policy::limiter::{Demand, MemoryCounters, Rules, SubjectKey, Subjects};

const ROUNDS: usize = 7;
const REQUESTS: u64 = 200_000;
const WALL_MS: i64 = 1_781_524_800_000;

fn subjects(counters: &MemoryCounters, core: usize) -> Arc<Subjects> {
    let (team, alias) = (TeamName::from("team"), AliasName::from("alias"));
    let limits = Limits {
        rpm: Some(1 << 40),
        tpm: Some(1 << 50),
        concurrency: Some(1 << 20),
        daily_tokens: Some(1 << 60),
        monthly_tokens: Some(1 << 60),
    };
    let rules = Rules { limits, ..Rules::default() };
    let keys = [
        SubjectKey::alias(&alias),
        SubjectKey::team(&team),
        SubjectKey::team_alias(&team, &alias),
        SubjectKey::caller_parts("keyring", &core.to_string(), &team),
        SubjectKey::key(&KeyId::from(core.to_string())),
    ]
    .map(|key| (key, rules.clone()));
    counters.subjects_now(&keys, Monotonic::default(), Unix::from_ms(WALL_MS)).unwrap()
}

/// Sends requests at `per_second` in virtual time; returns nanoseconds per request.
fn round(counters: &MemoryCounters, core: usize, round: usize, per_second: u64) -> f64 {
    let subjects = subjects(counters, core);
    let gap_ns = 1_000_000_000 / per_second;
    let start = Instant::now();
    for n in 0..REQUESTS {
        let elapsed_ns = (round as u64 * REQUESTS + n) * gap_ns;
        let now = Monotonic::from_ns(1 << 40).after(std::time::Duration::from_nanos(elapsed_ns));
        let wall = Unix::from_ms(WALL_MS + (elapsed_ns / 1_000_000) as i64);
        let id = RequestId::new(wall.ms as u64, u128::from(n) << 8 | core as u128);
        let demand = Demand { subjects: &subjects, tokens: 1_500, now, wall };
        let held = counters.admit_now(id, demand).unwrap();
        counters.settle_now(&held, 700);
        counters.release_now(&held);
    }
    start.elapsed().as_nanos() as f64 / REQUESTS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    println!("{:>6}  {:>12}  {:>12}", "cores", "requests/s", "ns/request");
    for per_second in [100, 1_000, 20_000] {
        let counters = MemoryCounters::new();
        let ns = median((0..ROUNDS).map(|n| round(&counters, 0, n, per_second)).collect());
        println!("{:>6}  {per_second:>12}  {ns:>12.0}", 1);
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let counters = MemoryCounters::new();
    let ns = median(
        (0..ROUNDS)
            .map(|n| {
                std::thread::scope(|scope| {
                    let counters = &counters;
                    let running: Vec<_> =
                        (0..cores).map(|core| scope.spawn(move || round(counters, core, n, 20_000))).collect();
                    median(running.into_iter().map(|thread| thread.join().unwrap()).collect())
                })
            })
            .collect(),
    );
    println!("{cores:>6}  {:>12}  {ns:>12.0}", 20_000);
}
