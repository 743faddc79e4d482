//! The snapshot and its swap.

use std::sync::Arc;

use tidegate_core::Unix;
use tidegate_identity::{KeyRecord, Keyring, Keys, LastUsed, SharedKeyring, StoreState, authenticate};

use crate::counting::{keyring, new_key, pepper, record};

const NOW: Unix = Unix::from_ms(1_781_524_800_000);

#[test]
fn a_revocation_is_felt_by_the_next_request() {
    let key = new_key();
    let shared = SharedKeyring::new(keyring([record(&pepper(), &key)]));
    let good = || authenticate([("api-key", key.reveal().as_bytes())], None, &**shared.load(), NOW).is_ok();
    assert!(good());
    shared.replace(keyring([KeyRecord { revoked: Some(NOW), ..record(&pepper(), &key) }]));
    assert!(!good());
    shared.replace(Keyring::new(pepper(), []));
    assert!(!good());
}

#[test]
fn a_revoked_key_stays_refused_when_an_older_snapshot_comes_late() {
    let key = new_key();
    let before = keyring([record(&pepper(), &key)]).with_generation(1);
    let revoked = keyring([KeyRecord { revoked: Some(NOW), ..record(&pepper(), &key) }]).with_generation(2);
    let shared = SharedKeyring::new(before.clone());
    let good = || authenticate([("api-key", key.reveal().as_bytes())], None, &**shared.load(), NOW).is_ok();
    assert!(good());
    shared.replace(revoked);
    shared.replace(before);
    assert!(!good());
    assert_eq!(shared.load().generation(), 2);
    // The state of the store is no part of the order.
    shared.note_store(StoreState::Away);
    assert_eq!(shared.load().generation(), 2);
    shared.replace(Keyring::new(pepper(), []).with_generation(2));
    assert!(shared.load().is_empty(), "the same generation read again is put in force");
}

#[test]
fn snapshots_that_arrive_at_once_leave_the_newest_in_force() {
    let shared = SharedKeyring::new(Keyring::new(pepper(), []));
    std::thread::scope(|threads| {
        for first in 0..4_u64 {
            let shared = &shared;
            threads.spawn(move || {
                for generation in (first..2_000).step_by(4) {
                    shared.replace(Keyring::new(pepper(), []).with_generation(generation));
                }
            });
        }
    });
    assert_eq!(shared.load().generation(), 1_999);
}

#[test]
fn the_state_of_the_store_changes_no_key() {
    let key = new_key();
    let shared = SharedKeyring::new(keyring([record(&pepper(), &key)]));
    for state in [StoreState::Away, StoreState::Connected] {
        shared.note_store(state);
        assert_eq!((shared.load().store_state(), shared.load().len()), (state, 1));
    }
}

#[test]
fn uses_close_together_are_noted_once_and_never_backwards() {
    let used = LastUsed::new(None);
    assert_eq!(used.get(), None);
    used.note(NOW);
    used.note(Unix::from_ms(NOW.ms + LastUsed::RESOLUTION_MS - 1));
    assert_eq!(used.get(), Some(NOW));
    used.note(Unix::from_ms(NOW.ms - 10_000));
    assert_eq!(used.get(), Some(NOW));
    let later = Unix::from_ms(NOW.ms + LastUsed::RESOLUTION_MS);
    used.note(later);
    assert_eq!(used.clone().get(), Some(later));
}

#[test]
fn debug_of_a_keyring_and_its_records_shows_no_mac() {
    let key = new_key();
    let one = record(&pepper(), &key);
    let mac = format!("{:?}", one.mac.unwrap().as_bytes());
    let shown = format!("{:?} {one:?} {:?}", keyring([one.clone()]), pepper());
    assert!(!shown.contains(&mac), "{shown}");
    assert!(shown.contains("Mac(…)") && shown.contains("Pepper(…)"), "{shown}");
}

#[test]
fn a_snapshot_is_shared_not_copied() {
    let key = new_key();
    let one = Arc::new(record(&pepper(), &key));
    let keyring = Keyring::new(pepper(), [Arc::clone(&one)]);
    assert!(Arc::ptr_eq(&keyring.with_state(StoreState::Away).by_id(key.id()).unwrap(), &one));
}
