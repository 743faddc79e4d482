//! Keys over their life.

use std::sync::Arc;

use tidegate_console::load_keyring;
use tidegate_identity::{Keys as _, authenticate};

use crate::desk::Desk;

const WEEK_S: i64 = 7 * 86_400;

#[tokio::test]
async fn a_revoked_key_is_accepted_again_by_no_reader_that_was_slow() {
    let desk = Desk::new().await;
    let made = desk.ask("POST", "/admin/v1/keys", r#"{"team":"red"}"#).await.json();
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let keyring = &desk.console.keyring;
    let in_force = Arc::clone(&keyring.load());
    let slow = load_keyring(&desk.console.store, Arc::clone(in_force.shared_pepper()), Some(&in_force)).await.unwrap();
    let at = slow.by_id(id).unwrap().created;
    let good = || authenticate([("api-key", secret.as_bytes())], None, &**keyring.load(), at).is_ok();
    assert!(good());
    assert_eq!(desk.ask("POST", &format!("/admin/v1/keys/{id}/revoke"), "").await.status, 200);
    assert!(!good());
    keyring.replace(slow);
    assert!(!good());
}

#[tokio::test]
async fn a_test_key_stays_a_test_key_over_a_rotation() {
    let desk = Desk::new().await;
    for (body, kind) in [(r#"{"team":"red","test":true}"#, "test"), (r#"{"team":"red"}"#, "live")] {
        let made = desk.ask("POST", "/admin/v1/keys", body).await.json();
        let id = made["id"].as_str().unwrap();
        let rotated = desk.ask("POST", &format!("/admin/v1/keys/{id}/rotate"), "{}").await.json();
        for key in [&made, &rotated] {
            assert_eq!(key["kind"], kind);
            assert!(key["secret"].as_str().unwrap().starts_with(&format!("tg_{kind}_{id}")));
        }
        let listed = desk.ask("GET", "/admin/v1/keys", "").await.json();
        let listed = listed.as_array().unwrap().iter().find(|key| key["id"] == id).unwrap().clone();
        assert_eq!(listed["kind"], kind);
    }
}

#[tokio::test]
async fn a_key_rotated_often_lives_no_longer_than_it_was_granted() {
    let desk = Desk::new().await;
    let made = desk.ask("POST", "/admin/v1/keys", &format!(r#"{{"team":"red","expiresInSeconds":{WEEK_S}}}"#)).await;
    let made = made.json();
    let id = made["id"].as_str().unwrap();
    for _ in 0..3 {
        let rotated = desk.ask("POST", &format!("/admin/v1/keys/{id}/rotate"), "{}").await.json();
        let audit = desk.console.store.audit(0, 100).await.unwrap();
        let rotated_at = audit.last().unwrap().at;
        assert_eq!(rotated["expires"].as_i64(), Some(rotated_at.ms + WEEK_S * 1_000));
        assert_eq!(rotated["created"], made["created"]);
    }
}
