//! What the ledger costs: CPU and time per row of the journal's hot path, of reading it back and of the store.
//!
//! `cargo run --release -p tidegate-store --example throughput [rows]`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints a table and may stop at an error")]

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidegate_core::{Entry, Outcome, RequestId, Reservation, Unix, UsageSource};
use tidegate_store::store::{Bucket, GroupBy, UsageFilter, UsageQuery};
use tidegate_store::{JournalOptions, Journals, LedgerWriter, Store, WriterOptions};

const BATCH: usize = 2_048;

fn reservation(number: u64) -> Reservation {
    Reservation {
        id: RequestId::new(1_764_500_000_000 + number, u128::from(number)),
        at: Unix::from_ms(1_764_500_000_000 + number as i64),
        issuer: "keyring".into(),
        caller: format!("caller-{}", number % 50).as_str().into(),
        team: "discovery".into(),
        key: Some("0a1B2c3D".into()),
        alias: "glm-flash".into(),
        prompt_tokens: 1_234,
        output_tokens: 2_000,
    }
}

fn entry(number: u64) -> Entry {
    Entry {
        request_id: format!("req_{:026}", number).into(),
        endpoint: "/v1/chat/completions".into(),
        model: Some("glm-5.3-flash".into()),
        deployment: Some("glm-5.3-flash-fp8-v3".into()),
        replica: Some("glm-5.3-flash-fp8-v3/0".into()),
        engine_id: Some(format!("chatcmpl-{number:032x}").into()),
        outcome: Outcome::Ok,
        fault: None,
        status: 200,
        streamed: true,
        attempts: 1,
        source: UsageSource::Engine,
        cached_tokens: 512,
        output_tokens: 345,
        queue_us: 120,
        ttft_us: Some(180_000),
        total_us: 2_500_000,
        ..Entry::orphan(&reservation(number))
    }
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measured(name: &str, rows: u64, run: impl FnOnce()) {
    let (cpu_before, begun) = (cpu(), Instant::now());
    run();
    report(name, rows, cpu() - cpu_before, begun.elapsed());
}

fn report(name: &str, rows: u64, cpu: Duration, wall: Duration) {
    let per_row = |time: Duration| time.as_secs_f64() * 1e6 / rows as f64;
    let per_second = rows as f64 / wall.as_secs_f64();
    println!("{name:<44} {:>8.3} µs CPU  {:>8.3} µs wall  {per_second:>10.0} rows/s", per_row(cpu), per_row(wall));
}

fn main() {
    let rows = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000_u64);
    let folder = std::env::temp_dir().join(format!("tidegate-throughput-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    println!("{rows} rows, batches of {BATCH}, in {}", folder.display());
    append_alone(&folder.join("a"), rows, &runtime);
    journal_and_writer(&folder.join("b"), rows, &runtime);
    queries(&folder.join("c"), rows, &runtime);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Entries of 30 days, 50 callers and 4 aliases: what a page of usage and a start cost.
fn queries(folder: &Path, rows: u64, runtime: &tokio::runtime::Runtime) {
    std::fs::create_dir_all(folder).unwrap();
    let store = runtime.block_on(Store::open_sqlite(&folder.join("tidegate.db"))).unwrap();
    let step = 30 * 86_400_000 / rows;
    for batch in (0..rows).collect::<Vec<_>>().chunks(BATCH) {
        let entries: Vec<_> = batch
            .iter()
            .map(|number| {
                let alias = format!("alias-{}", number % 4);
                let id = RequestId::new(1_764_500_000_000 + number * step, u128::from(*number));
                let at = Unix::from_ms(1_764_500_000_000 + (number * step) as i64);
                Entry { id, at, alias: Some(alias.as_str().into()), ..entry(*number) }
            })
            .collect();
        runtime.block_on(store.append(&entries)).unwrap();
    }
    let query = |bucket, group_by| UsageQuery {
        from: Unix::from_ms(1_764_500_000_000),
        until: Unix::from_ms(1_764_500_000_000 + 30 * 86_400_000),
        group_by,
        bucket,
        zone: jiff::tz::TimeZone::get("Asia/Seoul").unwrap(),
        filter: UsageFilter::default(),
    };
    let everything = GroupBy { team: true, caller: true, key: true, alias: true, model: true };
    for (name, bucket, group_by) in [
        ("usage of 30 days, one row", Bucket::Total, GroupBy::default()),
        ("usage of 30 days by caller and alias", Bucket::Total, GroupBy { caller: true, alias: true, ..everything }),
        ("usage of 30 days by day and everything", Bucket::Day, everything),
        ("usage of 30 days by hour", Bucket::Hour, GroupBy::default()),
    ] {
        let begun = Instant::now();
        let rows = runtime.block_on(store.usage(&query(bucket, group_by))).unwrap();
        println!("{name:<44} {:>8.1} ms, {} rows", begun.elapsed().as_secs_f64() * 1e3, rows.len());
    }
    let begun = Instant::now();
    for level in tidegate_core::Level::ALL {
        runtime.block_on(store.period_sums(level, Unix::from_ms(1_764_500_000_000))).unwrap();
    }
    println!("{:<44} {:>8.1} ms", "quota sums of 30 days, all five levels", begun.elapsed().as_secs_f64() * 1e3);
    runtime.block_on(store.close());
}

fn journal_and_writer(folder: &Path, rows: u64, runtime: &tokio::runtime::Runtime) {
    std::fs::create_dir_all(folder).unwrap();
    let store = runtime.block_on(Store::open_sqlite(&folder.join("tidegate.db"))).unwrap();
    let (journals, recovery) = Journals::open(&folder.join("journal"), JournalOptions::default()).unwrap();
    let idle = WriterOptions { interval: Duration::from_secs(3_600), ..WriterOptions::default() };
    let writer = runtime.block_on(LedgerWriter::start(store.clone(), &journals, &recovery, idle)).unwrap();
    let mut journal = journals.journal(0).unwrap();
    let reservations: Vec<_> = (0..rows).map(reservation).collect();
    let entries: Vec<_> = (0..rows).map(entry).collect();
    measured("journal: reserve + settle, one write", rows, || {
        for (reservation, entry) in reservations.iter().zip(&entries) {
            drop(journal.reserve(reservation).unwrap());
            journal.settle(entry);
        }
        journal.flush().unwrap();
    });
    measured("writer: journal read, decoded, committed", rows, || runtime.block_on(writer.drain()).unwrap());
    measured("journal: settle alone (encode, no write)", rows, || {
        for (number, entry) in entries.iter().enumerate() {
            journal.settle(entry);
            if number % 4_096 == 4_095 {
                journal.flush().unwrap();
            }
        }
        journal.flush().unwrap();
    });
    println!("{:?}", writer.status());
    println!("{:?}", journals.status());
    runtime.block_on(store.close());
}

fn append_alone(folder: &Path, rows: u64, runtime: &tokio::runtime::Runtime) {
    std::fs::create_dir_all(folder).unwrap();
    let store = runtime.block_on(Store::open_sqlite(&folder.join("tidegate.db"))).unwrap();
    let entries: Vec<_> = (0..rows).map(entry).collect();
    measured("store: append, one transaction per batch", rows, || {
        for batch in entries.chunks(BATCH) {
            runtime.block_on(store.append(batch)).unwrap();
        }
    });
    measured("store: the same again (all duplicates)", rows, || {
        for batch in entries.chunks(BATCH) {
            runtime.block_on(store.append(batch)).unwrap();
        }
    });
    let size = std::fs::metadata(folder.join("tidegate.db")).unwrap().len();
    println!("{} bytes of database per row", size / rows);
    runtime.block_on(store.close());
}
