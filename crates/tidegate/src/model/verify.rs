//! `tidegate model verify`.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::{self, Listed, ListedState};
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::Request;

use super::args::Verify;
use super::exit::{self, Ended};
use super::keeper::Verified;
use super::place::{Place, hinted};
use super::show::{Doing, Tally, View};
use super::{KEPT, answer, ask, units};

/// How many findings of one model are listed for people; JSON has all of them.
const LISTED_MAX: usize = 50;

pub(crate) fn verify(args: &Verify) -> anyhow::Result<ExitCode> {
    let json = args.place.json;
    let place = Place::of(&args.place)?;
    place.must_exist()?;
    let models = if args.models.is_empty() {
        let all = cache::ls(&place.layout).map_err(hinted)?;
        all.into_iter().filter(|model| model.state == ListedState::Published).collect()
    } else {
        args.models.iter().map(|name| place.find(name)).collect::<Result<Vec<_>, _>>()?
    };
    if let Some(Err(fault)) = args.repair.then(|| place.store()) {
        return Ok(exit::report(&fault.into(), json, KEPT));
    }
    let mut worst = None;
    for model in &models {
        match one(&place, model, args.repair, json)? {
            Ok(true) => {}
            Ok(false) => worst = worst.or_else(|| Some(ExitCode::from(exit::WRONG_CONTENT))),
            Err(ended @ Ended::Signal(_)) => return Ok(exit::report(&ended, json, KEPT)),
            // The others are looked at all the same.
            Err(ended) => worst = Some(exit::report(&ended, json, KEPT)),
        }
    }
    Ok(worst.unwrap_or(ExitCode::SUCCESS))
}

/// Whether the model is right now.
fn one(place: &Place, model: &Listed, repair: bool, json: bool) -> anyhow::Result<Result<bool, Ended>> {
    let name = model.models.first().map_or_else(|| format!("sha256-{}", model.digest), Clone::clone);
    let digest = Sha256Digest::parse(&model.digest).context("the cache names a digest that is none")?;
    let request = Request::Verify { digest, repair, store: place.store_name() };
    let tally = Tally::new(Doing::Verifying, &name, model.bytes);
    let done: Result<Verified, _> = ask(place, &request, &FetchOptions::default(), (View::of(json), tally))?;
    let found = match done {
        Ok(found) => found,
        Err(ended) => return Ok(Err(ended)),
    };
    let is_right = found.was_right() || found.repaired_bytes.is_some();
    let mut verified = json!({"event": "verified", "model": name, "digest": model.digest, "right": is_right});
    if let (Some(verified), Ok(serde_json::Value::Object(found))) =
        (verified.as_object_mut(), serde_json::to_value(&found))
    {
        verified.extend(found);
    }
    answer(json, &verified, |_| text(&name, &found))?;
    Ok(Ok(is_right))
}

fn text(name: &str, found: &Verified) -> String {
    let read = format!("{} in {}", units::bytes(found.bytes), units::count(found.files, "file"));
    if found.was_right() {
        return format!("{name}: every byte is right ({read})");
    }
    let wrong = found.wrong.iter().map(|wrong| format!("{}, chunk {}: wrong bytes", wrong.file, wrong.chunk));
    let missing = found.missing.iter().map(|file| format!("{file}: not there, or of another length"));
    let contradicted = found.contradicted.iter().map(|file| format!("{file}: the manifest contradicts itself"));
    let strangers = found.strangers.iter().map(|path| format!("{path}: does not belong there"));
    let mut lines: Vec<String> = wrong.chain(missing).chain(contradicted).chain(strangers).collect();
    let more = lines.len().saturating_sub(LISTED_MAX);
    lines.truncate(LISTED_MAX);
    if more > 0 {
        lines.push(format!("and {more} more; --json lists all"));
    }
    let end = match found.repaired_bytes {
        Some(bytes) => format!("repaired: {} fetched again, the rest was kept", units::bytes(bytes)),
        None => "next:  `tidegate model verify --repair` fetches what is wrong again, and nothing else".to_owned(),
    };
    format!("{name}: DAMAGED ({read})\n  {}\n{end}", lines.join("\n  "))
}
