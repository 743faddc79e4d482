//! The load generator, run as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::stand::Address;
use crate::workspace;

/// A closed loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    pub(super) connections: usize,
    pub(super) seconds: f64,
    /// So many requests instead of a time.
    pub(super) requests: Option<u64>,
    pub(super) stream: bool,
}

/// What came back.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) requests_per_second: f64,
    /// Whole answers, those of the warm-up too.
    pub(super) answered: f64,
    pub(super) errors: u64,
    pub(super) error: Option<String>,
    /// Microseconds to the whole answer.
    pub(super) whole_p50: Option<f64>,
    pub(super) whole_p99: Option<f64>,
    /// Microseconds to the first event, of streams.
    pub(super) first_p50: Option<f64>,
    pub(super) gap_p99: Option<f64>,
}

/// The program, and how it is called.
#[derive(Clone, Debug)]
pub(super) struct Generator {
    pub(super) program: PathBuf,
}

impl Generator {
    fn command(&self, mode: &str, to: &Address, model: &str, stream: bool) -> Command {
        let mut command = workspace::command(&self.program);
        command.arg(mode).arg("--address").arg(&to.host_port).arg("--model").arg(model);
        if let Some(key) = &to.key {
            command.arg("--key").arg(key);
        }
        if stream {
            command.arg("--stream");
        }
        command
    }

    /// Runs a closed loop to its end.
    ///
    /// # Errors
    /// The generator cannot be started or says nothing that can be read.
    pub(super) fn run(&self, to: &Address, model: &str, plan: Loop) -> Result<Outcome> {
        let mut command = self.command("loop", to, model, plan.stream);
        command.arg("--connections").arg(plan.connections.to_string());
        command.arg("--seconds").arg(plan.seconds.to_string());
        command.args(plan.requests.map(|requests| format!("--requests={requests}")));
        read(&workspace::output(&mut command)?)
    }

    /// Opens streams and holds them.
    ///
    /// # Errors
    /// The generator cannot be started.
    pub(super) fn hold(&self, to: &Address, model: &str, streams: usize, per_connection: usize) -> Result<Holding> {
        let mut command = self.command("hold", to, model, true);
        command.arg("--streams").arg(streams.to_string()).arg("--per-connection").arg(per_connection.to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the generator")?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a generator without output")?);
        Ok(Holding { child, input, output })
    }
}

fn read(text: &str) -> Result<Outcome> {
    let value: Value = serde_json::from_str(text.trim()).with_context(|| format!("the generator said {text}"))?;
    let number = |value: &Value| value.as_f64().context("the generator left out a figure");
    let time = |name: &str, share: &str| value[name][share].as_f64();
    Ok(Outcome {
        requests_per_second: number(&value["requests_per_second"])?,
        answered: number(&value["answered"])?,
        errors: value["errors"].as_u64().context("the generator left out its errors")?,
        error: value["error"].as_str().map(str::to_owned),
        whole_p50: time("whole_us", "p50"),
        whole_p99: time("whole_us", "p99"),
        first_p50: time("first_us", "p50"),
        gap_p99: time("gap_us", "p99"),
    })
}

/// Streams that are being held.
#[derive(Debug)]
pub(super) struct Holding {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What a report of [`Holding`] says.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) streams: u64,
    pub(super) seconds: f64,
    pub(super) error: Option<String>,
}

impl Holding {
    /// Waits until all are open or have failed.
    ///
    /// # Errors
    /// The generator ended or says something else.
    pub(super) fn opened(&mut self) -> Result<Held> {
        self.report("open")
    }

    /// Ends them, and says how many were alive up to then.
    ///
    /// # Errors
    /// As [`Self::opened`].
    pub(super) fn end(mut self) -> Result<Held> {
        drop(self.input.take());
        self.report("alive")
    }

    fn report(&mut self, name: &str) -> Result<Held> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let value: Value = serde_json::from_str(&line).with_context(|| format!("the generator said {line}"))?;
        Ok(Held {
            streams: value[name].as_u64().with_context(|| format!("the generator did not say how many are {name}"))?,
            seconds: value["seconds"].as_f64().unwrap_or_default(),
            error: value["error"].as_str().map(str::to_owned),
        })
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        drop(self.input.take());
        // it ends by itself when its input does; this makes sure, and collects it
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Builds what is measured, and says where it is.
///
/// # Errors
/// The build fails.
pub(super) fn build(profile: &str, without_tidegate: bool) -> Result<PathBuf> {
    let mut packages = vec!["--package", "load-generator", "--package", "tidegate-testkit"];
    if !without_tidegate {
        packages.extend(["--package", "tidegate"]);
    }
    let mut command = workspace::cargo();
    command.args(["build", "--quiet", "--locked", "--bins", "--profile", profile]).args(packages);
    workspace::run(&mut command)?;
    let folder = if profile == "dev" { Path::new("debug") } else { Path::new(profile) };
    Ok(workspace::target().join(folder))
}
