//! Sums add up exactly, in every grouping and every zone.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use tidegate_core::{Entry, Level, Unix};

use super::Bench;
use super::ledger::{sums_of, total};
use super::make::entry;
use crate::store::{Bucket, GroupBy, PERIODS_MAX, Store, StoreError, UsageFilter, UsageQuery, UsageRow, UsageSums};

/// 2026-03-28T00:00:00Z: the day before clocks change in Europe.
const SATURDAY: Unix = Unix::from_ms(1_774_656_000_000);
const HOUR_MS: i64 = 3_600_000;

/// Entries over three days, at instants that no period begins at.
fn spread() -> Vec<Entry> {
    (0..400_u64).map(|number| entry(number, Unix::from_ms(SATURDAY.ms + number as i64 * 647_011))).collect()
}

fn query(from: Unix, until: Unix) -> UsageQuery {
    UsageQuery {
        from,
        until,
        group_by: GroupBy::default(),
        bucket: Bucket::Total,
        zone: TimeZone::UTC,
        filter: UsageFilter::default(),
    }
}

fn groupings() -> impl Iterator<Item = GroupBy> {
    (0..32_u8).map(|bits| GroupBy {
        team: bits & 1 != 0,
        caller: bits & 2 != 0,
        key: bits & 4 != 0,
        alias: bits & 8 != 0,
        model: bits & 16 != 0,
    })
}

fn sum(rows: &[UsageRow]) -> UsageSums {
    let mut sums = UsageSums::default();
    rows.iter().for_each(|row| sums.add(&row.sums));
    sums
}

/// What a row is told apart by, of an entry.
fn names(entry: &Entry, by: GroupBy) -> [String; 6] {
    let pick = |is_named: bool, text: Option<&str>| text.filter(|_| is_named).unwrap_or_default().to_owned();
    [
        pick(by.team, Some(entry.team.as_str())),
        pick(by.caller, Some(&entry.issuer)),
        pick(by.caller, Some(entry.caller.as_str())),
        pick(by.key, entry.key.as_ref().map(|key| key.as_str())),
        pick(by.alias, entry.alias.as_ref().map(|alias| alias.as_str())),
        pick(by.model, entry.model.as_ref().map(|model| model.as_str())),
    ]
}

fn row_names(row: &UsageRow) -> [String; 6] {
    [
        row.team.as_ref().map(ToString::to_string),
        row.issuer.as_ref().map(ToString::to_string),
        row.caller.as_ref().map(ToString::to_string),
        row.key.as_ref().map(ToString::to_string),
        row.alias.as_ref().map(ToString::to_string),
        row.model.as_ref().map(ToString::to_string),
    ]
    .map(Option::unwrap_or_default)
}

/// Rows of any grouping and period are those of a count by hand, and add up to the whole.
///
/// # Errors
/// When the store fails.
pub async fn every_grouping_adds_up_to_the_same_sums(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("groupings").await?;
    let entries = spread();
    store.append(&entries).await?;
    // Edges within quarters of an hour, so that sums come from both tables.
    let (from, until) = (Unix::from_ms(SATURDAY.ms + 123_456), Unix::from_ms(SATURDAY.ms + 50 * HOUR_MS + 654_321));
    let within: Vec<&Entry> = entries.iter().filter(|entry| entry.at >= from && entry.at < until).collect();
    assert!(within.len() > 200 && within.len() < entries.len());
    for group_by in groupings() {
        for bucket in [Bucket::Hour, Bucket::Day, Bucket::Month, Bucket::Total] {
            let rows = store.usage(&UsageQuery { group_by, bucket, ..query(from, until) }).await?;
            assert_eq!(sum(&rows), sums_of(within.iter().copied()), "{group_by:?} {bucket:?}");
            let mut expected: BTreeMap<[String; 6], UsageSums> = BTreeMap::new();
            for entry in &within {
                expected.entry(names(entry, group_by)).or_default().add(&sums_of([*entry]));
            }
            let mut found: BTreeMap<[String; 6], UsageSums> = BTreeMap::new();
            for row in &rows {
                found.entry(row_names(row)).or_default().add(&row.sums);
                let s = row.sums;
                assert_eq!(s.requests, s.ok + s.failed + s.cancelled + s.orphaned);
            }
            assert_eq!(found, expected, "{group_by:?} {bucket:?}");
        }
    }
    Ok(())
}

/// What a filter keeps and what it drops are the whole.
///
/// # Errors
/// When the store fails.
pub async fn a_filter_and_the_rest_are_the_whole(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("filters").await?;
    let entries = spread();
    store.append(&entries).await?;
    let whole = query(SATURDAY, Unix::from_ms(SATURDAY.ms + 1_000 * HOUR_MS));
    for team in ["team-0", "team-1", "team-2"] {
        let filter = UsageFilter { team: Some(team.into()), alias: Some("alias-1".into()), ..UsageFilter::default() };
        let rows = store.usage(&UsageQuery { filter, ..whole.clone() }).await?;
        let alias = Some("alias-1".into());
        let kept = entries.iter().filter(|entry| entry.team.as_str() == team && entry.alias == alias);
        assert_eq!(sum(&rows), sums_of(kept), "{team}");
    }
    let filter = UsageFilter {
        key: Some("key00003".into()),
        caller: Some("caller-3".into()),
        model: Some("model-1".into()),
        ..UsageFilter::default()
    };
    let rows = store.usage(&UsageQuery { filter: filter.clone(), ..whole.clone() }).await?;
    let kept = entries.iter().filter(|entry| {
        entry.key == filter.key && Some(&entry.caller) == filter.caller.as_ref() && entry.model == filter.model
    });
    assert_eq!(sum(&rows), sums_of(kept));
    let nobody = UsageFilter { team: Some("nobody".into()), ..UsageFilter::default() };
    assert_eq!(store.usage(&UsageQuery { filter: nobody, ..whole }).await?, []);
    Ok(())
}

/// A day has 23, 24 or 25 hours, an hour that a clock change skips is no period and one that it repeats is two, and a
/// zone may be half an hour off.
///
/// # Errors
/// When the store fails.
pub async fn hours_days_and_months_follow_the_zone(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("zones").await?;
    // One entry every 10 minutes over the two clock changes of 2026 in Berlin, and the turn of a month between.
    let march: Vec<Entry> =
        (0..72 * 6).map(|n| entry(n, Unix::from_ms(SATURDAY.ms + n as i64 * 600_000 + 1))).collect();
    let october_start = Unix::from_ms(1_792_800_000_000); // 2026-10-24T00:00:00Z
    let october: Vec<Entry> =
        (0..72 * 6).map(|n| entry(10_000 + n, Unix::from_ms(october_start.ms + n as i64 * 600_000 + 1))).collect();
    store.append(&march).await?;
    store.append(&october).await?;
    for (zone, day, count, bucket, expected) in [
        ("Europe/Berlin", "2026-03-29", 1, Bucket::Day, vec![23 * 6]),
        ("Europe/Berlin", "2026-03-29", 1, Bucket::Hour, vec![6; 23]),
        ("Europe/Berlin", "2026-10-25", 1, Bucket::Day, vec![25 * 6]),
        ("Europe/Berlin", "2026-10-25", 1, Bucket::Hour, vec![6; 25]),
        ("Asia/Kolkata", "2026-03-29", 1, Bucket::Hour, vec![6; 24]),
        ("Asia/Kathmandu", "2026-03-29", 2, Bucket::Day, vec![24 * 6; 2]),
        ("Australia/Lord_Howe", "2026-10-25", 1, Bucket::Day, vec![24 * 6]),
    ] {
        let rows = days(&store, zone, day, count, bucket).await?;
        let requests: Vec<u64> = rows.iter().map(|row| row.sums.requests).collect();
        assert_eq!(requests, expected, "{zone} {day} {bucket:?}");
    }
    let months = days(&store, "Asia/Seoul", "2026-03-01", 31, Bucket::Month).await?;
    assert_eq!((months.len(), sum(&months)), (1, sums_of(&march)));
    let months = days(&store, "Pacific/Chatham", "2026-03-01", 300, Bucket::Month).await?;
    assert_eq!(sum(&months), sums_of(march.iter().chain(&october)));
    assert!(months.windows(2).all(|pair| pair[0].until <= pair[1].from));
    Ok(())
}

/// The rows of some days of a zone.
async fn days(store: &Store, zone: &str, day: &str, days: i64, bucket: Bucket) -> Result<Vec<UsageRow>, StoreError> {
    let invalid = |error: jiff::Error| StoreError::Refused(error.to_string());
    let zone = TimeZone::get(zone).map_err(invalid)?;
    let first: jiff::civil::Date = day.parse().map_err(invalid)?;
    let start = |date: jiff::civil::Date| {
        let start = date.to_zoned(zone.clone()).map_err(invalid)?;
        Ok::<_, StoreError>(Unix::from_ms(start.timestamp().as_millisecond()))
    };
    let behind = first.checked_add(jiff::Span::new().days(days)).map_err(invalid)?;
    let query = query(start(first)?, start(behind)?);
    store.usage(&UsageQuery { bucket, zone: zone.clone(), ..query }).await
}

/// `from` is inclusive and `until` exclusive, to the millisecond.
///
/// # Errors
/// When the store fails.
pub async fn edges_within_a_quarter_of_an_hour_are_exact(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("edges").await?;
    let at = SATURDAY.ms + 7 * 60_000;
    store.append(&[entry(3, Unix::from_ms(at))]).await?;
    for (from, until, expected) in
        [(0, 1, 1), (1, 2, 0), (-1, 0, 0), (-1, 1, 1), (0, 0, 0), (-HOUR_MS, 0, 0), (-HOUR_MS, 1, 1), (0, HOUR_MS, 1)]
    {
        let rows = store.usage(&query(Unix::from_ms(at + from), Unix::from_ms(at + until))).await?;
        assert_eq!(sum(&rows).requests, expected, "{from} to {until}");
    }
    Ok(())
}

/// A query cannot make the store work without bound.
///
/// # Errors
/// When the store fails.
pub async fn a_query_over_too_many_periods_is_refused(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("too much").await?;
    let span = |periods: i64| {
        let until = Unix::from_ms(SATURDAY.ms + periods * HOUR_MS);
        UsageQuery { bucket: Bucket::Hour, ..query(SATURDAY, until) }
    };
    assert_eq!(store.usage(&span(PERIODS_MAX as i64)).await?, []);
    let refused = store.usage(&span(PERIODS_MAX as i64 + 1)).await;
    assert!(matches!(refused, Err(StoreError::TooMuch { what: "periods", .. })), "{refused:?}");
    let endless = UsageQuery { bucket: Bucket::Hour, ..query(Unix::from_ms(i64::MIN), Unix::from_ms(i64::MAX)) };
    assert!(matches!(store.usage(&endless).await, Err(StoreError::TooMuch { .. })));
    Ok(())
}

/// Each level's quota is charged with what its subjects used; a fallback is charged to the alias that served.
///
/// # Errors
/// When the store fails.
pub async fn quota_sums_book_on_the_alias_that_served(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("levels").await?;
    let entries = spread();
    store.append(&entries).await?;
    let tokens = |keep: &dyn Fn(&Entry) -> bool| entries.iter().filter(|e| keep(e)).map(Entry::tokens).sum::<u64>();
    let served = |entry: &Entry| entry.served_alias.clone().or_else(|| entry.alias.clone());
    for level in Level::ALL {
        let sums = store.period_sums(level, SATURDAY).await?;
        let expected = if level == Level::Key { tokens(&|e| e.key.is_some()) } else { total(&store).await?.tokens() };
        assert_eq!(sums.iter().map(|sum| sum.tokens).sum::<u64>(), expected, "{level}");
        for sum in &sums {
            let same = |entry: &Entry| match level {
                Level::Alias => served(entry) == sum.alias,
                Level::Team => Some(&entry.team) == sum.team.as_ref(),
                Level::TeamAlias => Some(&entry.team) == sum.team.as_ref() && served(entry) == sum.alias,
                Level::Caller => {
                    Some(&entry.team) == sum.team.as_ref()
                        && Some(&entry.issuer) == sum.issuer.as_ref()
                        && Some(&entry.caller) == sum.caller.as_ref()
                }
                Level::Key => entry.key == sum.key,
            };
            assert_eq!(sum.tokens, tokens(&same), "{level}: {sum:?}");
        }
    }
    let fallback = Some("alias-fallback".into());
    let by_alias = store.period_sums(Level::Alias, SATURDAY).await?;
    assert!(by_alias.iter().any(|sum| sum.alias == fallback && sum.tokens > 0));
    Ok(())
}

/// A period that begins within a quarter of an hour counts from its beginning.
///
/// # Errors
/// When the store fails.
pub async fn quota_sums_count_from_the_instant_exactly(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("since").await?;
    let entries = spread();
    store.append(&entries).await?;
    for since in [entries[17].at.ms, entries[17].at.ms + 1, SATURDAY.ms + 24 * HOUR_MS, i64::MIN, i64::MAX - HOUR_MS] {
        let expected: u64 = entries.iter().filter(|entry| entry.at.ms >= since).map(Entry::tokens).sum();
        assert_eq!(tokens_since(&store, since).await?, expected, "{since}");
    }
    Ok(())
}

async fn tokens_since(store: &Store, since: i64) -> Result<u64, StoreError> {
    Ok(store.period_sums(Level::Team, Unix::from_ms(since)).await?.iter().map(|sum| sum.tokens).sum())
}
