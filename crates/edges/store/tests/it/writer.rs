//! From the journals into the store: everything once, whatever fails in between.

use std::path::Path;
use std::time::Duration;

use tidegate_core::{Entry, Level, Outcome, Unix};
use tidegate_store::clock::{BootId, Now};
use tidegate_store::failpoint::{self, Action};
use tidegate_store::store::EntryQuery;
use tidegate_store::{Durability, JournalError, JournalOptions, Journals, LedgerWriter, Store, WriterOptions};

use super::{AT, numbered};

/// Only when asked.
const BY_HAND: WriterOptions = WriterOptions {
    interval: Duration::from_secs(3_600),
    retry_min: Duration::from_secs(3_600),
    retry_max: Duration::from_secs(3_600),
};

struct House {
    store: Store,
    journals: Journals,
    writer: LedgerWriter,
}

impl House {
    async fn open(state: &Path, options: JournalOptions) -> Self {
        let store = Store::open_sqlite(&state.join("tidegate.db")).await.unwrap();
        let (journals, recovery) = Journals::open(&state.join("journal"), options).unwrap();
        let writer = LedgerWriter::start(store.clone(), &journals, &recovery, BY_HAND).await.unwrap();
        Self { store, journals, writer }
    }

    async fn entries(&self) -> Vec<Entry> {
        let query = EntryQuery { from: AT, until: Unix::from_ms(i64::MAX), after: None, limit: 1_000 };
        self.store.entries(&query).await.unwrap()
    }

    fn files(state: &Path) -> usize {
        std::fs::read_dir(state.join("journal")).unwrap().count()
    }
}

const SMALL: JournalOptions = JournalOptions {
    durability: Durability::Process,
    segment_bytes: 80 << 10,
    spool_bytes: 1 << 30,
    sync_interval: Duration::from_millis(50),
    retention: Duration::from_secs(61),
};

#[tokio::test]
async fn entries_of_several_cores_and_files_reach_the_store_once() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), SMALL).await;
    let mut journals = [house.journals.journal(0).unwrap(), house.journals.journal(1).unwrap()];
    let mut expected = Vec::new();
    for number in 0..900_u64 {
        let journal = &mut journals[(number % 2) as usize];
        let (reservation, entry) = numbered(number);
        drop(journal.reserve(&reservation).unwrap());
        journal.settle(&entry);
        if number.is_multiple_of(50) {
            journals.iter_mut().for_each(|journal| journal.flush().unwrap());
        }
        if number.is_multiple_of(333) {
            house.writer.drain().await.unwrap();
        }
        expected.push(entry);
    }
    drop(journals);
    house.writer.drain().await.unwrap();
    assert!(house.journals.status().segments > 4);
    assert_eq!(house.entries().await, expected);
    let status = house.writer.status();
    assert_eq!((status.inserted, status.duplicates, status.failures, status.failing), (900, 0, 0, None));
    assert_eq!(house.journals.status().waiting_bytes, 0);
    house.writer.stop().await.unwrap();
}

#[tokio::test]
async fn orphans_are_charged_at_their_estimate_once_however_often_the_process_dies() {
    let state = tempfile::tempdir().unwrap();
    for round in 0..4_u64 {
        let house = House::open(state.path(), SMALL).await;
        let mut journal = house.journals.journal(0).unwrap();
        let (finished, entry) = numbered(round * 10 + 3);
        drop(journal.reserve(&finished).unwrap());
        journal.settle(&entry);
        drop(journal.reserve(&numbered(round * 10 + 4).0).unwrap());
        // Dies with one request finished, one in flight, and nothing brought into the store.
        std::mem::forget(journal);
    }
    let house = House::open(state.path(), SMALL).await;
    let entries = house.entries().await;
    assert_eq!(entries.len(), 8);
    for entry in &entries {
        let number = entry.id.to_bits() as u64 & 0xFF;
        let (reservation, finished) = numbered(number);
        let expected = if number % 10 == 3 { finished } else { Entry::orphan(&reservation) };
        assert_eq!(entry, &expected);
    }
    let charged: u64 = entries.iter().map(Entry::tokens).sum();
    let sums = house.store.period_sums(Level::Team, AT).await.unwrap();
    assert_eq!(sums.iter().map(|sum| sum.tokens).sum::<u64>(), charged);
    assert_eq!(entries.iter().filter(|entry| entry.outcome == Outcome::Orphaned).count(), 4);
}

#[tokio::test]
async fn a_store_that_is_away_delays_entries_and_loses_none() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), SMALL).await;
    let mut journal = house.journals.journal(0).unwrap();
    // The writer's task runs on this thread, so the point holds for it.
    failpoint::set("store.append.before_insert", Action::Full, 1);
    for number in 0..700 {
        let (reservation, entry) = numbered(number);
        drop(journal.reserve(&reservation).unwrap());
        journal.settle(&entry);
        journal.flush().unwrap();
        if number.is_multiple_of(100) {
            let error = house.writer.drain().await.unwrap_err();
            assert!(error.contains("no space is left"), "{error}");
        }
    }
    let status = house.writer.status();
    assert_eq!((status.inserted, status.failures), (0, 7));
    assert!(status.failing.is_some() && status.failing_since.is_some());
    assert!(house.journals.status().waiting_bytes > 100_000);
    failpoint::clear("store.append.before_insert");
    house.writer.drain().await.unwrap();
    assert_eq!(house.entries().await.len(), 700);
    assert_eq!(house.writer.status().failing, None);
    assert_eq!(house.journals.status().waiting_bytes, 0);
}

#[tokio::test]
async fn a_full_spool_refuses_reservations_before_anything_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let options = JournalOptions { spool_bytes: 64 << 10, ..SMALL };
    let house = House::open(state.path(), options).await;
    let mut journal = house.journals.journal(0).unwrap();
    failpoint::set("store.append.before_insert", Action::Io, 1);
    let mut reserved = 0;
    let mut pressed_at = None;
    let error = loop {
        let (reservation, entry) = numbered(reserved);
        match journal.reserve(&reservation) {
            Ok(_) => reserved += 1,
            Err(error) => break error,
        }
        journal.settle(&entry);
        journal.flush().unwrap();
        drop(house.writer.drain().await);
        if journal.is_pressed() && pressed_at.is_none() {
            pressed_at = Some(house.journals.status().waiting_bytes);
        }
    };
    let JournalError::SpoolFull { waiting_bytes, spool_bytes: 65_536 } = error else { unreachable!("{error}") };
    assert!((65_536..67_000).contains(&waiting_bytes), "{waiting_bytes}");
    let pressed_at = pressed_at.unwrap();
    assert!((58_983..61_000).contains(&pressed_at), "at 90 %, not at {pressed_at}");
    failpoint::clear("store.append.before_insert");
    house.writer.drain().await.unwrap();
    drop(journal.reserve(&numbered(reserved).0).unwrap());
    assert!(!journal.is_pressed());
    assert_eq!(house.entries().await.len() as u64, reserved);
}

#[tokio::test]
async fn files_go_when_the_store_has_everything_in_them_and_the_minute_is_over() {
    let state = tempfile::tempdir().unwrap();
    let long_ago = Now { wall: AT, boottime_ns: 1, boot: BootId::UNKNOWN };
    let dead = |numbers: std::ops::Range<u64>, now: &Now| {
        let (journals, _) = Journals::open_at(&state.path().join("journal"), SMALL, now).unwrap();
        let mut journal = journals.journal(0).unwrap();
        for number in numbers {
            let (reservation, entry) = numbered(number);
            drop(journal.reserve(&reservation).unwrap());
            journal.settle(&entry);
        }
    };
    dead(0..5, &long_ago);
    dead(5..5, &long_ago);
    assert_eq!(House::files(state.path()), 2);
    let house = House::open(state.path(), SMALL).await;
    assert_eq!((house.entries().await.len(), House::files(state.path())), (5, 0), "old and empty files are gone");
    // A file of the last minute stays for the limits' windows.
    let mut journal = house.journals.journal(0).unwrap();
    let at = tidegate_store::clock::wall();
    let (reservation, entry) = numbered(7);
    drop(journal.reserve(&tidegate_core::Reservation { at, ..reservation }).unwrap());
    journal.settle(&entry);
    drop(journal);
    house.writer.stop().await.unwrap();
    drop(house.journals);
    let house = House::open(state.path(), SMALL).await;
    assert_eq!((house.entries().await.len(), House::files(state.path())), (6, 1));
}

fn names(state: &Path) -> Vec<String> {
    let files = std::fs::read_dir(state.join("journal")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// Fills one file with requests that are done, so that the next one is begun.
fn fill(journal: &mut tidegate_store::Journal, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (reservation, entry) = numbered(number);
        drop(journal.reserve(&reservation).unwrap());
        journal.settle(&entry);
    }
    journal.flush().unwrap();
}

#[tokio::test]
async fn a_file_waits_for_its_last_request_however_many_follow() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), JournalOptions { retention: Duration::ZERO, ..SMALL }).await;
    let mut journal = house.journals.journal(0).unwrap();
    let (long, end) = numbered(5_003);
    drop(journal.reserve(&long).unwrap());
    // A fallback reserves again: the first is no longer waited for.
    drop(journal.reserve(&tidegate_core::Reservation { alias: "fallback".into(), ..long }).unwrap());
    for round in 0..3 {
        fill(&mut journal, round * 100..round * 100 + 100);
        house.writer.drain().await.unwrap();
    }
    let first = "000000000001-0000.journal";
    assert_eq!(names(state.path()), [first, "000000000004-0000.journal"]);
    journal.settle(&end);
    journal.flush().unwrap();
    house.writer.drain().await.unwrap();
    assert_eq!(names(state.path()), ["000000000004-0000.journal"]);
    assert_eq!(house.entries().await.len(), 301);
}

#[tokio::test]
async fn a_few_long_answers_do_not_keep_many_files() {
    let state = tempfile::tempdir().unwrap();
    let options = JournalOptions { retention: Duration::ZERO, ..SMALL };
    let house = House::open(state.path(), options).await;
    let mut journal = house.journals.journal(0).unwrap();
    let mut most = 0;
    for round in 0..40 {
        drop(journal.reserve(&numbered(5_003 + round * 8).0).unwrap());
        fill(&mut journal, round * 80..round * 80 + 80);
        house.writer.drain().await.unwrap();
        most = most.max(House::files(state.path()));
    }
    assert!((9..=11).contains(&most), "{most} files at most");
    // Half of them end, the process dies, the others are charged at their estimate; nothing is lost or doubled.
    for round in 0..20 {
        journal.settle(&numbered(5_003 + round * 8).1);
    }
    journal.flush().unwrap();
    house.writer.drain().await.unwrap();
    std::mem::forget(journal);
    let store = house.store.clone();
    drop(house);
    let (journals, recovery) = Journals::open(&state.path().join("journal"), options).unwrap();
    let orphans: Vec<_> = (20..40).map(|round| numbered(5_003 + round * 8).0).collect();
    assert_eq!(recovery.orphans.iter().filter(|orphan| orphans.contains(orphan)).count(), 20);
    let writer = LedgerWriter::start(store.clone(), &journals, &recovery, BY_HAND).await.unwrap();
    writer.drain().await.unwrap();
    for round in 0..40 {
        let (reservation, entry) = numbered(5_003 + round * 8);
        let expected = if round < 20 { entry } else { Entry::orphan(&reservation) };
        assert_eq!(store.entry(expected.id).await.unwrap(), Some(expected));
    }
    let sums = store.period_sums(Level::Team, AT).await.unwrap();
    let done: u64 = (0..3_200).map(|number| numbered(number).1.tokens()).sum();
    let ended: u64 = (0..20).map(|round| numbered(5_003 + round * 8).1.tokens()).sum();
    let estimates: u64 = orphans.iter().map(|orphan| orphan.prompt_tokens + orphan.output_tokens).sum();
    assert_eq!(sums.iter().map(|sum| sum.tokens).sum::<u64>(), done + ended + estimates);
    assert_eq!(names(state.path()), Vec::<String>::new());
}

#[tokio::test]
async fn carried_reservations_go_with_their_entries() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), JournalOptions { retention: Duration::ZERO, ..SMALL }).await;
    let mut journal = house.journals.journal(0).unwrap();
    let long = |round: u64| numbered(5_003 + round * 8);
    for round in 0..20 {
        drop(journal.reserve(&long(round).0).unwrap());
        fill(&mut journal, round * 80..round * 80 + 80);
        house.writer.drain().await.unwrap();
    }
    assert!(House::files(state.path()) > 1);
    (0..20).for_each(|round| journal.settle(&long(round).1));
    journal.flush().unwrap();
    house.writer.drain().await.unwrap();
    assert_eq!(House::files(state.path()), 1, "the one that is written: {:?}", names(state.path()));
}

#[tokio::test]
async fn a_start_after_an_orderly_stop_reads_the_last_minute_and_offers_nothing_again() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), SMALL).await;
    let mut journal = house.journals.journal(0).unwrap();
    // Its entry comes to lie in another file.
    drop(journal.reserve(&numbered(1_003).0).unwrap());
    for number in 0..500 {
        let (reservation, entry) = numbered(number);
        drop(journal.reserve(&reservation).unwrap());
        journal.settle(&entry);
        journal.flush().unwrap();
    }
    journal.settle(&numbered(1_003).1);
    drop(journal);
    house.writer.stop().await.unwrap();
    drop(house.journals);
    for _ in 0..2 {
        let (journals, recovery) = Journals::open(&state.path().join("journal"), SMALL).unwrap();
        assert_eq!((recovery.admissions.len(), recovery.orphans.len(), recovery.entries), (501, 0, 501));
        assert!(recovery.admissions.iter().all(|admission| admission.settled_tokens.is_some()));
        let writer = LedgerWriter::start(house.store.clone(), &journals, &recovery, BY_HAND).await.unwrap();
        assert_eq!((writer.status().inserted, writer.status().duplicates), (0, 0));
        assert_eq!(journals.status().waiting_bytes, 0);
    }
    // Of several files one is gone already: what the others hold is settled all the same.
    let files = names(state.path());
    assert!(files.len() > 2 && files.iter().all(|name| name.ends_with(".settled")), "{files:?}");
    std::fs::remove_file(state.path().join("journal").join(files.last().unwrap())).unwrap();
    let (journals, recovery) = Journals::open(&state.path().join("journal"), SMALL).unwrap();
    assert_eq!(recovery.orphans, []);
    drop(journals);
    // Two minutes later nobody needs them.
    let real = Now::read();
    let later = Now { boottime_ns: real.boottime_ns + 120_000_000_000, ..real };
    let (journals, recovery) = Journals::open_at(&state.path().join("journal"), SMALL, &later).unwrap();
    let _writer = LedgerWriter::start(house.store.clone(), &journals, &recovery, BY_HAND).await.unwrap();
    assert_eq!(names(state.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_damaged_file_is_kept_for_the_operator_and_never_read_again() {
    let state = tempfile::tempdir().unwrap();
    let journal_folder = state.path().join("journal");
    {
        let (journals, _) = Journals::open(&journal_folder, SMALL).unwrap();
        let mut journal = journals.journal(0).unwrap();
        for number in 0..3 {
            drop(journal.reserve(&tidegate_core::Reservation { at: AT, ..numbered(number).0 }).unwrap());
        }
    }
    let file = super::only_file(&journal_folder);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = 64 + (bytes.len() - 64) / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&file, &bytes).unwrap();
    // Of another boot, long ago: nobody needs its admissions.
    let now = Now { boot: BootId::UNKNOWN, ..Now::read() };
    let store = Store::open_sqlite(&state.path().join("tidegate.db")).await.unwrap();
    let (journals, recovery) = Journals::open_at(&journal_folder, SMALL, &now).unwrap();
    assert_eq!((recovery.orphans.len(), recovery.damage.len()), (1, 1));
    let writer = LedgerWriter::start(store.clone(), &journals, &recovery, BY_HAND).await.unwrap();
    assert_eq!(writer.status().inserted, 1);
    assert_eq!(super::only_file(&journal_folder).extension().unwrap(), "corrupt");
}

#[tokio::test]
async fn what_is_waiting_at_power_durability_is_synced_together() {
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), JournalOptions { durability: Durability::Power, ..SMALL }).await;
    let mut journal = house.journals.journal(0).unwrap();
    let mut commits = Vec::new();
    for number in 0..100 {
        commits.push(journal.reserve(&numbered(number).0).unwrap());
    }
    for commit in commits {
        commit.wait().await.unwrap();
    }
    assert_eq!(house.journals.status().sync_failures, 0);
}

#[tokio::test]
async fn the_writer_brings_entries_by_itself() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open_sqlite(&state.path().join("tidegate.db")).await.unwrap();
    let (journals, recovery) = Journals::open(&state.path().join("journal"), SMALL).unwrap();
    let options = WriterOptions { interval: Duration::from_millis(5), ..WriterOptions::default() };
    let writer = LedgerWriter::start(store.clone(), &journals, &recovery, options).await.unwrap();
    let mut journal = journals.journal(0).unwrap();
    let (reservation, entry) = numbered(3);
    drop(journal.reserve(&reservation).unwrap());
    journal.settle(&entry);
    journal.flush().unwrap();
    while store.entry(entry.id).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    writer.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_while_the_cores_go_on_writing() {
    const WRITTEN_MAX: u64 = 400_000;
    let state = tempfile::tempdir().unwrap();
    let house = House::open(state.path(), JournalOptions { segment_bytes: 8 << 20, ..SMALL }).await;
    let mut journal = house.journals.journal(0).unwrap();
    fill(&mut journal, 0..100);
    let drained = std::sync::atomic::AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut number = 100;
            while !drained.load(std::sync::atomic::Ordering::Relaxed) && number < WRITTEN_MAX {
                fill(&mut journal, number..number + 10);
                number += 10;
            }
            number
        });
        let here = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| here.block_on(house.writer.drain())).unwrap();
        drained.store(true, std::sync::atomic::Ordering::Relaxed);
        writing.join().unwrap()
    });
    assert!(rounds < WRITTEN_MAX, "the drain went on for as long as there was anything new");
    drop(journal);
    house.writer.drain().await.unwrap();
    assert_eq!(house.writer.status().inserted, rounds);
    house.writer.stop().await.unwrap();
}
