//! Which database files are opened, and which are refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row};
use tidegate_config::site;
use tidegate_store::failpoint::{self, Action};
use tidegate_store::store::ChangeWatcher;
use tidegate_store::{Store, StoreError};

use super::numbered;

async fn sql(path: &Path, text: &str) {
    let mut connection = connect(path).await;
    sqlx::raw_sql(AssertSqlSafe(text.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn connect(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

#[tokio::test]
async fn a_relative_path_is_in_the_state_folder_and_readable_by_the_owner_only() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(&site::Store::Sqlite("tidegate.db".into()), state.path()).await.unwrap();
    store.append(&[numbered(3).1]).await.unwrap();
    for name in ["tidegate.db", "tidegate.db-wal"] {
        let mode = std::fs::metadata(state.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let server = site::Server { url: "postgres://db/tidegate".into(), password: None };
    let postgres = Store::open(&site::Store::Postgres(server), state.path()).await;
    assert!(matches!(postgres, Err(StoreError::NotSupported("postgres"))));
}

#[tokio::test]
async fn a_store_keeps_everything_over_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    for restart in 0..3_u64 {
        let store = Store::open_sqlite(&path).await.unwrap();
        for number in 0..=restart {
            let appended = store.append(&[numbered(number).1]).await.unwrap();
            assert_eq!(appended.inserted, usize::from(number == restart));
        }
        store.close().await;
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_touched() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    Store::open_sqlite(&path).await.unwrap().close().await;
    sql(&path, "INSERT INTO tidegate_schema VALUES (4, 'later', 0, 0)").await;
    let error = Store::open_sqlite(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Schema(_)), "{error}");
    assert!(error.to_string().contains("version 4, this program knows 3"), "{error}");
    sql(&path, "DELETE FROM tidegate_schema WHERE version = 4").await;
    Store::open_sqlite(&path).await.unwrap();
}

/// A file as version 1 of the schema left it: a key as made, one that was rotated, one without an audit row, one
/// without an end.
async fn file_of_version_1(path: &Path) {
    let schema = include_str!("../../src/store/schema/0001.sql");
    sql(path, schema).await;
    sql(
        path,
        "CREATE TABLE tidegate_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL, \
                                       applied_ms INTEGER NOT NULL) STRICT;
         INSERT INTO keys (id, version, mac, team, caller, limits, admin, created_ms, expires_ms, last4) VALUES
             ('made0000', 1, zeroblob(32), 't', 'c', '{}', 0, 1000, 61000, 'wxyz'),
             ('rotated0', 3, zeroblob(32), 't', 'c', '{}', 0, 1000, 99000, 'wxyz'),
             ('noaudit0', 9, zeroblob(32), 't', 'c', '{}', 0, 1000, 9999999999999, 'wxyz'),
             ('endless0', 1, zeroblob(32), 't', 'c', '{}', 0, 1000, NULL, 'wxyz');
         INSERT INTO audit (at_ms, who, action, subject, detail) VALUES
             (1000, 'ann', 'key.create', 'made0000', '{\"expires\": 61000}'),
             (1000, 'ann', 'key.create', 'rotated0', '{\"expires\": 61000}'),
             (2000, 'ann', 'key.rotate', 'rotated0', '{\"expires\": 99000}'),
             (1000, 'ann', 'key.create', 'endless0', '{\"expires\": null}');",
    )
    .await;
    let mut connection = connect(path).await;
    sqlx::query("INSERT INTO tidegate_schema VALUES (1, 'ledger, keys, audit, shift', ?1, 0)")
        .bind(i64::from(crc32fast::hash(schema.as_bytes())))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_file_of_version_1_gets_back_the_lifetimes_that_were_granted() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    file_of_version_1(&path).await;
    let store = Store::open_sqlite(&path).await.unwrap();
    for (id, lifetime_ms) in [
        ("made0000", Some(60_000)),
        ("rotated0", Some(60_000)),
        ("noaudit0", Some(90 * 86_400_000)),
        ("endless0", None),
    ] {
        let key = store.key(&id.into()).await.unwrap().unwrap();
        assert_eq!(key.lifetime, lifetime_ms.map(std::time::Duration::from_millis), "{id}");
        assert_eq!(key.kind, tidegate_identity::KeyKind::Live, "{id}");
    }
}

#[tokio::test]
async fn a_step_that_fails_leaves_a_file_of_version_1_as_it_was() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    file_of_version_1(&path).await;
    // The second column of the step is there already: the first must not stay.
    sql(&path, "ALTER TABLE keys ADD COLUMN lifetime_ms INTEGER").await;
    Store::open_sqlite(&path).await.unwrap_err();
    let mut connection = connect(&path).await;
    let left: i64 = sqlx::query(
        "SELECT (SELECT MAX(version) FROM tidegate_schema) * 10
                + (SELECT COUNT(*) FROM pragma_table_info('keys') WHERE name = 'kind')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap()
    .get(0);
    assert_eq!(left, 10);
}

#[tokio::test]
async fn a_schema_that_is_not_ours_is_refused() {
    for (spoil, expected) in [
        ("CREATE TABLE accounts (id INTEGER)", "not a store of this program"),
        (
            "CREATE TABLE tidegate_schema (version, name, checksum, applied_ms); INSERT INTO tidegate_schema VALUES (1, 'other', 5, 0)",
            "step 1",
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("tidegate.db");
        sql(&path, spoil).await;
        let error = Store::open_sqlite(&path).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let mut connection = connect(&path).await;
        let tables: i64 = sqlx::query("SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table'")
            .fetch_one(&mut connection)
            .await
            .unwrap()
            .get(0);
        assert_eq!(tables, 1, "nothing was added");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named_as_damaged() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    std::fs::write(&path, "this is no database, and long enough to be looked at".repeat(100)).unwrap();
    let error = Store::open_sqlite(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
    let folder = state.path().join("absent").join("tidegate.db");
    let error = Store::open_sqlite(&folder).await.unwrap_err();
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error}");
}

#[tokio::test]
async fn a_write_that_fails_is_named_and_leaves_nothing() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open_sqlite(&state.path().join("tidegate.db")).await.unwrap();
    let entries: Vec<_> = (0..10).map(|number| numbered(number).1).collect();
    for point in ["store.append.before_insert", "store.append.before_commit"] {
        for action in [Action::Full, Action::ReadOnly, Action::Io] {
            failpoint::set(point, action, 1);
            let error = store.append(&entries).await.unwrap_err();
            let is_named = match action {
                Action::Full => matches!(error, StoreError::DiskFull),
                Action::ReadOnly => matches!(error, StoreError::ReadOnly),
                Action::Io | Action::Abort => matches!(error, StoreError::Io(_)),
            };
            assert!(is_named && error.is_transient(), "{point} {action:?}: {error}");
            failpoint::clear(point);
        }
    }
    assert_eq!(store.append(&entries).await.unwrap().inserted, 10);
}

/// SQLite ends the transaction by itself then; the store has to go on when there is room again.
#[tokio::test]
async fn a_database_that_was_full_goes_on_when_there_is_room() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    let store = Store::open_sqlite_limited(&path, 60).await.unwrap();
    let many: Vec<_> = (0..4_000).map(|number| numbered(number).1).collect();
    for _ in 0..3 {
        let error = store.append(&many).await.unwrap_err();
        assert!(matches!(error, StoreError::DiskFull), "{error}");
    }
    assert_eq!(store.append(&many[..20]).await.unwrap().inserted, 20);
    store.close().await;
    let store = Store::open_sqlite(&path).await.unwrap();
    assert_eq!(store.append(&many).await.unwrap().inserted, 3_980);
}

#[tokio::test]
async fn a_database_that_has_become_read_only_is_named() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    let store = Store::open_sqlite(&path).await.unwrap();
    // SQLite's own error, not one of ours: a page limit makes the file "full".
    sql(&path, "CREATE TABLE filler (x BLOB)").await;
    let mut connection = connect(&path).await;
    sqlx::raw_sql("PRAGMA query_only = ON").execute(&mut connection).await.unwrap();
    let error = sqlx::raw_sql("INSERT INTO filler VALUES (1)").execute(&mut connection).await.unwrap_err();
    assert!(matches!(StoreError::from(error), StoreError::ReadOnly));
    sqlx::raw_sql("PRAGMA query_only = OFF; PRAGMA max_page_count = 1").execute(&mut connection).await.unwrap();
    let error = sqlx::raw_sql("INSERT INTO filler VALUES (zeroblob(10000000))").execute(&mut connection).await;
    assert!(matches!(StoreError::from(error.unwrap_err()), StoreError::DiskFull));
    drop(store);
}

#[tokio::test]
async fn audit_rows_cannot_be_changed_or_deleted_through_sql() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("tidegate.db");
    let store = Store::open_sqlite(&path).await.unwrap();
    let by = tidegate_store::store::By { who: "ann", at: super::AT };
    store.set_shift(&"day".into(), None, by).await.unwrap();
    let mut connection = connect(&path).await;
    for change in ["UPDATE audit SET who = 'bob'", "DELETE FROM audit"] {
        let error = sqlx::raw_sql(change).execute(&mut connection).await.unwrap_err();
        assert!(error.to_string().contains("audit rows are never"), "{error}");
    }
    assert_eq!(store.audit(0, 10).await.unwrap()[0].who, "ann");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_said_to_be_so() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open_sqlite(&state.path().join("tidegate.db")).await.unwrap();
    let watcher = ChangeWatcher::start(&store, std::time::Duration::from_millis(1)).await.unwrap();
    let mut changes = watcher.changes();
    let before = *changes.borrow_and_update();
    failpoint::set("store.poll.before", Action::Io, 1);
    let away = *changes.wait_for(|changes| !changes.reachable).await.unwrap();
    assert_eq!((away.keys, away.shift), (before.keys, before.shift), "what is known stays");
    failpoint::clear("store.poll.before");
    assert!(changes.wait_for(|changes| changes.reachable).await.is_ok());
    // The watcher does not keep the store open.
    store.close().await;
}
