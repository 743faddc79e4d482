//! The binary: parse, telemetry, load, build, run, drain.

mod admin_client;
mod agent;
mod app;
mod catalogues;
mod check;
mod cli;
mod desk;
mod fleet_metrics;
mod known;
mod lifecycle;
mod lifecycle_metrics;
mod load;
mod model;
mod outlook;
mod pki;
mod rebuild;
mod reload;
mod state;
mod switch;
mod telemetry;
mod up;
mod verbs;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The hidden first argument with which this binary becomes an engine's minder.
const MINDER: &str = "engine-minder";

/// Wrong documents, as `sysexits.h` numbers them.
pub(crate) const EXIT_DOCUMENTS: u8 = 64;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == MINDER) {
        return tidegate_node::minder::main(args);
    }
    let outcome = match Cli::parse().command {
        Command::Check(args) => check::check(&args),
        Command::Up(args) => up::up(&args),
        Command::Agent(args) => agent::agent(&args),
        Command::Pki(args) => pki::pki(&args),
        Command::Plan(args) => outlook::plan(&args),
        Command::Shifts(args) => outlook::shifts(&args),
        Command::Model(args) => model::model(&args),
        Command::Key(args) => verbs::key(&args),
        Command::Usage(args) => verbs::usage(&args),
        Command::Shift(args) => verbs::shift(&args),
        Command::Audit(args) => verbs::audit(&args),
        Command::Switch(args) => switch::switch(&args),
        Command::Gpu(args) => switch::gpu(&args),
        Command::Status(args) => verbs::status(&args),
    };
    outcome.unwrap_or_else(|error| {
        terminal::error(&error);
        ExitCode::FAILURE
    })
}

/// The one place that writes to the terminal.
pub(crate) mod terminal {
    use std::io::Write as _;

    /// An answer, to standard output. A closed pipe is the reader's choice.
    pub(crate) fn answer(text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        if !text.ends_with('\n') {
            let _ = out.write_all(b"\n");
        }
        let _ = out.flush();
    }

    /// A note for people, to standard error.
    pub(crate) fn note(text: &str) {
        let mut out = std::io::stderr().lock();
        let _ = writeln!(out, "{text}");
    }

    /// What went wrong, with its causes.
    pub(crate) fn error(error: &anyhow::Error) {
        note(&format!("error: {error:#}"));
    }
}
