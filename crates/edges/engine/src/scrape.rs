//! Load signals from an engine's `/metrics` page.
//!
//! A signal is typed by dialect, unit and family type, never guessed from a suffix (E15): what is absent, of another
//! type or not a number stays absent and is never read as 0. One reader per engine, every [`EVERY`]: a page of vLLM is
//! 80 KB and costs the engine 11 to 21 ms, and scrapes delay llama.cpp's cancelling (E17).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use crate::client::{ClientError, Head, Pool};
use crate::dialect::Dialect;

/// Time between two scrapes of one engine.
pub const EVERY: Duration = Duration::from_secs(5);
/// Deadline of one scrape.
pub const DEADLINE: Duration = Duration::from_secs(4);
/// How long a request may be on its way to an engine, and its answer on its way back, with nothing of it at the engine:
/// connecting to one on the same network takes milliseconds.
pub const IN_TRANSIT: Duration = Duration::from_millis(250);
/// Age from which a signal is unknown: two scrapes were missed.
pub const STALE_AFTER: Duration = Duration::from_secs(15);
/// Bytes of a metrics page. vLLM's largest recorded one has 80 KB.
pub const PAGE_MAX: usize = 4 * 1024 * 1024;
/// Series of one signal that are added up: data-parallel ranks and the like.
pub const SERIES_MAX: usize = 1_024;

/// What an engine says about its load; `None` is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Requests that run.
    pub running: Option<f64>,
    /// KV cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Work done since the engine started: tokens, or decode steps where tokens are counted only when a request ends.
    /// Only that it grows means anything: while requests run and it does not, nothing comes out.
    pub progress: Option<f64>,
}

/// Signals and when they were read.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The signals.
    pub signals: Signals,
    /// When.
    pub at: Instant,
    /// Requests that the engine must have had when it rendered the page: booked at the replica [`IN_TRANSIT`] before the
    /// scrape began and still [`IN_TRANSIT`] after it ended; `None` when nobody could say.
    pub booked: Option<u32>,
}

impl Sample {
    /// The signals, as long as they are fresh enough to be acted on.
    #[must_use]
    pub fn fresh(&self, now: Instant) -> Option<Signals> {
        (now.saturating_duration_since(self.at) < STALE_AFTER).then_some(self.signals)
    }
}

/// Why there are no signals.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// The exchange failed.
    #[error("scrape failed")]
    Client(#[from] ClientError),
    /// No answer in time.
    #[error("no metrics page within {DEADLINE:?}")]
    Timeout,
    /// The engine has no such page, or does not give it to us.
    #[error("metrics page answered with status {0}")]
    Status(u16),
}

/// Reads an engine's signals once.
///
/// # Errors
/// [`ScrapeError`]; the caller keeps the last sample, which grows old.
pub async fn scrape(pool: &Arc<Pool>, dialect: Dialect) -> Result<Sample, ScrapeError> {
    // Where nothing is booked, nothing can be compared with the page.
    let watched = pool.watched().filter(|replica| replica.booked() > 0);
    if let Some(replica) = watched {
        replica.mark_bookings();
        sleep(IN_TRANSIT).await;
    }
    let page = async {
        let response = pool.send(Head::get("/metrics"), Bytes::new()).await?;
        if response.head.status != 200 {
            return Err(ScrapeError::Status(response.head.status));
        }
        Ok(response.body.collect(PAGE_MAX).await?)
    };
    let page = tokio::time::timeout(DEADLINE, page).await.map_err(|_| ScrapeError::Timeout)??;
    let (signals, at) = (parse(dialect, &page), Instant::now());
    if watched.is_some() {
        sleep(IN_TRANSIT).await;
    }
    let booked = pool.watched().map(|_| watched.map_or(0, |replica| replica.booked_before_mark()));
    Ok(Sample { signals, at, booked })
}

/// How the series of one family make one figure.
#[derive(Clone, Copy)]
enum Join {
    /// Counts add up over ranks.
    Sum,
    /// Of shares the fullest counts.
    Max,
}

/// What a family is declared as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

impl Kind {
    fn is(self, declared: &str) -> bool {
        match declared {
            "untyped" | "unknown" => true,
            "gauge" => self == Self::Gauge,
            "counter" => self == Self::Counter,
            _ => false,
        }
    }
}

/// One signal: the families that carry it, newest name first.
struct Family {
    names: &'static [&'static str],
    kind: Kind,
    join: Join,
}

struct Names {
    waiting: Family,
    running: Family,
    kv_usage: Family,
    /// All of them together.
    progress: &'static [Family],
}

impl Names {
    fn all(&self) -> impl Iterator<Item = &Family> {
        [&self.waiting, &self.running, &self.kv_usage].into_iter().chain(self.progress)
    }

    fn find(&self, name: &str) -> Option<(&'static str, Kind)> {
        self.all()
            .find_map(|family| family.names.iter().find(|wanted| **wanted == name).map(|wanted| (*wanted, family.kind)))
    }
}

const fn sum(names: &'static [&'static str]) -> Family {
    Family { names, kind: Kind::Gauge, join: Join::Sum }
}

const fn max(names: &'static [&'static str]) -> Family {
    Family { names, kind: Kind::Gauge, join: Join::Max }
}

const fn count(names: &'static [&'static str]) -> Family {
    Family { names, kind: Kind::Counter, join: Join::Sum }
}

const VLLM_PROGRESS: &[Family] = &[count(&["vllm:generation_tokens_total"]), count(&["vllm:prompt_tokens_total"])];
/// Its token counters move when a request ends; its decode steps move at each.
const LLAMACPP_PROGRESS: &[Family] = &[count(&["llamacpp:n_decode_total"])];

const fn names(dialect: Dialect) -> Names {
    match dialect {
        Dialect::Vllm => Names {
            waiting: sum(&["vllm:num_requests_waiting"]),
            running: sum(&["vllm:num_requests_running"]),
            kv_usage: max(&["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:gpu_cache_usage_factor"]),
            progress: VLLM_PROGRESS,
        },
        Dialect::LlamaCpp => Names {
            waiting: sum(&["llamacpp:requests_deferred"]),
            running: sum(&["llamacpp:requests_processing"]),
            kv_usage: max(&["llamacpp:kv_cache_usage_ratio"]),
            progress: LLAMACPP_PROGRESS,
        },
    }
}

/// Reads a metrics page. Any bytes are taken; what cannot be read is skipped.
#[must_use]
pub fn parse(dialect: Dialect, page: &[u8]) -> Signals {
    let names = names(dialect);
    let mut found: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut others = Vec::new();
    for line in page.split(|&b| b == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let line = line.trim();
        if let Some((name, declared)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if let Some((name, kind)) = names.find(name)
                && !kind.is(declared.trim())
            {
                others.push(name);
            }
            continue;
        }
        if let Some((name, value)) = sample(line)
            && let Some((name, _)) = names.find(name)
        {
            let series = found.entry(name).or_default();
            if series.len() < SERIES_MAX {
                series.push(value);
            }
        }
    }
    found.retain(|name, _| !others.contains(name));
    let read = |family: &Family| {
        let series = family.names.iter().find_map(|name| found.get(name))?;
        let value: f64 = match family.join {
            Join::Sum => series.iter().sum(),
            Join::Max => series.iter().copied().fold(0.0, f64::max),
        };
        Some(value).filter(|value| value.is_finite())
    };
    Signals {
        waiting: read(&names.waiting),
        running: read(&names.running),
        kv_usage: read(&names.kv_usage).map(|share| share.min(1.0)),
        progress: names.progress.iter().map(read).sum(),
    }
}

/// `name{labels} value [timestamp]`: name and value, when the value is a finite number that can be a count or a share.
fn sample(line: &str) -> Option<(&str, f64)> {
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let rest = if rest.starts_with('{') { rest.get(labels_end(rest)?..)? } else { rest };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0 && !name.starts_with('#')).then_some((name, value))
}

/// Where the labels end: a brace inside a quoted value is none.
fn labels_end(text: &str) -> Option<usize> {
    let mut in_quotes = false;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_quotes => is_escaped = true,
            b'"' => in_quotes = !in_quotes,
            b'}' if !in_quotes => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_not_there_is_unknown_and_not_zero() {
        assert_eq!(parse(Dialect::Vllm, b""), Signals::default());
        let page = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0.0\n";
        assert_eq!(parse(Dialect::Vllm, page), Signals { waiting: Some(0.0), ..Signals::default() });
        for junk in [
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting{a=\"b\"",
            "vllm:num_requests_waiting NaN",
            "vllm:num_requests_waiting +Inf",
            "vllm:num_requests_waiting -1",
            "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 3",
            "# vllm:num_requests_waiting 3",
        ] {
            assert_eq!(parse(Dialect::Vllm, junk.as_bytes()), Signals::default(), "{junk}");
        }
    }

    #[test]
    fn the_type_of_a_family_decides_and_not_its_name() {
        let page = b"# TYPE vllm:num_requests_running counter\nvllm:num_requests_running 7\n";
        assert_eq!(parse(Dialect::Vllm, page), Signals::default());
        let page = b"vllm:num_requests_running 7\n# TYPE vllm:num_requests_running histogram\n";
        assert_eq!(parse(Dialect::Vllm, page), Signals::default(), "wherever the type stands");
    }

    #[test]
    fn ranks_add_up_and_the_fullest_cache_counts() {
        let page = "vllm:num_requests_running{engine=\"0\",m=\"a } \\\" 9\"} 2 1700000000000\n\
                    vllm:num_requests_running{engine=\"1\"} 3e0\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n";
        let signals = parse(Dialect::Vllm, page.as_bytes());
        assert_eq!((signals.running, signals.kv_usage), (Some(5.0), Some(0.75)));
    }

    #[test]
    fn older_names_are_understood_and_the_newest_wins() {
        let old = b"vllm:gpu_cache_usage_perc 0.5\nvllm:gpu_cache_usage_factor 0.4\n";
        assert_eq!(parse(Dialect::Vllm, old).kv_usage, Some(0.5));
        let both = b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.1\n";
        assert_eq!(parse(Dialect::Vllm, both).kv_usage, Some(0.1));
        assert_eq!(parse(Dialect::LlamaCpp, b"llamacpp:kv_cache_usage_ratio 0.5\n").kv_usage, Some(0.5));
    }

    #[test]
    fn progress_is_all_counters_together_and_unknown_when_one_is_missing() {
        let page = b"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{engine=\"0\"} 392.0\n\
            vllm:generation_tokens_total{engine=\"1\"} 8\n# TYPE vllm:prompt_tokens_total counter\n\
            vllm:prompt_tokens_total 4745\n";
        assert_eq!(parse(Dialect::Vllm, page).progress, Some(5_145.0));
        assert_eq!(parse(Dialect::Vllm, b"vllm:generation_tokens_total 3\n").progress, None);
        let gauge = b"# TYPE llamacpp:n_decode_total gauge\nllamacpp:n_decode_total 3\n";
        assert_eq!(parse(Dialect::LlamaCpp, gauge).progress, None);
        assert_eq!(parse(Dialect::LlamaCpp, b"llamacpp:n_decode_total 3\n").progress, Some(3.0));
    }

    #[test]
    fn series_are_bounded() {
        let page = |n: usize| "vllm:num_requests_running{a=\"b\"} 1\n".repeat(n);
        assert_eq!(parse(Dialect::Vllm, page(SERIES_MAX).as_bytes()).running, Some(SERIES_MAX as f64));
        assert_eq!(parse(Dialect::Vllm, page(SERIES_MAX + 1).as_bytes()).running, Some(SERIES_MAX as f64));
    }

    #[test]
    fn an_old_sample_is_unknown() {
        let at = Instant::now();
        let sample = Sample { signals: Signals { waiting: Some(1.0), ..Signals::default() }, at, booked: None };
        assert_eq!(sample.fresh(at + STALE_AFTER - Duration::from_millis(1)), Some(sample.signals));
        assert_eq!(sample.fresh(at + STALE_AFTER), None);
    }
}
