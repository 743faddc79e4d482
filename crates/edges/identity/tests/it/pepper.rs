//! The pepper and its file.

use std::os::unix::fs::PermissionsExt;

use tidegate_identity::{ApiKey, Pepper, PepperError};

const KEY: &[u8] = b"tg_test_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcd3bvG7i";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_mac_is_hmac_sha_256_over_the_whole_key() {
    let pepper = Pepper::new(&[0x61; 32]).unwrap();
    let mac = pepper.mac(&ApiKey::parse(KEY).unwrap());
    // printf %s KEY | openssl dgst -sha256 -hmac aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    assert_eq!(hex(mac.as_bytes()), "efbe5048521aca781de9f0dc9fd339c766f43cfc5e750172c2077e4dff7035d6");
}

#[test]
fn lengths_are_bounded() {
    for (len, good) in [(0, false), (31, false), (32, true), (4_096, true), (4_097, false)] {
        assert_eq!(Pepper::new(&vec![1; len]).is_ok(), good, "{len}");
    }
}

#[test]
fn the_file_is_made_once_private_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pepper");
    let key = ApiKey::parse(KEY).unwrap();
    let first = Pepper::open(&path).unwrap().mac(&key);
    assert_eq!(Pepper::open(&path).unwrap().mac(&key), first);
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 32));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    let other = tempfile::tempdir().unwrap();
    assert_ne!(Pepper::open(&other.path().join("pepper")).unwrap().mac(&key), first);
}

#[test]
fn processes_that_make_it_at_once_use_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pepper");
    let key = ApiKey::parse(KEY).unwrap();
    let macs: Vec<_> = std::thread::scope(|scope| {
        let openers: Vec<_> = (0..8).map(|_| scope.spawn(|| Pepper::open(&path).unwrap().mac(&key))).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).collect()
    });
    assert!(macs.iter().all(|mac| *mac == macs[0]));
}

#[test]
fn a_file_that_others_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pepper");
    std::fs::write(&path, [1; 32]).unwrap();
    for mode in [0o644, 0o640, 0o604, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(Pepper::open(&path), Err(PepperError::Exposed)), "{mode:o}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(Pepper::open(&path).is_ok());
    std::fs::write(&path, [1; 31]).unwrap();
    assert!(matches!(Pepper::open(&path), Err(PepperError::TooShort(31))));
}
