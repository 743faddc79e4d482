//! The key format: vectors, junk, single changes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidegate_core::KeyId;
use tidegate_identity::{ApiKey, KeyKind};

const ALPHABET: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[test]
fn the_published_vectors_are_keys() {
    let zeros = "0".repeat(40);
    for text in [
        format!("tg_test_{zeros}2KyqUF"),
        format!("tg_live_{zeros}1MCVLp"),
        "tg_test_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcd3bvG7i".to_owned(),
    ] {
        let key = ApiKey::parse(text.as_bytes()).expect(&text);
        assert_eq!(key.reveal(), text);
        assert_eq!(key.last4(), &text[50..]);
    }
    let key = ApiKey::parse(b"tg_test_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcd3bvG7i").unwrap();
    assert_eq!((key.id(), key.kind()), ("01234567", KeyKind::Test));
}

#[test]
fn generated_keys_parse_and_never_repeat() {
    let mut seen = BTreeSet::new();
    for n in 0..2_000 {
        let kind = if n % 2 == 0 { KeyKind::Live } else { KeyKind::Test };
        let key = ApiKey::generate(kind).unwrap();
        assert_eq!(ApiKey::parse(key.reveal().as_bytes()).as_ref(), Some(&key));
        assert_eq!(key.kind(), kind);
        assert_eq!(key.reveal().len(), ApiKey::LEN);
        assert!(seen.insert(key.reveal().to_owned()));
    }
}

#[test]
fn every_character_of_the_alphabet_is_used_about_equally() {
    let mut counts = [0_u32; 128];
    for _ in 0..2_000 {
        let key = ApiKey::generate(KeyKind::Live).unwrap();
        key.reveal().as_bytes()[8..48].iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    }
    // 80,000 draws over 62: mean 1,290, deviation 36; seven deviations.
    for byte in ALPHABET.bytes() {
        assert!(
            (1_040..=1_540).contains(&counts[usize::from(byte)]),
            "{}: {}",
            char::from(byte),
            counts[usize::from(byte)]
        );
    }
}

#[test]
fn no_single_changed_character_is_accepted() {
    let mut tried = 0;
    for _ in 0..20 {
        let key = ApiKey::generate(KeyKind::Test).unwrap();
        let original = key.reveal().as_bytes().to_vec();
        for place in 8..ApiKey::LEN {
            for digit in ALPHABET.bytes().filter(|digit| *digit != original[place]) {
                let mut changed = original.clone();
                changed[place] = digit;
                assert!(ApiKey::parse(&changed).is_none(), "{}", String::from_utf8_lossy(&changed));
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 20 * 46 * 61);
}

#[test]
fn swapped_neighbours_and_another_kind_are_refused() {
    let key = ApiKey::generate(KeyKind::Live).unwrap();
    let original = key.reveal().as_bytes().to_vec();
    for place in 8..ApiKey::LEN - 1 {
        let mut changed = original.clone();
        changed.swap(place, place + 1);
        assert_eq!(ApiKey::parse(&changed).is_some(), changed == original);
    }
    assert!(ApiKey::parse(key.reveal().replace("live", "test").as_bytes()).is_none());
}

#[test]
fn a_rotation_keeps_the_id_and_changes_the_secret() {
    let old = ApiKey::generate(KeyKind::Live).unwrap();
    let new = ApiKey::rotate(KeyKind::Live, &old.key_id()).unwrap();
    assert_eq!(new.id(), old.id());
    assert_ne!(new.reveal(), old.reveal());
    assert!(ApiKey::parse(new.reveal().as_bytes()).is_some());
    for bad in ["", "1234567", "123456789", "1234567-", "ÄÄÄÄ"] {
        assert!(ApiKey::rotate(KeyKind::Live, &KeyId::from(bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn debug_shows_no_secret() {
    let key = ApiKey::generate(KeyKind::Live).unwrap();
    let shown = format!("{key:?}");
    assert!(shown.contains(key.id()) && !shown.contains(&key.reveal()[16..20]), "{shown}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_or_come_back_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..70)) {
        prop_assert!(ApiKey::parse(&bytes).is_none_or(|key| key.reveal().as_bytes() == bytes));
    }

    #[test]
    fn text_of_the_right_shape_is_a_key_only_with_its_checksum(body in "[0-9A-Za-z]{40}", sum in "[0-9A-Za-z]{6}") {
        let text = format!("tg_live_{body}{sum}");
        let expected = checksum(&text[..48]);
        prop_assert_eq!(ApiKey::parse(text.as_bytes()).is_some(), expected == sum);
        let whole = format!("tg_live_{body}{expected}");
        prop_assert!(ApiKey::parse(whole.as_bytes()).is_some());
    }
}

/// The checksum, by a bit-at-a-time CRC-32 of its own.
fn checksum(text: &str) -> String {
    let mut crc = u32::MAX;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
        }
    }
    let mut rest = !crc;
    let mut digits = Vec::new();
    for _ in 0..6 {
        digits.push(ALPHABET.as_bytes()[(rest % 62) as usize]);
        rest /= 62;
    }
    digits.reverse();
    String::from_utf8(digits).unwrap()
}
