//! What is said by hand, switches, steps and measurements.

use serde_json::{Value, json};
use tidegate_core::Unix;

use super::Bench;
use crate::store::{
    By, MeasuredRow, Noted, OverrideRow, PHASES_JSON_MAX, REVISIONS_KEPT, STEP_TEXT_MAX, STEPS_MAX, SWITCH_JSON_MAX,
    SWITCHES_KEPT, StoreError, SwitchMode, SwitchOutcome, SwitchRow, Verb,
};

const AT: Unix = Unix::from_ms(1_764_500_000_000);

fn by(who: &str) -> By<'_> {
    By { who, at: AT }
}

fn said(shift: &str, verb: Verb) -> OverrideRow {
    OverrideRow { shift: shift.into(), made: AT, until: None, who: "ann".to_owned(), verb }
}

/// A switch in progress.
pub(super) fn switch(number: u64, generation: u64) -> SwitchRow {
    SwitchRow {
        number,
        generation,
        from: "day".into(),
        to: "night".into(),
        at: Unix::from_ms(AT.ms + 1_000),
        why: "timetable".to_owned(),
        mode: SwitchMode::Runs,
        failed: std::collections::BTreeSet::new(),
        outcome: None,
        started: AT,
        ended: None,
        plan: json!({"changes": []}),
        record: Value::Null,
    }
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Refused(_))), "{result:?}");
}

/// The last word counts; taking it back leaves none.
///
/// # Errors
/// When the store fails.
pub async fn what_was_said_is_kept_until_it_is_taken_back(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("said").await?;
    assert_eq!(store.override_in_force().await?, None);
    let generation = store.next_generation().await?;
    store.set_override(generation, &said("day", Verb::Hold)).await?;
    let last = OverrideRow { until: Some(Unix::from_ms(AT.ms + 9)), ..said("night", Verb::Switch) };
    store.set_override(generation, &last).await?;
    assert_eq!(store.override_in_force().await?, Some(last));
    assert_eq!(store.generations().await?.lifecycle, 2);
    store.clear_override(generation).await?;
    store.clear_override(generation).await?;
    assert_eq!((store.override_in_force().await?, store.generations().await?.lifecycle), (None, 3));
    Ok(())
}

/// Who paused first is who paused.
///
/// # Errors
/// When the store fails.
pub async fn a_pause_holds_until_it_is_lifted(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("pause").await?;
    assert_eq!(store.pause().await?, None);
    let generation = store.next_generation().await?;
    store.set_pause(generation, by("ann")).await?;
    store.set_pause(generation, by("bob")).await?;
    assert_eq!(store.pause().await?.map(|pause| (pause.who, pause.at)), Some(("ann".to_owned(), AT)));
    store.clear_pause(generation).await?;
    assert_eq!(store.pause().await?, None);
    Ok(())
}

/// Who asked for what by hand, whoever is the controller.
///
/// # Errors
/// When the store fails.
pub async fn every_verb_leaves_an_audit_row(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("verbs").await?;
    for verb in [Verb::Switch, Verb::Hold, Verb::Rollback, Verb::Abort, Verb::Pause, Verb::Resume] {
        store.note_verb(by("ann"), verb, "night", &json!({})).await?;
    }
    store.note_verb(by("dan"), Verb::Release, "node-1/3", &json!({"reason": "seen free"})).await?;
    let rows = store.audit(0, 100).await?;
    let noted: Vec<_> = rows.iter().map(|row| (&*row.who, &*row.action, &*row.subject)).collect();
    assert_eq!(
        noted,
        [
            ("ann", "lifecycle.switch", "night"),
            ("ann", "lifecycle.hold", "night"),
            ("ann", "lifecycle.rollback", "night"),
            ("ann", "lifecycle.abort", "night"),
            ("ann", "lifecycle.pause", "night"),
            ("ann", "lifecycle.resume", "night"),
            ("dan", "gpu.release", "node-1/3"),
        ]
    );
    assert!(rows.last().is_some_and(|row| row.detail.contains("seen free")));
    Ok(())
}

/// No field is lost, in progress and over.
///
/// # Errors
/// When the store fails.
pub async fn a_switch_is_read_back_as_it_was_written(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("switch fields").await?;
    assert_eq!((store.last_switch().await?, store.last_completed_switch().await?), (None, None));
    let first = store.next_generation().await?;
    let done = SwitchRow {
        outcome: Some(SwitchOutcome::Complete),
        ended: Some(Unix::from_ms(AT.ms + 7)),
        record: json!({"phases": {"a": {"load": 1.5}}, "revision": u64::MAX}),
        ..switch(first, first)
    };
    store.save_switch(&switch(first, first)).await?;
    store.save_switch(&done).await?;
    let second = store.next_generation().await?;
    let aborts = SwitchRow { mode: SwitchMode::Aborts, failed: ["b".into()].into(), ..switch(second, second) };
    store.save_switch(&aborts).await?;
    assert_eq!(store.last_switch().await?, Some(aborts.clone()));
    assert_eq!(store.last_completed_switch().await?, Some(done.clone()));
    assert_eq!(store.switches(None, 10).await?, [aborts.clone(), done.clone()]);
    assert_eq!(store.switches(None, 1).await?, [aborts]);
    assert_eq!(store.switches(Some(second), 10).await?, [done]);
    Ok(())
}

/// A controller that was killed left it half done; the next one goes on under a number of its own.
///
/// # Errors
/// When the store fails.
pub async fn a_switch_taken_over_stays_one_switch(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("taken over").await?;
    let first = store.next_generation().await?;
    store.save_switch(&switch(first, first)).await?;
    store.note_step(first, 0, &"start a".into(), AT).await?;
    let second = store.next_generation().await?;
    let taken = SwitchRow { mode: SwitchMode::Paused, ..switch(first, second) };
    store.save_switch(&taken).await?;
    assert_eq!(store.switches(None, 10).await?, [taken]);
    assert_eq!(store.steps(first).await?.len(), 1, "what the first one did is still known");
    Ok(())
}

/// The history has a bound, and steps of what is forgotten go with it.
///
/// # Errors
/// When the store fails.
pub async fn only_the_last_switches_are_kept_with_their_steps(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("history").await?;
    let kept = SWITCHES_KEPT as u64;
    for number in 1..=kept + 2 {
        assert_eq!(store.next_generation().await?, number);
        store.note_step(number, 0, &"start".into(), AT).await?;
        store.save_switch(&SwitchRow { plan: Value::Null, ..switch(number, number) }).await?;
        if number == kept {
            assert_eq!(store.steps(1).await?.len(), 1, "as many as the bound are kept");
        }
    }
    let switches = store.switches(None, u32::MAX).await?;
    assert_eq!((switches.len(), switches.last().map(|row| row.number)), (SWITCHES_KEPT, Some(3)));
    assert_eq!((store.steps(2).await?.len(), store.steps(3).await?.len()), (0, 1));
    Ok(())
}

/// A JSON text of exactly so many bytes.
fn text(bytes: usize) -> Value {
    Value::String("x".repeat(bytes - 2))
}

/// The bound itself is kept, one byte or one step more is refused and changes nothing.
///
/// # Errors
/// When the store fails.
pub async fn plans_records_and_steps_are_bounded(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("bounds").await?;
    let generation = store.next_generation().await?;
    let row = switch(generation, generation);
    is_refused(store.save_switch(&SwitchRow { plan: text(SWITCH_JSON_MAX + 1), ..row.clone() }).await);
    is_refused(store.save_switch(&SwitchRow { record: text(SWITCH_JSON_MAX + 1), ..row.clone() }).await);
    assert_eq!(store.last_switch().await?, None);
    let full = SwitchRow { plan: text(SWITCH_JSON_MAX), record: text(SWITCH_JSON_MAX), ..row };
    store.save_switch(&full).await?;
    assert_eq!(store.last_switch().await?, Some(full));

    is_refused(store.note_step(generation, 0, &text(STEP_TEXT_MAX + 1), AT).await);
    is_refused(store.note_step(generation, STEPS_MAX, &text(9), AT).await);
    store.note_step(generation, STEPS_MAX - 1, &text(STEP_TEXT_MAX), AT).await?;
    is_refused(store.answer_step(generation, STEPS_MAX - 1, &"x".repeat(STEP_TEXT_MAX + 1), AT).await);
    store.answer_step(generation, STEPS_MAX - 1, &"x".repeat(STEP_TEXT_MAX), AT).await?;
    assert_eq!(store.steps(generation).await?.len(), 1);

    let measured = |bytes| MeasuredRow { deployment: "a".into(), revision: 1, phases: text(bytes), at: AT };
    is_refused(store.measure(generation, &measured(PHASES_JSON_MAX + 1)).await);
    store.measure(generation, &measured(PHASES_JSON_MAX)).await
}

/// A controller that does not know whether its note was taken makes it again.
///
/// # Errors
/// When the store fails.
pub async fn a_step_noted_twice_is_one_step(bench: &impl Bench) -> Result<(), StoreError> {
    let (store, other) = (bench.open("steps").await?, bench.open("steps").await?);
    let generation = store.next_generation().await?;
    let effect = json!({"start": "a"});
    assert_eq!(store.note_step(generation, 1, &effect, AT).await?, Noted::New);
    assert_eq!(other.note_step(generation, 1, &effect, Unix::from_ms(AT.ms + 1)).await?, Noted::Known(None));
    let another = store.note_step(generation, 1, &json!({"stop": "a"}), AT).await;
    assert!(matches!(another, Err(StoreError::Conflict(_))), "{another:?}");
    store.answer_step(generation, 1, "done", AT).await?;
    assert_eq!(other.note_step(generation, 1, &effect, AT).await?, Noted::Known(Some("done".to_owned())));
    let steps = store.steps(generation).await?;
    assert_eq!(steps.iter().map(|step| (step.number, step.at)).collect::<Vec<_>>(), [(1, AT)]);
    assert_eq!(store.note_step(generation, 0, &effect, AT).await?, Noted::New);
    let numbers: Vec<u64> = store.steps(generation).await?.iter().map(|step| step.number).collect();
    assert_eq!(numbers, [0, 1], "in the order of their numbers");
    Ok(())
}

/// What came of it is never said anew.
///
/// # Errors
/// When the store fails.
pub async fn a_step_is_answered_once(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("answers").await?;
    let generation = store.next_generation().await?;
    let none = store.answer_step(generation, 0, "done", AT).await;
    assert!(matches!(none, Err(StoreError::NotFound(_))), "{none:?}");
    store.note_step(generation, 0, &"start".into(), AT).await?;
    let later = Unix::from_ms(AT.ms + 3);
    store.answer_step(generation, 0, "done", later).await?;
    store.answer_step(generation, 0, "done", Unix::from_ms(AT.ms + 4)).await?;
    let another = store.answer_step(generation, 0, "failed", AT).await;
    assert!(matches!(another, Err(StoreError::Conflict(_))), "{another:?}");
    let steps = store.steps(generation).await?;
    let answers: Vec<_> = steps.iter().map(|step| (step.outcome.as_deref(), step.answered)).collect();
    assert_eq!(answers, [(Some("done"), Some(later))]);
    Ok(())
}

/// A revision that is measured again has one row; the ones measured longest ago go.
///
/// # Errors
/// When the store fails.
pub async fn measurements_of_the_last_revisions_are_kept(bench: &impl Bench) -> Result<(), StoreError> {
    let store = bench.open("measured").await?;
    let generation = store.next_generation().await?;
    let row = |deployment: &str, revision: u64, ms: i64| MeasuredRow {
        deployment: deployment.into(),
        revision,
        phases: json!({"load": ms}),
        at: Unix::from_ms(AT.ms + ms),
    };
    store.measure(generation, &row("b", u64::MAX, 0)).await?;
    for revision in 0..REVISIONS_KEPT as u64 {
        store.measure(generation, &row("a", revision, revision as i64)).await?;
    }
    store.measure(generation, &row("a", 0, 100)).await?;
    let revisions = async || {
        let rows = store.measured().await?;
        let of_a = rows.iter().filter(|row| row.deployment.as_str() == "a");
        Ok::<_, StoreError>(of_a.map(|row| row.revision).collect::<Vec<_>>())
    };
    assert_eq!(revisions().await?, (0..REVISIONS_KEPT as u64).collect::<Vec<_>>());
    store.measure(generation, &row("a", 77, 101)).await?;
    let expected: Vec<u64> = [0].into_iter().chain(2..REVISIONS_KEPT as u64).chain([77]).collect();
    assert_eq!(revisions().await?, expected);
    assert!(store.measured().await?.contains(&row("b", u64::MAX, 0)));
    Ok(())
}
