//! Logs: one JSON line per event on standard error; no prompts, no completions, no secrets.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Starts logging. `TIDEGATE_LOG` takes the usual filter directives; the default is `info`.
pub(crate) fn start(text: bool) {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_span_events(FmtSpan::NONE);
    // A second start (as in tests) leaves the first in force.
    let _ = if text { logs.with_target(false).try_init() } else { logs.json().flatten_event(true).try_init() };
}
