//! Without a controller: what the store knows, and what can be said to the next one.

use tidegate_core::{ShiftName, Unix};
use tidegate_store::store::{By, OverrideRow, SwitchOutcome, SwitchRow};
use tidegate_store::{Store, StoreError};

use super::ask::{Accepted, Ask, Refused, RefusedKind};
use super::status::{LifecycleStatus, SaidView, SwitchView};

/// What the store says of the last controller.
pub(super) async fn status(store: &Store, shifts: &[ShiftName]) -> Result<LifecycleStatus, StoreError> {
    let last = store.last_switch().await?;
    let said = store.override_in_force().await?;
    let (in_progress, over) = match last {
        Some(row) if row.ended.is_none() => (Some(row), store.switches(None, 2).await?.into_iter().nth(1)),
        other => (None, other),
    };
    Ok(LifecycleStatus {
        controller: false,
        generation: store.generation().await?,
        shift: over.as_ref().map(loaded_after).filter(|shift| shifts.contains(shift)),
        said: said.map(|said| SaidView {
            shift: said.shift,
            verb: said.verb.as_str().to_owned(),
            who: said.who,
            made: said.made.to_timestamp(),
            until: said.until.map(Unix::to_timestamp),
        }),
        paused: store.pause().await?.is_some(),
        switch: in_progress.as_ref().map(SwitchView::of),
        last: over.as_ref().map(SwitchView::of),
        ..LifecycleStatus::default()
    })
}

/// The shift that a switch left loaded; one that another took the place of never came to be.
fn loaded_after(row: &SwitchRow) -> ShiftName {
    match row.outcome {
        Some(SwitchOutcome::Complete | SwitchOutcome::Partly) => row.to.clone(),
        Some(SwitchOutcome::Aborted) | None => row.from.clone(),
    }
}

/// Writes down what the next controller is to do, where that makes sense without one.
pub(super) async fn ask(
    store: &Store,
    shifts: &[ShiftName],
    ask: Ask,
    by: By<'_>,
) -> Result<Result<Accepted, Refused>, StoreError> {
    let conflict = |text: &str| Ok(Err(Refused::new(RefusedKind::Conflict, text)));
    let (verb, until) = (
        ask.verb(),
        match &ask {
            Ask::Switch { until, .. } | Ask::Hold { until } => *until,
            _ => None,
        },
    );
    let shift = match ask {
        Ask::Switch { to, .. } => to,
        Ask::Hold { .. } => match store.last_switch().await?.as_ref().map(loaded_after) {
            Some(shift) => shift,
            None => return conflict("nothing was ever loaded here: there is nothing to hold"),
        },
        Ask::Rollback => match store.last_completed_switch().await? {
            Some(row) => row.from,
            None => return conflict("no completed switch is on record: there is nothing to go back to"),
        },
        Ask::Resume => {
            let generation = store.next_generation().await?;
            store.clear_override(generation).await?;
            store.clear_pause(generation).await?;
            return Ok(Ok(Accepted { changes: false, desired: None, generation, later: true }));
        }
        Ask::Abort => return conflict("no process runs: no switch is in progress"),
        Ask::Pause => return conflict("no process runs: there is nothing to pause"),
        Ask::Release { .. } => {
            return conflict("no process runs: GPUs are looked at anew when one starts, nothing is quarantined now");
        }
    };
    if !shifts.contains(&shift) {
        return conflict(&format!("the documents do not have the shift {shift} any more"));
    }
    let generation = store.next_generation().await?;
    let until = until.map(|until| Unix::from_ms(until.as_millisecond()));
    let said = OverrideRow { shift: shift.clone(), made: by.at, until, who: by.who.to_owned(), verb };
    store.set_override(generation, &said).await?;
    Ok(Ok(Accepted { changes: false, desired: Some(shift), generation, later: true }))
}
