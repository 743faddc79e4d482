//! `kill -9` at any step: no acknowledged record is lost, none is doubled, nothing that was refused is charged.
//!
//! The child is this test binary again: it reserves and settles at random, with the writer running, and says on its
//! standard output what it is about to do and what was acknowledged. The parent kills it after a random number of lines
//! or arms one failpoint to abort it, some lives long, then opens the state itself and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_core::{Entry, Outcome, RequestId, Unix};
use tidegate_store::clock::{self, Now};
use tidegate_store::conformance::{entry, reservation};
use tidegate_store::store::{Bucket, ChangeWatcher, EntryQuery, GroupBy, UsageFilter, UsageQuery};
use tidegate_store::{JournalOptions, Journals, LedgerWriter, Store, WriterOptions, failpoint};

use super::AT;

const STATE: &str = "TIDEGATE_KILL_STATE";
const SEED: &str = "TIDEGATE_KILL_SEED";
const RETENTION: &str = "TIDEGATE_KILL_RETENTION";
/// How many seeds: 50 unless the environment says otherwise (1,000 for a release).
const SEEDS: &str = "TIDEGATE_KILL_SEEDS";
const LIVES: u64 = 3;
const STEPS: u64 = 400;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn number_of(id: RequestId) -> u64 {
    id.to_bits() as u64
}

fn made(number: u64) -> (tidegate_core::Reservation, Entry) {
    let at = Unix::from_ms(AT.ms + number as i64);
    (reservation(number, at), entry(number, at))
}

/// Small files and a writer that never rests, so that every step happens often.
const OPTIONS: JournalOptions = JournalOptions {
    durability: tidegate_store::Durability::Process,
    segment_bytes: 66 << 10,
    spool_bytes: 1 << 30,
    sync_interval: Duration::from_millis(1),
    retention: Duration::ZERO,
};

/// Not a test by itself: what the parent starts.
#[test]
fn child() {
    let (Ok(state), Ok(seed)) = (std::env::var(STATE), std::env::var(SEED)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(live(Path::new(&state), seed.parse().unwrap()));
}

async fn live(state: &Path, seed: u64) {
    let store = Store::open_sqlite(&state.join("tidegate.db")).await.unwrap();
    // Two minutes later than it is, so that what earlier lives left is old enough to be deleted.
    let now = Now { boottime_ns: clock::boottime_ns() + 120_000_000_000, ..Now::read() };
    let retention = Duration::from_secs(std::env::var(RETENTION).unwrap().parse().unwrap());
    let options = JournalOptions { retention, ..OPTIONS };
    let (journals, recovery) = Journals::open_at(&state.join("journal"), options, &now).unwrap();
    let options = WriterOptions { interval: Duration::from_millis(1), ..WriterOptions::default() };
    let _watcher = ChangeWatcher::start(&store, Duration::from_millis(1)).await.unwrap();
    let writer = LedgerWriter::start(store, &journals, &recovery, options).await.unwrap();
    let mut journal = journals.journal(0).unwrap();
    let mut random = Random(seed);
    let mut out = std::io::stdout().lock();
    let (mut open, mut settled) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        // The life's numbers follow from its seed: no two lives of a run share one.
        let number = (seed << 16) + step;
        if random.below(5) < 3 {
            writeln!(out, "try {number}").unwrap();
            if journal.reserve(&made(number).0).is_ok() {
                writeln!(out, "reserved {number}").unwrap();
                open.push(number);
            } else {
                writeln!(out, "refused {number}").unwrap();
            }
            settled.drain(..).for_each(|number: u64| writeln!(out, "settled {number}").unwrap());
        } else if !open.is_empty() {
            let number = open.swap_remove(random.below(open.len() as u64) as usize);
            journal.settle(&made(number).1);
            settled.push(number);
        }
        if random.below(8) == 0 && journal.flush().is_ok() {
            settled.drain(..).for_each(|number: u64| writeln!(out, "settled {number}").unwrap());
        }
        if random.below(100) == 0 {
            drop(writer.drain().await);
        }
    }
    // A life that comes to its end leaves nothing open, so that files are complete and put away.
    open.drain(..).for_each(|number| journal.settle(&made(number).1));
    drop(journal);
    drop(writer.stop().await);
}

/// What the parent has been told.
#[derive(Default)]
struct Told {
    tried: BTreeSet<u64>,
    reserved: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

impl Told {
    fn line(&mut self, line: &str) -> Option<()> {
        // The test harness writes in front of the first line.
        let mut words = line.rsplit(' ');
        let number = words.next()?;
        let set = match words.next()? {
            "try" => &mut self.tried,
            "reserved" => &mut self.reserved,
            "refused" => &mut self.refused,
            "settled" => &mut self.settled,
            _ => return None,
        };
        set.insert(number.parse().ok()?);
        Some(())
    }
}

/// One life: killed after `lines` lines, or by the failpoint that is armed, or at its own end. Whether it died by the
/// failpoint.
fn life(state: &Path, seed: u64, told: &mut Told, armed: &str, lines: u64) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(STATE, state)
        .env(SEED, seed.to_string())
        .env(RETENTION, retention(seed, armed))
        .env("TIDEGATE_FAILPOINTS", armed)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut seen = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let Ok(line) = line else { break };
        seen += u64::from(told.line(&line).is_some());
        if seen == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap().signal() == Some(rustix::process::Signal::ABORT.as_raw())
}

/// Files are renamed only when they are kept for a while, and carried or deleted only when not.
fn retention(seed: u64, armed: &str) -> &'static str {
    let is_kept = armed.contains("settled") || (seed.is_multiple_of(2) && !armed.starts_with("ledger."));
    if is_kept { "61" } else { "0" }
}

async fn check(state: &Path, told: &Told, context: &str) {
    let store = Store::open_sqlite(&state.join("tidegate.db")).await.unwrap();
    let (journals, recovery) = Journals::open(&state.join("journal"), OPTIONS).unwrap();
    assert!(recovery.damage.iter().all(|damage| damage.torn), "{context}: {:?}", recovery.damage);
    let writer = LedgerWriter::start(store.clone(), &journals, &recovery, WriterOptions::default()).await.unwrap();
    let mut entries = BTreeMap::new();
    let mut query = EntryQuery { from: AT, until: Unix::from_ms(i64::MAX), after: None, limit: 1_000 };
    loop {
        let page = store.entries(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.after = Some((last.at, last.id));
        for entry in page {
            assert!(entries.insert(number_of(entry.id), entry).is_none(), "{context}: an id twice");
        }
    }
    for number in &told.reserved {
        assert!(entries.contains_key(number), "{context}: reservation {number} was acknowledged and is lost");
    }
    for (number, entry) in &entries {
        assert!(told.tried.contains(number), "{context}: {number} was never asked for");
        assert!(!told.refused.contains(number), "{context}: {number} was refused and is charged");
        let (reservation, finished) = made(*number);
        if *entry != finished {
            assert_eq!(entry, &Entry::orphan(&reservation), "{context}");
            assert!(!told.settled.contains(number), "{context}: the entry of {number} was acknowledged and is lost");
        }
    }
    let usage = UsageQuery {
        from: AT,
        until: Unix::from_ms(i64::MAX),
        group_by: GroupBy::default(),
        bucket: Bucket::Total,
        zone: jiff::tz::TimeZone::UTC,
        filter: UsageFilter::default(),
    };
    let sums = store.usage(&usage).await.unwrap();
    let charged: u64 = entries.values().map(Entry::tokens).sum();
    let orphaned = entries.values().filter(|entry| entry.outcome == Outcome::Orphaned).count() as u64;
    let found = sums.first().map(|row| (row.sums.requests, row.sums.tokens(), row.sums.orphaned)).unwrap_or_default();
    assert_eq!(found, (entries.len() as u64, charged, orphaned), "{context}: sums are not those of the entries");
    writer.stop().await.unwrap();
}

#[tokio::test]
async fn no_acknowledged_record_is_lost_or_doubled_by_kill_9_at_any_step() {
    let seeds = std::env::var(SEEDS).ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let mut died_at = BTreeSet::new();
    for seed in 0..seeds {
        let state = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        let mut told = Told::default();
        let mut context = format!("seed {seed}");
        for turn in 0..LIVES {
            // Every point in turn over the seeds, at a random passing; the life between is killed from outside.
            let turned = seed * 2 + turn / 2 + seed / 9;
            let point = failpoint::POINTS[(turned % failpoint::POINTS.len() as u64) as usize];
            let (armed, lines) = match turn {
                1 => (String::new(), 1 + random.below(STEPS)),
                _ => (format!("{point}=abort@{}", 1 + random.below(passings(point))), u64::MAX),
            };
            context = format!("{context}; `{armed}` {lines}");
            if life(state.path(), seed * LIVES + turn + 1, &mut told, &armed, lines) {
                died_at.insert(point);
            }
        }
        assert!(!told.tried.is_empty(), "{context}: the child did nothing");
        check(state.path(), &told, &context).await;
    }
    let spared: Vec<_> = failpoint::POINTS.iter().filter(|point| !died_at.contains(*point)).collect();
    assert!(seeds < 50 || spared.is_empty(), "nobody died at {spared:?}");
}

/// How often a life passes a point at least, or nearly so.
fn passings(point: &str) -> u64 {
    match point {
        "journal.create.before" | "journal.create.after" | "ledger.before_delete" | "ledger.after_delete" => 1,
        "journal.rotate.before" | "journal.rotate.after" | "ledger.before_carry" | "ledger.after_carry" => 1,
        "store.poll.before"
        | "store.append.before_insert"
        | "store.append.before_commit"
        | "store.append.after_commit" => 3,
        _ => 25,
    }
}
