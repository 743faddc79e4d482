//! What each room of the request path costs, in instructions of one unstreamed request.
//!
//! Tidegate runs under valgrind's callgrind with line numbers. What was executed is put to rooms by its source file, inlined
//! code where it was written. What serves everybody (standard library, allocator, libc, hashing) is charged to whoever
//! called it, in proportion to what the calls cost, as profilers with call graphs do. Instructions do not depend on what
//! else the machine does, so that two commits can be compared. The kernel's work is not in it.

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
];
/// What no caller could be found for.
const REST: &str = "elsewhere";
/// Passes in which charges move from helpers to their callers: deeper chains of helpers than this do not matter.
const PASSES: usize = 24;

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
    let rooms = Profile::parse(&text)?.by_room();
    let total: f64 = rooms.values().sum();
    let mut rows: Vec<_> = rooms.into_iter().collect();
    rows.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    rows.insert(0, ("all", total));
    let figure = |(room, instructions): (&str, f64)| {
        let share = instructions * 100.0 / total.max(1.0);
        Figure::own(format!("instructions: {room} ({share:.0} %)"), "instr/req", instructions / answered)
    };
    Ok(rows.into_iter().map(figure).collect())
}

/// The room of a source file; `None` for what serves everybody.
fn room(file: &str) -> Option<&'static str> {
    ROOMS.iter().find(|(part, _)| file.contains(part)).map(|(_, room)| *room)
}

/// A share of one function for each room.
type Shares = BTreeMap<&'static str, f64>;

/// callgrind's output: functions by name.
#[derive(Debug, Default)]
struct Profile<'a> {
    /// Instructions of a function itself, by the room of the file that each line was written in; `None` for helpers.
    own: BTreeMap<&'a str, BTreeMap<Option<&'static str>, f64>>,
    /// Caller and callee, and what the calls cost with all that they called.
    calls: BTreeMap<&'a str, BTreeMap<&'a str, f64>>,
    /// The room of the file that a function stands in.
    home: BTreeMap<&'a str, Option<&'static str>>,
}

impl<'a> Profile<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let (mut files, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let mut profile = Self::default();
        let (mut file, mut function, mut callee) = ("", "", None);
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else {
                if let Some(cost) = cost(line) {
                    profile.count(file, function, callee.take(), cost);
                }
                continue;
            };
            match key {
                "fl" | "fi" | "fe" => file = resolve(&mut files, value),
                "cfi" | "cfl" => drop(resolve(&mut files, value)),
                "fn" => {
                    function = resolve(&mut functions, value);
                    profile.home.insert(function, room(file));
                }
                "cfn" => callee = Some(resolve(&mut functions, value)),
                _ => {}
            }
        }
        ensure!(!profile.own.is_empty(), "callgrind counted nothing");
        Ok(profile)
    }

    fn count(&mut self, file: &str, function: &'a str, callee: Option<&'a str>, cost: f64) {
        match callee {
            // recursion is no caller of its own
            Some(callee) if callee == function => {}
            Some(callee) => *self.calls.entry(callee).or_default().entry(function).or_default() += cost,
            None => {
                // a helper's line inlined into a room's function is that room's
                let room = room(file).or_else(|| self.home.get(function).copied().flatten());
                *self.own.entry(function).or_default().entry(room).or_default() += cost;
            }
        }
    }

    /// Who pays for a helper: its callers, in proportion; found for all helpers by passing charges on again and again.
    fn payers(&self) -> BTreeMap<&'a str, Shares> {
        let mut payers: BTreeMap<&str, Shares> = BTreeMap::new();
        for _ in 0..PASSES {
            let mut next = BTreeMap::new();
            for (helper, callers) in
                self.calls.iter().filter(|(callee, _)| !matches!(self.home.get(*callee), Some(Some(_))))
            {
                let total: f64 = callers.values().sum();
                let mut shares = Shares::new();
                for (caller, cost) in callers {
                    let part = cost / total.max(1.0);
                    if let Some(Some(room)) = self.home.get(caller) {
                        *shares.entry(room).or_default() += part;
                    } else if let Some(others) = payers.get(caller) {
                        others.iter().for_each(|(room, share)| *shares.entry(room).or_default() += part * share);
                    }
                }
                next.insert(*helper, shares);
            }
            payers = next;
        }
        payers
    }

    fn by_room(&self) -> Shares {
        let payers = self.payers();
        let mut rooms = Shares::new();
        for (function, costs) in &self.own {
            for (room, cost) in costs {
                let mut left = *cost;
                if let Some(room) = room {
                    *rooms.entry(room).or_default() += left;
                    continue;
                }
                for (room, share) in payers.get(function).into_iter().flatten() {
                    *rooms.entry(room).or_default() += cost * share;
                    left -= cost * share;
                }
                *rooms.entry(REST).or_default() += left;
            }
        }
        rooms
    }
}

/// The cost of a line `POSITION COST`.
fn cost(line: &str) -> Option<f64> {
    let is_cost = line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first));
    line.split(' ').nth(1).filter(|_| is_cost)?.parse().ok()
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

    const OUTPUT: &str = "version: 1\npositions: line\nevents: Ir\n\nfl=(1) a/crates/rooms/gateway/src/admit.rs\nfn=(1) admit\n\
        10 100\nfi=(2) /rustc/x/library/core/src/num.rs\n+3 7\nfe=(1)\n-2 50\ncfi=(3) a/crates/words/wire/src/json.rs\ncfn=(2) parse\n\
        calls=1 5\n* 9000\ncfi=(4) malloc.c\ncfn=(3) malloc\ncalls=1 5\n* 30\n+1 1\n\nfl=(3)\nfn=(2)\n5 8910\ncfi=(4)\ncfn=(3)\n\
        calls=1 1\n* 90\n\nfl=(4)\nfn=(3)\n1 20\ncfn=(4) grow\ncalls=1 1\n* 100\n\nfn=(4)\n7 100\n\ntotals: 9188\n";

    #[test]
    fn costs_are_charged_to_rooms_and_those_of_helpers_to_who_called_them() {
        let rooms = Profile::parse(OUTPUT).unwrap().by_room();
        // malloc and grow cost 120, a quarter of which is admit's and the rest wire's
        assert_eq!(rooms["admit"].round(), 158.0 + 30.0);
        assert_eq!(rooms["JSON and events (wire)"].round(), 8910.0 + 90.0);
        assert_eq!(rooms.values().sum::<f64>().round(), 9188.0);
        assert!(Profile::parse("totals: 0\n").is_err());
    }

    #[test]
    fn every_room_of_the_path_has_its_file() {
        let path = workspace::root().join("crates/rooms/gateway/src");
        for name in ["accept", "authenticate", "authorise", "admit", "route", "pick", "relay", "account"] {
            assert!(path.join(format!("{name}.rs")).exists() || path.join(name).exists(), "{name}");
            assert_eq!(room(&format!("crates/rooms/gateway/src/{name}.rs")), Some(name));
        }
        assert_eq!(room("somewhere/else.c"), None);
    }
}
