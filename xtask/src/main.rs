//! What the workspace does to itself: checks its walls, generates its references, fetches real components, runs all
//! tests, measures. `cargo xtask --help` lists it. Nothing here is part of what ships.

mod bench;
mod clients;
mod generate;
mod real;
mod terminal;
mod test;
mod walls;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::terminal::complain;

/// Development tasks of the Tidegate workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the walls of ARCHITECTURE.md: who may depend on whom, sizes, what must not stand in a file.
    Walls,
    /// Write the files that are made from the types, or check them.
    Generate(generate::Arguments),
    /// Measure, side by side with what else one could use.
    Bench(bench::Arguments),
    /// Everything that must hold before a change lands.
    Test(test::Arguments),
    /// Install, start, stop or find a real component that tests and benchmarks use.
    Real(real::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Walls => walls::run(),
        Task::Generate(arguments) => generate::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Real(arguments) => real::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
