//! Sums over the ledger: who used what, when.
//!
//! A query's span is cut into periods of a zone's calendar; whole quarters of an hour in them come from the sums that
//! [`Store::append`] keeps, what is left at the edges from the entries themselves. Both are read in one transaction,
//! so that the parts of an answer are of one instant and add up.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{Span, Zoned};
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tidegate_core::{AliasName, CallerName, KeyId, Level, ModelName, Outcome, TeamName, Unix};

use super::ledger::{some, to_json};
use super::{Purpose, Store, StoreError, Transaction};

/// A quarter of an hour in milliseconds: every zone's hours, days and months begin on one.
pub(super) const QUARTER_MS: i64 = 900_000;
/// Most periods in one answer: 13 months of hours.
pub const PERIODS_MAX: usize = 10_000;
/// Most rows in one answer.
pub const ROWS_MAX: usize = 100_000;

/// The length of a row's period, in the query's zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bucket {
    /// A clock hour.
    Hour,
    /// A civil day, of 23 to 25 hours where clocks change.
    Day,
    /// A civil month.
    Month,
    /// The whole span.
    #[default]
    Total,
}

/// What rows are told apart by, besides their period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupBy {
    /// By team.
    pub team: bool,
    /// By caller: issuer and subject.
    pub caller: bool,
    /// By API key.
    pub key: bool,
    /// By the name asked for.
    pub alias: bool,
    /// By model.
    pub model: bool,
}

/// Only entries that match all that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageFilter {
    /// Of this team.
    pub team: Option<TeamName>,
    /// Of this caller, of whatever issuer.
    pub caller: Option<CallerName>,
    /// With this key.
    pub key: Option<KeyId>,
    /// Asking for this alias.
    pub alias: Option<AliasName>,
    /// Served by this model.
    pub model: Option<ModelName>,
}

/// What to sum.
#[derive(Clone, Debug)]
pub struct UsageQuery {
    /// First instant of acceptance, inclusive.
    pub from: Unix,
    /// Last instant, exclusive.
    pub until: Unix,
    /// What rows are told apart by.
    pub group_by: GroupBy,
    /// The length of a row's period.
    pub bucket: Bucket,
    /// Whose calendar.
    pub zone: TimeZone,
    /// Which entries.
    pub filter: UsageFilter,
}

/// Sums. `requests` is always `ok + failed + cancelled + orphaned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageSums {
    /// Accepted requests, refused ones included.
    pub requests: u64,
    /// Answered in full.
    pub ok: u64,
    /// Refused or failed.
    pub failed: u64,
    /// The caller left.
    pub cancelled: u64,
    /// Charged at their estimate because the process died.
    pub orphaned: u64,
    /// Prompt tokens charged, cached ones included.
    pub prompt_tokens: u64,
    /// Of these, tokens from the engine's prefix cache.
    pub cached_tokens: u64,
    /// Output tokens charged.
    pub output_tokens: u64,
}

impl UsageSums {
    /// Tokens charged.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens + self.output_tokens
    }

    pub(super) const fn add_entry(&mut self, outcome: Outcome, [prompt, cached, output]: [u64; 3]) {
        self.requests += 1;
        match outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Cancelled => self.cancelled += 1,
            Outcome::Orphaned => self.orphaned += 1,
        }
        self.prompt_tokens += prompt;
        self.cached_tokens += cached;
        self.output_tokens += output;
    }

    /// Adds other sums.
    pub const fn add(&mut self, other: &Self) {
        let Self { requests, ok, failed, cancelled, orphaned, prompt_tokens, cached_tokens, output_tokens } = *other;
        self.requests += requests;
        self.ok += ok;
        self.failed += failed;
        self.cancelled += cancelled;
        self.orphaned += orphaned;
        self.prompt_tokens += prompt_tokens;
        self.cached_tokens += cached_tokens;
        self.output_tokens += output_tokens;
    }
}

/// One row of an answer. A name is `None` when rows are not told apart by it, or when the entries have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsageRow {
    /// First instant of the period, inclusive; cut to the query's span.
    pub from: Unix,
    /// Last instant, exclusive.
    pub until: Unix,
    /// The team.
    pub team: Option<TeamName>,
    /// Who vouches for the caller.
    pub issuer: Option<Box<str>>,
    /// The caller inside its issuer.
    pub caller: Option<CallerName>,
    /// The key.
    pub key: Option<KeyId>,
    /// The name asked for.
    pub alias: Option<AliasName>,
    /// The model.
    pub model: Option<ModelName>,
    /// The sums.
    #[serde(flatten)]
    pub sums: UsageSums,
}

/// Charged tokens of one subject of a level since an instant: what a quota has to start with. Names that are no part
/// of the level are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodSum {
    /// The team; of the levels team, team+alias and caller.
    pub team: Option<TeamName>,
    /// The alias that was charged: the one that served, where a fallback or substitute did.
    pub alias: Option<AliasName>,
    /// Who vouches for the caller.
    pub issuer: Option<Box<str>>,
    /// The caller of the team.
    pub caller: Option<CallerName>,
    /// The key.
    pub key: Option<KeyId>,
    /// Tokens charged.
    pub tokens: u64,
}

const SUM_QUARTERS: &str = "
    SELECT p.key,
           CASE WHEN ?2 THEN s.team ELSE '' END, CASE WHEN ?3 THEN s.issuer ELSE '' END,
           CASE WHEN ?3 THEN s.caller ELSE '' END, CASE WHEN ?4 THEN s.key ELSE '' END,
           CASE WHEN ?5 THEN s.alias ELSE '' END, CASE WHEN ?6 THEN s.model ELSE '' END,
           SUM(u.requests), SUM(u.ok), SUM(u.failed), SUM(u.cancelled), SUM(u.orphaned),
           SUM(u.prompt_tokens), SUM(u.cached_tokens), SUM(u.output_tokens)
    FROM json_each(?1) AS p
    CROSS JOIN usage AS u ON u.quarter >= p.value ->> 0 AND u.quarter < p.value ->> 1
    CROSS JOIN subject AS s ON s.subject = u.subject
    WHERE (?7 IS NULL OR s.team = ?7) AND (?8 IS NULL OR s.caller = ?8) AND (?9 IS NULL OR s.key = ?9)
      AND (?10 IS NULL OR s.alias = ?10) AND (?11 IS NULL OR s.model = ?11)
    GROUP BY 1, 2, 3, 4, 5, 6, 7 LIMIT ?12";

const SUM_ENTRIES: &str = "
    SELECT p.value ->> 2,
           CASE WHEN ?2 THEN s.team ELSE '' END, CASE WHEN ?3 THEN s.issuer ELSE '' END,
           CASE WHEN ?3 THEN s.caller ELSE '' END, CASE WHEN ?4 THEN s.key ELSE '' END,
           CASE WHEN ?5 THEN s.alias ELSE '' END, CASE WHEN ?6 THEN s.model ELSE '' END,
           COUNT(*), SUM(l.outcome = 'ok'), SUM(l.outcome = 'failed'), SUM(l.outcome = 'cancelled'),
           SUM(l.outcome = 'orphaned'),
           SUM(l.prompt_tokens), SUM(l.cached_tokens), SUM(l.output_tokens)
    FROM json_each(?1) AS p
    CROSS JOIN ledger AS l ON l.at_ms >= p.value ->> 0 AND l.at_ms < p.value ->> 1 AND l.kind = 0
    CROSS JOIN subject AS s ON s.subject = l.subject
    WHERE (?7 IS NULL OR s.team = ?7) AND (?8 IS NULL OR s.caller = ?8) AND (?9 IS NULL OR s.key = ?9)
      AND (?10 IS NULL OR s.alias = ?10) AND (?11 IS NULL OR s.model = ?11)
    GROUP BY 1, 2, 3, 4, 5, 6, 7 LIMIT ?12";

/// Charged tokens by level: `?2` is the level's number, see [`level_number`].
const PERIOD_SUMS: &str = "
    WITH part AS (
        SELECT subject, SUM(prompt_tokens + output_tokens) AS tokens
        FROM usage WHERE quarter >= ?1 GROUP BY subject
        UNION ALL
        SELECT subject, SUM(prompt_tokens + output_tokens)
        FROM ledger WHERE at_ms >= ?3 AND at_ms < ?4 AND kind = 0 GROUP BY subject
    )
    SELECT CASE WHEN ?2 IN (0, 4) THEN '' ELSE s.team END,
           CASE WHEN ?2 IN (0, 2) THEN CASE s.served_alias WHEN '' THEN s.alias ELSE s.served_alias END ELSE '' END,
           CASE WHEN ?2 = 3 THEN s.issuer ELSE '' END, CASE WHEN ?2 = 3 THEN s.caller ELSE '' END,
           CASE WHEN ?2 = 4 THEN s.key ELSE '' END, SUM(part.tokens)
    FROM part JOIN subject AS s USING (subject)
    GROUP BY 1, 2, 3, 4, 5 HAVING SUM(part.tokens) > 0";

type Names = [Box<str>; 6];
/// Quarters from, until.
type Quarters = (i64, i64);
/// Milliseconds from, until, and the period they are of.
type Edge = (i64, i64, usize);

impl Store {
    /// Sums the ledger. Rows come in the order of their periods, then of their names; periods and names without
    /// entries have none. The rows of any grouping add up to the same sums.
    ///
    /// # Errors
    /// When the span has more than [`PERIODS_MAX`] periods, the answer more than [`ROWS_MAX`] rows, or the store
    /// fails.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let periods = periods(query)?;
        let (quarters, edges) = split(&periods);
        let mut rows: BTreeMap<(usize, Names), UsageSums> = BTreeMap::new();
        let mut transaction = Transaction::begin(&self.reader, Purpose::Read).await?;
        sum_into(&mut transaction, SUM_QUARTERS, to_json(&quarters)?, query, &mut rows).await?;
        if !edges.is_empty() {
            sum_into(&mut transaction, SUM_ENTRIES, to_json(&edges)?, query, &mut rows).await?;
        }
        transaction.commit().await?;
        let row = |((period, names), sums): ((usize, Names), UsageSums)| {
            let [team, issuer, caller, key, alias, model] = names;
            let (from, until) = periods.get(period).copied().unwrap_or((query.from, query.until));
            UsageRow {
                from,
                until,
                team: some(&team),
                issuer: some(&issuer),
                caller: some(&caller),
                key: some(&key),
                alias: some(&alias),
                model: some(&model),
                sums,
            }
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Charged tokens since an instant (the start of a day or month in some zone), for every subject of a level.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn period_sums(&self, level: Level, since: Unix) -> Result<Vec<PeriodSum>, StoreError> {
        let first_whole = first_whole_quarter(since);
        let rows = sqlx::query(PERIOD_SUMS)
            .bind(first_whole)
            .bind(level_number(level))
            .bind(since.ms)
            .bind(first_whole.saturating_mul(QUARTER_MS))
            .fetch_all(&self.reader)
            .await?;
        let sum = |row: &SqliteRow| {
            Ok(PeriodSum {
                team: some(row.try_get(0)?),
                alias: some(row.try_get(1)?),
                issuer: some(row.try_get(2)?),
                caller: some(row.try_get(3)?),
                key: some(row.try_get(4)?),
                tokens: row.try_get::<i64, _>(5)?.unsigned_abs(),
            })
        };
        rows.iter().map(sum).filter(|sum| !is_nobody(level, sum)).collect()
    }
}

/// Entries without a key or an alias belong to no subject of that level.
fn is_nobody(level: Level, sum: &Result<PeriodSum, StoreError>) -> bool {
    let Ok(sum) = sum else { return false };
    match level {
        Level::Key => sum.key.is_none(),
        Level::Alias | Level::TeamAlias => sum.alias.is_none(),
        Level::Team | Level::Caller => false,
    }
}

const fn level_number(level: Level) -> i64 {
    match level {
        Level::Alias => 0,
        Level::Team => 1,
        Level::TeamAlias => 2,
        Level::Caller => 3,
        Level::Key => 4,
    }
}

async fn sum_into(
    connection: &mut SqliteConnection,
    sql: &'static str,
    spans: String,
    query: &UsageQuery,
    rows: &mut BTreeMap<(usize, Names), UsageSums>,
) -> Result<(), StoreError> {
    let GroupBy { team, caller, key, alias, model } = query.group_by;
    let filter = &query.filter;
    let found = sqlx::query(sql)
        .bind(spans)
        .bind(team)
        .bind(caller)
        .bind(key)
        .bind(alias)
        .bind(model)
        .bind(filter.team.as_ref().map(|name| name.as_str()))
        .bind(filter.caller.as_ref().map(|name| name.as_str()))
        .bind(filter.key.as_ref().map(|name| name.as_str()))
        .bind(filter.alias.as_ref().map(|name| name.as_str()))
        .bind(filter.model.as_ref().map(|name| name.as_str()))
        .bind(ROWS_MAX as i64 + 1)
        .fetch_all(connection)
        .await?;
    for row in &found {
        let period: i64 = row.try_get(0)?;
        let mut names = Names::default();
        for (at, name) in names.iter_mut().enumerate() {
            *name = row.try_get::<&str, _>(at + 1)?.into();
        }
        let count = |at: usize| row.try_get::<i64, _>(at + 7).map(i64::unsigned_abs);
        let sums = UsageSums {
            requests: count(0)?,
            ok: count(1)?,
            failed: count(2)?,
            cancelled: count(3)?,
            orphaned: count(4)?,
            prompt_tokens: count(5)?,
            cached_tokens: count(6)?,
            output_tokens: count(7)?,
        };
        rows.entry((usize::try_from(period).unwrap_or(0), names)).or_default().add(&sums);
    }
    if rows.len() > ROWS_MAX {
        return Err(StoreError::TooMuch { what: "rows", found: rows.len(), max: ROWS_MAX });
    }
    Ok(())
}

/// The query's span cut at the zone's hours, days or months.
fn periods(query: &UsageQuery) -> Result<Vec<(Unix, Unix)>, StoreError> {
    let mut periods = Vec::new();
    let mut from = query.from;
    while from < query.until {
        if periods.len() == PERIODS_MAX {
            return Err(StoreError::TooMuch { what: "periods", found: PERIODS_MAX + 1, max: PERIODS_MAX });
        }
        let until = period_end(from, query.bucket, &query.zone).unwrap_or(query.until).min(query.until);
        periods.push((from, until));
        from = until;
    }
    Ok(periods)
}

/// The end of the period that `at` is in; `None` when the calendar ends before it does. Always behind `at`.
fn period_end(at: Unix, bucket: Bucket, zone: &TimeZone) -> Option<Unix> {
    let at_local = at.to_timestamp().to_zoned(zone.clone());
    let end = match bucket {
        Bucket::Total => return None,
        Bucket::Hour => hour_end(&at_local),
        Bucket::Day => at_local.start_of_day().ok().and_then(|start| next_day(&start)),
        Bucket::Month => at_local.first_of_month().ok().and_then(|first| next_month(&first)),
    }?;
    let end = Unix::from_ms(end.timestamp().as_millisecond());
    (end > at).then_some(end)
}

/// The next instant whose local time is a whole hour. Not the civil hour plus one: an hour that a clock change repeats
/// is two periods, and one that it skips is none.
fn hour_end(at: &Zoned) -> Option<Zoned> {
    let into_hour_ms = i64::from(at.minute()) * 60_000 + i64::from(at.second()) * 1_000 + i64::from(at.millisecond());
    let end = at.checked_add(Span::new().milliseconds(3_600_000 - into_hour_ms)).ok()?;
    // Across a change of half an hour the sum is not a whole hour: then the next one after it is.
    if end.minute() == 0 { Some(end) } else { end.checked_add(Span::new().minutes(60 - i64::from(end.minute()))).ok() }
}

fn next_day(start: &Zoned) -> Option<Zoned> {
    start.date().tomorrow().ok()?.to_zoned(start.time_zone().clone()).ok()
}

fn next_month(first: &Zoned) -> Option<Zoned> {
    let next = first.date().first_of_month().checked_add(Span::new().months(1)).ok()?;
    next.to_zoned(first.time_zone().clone()).ok()
}

/// The first quarter that begins at or behind an instant.
const fn first_whole_quarter(at: Unix) -> i64 {
    at.ms.div_euclid(QUARTER_MS) + if at.ms.rem_euclid(QUARTER_MS) == 0 { 0 } else { 1 }
}

/// For each period its whole quarters `[from, until)`, and the edges `[from ms, until ms, period]` beside them.
fn split(periods: &[(Unix, Unix)]) -> (Vec<Quarters>, Vec<Edge>) {
    let mut quarters = Vec::with_capacity(periods.len());
    let mut edges = Vec::new();
    for (at, (from, until)) in periods.iter().enumerate() {
        let first = first_whole_quarter(*from);
        let last = until.ms.div_euclid(QUARTER_MS);
        if first >= last {
            quarters.push((0, 0));
            edges.push((from.ms, until.ms, at));
            continue;
        }
        quarters.push((first, last));
        for (from, until) in [(from.ms, first * QUARTER_MS), (last * QUARTER_MS, until.ms)] {
            if from < until {
                edges.push((from, until, at));
            }
        }
    }
    (quarters, edges)
}
