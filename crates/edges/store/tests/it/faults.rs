//! What fails is named, changes nothing, and loses nothing.

use tidegate_core::Reservation;
use tidegate_store::failpoint::{self, Action};
use tidegate_store::journal::{PENDING_MAX, TEXT_MAX};
use tidegate_store::{Durability, JournalError, JournalOptions, Journals};

use super::{numbered, open};

type IsNamed = fn(&JournalError) -> bool;

/// Every error of the disk, and the name it has to be given.
fn disk_errors() -> [(Action, IsNamed); 3] {
    [
        (Action::Full, |error| matches!(error, JournalError::DiskFull { .. })),
        (Action::ReadOnly, |error| matches!(error, JournalError::ReadOnly { .. })),
        (Action::Io, |error| matches!(error, JournalError::Io { .. })),
    ]
}

#[test]
fn a_reservation_that_is_not_written_has_not_happened() {
    // Before the write, and in the middle of it.
    for point in ["journal.reserve.before_write", "journal.write.torn"] {
        for (action, is_named) in disk_errors() {
            let folder = tempfile::tempdir().unwrap();
            let (journals, _) = open(folder.path());
            let mut journal = journals.journal(0).unwrap();
            let (first, settled) = numbered(1);
            drop(journal.reserve(&first).unwrap());
            journal.settle(&settled);
            failpoint::set(point, action, 1);
            let (refused, _) = numbered(2);
            let error = journal.reserve(&refused).map(|_| ()).unwrap_err();
            assert!(is_named(&error), "{point} {action:?}: {error}");
            assert!(journals.is_pressed() && journals.status().failing.is_some());
            failpoint::clear(point);
            let pending = journal.pending_bytes();
            assert!(pending > 0, "the settled entry waits");
            let (next, _) = numbered(3);
            drop(journal.reserve(&next).unwrap());
            assert!(!journals.is_pressed());
            drop((journal, journals));
            let (_, recovery) = open(folder.path());
            assert_eq!((recovery.entries, recovery.orphans, recovery.damage), (1, vec![next], vec![]), "{point}");
        }
    }
}

#[test]
fn a_crash_after_a_failed_write_finds_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (journals, _) = open(folder.path());
    let mut journal = journals.journal(0).unwrap();
    failpoint::set("journal.write.torn", Action::Full, 1);
    drop(journal.reserve(&numbered(1).0).unwrap_err());
    // The process dies here: nothing more is written, not even at the end.
    std::mem::forget(journal);
    drop(journals);
    let (_, recovery) = open(folder.path());
    assert_eq!((recovery.entries, recovery.orphans.len(), recovery.damage.len()), (0, 0, 0));
}

#[test]
fn entries_wait_in_memory_while_the_disk_fails_and_are_written_after() {
    let folder = tempfile::tempdir().unwrap();
    let (journals, _) = open(folder.path());
    let mut journal = journals.journal(0).unwrap();
    for number in 0..50 {
        drop(journal.reserve(&numbered(number).0).unwrap());
    }
    failpoint::set("journal.flush.before_write", Action::Full, 1);
    for number in 0..50 {
        journal.settle(&numbered(number).1);
        assert!(matches!(journal.flush(), Err(JournalError::DiskFull { .. })));
    }
    failpoint::clear("journal.flush.before_write");
    journal.flush().unwrap();
    assert_eq!(journal.pending_bytes(), 0);
    drop((journal, journals));
    let (_, recovery) = open(folder.path());
    assert_eq!((recovery.entries, recovery.orphans.len()), (50, 0));
}

#[test]
fn memory_is_bounded_by_giving_up_refusals_never_charges() {
    let folder = tempfile::tempdir().unwrap();
    let (journals, _) = open(folder.path());
    let mut journal = journals.journal(0).unwrap();
    failpoint::set("journal.flush.before_write", Action::Full, 1);
    let refusal = tidegate_core::Entry { reserved_tokens: 0, ..numbered(8).1 };
    while journal.pending_bytes() < PENDING_MAX {
        journal.settle(&refusal);
    }
    assert_eq!(journals.status().dropped_entries, 0);
    let full = journal.pending_bytes();
    journal.settle(&refusal);
    assert_eq!((journal.pending_bytes(), journals.status().dropped_entries), (full, 1));
    journal.settle(&numbered(3).1);
    assert!(journal.pending_bytes() > full, "a charge is kept");
}

#[test]
fn names_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (journals, _) = open(folder.path());
    let mut journal = journals.journal(0).unwrap();
    let named = |len: usize| Reservation { alias: "x".repeat(len).into(), ..numbered(1).0 };
    drop(journal.reserve(&named(TEXT_MAX)).unwrap());
    let error = journal.reserve(&named(TEXT_MAX + 1)).map(|_| ()).unwrap_err();
    assert!(matches!(error, JournalError::TooLong { field: "alias" }), "{error}");
    // An entry is never refused: what the caller asked for is cut, at a character.
    let asked = format!("{}é", "x".repeat(TEXT_MAX - 1));
    journal.settle(&tidegate_core::Entry { alias: Some(asked.as_str().into()), ..numbered(8).1 });
    drop((journal, journals));
    let (_, recovery) = open(folder.path());
    assert_eq!((recovery.entries, recovery.orphans.len(), recovery.damage.len()), (1, 1, 0));
}

#[test]
fn a_full_disk_stops_reservations_at_the_end_of_a_file_and_settles_still_fit() {
    let folder = tempfile::tempdir().unwrap();
    let options = JournalOptions { segment_bytes: 80 << 10, ..JournalOptions::default() };
    let (journals, _) = Journals::open(folder.path(), options).unwrap();
    let mut journal = journals.journal(0).unwrap();
    // From now on no file can be made; the first one is preallocated.
    failpoint::set("journal.create.before", Action::Full, 1);
    let mut reserved = 0;
    let error = loop {
        match journal.reserve(&numbered(reserved).0) {
            Ok(_) => reserved += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JournalError::DiskFull { .. }), "{error}");
    assert!(reserved > 500 && journals.is_pressed(), "{reserved}");
    for number in 0..reserved {
        journal.settle(&numbered(number).1);
    }
    // No new file, but everything is written.
    assert!(matches!(journal.flush(), Err(JournalError::DiskFull { .. })));
    assert_eq!(journal.pending_bytes(), 0);
    failpoint::clear("journal.create.before");
    // Tried again by the tick, not by every request.
    assert!(matches!(journal.reserve(&numbered(reserved).0), Err(JournalError::DiskFull { .. })));
    journal.flush().unwrap();
    drop(journal.reserve(&numbered(reserved).0).unwrap());
    assert!(!journals.is_pressed());
    drop((journal, journals));
    let (_, recovery) = open(folder.path());
    assert_eq!((recovery.entries, recovery.orphans.len()), (reserved, 1));
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Journals::open(&file.join("journal"), JournalOptions::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("make the folder"), "{error}");
}

/// Not a test by itself: the syncing thread is another one, so the point is armed by the environment of a process.
#[tokio::test]
async fn child_with_a_disk_that_does_not_sync() {
    let Ok(folder) = std::env::var("TIDEGATE_SYNC_FOLDER") else { return };
    let options = JournalOptions { durability: Durability::Power, ..JournalOptions::default() };
    let (journals, _) = Journals::open(folder.as_ref(), options).unwrap();
    let mut journal = journals.journal(0).unwrap();
    let commits = [journal.reserve(&numbered(1).0).unwrap(), journal.reserve(&numbered(2).0).unwrap()];
    for commit in commits {
        assert!(matches!(commit.wait().await, Err(JournalError::NotSynced)));
    }
    assert!(journals.status().sync_failures > 0);
    // What the kernel may have forgotten is not trusted again: the core goes on in a new file.
    journal.flush().unwrap();
    assert_eq!(journals.status().segments, 2);
}

#[test]
fn a_disk_that_does_not_sync_refuses_the_requests_that_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child_with_a_disk_that_does_not_sync"])
        .env("TIDEGATE_SYNC_FOLDER", folder.path())
        .env("TIDEGATE_FAILPOINTS", "journal.sync.before=error:io")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && out.contains("1 passed"), "{out}");
    // Both reservations are in the files: the requests were refused, so they are settled or charged, never forgotten.
    let (_, recovery) = open(folder.path());
    assert_eq!(recovery.orphans.len(), 2);
}
