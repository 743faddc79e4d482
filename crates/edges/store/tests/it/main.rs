//! The store and the journal from outside.

#![expect(clippy::unwrap_used, reason = "tests")]

mod conformance;
mod faults;
mod files;
mod kill;
mod recovery;
mod writer;

use std::path::Path;

use tidegate_core::{Entry, Reservation, Unix};
use tidegate_store::conformance::{entry, reservation};
use tidegate_store::{JournalOptions, Journals, Recovery};

/// 2026-11-30T10:53:20Z.
const AT: Unix = Unix::from_ms(1_764_500_000_000);

fn numbered(number: u64) -> (Reservation, Entry) {
    let at = Unix::from_ms(AT.ms + number as i64);
    (reservation(number, at), entry(number, at))
}

fn open(folder: &Path) -> (Journals, Recovery) {
    Journals::open(folder, JournalOptions::default()).unwrap()
}

/// The only journal file of a folder.
fn only_file(folder: &Path) -> std::path::PathBuf {
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}
