//! Everything that must hold before a change lands, as one command: `cargo xtask test`.
//!
//! Steps run one after the other and all of them run, so that one failure does not hide another. At the end each is named
//! with its time; the whole is meant for 60 minutes on two cores from nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::terminal::{complain, say};
use crate::{clients, generate, real, walls, workspace};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only these steps, in the order of the list.
    #[arg(value_parser = step_names())]
    steps: Vec<String>,
    /// Say what the steps are, and run none.
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "format", what: "cargo fmt --check", run: format },
    Step { name: "walls", what: "layers, heavy crates, sizes, floors, licences, private places", run: walls::run },
    Step {
        name: "generated",
        what: "schema, references and docs/errors.md are what the types say",
        run: generate::check,
    },
    Step { name: "lints", what: "cargo clippy, warnings are errors", run: lints },
    Step { name: "real", what: "real components that tests use are installed", run: real_components },
    Step { name: "tests", what: "cargo test --workspace", run: tests },
    Step { name: "arm", what: "cargo check for 64-bit ARM, C parts compiled", run: arm },
    Step { name: "quickstart", what: "./quickstart --check: a real model answers through the gate", run: quickstart },
    Step {
        name: "clients",
        what: "the OpenAI and Anthropic libraries against tidegate up with the real model",
        run: clients::run,
    },
];

fn step_names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// The command line's `test`.
///
/// # Errors
/// A step failed.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let chosen = |step: &&Step| arguments.steps.is_empty() || arguments.steps.iter().any(|name| name == step.name);
    if arguments.list {
        for step in STEPS {
            say!("{:<12}{}", step.name, step.what);
        }
        return Ok(());
    }
    let mut done: Vec<(&Step, Duration, Result<()>)> = Vec::new();
    for step in STEPS.iter().filter(chosen) {
        say!("\n=== {}: {}", step.name, step.what);
        let start = Instant::now();
        let result = (step.run)();
        if let Err(error) = &result {
            complain!("{}: {error:#}", step.name);
        }
        done.push((step, start.elapsed(), result));
    }
    summary(&done)
}

fn summary(done: &[(&Step, Duration, Result<()>)]) -> Result<()> {
    say!("\n=== summary");
    for (step, time, result) in done {
        let outcome = if result.is_ok() { "passed" } else { "FAILED" };
        say!("{outcome}  {:<12}{:>7.1} s", step.name, time.as_secs_f64());
    }
    let total: Duration = done.iter().map(|(_, time, _)| *time).sum();
    let failed: Vec<_> = done.iter().filter(|(_, _, result)| result.is_err()).map(|(step, _, _)| step.name).collect();
    say!("{} steps in {:.1} s", done.len(), total.as_secs_f64());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn format() -> Result<()> {
    workspace::run(workspace::cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    workspace::run(workspace::cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))
}

/// Tests find these where they are installed, and would install them one by one inside their own time.
fn real_components() -> Result<()> {
    for name in [real::Name::Llamacpp, real::Name::S3, real::Name::Kubernetes] {
        real::install(name)?;
    }
    Ok(())
}

fn tests() -> Result<()> {
    workspace::run(workspace::cargo().args(["test", "--quiet", "--workspace", "--locked", "--no-fail-fast"]))
}

const ARM: &str = "aarch64-unknown-linux-gnu";

fn arm() -> Result<()> {
    let compiler = "aarch64-linux-gnu-gcc";
    workspace::output(workspace::command(compiler).arg("--version")).context(
        "the C parts need a cross compiler (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)",
    )?;
    workspace::run(workspace::command("rustup").args(["--quiet", "target", "add", ARM]))?;
    workspace::run(workspace::cargo().args(["check", "--quiet", "--package", "tidegate", "--locked", "--target", ARM]))
}

fn quickstart() -> Result<()> {
    workspace::run(workspace::command(workspace::root().join("quickstart")).arg("--check"))
}
