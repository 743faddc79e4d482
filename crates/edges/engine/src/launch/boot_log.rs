//! What an engine's log says about its start: how far it came, and why it failed (E13).
//!
//! The last line of a failed vLLM is of no use ("Engine core initialization failed. See root cause above"): the cause
//! is the *first* traceback, written by another of its processes, sometimes a minute earlier.

use crate::dialect::Dialect;

/// Bytes of a cause that is shown.
pub const CAUSE_MAX: usize = 512;

/// How far a boot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The program starts: nothing known of the model yet.
    Starting,
    /// The model's configuration is understood.
    Configured,
    /// The engine's own process is up.
    EngineUp,
    /// Weights are being read.
    Loading,
    /// Weights are there: caches, compiling, warm-up.
    Warming,
    /// It says that it serves. Only a token proves that.
    Serving,
}

impl Phase {
    /// The phase as status and metrics show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Configured => "configured",
            Self::EngineUp => "engine_up",
            Self::Loading => "loading",
            Self::Warming => "warming",
            Self::Serving => "serving",
        }
    }

    /// The furthest phase that a log shows.
    #[must_use]
    pub fn of(dialect: Dialect, log: &str) -> Self {
        let marks: &[(&str, Self)] = match dialect {
            Dialect::Vllm => &[
                ("Resolved architecture", Self::Configured),
                ("Initializing a V1 LLM engine", Self::EngineUp),
                ("Starting to load model", Self::Loading),
                ("Loading weights took", Self::Warming),
                ("init engine (profile, create kv cache, warmup model) took", Self::Warming),
                ("Starting vLLM server on", Self::Serving),
            ],
            Dialect::LlamaCpp => &[
                ("loading model", Self::Loading),
                ("model loaded", Self::Warming),
                ("server is listening", Self::Serving),
                ("listening http", Self::Serving),
            ],
        };
        let seen = marks.iter().filter(|(mark, _)| log.contains(mark)).map(|(_, phase)| *phase);
        seen.max().unwrap_or(Self::Starting)
    }
}

impl Dialect {
    /// Texts of the engine's log, and the phase of a start that begins with each: `start`, `load`, `compile`, `serve`;
    /// and whether it found what it compiled before: `compiled_found`, `compiled_anew`.
    #[must_use]
    pub const fn boot_marks(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Vllm => &[
                ("Resolved architecture", "start"),
                ("Starting to load model", "load"),
                ("Loading weights took", "compile"),
                ("Directly load the compiled graph", "compiled_found"),
                ("torch.compile takes", "compiled_anew"),
                ("init engine (profile, create kv cache, warmup model) took", "serve"),
            ],
            Self::LlamaCpp => &[("loading model", "load"), ("model loaded", "serve")],
        }
    }
}

/// Why a boot failed: the exception of the first traceback, else the first line that says "error", else the last line.
/// `None` for an empty log.
#[must_use]
pub fn root_cause(log: &str) -> Option<String> {
    let line = first_exception(log)
        .or_else(|| log.lines().find(|line| line.to_ascii_lowercase().contains("error")))
        .or_else(|| log.lines().rfind(|line| !line.trim().is_empty()))?;
    let mut end = line.len().min(CAUSE_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    Some(line[..end].trim().to_owned())
}

/// After a traceback's head the exception is the first line that is not indented, among the lines with the same prefix:
/// vLLM puts process, level, time and file before every line, and its processes write in between each other.
fn first_exception(log: &str) -> Option<&str> {
    const HEAD: &str = "Traceback (most recent call last):";
    let mut lines = log.lines();
    let head = lines.find(|line| line.contains(HEAD))?;
    let prefix = head.split(HEAD).next()?;
    let mut own = lines.filter_map(|line| line.strip_prefix(prefix));
    own.find(|line| !line.is_empty() && !line.starts_with(char::is_whitespace) && !line.starts_with('('))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_exception_is_the_cause_and_not_the_last_line() {
        let log = "starting\n(W) ERROR [a.py:1] Traceback (most recent call last):\n(E) INFO [b.py:2] other\n\
                   (W) ERROR [a.py:1]   File \"x\", line 1\n(W) ERROR [a.py:1] ValueError: no block size for 16\n\
                   Traceback (most recent call last):\n  File \"y\"\nRuntimeError: see root cause above\n";
        assert_eq!(root_cause(log).as_deref(), Some("ValueError: no block size for 16"));
        assert_eq!(root_cause("Traceback (most recent call last):\n  x\nA: b\nC: d").as_deref(), Some("A: b"));
    }

    #[test]
    fn without_a_traceback_a_line_with_error_or_the_last_one_is_the_cause() {
        assert_eq!(root_cause("a\nE load: error loading model\nb\n").as_deref(), Some("E load: error loading model"));
        assert_eq!(root_cause("a\nb\n\n").as_deref(), Some("b"));
        assert_eq!(
            root_cause("Traceback (most recent call last):\n").as_deref(),
            Some("Traceback (most recent call last):")
        );
        assert_eq!(root_cause(""), None);
        assert_eq!(root_cause(&"é".repeat(CAUSE_MAX)).map(|cause| cause.len()), Some(CAUSE_MAX));
    }

    #[test]
    fn every_text_that_marks_a_phase_of_a_start_stands_in_the_log_once_and_in_order() {
        let names: Vec<_> = Dialect::Vllm.boot_marks().iter().map(|(_, phase)| *phase).collect();
        assert_eq!(names, ["start", "load", "compile", "compiled_found", "compiled_anew", "serve"]);
        assert!(Dialect::LlamaCpp.boot_marks().iter().all(|(_, phase)| names.contains(phase)));
    }

    #[test]
    fn phases_only_grow() {
        assert_eq!(Phase::of(Dialect::Vllm, ""), Phase::Starting);
        assert_eq!(Phase::of(Dialect::Vllm, "Starting to load model x\nResolved architecture: y"), Phase::Loading);
        assert_eq!(Phase::of(Dialect::LlamaCpp, "listening http://127.0.0.1:1"), Phase::Serving);
    }
}
