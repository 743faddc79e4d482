//! Making, listing, rotating and revoking API keys. A secret is shown once, in the answer that made it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Extension, Json, Path, Query, State};
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, CallerName, Case, Fault, KeyId, Limits, TeamName, Unix};
use tidegate_identity::{ApiKey, KeyKind, KeyRecord, Keyring, Keys as _, LastUsed, Pepper};
use tidegate_store::store::{By, Rotation, StoredKey};
use tidegate_store::{Store, StoreError};

use crate::Console;
use crate::auth::{Actor, now};
use crate::problem::{self, Problem};

/// Longest life of a key.
pub const LIFETIME_MAX: Duration = Duration::from_secs(90 * 86_400);
/// Longest time that two secrets of one key are valid.
pub const GRACE_MAX: Duration = Duration::from_secs(7 * 86_400);
const LIFETIME_DEFAULT: Duration = Duration::from_secs(30 * 86_400);
const GRACE_DEFAULT: Duration = Duration::from_secs(86_400);
/// Longest caller name in bytes.
const CALLER_MAX: usize = 256;
/// Aliases that one key may be restricted to.
const ALIASES_MAX: usize = 256;

/// A key to be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct CreateKey {
    /// The team; may be left out for an admin key.
    pub team: Option<String>,
    /// The caller; default the key's id.
    pub caller: Option<String>,
    /// The only aliases it may use; empty means all of the team's.
    pub aliases: Vec<String>,
    /// Seconds it is valid; default 30 days, at most 90.
    pub expires_in_seconds: Option<u64>,
    /// Limits of this key alone.
    pub limits: Limits,
    /// For the admin port only.
    pub admin: bool,
    /// `tg_test_` instead of `tg_live_`.
    pub test: bool,
}

/// A new secret for a key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct RotateKey {
    /// Seconds that the old secret stays valid; default 24 h, at most 7 days.
    pub grace_seconds: Option<u64>,
}

/// What is known of a key; never its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyView {
    /// Its id.
    pub id: KeyId,
    /// Its team.
    pub team: TeamName,
    /// Its caller.
    pub caller: CallerName,
    /// The only aliases it may use.
    pub aliases: Option<BTreeSet<AliasName>>,
    /// Its own limits.
    pub limits: Limits,
    /// Whether it is for the admin port.
    pub admin: bool,
    /// `live` or `test`, as its secret says.
    pub kind: String,
    /// `valid`, `expired` or `revoked`.
    pub state: String,
    /// Last four characters of the secret.
    pub last4: String,
    /// When it was made.
    pub created: Unix,
    /// When it expires.
    pub expires: Option<Unix>,
    /// When it was last accepted.
    pub last_used: Option<Unix>,
    /// Until when the secret before the last rotation is valid too.
    pub previous_until: Option<Unix>,
}

/// A key that was made or rotated: the only time its secret is seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreatedKey {
    /// The key itself.
    pub secret: String,
    /// The key.
    #[serde(flatten)]
    pub key: KeyView,
}

fn view(StoredKey { record, kind, .. }: &StoredKey) -> KeyView {
    let kind = match kind {
        KeyKind::Live => "live",
        KeyKind::Test => "test",
    };
    let state = match record.in_force(now()) {
        Ok(()) => "valid",
        Err(tidegate_identity::record::NotValid::Revoked) => "revoked",
        Err(tidegate_identity::record::NotValid::Expired) => "expired",
    };
    KeyView {
        id: record.id.clone(),
        team: record.team.clone(),
        caller: record.caller.clone(),
        aliases: record.aliases.clone(),
        limits: record.limits,
        admin: record.admin,
        kind: kind.to_owned(),
        state: state.to_owned(),
        last4: record.last4.to_string(),
        created: record.created,
        expires: record.expires,
        last_used: record.last_used.get(),
        previous_until: record.previous.map(|previous| previous.until).filter(|until| *until > now()),
    }
}

pub(crate) async fn create(
    State(console): State<Console>,
    Extension(Actor(who)): Extension<Actor>,
    body: Result<Json<CreateKey>, JsonRejection>,
) -> Result<Json<CreatedKey>, Problem> {
    let Json(wanted) = body.map_err(|rejection| problem::body(&rejection))?;
    let kind = if wanted.test { KeyKind::Test } else { KeyKind::Live };
    let key = ApiKey::generate(kind).map_err(|error| no_random(&error))?;
    let record = record(&console, wanted, &key)?;
    let made = console.store.create_key(&record, kind, By { who: &who, at: now() }).await?;
    refresh(&console).await?;
    Ok(Json(CreatedKey { secret: key.reveal().to_owned(), key: view(&made) }))
}

fn record(console: &Console, wanted: CreateKey, key: &ApiKey) -> Result<KeyRecord, Problem> {
    let team = match wanted.team.map(TeamName::from) {
        Some(team) if console.panel.has_team(&team) => team,
        Some(team) => return Err(problem::invalid("team", format!("there is no team {team:?} in the documents"))),
        None if wanted.admin => TeamName::from("admin"),
        None => return Err(problem::invalid("team", "a key belongs to a team")),
    };
    let id = key.key_id();
    let caller = match wanted.caller {
        None => CallerName::from(id.as_str()),
        Some(name) if name.is_empty() || name.len() > CALLER_MAX || name.contains(char::is_control) => {
            return Err(problem::invalid("caller", format!("a caller is 1 to {CALLER_MAX} bytes of plain text")));
        }
        Some(name) => CallerName::from(name),
    };
    if wanted.aliases.len() > ALIASES_MAX {
        return Err(problem::invalid("aliases", format!("a key may name at most {ALIASES_MAX} aliases")));
    }
    let aliases: BTreeSet<_> = wanted.aliases.into_iter().map(AliasName::from).collect();
    let lifetime = wanted.expires_in_seconds.map_or(LIFETIME_DEFAULT, Duration::from_secs);
    if lifetime.is_zero() || lifetime > LIFETIME_MAX {
        return Err(problem::invalid("expiresInSeconds", "a key lives for at most 90 days"));
    }
    let created = now();
    Ok(KeyRecord {
        id,
        mac: Some(console.keyring.load().pepper().mac(key)),
        previous: None,
        sha256: None,
        team,
        caller,
        aliases: (!aliases.is_empty()).then_some(aliases),
        limits: wanted.limits,
        admin: wanted.admin,
        created,
        expires: Some(after(created, lifetime)),
        revoked: None,
        last4: key.last4().into(),
        last_used: LastUsed::default(),
    })
}

fn after(instant: Unix, by: Duration) -> Unix {
    Unix::from_ms(instant.ms.saturating_add(by.as_millis() as i64))
}

fn no_random(error: &dyn std::fmt::Display) -> Problem {
    Problem(Fault::new(Case::Internal).internal(error.to_string()))
}

/// Which keys.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    team: Option<String>,
}

pub(crate) async fn list(
    State(console): State<Console>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Vec<KeyView>>, Problem> {
    let Query(query) = query.map_err(|rejection| problem::invalid("query", rejection.body_text()))?;
    let keys = console.store.keys().await?;
    let wanted = |key: &StoredKey| query.team.as_ref().is_none_or(|team| key.record.team.as_str() == team);
    let keyring = console.keyring.load();
    let fresh = |key: &StoredKey| {
        // The process notes uses in memory first.
        let used = keyring.by_id(key.record.id.as_str()).and_then(|known| known.last_used.get());
        let mut view = view(key);
        view.last_used = view.last_used.max(used);
        view
    };
    Ok(Json(keys.iter().filter(|key| wanted(key)).map(fresh).collect()))
}

pub(crate) async fn rotate(
    State(console): State<Console>,
    Extension(Actor(who)): Extension<Actor>,
    Path(id): Path<String>,
    body: Result<Json<RotateKey>, JsonRejection>,
) -> Result<Json<CreatedKey>, Problem> {
    let Json(wanted) = body.map_err(|rejection| problem::body(&rejection))?;
    let grace = wanted.grace_seconds.map_or(GRACE_DEFAULT, Duration::from_secs);
    if grace > GRACE_MAX {
        return Err(problem::invalid("graceSeconds", "two secrets are valid for at most 7 days"));
    }
    let id = KeyId::from(id);
    let stored = console.store.key(&id).await?.ok_or_else(|| no_key(&id))?;
    let key = ApiKey::rotate(stored.kind, &id).map_err(|error| no_random(&error))?;
    let at = now();
    let rotation = Rotation {
        version: stored.version,
        mac: console.keyring.load().pepper().mac(&key),
        last4: key.last4().into(),
        previous_until: after(at, grace),
    };
    let rotated = console.store.rotate_key(&id, &rotation, By { who: &who, at }).await?;
    refresh(&console).await?;
    Ok(Json(CreatedKey { secret: key.reveal().to_owned(), key: view(&rotated) }))
}

pub(crate) async fn revoke(
    State(console): State<Console>,
    Extension(Actor(who)): Extension<Actor>,
    Path(id): Path<String>,
) -> Result<Json<KeyView>, Problem> {
    let revoked = console.store.revoke_key(&KeyId::from(id), By { who: &who, at: now() }).await?;
    refresh(&console).await?;
    Ok(Json(view(&revoked)))
}

fn no_key(id: &KeyId) -> Problem {
    Problem(Fault::new(Case::UnknownPath).saying(format!("there is no key {id:?}")))
}

/// The change is felt by the next request of this process, without waiting for the watcher.
async fn refresh(console: &Console) -> Result<(), StoreError> {
    let before = Arc::clone(&console.keyring.load());
    let keyring = load_keyring(&console.store, Arc::clone(before.shared_pepper()), Some(&before)).await?;
    console.keyring.replace(keyring);
    Ok(())
}

/// All keys of the store as one snapshot, which carries its generation: several may read at once, and the latest stays
/// in force whoever comes last. Uses noted in `before` and not yet stored are carried over.
///
/// # Errors
/// When the store fails.
pub async fn load_keyring(store: &Store, pepper: Arc<Pepper>, before: Option<&Keyring>) -> Result<Keyring, StoreError> {
    let snapshot = store.key_snapshot().await?;
    let records = snapshot.keys.into_iter().map(|key| {
        let known = before.and_then(|before| before.by_id(key.record.id.as_str()));
        if let Some(used) = known.and_then(|known| known.last_used.get()) {
            key.record.last_used.note(used);
        }
        Arc::new(key.record)
    });
    Ok(Keyring::new(pepper, records).with_generation(snapshot.generation))
}
