//! Benchmarks: programs with a table as output, comparing side by side in one run with what a user would otherwise pick.
//! Nothing here is a test: no figure fails a build, a missed goal is shown as missed.

mod cache;
mod figures;
mod gate;
mod held;
mod lifecycle;
mod load;
mod page;
mod process;
mod rooms;
mod stand;
mod start;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use figures::{Column, Figure};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The gate beside a direct connection, nginx, sglang-router and LiteLLM, on one mock upstream.
    Gate(Gate),
    /// The model cache beside rclone, s5cmd with openssl, and the AWS command line, on one versitygw.
    Cache(cache::Options),
    /// Plans, random switches in virtual time, and switches of llama.cpp under load.
    Lifecycle(lifecycle::Options),
}

/// `cargo xtask bench gate`.
#[derive(Args, Debug)]
struct Gate {
    /// Also write the table as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Also write the table into docs/benchmarks.md.
    #[arg(long)]
    doc: bool,
    /// Rounds; each figure is the median over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of one measurement; paced streams take three times as long.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Cargo profile of what is measured.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Measure the programs in this folder instead of building them.
    #[arg(long)]
    binaries: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Also send 1,000,000 requests and see whether memory stays flat.
    #[arg(long)]
    soak: bool,
    /// Leave out these peers.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<stand::Target>,
}

/// Parts of the gate's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Closed loops: cost, latency and throughput.
    Loops,
    /// Open streams: memory and how many are held.
    Streams,
    /// Start with 100 documents, and the binary's size.
    Start,
    /// Instructions per room, under valgrind.
    Rooms,
}

impl Gate {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// The command line's `bench`.
///
/// # Errors
/// Something could not be built, installed, started or asked.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.bench {
        Bench::Gate(options) => {
            let run = format!("profile {}, {} rounds of {} s", options.profile, options.rounds, options.seconds);
            let conditions = page::Conditions::read(&run)?;
            publish("benchmarks.md", &conditions, &gate::run(options)?, options.json.as_deref(), options.doc)
        }
        Bench::Cache(options) => {
            let conditions = page::Conditions::read(&options.in_words())?;
            publish("benchmarks-cache.md", &conditions, &cache::run(options)?, options.json.as_deref(), options.doc)
        }
        Bench::Lifecycle(options) => {
            let conditions = page::Conditions::read(&options.in_words())?;
            let figures = lifecycle::run(options)?;
            publish("benchmarks-lifecycle.md", &conditions, &figures, options.json.as_deref(), options.doc)
        }
    }
}

/// The table on the terminal, and where else it is wanted.
fn publish<C: Column>(
    page: &str,
    conditions: &page::Conditions,
    figures: &[Figure<C>],
    json: Option<&Path>,
    doc: bool,
) -> Result<()> {
    table::print(figures);
    if let Some(file) = json {
        let text = serde_json::to_string_pretty(&table::json(figures))?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))?;
    }
    if doc { page::write(page, conditions, figures) } else { Ok(()) }
}
