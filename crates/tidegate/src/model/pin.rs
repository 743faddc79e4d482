//! `tidegate model pin` and `unpin`.

use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_modelcache::evict::Hold;
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::Request;

use super::args::{Pin, Unpin};
use super::place::Place;
use super::show::{Doing, Tally, View};
use super::{KEPT, answer, ask, exit};

/// Who pins from the command line: one pin for each model, whoever types.
const BY: &str = "operator";

pub(crate) fn pin(args: &Pin) -> anyhow::Result<ExitCode> {
    let place = Place::of(&args.place)?;
    let digest = place.digest(&args.model)?;
    let request = Request::Pin { digest, hold: Hold::Pinned, by: BY.to_owned(), note: args.note.clone() };
    let quiet = (View::of(args.place.json), Tally::new(Doing::Pulling, &args.model, 0));
    match ask::<Value>(&place, &request, &FetchOptions::default(), quiet)? {
        Ok(_) => {
            let pinned = json!({"event": "pinned", "digest": digest});
            answer(args.place.json, &pinned, |_| format!("{} is pinned\nsha256:{digest}", args.model))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => Ok(exit::report(&ended, args.place.json, KEPT)),
    }
}

pub(crate) fn unpin(args: &Unpin) -> anyhow::Result<ExitCode> {
    let place = Place::of(&args.place)?;
    let digest = place.digest(&args.model)?;
    let request = Request::Unpin { digest, hold: Hold::Pinned, by: BY.to_owned() };
    let quiet = (View::of(args.place.json), Tally::new(Doing::Pulling, &args.model, 0));
    match ask::<bool>(&place, &request, &FetchOptions::default(), quiet)? {
        Ok(was_pinned) => {
            let unpinned = json!({"event": "unpinned", "digest": digest, "was_pinned": was_pinned});
            answer(args.place.json, &unpinned, |_| match was_pinned {
                true => format!("{} may go when room is needed\nsha256:{digest}", args.model),
                false => format!("{} was not pinned\nsha256:{digest}", args.model),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => Ok(exit::report(&ended, args.place.json, KEPT)),
    }
}
