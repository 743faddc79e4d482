//! Keys, shift, audit, and that other processes feel a change.

use std::time::Duration;

use tidegate_core::{KeyId, Sha256Digest, Unix};
use tidegate_identity::{KeyKind, KeyRecord, LastUsed, Mac, PreviousMac};

use super::Bench;
use super::make::record;
use crate::store::{By, ChangeWatcher, Rotation, Shift, Store, StoreError};

const AT: Unix = Unix::from_ms(1_764_500_000_000);

fn by(who: &str, ms: i64) -> By<'_> {
    By { who, at: Unix::from_ms(AT.ms + ms) }
}

fn rotation(version: u64) -> Rotation {
    Rotation {
        version,
        mac: Mac::from_bytes([9; 32]),
        last4: "9999".into(),
        previous_until: Unix::from_ms(AT.ms + 86_400_000),
    }
}

/// A record has no equality of its own: it holds an atomic.
fn assert_same(one: &KeyRecord, two: &KeyRecord) {
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    assert_eq!(one.mac.map(|mac| *mac.as_bytes()), two.mac.map(|mac| *mac.as_bytes()));
    assert_eq!(
        one.previous.map(|previous| *previous.mac.as_bytes()),
        two.previous.map(|previous| *previous.mac.as_bytes())
    );
}

/// No field of a key is lost: those of a made, an imported and an admin key.
///
/// # Errors
/// When the store fails.
pub async fn a_key_is_read_back_as_it_was_written(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("key fields").await?;
    let previous = Some(PreviousMac { mac: Mac::from_bytes([3; 32]), until: Unix::from_ms(5) });
    let sha256 = Some(Sha256Digest([4; 32]));
    let records = [
        KeyRecord { last_used: LastUsed::new(Some(AT)), previous, ..record("made0000", AT) },
        KeyRecord { mac: None, sha256, aliases: None, expires: None, ..record("imported", Unix::from_ms(AT.ms + 1)) },
        KeyRecord { admin: true, aliases: Some([].into()), ..record("admin000", Unix::from_ms(AT.ms + 2)) },
    ];
    for record in &records {
        let stored = store.create_key(record, KeyKind::Live, by("admin", 0)).await?;
        assert_eq!(stored.version, 1);
        assert_same(&stored.record, record);
    }
    let keys = store.keys().await?;
    assert_eq!(keys.len(), records.len());
    keys.iter().zip(&records).for_each(|(stored, record)| assert_same(&stored.record, record));
    assert!(store.key(&KeyId::from("nobody00")).await?.is_none());
    Ok(())
}

/// Neither an id nor an imported text belongs to two keys.
///
/// # Errors
/// When the store fails.
pub async fn a_key_id_is_given_once(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("once").await?;
    let sha256 = Some(Sha256Digest([4; 32]));
    let first = KeyRecord { sha256, ..record("aaaaaaaa", AT) };
    store.create_key(&first, KeyKind::Live, by("admin", 0)).await?;
    for again in [record("aaaaaaaa", AT), KeyRecord { sha256, ..record("bbbbbbbb", AT) }] {
        let refused = store.create_key(&again, KeyKind::Live, by("admin", 1)).await;
        assert!(matches!(refused, Err(StoreError::Exists(_))), "{refused:?}");
    }
    assert_eq!((store.keys().await?.len(), store.audit(0, 10).await?.len()), (1, 1));
    Ok(())
}

/// Both secrets are there until the grace is over; id, team, scope and limits stay.
///
/// # Errors
/// When the store fails.
pub async fn a_rotation_keeps_the_old_secret_for_the_time_of_grace(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("rotation").await?;
    let first = record("aaaaaaaa", AT);
    store.create_key(&first, KeyKind::Live, by("admin", 0)).await?;
    let rotated = store.rotate_key(&first.id, &rotation(1), by("admin", 1)).await?;
    let expected = KeyRecord {
        mac: Some(Mac::from_bytes([9; 32])),
        previous: Some(PreviousMac { mac: Mac::from_bytes([7; 32]), until: Unix::from_ms(AT.ms + 86_400_000) }),
        last4: "9999".into(),
        expires: Some(Unix::from_ms(by("", 1).at.ms + 1_000)),
        ..first
    };
    assert_same(&rotated.record, &expected);
    assert_eq!(rotated.version, 2);
    Ok(())
}

/// What a key was granted does not move, however often and however late it is rotated.
///
/// # Errors
/// When the store fails.
pub async fn a_rotation_grants_neither_more_time_nor_another_kind(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("lifetime").await?;
    let endless = KeyRecord { expires: None, ..record("endless0", AT) };
    store.create_key(&endless, KeyKind::Live, by("admin", 0)).await?;
    let key = record("aaaaaaaa", AT);
    let made = store.create_key(&key, KeyKind::Test, by("admin", 0)).await?;
    assert_eq!((made.kind, made.lifetime), (KeyKind::Test, Some(Duration::from_secs(1))));
    for version in 1..=5_u32 {
        let at = by("admin", 900 * i64::from(version));
        let rotated = store.rotate_key(&key.id, &rotation(u64::from(version)), at).await?;
        assert_eq!(rotated.record.expires, Some(Unix::from_ms(at.at.ms + 1_000)));
        assert_eq!((rotated.kind, rotated.lifetime), (made.kind, made.lifetime));
        let rotated = store.rotate_key(&endless.id, &rotation(u64::from(version)), at).await?;
        assert_eq!((rotated.record.expires, rotated.kind, rotated.lifetime), (None, KeyKind::Live, None));
    }
    Ok(())
}

/// Two administrators never overwrite each other unseen; what cannot be rotated says why.
///
/// # Errors
/// When the store fails.
pub async fn a_change_from_an_old_version_is_refused(bench: &impl Bench) -> Result<(), StoreError> {
    let (store, other) = (bench.open("versions").await?, bench.open("versions").await?);
    let id = KeyId::from("aaaaaaaa");
    let missing = store.rotate_key(&id, &rotation(1), by("admin", 0)).await;
    assert!(matches!(missing, Err(StoreError::NotFound(_))), "{missing:?}");
    store.create_key(&record("aaaaaaaa", AT), KeyKind::Live, by("admin", 0)).await?;
    let first = rotation(1);
    let (one, two) = tokio::join!(store.rotate_key(&id, &first, by("a", 1)), other.rotate_key(&id, &first, by("b", 1)));
    let conflicts = [&one, &two].into_iter().filter(|done| matches!(done, Err(StoreError::Conflict(_)))).count();
    assert_eq!((conflicts, one.is_ok() || two.is_ok()), (1, true), "{one:?} {two:?}");
    let imported = KeyRecord { mac: None, sha256: Some(Sha256Digest([1; 32])), ..record("imported", AT) };
    store.create_key(&imported, KeyKind::Live, by("admin", 2)).await?;
    let refused = store.rotate_key(&imported.id, &rotation(1), by("admin", 3)).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    Ok(())
}

/// Revocation needs no version, ends the grace of the old secret, happens once, and is the end.
///
/// # Errors
/// When the store fails.
pub async fn a_revoked_key_stays_revoked(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("revoked").await?;
    let id = KeyId::from("aaaaaaaa");
    assert!(matches!(store.revoke_key(&id, by("admin", 0)).await, Err(StoreError::NotFound(_))));
    store.create_key(&record("aaaaaaaa", AT), KeyKind::Live, by("admin", 0)).await?;
    store.rotate_key(&id, &rotation(1), by("admin", 1)).await?;
    let revoked = store.revoke_key(&id, by("admin", 2)).await?;
    assert_eq!((revoked.record.revoked, revoked.record.previous.is_none()), (Some(by("", 2).at), true));
    let again = store.revoke_key(&id, by("admin", 3)).await?;
    assert_eq!((again.record.revoked, again.version), (Some(by("", 2).at), revoked.version));
    let refused = store.rotate_key(&id, &rotation(revoked.version), by("admin", 4)).await;
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    Ok(())
}

/// However snapshots and changes interleave, every change but none of the later ones is in a snapshot of its
/// generation; so the order of generations is the order of snapshots.
///
/// # Errors
/// When the store fails.
pub async fn a_snapshot_of_the_keys_carries_the_generation_of_its_rows(bench: &impl Bench) -> Result<(), StoreError> {
    const CHANGES: usize = 20;
    let (ours, theirs) = (bench.open("snapshots").await?, bench.open("snapshots").await?);
    let empty = ours.key_snapshot().await?;
    assert_eq!((empty.generation, empty.keys.len()), (0, 0));
    let change = async {
        for number in 0..CHANGES {
            theirs.create_key(&record(&format!("key{number:05}"), AT), KeyKind::Live, by("admin", 0)).await?;
        }
        Ok::<_, StoreError>(())
    };
    let read = async {
        let mut last = 0;
        while last < CHANGES as u64 {
            let snapshot = ours.key_snapshot().await?;
            assert_eq!(snapshot.keys.len() as u64, snapshot.generation, "one change is one key here");
            assert!(snapshot.generation >= last);
            last = snapshot.generation;
        }
        Ok::<_, StoreError>(())
    };
    let (changed, read) = tokio::join!(change, read);
    changed.and(read)
}

/// Batches from several cores come in any order.
///
/// # Errors
/// When the store fails.
pub async fn the_last_use_never_moves_backwards(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("uses").await?;
    let (one, two) = (record("aaaaaaaa", AT), record("bbbbbbbb", AT));
    store.create_key(&one, KeyKind::Live, by("admin", 0)).await?;
    store.create_key(&two, KeyKind::Live, by("admin", 0)).await?;
    let before = store.generations().await?;
    let at = |ms| Unix::from_ms(AT.ms + ms);
    let used = [(one.id.clone(), at(50)), (one.id.clone(), at(20)), (two.id.clone(), at(7)), ("gone".into(), at(1))];
    store.touch_keys(&used).await?;
    store.touch_keys(&[(one.id.clone(), at(30)), (two.id.clone(), at(8))]).await?;
    store.touch_keys(&[]).await?;
    let uses: Vec<_> = store.keys().await?.iter().map(|key| (key.record.last_used.get(), key.version)).collect();
    assert_eq!(uses, [(Some(at(50)), 1), (Some(at(8)), 1)]);
    assert_eq!(store.generations().await?, before, "a use is no change that others have to read");
    Ok(())
}

/// Who, what, when; in the transaction of the change; never a MAC.
///
/// # Errors
/// When the store fails.
pub async fn every_change_of_a_key_leaves_an_audit_row(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("audit").await?;
    let id = KeyId::from("aaaaaaaa");
    store.create_key(&record("aaaaaaaa", AT), KeyKind::Live, by("ann", 0)).await?;
    store.rotate_key(&id, &rotation(1), by("bob", 1)).await?;
    store.revoke_key(&id, by("cy", 2)).await?;
    store.set_shift(&"night".into(), None, by("dan", 3)).await?;
    let rows = store.audit(0, 100).await?;
    let said: Vec<_> = rows.iter().map(|row| (row.seq, &*row.who, &*row.action, &*row.subject, row.at)).collect();
    assert_eq!(
        said,
        [
            (1, "ann", "key.create", "aaaaaaaa", by("", 0).at),
            (2, "bob", "key.rotate", "aaaaaaaa", by("", 1).at),
            (3, "cy", "key.revoke", "aaaaaaaa", by("", 2).at),
            (4, "dan", "shift.set", "night", by("", 3).at),
        ]
    );
    assert!(rows.iter().all(|row| !row.detail.contains("mac")));
    assert_eq!(store.audit(2, 1).await?, rows[2..3]);
    assert_eq!(store.audit_last(2).await?, rows[2..]);
    assert_eq!(store.audit_last(u32::MAX).await?, rows);
    Ok(())
}

async fn until_keys(store: &Store, watcher: &ChangeWatcher, keys: u64) -> Result<(), StoreError> {
    let mut changes = watcher.changes();
    let felt = changes.wait_for(|changes| changes.keys >= keys).await;
    felt.map_err(|error| StoreError::Io(error.to_string()))?;
    assert_eq!(store.generations().await?.keys, keys);
    Ok(())
}

/// A revocation made by another process is felt by polling; ledger commits are not taken for changes.
///
/// # Errors
/// When the store fails.
pub async fn a_change_by_another_handle_is_felt(bench: &impl Bench) -> Result<(), StoreError> {
    let (ours, theirs) = (bench.open("changes").await?, bench.open("changes").await?);
    let watcher = ChangeWatcher::start(&ours, Duration::from_millis(5)).await?;
    assert!(watcher.changes().borrow().reachable);
    theirs.create_key(&record("aaaaaaaa", AT), KeyKind::Live, by("admin", 0)).await?;
    until_keys(&ours, &watcher, 1).await?;
    theirs.append(&[super::entry(3, AT)]).await?;
    theirs.revoke_key(&"aaaaaaaa".into(), by("admin", 1)).await?;
    until_keys(&ours, &watcher, 2).await?;
    ours.set_shift(&"night".into(), None, by("admin", 2)).await?;
    let mut changes = watcher.changes();
    let felt = changes.wait_for(|changes| changes.shift == 1).await.map(|changes| *changes);
    assert_eq!(felt.ok().map(|changes| changes.keys), Some(2));
    Ok(())
}

/// A shift set from an old reading is refused; each set counts one further.
///
/// # Errors
/// When the store fails.
pub async fn the_shift_counts_its_changes(bench: &impl Bench) -> Result<(), StoreError> {
    let (store, other) = (bench.open("shift").await?, bench.open("shift").await?);
    assert_eq!(store.shift().await?, None);
    store.set_shift(&"day".into(), Some(0), by("ann", 0)).await?;
    other.set_shift(&"night".into(), Some(1), by("bob", 1)).await?;
    let refused = store.set_shift(&"day".into(), Some(1), by("ann", 2)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    let expected = Shift { name: "night".into(), generation: 2, who: "bob".to_owned(), at: by("", 1).at };
    assert_eq!(store.shift().await?, Some(expected));
    store.set_shift(&"day".into(), None, by("ann", 3)).await?;
    assert_eq!(store.shift().await?.map(|shift| shift.generation), Some(3));
    Ok(())
}
