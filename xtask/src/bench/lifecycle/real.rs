//! llama.cpp, switched from the command line again and again while streams run all the time. The machine's memory, as a
//! document says it, is what is scarce: with room for both sets a switch overlaps, with room for one it replaces.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::Planner;
use crate::bench::figures::{Figure, Goal};
use crate::bench::process::Owned;
use crate::bench::stand;
use crate::real::{self, Name};
use crate::terminal::complain;
use crate::workspace;

/// Streams that run all the time.
const STREAMS: usize = 2;
/// The longest that one stream may say nothing.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// The longest that the first load or one switch may take.
const SWITCH_MAX: &str = "4m";
const LOAD_WITHIN: Duration = Duration::from_secs(240);

/// How much room there is, and what follows.
#[derive(Clone, Copy, Debug)]
struct Room {
    name: &'static str,
    host_memory: &'static str,
    gap: &'static str,
    has_gap: bool,
}

/// 700 MB for each of `sun` and `moon`, 300 MB for `still`, which stays.
const ROOMS: [Room; 2] = [
    Room { name: "overlap", host_memory: "2GB", gap: "0s", has_gap: false },
    Room { name: "replace", host_memory: "1100MB", gap: "30m", has_gap: true },
];

#[derive(Debug, Default)]
struct Count {
    whole: AtomicU64,
    /// Answered by the deployment that stays, in a gap.
    by_fallback: AtomicU64,
    failed: AtomicU64,
}

/// Switches real engines.
///
/// # Errors
/// Something cannot be built, installed or started, or a switch fails.
pub(super) fn run(profile: &str, switches: u32) -> Result<Vec<Figure<Planner>>> {
    workspace::run(workspace::cargo().args(["build", "--quiet", "--profile", profile, "-p", "tidegate"]))?;
    let folder_of = if profile == "dev" { "debug" } else { profile };
    let tidegate = workspace::target().join(folder_of).join("tidegate");
    let engine = real::install(Name::Llamacpp)?;
    let mut figures = Vec::new();
    for room in ROOMS {
        complain!("real engines: {switches} switches, {}", room.name);
        figures.extend(one(&tidegate, &engine, room, switches)?);
    }
    Ok(figures)
}

fn documents(gate: u16, admin: u16, engines: u16, engine: &Path, room: Room) -> String {
    let server = workspace::root().join("tools/llama_server.py");
    let deployment = |name: &str, memory: &str, slots: u32| {
        format!(
            "---\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{source: {{local: '{}'}}, engine: llama.cpp}}\n\
             ---\nkind: Deployment\nmetadata: {{name: {name}-v1}}\nspec:\n  model: {name}\n  launch: {{replicas: 1}}\n  hostMemory: {memory}\n  cpu: 0.5\n  \
             limits: {{contextTokens: 512, maxOutputTokens: 256}}\n  engineArgs: [\"--ctx-size\", \"{}\", \"--parallel\", \"{slots}\", \"--threads\", \"1\"]\n  \
             warmup: {{prompts: {{fromFile: golden.jsonl}}, stabilise: 1s, longContext: false}}\n",
            engine.join("model.gguf").display(),
            512 * slots,
        )
    };
    format!(
        "{}  enginePorts: {engines}-{}\n  engines:\n    llama.cpp: {{command: ['{}', '{}']}}\n\
         ---\nkind: Node\nmetadata: {{name: here}}\nspec: {{facts: document, gpus: {{count: 1}}, hostMemory: {}}}\n{}{}{}\
         ---\nkind: Schedule\nmetadata: {{name: every-day}}\nspec:\n  shifts:\n    - {{name: day, start: '08:00', deployments: [sun-v1, still-v1]}}\n    \
         - {{name: night, start: '22:00', deployments: [moon-v1, still-v1]}}\n  lead: {{prefetch: 50s, verify: 40s, deploy: 30s, load: 20s, ready: 10s}}\n  \
         drain: {{timeout: 20s}}\n  gap: {{allowed: {}}}\n\
         ---\nkind: Alias\nmetadata: {{name: chat}}\nspec:\n  shifts:\n    day: {{targets: [{{deployment: sun-v1}}]}}\n    night: {{targets: [{{deployment: moon-v1}}]}}\n  fallback: [still]\n\
         ---\nkind: Alias\nmetadata: {{name: still}}\nspec: {{targets: [{{deployment: still-v1}}]}}\n{}",
        stand::site(gate, admin),
        engines + 20,
        engine.join("python").display(),
        server.display(),
        room.host_memory,
        deployment("sun", "700MB", 2),
        deployment("moon", "700MB", 2),
        deployment("still", "300MB", 2),
        room.gap,
        stand::TEAM,
    )
}

fn verb(tidegate: &Path, folder: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = workspace::command(tidegate);
    workspace::output(command.args(arguments).arg("--state").arg(folder.join("state")))
}

/// The shift in force, when no switch is under way.
fn shift(tidegate: &Path, folder: &Path) -> Result<Option<String>> {
    let status: Value = serde_json::from_str(&verb(tidegate, folder, &["switch", "status", "--json"])?)?;
    let is_over = status["switch"].is_null();
    Ok(status["shift"].as_str().map(str::to_owned).filter(|_| is_over))
}

fn one(tidegate: &Path, engine: &Path, room: Room, switches: u32) -> Result<Vec<Figure<Planner>>> {
    let folder = workspace::target().join("bench/lifecycle").join(room.name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("site"))?;
    let (gate, admin) = (stand::free_port()?, stand::free_port()?);
    let engines = stand::free_port()?.min(u16::MAX - 20);
    std::fs::write(folder.join("site/site.yaml"), documents(gate, admin, engines, engine, room))?;
    let golden = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 4}\n";
    std::fs::write(folder.join("site/golden.jsonl"), golden)?;
    let mut up = workspace::command(tidegate);
    up.arg("up").arg(folder.join("site")).arg("--state").arg(folder.join("state"));
    let mut process = Owned::start(&mut up, &folder.join("log"))?;
    stand::wait_for(&format!("127.0.0.1:{admin}"), "/readyz", Some(&mut process))?;
    let first = loaded(tidegate, &folder, &mut process)?;
    let key = stand::make_key(tidegate, &folder)?;
    let (count, stop) = (Count::default(), AtomicBool::new(false));
    let mut seconds: Vec<f64> = Vec::new();
    let switched = std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| stream(gate, &key, &count, &stop));
        }
        let switched = switch_on(tidegate, &folder, &first, switches, &mut seconds);
        stop.store(true, Ordering::Release);
        switched
    });
    switched.with_context(|| format!("{} says why", folder.join("log").display()))?;
    let number = |count: &AtomicU64| count.load(Ordering::Acquire) as f64;
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().context("nothing was switched")?;
    let figure = |name: &str, unit, value| Figure::own(format!("{}: {name}", room.name), unit, value);
    let fallback = figure("streams answered by the fallback", "", number(&count.by_fallback));
    Ok(vec![
        figure("real switches", "", f64::from(switches)),
        figure("time of a switch, median", "s", median),
        figure("whole streams", "", number(&count.whole)).wants(Goal::AtLeast(1.0)),
        figure("failed streams", "", number(&count.failed)).wants(Goal::Exactly(0.0)),
        if room.has_gap { fallback.wants(Goal::AtLeast(1.0)) } else { fallback.wants(Goal::Exactly(0.0)) },
    ])
}

fn loaded(tidegate: &Path, folder: &Path, process: &mut Owned) -> Result<String> {
    let begin = Instant::now();
    loop {
        process.alive()?;
        if let Some(shift) = shift(tidegate, folder)? {
            return Ok(shift);
        }
        if begin.elapsed() > LOAD_WITHIN {
            bail!("the first set is not loaded after {LOAD_WITHIN:?}: see {}", folder.join("log").display());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn switch_on(tidegate: &Path, folder: &Path, first: &str, count: u32, seconds: &mut Vec<f64>) -> Result<()> {
    let mut to = if first == "day" { "night" } else { "day" };
    for _ in 0..count {
        let begin = Instant::now();
        verb(tidegate, folder, &["switch", "now", "--to", to, "--wait", "--timeout", SWITCH_MAX])?;
        seconds.push(begin.elapsed().as_secs_f64());
        to = if to == "day" { "night" } else { "day" };
    }
    Ok(())
}

/// One stream after the other.
fn stream(gate: u16, key: &str, count: &Count, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let answer = ask(gate, key);
        let text = answer.as_deref().unwrap_or_default();
        let is_whole = text.starts_with("HTTP/1.1 200") && text.contains("data: [DONE]");
        let counter = if !is_whole {
            complain!("not whole: {}", answer.unwrap_or_else(|error| format!("{error:#}")));
            &count.failed
        } else if text.contains("\"model\":\"still\"")
            || text.to_ascii_lowercase().contains("x-tidegate-deployment: still")
        {
            &count.by_fallback
        } else {
            &count.whole
        };
        counter.fetch_add(1, Ordering::AcqRel);
    }
}

fn ask(gate: u16, key: &str) -> Result<String> {
    let body =
        r#"{"model":"chat","messages":[{"role":"user","content":"count to ten"}],"max_tokens":16,"stream":true}"#;
    let mut connection = TcpStream::connect(("127.0.0.1", gate))?;
    connection.set_read_timeout(Some(SILENT_MAX))?;
    write!(
        connection,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gate\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    Ok(text)
}
