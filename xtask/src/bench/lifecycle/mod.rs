//! The lifecycle: how long a plan takes and how good it is, random switches in virtual time, and switches of real engines
//! under load.

mod real;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::figures::{Column, Figure, Goal};
use crate::terminal::complain;
use crate::workspace;

/// Milliseconds for one node with 10 deployments.
const SMALL_MS: f64 = 5.0;
/// Milliseconds for 64 nodes of 8 GPUs with 100 deployments of which 20 change.
const LARGE_MS: f64 = 200.0;
/// What a plan may cost beside the best that a long search finds.
const OF_BEST: f64 = 1.01;

/// `cargo xtask bench lifecycle`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Also write the table as JSON.
    #[arg(long)]
    pub(super) json: Option<PathBuf>,
    /// Also write the table into docs/benchmarks-lifecycle.md.
    #[arg(long)]
    pub(super) doc: bool,
    /// Random switches in virtual time.
    #[arg(long, default_value_t = 1_000)]
    switches: u64,
    /// The first one's seed: the same seed is the same switch.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Switches of real engines per strategy.
    #[arg(long, default_value_t = 20)]
    real: u32,
    /// Cargo profile of what is measured.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
}

/// Parts of the lifecycle's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Time and quality of plans.
    Planner,
    /// Random switches in virtual time.
    Random,
    /// llama.cpp, switched under load.
    Real,
}

/// Who is measured, and what with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Planner {
    /// Tidegate.
    Tidegate,
    /// Climbing from random beginnings for seconds.
    LongSearch,
}

impl Column for Planner {
    const ALL: &'static [Self] = &[Self::Tidegate, Self::LongSearch];
    const OWN: Self = Self::Tidegate;
    const BESIDE: Self = Self::LongSearch;
    const BENCH: &'static str = "lifecycle";

    fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::LongSearch => "long search",
        }
    }
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    pub(super) fn in_words(&self) -> String {
        format!("profile {}, {} random switches from seed {}", self.profile, self.switches, self.seed)
    }

    /// A program of a package's `examples/`, built: it prints one JSON object.
    fn example(&self, package: &str, name: &str, features: &[&str], arguments: &[String]) -> Result<Value> {
        let mut command = workspace::cargo();
        command.args(["run", "--quiet", "--profile", &self.profile, "-p", package, "--example", name]);
        for feature in features {
            command.args(["--features", feature]);
        }
        let printed = workspace::output(command.arg("--").args(arguments))?;
        serde_json::from_str(&printed).with_context(|| format!("the example {name} printed no JSON"))
    }
}

fn number(json: &Value, key: &str) -> Result<f64> {
    json[key].as_f64().with_context(|| format!("no number {key} in {json}"))
}

/// Runs what is wanted.
///
/// # Errors
/// Something cannot be built, installed or started, or a random switch went wrong: its seed is told.
pub(super) fn run(options: &Options) -> Result<Vec<Figure<Planner>>> {
    let mut figures = Vec::new();
    if options.wants(Part::Planner) {
        complain!("plans");
        figures.extend(plans(options)?);
    }
    if options.wants(Part::Random) {
        complain!("random switches in virtual time");
        figures.extend(random(options)?);
    }
    if options.wants(Part::Real) {
        figures.extend(real::run(&options.profile, options.real)?);
    }
    Ok(figures)
}

fn plans(options: &Options) -> Result<Vec<Figure<Planner>>> {
    let json = options.example("tidegate-planner", "large", &[], &[])?;
    let cost = BTreeMap::from([(Planner::Tidegate, number(&json, "worstOfBest")?), (Planner::LongSearch, 1.0)]);
    Ok(vec![
        Figure::own("plan: 1 node, 10 deployments", "ms", number(&json, "smallMs")?).wants(Goal::AtMost(SMALL_MS)),
        Figure::own("plan: 64 nodes of 8 GPUs, 100 deployments, 20 changes", "ms", number(&json, "largeMs")?)
            .wants(Goal::AtMost(LARGE_MS)),
        Figure::new("cost of 20 changes in a knot, the worst of 10", "× best", cost)
            .wants(Goal::TimesAtMost(Planner::LongSearch, OF_BEST)),
    ])
}

fn random(options: &Options) -> Result<Vec<Figure<Planner>>> {
    let arguments = [options.switches.to_string(), options.seed.to_string()];
    let json = options.example("tidegate-controller", "switches", &["simulation"], &arguments)?;
    let wrong = json["wrong"].as_array().context("the simulation does not say what went wrong")?;
    let own =
        |name: &str, unit, key: &str| Ok(Figure::own(format!("random switches: {name}"), unit, number(&json, key)?));
    let figures: Result<Vec<Figure<Planner>>> = [
        own("played", "", "switches"),
        own("troubles", "", "troubles"),
        own("times that the controller was killed", "", "kills"),
        own("requests answered", "", "answered"),
        own("refused in an announced gap", "", "refusedInGap"),
        own("refused on the way back, after a failure that is named", "", "refusedOnTheWayBack"),
        own("wall time", "s", "seconds"),
    ]
    .into_iter()
    .collect();
    let mut figures = figures?;
    let gone = Figure::own("random switches: with something that never must be", "", wrong.len() as f64);
    figures.push(gone.wants(Goal::Exactly(0.0)));
    for told in wrong {
        complain!("seed {}: {}", told["seed"], told["violations"]);
    }
    if figures.is_empty() {
        bail!("nothing was played");
    }
    Ok(figures)
}
