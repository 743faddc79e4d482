//! `tidegate model`: models between the object store and this machine's cache.
//!
//! ```text
//! documents, flags ── Place ── verb ── owner::perform ─┬─ the cache is free: Keeper, which serves others meanwhile
//!                                                      └─ it has an owner: asked over owner.sock
//!                                            events ── Shown: bars, lines, JSON
//!
//! tidegate up ── Models ── owns the cache as long as it runs: Keeper, owner.sock, scrub, metrics, folders for engines
//! ```

mod args;
mod exit;
mod folders;
mod gc;
mod keeper;
mod ls;
mod metrics;
mod owner;
mod pin;
mod place;
mod pull;
mod push;
mod show;
mod units;
mod verify;

use std::process::ExitCode;

use serde::de::DeserializeOwned;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::{Request, perform};
use tidegate_modelcache::progress::{Event, Feed};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::args::Model;
use self::args::ModelVerb;
use self::exit::Ended;
pub(crate) use self::folders::{CompiledFor, ModelFolder};
use self::keeper::Keeper;
pub(crate) use self::metrics::CacheCollector;
pub(crate) use self::owner::Models;
pub(crate) use self::place::keep_free;
use self::place::{Place, WrongDocuments};
use self::show::{Shown, Tally, View};
use crate::{EXIT_DOCUMENTS, terminal};

/// What is said after a signal.
const KEPT: &str = "what has come is kept: run it again and it resumes where it was";

/// `tidegate model`.
pub(crate) fn model(args: &Model) -> anyhow::Result<ExitCode> {
    let done = match &args.verb {
        ModelVerb::Push(args) => push::push(args),
        ModelVerb::Pull(args) => pull::pull(args),
        ModelVerb::Verify(args) => verify::verify(args),
        ModelVerb::Ls(args) => ls::ls(args),
        ModelVerb::Du(args) => ls::du(args),
        ModelVerb::Pin(args) => pin::pin(args),
        ModelVerb::Unpin(args) => pin::unpin(args),
        ModelVerb::Gc(args) => gc::gc(args),
    };
    match done {
        Err(error) if error.is::<WrongDocuments>() => Ok(ExitCode::from(EXIT_DOCUMENTS)),
        done => done,
    }
}

/// Runs some work with its progress shown, until it ends or a signal comes.
pub(crate) fn work<T, W: Future<Output = Result<T, CacheFault>>>(
    view: View,
    tally: Tally,
    begin: impl FnOnce(Feed) -> W,
) -> anyhow::Result<Result<T, Ended>> {
    // A fetch hashes on all threads of the runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shown = Shown::start(view, tally, runtime.handle());
    let done = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        anyhow::Ok(tokio::select! {
            done = begin(shown.feed()) => done.map_err(Ended::Fault),
            _ = interrupt.recv() => Err(Ended::Signal("SIGINT")),
            _ = terminate.recv() => Err(Ended::Signal("SIGTERM")),
        })
    });
    shown.end();
    // What blocks on the disk ends by itself, and counts for nothing that is not recorded.
    runtime.shutdown_background();
    done
}

/// Has a request done, by us or by the cache's owner, with progress.
pub(crate) fn ask<T: DeserializeOwned>(
    place: &Place,
    request: &Request,
    fetch: &FetchOptions,
    (view, tally): (View, Tally),
) -> anyhow::Result<Result<T, Ended>> {
    if let Err(fault) = place.prepare() {
        return Ok(Err(fault.into()));
    }
    let done = work(view, tally, |feed| async move {
        let sink = |event: Event| feed.send(event);
        let serve = |cache| Ok(Keeper::new(cache, place.store.clone(), fetch.clone()));
        perform(place.layout.root(), place.options(), request, &sink, serve).await
    })?;
    Ok(match done {
        Ok(value) => Ok(serde_json::from_value(value)?),
        Err(ended) => Err(ended),
    })
}

/// Shows an answer: as JSON when asked, else as `text` makes it.
fn answer<T: serde::Serialize>(json: bool, answer: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    if json {
        terminal::answer(&serde_json::to_string(answer)?);
    } else {
        terminal::answer(&text(answer));
    }
    Ok(())
}
