//! From a credential to a caller (attack cases B14, B15, B16).

use tidegate_core::{AliasName, Case, Issuer, Unix};
use tidegate_identity::{ApiKey, Door, KeyKind, KeyRecord, Keys, PreviousMac, StoreState, authenticate};

use crate::counting::{CountingKeys, imported, keyring, new_key, pepper, record};

const NOW: Unix = Unix::from_ms(1_781_524_800_000);

fn with_key(keys: &impl Keys, key: &[u8], now: Unix) -> Result<tidegate_identity::Authenticated, Case> {
    authenticate([("x-api-key", key)], None, keys, now).map_err(|fault| fault.case)
}

#[test]
fn a_known_key_is_its_caller_by_every_form() {
    let key = new_key();
    let keys = keyring([record(&pepper(), &key)]);
    let bearer = format!("Bearer {}", key.reveal());
    for header in [
        ("authorization", bearer.as_bytes()),
        ("x-api-key", key.reveal().as_bytes()),
        ("api-key", key.reveal().as_bytes()),
    ] {
        let found = authenticate([header], None, &keys, NOW).unwrap();
        assert_eq!(found.caller.issuer, Issuer::Keyring);
        assert_eq!((found.caller.subject.as_str(), found.caller.team.as_str()), ("caller", "team"));
        assert_eq!(found.caller.key.as_ref().unwrap().as_str(), key.id());
        assert_eq!(found.key.last_used.get(), Some(NOW));
    }
}

#[test]
fn junk_and_wrong_checksums_are_refused_without_a_look_up_or_a_mac() {
    let key = new_key();
    let keys = CountingKeys::new(keyring([record(&pepper(), &key)]));
    let mut wrong = key.reveal().as_bytes().to_vec();
    wrong[20] = if wrong[20] == b'a' { b'b' } else { b'a' };
    let mut nul = key.reveal().as_bytes().to_vec();
    nul[30] = 0;
    let megabyte = vec![b'a'; 1 << 20];
    let long = [key.reveal().as_bytes(), b"x"].concat();
    for text in [
        b"' OR '1'='1".as_slice(),
        b"sk-' UNION SELECT mac FROM keys --",
        &wrong,
        &nul,
        &megabyte,
        &long,
        b"tg_live_",
        b"\xff\xfe",
    ] {
        assert_eq!(
            with_key(&keys, text, NOW).unwrap_err(),
            Case::InvalidKey,
            "{:?}",
            String::from_utf8_lossy(&text[..text.len().min(60)])
        );
    }
    assert_eq!((keys.lookups.get(), keys.macs.get()), (0, 0));
}

#[test]
fn a_wrong_checksum_is_never_looked_up_as_an_imported_key() {
    let key = new_key();
    let keys = CountingKeys::new(keyring([imported("sk-0123456789abcdef")]));
    let mut wrong = key.reveal().as_bytes().to_vec();
    wrong.swap(10, 40);
    wrong[53] = if wrong[53] == b'0' { b'1' } else { b'0' };
    assert!(with_key(&keys, &wrong, NOW).is_err());
    assert_eq!(keys.lookups.get(), 0);
}

#[test]
fn an_unknown_id_does_the_same_work_as_a_wrong_secret() {
    let known = new_key();
    let wrong_secret = ApiKey::rotate(KeyKind::Test, &known.key_id()).unwrap();
    for key in [new_key(), wrong_secret, known.clone()] {
        let keys = CountingKeys::new(keyring([record(&pepper(), &known)]));
        let _answer = with_key(&keys, key.reveal().as_bytes(), NOW);
        assert_eq!((keys.lookups.get(), keys.macs.get()), (1, 1));
    }
}

#[test]
fn one_text_for_whatever_is_wrong() {
    let (known, revoked) = (new_key(), new_key());
    let gone = KeyRecord { revoked: Some(NOW), ..record(&pepper(), &revoked) };
    let keys = keyring([record(&pepper(), &known), gone]);
    let stranger = new_key();
    let mut texts: Vec<_> = [b"junk".as_slice(), stranger.reveal().as_bytes(), revoked.reveal().as_bytes()]
        .into_iter()
        .map(|key| {
            let fault = authenticate([("api-key", key)], None, &keys, NOW).unwrap_err();
            assert!(fault.internal.is_some(), "the log says why");
            assert!(!fault.internal.unwrap().contains("tg_"), "the log holds no key");
            fault.public
        })
        .collect();
    texts.dedup();
    assert_eq!(texts.len(), 1);
}

#[test]
fn a_key_expires_at_its_instant_and_a_revoked_one_stays_out_whatever_the_clock_says() {
    let key = new_key();
    let expires = Unix::from_ms(NOW.ms + 1_000);
    let keys = keyring([KeyRecord { expires: Some(expires), ..record(&pepper(), &key) }]);
    let at = |now| with_key(&keys, key.reveal().as_bytes(), now).is_ok();
    assert!(at(Unix::from_ms(expires.ms - 1)));
    assert!(!at(expires) && !at(Unix::from_ms(i64::MAX)));
    let keys = keyring([KeyRecord { revoked: Some(NOW), ..record(&pepper(), &key) }]);
    for now in [Unix::from_ms(0), NOW, Unix::from_ms(NOW.ms - 86_400_000)] {
        assert_eq!(with_key(&keys, key.reveal().as_bytes(), now).unwrap_err(), Case::InvalidKey);
    }
}

#[test]
fn both_secrets_are_good_during_a_rotation_and_only_the_new_one_after() {
    let old = new_key();
    let new = ApiKey::rotate(KeyKind::Test, &old.key_id()).unwrap();
    let until = Unix::from_ms(NOW.ms + 86_400_000);
    let previous = Some(PreviousMac { mac: pepper().mac(&old), until });
    let keys = keyring([KeyRecord { previous, ..record(&pepper(), &new) }]);
    let good = |key: &ApiKey, now| with_key(&keys, key.reveal().as_bytes(), now).is_ok();
    let last = Unix::from_ms(until.ms - 1);
    assert!(good(&old, NOW) && good(&old, last) && good(&new, NOW) && good(&new, until));
    assert!(!good(&old, until));
    let third = ApiKey::rotate(KeyKind::Test, &old.key_id()).unwrap();
    assert!(!good(&third, NOW));
}

#[test]
fn a_key_under_another_pepper_is_unknown() {
    let key = new_key();
    let other = tidegate_identity::Pepper::new(&[8; 32]).unwrap();
    let keys = keyring([record(&other, &key)]);
    assert_eq!(with_key(&keys, key.reveal().as_bytes(), NOW).unwrap_err(), Case::InvalidKey);
}

#[test]
fn a_record_without_a_mac_is_opened_by_no_secret() {
    let key = new_key();
    let keys = keyring([KeyRecord { mac: None, ..record(&pepper(), &key) }]);
    assert_eq!(with_key(&keys, key.reveal().as_bytes(), NOW).unwrap_err(), Case::InvalidKey);
}

#[test]
fn an_imported_key_is_found_by_its_hash() {
    let text = "sk-0123456789abcdefghijklmnop";
    let keys = keyring([imported(text), record(&pepper(), &new_key())]);
    assert!(with_key(&keys, text.as_bytes(), NOW).is_ok());
    for near in ["sk-0123456789abcdefghijklmno", "sk-0123456789abcdefghijklmnoq", "SK-0123456789abcdefghijklmnop"] {
        assert_eq!(with_key(&keys, near.as_bytes(), NOW).unwrap_err(), Case::InvalidKey);
    }
    let expired = KeyRecord { expires: Some(NOW), ..imported(text) };
    assert!(with_key(&keyring([expired]), text.as_bytes(), NOW).is_err());
}

#[test]
fn with_the_store_away_known_keys_pass_and_unknown_ones_cannot_be_checked() {
    let (known, stranger) = (new_key(), new_key());
    let keys = keyring([record(&pepper(), &known)]).with_state(StoreState::Away);
    assert!(with_key(&keys, known.reveal().as_bytes(), NOW).is_ok());
    let fault = authenticate([("api-key", stranger.reveal().as_bytes())], None, &keys, NOW).unwrap_err();
    assert_eq!(fault.case, Case::AuthUnavailable);
    assert!(fault.retry_after.is_some());
    // What can be told without the store is told.
    assert_eq!(with_key(&keys, b"tg_live_junk", NOW).unwrap_err(), Case::InvalidKey);
    let wrong_secret = ApiKey::rotate(KeyKind::Test, &known.key_id()).unwrap();
    assert_eq!(with_key(&keys, wrong_secret.reveal().as_bytes(), NOW).unwrap_err(), Case::InvalidKey);
}

#[test]
fn admin_keys_open_the_admin_port_only_and_model_keys_the_gate_only() {
    let (model, admin) = (new_key(), new_key());
    let keys = keyring([record(&pepper(), &model), KeyRecord { admin: true, ..record(&pepper(), &admin) }]);
    let enter = |key: &ApiKey, door| {
        let found = with_key(&keys, key.reveal().as_bytes(), NOW).unwrap();
        found.may_enter(door).map_err(|fault| fault.case)
    };
    assert_eq!((enter(&model, Door::Gate), enter(&model, Door::Admin)), (Ok(()), Err(Case::Forbidden)));
    assert_eq!((enter(&admin, Door::Gate), enter(&admin, Door::Admin)), (Err(Case::Forbidden), Ok(())));
}

#[test]
fn a_scope_covers_exactly_its_aliases() {
    let key = new_key();
    let open = record(&pepper(), &key);
    assert!(open.covers(&AliasName::from("anything")));
    let scoped = KeyRecord { aliases: Some([AliasName::from("glm")].into()), ..open };
    assert!(scoped.covers(&AliasName::from("glm")));
    for near in ["GLM", "glm ", "gl", ""] {
        assert!(!scoped.covers(&AliasName::from(near)), "{near:?}");
    }
    let none = KeyRecord { aliases: Some(Default::default()), ..scoped };
    assert!(!none.covers(&AliasName::from("glm")));
}
