//! `tidegate model push`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::json;
use tidegate_config::quantity::Bytes;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::manifest::check_chunk_size;
use tidegate_modelcache::progress::Event;
use tidegate_modelcache::push::{PushOptions, push as put};
use tidegate_modelcache::source::Source;

use super::args::Push;
use super::place::{self, Place};
use super::show::{Doing, Tally, View};
use super::{answer, exit, units, work};

const KEPT: &str = "the version is not there yet; run it again, and what is in the store whole is not sent twice";

pub(crate) fn push(args: &Push) -> anyhow::Result<ExitCode> {
    let (json, model) = (args.place.json, place::model(&args.model)?);
    let chunk_size: Bytes =
        args.chunk_size.parse().map_err(|error| anyhow::anyhow!("--chunk-size {}: {error}", args.chunk_size))?;
    let chunk_size = check_chunk_size(chunk_size.0).context("--chunk-size")?;
    let place = Place::of(&args.place)?;
    let opened = place.store().and_then(|store| Ok((store.open()?, Source::open(&args.source)?)));
    let (remote, source) = match opened {
        Ok(opened) => opened,
        Err(fault) => return Ok(exit::report(&fault.into(), json, KEPT)),
    };
    let options = PushOptions { chunk_size, streams: usize::from(args.streams), ..PushOptions::default() };
    let tally = Tally::new(Doing::Pushing, model.as_str(), source.total_bytes());
    let done = work(View::of(json), tally, |feed| async move {
        let sink = Arc::new(move |event: Event| feed.send(event));
        let done = put(&remote, &source, &model, &options, sink).await?;
        Ok::<_, CacheFault>((model, done))
    })?;
    match done {
        Ok((model, done)) => {
            let pushed = json!({
                "event": "pushed", "model": model, "digest": done.manifest.digest(),
                "files": done.manifest.files().len(), "bytes": done.manifest.total_bytes(),
                "sent_bytes": done.sent_bytes, "was_there": done.was_there,
            });
            answer(json, &pushed, |_| {
                let what = match (done.was_there, done.sent_bytes) {
                    (true, 0) => "was there already, nothing was sent".to_owned(),
                    (_, sent) => format!("is in the store, {} sent", units::bytes(sent)),
                };
                format!("{model} {what}\nsha256:{}", done.manifest.digest())
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ended) => Ok(exit::report(&ended, json, KEPT)),
    }
}
