//! What a dead process left is read back to its last whole record, whatever happened to the bytes behind it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Entry, RequestId, Reservation, Unix};
use tidegate_store::clock::{BootId, Now};
use tidegate_store::{JournalOptions, Journals, Recovery};

use super::{AT, numbered, only_file, open};

/// What is done to a journal: reservations are numbered, settles name one of them.
#[derive(Clone, Debug)]
enum Step {
    Reserve,
    Settle(prop::sample::Index),
    /// An entry without a reservation, as a refusal has.
    Refuse,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Reserve),
        2 => any::<prop::sample::Index>().prop_map(Step::Settle),
        1 => Just(Step::Refuse),
    ];
    prop::collection::vec(step, 1..14)
}

#[derive(Clone, Debug)]
enum Written {
    Reservation(Reservation),
    Entry(Entry),
}

/// Does the steps, each written by itself; every record with the offset of its end.
fn write(folder: &Path, steps: &[Step]) -> Vec<(u64, Written)> {
    let (journals, _) = open(folder);
    let mut journal = journals.journal(0).unwrap();
    let mut open = Vec::new();
    let mut written = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let (reservation, entry) = numbered(number as u64);
        let record = match step {
            Step::Reserve => {
                drop(journal.reserve(&reservation).unwrap());
                open.push(number as u64);
                Written::Reservation(reservation)
            }
            Step::Settle(index) if !open.is_empty() => {
                let (_, entry) = numbered(open.remove(index.index(open.len())));
                journal.settle(&entry);
                Written::Entry(entry)
            }
            Step::Settle(_) | Step::Refuse => {
                journal.settle(&entry);
                Written::Entry(entry)
            }
        };
        journal.flush().unwrap();
        written.push((64 + journals.status().written_bytes, record));
    }
    written
}

/// What has to be found when only the records that end at or before `valid` are there.
fn expected(written: &[(u64, Written)], valid: u64) -> (BTreeSet<RequestId>, u64) {
    let mut orphans = BTreeSet::new();
    let mut entries = 0;
    for (_, record) in written.iter().filter(|(end, _)| *end <= valid) {
        match record {
            Written::Reservation(reservation) => {
                orphans.insert(reservation.id);
            }
            Written::Entry(entry) => {
                orphans.remove(&entry.id);
                entries += 1;
            }
        }
    }
    (orphans, entries)
}

fn found(recovery: &Recovery) -> (BTreeSet<RequestId>, u64) {
    (recovery.orphans.iter().map(|reservation| reservation.id).collect(), recovery.entries)
}

/// Recovers from a folder that holds these bytes as its only file.
fn recover(name: &std::ffi::OsStr, bytes: &[u8]) -> Recovery {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), bytes).unwrap();
    let (journals, recovery) = open(folder.path());
    journals.close();
    recovery
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_file_cut_anywhere_gives_exactly_the_records_before_the_cut(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &steps);
        let file = only_file(folder.path());
        let bytes = std::fs::read(&file).unwrap();
        prop_assert_eq!(bytes.len() as u64, written.last().unwrap().0);
        for cut in 0..=bytes.len() {
            let recovery = recover(file.file_name().unwrap(), &bytes[..cut]);
            prop_assert_eq!(found(&recovery), expected(&written, cut as u64), "cut at {}", cut);
            let is_whole = cut == 0 || written.iter().any(|(end, _)| *end == cut as u64) || cut == 64;
            prop_assert_eq!(recovery.damage.is_empty(), is_whole, "cut at {}", cut);
            if cut >= 64 {
                prop_assert!(recovery.damage.iter().all(|damage| damage.torn), "cut at {}", cut);
            }
        }
    }

    #[test]
    fn a_flipped_byte_gives_exactly_the_records_before_it(steps in steps(), mask in 1_u8..) {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &steps);
        let file = only_file(folder.path());
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= mask;
            let recovery = recover(file.file_name().unwrap(), &bytes);
            // A record that ends at or before the flipped byte is untouched; with a broken header nothing is used.
            let valid = if at < 64 { 0 } else { at as u64 };
            prop_assert_eq!(found(&recovery), expected(&written, valid), "flipped at {}", at);
            prop_assert_eq!(recovery.damage.len(), 1, "flipped at {}", at);
        }
    }

    #[test]
    fn any_bytes_behind_the_records_change_nothing(steps in steps(), junk in prop::collection::vec(any::<u8>(), 1..200)) {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &steps);
        let file = only_file(folder.path());
        let mut bytes = std::fs::read(&file).unwrap();
        let end = bytes.len() as u64;
        bytes.extend_from_slice(&junk);
        prop_assert_eq!(found(&recover(file.file_name().unwrap(), &bytes)), expected(&written, end));
    }

    #[test]
    fn a_file_of_any_bytes_is_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(found(&recover("1-0.journal".as_ref(), &bytes)), (BTreeSet::new(), 0));
    }
}

#[test]
fn zeros_behind_the_records_are_a_write_that_was_cut_short() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[Step::Reserve, Step::Refuse]);
    let file = only_file(folder.path());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.resize(bytes.len() + 4096, 0);
    let recovery = recover(file.file_name().unwrap(), &bytes);
    assert_eq!((recovery.orphans.len(), recovery.entries), (1, 1));
    assert!(recovery.damage[0].torn);
}

#[test]
fn a_file_of_a_later_version_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[Step::Reserve]);
    let file = only_file(folder.path());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[6] = 2;
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let refused = Journals::open(folder.path(), JournalOptions::default()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("later version (format 2)"), "{refused}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[test]
fn a_fallbacks_reservation_replaces_the_first_of_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = numbered(3);
    let second = Reservation { alias: "fallback".into(), output_tokens: 7, ..first.clone() };
    let (journals, _) = open(folder.path());
    let mut journal = journals.journal(0).unwrap();
    for reservation in [&first, &second] {
        drop(journal.reserve(reservation).unwrap());
    }
    drop((journal, journals));
    let (_, recovery) = open(folder.path());
    assert_eq!(recovery.orphans, std::slice::from_ref(&second));
    assert_eq!(recovery.admissions.iter().map(|admission| &admission.reservation).collect::<Vec<_>>(), [&second]);
}

/// A process that writes one reservation, settles half of them, and dies.
fn leave(folder: &Path, now: &Now, numbers: std::ops::Range<u64>) {
    let (journals, _) = Journals::open_at(folder, JournalOptions::default(), now).unwrap();
    let mut journal = journals.journal(0).unwrap();
    for number in numbers {
        let (reservation, entry) = numbered(number);
        let reservation = Reservation { at: now.wall, ..reservation };
        drop(journal.reserve(&reservation).unwrap());
        if number.is_multiple_of(2) {
            journal.settle(&entry);
        }
    }
}

#[test]
fn the_last_minute_of_admissions_survives_restarts_with_their_charges() {
    let folder = tempfile::tempdir().unwrap();
    let now = Now::read();
    leave(folder.path(), &now, 0..4);
    leave(folder.path(), &now, 4..6);
    let later = |seconds: u64| Now {
        boottime_ns: now.boottime_ns + seconds * 1_000_000_000,
        // The wall clock was set back meanwhile: within one boot that changes nothing.
        wall: Unix::from_ms(now.wall.ms - 7_200_000),
        ..now
    };
    let (_, recovery) = Journals::open_at(folder.path(), JournalOptions::default(), &later(20)).unwrap();
    assert_eq!(recovery.admissions.len(), 6);
    for admission in &recovery.admissions {
        let (_, entry) = numbered(admission.reservation.id.to_bits() as u64 & 0xFF);
        let is_settled = (admission.reservation.id.to_bits() as u64).is_multiple_of(2);
        assert_eq!(admission.settled_tokens, is_settled.then(|| entry.tokens()));
        assert!(admission.age >= Duration::from_secs(19) && admission.age <= Duration::from_secs(20));
    }
    assert!(recovery.admissions.windows(2).all(|pair| pair[0].age >= pair[1].age), "oldest first");
    let (_, recovery) = Journals::open_at(folder.path(), JournalOptions::default(), &later(61)).unwrap();
    assert_eq!((recovery.admissions.len(), recovery.orphans.len()), (0, 3));
}

#[test]
fn after_a_reboot_the_last_minute_of_the_wall_clock_counts_as_just_admitted() {
    let folder = tempfile::tempdir().unwrap();
    let now = Now::read();
    leave(folder.path(), &now, 0..3);
    let rebooted = |seconds: i64| Now {
        boot: BootId::from_bytes([9; 16]),
        boottime_ns: 1,
        wall: Unix::from_ms(now.wall.ms + seconds * 1_000),
    };
    for (seconds, expected) in [(59, 3), (-3_600, 3), (60, 0)] {
        let (_, recovery) = Journals::open_at(folder.path(), JournalOptions::default(), &rebooted(seconds)).unwrap();
        assert_eq!(recovery.admissions.len(), expected, "{seconds} s later");
        assert!(recovery.admissions.iter().all(|admission| admission.age.is_zero()));
    }
}

#[test]
fn an_old_orphan_is_found_however_long_ago_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let long_ago = Now { boot: BootId::from_bytes([1; 16]), boottime_ns: 5, wall: AT };
    leave(folder.path(), &long_ago, 1..2);
    let (_, recovery) = open(folder.path());
    assert_eq!((recovery.orphans.len(), recovery.admissions.len()), (1, 0));
}
