//! `tidegate agent --check`: what works on this machine, and what to do about what does not.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;

use rustls_pki_types::UnixTime;
use serde::Serialize;
use tidegate_modelcache::room::Disk;
use tidegate_node::facts::{FactSource, KillBy, ProofKind};
use tidegate_node::tls::Party;
use tidegate_node::{Facts, check as look};

use super::{AgentArgs, Known, cache_path, tls_files};
use crate::terminal;

/// Where who keeps the clock right says that it does.
const CLOCK_MARKS: [&str; 2] = ["/run/systemd/timesync/synchronized", "/run/chrony/chronyd.pid"];
/// 2026-01-01: a clock before it is wrong.
const CLOCK_MIN_SECONDS: u64 = 1_767_225_600;

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    /// As good as it gets.
    Works,
    /// It works, with less of a guarantee.
    Weaker,
    /// Nobody knows.
    Unknown,
    /// The agent does not start, or no engine on it.
    Fails,
}

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    grade: Grade,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

fn finding(what: &'static str, grade: Grade, found: impl Into<String>, hint: Option<String>) -> Finding {
    Finding { what, grade, found: found.into(), hint }
}

/// Looks at everything and says it.
pub(super) async fn check(args: &AgentArgs, known: &Known) -> anyhow::Result<ExitCode> {
    let facts = look(known.settings(args)?).await?;
    let mut findings = vec![guard(&facts), memory(&facts), gpus(&facts), numa(&facts)];
    for problem in &facts.problems {
        let grade = if problem.is_error { Grade::Fails } else { Grade::Weaker };
        findings.push(finding("problem", grade, problem.what.clone(), problem.hint.clone()));
    }
    findings.extend([disk(args, known), clock(), certificates(args, known), address(args)]);
    let fails = findings.iter().any(|finding| finding.grade == Grade::Fails);
    if args.json {
        let answer = serde_json::json!({"node": args.node, "works": !fails, "findings": findings, "facts": facts});
        terminal::answer(&serde_json::to_string_pretty(&answer)?);
    } else {
        terminal::answer(&text(&findings));
    }
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { what, grade, found, hint } in findings {
        let grade = match grade {
            Grade::Works => "works",
            Grade::Weaker => "weaker",
            Grade::Unknown => "unknown",
            Grade::Fails => "FAILS",
        };
        let _ = writeln!(text, "{grade:8} {what:13} {found}");
        if let Some(hint) = hint {
            let _ = writeln!(text, "{:22} -> {hint}", "");
        }
    }
    text
}

fn guard(facts: &Facts) -> Finding {
    let (grade, found) = match facts.guard.kill {
        KillBy::CgroupV2 => (Grade::Works, "cgroup v2: the kernel ends all of an engine's processes at once"),
        KillBy::CgroupV1 => (Grade::Weaker, "cgroup v1: an engine's processes are read and killed until none is left"),
        KillBy::RecordedTree => (Grade::Weaker, "recorded tree: the minder ends the processes it has seen"),
    };
    let why = (!facts.guard.why.is_empty()).then(|| facts.guard.why.join("; "));
    finding("processes", grade, found, why)
}

fn memory(facts: &Facts) -> Finding {
    match facts.guard.memory {
        Some(_) => finding("memory limit", Grade::Works, "by cgroup", None),
        None => {
            let hint = "run the agent where it may write to a cgroup with the memory controller";
            finding("memory limit", Grade::Weaker, "nobody holds engines to theirs", Some(hint.to_owned()))
        }
    }
}

fn gpus(facts: &Facts) -> Finding {
    let count = facts.gpus.len();
    match (facts.source, facts.proof) {
        (FactSource::Nvml, ProofKind::Nvml) => {
            finding("gpus", Grade::Works, format!("{count}, by NVML, with each process's memory"), None)
        }
        (FactSource::Nvml, _) => {
            let hint = "run the agent in the host's PID namespace: the driver tells it no process's memory";
            finding("gpus", Grade::Weaker, format!("{count}, by NVML, totals only"), Some(hint.to_owned()))
        }
        (FactSource::Document, _) => {
            let hint = "install the NVIDIA driver (libnvidia-ml.so.1) to have them measured";
            finding("gpus", Grade::Weaker, format!("{count}, as the documents say; no NVML"), Some(hint.to_owned()))
        }
        (FactSource::None, _) => finding("gpus", Grade::Weaker, "none; no NVML", None),
    }
}

fn numa(facts: &Facts) -> Finding {
    if facts.numa.is_empty() {
        let hint = "engines are bound to no CPUs; Node.spec.numa may say them";
        return finding("numa", Grade::Unknown, "the machine does not say", Some(hint.to_owned()));
    }
    finding("numa", Grade::Works, format!("{} node(s)", facts.numa.len()), None)
}

fn disk(args: &AgentArgs, known: &Known) -> Finding {
    let Some(site) = known.site.as_ref().filter(|site| site.model_store.is_some()) else {
        return finding("disk", Grade::Works, "no model store is named: no cache", None);
    };
    let path = cache_path(site, &args.state.state);
    // What is not made yet is on the disk of what will hold it.
    let there = path.ancestors().find(|path| path.is_dir()).unwrap_or_else(|| Path::new("."));
    match Disk::of(there) {
        Ok(disk) => {
            let keep_free = crate::model::keep_free(site.model_cache.keep_free).bytes(disk.total_bytes);
            let found = format!("{}: {} bytes free of {}", path.display(), disk.free_bytes, disk.total_bytes);
            if disk.free_bytes > keep_free {
                return finding("disk", Grade::Works, found, None);
            }
            let hint = format!("{keep_free} bytes are to stay free (modelCache.keepFree): nothing can be fetched");
            finding("disk", Grade::Fails, found, Some(hint))
        }
        Err(fault) => finding("disk", Grade::Fails, fault.to_string(), Some(fault.hint().to_owned())),
    }
}

fn clock() -> Finding {
    let now = UnixTime::now().as_secs();
    if now < CLOCK_MIN_SECONDS {
        let hint = "set the clock: certificates are judged by it";
        return finding("clock", Grade::Fails, format!("{now} s since 1970 is long ago"), Some(hint.to_owned()));
    }
    if CLOCK_MARKS.iter().any(|mark| Path::new(mark).exists()) {
        return finding("clock", Grade::Works, "kept right by the network", None);
    }
    let hint = "run systemd-timesyncd or chrony; in a container the machine's own may do it unseen";
    finding("clock", Grade::Unknown, "nobody here says that it is kept right", Some(hint.to_owned()))
}

fn certificates(args: &AgentArgs, known: &Known) -> Finding {
    let own = Party::Node { site: known.name.clone(), name: args.node.as_str().into() };
    match tls_files(args).check(&own, UnixTime::now()) {
        Ok(()) => finding("certificates", Grade::Works, format!("for {own}"), None),
        Err(error) => {
            let hint = format!("tidegate pki issue --dir {} node {}", args.certificates.display(), args.node);
            finding("certificates", Grade::Fails, error.to_string(), Some(hint))
        }
    }
}

fn address(args: &AgentArgs) -> Finding {
    match TcpListener::bind(args.listen) {
        Ok(_) => finding("address", Grade::Works, args.listen.to_string(), None),
        Err(error) => {
            let hint = "an agent that runs already has it; another is given by --listen".to_owned();
            finding("address", Grade::Weaker, format!("{}: {error}", args.listen), Some(hint))
        }
    }
}
