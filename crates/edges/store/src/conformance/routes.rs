//! Generations and routes: who may write, and who hears of it.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::Unix;

use super::Bench;
use crate::store::{
    By, ChangeWatcher, MeasuredRow, OverrideRow, ROUTE_TARGETS_MAX, ROUTES_MAX, RouteRow, RouteTarget, Store,
    StoreError, Verb,
};

const AT: Unix = Unix::from_ms(1_764_500_000_000);

/// The route of an alias to one deployment.
pub(super) fn route(alias: &str, deployment: &str, generation: u64) -> RouteRow {
    RouteRow {
        alias: alias.into(),
        targets: vec![RouteTarget { deployment: deployment.into(), weight: 100, revision: None }],
        shift: "day".into(),
        until: None,
        generation,
        at: AT,
    }
}

/// Two controllers that ask at the same time get different ones, and none is left out.
///
/// # Errors
/// When the store fails.
pub async fn generations_are_given_out_once_whoever_asks(bench: &impl Bench) -> Result<(), StoreError> {
    let (ours, theirs) = (bench.open("counter").await?, bench.open("counter").await?);
    assert_eq!(ours.generation().await?, 0);
    let take = async |store: &Store| {
        let mut taken = Vec::new();
        for _ in 0..50 {
            taken.push(store.next_generation().await?);
        }
        assert!(taken.is_sorted_by(|a, b| a < b));
        Ok::<_, StoreError>(taken)
    };
    let (mine, other) = tokio::join!(take(&ours), take(&theirs));
    let all: BTreeSet<u64> = mine?.into_iter().chain(other?).collect();
    assert_eq!(all, (1..=100).collect());
    assert_eq!(theirs.generation().await?, 100);
    Ok(())
}

/// A node keeps the highest generation it has seen: after the store was restored, the next one must be above it.
///
/// # Errors
/// When the store fails.
pub async fn a_store_that_is_older_than_a_node_gives_higher_generations(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("restored").await?;
    assert_eq!(store.next_generation_above(41).await?, 42);
    assert_eq!(store.next_generation_above(7).await?, 43);
    is_refused(&store.next_generation_above(i64::MAX.unsigned_abs()).await);
    assert_eq!(store.generation().await?, 43);
    Ok(())
}

fn is_refused<T: std::fmt::Debug>(result: &Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Refused(_))), "{result:?}");
}

/// Every kind of write in the name of `old`, of which none may pass.
async fn write_everything(store: &Store, old: u64, new: u64) {
    let by = By { who: "bob", at: AT };
    let said = OverrideRow { shift: "night".into(), made: AT, until: None, who: "bob".to_owned(), verb: Verb::Switch };
    let measured = MeasuredRow { deployment: "one".into(), revision: 1, phases: "".into(), at: AT };
    let results = [
        store.set_route(&route("chat", "two", old)).await,
        store.remove_route(&"chat".into(), old).await,
        store.set_override(old, &said).await,
        store.clear_override(old).await,
        store.set_pause(old, by).await,
        store.clear_pause(old).await,
        store.save_switch(&super::lifecycle::switch(old, old)).await,
        store.note_step(old, 2, &"stop".into(), AT).await.map(drop),
        store.answer_step(old, 1, "done", AT).await,
        store.measure(old, &measured).await,
    ];
    for result in results {
        assert!(matches!(&result, Err(StoreError::Stale { highest }) if *highest == new), "{result:?}");
    }
}

/// All that a write could have changed, as text.
async fn everything(store: &Store, generation: u64) -> Result<String, StoreError> {
    let rows = (store.routes().await?, store.override_in_force().await?, store.pause().await?);
    let history = (store.last_switch().await?, store.steps(generation).await?, store.measured().await?);
    Ok(format!("{rows:?} {history:?} {:?} {:?}", store.generations().await?, store.audit(0, 100).await?))
}

/// Every kind of write is fenced.
///
/// # Errors
/// When the store fails.
pub async fn a_write_of_an_earlier_generation_changes_nothing(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("fenced").await?;
    let old = store.next_generation().await?;
    store.set_route(&route("chat", "one", old)).await?;
    let by = By { who: "ann", at: AT };
    let said = OverrideRow { shift: "day".into(), made: AT, until: None, who: "ann".to_owned(), verb: Verb::Hold };
    store.set_override(old, &said).await?;
    store.set_pause(old, by).await?;
    store.note_step(old, 1, &"start".into(), AT).await?;
    let new = store.next_generation().await?;
    let before = everything(&store, old).await?;
    write_everything(&store, old, new).await;
    assert_eq!(everything(&store, old).await?, before);
    Ok(())
}

/// A number that somebody made up would shut nobody out, and would be given to somebody else later.
///
/// # Errors
/// When the store fails.
pub async fn a_generation_that_was_never_given_out_is_refused(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("invented").await?;
    is_refused(&store.set_route(&route("chat", "one", 1)).await);
    assert_eq!(store.routes().await?.routes, []);
    assert_eq!(store.next_generation().await?, 1);
    store.set_route(&route("chat", "one", 1)).await
}

/// No field is lost; names are kept as they are.
///
/// # Errors
/// When the store fails.
pub async fn a_route_is_read_back_as_it_was_written(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("route fields").await?;
    let generation = store.next_generation().await?;
    let split = RouteRow {
        targets: vec![
            RouteTarget { deployment: "new".into(), weight: 1, revision: Some(u64::MAX) },
            RouteTarget { deployment: "old".into(), weight: u32::MAX, revision: None },
        ],
        shift: "night".into(),
        ..route("b'; --", "", generation)
    };
    let gap = RouteRow { targets: Vec::new(), until: Some(Unix::from_ms(AT.ms + 1)), ..route("a", "", generation) };
    store.set_route(&split).await?;
    store.set_route(&gap).await?;
    let snapshot = store.routes().await?;
    assert_eq!((snapshot.number, snapshot.routes), (2, vec![gap.clone(), split.clone()]));
    assert_eq!(store.route(&split.alias).await?, Some(split.clone()));
    store.remove_route(&split.alias, generation).await?;
    store.remove_route(&split.alias, generation).await?;
    let snapshot = store.routes().await?;
    assert_eq!((snapshot.number, snapshot.routes), (3, vec![gap]));
    assert_eq!(store.route(&split.alias).await?, None);
    Ok(())
}

/// A controller that starts again writes what is in force again: no gate has anything to do.
///
/// # Errors
/// When the store fails.
pub async fn a_route_that_leads_to_the_same_place_tells_nobody(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("same way").await?;
    store.set_route(&route("chat", "one", store.next_generation().await?)).await?;
    let again = RouteRow { at: Unix::from_ms(AT.ms + 5), ..route("chat", "one", store.next_generation().await?) };
    store.set_route(&again).await?;
    let snapshot = store.routes().await?;
    assert_eq!((snapshot.number, snapshot.routes), (1, vec![again.clone()]));
    for (expected, changed) in [
        (2, RouteRow { shift: "night".into(), ..again.clone() }),
        (3, RouteRow { until: Some(AT), ..again.clone() }),
        (4, RouteRow { targets: Vec::new(), ..again.clone() }),
    ] {
        store.set_route(&changed).await?;
        assert_eq!(store.generations().await?.routes, expected);
    }
    Ok(())
}

/// A gate in another process hears of a route; what the controller notes for itself is another topic.
///
/// # Errors
/// When the store fails.
pub async fn a_change_of_a_route_is_felt_by_another_handle(bench: &impl Bench) -> Result<(), StoreError> {
    let (gate, controller) = (bench.open("felt").await?, bench.open("felt").await?);
    let watcher = ChangeWatcher::start(&gate, Duration::from_millis(5)).await?;
    let mut changes = watcher.changes();
    let generation = controller.next_generation().await?;
    controller.save_switch(&super::lifecycle::switch(generation, generation)).await?;
    controller.set_route(&route("chat", "one", generation)).await?;
    let felt = changes.wait_for(|changes| changes.routes == 1).await.map(|changes| *changes);
    assert_eq!(felt.ok().map(|felt| (felt.lifecycle, felt.keys, felt.shift)), Some((1, 0, 0)));
    assert_eq!(gate.routes().await?.routes, [route("chat", "one", generation)]);
    Ok(())
}

/// The bound itself is kept, one more is refused and changes nothing.
///
/// # Errors
/// When the store fails.
pub async fn routes_are_bounded(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("route bounds").await?;
    let generation = store.next_generation().await?;
    let with = |count: usize| {
        let targets = (0..count).map(|number| RouteTarget {
            deployment: format!("d{number}").as_str().into(),
            weight: 1,
            revision: None,
        });
        RouteRow { targets: targets.collect(), ..route("chat", "", generation) }
    };
    store.set_route(&with(ROUTE_TARGETS_MAX)).await?;
    is_refused(&store.set_route(&with(ROUTE_TARGETS_MAX + 1)).await);
    assert_eq!(store.routes().await?.routes, [with(ROUTE_TARGETS_MAX)]);
    for number in 1..ROUTES_MAX {
        store.set_route(&route(&format!("alias-{number}"), "one", generation)).await?;
    }
    is_refused(&store.set_route(&route("one-more", "one", generation)).await);
    store.set_route(&route("chat", "one", generation)).await?;
    assert_eq!(store.routes().await?.routes.len(), ROUTES_MAX);
    Ok(())
}
