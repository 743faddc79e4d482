//! What each room of the request path costs, in instructions of one unstreamed request.
//!
//! Tidegate runs under valgrind's callgrind with line numbers; what was executed is added up by source file, inlined code
//! counted where it was written, and files are put to rooms by the table below. Instructions do not depend on what else
//! the machine does, so that two commits can be compared. The kernel's work is not in it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::figures::Figure;
use super::load::{self, Loop};
use super::process::Owned;
use super::stand::{self, Stand};
use crate::terminal::complain;
use crate::workspace;

/// Built with line numbers.
const PROFILE: &str = "profiling";
const WARM: u64 = 1_000;
const REQUESTS: u64 = 2_000;

/// Where source files belong: the first row whose text stands in the path decides.
const ROOMS: &[(&str, &str)] = &[
    ("rooms/gateway/src/accept", "accept"),
    ("rooms/gateway/src/authenticate", "authenticate"),
    ("edges/identity/", "authenticate"),
    ("rooms/gateway/src/authorise", "authorise"),
    ("rooms/gateway/src/read_body", "authorise"),
    ("decisions/policy/src/grants", "authorise"),
    ("rooms/gateway/src/admit", "admit"),
    ("decisions/policy/", "admit"),
    ("rooms/gateway/src/route", "route"),
    ("rooms/gateway/src/pick", "pick"),
    ("decisions/routing/", "pick"),
    ("rooms/gateway/src/account", "account"),
    ("rooms/gateway/src/metrics", "account"),
    ("edges/store/src/journal", "account"),
    ("rooms/gateway/", "relay"),
    ("edges/engine/", "relay"),
    ("words/wire/", "JSON and events (wire)"),
    ("edges/store/", "ledger's writer"),
    ("/sqlx", "ledger's writer"),
    ("sqlite3", "ledger's writer"),
    ("crates/words/", "other words"),
    ("crates/", "the binary and other rooms"),
    ("/hyper-", "HTTP towards callers"),
    ("/http-", "HTTP towards callers"),
    ("/httparse-", "HTTP towards callers"),
    ("/h2-", "HTTP towards callers"),
    ("/tokio-", "runtime"),
    ("/mio-", "runtime"),
    ("mimalloc", "allocator"),
    ("/rustc/", "standard library"),
    ("/library/", "standard library"),
];
const REST: &str = "libc and other crates";

/// Runs it.
///
/// # Errors
/// valgrind is missing, or what it wrote cannot be read.
pub(super) fn run(stand: &Stand) -> Result<Vec<Figure>> {
    workspace::output(workspace::command("valgrind").arg("--version")).context("Debian: apt-get install valgrind")?;
    complain!("building with profile {PROFILE}");
    let binaries = load::build(PROFILE, false)?;
    let folder = stand.folder.join("rooms");
    std::fs::create_dir_all(folder.join("site"))?;
    let documents = stand.documents()?.replace("workers: 2", "workers: 1");
    std::fs::write(folder.join("site/site.yaml"), &documents)?;
    let out = folder.join("callgrind.out");
    let mut command = workspace::command("valgrind");
    command.args(["--tool=callgrind", "--instr-atstart=no"]).arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(binaries.join("tidegate")).arg("up").arg(folder.join("site")).arg("--state").arg(folder.join("state"));
    let mut process = Owned::start(&mut command, &folder.join("log"))?;
    stand::wait_for(&stand::listen_of(&documents, "admin")?, "/readyz", Some(&mut process))?;
    let key = stand::make_key(&binaries.join("tidegate"), &folder)?;
    let address = stand::Address { host_port: stand::listen_of(&documents, "gateway")?, key: Some(key) };
    let ask = |requests| {
        let plan = Loop { connections: 16, seconds: 0.0, requests: Some(requests), stream: false };
        let outcome = stand.generator.run(&address, "bench", plan)?;
        ensure!(outcome.errors == 0, "{} errors: {}", outcome.errors, outcome.error.unwrap_or_default());
        Ok(outcome.answered)
    };
    complain!("{WARM} requests to warm up, {REQUESTS} under callgrind");
    ask(WARM)?;
    switch(&process, "on")?;
    let answered = ask(REQUESTS)?;
    switch(&process, "off")?;
    drop(process);
    figures(&out, answered)
}

fn switch(process: &Owned, to: &str) -> Result<()> {
    let pid = process.pid().to_string();
    workspace::output(workspace::command("callgrind_control").args(["-i", to, &pid])).map(drop)
}

fn figures(out: &Path, answered: f64) -> Result<Vec<Figure>> {
    let text = std::fs::read_to_string(out).with_context(|| format!("callgrind left no {}", out.display()))?;
    let mut rooms: BTreeMap<&str, u64> = BTreeMap::new();
    for (file, instructions) in by_file(&text)? {
        *rooms.entry(room(&file)).or_default() += instructions;
    }
    let total: u64 = rooms.values().sum();
    let mut rows: Vec<_> = rooms.into_iter().collect();
    rows.sort_by_key(|(_, instructions)| std::cmp::Reverse(*instructions));
    rows.insert(0, ("all", total));
    let figure = |(room, instructions): (&str, u64)| {
        let share = instructions as f64 * 100.0 / total.max(1) as f64;
        Figure::own(format!("instructions: {room} ({share:.0} %)"), "instr/req", instructions as f64 / answered)
    };
    Ok(rows.into_iter().map(figure).collect())
}

fn room(file: &str) -> &'static str {
    ROOMS.iter().find(|(part, _)| file.contains(part)).map_or(REST, |(_, room)| room)
}

/// Instructions of each source file, from callgrind's output: costs of the lines themselves, without those of calls.
fn by_file(text: &str) -> Result<BTreeMap<String, u64>> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut costs: BTreeMap<&str, u64> = BTreeMap::new();
    let mut file = "";
    let mut is_call = false;
    for line in text.lines() {
        if let Some(value) = ["fl=", "fi=", "fe="].iter().find_map(|key| line.strip_prefix(key)) {
            file = resolve(&mut names, value);
        } else if let Some(value) = ["cfi=", "cfl="].iter().find_map(|key| line.strip_prefix(key)) {
            resolve(&mut names, value);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // the line behind calls= has what the called function cost, which is counted where it was spent
            if !std::mem::take(&mut is_call) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
                *costs.entry(file).or_default() += cost.unwrap_or_default();
            }
        }
    }
    ensure!(!costs.is_empty(), "callgrind counted nothing");
    Ok(costs.into_iter().map(|(file, cost)| (file.to_owned(), cost)).collect())
}

/// `(7) name` gives 7 its name, `(7)` uses it.
fn resolve<'a>(names: &mut BTreeMap<&'a str, &'a str>, value: &'a str) -> &'a str {
    match value.split_once(") ") {
        Some((id, name)) => {
            names.insert(id, name);
            name
        }
        None => names.get(value.trim_end_matches(')')).copied().unwrap_or(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_counted_where_they_were_spent() {
        let text = "version: 1\npositions: line\nevents: Ir\n\nfl=(1) a/crates/rooms/gateway/src/admit.rs\nfn=(1) admit\n10 100\n\
                    fi=(2) /rustc/x/library/core/src/num.rs\n+3 7\nfe=(1)\n-2 50\ncfi=(3) a/crates/words/wire/src/json.rs\n\
                    cfn=(2) parse\ncalls=1 5\n* 9000\n+1 1\n\nfl=(3)\nfn=(2)\n5 9000\n\ntotals: 9158\n";
        let files = by_file(text).unwrap();
        assert_eq!(files["a/crates/rooms/gateway/src/admit.rs"], 151);
        assert_eq!(files["/rustc/x/library/core/src/num.rs"], 7);
        assert_eq!(files["a/crates/words/wire/src/json.rs"], 9000);
        assert!(by_file("totals: 0\n").is_err());
    }

    #[test]
    fn every_room_of_the_path_has_its_file() {
        let path = workspace::root().join("crates/rooms/gateway/src");
        for name in ["accept", "authenticate", "authorise", "admit", "route", "pick", "account"] {
            let file = path.join(format!("{name}.rs"));
            assert!(file.exists() || path.join(name).exists(), "{name}");
            assert_eq!(room(&file.display().to_string()), name);
        }
        assert_eq!(room("crates/rooms/gateway/src/relay.rs"), "relay");
        assert_eq!(room("somewhere/else.c"), REST);
    }
}
