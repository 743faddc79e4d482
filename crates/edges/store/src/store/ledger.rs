//! Appending entries, and reading single ones back.
//!
//! An entry is about a dozen texts that repeat from entry to entry and a few numbers that do not. The texts that sums
//! are grouped by become a subject with a number, written once; the row carries the number. So one row costs a few
//! microseconds in one statement over the whole batch, and the sums per quarter of an hour, changed in the same
//! transaction, cost next to nothing.

use std::collections::hash_map;

use ahash::{AHashMap, AHashSet};
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::{Entry, Outcome, RequestId, Unix};

use super::row::{BatchRows, Detail, INSERT};
use super::usage::{QUARTER_MS, UsageSums};
use super::{Store, StoreError, Transaction};
use crate::entry_ref::EntryRef;
use crate::failpoint;

/// Most tokens that one entry's counts can say: an engine that reports more is wrong, and no sum of real entries must
/// ever overflow.
pub const TOKENS_MAX: u64 = 1 << 40;
/// Subjects whose number is remembered.
const SUBJECTS_MAX: usize = 64 * 1024;
/// Most entries that one page gives.
const PAGE_MAX: u32 = 1_000;
/// How a request ended; other kinds are for later, better figures.
const FINAL: i64 = 0;

/// What an append did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Entries that are new.
    pub inserted: usize,
    /// Entries that were there already.
    pub duplicates: usize,
}

/// Which entries to read.
#[derive(Clone, Debug)]
pub struct EntryQuery {
    /// First instant, inclusive.
    pub from: Unix,
    /// Last instant, exclusive.
    pub until: Unix,
    /// Only those behind this instant and id: those of the last of the page before.
    pub after: Option<(Unix, RequestId)>,
    /// Most entries to give; 1,000 at most.
    pub limit: u32,
}

/// Who and what an entry is booked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    texts: [Box<str>; 7],
}

impl Subject {
    fn texts_of<'a>(entry: &EntryRef<'a>) -> [&'a str; 7] {
        [
            entry.team,
            entry.issuer,
            entry.caller,
            entry.key.unwrap_or_default(),
            entry.alias.unwrap_or_default(),
            entry.served_alias.unwrap_or_default(),
            entry.model.unwrap_or_default(),
        ]
    }
}

/// Subjects met for the first time and their numbers: to be remembered when they are committed.
type Learned<'a> = Vec<([&'a str; 7], i64)>;

/// Numbers of subjects that are committed.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    known: AHashMap<u64, Vec<(Subject, i64)>>,
    count: usize,
    hasher: ahash::RandomState,
}

impl Subjects {
    /// Found by its texts without copying them.
    fn get(&self, texts: &[&str; 7]) -> Option<i64> {
        let same = |subject: &Subject| subject.texts.iter().zip(texts).all(|(ours, theirs)| **ours == **theirs);
        let candidates = self.known.get(&self.hasher.hash_one(texts))?;
        candidates.iter().find(|(subject, _)| same(subject)).map(|(_, number)| *number)
    }

    fn learn(&mut self, texts: &[&str; 7], number: i64) {
        if self.get(texts).is_some() {
            return;
        }
        if self.count >= SUBJECTS_MAX {
            self.known.clear();
            self.count = 0;
        }
        self.count += 1;
        let subject = Subject { texts: texts.map(Box::from) };
        self.known.entry(self.hasher.hash_one(texts)).or_default().push((subject, number));
    }
}

const ADD_USAGE: &str = "
    INSERT INTO usage (quarter, subject, requests, ok, failed, cancelled, orphaned,
                       prompt_tokens, cached_tokens, output_tokens)
    SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6,
           e.value ->> 7, e.value ->> 8, e.value ->> 9
    FROM json_each(?1) AS e WHERE true
    ON CONFLICT (quarter, subject) DO UPDATE SET
        requests = requests + excluded.requests, ok = ok + excluded.ok, failed = failed + excluded.failed,
        cancelled = cancelled + excluded.cancelled, orphaned = orphaned + excluded.orphaned,
        prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        cached_tokens = cached_tokens + excluded.cached_tokens,
        output_tokens = output_tokens + excluded.output_tokens";

const ADD_SUBJECTS: &str = "
    INSERT INTO subject (team, issuer, caller, key, alias, served_alias, model)
    SELECT e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5, e.value ->> 6
    FROM json_each(?1) AS e WHERE true
    ON CONFLICT DO NOTHING";

const FIND_SUBJECTS: &str = "
    SELECT e.key, s.subject
    FROM json_each(?1) AS e
    CROSS JOIN subject AS s ON s.team = e.value ->> 0 AND s.issuer = e.value ->> 1 AND s.caller = e.value ->> 2
        AND s.key = e.value ->> 3 AND s.alias = e.value ->> 4 AND s.served_alias = e.value ->> 5
        AND s.model = e.value ->> 6";

const FIND_IDS: &str = "
    SELECT l.id FROM json_each(?1) AS e CROSS JOIN ledger AS l ON l.id = e.value AND l.kind = 0";

impl Store {
    /// Adds entries and their sums in one transaction. An entry whose id is there already changes nothing, whatever
    /// it says: each request has exactly one final record.
    ///
    /// # Errors
    /// When the store fails; then nothing of the batch is in it.
    pub async fn append(&self, entries: &[Entry]) -> Result<Appended, StoreError> {
        let entries: Vec<EntryRef<'_>> = entries.iter().map(EntryRef::from).collect();
        self.append_refs(&entries).await
    }

    /// [`Store::append`] for entries whose texts lie elsewhere.
    pub(crate) async fn append_refs(&self, entries: &[EntryRef<'_>]) -> Result<Appended, StoreError> {
        if entries.is_empty() {
            return Ok(Appended::default());
        }
        failpoint::hit("store.append.before_insert")?;
        let all: Vec<&EntryRef<'_>> = entries.iter().collect();
        let mut transaction = self.begin().await?;
        if let Some(learned) = self.insert(&mut transaction, &all).await? {
            self.commit(transaction, learned).await?;
            return Ok(Appended { inserted: all.len(), duplicates: 0 });
        }
        // Rare: some were delivered before. Sums must count what is new only, so it begins anew with those.
        transaction.rollback().await?;
        self.append_again(entries).await
    }

    /// [`Store::append`] for entries that were probably delivered before, as after a restart: looks first.
    pub(crate) async fn append_again(&self, entries: &[EntryRef<'_>]) -> Result<Appended, StoreError> {
        if entries.is_empty() {
            return Ok(Appended::default());
        }
        failpoint::hit("store.append.before_insert")?;
        let mut transaction = self.begin().await?;
        let ids: Vec<RequestId> = entries.iter().map(|entry| entry.id).collect();
        let mut seen = known(&mut transaction, &ids).await?;
        let fresh: Vec<&EntryRef<'_>> = entries.iter().filter(|entry| seen.insert(entry.id)).collect();
        let appended = Appended { inserted: fresh.len(), duplicates: entries.len() - fresh.len() };
        let Some(learned) = self.insert(&mut transaction, &fresh).await? else {
            return Err(StoreError::Corrupt("an entry is there and is not".to_owned()));
        };
        self.commit(transaction, learned).await?;
        Ok(appended)
    }

    /// Adds entries and their sums. `None` when one of them was there already: then the transaction is good for
    /// nothing but to be rolled back.
    async fn insert<'a>(
        &self,
        connection: &mut SqliteConnection,
        entries: &[&EntryRef<'a>],
    ) -> Result<Option<Learned<'a>>, StoreError> {
        if entries.is_empty() {
            return Ok(Some(Learned::new()));
        }
        let (numbers, learned) = self.number_subjects(connection, entries).await?;
        let (rows, sums) = batch_json(entries, &numbers)?;
        let inserted = sqlx::query(INSERT).bind(rows).execute(&mut *connection).await?.rows_affected();
        if inserted != entries.len() as u64 {
            return Ok(None);
        }
        sqlx::query(ADD_USAGE).bind(sums).execute(connection).await?;
        Ok(Some(learned))
    }

    async fn commit(&self, transaction: Transaction, learned: Learned<'_>) -> Result<(), StoreError> {
        failpoint::hit("store.append.before_commit")?;
        transaction.commit().await?;
        failpoint::passed("store.append.after_commit");
        let mut subjects = self.subjects.lock();
        for (texts, number) in learned {
            subjects.learn(&texts, number);
        }
        Ok(())
    }

    /// The number of each entry's subject, and those that were not known: to be remembered after the commit.
    async fn number_subjects<'a>(
        &self,
        connection: &mut SqliteConnection,
        entries: &[&EntryRef<'a>],
    ) -> Result<(Vec<i64>, Learned<'a>), StoreError> {
        let mut unknown: AHashMap<[&str; 7], i64> = AHashMap::new();
        let mut numbers: Vec<Result<i64, [&str; 7]>> = Vec::with_capacity(entries.len());
        {
            let subjects = self.subjects.lock();
            for entry in entries {
                let texts = Subject::texts_of(entry);
                numbers.push(subjects.get(&texts).ok_or_else(|| {
                    unknown.insert(texts, 0);
                    texts
                }));
            }
        }
        if !unknown.is_empty() {
            let order: Vec<_> = unknown.keys().copied().collect();
            let json = to_json(&order)?;
            sqlx::query(ADD_SUBJECTS).bind(json.as_str()).execute(&mut *connection).await?;
            for row in sqlx::query(FIND_SUBJECTS).bind(json.as_str()).fetch_all(&mut *connection).await? {
                let at: i64 = row.try_get(0)?;
                if let Some(texts) = usize::try_from(at).ok().and_then(|at| order.get(at)) {
                    unknown.insert(*texts, row.try_get(1)?);
                }
            }
        }
        let resolve =
            |number: Result<i64, [&str; 7]>| number.unwrap_or_else(|texts| unknown.get(&texts).copied().unwrap_or(0));
        let numbers = numbers.into_iter().map(resolve).collect();
        Ok((numbers, unknown.into_iter().collect()))
    }

    /// Which of these ids have their final entry.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn known(&self, ids: &[RequestId]) -> Result<AHashSet<RequestId>, StoreError> {
        let mut connection = self.reader.acquire().await?;
        known(&mut connection, ids).await
    }

    /// One entry.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn entry(&self, id: RequestId) -> Result<Option<Entry>, StoreError> {
        let row = sqlx::query(SELECT_ONE).bind(id.to_string()).bind(FINAL).fetch_optional(&self.reader).await?;
        row.as_ref().map(read_entry).transpose()
    }

    /// A page of entries, in the order of their instants and ids.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<Entry>, StoreError> {
        let rows = sqlx::query(SELECT_PAGE)
            .bind(query.from.ms)
            .bind(query.until.ms)
            .bind(query.after.map_or(i64::MIN, |(at, _)| at.ms))
            .bind(query.after.map(|(_, id)| id.to_string()).unwrap_or_default())
            .bind(query.limit.min(PAGE_MAX))
            .bind(FINAL)
            .fetch_all(&self.reader)
            .await?;
        rows.iter().map(read_entry).collect()
    }
}

async fn known(connection: &mut SqliteConnection, ids: &[RequestId]) -> Result<AHashSet<RequestId>, StoreError> {
    let rows = sqlx::query(FIND_IDS).bind(to_json(ids)?).fetch_all(connection).await?;
    rows.iter().map(|row| parse_id(row.try_get(0)?)).collect()
}

const SELECT_ONE: &str = "SELECT * FROM entries WHERE id = ?1 AND kind = ?2";
const SELECT_PAGE: &str = "
    SELECT * FROM entries
    WHERE at_ms >= MAX(?1, ?3) AND at_ms < ?2 AND (at_ms, id) > (?3, ?4) AND kind = ?6
    ORDER BY at_ms, id LIMIT ?5";

pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Io(error.to_string()))
}

/// The batch's rows, in the order of their ids so that they are appended, and its sums.
fn batch_json(entries: &[&EntryRef<'_>], subjects: &[i64]) -> Result<(String, String), StoreError> {
    let mut order: Vec<(&EntryRef<'_>, i64)> = entries.iter().copied().zip(subjects.iter().copied()).collect();
    order.sort_unstable_by_key(|(entry, _)| entry.id);
    let mut sums: AHashMap<(i64, i64), UsageSums> = AHashMap::new();
    let mut rows = BatchRows::with_capacity(entries.len());
    for (entry, subject) in &order {
        let tokens =
            [entry.prompt_tokens, entry.cached_tokens, entry.output_tokens].map(|tokens| tokens.min(TOKENS_MAX));
        rows.push(entry, *subject, tokens);
        let sum = match sums.entry((entry.at.ms.div_euclid(QUARTER_MS), *subject)) {
            hash_map::Entry::Occupied(sum) => sum.into_mut(),
            hash_map::Entry::Vacant(place) => place.insert(UsageSums::default()),
        };
        sum.add_entry(entry.outcome, tokens);
    }
    let sums: Vec<_> = sums
        .iter()
        .map(|((quarter, subject), s)| {
            let counts = (s.requests, s.ok, s.failed, s.cancelled, s.orphaned);
            let tokens = (s.prompt_tokens, s.cached_tokens, s.output_tokens);
            (quarter, subject, counts.0, counts.1, counts.2, counts.3, counts.4, tokens.0, tokens.1, tokens.2)
        })
        .collect();
    Ok((rows.finish(), to_json(&sums)?))
}

fn parse_id(text: &str) -> Result<RequestId, StoreError> {
    RequestId::parse(text).ok_or_else(|| StoreError::Corrupt(format!("`{text}` is not an id")))
}

fn read_entry(row: &SqliteRow) -> Result<Entry, StoreError> {
    let detail = Detail::parse(row.try_get("detail")?)?;
    let outcome: &str = row.try_get("outcome")?;
    let outcome = [Outcome::Ok, Outcome::Cancelled, Outcome::Failed, Outcome::Orphaned]
        .into_iter()
        .find(|known| known.as_str() == outcome)
        .ok_or_else(|| StoreError::Corrupt(format!("`{outcome}` is not an outcome")))?;
    let text = |column: &str| row.try_get::<&str, _>(column);
    let tokens = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
    Ok(Entry {
        id: parse_id(text("id")?)?,
        request_id: detail.request_id,
        at: Unix::from_ms(row.try_get("at_ms")?),
        issuer: text("issuer")?.into(),
        caller: text("caller")?.into(),
        team: text("team")?.into(),
        key: some(text("key")?),
        endpoint: detail.endpoint,
        alias: some(text("alias")?),
        served_alias: some(text("served_alias")?),
        model: some(text("model")?),
        deployment: detail.deployment.map(|name| (&*name).into()),
        replica: detail.replica.map(|name| (&*name).into()),
        engine_id: detail.engine_id,
        outcome,
        fault: detail.fault,
        code: detail.code,
        status: detail.status,
        streamed: detail.streamed,
        attempts: detail.attempts,
        source: detail.source,
        prompt_tokens: tokens("prompt_tokens")?,
        cached_tokens: tokens("cached_tokens")?,
        output_tokens: tokens("output_tokens")?,
        reserved_tokens: detail.reserved_tokens,
        queue_us: detail.queue_us,
        ttft_us: detail.ttft_us,
        total_us: detail.total_us,
    })
}

/// A name from a column where '' means none.
pub(super) fn some<'a, T: From<&'a str>>(text: &'a str) -> Option<T> {
    (!text.is_empty()).then(|| text.into())
}
