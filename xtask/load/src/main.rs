//! The load generator of `cargo xtask bench`: sends one kind of request over a number of connections and says what came
//! back, as one JSON object. HTTP/1.1 is written by hand on one thread, so that the generator stays far cheaper than
//! what it measures; streams that are only held open go over HTTP/2.

mod answer;
mod closed_loop;
mod held;
mod latency;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Sends requests and measures the answers.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Each connection sends its next request when the last answer is whole.
    Loop(Loop),
    /// Opens streams, holds them until standard input ends, and says how many lived.
    Hold(Hold),
}

/// What every mode needs.
#[derive(Args, Clone, Debug)]
struct Target {
    /// HOST:PORT to connect to.
    #[arg(long)]
    address: SocketAddr,
    /// Bearer token.
    #[arg(long)]
    key: Option<String>,
    /// `model` of the request.
    #[arg(long)]
    model: String,
    /// Ask for a stream.
    #[arg(long)]
    stream: bool,
}

#[derive(Args, Debug)]
struct Loop {
    #[command(flatten)]
    target: Target,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Seconds measured.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Requests in all instead of a time.
    #[arg(long)]
    requests: Option<u64>,
    /// Seconds of the same before, not measured.
    #[arg(long, default_value_t = 0.3)]
    warm: f64,
}

#[derive(Args, Debug)]
struct Hold {
    #[command(flatten)]
    target: Target,
    /// Streams in all.
    #[arg(long)]
    streams: usize,
    /// Streams on one HTTP/2 connection; 0 means HTTP/1.1 with a connection each.
    #[arg(long, default_value_t = 100)]
    per_connection: usize,
    /// Longest time until all of them have their first event.
    #[arg(long, default_value_t = 60)]
    open_within: u64,
}

impl Target {
    /// A chat request of about 300 bytes, as the peers were measured with.
    fn body(&self) -> Vec<u8> {
        let prompt = "Summarise in one sentence what a gate in front of language models does for the people who run \
                      them and for the people who call them, and why it must be cheap.";
        let mut body = serde_json::json!({
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 64,
            "temperature": 0,
        });
        if self.stream {
            body["stream"] = true.into();
            body["stream_options"] = serde_json::json!({"include_usage": true});
        }
        body.to_string().into_bytes()
    }

    /// The whole HTTP/1.1 request.
    fn message(&self) -> Vec<u8> {
        let body = self.body();
        let authorization =
            self.key.as_ref().map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
        let mut message = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n{authorization}content-type: application/json\r\n\
             accept: */*\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(&body);
        message
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "load-generator: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(mode: Mode) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    match mode {
        Mode::Loop(arguments) => {
            let plan = closed_loop::Plan {
                address: arguments.target.address,
                message: arguments.target.message().into(),
                stream: arguments.target.stream,
                connections: arguments.connections,
                warm: Duration::from_secs_f64(arguments.warm),
                seconds: Duration::from_secs_f64(arguments.seconds),
                requests: arguments.requests,
            };
            report(&local.block_on(&runtime, closed_loop::run(plan))?)
        }
        Mode::Hold(arguments) => {
            let plan = held::Plan {
                address: arguments.target.address,
                message: arguments.target.message().into(),
                body: arguments.target.body().into(),
                key: arguments.target.key,
                streams: arguments.streams,
                per_connection: arguments.per_connection,
                open_within: Duration::from_secs(arguments.open_within),
            };
            local.block_on(&runtime, held::run(plan, report))
        }
    }
}

/// One JSON object on one line, at once.
fn report(value: &serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()?;
    Ok(())
}
