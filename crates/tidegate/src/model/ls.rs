//! `tidegate model ls` and `du`: what only reads needs no owner.

use std::process::ExitCode;

use comfy_table::CellAlignment;
use tidegate_core::Unix;
use tidegate_modelcache::cache::{self, DiskUse, Listed, ListedState, Pin};

use super::args::Look;
use super::place::{Place, hinted};
use super::{answer, units};
use crate::verbs::{minute, table};

/// Digits of a digest that are shown: enough to name it by.
const DIGEST_SHOWN: usize = 12;

pub(crate) fn ls(args: &Look) -> anyhow::Result<ExitCode> {
    let place = Place::of(&args.place)?;
    place.must_exist()?;
    let models = cache::ls(&place.layout).map_err(hinted)?;
    answer(args.place.json, &models, |models| list(models))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn du(args: &Look) -> anyhow::Result<ExitCode> {
    let place = Place::of(&args.place)?;
    place.must_exist()?;
    let found = cache::du(&place.layout, place.keep_free).map_err(hinted)?;
    answer(args.place.json, &found, usage)?;
    Ok(ExitCode::SUCCESS)
}

const fn state(state: ListedState) -> &'static str {
    match state {
        ListedState::Published => "cached",
        ListedState::Partial => "on its way",
        ListedState::Damaged => "damaged",
    }
}

fn reasons(pins: &[Pin]) -> String {
    let reason = |pin: &Pin| match pin.note.is_empty() {
        true => format!("{} ({})", pin.hold.as_str(), pin.by),
        false => format!("{} ({}: {})", pin.hold.as_str(), pin.by, pin.note),
    };
    pins.iter().map(reason).collect::<Vec<_>>().join(", ")
}

fn list(models: &[Listed]) -> String {
    let mut rows = table(&["model", "digest", "state", "files", "size", "own", "last used", "stays because"]);
    for column in rows.column_iter_mut().skip(3).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for model in models {
        let used = model.last_use_s.and_then(|used| i64::try_from(used).ok());
        rows.add_row([
            if model.models.is_empty() { "-".to_owned() } else { model.models.join(", ") },
            model.digest.get(..DIGEST_SHOWN).unwrap_or(&model.digest).to_owned(),
            state(model.state).to_owned(),
            model.files.to_string(),
            units::bytes(model.bytes),
            units::bytes(model.own_bytes),
            used.map_or_else(|| "never".to_owned(), |used| minute(Unix::from_ms(used.saturating_mul(1_000)))),
            reasons(&model.pins),
        ]);
    }
    rows.to_string()
}

fn usage(found: &DiskUse) -> String {
    let lines = [
        ("models", found.model_bytes, format!("in {}", units::count(found.models.len() as u64, "model"))),
        ("on the way", found.partial_bytes, String::new()),
        ("compile caches", found.artifact_bytes, String::new()),
        ("saved by sharing", found.shared_bytes, "files that models have in common".to_owned()),
        ("disk", found.total_bytes, String::new()),
        ("free", found.free_bytes, format!("of which {} stay free", units::bytes(found.keep_free_bytes))),
    ];
    let mut rows = table(&["", "size", ""]);
    for (name, bytes, note) in lines {
        rows.add_row([name.to_owned(), units::bytes(bytes), note]);
    }
    if let Some(column) = rows.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    rows.to_string()
}
