//! Each request has exactly one final entry, however often and in whatever order it is delivered.

use tidegate_core::{Entry, Outcome, Unix};

use super::Bench;
use super::make::{entry, shuffled};
use crate::store::{Appended, EntryQuery, GroupBy, Store, StoreError, TOKENS_MAX, UsageQuery, UsageSums};

const AT: Unix = Unix::from_ms(1_764_500_000_000);

fn entries(count: u64) -> Vec<Entry> {
    // 37 s apart: over several quarters of an hour.
    (0..count).map(|number| entry(number, Unix::from_ms(AT.ms + number as i64 * 37_000))).collect()
}

/// What the sums have to be.
pub(super) fn sums_of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> UsageSums {
    let mut sums = UsageSums::default();
    for entry in entries {
        let is = |outcome: Outcome| u64::from(entry.outcome == outcome);
        sums.add(&UsageSums {
            requests: 1,
            ok: is(Outcome::Ok),
            failed: is(Outcome::Failed),
            cancelled: is(Outcome::Cancelled),
            orphaned: is(Outcome::Orphaned),
            prompt_tokens: entry.prompt_tokens.min(TOKENS_MAX),
            cached_tokens: entry.cached_tokens.min(TOKENS_MAX),
            output_tokens: entry.output_tokens.min(TOKENS_MAX),
        });
    }
    sums
}

pub(super) async fn total(store: &Store) -> Result<UsageSums, StoreError> {
    let query = UsageQuery {
        from: Unix::from_ms(0),
        until: Unix::from_ms(4_000_000_000_000),
        group_by: GroupBy::default(),
        bucket: crate::store::Bucket::Total,
        zone: jiff::tz::TimeZone::UTC,
        filter: crate::store::UsageFilter::default(),
    };
    let mut sums = UsageSums::default();
    store.usage(&query).await?.iter().for_each(|row| sums.add(&row.sums));
    Ok(sums)
}

async fn all(store: &Store) -> Result<Vec<Entry>, StoreError> {
    let query = EntryQuery { from: Unix::from_ms(0), until: Unix::from_ms(i64::MAX), after: None, limit: 1_000 };
    store.entries(&query).await
}

/// A batch that is delivered again is recognised, whole or in part, also with one entry twice within.
///
/// # Errors
/// When the store fails.
pub async fn an_entry_delivered_twice_counts_once(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("twice").await?;
    let entries = entries(100);
    assert_eq!(store.append(&entries[..60]).await?, Appended { inserted: 60, duplicates: 0 });
    assert_eq!(store.append(&entries[..60]).await?, Appended { inserted: 0, duplicates: 60 });
    assert_eq!(store.append(&entries[30..]).await?, Appended { inserted: 40, duplicates: 30 });
    let doubled = [&entries[..10], &entries[..10]].concat();
    assert_eq!(store.append(&doubled).await?, Appended { inserted: 0, duplicates: 20 });
    let store = bench.open("twice within").await?;
    assert_eq!(store.append(&doubled).await?, Appended { inserted: 10, duplicates: 10 });
    assert_eq!(total(&store).await?, sums_of(&entries[..10]));
    Ok(())
}

/// Settle, orphan and import commute: any order, any batches, any number of deliveries give one ledger.
///
/// # Errors
/// When the store fails.
pub async fn permutations_with_duplicates_give_the_same_ledger(bench: &impl Bench) -> Result<(), StoreError> {
    let entries = entries(60);
    let expected = sums_of(&entries);
    for seed in 0..12_u64 {
        let store = bench.open(&format!("permutation-{seed}")).await?;
        let delivered = shuffled(&[entries.clone(), entries.clone()].concat(), seed);
        for batch in delivered.chunks(1 + seed as usize * 3) {
            store.append(batch).await?;
        }
        assert_eq!(total(&store).await?, expected, "seed {seed}");
        assert_eq!(all(&store).await?, entries, "seed {seed}");
    }
    Ok(())
}

/// The first final entry of an id stays, whatever a second one says.
///
/// # Errors
/// When the store fails.
pub async fn a_second_final_entry_of_an_id_changes_nothing(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("second").await?;
    let first = entry(5, AT);
    let other = Entry { outcome: Outcome::Orphaned, output_tokens: 999, team: "other".into(), ..first.clone() };
    store.append(std::slice::from_ref(&first)).await?;
    assert_eq!(store.append(std::slice::from_ref(&other)).await?.inserted, 0);
    assert_eq!(store.entry(first.id).await?.as_ref(), Some(&first));
    assert_eq!(total(&store).await?, sums_of([&first]));
    Ok(())
}

/// Two gateways that recover the same journal do not charge it twice.
///
/// # Errors
/// When the store fails.
pub async fn two_handles_that_append_the_same_entries_count_them_once(bench: &impl Bench) -> Result<(), StoreError> {
    let (one, two) = (bench.open("handles").await?, bench.open("handles").await?);
    let entries = entries(120);
    let write = async |store: &Store, seed: u64| {
        let mut inserted = 0;
        for batch in shuffled(&entries, seed).chunks(7) {
            inserted += store.append(batch).await?.inserted;
        }
        Ok::<_, StoreError>(inserted)
    };
    let (by_one, by_two) = tokio::join!(write(&one, 1), write(&two, 2));
    assert_eq!(by_one? + by_two?, entries.len());
    assert_eq!(total(&one).await?, sums_of(&entries));
    assert_eq!(all(&two).await?, entries);
    Ok(())
}

/// No field of an entry is lost.
///
/// # Errors
/// When the store fails.
pub async fn an_entry_is_read_back_as_it_was_written(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("fields").await?;
    let entries = entries(30);
    store.append(&entries).await?;
    for entry in &entries {
        assert_eq!(store.entry(entry.id).await?.as_ref(), Some(entry));
    }
    let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
    assert_eq!(store.known(&ids).await?.len(), ids.len());
    assert_eq!(store.entry(entry(99, AT).id).await?, None);
    Ok(())
}

/// Callers choose request ids and ask for any alias; engines answer with any id.
///
/// # Errors
/// When the store fails.
pub async fn hostile_texts_are_kept_as_they_are(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("hostile").await?;
    let texts =
        ["'; DROP TABLE ledger; --", "a|b%7C\\\"'", "ünïcödé 🌊", "\u{1}\n\t\u{7f}", "[1,{\"a\":null}]", " x ", "%"];
    for (number, text) in texts.into_iter().enumerate() {
        let entry = Entry {
            request_id: text.into(),
            engine_id: Some(text.into()),
            code: Some(text.into()),
            alias: Some(text.into()),
            caller: text.into(),
            ..entry(3 + number as u64 * 8, AT)
        };
        store.append(std::slice::from_ref(&entry)).await?;
        assert_eq!(store.entry(entry.id).await?, Some(entry));
    }
    // A zero byte ends a text in some databases; whatever becomes of it, the entry is not lost and counted once.
    let entry = Entry { alias: Some("a\0b".into()), request_id: "\0".into(), ..entry(4, AT) };
    for _ in 0..2 {
        store.append(std::slice::from_ref(&entry)).await?;
    }
    let kept = store.entry(entry.id).await?;
    assert_eq!(kept.map(|kept| (kept.id, kept.output_tokens)), Some((entry.id, entry.output_tokens)));
    assert_eq!(total(&store).await?.requests, texts.len() as u64 + 1);
    Ok(())
}

/// A wall clock may say anything; a batch with such an entry must not be refused for ever.
///
/// # Errors
/// When the store fails.
pub async fn an_entry_of_any_instant_is_kept(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("instants").await?;
    let instants = [i64::MIN, -1, 0, 899_999, 900_000, i64::MAX];
    for (number, ms) in instants.into_iter().enumerate() {
        let entry = Entry { at: Unix::from_ms(ms), ..entry(number as u64, AT) };
        store.append(std::slice::from_ref(&entry)).await?;
        assert_eq!(store.entry(entry.id).await?, Some(entry), "{ms}");
    }
    assert_eq!(total(&store).await?.requests, instants.len() as u64 - 3, "from 1970 to 2096");
    Ok(())
}

/// An engine that reports nonsense cannot make a sum fail.
///
/// # Errors
/// When the store fails.
pub async fn impossible_token_counts_are_bounded_and_sums_never_overflow(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("huge").await?;
    let huge = |number| Entry {
        prompt_tokens: u64::MAX,
        cached_tokens: u64::MAX,
        output_tokens: TOKENS_MAX + 1,
        reserved_tokens: u64::MAX,
        ..entry(number, AT)
    };
    let entries = [huge(3), huge(4), Entry { output_tokens: TOKENS_MAX, ..huge(5) }];
    store.append(&entries).await?;
    assert_eq!(total(&store).await?, sums_of(&entries));
    assert_eq!(total(&store).await?.output_tokens, 3 * TOKENS_MAX);
    Ok(())
}

/// Page after page gives every entry once.
///
/// # Errors
/// When the store fails.
pub async fn pages_of_entries_miss_none_and_repeat_none(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("pages").await?;
    let entries = entries(25);
    store.append(&shuffled(&entries, 3)).await?;
    let (from, until) = (entries[2].at, entries[20].at);
    let mut query = EntryQuery { from, until, after: None, limit: 7 };
    let mut read = Vec::new();
    loop {
        let page = store.entries(&query).await?;
        assert!(page.len() <= 7);
        let Some(last) = page.last() else { break };
        query.after = Some((last.at, last.id));
        read.extend(page);
    }
    assert_eq!(read, entries[2..20]);
    Ok(())
}
