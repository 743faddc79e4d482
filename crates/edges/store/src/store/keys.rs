//! API keys: what is stored of them, never their text.
//!
//! A change names the version it was made from, so that two administrators never overwrite each other unseen. Only
//! revocation does not: it has to succeed whatever else happened.

use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_core::{AliasName, KeyId, Limits, Sha256Digest, Unix};
use tidegate_identity::{KeyKind, KeyRecord, LastUsed, Mac, PreviousMac};

use super::audit::{self, By};
use super::ledger::to_json;
use super::{Purpose, Store, StoreError, Transaction, raise};

/// A key and the version of its row.
#[derive(Clone, Debug)]
pub struct StoredKey {
    /// The key.
    pub record: KeyRecord,
    /// Counts the changes from 1.
    pub version: u64,
    /// Live or test, as it was made; a rotation makes the same again. An imported key counts as live.
    pub kind: KeyKind,
    /// How long a secret of it lives, from its making or rotation; `None` means without end. Granted once, when the
    /// key is made.
    pub lifetime: Option<Duration>,
}

/// All keys as of one generation.
#[derive(Clone, Debug)]
pub struct KeySnapshot {
    /// The generation of the keys: of two snapshots of one store, the higher one is the later.
    pub generation: u64,
    /// Every key, as [`Store::keys`].
    pub keys: Vec<StoredKey>,
}

/// A new secret for a key.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// The version that the caller has read.
    pub version: u64,
    /// MAC of the new secret.
    pub mac: Mac,
    /// Its last four characters.
    pub last4: Box<str>,
    /// First instant at which the old secret is no longer accepted.
    pub previous_until: Unix,
}

const SELECT: &str = "SELECT * FROM keys ORDER BY created_ms, id";
const GENERATION: &str = "SELECT generation FROM generation WHERE topic = 'keys'";
const SELECT_ONE: &str = "SELECT * FROM keys WHERE id = ?1";
const INSERT: &str = "
    INSERT INTO keys (id, version, mac, previous_mac, previous_until, sha256, team, caller, aliases, limits, admin,
                      created_ms, expires_ms, revoked_ms, last4, last_used_ms, kind, lifetime_ms)
    VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
    ON CONFLICT DO NOTHING";
const ROTATE: &str = "
    UPDATE keys SET version = version + 1, previous_mac = mac, previous_until = ?3, mac = ?4, last4 = ?5,
        expires_ms = ?6 + lifetime_ms
    WHERE id = ?1 AND version = ?2";
const REVOKE: &str = "
    UPDATE keys SET version = version + 1, revoked_ms = ?2, previous_mac = NULL, previous_until = NULL
    WHERE id = ?1 AND revoked_ms IS NULL";
const TOUCH: &str = "
    UPDATE keys SET last_used_ms = MAX(COALESCE(last_used_ms, 0), e.value ->> 1)
    FROM json_each(?1) AS e WHERE keys.id = e.value ->> 0";

impl Store {
    /// Adds a key of a kind. The time from its making to its end is the lifetime that rotations give it again.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when its id or its SHA-256 is taken; otherwise when the store fails.
    pub async fn create_key(&self, record: &KeyRecord, kind: KeyKind, by: By<'_>) -> Result<StoredKey, StoreError> {
        let mut transaction = self.begin().await?;
        let KeyRecord { id, mac, previous, sha256, team, caller, aliases, limits, admin, .. } = record;
        let KeyRecord { created, expires, revoked, last4, last_used, .. } = record;
        let made = sqlx::query(INSERT)
            .bind(id.as_str())
            .bind(mac.map(|mac| mac.as_bytes().to_vec()))
            .bind(previous.map(|previous| previous.mac.as_bytes().to_vec()))
            .bind(previous.map(|previous| previous.until.ms))
            .bind(sha256.map(|digest| digest.0.to_vec()))
            .bind(team.as_str())
            .bind(caller.as_str())
            .bind(aliases.as_ref().map(to_json).transpose()?)
            .bind(to_json(limits)?)
            .bind(*admin)
            .bind(created.ms)
            .bind(expires.map(|at| at.ms))
            .bind(revoked.map(|at| at.ms))
            .bind(&**last4)
            .bind(last_used.get().map(|at| at.ms))
            .bind(kind_text(kind))
            .bind(expires.map(|at| at.ms.saturating_sub(created.ms).max(0)))
            .execute(&mut *transaction)
            .await?;
        if made.rows_affected() == 0 {
            return Err(StoreError::Exists(format!("key {id}")));
        }
        let detail = serde_json::json!({
            "team": team, "caller": caller, "aliases": aliases, "limits": limits, "admin": admin, "expires": expires,
            "kind": kind_text(kind),
        });
        self.changed(transaction, by, "key.create", id, &detail).await
    }

    /// Every key, revoked and expired ones included, oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn keys(&self) -> Result<Vec<StoredKey>, StoreError> {
        sqlx::query(SELECT).fetch_all(&self.reader).await?.iter().map(read_key).collect()
    }

    /// Every key, and the generation they belong to: read in one transaction, so that snapshots can be ordered.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn key_snapshot(&self) -> Result<KeySnapshot, StoreError> {
        let mut transaction = Transaction::begin(&self.reader, Purpose::Read).await?;
        let generation = sqlx::query(GENERATION).fetch_one(&mut *transaction).await?.try_get::<i64, _>(0)?;
        let rows = sqlx::query(SELECT).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        let keys = rows.iter().map(read_key).collect::<Result<_, _>>()?;
        Ok(KeySnapshot { generation: generation.unsigned_abs(), keys })
    }

    /// One key.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn key(&self, id: &KeyId) -> Result<Option<StoredKey>, StoreError> {
        let mut connection = self.reader.acquire().await?;
        find(&mut connection, id).await
    }

    /// Gives a key a new secret; the one before is accepted until the rotation's end of grace. The key expires its
    /// granted lifetime after `by.at`. Key id, kind, lifetime, team, caller, scope, limits and usage stay.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Conflict`] when it was changed since, [`StoreError::Refused`] when it is
    /// revoked or imported (there is no MAC to keep for the time of grace); otherwise when the store fails.
    pub async fn rotate_key(&self, id: &KeyId, rotation: &Rotation, by: By<'_>) -> Result<StoredKey, StoreError> {
        let mut transaction = self.begin().await?;
        let Some(now) = find(&mut transaction, id).await? else { return Err(not_found(id)) };
        if now.version != rotation.version {
            return Err(StoreError::Conflict(format!("key {id}")));
        }
        if now.record.revoked.is_some() {
            return Err(StoreError::Refused(format!("key {id} is revoked")));
        }
        if now.record.mac.is_none() {
            return Err(StoreError::Refused(format!("key {id} was imported: make a new key and revoke this one")));
        }
        sqlx::query(ROTATE)
            .bind(id.as_str())
            .bind(to_version(rotation.version))
            .bind(rotation.previous_until.ms)
            .bind(rotation.mac.as_bytes().to_vec())
            .bind(&*rotation.last4)
            .bind(by.at.ms)
            .execute(&mut *transaction)
            .await?;
        let expires = now.lifetime.map(|lifetime| Unix::from_ms(by.at.ms.saturating_add(lifetime.as_millis() as i64)));
        let detail = serde_json::json!({"previousUntil": rotation.previous_until, "expires": expires});
        self.changed(transaction, by, "key.rotate", id, &detail).await
    }

    /// Revokes a key, both secrets of it. A key that is revoked already stays as it is.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; otherwise when the store fails.
    pub async fn revoke_key(&self, id: &KeyId, by: By<'_>) -> Result<StoredKey, StoreError> {
        let mut transaction = self.begin().await?;
        let revoked = sqlx::query(REVOKE).bind(id.as_str()).bind(by.at.ms).execute(&mut *transaction).await?;
        if revoked.rows_affected() == 0 {
            return find(&mut transaction, id).await?.ok_or_else(|| not_found(id));
        }
        self.changed(transaction, by, "key.revoke", id, &serde_json::json!({})).await
    }

    /// Notes when keys were last used: many at once, never backwards. No change that others have to know of.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn touch_keys(&self, uses: &[(KeyId, Unix)]) -> Result<(), StoreError> {
        if uses.is_empty() {
            return Ok(());
        }
        let mut latest: std::collections::BTreeMap<&KeyId, Unix> = std::collections::BTreeMap::new();
        for (id, at) in uses {
            let known = latest.entry(id).or_insert(*at);
            *known = (*known).max(*at);
        }
        let latest: Vec<_> = latest.into_iter().collect();
        sqlx::query(TOUCH).bind(to_json(&latest)?).execute(&self.writer).await?;
        Ok(())
    }

    /// Ends a change of a key: audit row, generation, commit, and the key as it is now.
    async fn changed<T: Serialize + Sync>(
        &self,
        mut transaction: Transaction,
        by: By<'_>,
        action: &'static str,
        id: &KeyId,
        detail: &T,
    ) -> Result<StoredKey, StoreError> {
        audit::note(&mut transaction, by, action, id.as_str(), detail).await?;
        raise(&mut transaction, "keys").await?;
        let now = find(&mut transaction, id).await?.ok_or_else(|| not_found(id))?;
        transaction.commit().await?;
        Ok(now)
    }
}

fn not_found(id: &KeyId) -> StoreError {
    StoreError::NotFound(format!("key {id}"))
}

const fn kind_text(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Live => "live",
        KeyKind::Test => "test",
    }
}

fn read_kind(text: &str) -> Result<KeyKind, StoreError> {
    match text {
        "live" => Ok(KeyKind::Live),
        "test" => Ok(KeyKind::Test),
        other => Err(StoreError::Corrupt(format!("keys.kind is {other:?}"))),
    }
}

fn to_version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

async fn find(connection: &mut SqliteConnection, id: &KeyId) -> Result<Option<StoredKey>, StoreError> {
    sqlx::query(SELECT_ONE).bind(id.as_str()).fetch_optional(connection).await?.as_ref().map(read_key).transpose()
}

fn read_key(row: &SqliteRow) -> Result<StoredKey, StoreError> {
    let text = |column: &str| row.try_get::<&str, _>(column);
    let at = |column: &str| row.try_get::<Option<i64>, _>(column).map(|ms| ms.map(Unix::from_ms));
    let previous = match (digest(row, "previous_mac")?, at("previous_until")?) {
        (Some(mac), Some(until)) => Some(PreviousMac { mac: Mac::from_bytes(mac), until }),
        (_, _) => None,
    };
    let aliases: Option<&str> = row.try_get("aliases")?;
    let aliases: Option<BTreeSet<AliasName>> = aliases.map(parse).transpose()?;
    let limits: Limits = parse(text("limits")?)?;
    Ok(StoredKey {
        version: row.try_get::<i64, _>("version")?.unsigned_abs(),
        kind: read_kind(text("kind")?)?,
        lifetime: row.try_get::<Option<i64>, _>("lifetime_ms")?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        record: KeyRecord {
            id: text("id")?.into(),
            mac: digest(row, "mac")?.map(Mac::from_bytes),
            previous,
            sha256: digest(row, "sha256")?.map(Sha256Digest),
            team: text("team")?.into(),
            caller: text("caller")?.into(),
            aliases,
            limits,
            admin: row.try_get("admin")?,
            created: Unix::from_ms(row.try_get("created_ms")?),
            expires: at("expires_ms")?,
            revoked: at("revoked_ms")?,
            last4: text("last4")?.into(),
            last_used: LastUsed::new(at("last_used_ms")?),
        },
    })
}

fn digest(row: &SqliteRow, column: &str) -> Result<Option<[u8; 32]>, StoreError> {
    let Some(bytes) = row.try_get::<Option<&[u8]>, _>(column)? else { return Ok(None) };
    let digest = <[u8; 32]>::try_from(bytes);
    digest.map(Some).map_err(|_| StoreError::Corrupt(format!("keys.{column} is not 32 bytes")))
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}
