//! `tidegate model pull`.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::Request;

use super::args::Pull;
use super::keeper::Pulled;
use super::place::{self, Place};
use super::show::{Doing, Tally, View};
use super::{KEPT, answer, ask, exit, units};

pub(crate) fn pull(args: &Pull) -> anyhow::Result<ExitCode> {
    let (json, model) = (args.place.json, place::model(&args.model)?);
    let pin = args.digest.as_ref().map(|text| {
        place::digest(text).with_context(|| format!("--digest takes sha256: and 64 hexadecimal digits, not {text:?}"))
    });
    let pin = pin.transpose()?;
    let place = Place::of(&args.place)?;
    if let Err(fault) = place.store() {
        return Ok(exit::report(&fault.into(), json, KEPT));
    }
    let request = Request::Pull { model: model.clone(), pin, store: place.store_name() };
    let fetch = FetchOptions { streams: usize::from(args.streams), ..FetchOptions::default() };
    let tally = Tally::new(Doing::Pulling, model.as_str(), 0);
    let done: Result<Pulled, _> = ask(&place, &request, &fetch, (View::of(json), tally))?;
    match done {
        Ok(done) => {
            let pulled = json!({
                "event": "pulled", "model": model, "digest": done.digest, "path": done.path,
                "fetched_bytes": done.fetched_bytes,
            });
            answer(json, &pulled, |_| match done.fetched_bytes {
                0 => format!("{model} is cached\n{}", done.path),
                bytes => format!("{model} is cached, {} fetched\n{}", units::bytes(bytes), done.path),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => Ok(exit::report(&ended, json, KEPT)),
    }
}
