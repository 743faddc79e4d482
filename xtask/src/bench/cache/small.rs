//! Verification, a second pull, and the commands that only look.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::Client;
use super::clients::{self, files};
use super::limits::Limits;
use super::stand::{Model, Stand};
use crate::bench::figures::{Figure, Goal, median};
use crate::terminal::complain;
use crate::workspace;

/// Runs of what takes milliseconds.
const RUNS: usize = 9;

/// Reads a cached model back from the disk and hashes it.
///
/// # Errors
/// It cannot be fetched or is not right.
pub(super) fn verify(stand: &Stand, model: &Model, rounds: usize, limits: &Limits) -> Result<Vec<Figure<Client>>> {
    clients::fetch(stand, Client::Tidegate, model)?;
    let folder = stand.folder.join("fetched");
    let mut rates = Vec::new();
    for round in 1..=rounds {
        complain!("{}, verify {round} of {rounds}", model.size());
        forget_pages(&folder)?;
        let start = Instant::now();
        // it fails when anything is not right
        stand.model_run(&["verify", &model.path, "--cache", &folder.display().to_string()])?;
        rates.push(model.bytes as f64 / 1e6 / start.elapsed().as_secs_f64());
    }
    let rate = median(&rates).unwrap_or(f64::NAN);
    let (name, limit) = limits.of_verify();
    Ok(vec![
        Figure::own(format!("verify {}", model.size()), "MB/s", rate),
        Figure::own(format!("verify {}: of the lowest limit ({name})", model.size()), "×", rate / limit)
            .wants(Goal::AtLeast(0.9)),
    ])
}

/// So that the disk is read, not the kernel's memory of it.
fn forget_pages(folder: &Path) -> Result<()> {
    for file in files(folder)? {
        let mut dd = workspace::command("dd");
        dd.arg(format!("if={}", file.display()));
        workspace::run(dd.args(["iflag=nocache", "count=0", "status=none"]))?;
    }
    Ok(())
}

/// Pulls what is there already.
///
/// # Errors
/// A pull fails.
pub(super) fn second(stand: &Stand, model: &Model) -> Result<Vec<Figure<Client>>> {
    clients::fetch(stand, Client::Tidegate, model)?;
    let folder = stand.folder.join("fetched").display().to_string();
    let before = stand.weight_requests()?;
    let seconds = timed(|| stand.model_command(&["pull", &model.path, "--cache", &folder]))?;
    let requests = stand.weight_requests()? - before;
    Ok(vec![
        Figure::own(format!("second pull of {}", model.size()), "s", seconds).wants(Goal::AtMost(0.02)),
        Figure::own(format!("second pull of {}: requests for its files", model.size()), "", requests as f64)
            .wants(Goal::Exactly(0.0)),
    ])
}

/// `ls`, `du` and `gc` on a cache with many files.
///
/// # Errors
/// The model cannot be made, or a command fails.
pub(super) fn commands(stand: &Stand, count: usize) -> Result<Vec<Figure<Client>>> {
    complain!("a model of {count} files");
    let source = stand.folder.join("source");
    let store = stand.folder.join("plain-store");
    let cache = stand.fresh()?.display().to_string();
    fs::create_dir_all(source.join("weights"))?;
    fs::create_dir_all(&store)?;
    fs::write(source.join("config.json"), "{}\n")?;
    for number in 1..count {
        fs::write(source.join(format!("weights/part-{number:06}.safetensors")), number.to_string())?;
    }
    let url = format!("file://{}", store.display());
    let push = ["push", &source.display().to_string(), "many/files"];
    workspace::output(&mut stand.model_command_on(&url, &push))?;
    workspace::output(&mut stand.model_command_on(&url, &["pull", "many/files", "--cache", &cache]))?;
    fs::remove_dir_all(&source)?;
    fs::remove_dir_all(&store)?;
    let mut figures = Vec::new();
    for words in [&["ls"][..], &["du"], &["gc", "--dry-run"]] {
        let seconds = timed(|| stand.model_command_on(&url, &[words, &["--cache", &cache]].concat()))?;
        let name = words.join(" ");
        figures.push(Figure::own(format!("{name} with {count} files"), "s", seconds).wants(Goal::AtMost(0.2)));
    }
    Ok(figures)
}

/// The median over some runs, from the program's start to its end.
fn timed(command: impl Fn() -> Command) -> Result<f64> {
    let mut seconds = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        workspace::output(&mut command())?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(median(&seconds).unwrap_or(f64::NAN))
}
