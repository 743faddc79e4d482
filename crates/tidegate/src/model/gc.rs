//! `tidegate model gc`.

use std::process::ExitCode;

use tidegate_modelcache::cache::CacheOptions;
use tidegate_modelcache::cache::gc::{Action, Finding, Found, Mode, Report, dry_run};
use tidegate_modelcache::fetch::FetchOptions;
use tidegate_modelcache::owner::Request;

use super::args::Gc;
use super::place::{Place, hinted};
use super::show::{Doing, Tally, View};
use super::{KEPT, answer, ask, exit, units};

/// How many findings are listed for people; JSON has all of them.
const LISTED_MAX: usize = 50;

pub(crate) fn gc(args: &Gc) -> anyhow::Result<ExitCode> {
    let place = Place::of(&args.place)?;
    place.must_exist()?;
    let json = args.place.json;
    let report = if args.dry_run {
        let now_s = (CacheOptions::default().now_s)();
        dry_run(&place.layout, place.keep_free, now_s).map_err(hinted)?
    } else {
        let request = Request::Gc { mode: Mode::Remove };
        let quiet = (View::of(json), Tally::new(Doing::Verifying, "the cache", 0));
        match ask::<Report>(&place, &request, &FetchOptions::default(), quiet)? {
            Ok(report) => report,
            Err(ended) => return Ok(exit::report(&ended, json, KEPT)),
        }
    };
    answer(json, &report, text)?;
    Ok(ExitCode::SUCCESS)
}

const fn found(found: Found) -> &'static str {
    match found {
        Found::Leftover => "left over",
        Found::FileWithoutModel => "file of no model",
        Found::PartialWithoutModel => "file on its way of no model",
        Found::FolderWithoutManifest => "model without a manifest",
        Found::AbandonedFetch => "fetch that nobody took up again",
        Found::NameWithoutModel => "name of no model",
        Found::UseWithoutModel => "last use of no model",
        Found::ArtifactWithoutModel => "compile cache of no model",
        Found::PinWithoutModel => "pin of a model that is not here",
        Found::DamagedModel => "DAMAGED: `tidegate model verify --repair`",
        Found::Stranger => "not ours, look at it",
    }
}

fn text(report: &Report) -> String {
    let line = |finding: &Finding| {
        let what = match (finding.action, report.mode) {
            (Action::Keep, _) => "stays",
            (Action::Remove, Mode::DryRun) => "would go",
            (Action::Remove, Mode::Remove) => "removed",
        };
        format!("{what:<8}  {}  ({})", finding.path, found(finding.found))
    };
    let mut lines: Vec<String> = report.findings.iter().take(LISTED_MAX).map(line).collect();
    let more = report.found.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more; --json lists them"));
    }
    let verb = if report.mode == Mode::DryRun { "would go" } else { "removed" };
    for model in &report.evicted {
        let name = model.models.first().unwrap_or(&model.digest);
        lines.push(format!("{verb:<8}  {name}  ({} to have enough free)", units::bytes(model.bytes)));
    }
    let freed = units::bytes(report.freed_bytes);
    lines.push(match report.mode {
        Mode::DryRun => format!("{freed} would be freed"),
        Mode::Remove => format!("{freed} freed"),
    });
    if report.missing_bytes > 0 {
        let missing = units::bytes(report.missing_bytes);
        lines.push(format!(
            "{missing} of what should stay free are missing: everything else is held, see `tidegate model ls`"
        ));
    }
    lines.join("\n")
}
